"""What was asked of a feed and is not answered yet, and the answers: how a command and a daemon speak to each other.

The order itself stands beside the feed's state (:mod:`poller.store.commands`, :mod:`poller.store.commands`) and holds
without anything of this. Here is who waits for it: any process that polls the feed finds it, carries it out, and says
so. One that dies in between leaves it to whoever takes the feed after it.

Law: an order that was asked is answered for good once; until then it is found again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.redis.errors import translated
from poller.store.feed_state import HELD, RELEASED, RESYNC
from poller.store.keys import FeedKeys, answer_key, orders_key
from poller.store.scripts import ORDER, lua
from poller.text import one_line

KEPT: Final = timedelta(hours=1)
"""For how long an order waits for somebody who carries it out, and an answer for somebody who reads it."""

_ANSWER: Final = lua("reply_command")


_FORGET: Final = lua("withdraw_command")


class Command(msgspec.Struct, frozen=True):
    """An order that waits for its answer.

    Attributes:
        id: drawn by whoever asks.
        feed: ``SOURCE/NAME``.
        order: which one; a word of :class:`poller.control.commands.RoundRequest`.
        at: when it was asked, UTC.
    """

    id: str
    feed: str
    order: str
    at: datetime


class CommandReply(msgspec.Struct, frozen=True):
    """What the process says that has the feed.

    Attributes:
        member: its name.
        done: whether nothing more will be said.
        text: in words.
        round: the round that carried it out, as ``poller once --json`` prints it; None where there was none.
        put_off: whether it is carried out later, and nobody waits for that.
    """

    member: str
    done: bool
    text: str
    round: dict[str, str | int | float | bool | None] | None = None
    put_off: bool = False


class CommandQueue:
    """The orders of one store that wait. Each method may raise StoreError."""

    def __init__(self, client: Redis, prefix: str) -> None:
        """Take where they are."""
        self._client = client
        self._prefix = prefix
        self._key = orders_key(prefix)

    async def ask(self, order: Command) -> None:
        """Let it be found."""
        with translated(self._client):
            await self._client.hset(self._key, order.id, msgspec.json.encode(order))

    async def waiting(self) -> list[Command]:
        """All that wait; what another version wrote in another form waits for that one."""
        with translated(self._client):
            kept = cast("dict[bytes, bytes]", await self._client.hgetall(self._key))
        return [order for order in map(_order, kept.values()) if order is not None]

    async def stands(self, order: Command) -> bool:
        """Whether it is one for a round, and no round has carried it out yet."""
        kind = RoundRequest.__members__.get(order.order.upper())
        return kind is not None and await stands(self._client, FeedKeys.of(self._prefix, order.feed), kind)

    async def paused(self, order: Command) -> bool:
        """Whether its feed is."""
        with translated(self._client):
            return bool(await self._client.exists(FeedKeys.of(self._prefix, order.feed).pause))

    async def keep(self, order: Command) -> None:
        """Somebody is at it still: what was said of it stays, and it is not forgotten."""
        with translated(self._client):
            await self._client.pexpire(answer_key(self._prefix, order.id), KEPT)

    async def forget(self, order: Command) -> bool:
        """Let it wait no more, unless somebody is at it; whether it does not."""
        with translated(self._client):
            keys = (self._key, answer_key(self._prefix, order.id))
            return bool(await self._client.eval(_FORGET, 2, *keys, order.id))

    async def answer(self, order: Command, said: CommandReply) -> None:
        """Say it to whoever waits; to nobody, where it was answered for good."""
        kept_ms, last = int(KEPT.total_seconds() * 1000), "1" if said.done else ""
        keys = (self._key, answer_key(self._prefix, order.id))
        with translated(self._client):
            await self._client.eval(_ANSWER, 2, *keys, order.id, msgspec.json.encode(said), kept_ms, last)

    async def answered(self, order: Command) -> CommandReply | None:
        """What was said last; None: nothing yet."""
        with translated(self._client):
            said = await self._client.get(answer_key(self._prefix, order.id))
        try:
            return msgspec.json.decode(said, type=CommandReply) if said else None
        except msgspec.MsgspecError:
            return None


def _order(kept: bytes) -> Command | None:
    try:
        return msgspec.json.decode(kept, type=Command)
    except msgspec.MsgspecError:
        return None


# Pausing a feed: a key beside its state that keeps every round from beginning, whoever would run it.
#
# Law: the script that begins a round looks for the key in the same instant in which it would take the lease, so there
# is
# no moment in which a paused feed is begun. The key is no part of the state: a feed that was never read can be
# paused,
# and one that is begun anew stays so.
#
# Refuses to know: what becomes of a round that is under way.

_PAUSE: Final = lua("pause_feed")

_RESUME: Final = lua("resume_feed")


class FeedPause(msgspec.Struct, frozen=True):
    """That a feed is paused.

    Attributes:
        by: who wanted it, in words.
        reason: why, in words; empty where nothing was said.
        at: since when, UTC.
    """

    by: str
    reason: str
    at: datetime

    @property
    def text(self) -> str:
        """One line for people."""
        return one_line(
            f"paused by {self.by} since {self.at:%Y-%m-%d %H:%M} UTC{': ' if self.reason else ''}{self.reason}"
        )


async def pause(client: Redis, keys: FeedKeys, wanted: FeedPause) -> FeedPause | None:
    """Let no more rounds of a feed begin; the pause that it was in before, which stays. None: it was polled.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        before = await client.eval(_PAUSE, 1, keys.pause, msgspec.json.encode(wanted))
    return _kept(before)


async def resume(client: Redis, keys: FeedKeys) -> FeedPause | None:
    """Let rounds begin again; the pause that it was in. None: it was in none.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        before = await client.eval(_RESUME, 1, keys.pause)
    return _kept(before)


def pause_of(kept: bytes) -> FeedPause:
    """The pause from its key; what another version wrote in another form is a pause as well."""
    try:
        found = msgspec.json.decode(kept, type=FeedPause)
    except msgspec.MsgspecError:
        return FeedPause("another version", "", datetime.fromtimestamp(0, UTC))
    return msgspec.structs.replace(found, at=found.at.astimezone(UTC))


def _kept(answer: object) -> FeedPause | None:
    return None if answer is None else pause_of(cast("bytes", answer))


# What an operator asks of a feed while the daemon runs: written beside its state, carried out by its next round.
#
# An order is a field of the feed's state. It needs no lease, for it changes nothing by itself; the round that carries
# it
# out deletes it in the same commit as its result, and only if it was there when that round began.


class RoundRequest(Enum):
    """What may be asked; the value is the field that says so and the field that must be there for it to make sense."""

    RELEASE = (RELEASED, HELD)
    RESYNC = (RESYNC, "generation")
    ANEW = ("anew", "generation")


async def give(client: Redis, keys: FeedKeys, order: RoundRequest) -> bool:
    """Leave an order for a feed. False: it makes no sense (nothing is held, or the feed was never read).

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.eval(ORDER, 1, keys.state, *order.value))


async def stands(client: Redis, keys: FeedKeys, order: RoundRequest) -> bool:
    """Whether no round has carried it out yet.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.hexists(keys.state, order.value[0]))
