"""Whose file counts, where processes with different files share a store.

Law: a subscription of the file goes on while any process that is there has it in its own, and rests when none is left.
A process that starts pauses what it has not got (:func:`~poller.store.registering.syncing`). Whoever has it, and is
there, brings it back and is written down as the one who did (``member``). Who has not got it leaves it alone from then
on until that process is gone, and pauses it then; another one that has it brings it back again. So two that differ do
not fight: with each start and each end of a process a subscription is paused once at most, and brought back once. With
the last process of an older file goes what that file alone had, and one that was there for a moment silences nothing.

What an operator, a sink or failures have paused is nobody's file's concern, and neither is what an operator resumed.

Pure. What is there is asked for after what is kept was read: whoever is written down was there before it was.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

import msgspec

from poller.store.registering import Write, leaving, returning
from poller.store.registrations import Paused, Subscriptions

REASON: Final = "no running process has it in its configuration file any more"


class Contested(msgspec.Struct, frozen=True):
    """Where one process' file and what is kept differ.

    Attributes:
        silenced: in its file, and paused because it is not in another's; with the process that has paused it.
        brought: not in its file, and going on because of another's; with the process that has brought it.
    """

    silenced: Mapping[str, str] = {}
    brought: Mapping[str, str] = {}

    def __bool__(self) -> bool:
        """Whether they differ."""
        return bool(self.silenced or self.brought)


class Settled(msgspec.Struct, frozen=True):
    """What one process has changed.

    Attributes:
        returned: those that go on because its file has them; with the process that has paused it.
        removed: those that rest because none of those that are there has them.
    """

    returned: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()


def contested(kept: Subscriptions, file: Collection[str]) -> Contested:
    """Where they differ; ``file`` holds the ids of the subscriptions of a process' file."""
    silenced = {name: one.member for name, one in kept.paused.items() if one.by == "removed" and name in file}
    brought = {
        name: one.member
        for name, one in kept.registered.items()
        if one.origin == "file" and one.member and name not in file and name not in kept.paused
    }
    return Contested(silenced, brought)


def settling(
    kept: Subscriptions, found: Contested, member: str, there: Collection[str], now: datetime
) -> tuple[list[Write], Settled]:
    """What a process is to write, and what that means.

    Args:
        kept: what is there.
        found: where that and its file differ.
        member: its name.
        there: the names of those that deliver, as they were after ``kept``.
        now: UTC.
    """
    returned = found.silenced if member in there else {}
    removed = tuple(name for name, by in found.brought.items() if by not in there)
    writes: list[Write] = []
    for name in returned:
        writes += returning(name, kept.registered[name], member)
    for name in removed:
        writes += leaving(name, kept.registered[name], Paused("removed", REASON, now, member))
    return writes, Settled(returned, removed)
