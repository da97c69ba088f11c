"""Laws of ``deploy/redis``: nobody has access by default, and each user has only the rights it needs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError
from structlog.testing import capture_logs

from poller.client import Consumer, Gap
from poller.clock import Clock
from poller.control.orphans import report_empty_store
from poller.redis.client import commands
from poller.redis.health import check_store
from tests.acl import DEPLOYED, Guarded, running_with_acl
from tests.client.published import event_of, number_of
from tests.control.subscribed import configured
from tests.harness.waiting import within
from tests.servers import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from redis.asyncio import Redis

EVENTS, STATE, ERASED = (f"poller:{{acme/a}}:{name}" for name in ("events", "state", "erased_events"))


@pytest.fixture(scope="module", params=KINDS)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with running_with_acl(request.param, tmp_path_factory.mktemp("a")) as server:
        yield server


async def refused(client: Redis, *command: str) -> None:
    with pytest.raises(NoPermissionError):
        await client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


async def test_the_configuration_is_what_the_checks_ask_for(guarded: Guarded) -> None:
    """With the daemon's user every check of the store is ok."""
    async with commands(guarded.url) as client:
        found = await check_store(client, process=Clock())
    assert {one.severity for one in found} == {"ok"}, found


async def test_the_daemons_user_has_its_own_keys_and_nothing_of_the_server(guarded: Guarded) -> None:
    """The daemon's user has no keys beyond its prefix, and no commands that manage or empty the server."""
    async with commands(guarded.url) as client:
        assert await client.set("poller:{x}:lease", "1")
        for command in (
            "SET x 1",
            "GET pollers",
            "KEYS *",
            "FLUSHALL",
            "FLUSHDB",
            "CONFIG SET maxmemory 1",
            "ACL LIST",
            "CLIENT LIST",
            "SCRIPT FLUSH",
            "SHUTDOWN NOSAVE",
            "PUBLISH poller:x y",
            "EVAL return(redis.call('GET','x')) 1 x",
        ):
            await refused(client, *command.split())


async def test_a_consumer_reads_and_acknowledges(guarded: Guarded) -> None:
    """A consumer reads and acknowledges events with its own group, and can neither publish nor read state."""
    async with commands(guarded.url) as daemon, commands(guarded.reader) as reader:
        added: Any = await daemon.xadd(EVENTS, {"data": "{}"})
        entry: str = added.decode()
        await reader.xgroup_create(EVENTS, "mine", id="0")
        read: Any = await reader.xreadgroup("mine", "me", {EVENTS: ">"})
        assert read == [[EVENTS.encode(), [(entry.encode(), {b"data": b"{}"})]]]
        assert await reader.xack(EVENTS, "mine", entry) == 1
        assert len(await reader.xread({EVENTS: "0"})) == 1
        for command in (f"XADD {EVENTS} * data x", f"XDEL {EVENTS} {entry}", f"HGETALL {STATE}", f"DEL {EVENTS}"):
            await refused(reader, *command.split())


@pytest.mark.parametrize("exclusive", [True, False])
async def test_the_client_library_needs_the_readers_permissions_alone(guarded: Guarded, *, exclusive: bool) -> None:
    """As ``reader``, a consumer reads, claims, reports gaps, acknowledges, and forgets its group."""
    group, gaps = f"library-{exclusive}", list[Gap]()
    async with commands(guarded.url) as daemon, commands(guarded.reader) as reader:
        await daemon.delete(EVENTS)
        entries = [await daemon.xadd(EVENTS, {"data": event_of(number)}) for number in range(1, 6)]
        await reader.xgroup_create(EVENTS, group, id="0")
        await reader.xreadgroup(group, "dead", {EVENTS: ">"}, count=2)
        await daemon.xdel(EVENTS, entries[0], entries[3])
        async with Consumer(
            guarded.reader,
            "acme/a",
            group,
            "me",
            exclusive=exclusive,
            claim_after=timedelta(milliseconds=200),
            on_gap=gaps.append,
        ) as consumer:
            found = [number_of(await within(anext(consumer))) for _ in range(3)]
            assert sorted(found) == [2, 3, 5]
            assert [gap.missing for gap in gaps] == ([1, 1] if exclusive else [1])
            await refused(reader, "HGETALL", "poller:{acme/a}:state")
            await consumer.forget()
            assert {one["name"] for one in await reader.xinfo_groups(EVENTS)} == set()


@pytest.mark.parametrize(("rule", "reason"), [("+zcount", "erased"), ("-zcount", "deleted")])
async def test_a_consumer_may_read_what_was_erased(guarded: Guarded, rule: str, reason: str) -> None:
    """As ``reader``, a consumer reads which numbers were erased, and no more. Without the right they are deleted."""
    async with (
        commands(guarded.admin) as admin,
        commands(guarded.url) as daemon,
        commands(guarded.reader) as reader,
    ):
        await daemon.delete(EVENTS, ERASED)
        for number in (1, 3):
            await daemon.xadd(EVENTS, {"data": event_of(number)})
        await daemon.zadd(ERASED, {"2": 2})
        await refused(reader, "ZADD", ERASED, "4", "4")
        await refused(reader, "HSET", ERASED, "a", "b")  # a command that it has for other keys
        await refused(reader, "ZCOUNT", "poller:{acme/a}:rejected", "0", "1")
        gaps = list[Gap]()
        await admin.execute_command("ACL", "SETUSER", "reader", rule)  # type: ignore[no-untyped-call]  # as above
        try:
            async with Consumer(guarded.reader, "acme/a", "erased", "me", on_gap=gaps.append) as consumer:
                assert [number_of(await within(anext(consumer))) for _ in range(2)] == [1, 3]
                await consumer.forget()
        finally:
            await admin.execute_command("ACL", "SETUSER", "reader", "+zcount")  # type: ignore[no-untyped-call]  # as above
        assert [gap.reason for gap in gaps] == [reason]
        await daemon.delete(ERASED)
        await daemon.set(ERASED, "of another type")
        async with Consumer(guarded.reader, "acme/a", "other", "me", on_gap=gaps.append) as consumer:
            assert [number_of(await within(anext(consumer))) for _ in range(2)] == [1, 3]
            await consumer.forget()
        assert gaps[-1].reason == "deleted"
        await daemon.delete(ERASED)


READS = ("ZCOUNT {} 0 9", "ZRANGEBYSCORE {} 0 9")
WRITES = (
    "ZADD {} 4 4",
    "ZREM {} 2",
    "ZREMRANGEBYRANK {} 0 0",
    "DEL {}",
    "UNLINK {}",
    "SET {} x",
    "HSET {} a b",
    "XADD {} * a b",
)


async def test_what_was_erased_is_read_and_not_written_by_the_reader(guarded: Guarded) -> None:
    """``reader`` may read the erased numbers, and with every command of ``poller`` it could still not write them."""
    async with commands(guarded.admin) as admin, commands(guarded.reader) as reader:
        if (version := (await admin.info("server"))["redis_version"]).startswith("6."):
            pytest.skip(f"Redis {version} does not know %R~: there the reader may write these keys as well")
        await admin.delete(ERASED)
        await admin.zadd(ERASED, {"2": 2})
        granted = {one for one in users_line("poller").split() if one.startswith("+")}
        own = {one for one in users_line("reader").split() if one.startswith("+")}
        for more in (set[str](), granted - own):
            for rule in more:
                await admin.execute_command("ACL", "SETUSER", "reader", rule)  # type: ignore[no-untyped-call]  # as above
            assert await reader.zcount(ERASED, 0, 9) == 1
            assert await reader.zrangebyscore(ERASED, 0, 9) == [b"2"]
            for write in WRITES:
                await refused(reader, *write.format(ERASED).split())
            await refused(reader, "EVAL", "return redis.call('ZADD', KEYS[1], 4, 4)", "1", ERASED)
            for command in (*READS, *WRITES):
                await refused(reader, *command.format("poller:{acme/a}:erased").split())
        for rule in granted - own:
            await admin.execute_command("ACL", "SETUSER", "reader", f"-{rule[1:]}")  # type: ignore[no-untyped-call]  # as above
        assert await admin.zrange(ERASED, 0, -1) == [b"2"]
        await admin.delete(ERASED)


async def test_who_may_not_scan_works_all_the_same(guarded: Guarded, tmp_path: Path) -> None:
    """Without the right to scan the report of an empty store still works."""
    async with commands(guarded.admin) as admin, commands(guarded.url) as client:
        await admin.execute_command("ACL", "SETUSER", "poller", "-scan")  # type: ignore[no-untyped-call]  # as above
        with capture_logs() as said:
            await report_empty_store(client, configured(tmp_path))
        await admin.execute_command("ACL", "SETUSER", "poller", "+scan")  # type: ignore[no-untyped-call]  # as above
    assert [line["event"] for line in said] == ["first start: the store has no state of any feed"]


async def test_nobody_gets_in_before_there_are_passwords(guarded: Guarded) -> None:
    """Without passwords nobody can log in: the deployed users have none, and the default user is off."""
    assert all(">" not in line and "#" not in line and "nopass" not in line for line in users())
    address = guarded.url.rpartition("@")[2]
    for user in ("", ":x@", "poller:@", "poller:poller@"):
        async with commands(f"redis://{user}{address}") as client:
            with pytest.raises(AuthenticationError):
                await client.ping()


def users() -> list[str]:
    return (DEPLOYED / "users.acl").read_text("utf-8").splitlines()


def users_line(name: str) -> str:
    return next(line for line in users() if line.startswith(f"user {name} "))


def test_no_user_may_all_but_the_admin() -> None:
    """Users other than the admin have single commands and no categories."""
    lines = {line.split()[1]: line for line in users()}
    assert sorted(lines) == ["admin", "default", "poller", "reader"]
    for name in ("poller", "reader"):
        _, granted = lines[name].split("-@all ")
        assert all(one.startswith("+") and not one.startswith("+@") for one in granted.split())
        assert len(granted.split()) == len(set(granted.split()))


@pytest.mark.parametrize(("user", "own"), [("poller", False), ("reader", True)])
def test_what_the_scripts_say_is_granted(user: str, *, own: bool) -> None:
    """Every command of the scripts is granted, because a refusal within a script would leave half a commit.

    The scripts of the client library run as ``reader``, all others as ``poller``.
    """
    granted = {one.removeprefix("+") for one in users_line(user).split() if one.startswith("+")}
    said = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '(GROUPS|STREAM|CREATE|DESTROY|USAGE)')?")
    found = {
        "|".join(filter(None, words)).lower()
        for file in (DEPLOYED.parents[1] / "poller").rglob("*.*")
        if file.suffix in {".lua", ".py"} and ("client" in file.relative_to(DEPLOYED.parents[1]).parts[1]) is own
        for words in said.findall(file.read_text("utf-8"))
    }
    assert {"xack", "xadd"} & found
    assert found - granted == set()
