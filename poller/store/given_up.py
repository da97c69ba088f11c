"""Events that were given up on, as they are kept for each subscription to each feed; opaque here.

Law: a letter is in one place. It leaves for ``parked`` in one script, which moves it only as it was seen, so that two
who redeliver it at a time move it once; and only while fewer than :data:`MOST_WAITING` deliveries wait there, so that
no command can fill the memory of whoever delivers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from typing import Final, NamedTuple, cast

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import PairKeys

MOST_WAITING: Final = 1000
_DELETED_AT_ONCE: Final = 500

# KEYS: letters, letter_times, parked. ARGV: entry, the letter as it was seen, the delivery, how many may wait.
# Answers a Moved.
_REDELIVER: Final = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[4]) then return 2 end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""

# KEYS: letters, letter_times. ARGV: entries. Answers how many there were.
_DROP: Final = """
redis.call('ZREM', KEYS[2], unpack(ARGV))
return redis.call('HDEL', KEYS[1], unpack(ARGV))
"""


class Moved(IntEnum):
    """What became of a letter that is to be redelivered."""

    ABSENT = 0
    MOVED = 1
    FULL = 2


class Owner(NamedTuple):
    """Whose letters: a subscription to a feed."""

    feed: str
    subscription: str


class Mark(NamedTuple):
    """A letter without its contents: when it was given up, in milliseconds, and which."""

    at: int
    owner: Owner
    entry: str


async def newest_events(client: Redis, pairs: dict[Owner, PairKeys], *, most: int) -> tuple[list[Mark], int]:
    """The newest letters of these pairs, ``most`` of all, the newest last; and how many there are.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for keys in pairs.values():
            asking.zcard(keys.letter_times)
            asking.zrevrange(keys.letter_times, 0, most - 1, withscores=True)
        answers = await asking.execute()
    found = [
        Mark(int(at), owner, entry.decode())
        for owner, newest_first in zip(pairs, answers[1::2], strict=True)
        for entry, at in newest_first
    ]
    return sorted(found)[-most:], sum(answers[0::2])


async def letters(client: Redis, places: Iterable[tuple[PairKeys, str]]) -> list[bytes | None]:
    """The letters of these entries; None where one is not there, or not any more.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for keys, entry in places:
            asking.hget(keys.letters, entry)
        return cast("list[bytes | None]", await asking.execute())


async def entries(client: Redis, keys: PairKeys) -> list[str]:
    """The entries of all letters of a pair, in the order in which they were given up.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        found = cast("list[bytes]", await client.zrange(keys.letter_times, 0, -1))
    return [entry.decode() for entry in found]


async def redeliver(client: Redis, keys: PairKeys, entry: str, *, letter: bytes, delivery: bytes) -> Moved:
    """Make a delivery that waits of a letter, if it is there as it was seen.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    names = [keys.letters, keys.letter_times, keys.parked]
    with translated(client):
        return Moved(await client.eval(_REDELIVER, len(names), *names, entry, letter, delivery, MOST_WAITING))


async def drop_events(client: Redis, keys: PairKeys, dropped: Sequence[str]) -> int:
    """Delete the letters of these entries; how many there were.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    count = 0
    for some in (dropped[at : at + _DELETED_AT_ONCE] for at in range(0, len(dropped), _DELETED_AT_ONCE)):
        with translated(client):
            count += int(await client.eval(_DROP, 2, keys.letters, keys.letter_times, *some))
    return count


def pairs_of(prefix: str, feeds: Iterable[str], subscriptions: Iterable[str]) -> dict[Owner, PairKeys]:
    """The keys of each of these subscriptions to each of these feeds."""
    named = list(subscriptions)
    owners = chain.from_iterable((Owner(feed, one) for one in named) for feed in feeds)
    return {owner: PairKeys.of(prefix, owner.feed, owner.subscription) for owner in owners}
