"""Laws of :mod:`poller.redis.health`: checks of a store by what it reports; what it does not report is unknown."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.clock import Clock
from poller.errors import ConfigurationError, StoreUnavailable
from poller.redis.client import commands
from poller.redis.health import (
    Durability,
    Refusal,
    ServerCheck,
    check_store,
    checked_commands,
    enforced,
    examine,
    refused,
    weighed,
)
from poller.store.keys import sample_keys
from tests.acl import DEPLOYED, Guarded, running_with_acl, set_user
from tests.harness.clock import StubClock
from tests.servers import KINDS, Kind, running
from tests.stores import Stores, with_options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis.asyncio import Redis


GOOD: dict[str, Any] = {
    "redis_version": "7.0.15",
    "role": "master",
    "connected_slaves": 0,
    "clock": 0.0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "appendfsync": "always",
    "maxmemory": 0,
    "used_memory": 1_000_000,
    "stream-node-max-bytes": "4096",
    "stream-node-max-entries": "100",
}
NAMES = ["version", "role", "replicas", "clock", "eviction", "memory", "nodes", "aof", "fsync", "disk"]


def now() -> datetime:
    return datetime.now(UTC)


def by_name(findings: list[ServerCheck]) -> dict[str, ServerCheck]:
    return {finding.name: finding for finding in findings}


def test_a_good_store_is_ok_throughout() -> None:
    """A primary of a recent version with AOF and noeviction passes every check."""
    assert [(finding.severity, finding.name) for finding in examine(GOOD)] == [("ok", name) for name in NAMES]


@pytest.mark.parametrize(
    ("differs", "name", "severity", "text"),
    [
        ({"redis_version": "6.0.16"}, "version", "error", "6.2 or newer"),
        ({"redis_version": "6.2.0"}, "version", "ok", "6.2.0"),
        ({"redis_version": "10.0.0"}, "version", "ok", "10.0.0"),
        ({"redis_version": "unstable"}, "version", "warning", "unknown"),
        ({"role": "slave"}, "role", "error", "name the primary"),
        ({"redis_mode": "sentinel"}, "role", "error", "redis+sentinel://"),
        ({"redis_mode": "cluster"}, "role", "error", "redis+cluster://"),
        ({"redis_mode": "cluster", "routed": True}, "role", "ok", "primary"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", "error", "CONFIG SET maxmemory-policy noeviction"),
        ({"aof_enabled": 0}, "aof", "warning", "CONFIG SET appendonly yes"),
        ({"aof_last_write_status": "err"}, "disk", "error", "make room on the server's disk"),
        ({"aof_last_bgrewrite_status": "err"}, "disk", "warning", "grows on"),
        ({"rdb_last_bgsave_status": "err"}, "disk", "error", "CONFIG SET stop-writes-on-bgsave-error no"),
        ({"rdb_last_bgsave_status": "err", "save": ""}, "disk", "ok", "can be written"),
        ({"rdb_last_bgsave_status": "err", "stop-writes-on-bgsave-error": "no"}, "disk", "warning", "snapshot"),
        ({"connected_slaves": 2}, "replicas", "ok", "2 replicas, min-replicas-to-write 0: a failover may lose"),
        (
            {"connected_slaves": 1, "min_slaves_good_slaves": 1, "min-replicas-to-write": "1"},
            "replicas",
            "ok",
            "1 replica, min-replicas-to-write 1",
        ),
        (
            {"connected_slaves": 1, "min_slaves_good_slaves": 0, "min-replicas-to-write": "1"},
            "replicas",
            "error",
            "writes are refused",
        ),
        ({"clock": 4.9}, "clock", "ok", "as this machine's"),
        ({"clock": 6.2}, "clock", "warning", "6 s ahead of"),
        ({"clock": -61.0}, "clock", "warning", "61 s behind"),
        ({"stream-node-max-bytes": "512"}, "nodes", "warning", "more memory"),
        ({"stream-node-max-entries": "1"}, "nodes", "warning", "more memory"),
        ({"stream-node-max-bytes": "65536", "stream-node-max-entries": "0"}, "nodes", "ok", "65536"),
        ({"stream-node-max-bytes": "0"}, "nodes", "ok", "entries 100"),
        ({"stream-node-max-bytes": "0", "stream-node-max-entries": "0"}, "nodes", "warning", "ten times as long"),
        ({"stream-node-max-bytes": "1048576", "stream-node-max-entries": "10000"}, "nodes", "warning", "ten times"),
        ({"appendfsync": "everysec"}, "fsync", "ok", "up to a second"),
        ({"appendfsync": "no"}, "fsync", "warning", "CONFIG SET appendfsync everysec"),
        ({"maxmemory": 2_000_000}, "memory", "ok", "1.0 MiB of 1.9 MiB"),
        ({"maxmemory": 1_100_000}, "memory", "warning", "raise maxmemory"),
        ({"maxmemory": 1_000_000}, "memory", "error", "commits are refused"),
        ({"maxmemory": 1_000_000, "mem_not_counted_for_evict": 50_000}, "memory", "warning", "raise maxmemory"),
    ],
)
def test_each_weakness_is_named_with_its_mending(differs: dict[str, Any], name: str, severity: str, text: str) -> None:
    """One deviation from a good store fails one check, whose text names the remedy."""
    findings = by_name(examine(GOOD | differs))
    assert findings[name].severity == severity
    assert text in findings[name].text
    assert all(finding.severity == "ok" for other, finding in findings.items() if other != name)


@given(kept=st.sets(st.sampled_from(sorted(GOOD))))
def test_what_is_missing_is_unknown(kept: set[str]) -> None:
    """A value that the server does not report is a warning, never an ok or an error."""
    findings = by_name(examine({name: GOOD[name] for name in kept}))
    assert list(findings) == NAMES
    for key, name in {
        "role": "role",
        "connected_slaves": "replicas",
        "clock": "clock",
        "stream-node-max-bytes": "nodes",
        "maxmemory_policy": "eviction",
        "aof_enabled": "aof",
        "appendfsync": "fsync",
    }.items():
        known = key in kept and (name != "nodes" or "stream-node-max-entries" in kept)
        assert findings[name].severity == ("ok" if known else "warning")


def test_fsync_is_judged_only_where_there_is_a_file() -> None:
    """Without an append-only file, its fsync setting is not reported too."""
    findings = examine(GOOD | {"aof_enabled": 0, "appendfsync": "no"})
    assert [finding.name for finding in findings if finding.severity != "ok"] == ["aof"]


def test_durability_decides_what_follows() -> None:
    """``require`` refuses to start unless AOF and noeviction are known, ``warn`` reports them, ``ignore`` does not."""
    for weak in ({"aof_enabled": 0}, {"maxmemory_policy": "allkeys-lru"}):
        findings = examine(GOOD | weak)
        with pytest.raises(ConfigurationError, match="CONFIG SET"):
            enforced(findings, "require")
        assert len(enforced(findings, "warn")) == 1
        assert enforced(findings, "ignore") == []
    with pytest.raises(ConfigurationError, match="unknown"):
        enforced(examine({}), "require")
    replica = examine(GOOD | {"role": "slave"})
    durabilities: tuple[Durability, ...] = ("require", "warn", "ignore")
    weighing = [weighed(ServerCheck(name, "warning", ""), "require").severity for name in ("aof", "memory")]
    assert weighing == ["error", "warning"]
    for durability in durabilities:
        assert [finding.name for finding in enforced(replica, durability)] == ["role"]
        assert enforced(examine(GOOD), durability) == []


async def test_a_fake_is_unknown(fake: Redis) -> None:
    """A fake server, which reports only its time, gets warnings for everything else."""
    findings = await check_store(fake, process=Clock())
    assert [finding.name for finding in findings] == NAMES
    assert [finding.name for finding in findings if finding.severity != "warning"] == ["clock"]


async def test_a_real_server_is_known(server: str) -> None:
    """A real server with AOF and noeviction passes every check."""
    async with commands(server) as client:
        findings = await check_store(client, process=Clock())
    assert [(finding.severity, finding.name) for finding in findings] == [("ok", name) for name in NAMES]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_server_with_weaknesses(kind: Kind, tmp_path: Path) -> None:
    """A real server that evicts, keeps no AOF and is full fails these checks."""
    options = {"maxmemory-policy": "allkeys-lru", "maxmemory": "1000"}
    with running(kind, tmp_path, appendfsync="no", options=options) as server:
        async with commands(server.url) as client:
            findings = by_name(await check_store(client, process=Clock()))
    assert [findings[name].severity for name in ("eviction", "aof", "memory")] == ["error", "warning", "error"]


@pytest.mark.parametrize(
    ("forbidden", "unknown"),
    [
        ("-config", {"fsync", "nodes"}),
        ("-info", {"version", "role", "replicas", "eviction", "memory", "aof", "disk"}),
        ("-time", {"clock"}),
    ],
)
async def test_a_user_who_may_not_ask(stores: Stores, forbidden: str, unknown: set[str]) -> None:
    """What INFO, CONFIG or TIME would report is unknown if the ACL forbids the command."""
    url = stores.emptied("valkey")
    rules = ("SETUSER", "limited", "on", ">word", "~*", "+@all", forbidden)
    async with commands(url) as admin, commands(with_options(url, username="limited", password="word")) as limited:  # noqa: S106 -- a test
        await admin.execute_command("ACL", *rules)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        findings = await check_store(limited, process=Clock())
        await admin.acl_deluser("limited")
    assert {finding.name for finding in findings if finding.severity == "warning"} == unknown


async def test_each_primary_of_a_cluster(stores: Stores) -> None:
    """A check that one primary fails is failed by the cluster, and its text names that primary."""
    url, odd = stores.emptied("cluster"), stores.cluster.primaries[1]
    odd.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        async with commands(url) as client:
            findings = by_name(await check_store(client, process=Clock()))
    finally:
        odd.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert findings["eviction"].severity == "error"
    assert findings["eviction"].text.startswith(f"127.0.0.1:{odd.port}: maxmemory-policy allkeys-lru")
    assert {name for name, one in findings.items() if one.severity != "ok"} == {"eviction"}


async def test_the_servers_clock_is_held_against_ours(server: str) -> None:
    """A server clock that is an hour off in either direction is reported, less the time of the request."""
    async with commands(server) as client:
        for off, word in ((timedelta(hours=-1), "ahead"), (timedelta(hours=1), "behind")):
            found = by_name(await check_store(client, process=StubClock(now=lambda off=off: now() + off)))["clock"]  # type: ignore[misc] # bound here
            assert found.severity == "warning"
            assert f"3600 s {word}" in found.text
        slow = iter((now(), now() + timedelta(hours=1)))
        assert by_name(await check_store(client, process=StubClock(now=lambda: next(slow))))["clock"].severity == "ok"


async def test_nobody_to_ask() -> None:
    """A store that does not answer raises StoreUnavailable instead of failing a check."""
    async with commands("redis://127.0.0.1:1") as client:
        with pytest.raises(StoreUnavailable):
            await check_store(client, process=Clock())


# Missing rights of the user, on a server as in ``deploy/redis``.

WITHOUT_KEYS: Final = {
    *("ping", "role", "asking", "cluster|slots", "time", "info", "config|get", "client|setname", "select"),
    *("eval", "evalsha", "script|load", "scan"),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_with_acl("valkey", tmp_path_factory.mktemp("rights")) as server:
        yield server


async def found(guarded: Guarded, *rules: str, prefix: str = "poller") -> Refusal | None:
    """What is refused after these rules are added; they are removed again."""
    async with commands(guarded.admin) as admin, commands(guarded.url) as client:
        before = [rule for rule in _rules() if rules]
        await set_user(admin, *rules)
        try:
            return await refused(client, sample_keys(prefix, "acme/contractTypes"))
        finally:
            await set_user(admin, *before)


async def test_the_user_that_is_delivered_may_do_all(guarded: Guarded) -> None:
    """The deployed user is refused nothing, and the check changes no key."""
    assert await found(guarded) is None
    async with commands(guarded.admin) as admin:
        assert await admin.dbsize() == 0


async def test_what_is_missing_is_named_as_a_rule_has_it(guarded: Guarded) -> None:
    """A missing right is named as in an ACL rule: subcommands with their command, scripts by all commands they need."""
    refusal = await found(guarded, "-xtrim", "-xgroup|create")
    assert refusal == Refusal(("xgroup|create", "xtrim"), keys=False)
    assert await found(guarded, "-eval") == Refusal(("eval", "evalsha", "script|load"), keys=False)
    assert await found(guarded) is None


async def test_keys_of_another_prefix_are_told_apart_from_commands(guarded: Guarded) -> None:
    """A missing right to the keys is reported as such, not as missing commands."""
    assert await found(guarded, prefix="other") == Refusal((), keys=True)


def test_each_command_that_has_a_key_is_asked_for() -> None:
    """The check asks for every command with a key that ``deploy/redis/users.acl`` allows."""
    allowed = {rule.removeprefix("+") for rule in _rules() if rule.startswith("+")}
    assert {name for name, _ in checked_commands(sample_keys("poller", "acme/contractTypes"))} == allowed - WITHOUT_KEYS


def _rules() -> list[str]:
    line = next(one for one in (DEPLOYED / "users.acl").read_text().splitlines() if one.startswith("user poller "))
    return [rule for rule in line.split() if re.match(r"\+", rule)]
