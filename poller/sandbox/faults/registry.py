"""The table of profiles, and the API that a choice of them makes.

A profile applies to every request; a fault is the same profile applied now and then. ``NAME@RESOURCE`` restricts
either to one resource.

**Invariants**

- The same seed and the same requests in the same order give the same faults.
- Profiles apply in the table's order, from the records outwards to the connection, not in that of the command line:
  what reads an envelope is applied before what makes it unreadable. So any set of them composes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from poller.errors import ConfigurationError
from poller.sandbox.api import Respond, SandboxRequest, SandboxResponse
from poller.sandbox.faults import answers, paging
from poller.sandbox.faults.base import Layer, Profile, SandboxScene, stacked, switched
from poller.sandbox.history import RESOURCES

if TYPE_CHECKING:
    from poller.sandbox.history import History


PROFILES: Final = {
    profile.name: profile
    for profile in (
        *answers.CONTENT_PROFILES,
        *paging.PAGING_PROFILES,
        *paging.ENDING_PROFILES,
        *paging.TOKEN_PROFILES,
        *answers.ASKED,
        *answers.RECORD_PROFILES,
        *answers.BODY_PROFILES,
        *answers.TAGGED,
        *answers.BROKEN,
    )
}
"""Every profile by its name."""

ORDER: Final = {name: place for place, name in enumerate(PROFILES)}
"""The position of each profile; lower ones are applied first."""


DEFAULT_RATE: Final = 0.1
_MOST: Final = 10**9


class ChosenProfile(msgspec.Struct, frozen=True):
    """A profile as chosen.

    Attributes:
        profile: which.
        resource: the only one that it applies to; None for all.
        rate: the share of requests that it affects, 0 to 1.
        count: the most requests that it affects; None: no limit.
    """

    profile: Profile
    resource: str | None = None
    rate: float = 1.0
    count: int | None = None


def chosen(profiles: Iterable[str] = (), faults: Iterable[str] = ()) -> tuple[ChosenProfile, ...]:
    """Read ``NAME[@RESOURCE]`` and ``NAME[@RESOURCE][=RATE|COUNT]``, several in one text with commas between.

    Raises:
        ConfigurationError: there is no such profile or resource, or it is neither rate nor count.
    """
    always = [_named("--profile", text) for text in _split(profiles)]
    return (*always, *(_fault(text) for text in _split(faults)))


def composed(
    choices: Sequence[ChosenProfile], scene: SandboxScene, chance: Callable[[], Random], respond: Respond
) -> Respond:
    """The API with the switches and the chosen profiles and faults around it.

    Args:
        choices: the profiles and faults, in any order.
        scene: the sandbox.
        chance: makes the source of chance for the faults, called only if there are any.
        respond: the API itself.
    """
    ordered = sorted(choices, key=lambda choice: ORDER[choice.profile.name])
    rng = chance() if any(choice.rate < 1 for choice in ordered) else Random(0)  # noqa: S311 - strikes, not secrets
    behaving = switched(scene.switches)(respond)
    misbehaving = stacked([_layer(choice, scene, rng) for choice in ordered], behaving)

    def call(history: History, ask: SandboxRequest) -> SandboxResponse:
        return (misbehaving if scene.switches.profiles else behaving)(history, ask)

    return call


def _layer(choice: ChosenProfile, scene: SandboxScene, rng: Random) -> Layer:
    made = choice.profile.make(scene)
    if choice.resource is None and choice.rate >= 1 and choice.count is None:
        return made

    def layer(respond: Respond) -> Respond:
        misbehaving, left = made(respond), _MOST if choice.count is None else choice.count

        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            nonlocal left
            if choice.resource not in (None, ask.resource) or not left or rng.random() >= choice.rate:
                return respond(history, ask)
            left -= 1
            return misbehaving(history, ask)

        return call

    return layer


def _fault(text: str) -> ChosenProfile:
    named, equals, amount = text.partition("=")
    choice = _named("--faults", named)
    if not equals:
        return msgspec.structs.replace(choice, rate=DEFAULT_RATE)
    if amount.isdecimal() and 1 <= int(amount[:12]) <= _MOST:
        return msgspec.structs.replace(choice, count=int(amount))
    try:
        rate = float(amount)
    except ValueError:
        rate = -1.0
    if not ("." in amount and 0 <= rate <= 1):
        raise ConfigurationError(
            f'--faults {named} is "{amount}"; expected a rate from 0.0 to 1.0 or a count, 1 or more'
        )
    return msgspec.structs.replace(choice, rate=rate)


def _named(option: str, text: str) -> ChosenProfile:
    name, at, resource = text.partition("@")
    if name not in PROFILES:
        raise ConfigurationError(
            f'{option}: no profile "{name}"{_meant(name, PROFILES)} (poller sandbox --list shows them all)'
        )
    if at and resource not in RESOURCES:
        raise ConfigurationError(f'{option} {name}: no resource "{resource}"{_meant(resource, RESOURCES)}')
    return ChosenProfile(PROFILES[name], resource or None)


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _split(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
