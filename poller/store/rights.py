"""Whether this user may run the commands that are used, on the keys that are used. Asks, and changes nothing.

The server says it itself (``redis.acl_check_cmd`` in a script, from version 7 on), so nothing has to be tried. What
cannot be asked is not known and not told.

Law: each command that the program sends stands in the table, with a key of the kind that it is sent for.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from poller.errors import StoreRefused
from poller.store.connection import translated
from poller.store.keys import FeedKeys, MemberKeys, PairKeys, SubscriptionKeys, operations_key, remembered_key

# KEYS: any. ARGV: for each command how many words it has, and these. Answers the places of those that are refused,
# from 1; nil where the server cannot tell.
_ASK: Final = """
if not redis.acl_check_cmd then return false end
local refused, at, number = {}, 1, 0
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  number = number + 1
  local known, may = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + words))
  if known and not may then refused[#refused + 1] = number end
  at = at + words + 1
end
return refused
"""

_COMMANDS: Final = """
get {lease} | set {lease} x | del {lease} | pttl {lease} | pexpire {lease} 1 | exists {lease} | type {lease}
hset {state} x x | hsetnx {state} x x | hget {state} x | hmget {state} x | hgetall {state} | hkeys {state}
hlen {state} | hexists {state} x | hdel {state} x | hscan {state} 0 | hincrby {state} x 1 | unlink {state}
xadd {events} * x x | xdel {events} 1-1 | xlen {events} | xrange {events} - + | xrevrange {events} + -
xread STREAMS {events} 0 | xreadgroup GROUP g c STREAMS {events} > | xack {events} g 1-1 | xpending {events} g
xinfo|stream {events} | xinfo|groups {events} | xgroup|create {events} g 0 | xgroup|destroy {events} g
xtrim {events} MINID 1-1 | memory|usage {events} | zadd {rejected} 1 x | zrem {rejected} x | zcard {rejected}
zrange {rejected} 0 1 | zrevrange {rejected} 0 1 | zrangebyscore {rejected} 0 1 | zremrangebyrank {rejected} 0 1
mget {lease} {lease} | incr {version} | incrby {version} 1 | hset {pair} x x | hset {registry} x x | hset {roles} x x
hset {remembered} x x | hsetnx {remembered} x x | xadd {operations} * x x
"""


class Refusal(msgspec.Struct, frozen=True):
    """What the user may not do.

    Attributes:
        commands: in small letters, with ``|`` before a subcommand, as ACL rules have it.
        keys: whether it is the keys that are refused, for no command at all is let through.
    """

    commands: tuple[str, ...]
    keys: bool


async def refused(client: Redis, prefix: str, feed: str) -> Refusal | None:
    """What is refused; None: nothing is, or the server cannot tell.

    Args:
        client: of the store, as the user in question.
        prefix: of the keys.
        feed: any, as ``SOURCE/NAME``.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    table = asked(prefix, feed)
    arguments = [word for _, words in table for word in (str(len(words)), *words)]
    try:
        with translated(client):
            found = await client.eval(_ASK, 1, FeedKeys.of(prefix, feed).state, *arguments)
    except StoreRefused as error:
        if isinstance(error.__cause__, NoPermissionError):
            keys = "key" in str(error.__cause__)  # a script may not even name one
            return Refusal(() if keys else ("eval", "evalsha", "script|load"), keys=keys)
        if isinstance(error.__cause__, ResponseError):  # a server that has no such function, and says so
            return None
        raise
    places = cast("list[int] | None", found)
    if not places:
        return None
    names = tuple(dict.fromkeys(table[place - 1][0] for place in places))
    return Refusal(names, keys=len(places) == len(table))


def asked(prefix: str, feed: str) -> list[tuple[str, list[str]]]:
    """The commands that are asked for: each one's name, as ACL rules have it, and all of its words."""
    keys, members, kept = FeedKeys.of(prefix, feed), MemberKeys.of(prefix), SubscriptionKeys.of(prefix)
    places = {
        "{lease}": keys.lease,
        "{state}": keys.state,
        "{events}": keys.events,
        "{rejected}": keys.rejected,
        "{version}": members.version,
        "{pair}": PairKeys.of(prefix, feed, "x").state,
        "{registry}": kept.registry,
        "{roles}": members.roles,
        "{remembered}": remembered_key(prefix),
        "{operations}": operations_key(prefix),
    }
    lines = [line.split() for row in _COMMANDS.strip().splitlines() for line in row.split(" | ")]
    return [(name, [*name.split("|"), *(places.get(word, word) for word in words)]) for name, *words in lines]
