"""Whether a store can keep the promises: what Redis says about itself, judged.

Law: the promises rest on a primary that writes everything to disk and evicts nothing. What it does not tell is unknown
and a warning, never a crash and never "ok". :func:`examine` is pure; :func:`check_store` asks and examines; what
follows from it under ``redis.durability`` is :func:`enforced` at the start, and :func:`weighed` later.
Refuses to know: connections, feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

from redis.asyncio import Redis
from redis.exceptions import MasterDownError, ResponseError

from poller.errors import ConfigurationError
from poller.store.connection import scattered, servers
from poller.store.disk_checks import aof, disk, fsync
from poller.store.finding import Finding, Severity
from poller.store.memory_checks import eviction, memory, nodes
from poller.store.server_checks import clock, replicas, role, version
from poller.store.translation import address_of, translated

__all__ = ["DURABLE", "Durability", "Finding", "Severity", "check_store", "enforced", "examine", "weighed"]

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


def examine(told: Mapping[str, Any]) -> list[Finding]:
    """Judge what the server tells.

    Args:
        told: the answer to INFO as redis-py returns it; with the settings of CONFIG GET by their own names, and under
            ``clock`` by how many seconds the server's is ahead of ours, where they could be had. Any may be missing.
    """
    return [judge(told) for judge in _JUDGES]


async def check_store(client: Redis, *, now: Callable[[], datetime]) -> list[Finding]:
    """Ask the server and judge it, of a cluster each primary: the worst of each finding counts. Changes nothing.

    Args:
        client: of the store.
        now: the wall clock, UTC, to hold the server's against.

    Raises:
        StoreUnavailable: it does not answer.
        StoreRefused: wrong credentials. INFO, CONFIG or TIME not permitted is no error: what they tell is unknown.
    """
    asked = await servers(client)
    if len(asked) == 1:
        return await _checked(asked[0], now, routed=scattered(client))
    return worst({address_of(one): await _checked(one, now, routed=True) for one in asked})


async def _checked(client: Redis, now: Callable[[], datetime], *, routed: bool) -> list[Finding]:
    told: dict[str, Any] = {"routed": routed}
    with translated(client):
        await _let_in(client)
        for ask in (_information, _settings, _clock(now)):
            try:
                told |= await ask(client)
            except ResponseError:
                continue
    return examine(told)


def worst(each: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """Of the findings about several servers, by address, the worst of each name; one that is not ok says where.

    Args:
        each: the same names in the same order; at least one server.
    """
    placed = [
        [one if one.severity == "ok" else replace(one, text=f"{address}: {one.text}") for one in findings]
        for address, findings in each.items()
    ]
    return [max(same, key=lambda one: _WORSE.index(one.severity)) for same in zip(*placed, strict=True)]


def weighed(finding: Finding, durability: Durability) -> Finding:
    """The finding with the severity that it has under ``redis.durability``."""
    if finding.name not in DURABLE or finding.severity == "ok" or durability == "warn":
        return finding
    return replace(finding, severity="error" if durability == "require" else "ok")


def enforced(findings: Sequence[Finding], durability: Durability) -> list[Finding]:
    """What to tell at the start, given ``redis.durability``: everything that is not ok.

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
    """Whoever is not let in at all (password, database number) learns it here.

    Two that refuse this as well do tell what is wrong with them: a full disk, and a replica without its primary.
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


def _clock(now: Callable[[], datetime]) -> Callable[[Redis], Any]:
    async def ask(client: Redis) -> dict[str, Any]:
        before = now().timestamp()
        seconds, microseconds = await client.time()
        after, its = now().timestamp(), seconds + microseconds / 1e6
        # It read its clock at some moment between ours; only beyond them is it known to differ.
        return {"clock": its - after if its > after else min(its - before, 0.0)}

    return ask
