"""Commands of operators to feeds, and the replies of the daemon that handles them.

A pause is a key beside the feed's state; ``release`` and ``resync`` are fields of it, which the next round carries out.
Both hold without any daemon. A :class:`Command` besides lets the daemon that polls the feed find it without delay,
carry it out and reply; if the daemon dies in between, the process that takes over the feed finds the command again.

**Invariants**

- A command gets one final reply; until then it is pending and found again.
- The script that begins a round looks for the pause in the instant in which it would acquire the lease: no paused feed
  is begun. The pause is no part of the state: a feed that was never read can be paused, and one that is begun from
  nothing stays paused.
- A request to a round needs no lease, for it changes nothing by itself. The round deletes it in the same commit as its
  result, and only if it was there when the round began.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.redis.errors import translated
from poller.store.feed_state import HELD, HELD_MISSING, RELEASED, RELEASED_MISSING, RESYNC
from poller.store.keys import FeedKeys, answer_key, orders_key
from poller.store.scripts import ORDER, ScriptBatch, ScriptCall, ScriptSender, lua
from poller.text import one_line

KEPT: Final = timedelta(hours=1)
"""How long a command stays pending without a daemon that handles it, and how long a reply can be read."""

PENDING: Final = lua("pending_commands")

_REPLY: Final = lua("reply_command")


_WITHDRAW: Final = lua("withdraw_command")


class Command(msgspec.Struct, frozen=True):
    """A command that waits for its reply.

    Attributes:
        id: drawn by the sender.
        feed: ``SOURCE/NAME``.
        order: its kind; see :class:`poller.control.commands.CommandKind`.
        at: when it was submitted, UTC.
    """

    id: str
    feed: str
    order: str
    at: datetime


class CommandReply(msgspec.Struct, frozen=True):
    """The reply to a command, by the daemon that polls the feed.

    Attributes:
        member: its name.
        done: whether this is the final reply.
        text: in words.
        round: the round that carried it out, as ``poller once --json`` prints it; None where there was none.
        put_off: whether it is carried out later, so that the sender need not wait.
    """

    member: str
    done: bool
    text: str
    round: dict[str, str | int | float | bool | None] | None = None
    put_off: bool = False


class CommandQueue:
    """The pending commands of one store. Each method may raise StoreError."""

    def __init__(self, client: Redis, prefix: str) -> None:
        """Take the client and the prefix of the store's keys."""
        self._client = client
        self._prefix = prefix
        self._key = orders_key(prefix)
        self._batch = ScriptBatch(client)

    async def submit(self, command: Command) -> None:
        """Store a command for daemons to find."""
        with translated(self._client):
            await self._client.hset(self._key, command.id, msgspec.json.encode(command))

    async def pending(self, send: ScriptSender | None = None) -> list[Command]:
        """All without a final reply; one in another version's form is left to that version.

        Args:
            send: sends the script that reads them; by default it is sent now, by itself.
        """
        kept = await (send or self._batch.run)(ScriptCall(PENDING, (self._key,)))
        return [command for command in map(_command, kept[1::2]) if command is not None]

    async def is_outstanding(self, command: Command) -> bool:
        """Whether it asks for a round, and no round has carried it out yet."""
        kind = RoundRequest.__members__.get(command.order.upper())
        return kind is not None and await is_requested(self._client, FeedKeys.of(self._prefix, command.feed), kind)

    async def is_paused(self, command: Command) -> bool:
        """Whether its feed is."""
        with translated(self._client):
            return bool(await self._client.exists(FeedKeys.of(self._prefix, command.feed).pause))

    async def keep_alive(self, command: Command) -> None:
        """A daemon still handles it: its last reply stays, and it is not withdrawn."""
        with translated(self._client):
            await self._client.pexpire(self._reply_key(command), KEPT)

    async def withdraw(self, command: Command) -> bool:
        """Delete it unless a daemon handles it; whether it is deleted."""
        with translated(self._client):
            return bool(await self._client.eval(_WITHDRAW, 2, self._key, self._reply_key(command), command.id))

    async def reply(self, command: Command, reply: CommandReply) -> None:
        """Reply to its sender; does nothing after a final reply."""
        kept_ms, last = int(KEPT.total_seconds() * 1000), "1" if reply.done else ""
        arguments = (command.id, msgspec.json.encode(reply), kept_ms, last)
        with translated(self._client):
            await self._client.eval(_REPLY, 2, self._key, self._reply_key(command), *arguments)

    async def last_reply(self, command: Command) -> CommandReply | None:
        """The last reply so far."""
        with translated(self._client):
            reply = await self._client.get(self._reply_key(command))
        try:
            return msgspec.json.decode(reply, type=CommandReply) if reply else None
        except ValueError:
            return None

    def _reply_key(self, command: Command) -> str:
        return answer_key(self._prefix, command.id)


def _command(kept: bytes) -> Command | None:
    try:
        return msgspec.json.decode(kept, type=Command)
    except ValueError:
        return None


_PAUSE: Final = lua("pause_feed")

_RESUME: Final = lua("resume_feed")


class FeedPause(msgspec.Struct, frozen=True):
    """The pause of a feed: by whom, why and since when.

    Attributes:
        by: who paused it, in words.
        reason: why, in words; empty where none was given.
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
    """Pause a feed. Returns the pause that existed before, which stays; None: the feed was polled.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        before = await client.eval(_PAUSE, 1, keys.pause, msgspec.json.encode(wanted))
    return _kept(before)


async def resume(client: Redis, keys: FeedKeys) -> FeedPause | None:
    """Resume a feed. Returns the pause that it ends; None: the feed was not paused.

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
    except ValueError:
        return FeedPause("another version", "", datetime.fromtimestamp(0, UTC))
    return msgspec.structs.replace(found, at=found.at.astimezone(UTC))


def _kept(answer: object) -> FeedPause | None:
    return None if answer is None else pause_of(cast("bytes", answer))


class RoundRequest(Enum):
    """A request to the next round.

    Its value: the field that stores it, the field that it requires, and for a release two fields more: the one that
    stores how many missing records it lets through, and the one that says how many are held.
    """

    RELEASE = (RELEASED, HELD, RELEASED_MISSING, HELD_MISSING)
    RESYNC = (RESYNC, "generation")
    ANEW = ("anew", "generation")


async def request_round(client: Redis, keys: FeedKeys, request: RoundRequest) -> bool:
    """Store a request for a feed's next round. False: it does not apply (nothing is held, or the feed was never read).

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.eval(ORDER, 1, keys.state, *request.value))


async def is_requested(client: Redis, keys: FeedKeys, request: RoundRequest) -> bool:
    """Whether a request is still waiting for a round to carry it out.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        return bool(await client.hexists(keys.state, request.value[0]))
