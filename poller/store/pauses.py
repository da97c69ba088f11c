"""Pausing a feed: a key beside its state that keeps every round from beginning, whoever would run it.

Law: the script that begins a round looks for the key in the same instant in which it would take the lease, so there is
no moment in which a paused feed is begun. The key is no part of the state: a feed that was never read can be paused,
and one that is begun anew stays so.

Refuses to know: what becomes of a round that is under way.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.hiding import one_line
from poller.store.connection import translated
from poller.store.keys import FeedKeys

# KEYS: pause. ARGV: what is kept of it. Answers what was kept before, and leaves that; else nil.
_PAUSE: Final = """
local before = redis.call('GET', KEYS[1])
if not before then redis.call('SET', KEYS[1], ARGV[1]) end
return before
"""

# KEYS: pause. Answers what was kept, or nil.
_RESUME: Final = """
local before = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return before
"""


class Pause(msgspec.Struct, frozen=True):
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


async def pause(client: Redis, keys: FeedKeys, wanted: Pause) -> Pause | None:
    """Let no more rounds of a feed begin; the pause that it was in before, which stays. None: it was polled.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        before = await client.eval(_PAUSE, 1, keys.pause, msgspec.json.encode(wanted))
    return _kept(before)


async def resume(client: Redis, keys: FeedKeys) -> Pause | None:
    """Let rounds begin again; the pause that it was in. None: it was in none.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        before = await client.eval(_RESUME, 1, keys.pause)
    return _kept(before)


def pause_of(kept: bytes) -> Pause:
    """The pause from its key; what another version wrote in another form is a pause as well."""
    try:
        found = msgspec.json.decode(kept, type=Pause)
    except msgspec.MsgspecError:
        return Pause("another version", "", datetime.fromtimestamp(0, UTC))
    return msgspec.structs.replace(found, at=found.at.astimezone(UTC))


def _kept(answer: object) -> Pause | None:
    return None if answer is None else pause_of(cast("bytes", answer))
