"""Checks of a Redis server: version, role, memory, disk, clock and permissions.

The promises depend on a primary that writes everything to disk and evicts nothing. :func:`check_store` asks the server
and :func:`examine` judges the answers; ``redis.durability`` is applied by :func:`enforced` at the start and by
:func:`weighed` later.

**Invariants**

- A value that the server does not report is unknown and a warning, never a crash and never "ok".
- The checks are pure: each takes the values reported by the server, of which any may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import MasterDownError, NoPermissionError, ResponseError

from poller.clock import Clock
from poller.errors import ConfigurationError, StoreRefused
from poller.redis.client import scattered, servers
from poller.redis.errors import address_of, translated

# Memory: eviction, room, and the size of stream nodes.

HEADROOM: Final = 0.9
"""The share of maxmemory in use from which an operator should act."""

SMALLEST_NODE: Final = 2048
"""Bytes. Below it most nodes hold one event, which was measured to take 8 to 16 % more memory, and time of XADD."""

LARGEST_NODE: Final = 256 * 1024
"""Bytes. Each read or deletion by id walks through a node: measured 1 to 2 µs up to 64 KiB, 20 at 1 MiB, 35 at 4."""

EVENT: Final = 700
"""Bytes of an event that is neither small nor large."""


def eviction(info: Mapping[str, Any]) -> ServerCheck:
    """Whether the server keeps its data when memory is full."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        return ServerCheck("eviction", "warning", "maxmemory-policy unknown: make sure that it is noeviction")
    if policy != "noeviction":
        text = (
            f"maxmemory-policy {policy}: the server may drop state and events; CONFIG SET maxmemory-policy noeviction"
        )
        return ServerCheck("eviction", "error", text)
    return ServerCheck("eviction", "ok", "maxmemory-policy noeviction")


def memory(info: Mapping[str, Any]) -> ServerCheck:
    """How much memory is left."""
    limit, used = info.get("maxmemory"), info.get("used_memory")
    if limit is None or used is None:
        return ServerCheck("memory", "warning", "memory unknown: watch that maxmemory leaves room")
    if not int(limit):
        return ServerCheck("memory", "ok", f"memory {_mebibytes(used)} in use, no maxmemory")
    text = f"memory {_mebibytes(used)} of {_mebibytes(limit)} in use"
    if int(used) - int(info.get("mem_not_counted_for_evict", 0)) >= int(limit):
        return ServerCheck("memory", "error", f"{text}: commits are refused; raise maxmemory or lower retention")
    if int(used) >= HEADROOM * int(limit):
        return ServerCheck(
            "memory", "warning", f"{text}: raise maxmemory or lower retention before commits are refused"
        )
    return ServerCheck("memory", "ok", text)


def nodes(info: Mapping[str, Any]) -> ServerCheck:
    """Whether the nodes of a stream are neither too small, which costs memory, nor too large, which costs time."""
    limit, entries = info.get("stream-node-max-bytes"), info.get("stream-node-max-entries")
    if limit is None or entries is None:
        return ServerCheck(
            "nodes", "warning", "stream-node-max-bytes unknown (CONFIG GET refused?): 4096 to 65536 is good"
        )
    size = min(int(limit) or LARGEST_NODE * EVENT, int(entries) * EVENT or LARGEST_NODE * EVENT)  # 0: no limit
    text = f"stream-node-max-bytes {limit}, stream-node-max-entries {entries}"
    if size < SMALLEST_NODE:
        text += ": streams take a tenth more memory than they need; CONFIG SET stream-node-max-bytes 16384"
        return ServerCheck("nodes", "warning", f"{text} and stream-node-max-entries 100")
    if size > LARGEST_NODE:
        text += ": reading or deleting by id takes ten times as long; CONFIG SET stream-node-max-bytes 16384"
        return ServerCheck("nodes", "warning", text)
    return ServerCheck("nodes", "ok", text)


def _mebibytes(count: Any) -> str:
    return f"{int(count) / 2**20:.1f} MiB"


# Disk: the append-only file, when it is synced, and whether writing works.


def aof(info: Mapping[str, Any]) -> ServerCheck:
    """Whether there is an append-only file."""
    enabled = info.get("aof_enabled")
    if enabled is None:
        return ServerCheck("aof", "warning", "append-only file unknown: make sure that appendonly is yes")
    if not int(enabled):
        text = (
            "append-only file off: a restart loses what was written since the last snapshot; "
            "CONFIG SET appendonly yes, and the same in its configuration file"
        )
        return ServerCheck("aof", "warning", text)
    return ServerCheck("aof", "ok", "append-only file on")


def fsync(info: Mapping[str, Any]) -> ServerCheck:
    """When writes are synced to disk."""
    if not int(info.get("aof_enabled", 1)):
        return ServerCheck("fsync", "ok", "appendfsync does not matter without an append-only file")
    when = info.get("appendfsync")
    if when is None:
        return ServerCheck("fsync", "warning", "appendfsync unknown (CONFIG GET refused?): make sure that it is not no")
    if when == "no":
        text = "appendfsync no: a crash of the machine loses half a minute or more; CONFIG SET appendfsync everysec"
        return ServerCheck("fsync", "warning", text)
    loss = "nothing acknowledged is lost" if when == "always" else "a crash loses up to a second, which is read again"
    return ServerCheck("fsync", "ok", f"appendfsync {when}: {loss}")


def disk(info: Mapping[str, Any]) -> ServerCheck:
    """Whether the last write to disk succeeded."""
    if info.get("aof_last_write_status", "ok") != "ok":
        text = "append-only file cannot be written: writes are refused; make room on the server's disk"
        return ServerCheck("disk", "error", text)
    if info.get("rdb_last_bgsave_status", "ok") != "ok" and info.get("save") != "":
        if info.get("stop-writes-on-bgsave-error", "yes") == "yes":
            text = "the last snapshot (RDB) failed: writes are refused; make room for it on disk and in memory"
            return ServerCheck("disk", "error", f"{text}, or CONFIG SET stop-writes-on-bgsave-error no")
        return ServerCheck("disk", "warning", "the last snapshot (RDB) failed: make room for it on disk and in memory")
    if info.get("aof_last_bgrewrite_status", "ok") != "ok":
        text = "the last rewrite of the append-only file failed, so it grows on: make room for it on disk and in memory"
        return ServerCheck("disk", "warning", text)
    if "aof_enabled" not in info:
        return ServerCheck("disk", "warning", "disk unknown: the server does not tell whether its files can be written")
    return ServerCheck("disk", "ok", "its files can be written")


# The server: version, role, replicas and clock.

OLDEST: Final = (6, 2)
"""The first version with the commands used: XTRIM MINID, XAUTOCLAIM."""

LENIENT: Final = (7, 0)
"""The first version whose scripts say for themselves that they may run while memory is full."""

CLOCK_APART: Final = 5.0
"""Seconds. Stored moments are by the server's clock, those of the log by this machine's."""


def version(info: Mapping[str, Any]) -> ServerCheck:
    """Whether the server is new enough for the commands used."""
    text = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    if len(numbers) < len(OLDEST):
        return ServerCheck("version", "warning", "version unknown: the server does not tell; 6.2 or newer is needed")
    if numbers < OLDEST:
        return ServerCheck("version", "error", f"version {text}: upgrade to 6.2 or newer")
    if numbers < LENIENT:
        text += "; from 7.0 on deliveries and trimming would go on while memory is full"
        return ServerCheck("version", "ok", f"version {text}")
    return ServerCheck("version", "ok", f"version {info.get('valkey_version', text)}")


def role(info: Mapping[str, Any]) -> ServerCheck:
    """Whether it may be written to; a node of a cluster by itself may not, nor may a Sentinel."""
    name, mode = info.get("role"), info.get("redis_mode")
    if mode == "sentinel":
        return ServerCheck("role", "error", "this is a Sentinel: redis.url is redis+sentinel://HOST:PORT/SERVICE")
    if mode == "cluster" and not info.get("routed"):
        return ServerCheck("role", "error", "this is a node of a Cluster: redis.url is redis+cluster://HOST:PORT")
    if name is None:
        return ServerCheck("role", "warning", "role unknown: the server does not tell; it must be the primary")
    if name != "master":
        shown = "replica" if name == "slave" else name
        return ServerCheck(
            "role", "error", f"role {shown}: nothing can be written here; let redis.url name the primary"
        )
    return ServerCheck("role", "ok", "role primary")


def replicas(info: Mapping[str, Any]) -> ServerCheck:
    """Whether enough of them follow for the server to take writes, and what a failover may cost."""
    count, good = info.get("connected_slaves"), info.get("min_slaves_good_slaves")
    if count is None:
        return ServerCheck("replicas", "warning", "replicas unknown: the server does not tell")
    wanted = info.get("min-replicas-to-write")
    if good is not None and wanted is not None and int(good) < int(wanted):
        text = f"{good} replicas follow, min-replicas-to-write {wanted}: writes are refused until more do"
        return ServerCheck("replicas", "error", text)
    if not int(count):
        return ServerCheck("replicas", "ok", "no replica")
    if good is None:  # INFO has it only where the server waits for some
        cost = "min-replicas-to-write 0: a failover may lose the last writes, which come again with the same ids"
    else:
        cost = f"min-replicas-to-write {'set' if wanted is None else wanted}"
    return ServerCheck("replicas", "ok", f"{count} replica{'' if int(count) == 1 else 's'}, {cost}")


def clock(info: Mapping[str, Any]) -> ServerCheck:
    """Whether its clock agrees with this machine's; ``clock``: seconds by which the server's is ahead."""
    ahead = info.get("clock")
    if ahead is None:
        return ServerCheck(
            "clock", "warning", "clock unknown (TIME refused?): keep it together with this machine's by NTP"
        )
    if abs(ahead) > CLOCK_APART:
        which = "ahead of" if ahead > 0 else "behind"
        text = (
            f"clock {abs(ahead):.0f} s {which} this machine's: ages and cron expressions go by the store's, "
            "the log by this machine's; set both by NTP"
        )
        return ServerCheck("clock", "warning", text)
    return ServerCheck("clock", "ok", "clock as this machine's")


Durability = Literal["require", "warn", "ignore"]

_WORSE: Final = ("ok", "warning", "error")

DURABLE: Final = frozenset({"aof", "eviction"})
"""The findings that ``redis.durability`` is about."""

_JUDGES: Final = (version, role, replicas, clock, eviction, memory, nodes, aof, fsync, disk)
_ASKED: Final = (
    "appendfsync",
    "min-replicas-to-write",
    "save",
    "stop-writes-on-bgsave-error",
    "stream-node-max-bytes",
    "stream-node-max-entries",
)


def examine(info: Mapping[str, Any]) -> list[ServerCheck]:
    """Judge the values that the server reports.

    Args:
        info: the answer to INFO as redis-py returns it; with the settings of CONFIG GET by their own names, and under
            ``clock`` the seconds by which the server's is ahead of this machine's. Any may be missing.
    """
    return [judge(info) for judge in _JUDGES]


async def check_store(client: Redis, *, process: Clock) -> list[ServerCheck]:
    """Ask the server, or each primary of a cluster, and judge it: the worst of each finding counts. Changes nothing.

    Args:
        client: of the store.
        process: the clock of this process, with which the server's is compared.

    Raises:
        StoreUnavailable: it does not answer.
        StoreRefused: wrong credentials. If INFO, CONFIG or TIME is not permitted, that is no error: their values are
            unknown.
    """
    asked = await servers(client)
    if len(asked) == 1:
        return await _checked(asked[0], process, routed=scattered(client))
    return worst({address_of(one): await _checked(one, process, routed=True) for one in asked})


async def _checked(client: Redis, process: Clock, *, routed: bool) -> list[ServerCheck]:
    info: dict[str, Any] = {"routed": routed}
    with translated(client):
        await _let_in(client)
        for ask in (_information, _settings, partial(_difference, process)):
            try:
                info |= await ask(client)
            except ResponseError:
                continue
    return examine(info)


def worst(each: Mapping[str, Sequence[ServerCheck]]) -> list[ServerCheck]:
    """The worst finding of each name about several servers; one that is not ok names its server.

    Args:
        each: the same names in the same order; at least one server.
    """
    placed = [
        [one if one.severity == "ok" else replace(one, text=f"{address}: {one.text}") for one in findings]
        for address, findings in each.items()
    ]
    return [max(same, key=lambda one: _WORSE.index(one.severity)) for same in zip(*placed, strict=True)]


def weighed(finding: ServerCheck, durability: Durability) -> ServerCheck:
    """The finding with the severity that it has under ``redis.durability``."""
    if finding.name not in DURABLE or finding.severity == "ok" or durability == "warn":
        return finding
    return replace(finding, severity="error" if durability == "require" else "ok")


def enforced(findings: Sequence[ServerCheck], durability: Durability) -> list[ServerCheck]:
    """The checks to report at the start, given ``redis.durability``: all that are not ok.

    ``ignore`` leaves out what durability is about; ``require`` does not start unless it is known to be ok.

    Raises:
        ConfigurationError: ``require``, and AOF or eviction is not as it must be, or not known.
    """
    telling = [finding for finding in findings if weighed(finding, durability).severity != "ok"]
    unmet = [finding for finding in telling if finding.name in DURABLE]
    if durability == "require" and unmet:
        reasons = "; ".join(finding.text for finding in unmet)
        raise ConfigurationError(f'redis.durability = "require" is not met: {reasons}')
    return telling


async def _let_in(client: Redis) -> None:
    """Raise the error of a server that refuses the connection (password, database number).

    Two errors are passed over, because INFO says more: a full disk, and a replica without its primary.
    """
    try:
        await client.ping()
    except ResponseError as error:
        if not (isinstance(error, MasterDownError) or str(error).startswith("MISCONF")):
            raise


async def _information(client: Redis) -> dict[str, Any]:
    return dict(await client.info())


async def _settings(client: Redis) -> dict[str, Any]:
    # One after the other: only servers from 7.0 on take several names.
    return {name: (await client.config_get(name)).get(name) for name in _ASKED}


async def _difference(process: Clock, client: Redis) -> dict[str, Any]:
    before = process.now().timestamp()
    seconds, microseconds = await client.time()
    after, its = process.now().timestamp(), seconds + microseconds / 1e6
    # The server read its clock between these two moments; only beyond them is it known to differ.
    return {"clock": its - after if its > after else min(its - before, 0.0)}


# Permissions: whether this user may run the program's commands on its keys. The server reports that itself
# (``redis.acl_check_cmd`` in a script, from version 7 on), so nothing has to be tried; an older one reports nothing.
# The table holds each command that the program sends, with a key of the kind that it is sent for.

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
    """The commands that the user may not run.

    Attributes:
        commands: in small letters, with ``|`` before a subcommand, as ACL rules have it.
        keys: whether the keys are refused, because no command is permitted on them.
    """

    commands: tuple[str, ...]
    keys: bool


async def refused(client: Redis, keys: Mapping[str, str]) -> Refusal | None:
    """What is refused; None: nothing is, or the server cannot tell.

    Args:
        client: of the store, as the user in question.
        keys: a key of each kind, by its name in the table (``lease``, ``state``, ``events``, …).

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    table = checked_commands(keys)
    arguments = [word for _, words in table for word in (str(len(words)), *words)]
    try:
        with translated(client):
            found = await client.eval(_ASK, 1, keys["state"], *arguments)
    except StoreRefused as error:
        if isinstance(error.__cause__, NoPermissionError):
            by_key = "key" in str(error.__cause__)  # a script may not even name one
            return Refusal(() if by_key else ("eval", "evalsha", "script|load"), keys=by_key)
        if isinstance(error.__cause__, ResponseError):  # a server that has no such function, and says so
            return None
        raise
    places = cast("list[int] | None", found)
    if not places:
        return None
    names = tuple(dict.fromkeys(table[place - 1][0] for place in places))
    return Refusal(names, keys=len(places) == len(table))


def checked_commands(keys: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """The commands that are asked for: each one's name, as ACL rules have it, and all of its words."""
    places = {f"{{{name}}}": key for name, key in keys.items()}
    lines = [line.split() for row in _COMMANDS.strip().splitlines() for line in row.split(" | ")]
    return [(name, [*name.split("|"), *(places.get(word, word) for word in words)]) for name, *words in lines]


# The findings about a store.

Severity = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """One thing looked at.

    Attributes:
        name: ``version``, ``role``, ``replicas``, ``clock``, ``eviction``, ``memory``, ``nodes``, ``aof``, ``fsync``
            or ``disk``.
        severity: ``ok``; ``warning``: works, a promise is weaker or unknown; ``error``: does not work, or will lose
            data.
        text: the state and, unless it is ok, the remedy. One line.
    """

    name: str
    severity: Severity
    text: str
