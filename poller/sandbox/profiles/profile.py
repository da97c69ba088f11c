"""One way to differ or to misbehave: a name, its kind, a line that says what it does, and the layer that does it.

Law: the line is the whole truth; a test shows each over a socket. A profile has no state of its own: what must be
remembered between requests lives in the layer that it makes afresh for each sandbox.

It does not know: the other profiles, how often it strikes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

import msgspec

from poller.sandbox.answer import Answer, Ask
from poller.sandbox.layers import Envelope, Layer, on_answers, on_asks, on_pages
from poller.sandbox.switches import Switches


class Kind(StrEnum):
    """What a reader can make of a profile.

    Attributes:
        DIALECT: another way to say the same: all that there is can be read.
        ANSWER: answers that are no answer: nothing that they say counts.
        RECORD: records that no API should send, among good ones.
        MANNERS: an API that is busy, or refuses whoever asks.
        LACK: listings that lack records, and nothing in them says so.
        STALE: answers as things were, among others as they are.
    """

    DIALECT = "dialect"
    ANSWER = "bad answer"
    RECORD = "bad record"
    MANNERS = "manners"
    LACK = "lack"
    STALE = "stale"


class Scene(msgspec.Struct, frozen=True):
    """What a layer may need of the sandbox that it is made for: its switches and its clock (UTC)."""

    switches: Switches
    now: Callable[[], datetime]


class Profile(msgspec.Struct, frozen=True):
    """A profile.

    Attributes:
        name: lower-case words with hyphens.
        does: what a reader of the API sees, in one line.
        make: the layer, for one sandbox.
        kind: what a reader can make of it.
    """

    name: str
    does: str
    make: Callable[[Scene], Layer]
    kind: Kind = Kind.DIALECT


def layering(name: str, does: str, layer: Layer, kind: Kind = Kind.DIALECT) -> Profile:
    """A profile whose layer needs nothing of the sandbox and remembers nothing."""
    return Profile(name, does, lambda _scene: layer, kind)


def of_asks(name: str, does: str, edit: Callable[[Ask], Ask | Answer], kind: Kind = Kind.DIALECT) -> Profile:
    """A profile that changes or answers requests."""
    return layering(name, does, on_asks(edit), kind)


def of_answers(name: str, does: str, edit: Callable[[Answer], Answer], kind: Kind = Kind.DIALECT) -> Profile:
    """A profile that changes answers, of lists and of single records alike."""
    return layering(name, does, on_answers(lambda _ask, said: edit(said)), kind)


def of_pages(name: str, does: str, edit: Callable[[Ask, Envelope], Envelope], kind: Kind = Kind.DIALECT) -> Profile:
    """A profile that changes the pages of lists."""
    return layering(name, does, on_pages(lambda _history, ask, page: edit(ask, page)), kind)
