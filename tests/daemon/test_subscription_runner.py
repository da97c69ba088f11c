"""Laws of :func:`poller.daemon.deliver_role.restore`: which subscriptions a lost registry gets back."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import msgspec
from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.control.subscriptions import filed, registry_of
from poller.daemon.deliver_role import restore
from poller.daemon.health import StoreMonitor
from poller.daemon.subscription_runner import RunnerContext, SubscriptionRunner
from poller.delivery.feed_consumer import SharedTimer
from poller.delivery.operational_events import OperationalEvent, OperationType, announcement_bytes
from poller.limits import ConnectionBudget
from poller.store.consumer_state import ConsumerScripts
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from poller.store.session import OpenStore
from poller.store.subscriptions import Paused, Subscriptions
from tests.control.subscribed import NOW, added, configured
from tests.harness.clock import StubClock
from tests.harness.waiting import until

LATER = NOW + timedelta(days=1)


async def test_the_files_come_back_and_the_others_are_told_by_name(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """File subscriptions keep their age and pause; one added at run time is lost, which is announced and logged."""
    settings = configured(tmp_path, "file", "resting")
    registry, told = registry_of(settings, client), []
    await registry.sync(filed(settings), NOW)
    await added(client, settings, "run")
    pause = Paused("sink", "status 410", NOW)
    await registry.pause("resting", pause)
    before = await registry.all()
    await client.flushall()

    async def announce(announcement: OperationalEvent) -> None:
        told.append(announcement)

    with capture_logs() as said:
        kept = await restore(registry, filed(settings), before, now=LATER, announce=announce)
    assert {name: one.since for name, one in kept.registered.items()} == {"file": NOW, "resting": NOW}
    assert kept.paused == {"resting": pause}
    assert [(one.kind, one.subject) for one in told] == [(OperationType.SUBSCRIPTION_LOST, "run")]
    assert [(line["log_level"], line["lost"]) for line in said] == [("error", ["run"])]


async def test_a_loss_that_two_processes_see_is_one_event(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Law: each announces what is missing, with the same id; the loss of one that was added later has another one."""
    settings = configured(tmp_path)
    registry, ids = registry_of(settings, client), list[str]()

    async def announce(announcement: OperationalEvent) -> None:
        ids.append(json.loads(announcement_bytes(announcement))["id"])

    for loss in range(2):
        await added(client, settings, "run", since=NOW + timedelta(hours=loss))
        before = await registry.all()
        await client.flushall()
        for process in range(2):
            now = LATER + timedelta(hours=loss, milliseconds=process)
            await restore(registry, filed(settings), before, now=now, announce=announce)
    first, again, later, later_again = ids
    assert (first, later) == (again, later_again)
    assert first != later


async def test_what_an_older_registry_has_otherwise_is_named(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A pause that had been ended is ended again, logged and announced; what an operator has to undo is logged."""
    settings, told = configured(tmp_path), list[OperationalEvent]()
    registry, keys = registry_of(settings, client), SubscriptionKeys.of(settings.redis.prefix)
    for name in ("resumed", "moved", "gone"):
        await added(client, settings, name)
    await registry.pause("resumed", Paused("operator", "maintenance", NOW))
    copy = {key: await client.dump(key) for key in msgspec.structs.astuple(keys)}
    await registry.resume("resumed")
    await registry.change("moved", bytes((await registry.all()).registered["moved"].settings).replace(b"hook", b"new"))
    await registry.remove("gone")
    before = await registry.all()
    await client.flushall()
    for key, value in copy.items():
        if value is not None:
            await client.restore(key, 0, value)

    async def announce(announcement: OperationalEvent) -> None:
        told.append(announcement)

    with capture_logs() as said:
        kept = await restore(registry, (), before, now=LATER, announce=announce)
    assert kept.paused == {}
    assert [(one.kind, one.subject) for one in told] == [(OperationType.SUBSCRIPTION_RESUMED, "resumed")]
    (line,) = said
    assert (line["log_level"], line["event"]) == ("warning", "subscriptions brought back")
    assert [line[name] for name in ("lost", "paused", "resumed", "changed", "returned")] == [
        [],
        [],
        ["resumed"],
        ["moved"],
        ["gone"],
    ]
    assert all(f": {name}" in line["advice"] for name in ("resumed", "moved", "gone"))


async def test_one_of_another_processs_file_is_not_announced_as_lost(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A file subscription that this process does not list comes back by the process that lists it: it is not lost."""
    settings = configured(tmp_path, "mine", "theirs")
    registry = registry_of(settings, client)
    await registry.sync(filed(settings), NOW)
    before = await registry.all()
    await client.flushall()

    async def announce(_: OperationalEvent) -> None:
        raise AssertionError("nothing is lost")

    with capture_logs() as said:
        kept = await restore(registry, filed(settings)[:1], before, now=LATER, announce=announce)
    assert set(kept.registered) == {"mine"}
    assert [(line["event"], line["lost"]) for line in said] == [("subscriptions brought back", [])]


async def test_one_that_is_new_in_the_file_is_as_new_as_it_is(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A subscription that was not registered before begins at the time of registration."""
    settings = configured(tmp_path, "fresh")
    registry = registry_of(settings, client)
    await registry.sync(filed(settings), LATER, await registry.all())
    assert (await registry.all()).registered["fresh"].since == LATER


async def test_an_older_registry_with_the_id_of_one_in_the_file_keeps_no_other_away(
    client: FakeAsyncRedis, tmp_path: Path
) -> None:
    """A file subscription whose id one of run time has is left out and named, with the remedy; the others are back."""
    settings = configured(tmp_path, "one", "other")
    registry, keys = registry_of(settings, client), SubscriptionKeys.of(settings.redis.prefix)
    await added(client, configured(tmp_path), "one")
    copy = {key: await client.dump(key) for key in msgspec.structs.astuple(keys)}
    await registry.remove("one")
    await registry.sync([*filed(settings), ("theirs", b"{}")], NOW)
    before = await registry.all()
    await client.flushall()
    for key, value in copy.items():
        if value is not None:
            await client.restore(key, 0, value)
    file = [(name, settings.replace(b"hook", b"newer")) for name, settings in filed(settings)]

    async def announce(_: OperationalEvent) -> None:
        raise AssertionError("nothing is lost")

    with capture_logs() as said:
        kept = await restore(registry, file, before, now=LATER, announce=announce)
    assert {name: one.origin for name, one in kept.registered.items()} == {"one": "run", "other": "file"}
    assert kept.registered["other"] == before.registered["other"]
    conflict, line = said
    assert (conflict["log_level"], conflict["event"]) == ("error", "subscription of the file not brought back")
    assert (conflict["subscription"], "poller subscriptions remove one" in conflict["advice"]) == ("one", True)
    assert (line["event"], line["log_level"]) == ("subscriptions brought back", "warning")
    assert [line[name] for name in ("left_out", "differing", "missing")] == [["one"], ["other"], ["theirs"]]
    assert all(f": {name}" in line["advice"] for name in ("one", "other", "theirs"))


async def test_a_fault_of_the_program_is_an_error_and_passes(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """An unexpected error is that of its subscription, which is delivered again a moment later."""
    settings = configured(tmp_path, "one")
    registry = registry_of(settings, client)
    await registry.sync(filed(settings), NOW)
    kept = await registry.all()
    errors: list[str | None] = []

    class Faulty(Registry):
        """The registry; its first reading fails in a way that nothing foresees."""

        async def all(self) -> Subscriptions:
            if not errors:
                raise RuntimeError("s3cret")
            return await super().all()

    async def pause(_: asyncio.Event, __: float) -> None:
        errors.append(running.error)

    shared = RunnerContext(
        settings,
        {},
        OpenStore("redis://", client, Clock()),  # type: ignore[arg-type] # of which only the client is used
        ConsumerScripts(client),
        Faulty(client, SubscriptionKeys.of(settings.redis.prefix)),
        lambda *_: (),
        None,  # type: ignore[arg-type] # it has no feeds, and so no leases
        ConnectionBudget(100, "subscriptions"),
        SharedTimer(1, Clock()),
        "here",
        StoreMonitor("ignore", clock=Clock()),
        StubClock(wait=pause),
    )
    before = asyncio.create_task(asyncio.sleep(0))
    running = SubscriptionRunner("one", kept, shared, feeds=(), after=before)
    try:
        await until(lambda: bool(errors) and running.error is None, "the delivery to begin")
    finally:
        await running.stop()
    assert errors == ["a fault of the program, see its log: RuntimeError"]
