"""Whether a store can keep the promises: what Redis says about itself, judged.

Law: the promises rest on a primary that writes everything to disk and evicts nothing. What it does not tell is unknown
and a warning, never a crash and never "ok". :func:`examine` is pure; :func:`check_store` asks and examines; what
follows from it at the start is :func:`enforced`. Refuses to know: connections, feeds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from redis.exceptions import ResponseError

from poller.errors import ConfigurationError
from poller.store.connection import servers
from poller.store.translation import address_of, translated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from redis.asyncio import Redis

Severity = Literal["ok", "warning", "error"]
Durability = Literal["require", "warn", "ignore"]

OLDEST: Final = (6, 2)
"""The first version with the commands used: XTRIM MINID, XAUTOCLAIM."""

HEADROOM: Final = 0.9
"""The share of maxmemory in use from which an operator should act."""

_WORSE: Final = ("ok", "warning", "error")

DURABLE: Final = frozenset({"aof", "eviction"})
"""The findings that ``redis.durability`` is about."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        severity: ``ok``; ``warning``: works, a promise is weaker or unknown; ``error``: does not work, or will lose.
        name: ``version``, ``role``, ``eviction``, ``aof``, ``fsync`` or ``memory``.
        text: what is so and, unless it is ok, how to mend it. One line.
    """

    severity: Severity
    name: str
    text: str


def examine(info: Mapping[str, Any]) -> list[Finding]:
    """Judge the answer to INFO, with ``appendfsync`` from CONFIG GET added where it could be had.

    Args:
        info: as redis-py returns it; any key may be missing.
    """
    return [_version(info), _role(info), _eviction(info), _aof(info), _fsync(info), _memory(info)]


async def check_store(client: Redis) -> list[Finding]:
    """Ask the server and judge it, of a cluster each primary: the worst of each finding counts. Changes nothing.

    Raises:
        StoreUnavailable: it does not answer.
        StoreRefused: wrong credentials. INFO or CONFIG not permitted is no error: what they would tell is unknown.
    """
    asked = await servers(client)
    each = [await _checked(one) for one in asked]
    return (
        each[0] if len(each) == 1 else worst({address_of(one): found for one, found in zip(asked, each, strict=True)})
    )


def worst(each: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Of the findings about several servers, by address, the worst of each name; one that is not ok says where.

    Args:
        each: the same names in the same order; at least one server.
    """
    placed = {
        address: [one if one.severity == "ok" else replace(one, text=f"{address}: {one.text}") for one in findings]
        for address, findings in each.items()
    }
    return [max(same, key=lambda one: _WORSE.index(one.severity)) for same in zip(*placed.values(), strict=True)]


async def _checked(client: Redis) -> list[Finding]:
    info: dict[str, Any] = {}
    with translated(client):
        await client.ping()  # whoever is not let in at all (password, database number) learns it here
        try:
            info |= await client.info()
        except ResponseError:
            return examine(info)
        try:
            info |= {"appendfsync": (await client.config_get("appendfsync")).get("appendfsync")}
        except ResponseError:
            return examine(info)
    return examine(info)


def enforced(findings: Sequence[Finding], durability: Durability) -> list[Finding]:
    """What to tell at the start, given ``redis.durability``: everything that is not ok.

    ``ignore`` leaves out what durability is about; ``require`` does not start unless it is known to be ok.

    Raises:
        ConfigurationError: ``require``, and AOF or eviction is not as it must be, or not known.
    """
    telling = [finding for finding in findings if finding.severity != "ok"]
    unmet = [finding for finding in telling if finding.name in DURABLE]
    if durability == "require" and unmet:
        reasons = "; ".join(finding.text for finding in unmet)
        raise ConfigurationError(f'redis.durability = "require" is not met: {reasons}')
    return [finding for finding in telling if durability != "ignore" or finding not in unmet]


def _version(info: Mapping[str, Any]) -> Finding:
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if len(numbers) < len(OLDEST):
        return Finding("warning", "version", "version unknown: the server does not tell; 6.2 or newer is needed")
    if numbers < OLDEST:
        return Finding("error", "version", f"version {version}: upgrade to 6.2 or newer")
    return Finding("ok", "version", f"version {info.get('valkey_version', version)}")


def _role(info: Mapping[str, Any]) -> Finding:
    role = info.get("role")
    if role is None:
        return Finding("warning", "role", "role unknown: the server does not tell; it must be the primary")
    if role != "master":
        return Finding("error", "role", f"role {role}: nothing can be written here; let redis.url name the primary")
    return Finding("ok", "role", "role primary")


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy = info.get("maxmemory_policy")
    if policy is None:
        return Finding("warning", "eviction", "maxmemory-policy unknown: make sure that it is noeviction")
    if policy != "noeviction":
        text = (
            f"maxmemory-policy {policy}: the server may drop state and events; CONFIG SET maxmemory-policy noeviction"
        )
        return Finding("error", "eviction", text)
    return Finding("ok", "eviction", "maxmemory-policy noeviction")


def _aof(info: Mapping[str, Any]) -> Finding:
    enabled = info.get("aof_enabled")
    if enabled is None:
        return Finding("warning", "aof", "append-only file unknown: make sure that appendonly is yes")
    if not int(enabled):
        text = (
            "append-only file off: a restart loses what was written since the last snapshot; CONFIG SET appendonly yes"
        )
        return Finding("warning", "aof", text)
    if info.get("aof_last_write_status", "ok") != "ok":
        return Finding("error", "aof", "append-only file cannot be written: make room on the server's disk")
    return Finding("ok", "aof", "append-only file on")


def _fsync(info: Mapping[str, Any]) -> Finding:
    if not int(info.get("aof_enabled", 1)):
        return Finding("ok", "fsync", "appendfsync does not matter without an append-only file")
    fsync = info.get("appendfsync")
    if fsync is None:
        return Finding("warning", "fsync", "appendfsync unknown (CONFIG GET refused?): make sure that it is not no")
    if fsync == "no":
        text = "appendfsync no: a crash of the machine loses half a minute or more; CONFIG SET appendfsync everysec"
        return Finding("warning", "fsync", text)
    loss = "nothing acknowledged is lost" if fsync == "always" else "a crash loses up to a second, which is read again"
    return Finding("ok", "fsync", f"appendfsync {fsync}: {loss}")


def _memory(info: Mapping[str, Any]) -> Finding:
    limit, used = info.get("maxmemory"), info.get("used_memory")
    if limit is None or used is None:
        return Finding("warning", "memory", "memory unknown: watch that maxmemory leaves room")
    if not int(limit):
        return Finding("ok", "memory", f"memory {_mebibytes(used)} in use, no maxmemory")
    text = f"memory {_mebibytes(used)} of {_mebibytes(limit)} in use"
    if int(used) >= int(limit):
        return Finding("error", "memory", f"{text}: commits are refused; raise maxmemory or lower retention")
    if int(used) >= HEADROOM * int(limit):
        return Finding("warning", "memory", f"{text}: raise maxmemory or lower retention before commits are refused")
    return Finding("ok", "memory", text)


def _mebibytes(count: Any) -> str:
    return f"{int(count) / 2**20:.1f} MiB"
