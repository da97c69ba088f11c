"""What other processes have noted is known here before it is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from poller.service.overhearing import overhear
from poller.store.losses import Remembered
from poller.store.remembering import Memory, notes
from poller.store.state import FeedState

if TYPE_CHECKING:
    from redis.asyncio import Redis

_KEY = "poller:{operations}:remembered"
_NOTED = Remembered("g1", 5)


class _Store:
    def __init__(self, *, held: bool, known: Remembered | None = None) -> None:
        self.held = held
        self.memory = Memory()
        self.memory.known = known


async def _heard(client: Redis, *, looks: int = 1, **stores: _Store) -> list[float]:
    """Look at the notes; the pauses before each look, and the one after the last."""
    stop = asyncio.Event()
    pauses: list[float] = []

    async def pause(_stop: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > looks:
            stop.set()

    await overhear(stop, client, _KEY, stores.items(), pause=pause)
    return pauses


async def test_looks_are_close_at_first(client: Redis) -> None:
    """Law: each pause is a quarter longer, up to a minute; while a feed of others is unknown, up to 5 s."""
    pauses = await _heard(client, looks=60, known=_Store(held=False, known=_NOTED), ours=_Store(held=True))
    assert pauses[:2] == [0.1, 0.125]
    assert pauses[-1] == 60.0
    assert (await _heard(client, looks=60, unknown=_Store(held=False)))[-1] == 5.0


async def test_what_is_known_here_alone_is_noted_again(client: Redis) -> None:
    """Law: who starts after the store was lost hears of it; a note that is there is another's to change."""
    further = Remembered("g1", 9)
    await client.hset(_KEY, "kept", msgspec.json.encode(further))
    stores: dict[str, Any] = {name: _Store(held=name != "theirs", known=_NOTED) for name in ("lost", "theirs", "kept")}
    for name, store in stores.items():
        store.memory = Memory(client, _KEY, name)
        store.memory.known = _NOTED
    await _heard(client, **stores)
    assert await notes(client, _KEY) == {"lost": _NOTED, "theirs": _NOTED, "kept": further}
    await stores["kept"].memory.remind()  # as if the note had come just after the look
    assert (await notes(client, _KEY))["kept"] == further


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


async def test_what_another_has_told_is_not_told_again_after_the_next_loss(client: Redis) -> None:
    """Law: who finds a loss that is told already counts it, so that its own note takes nothing back."""
    told = Remembered("g2", 1, ("g1",), told=1)
    await client.hset(_KEY, "f", msgspec.json.encode(told))
    memory = Memory(client, _KEY, "f")
    memory.known = Remembered("g1", 5)
    state = FeedState("g2", 1, formers=("g1",))
    assert await memory.loss(state, "") is None
    memory.begun(state, "")
    assert memory.known == told
    await memory.note()
    assert await notes(client, _KEY) == {"f": told}
