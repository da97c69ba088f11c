"""What other processes have noted is known here before it is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from poller.service.overhearing import overhear
from poller.store.losses import Remembered
from poller.store.remembering import Memory

if TYPE_CHECKING:
    from redis.asyncio import Redis

_KEY = "poller:{operations}:remembered"
_NOTED = Remembered("g1", 5)


class _Store:
    def __init__(self, *, held: bool, known: Remembered | None = None) -> None:
        self.held = held
        self.memory = Memory()
        self.memory.known = known


async def _heard(client: Redis, **stores: _Store) -> None:
    """One look at the notes."""
    stop = asyncio.Event()
    looks: list[float] = []

    async def pause(_stop: asyncio.Event, seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            stop.set()

    await overhear(stop, client, _KEY, stores.items(), pause=pause)
    assert looks == [0.1, 0.125]


async def test_feeds_of_others_are_known(client: Redis) -> None:
    """Law: one that is held here knows better; what nobody has noted, or cannot be read, is not known."""
    for feed, noted in {
        "theirs": msgspec.json.encode(_NOTED),
        "ours": msgspec.json.encode(_NOTED),
        "odd": b"?",
    }.items():
        await client.hset(_KEY, feed, noted)
    theirs, ours, odd, unknown = (_Store(held=held) for held in (False, True, False, False))
    await _heard(client, theirs=theirs, ours=ours, odd=odd, unknown=unknown)
    assert theirs.memory.known == _NOTED
    assert (ours.memory.known, odd.memory.known, unknown.memory.known) == (None, None, None)


async def test_notes_that_are_gone_take_nothing_away(client: Redis) -> None:
    """Law: that is the moment for which it was learnt."""
    theirs = _Store(held=False, known=_NOTED)
    await _heard(client, theirs=theirs)
    assert theirs.memory.known == _NOTED


async def test_only_what_goes_further_counts() -> None:
    """Law: a later event, or a loss told since, of the same feed; a store that went back does not make us forget."""
    for known, noted, expected in (
        (None, Remembered("g1", 5), "g1"),
        (Remembered("g1", 5), Remembered("g1", 9), "further"),
        (Remembered("g1", 9), Remembered("g1", 5), "known"),
        (Remembered("g1", 9), Remembered("g2", 1, ("g1",), 1), "further"),
        (Remembered("g1", 9), Remembered("x", 99, (), 7), "known"),
    ):
        memory = Memory()
        memory.known = known
        memory.overheard(noted)
        assert memory.known == (known if expected == "known" else noted)
