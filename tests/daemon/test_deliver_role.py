"""Laws of :mod:`poller.daemon.deliver_role`: subscriptions are delivered as the registry lists them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final, cast

import msgspec
import pytest
import trustme
from redis.asyncio import Redis
from structlog.testing import capture_logs
from structlog.typing import EventDict

from poller.clock import Clock, milliseconds_of, moment_of
from poller.config.load import load
from poller.config.settings import Settings
from poller.control import subscriptions as subscribing
from poller.control.orphans import stated
from poller.control.status import subscription_statuses
from poller.control.subscriptions import UnlistedFeed, end_unlisted_feeds, filed, filed_ends, remove, resume
from poller.daemon.cluster.membership import LOOK_SECONDS, Configurations, Membership
from poller.daemon.deliver_role import RELOAD_AGAIN, DeliverRole, FileSubscriptions, restore
from poller.daemon.health import Readiness, StoreMonitor
from poller.delivery.delivery_codec import Delivery, encode
from poller.delivery.handshake import Granted, decoded, encoded, origin
from poller.delivery.operational_events import OperationalEvent
from poller.redis.client import commands, servers
from poller.store.consumer_state import GracePeriod, grace_periods
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys, SubscriptionKeys, operations_key, remembered_key
from poller.store.lease import member_name, owner_of
from poller.store.members import MemberList, Members
from poller.store.registry import Registry
from poller.store.session import OpenStore
from poller.store.stream import last_id
from poller.store.subscriptions import Paused
from tests.delivery.events import spelled
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import limited, until
from tests.proxy import proxied
from tests.receiver import Held, Receiver, Reply, receiving
from tests.telemetry.series import value

FEED = "acme/contractTypes"
EVENTS = FeedKeys.of("poller", FEED).events
_ALL = SubscriptionKeys.of("poller").handshakes.encode()  # every reading of the whole registry names it
_SOURCE = '[[sources]]\nname = "acme"\nbase_url = "https://api.example.org"\nauth = { none = true }\n'
_FEED = '[[sources.feeds]]\nresource = "contractTypes"\n'
SECRETS = ("whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + "C2FVsBQIhrscChlQIMV9+7h2cVpGYtTf")


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Scene:
    """A store, a receiver, and deliver roles that run until the end of the test."""

    directory: Path
    store: OpenStore
    sink: Receiver
    registry: Registry
    stops: list[asyncio.Event] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    roles: list[DeliverRole] = field(default_factory=list)
    off: timedelta = timedelta(0)  # by how much the store's clock is wrong

    @property
    def client(self) -> Redis:
        return self.store.client

    def settings(self, *ids: str, more: str = "", url: str | None = None, start: str = "earliest") -> Settings:
        tables = [
            f'[[subscriptions]]\nid = "{one}"\nsink = "{url or self.sink.url}/{one}"\nallow_private = true\n'
            f'start = "{start}"\n{more}\n'
            for one in ids
        ]
        file = self.directory / "poller.toml"
        file.write_text(_SOURCE + _FEED + "".join(tables), "utf-8")
        return load(file, {})

    def deliver(
        self, settings: Settings, *, look_seconds: float = LOOK_SECONDS, reload_seconds: float = RELOAD_AGAIN
    ) -> None:
        stop = asyncio.Event()
        self.stops.append(stop)
        self.tasks.append(asyncio.create_task(self._deliver(settings, stop, look_seconds, reload_seconds)))

    async def _deliver(
        self, settings: Settings, stop: asyncio.Event, look_seconds: float, reload_seconds: float
    ) -> None:
        ttl = settings.lease.ttl
        members = Members(
            self.client,
            MemberKeys.of("poller"),
            name=member_name(Clock()),
            ttl=ttl,
            clock=store_clock(),
            configuration=stated(settings),
        )
        clock = asyncio.get_running_loop().time
        watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock))
        clocked = StubClock(monotonic=clock)
        membership = Membership(members, ttl=ttl, watch=watch, clock=clocked, look_seconds=look_seconds)
        configurations = Configurations(settings, self.client, membership, clock=Clock())
        deliverer = DeliverRole(
            settings,
            {},
            self.store,
            membership,
            configurations,
            shebang="#!lua\n",
            watch=watch,
            clock=StubClock(now=lambda: now() + self.off),
            reload_seconds=reload_seconds,
        )
        self.roles.append(deliverer)
        async with membership.running():
            await deliverer.run(stop)

    async def stop(self) -> None:
        for one in self.stops:
            one.set()
        await asyncio.gather(*self.tasks)

    async def add(self, *ids: str) -> None:
        for one in ids:
            await self.client.xadd(EVENTS, {"data": spelled(id=one, partitionkey=one)})

    def got(self, subscription: str) -> list[str]:
        return [
            request.header("webhook-id") or ""
            for request in self.sink.requests
            if (request.method, request.target) == ("POST", f"/{subscription}")
        ]

    async def arrives(self, subscription: str, *ids: str) -> None:
        await self.sink.until(lambda: self.got(subscription) == list(ids), f"{ids}, not {self.got(subscription)}")

    async def later_than(self, milliseconds: int) -> bool:
        """Whether the store's clock is past this moment."""
        seconds, micros = await self.client.time()
        return seconds * 1000 + micros // 1000 > milliseconds

    async def move_registry(self, source: str, target: str) -> None:
        """Replace the registry under one prefix by that under another, at one instant, as a failover does."""
        keys = zip(*(msgspec.structs.astuple(SubscriptionKeys.of(prefix)) for prefix in (source, target)), strict=True)
        copy = {to: await self.client.dump(at) for at, to in keys}
        async with self.client.pipeline(transaction=True) as together:
            together.delete(*copy)
            for key, value in copy.items():
                if value is not None:
                    together.restore(key, 0, value)
            await together.execute()

    async def owner(self, subscription: str) -> bytes | None:
        found: bytes | None = await self.client.get(ConsumerKeys.of("poller", FEED, subscription).lease)  # type: ignore[assignment] # bytes, as the client is set up
        return found

    async def is_idle(self, subscription: str) -> None:
        """Wait until no process holds the subscription's lease."""
        await self.is_begun_anew(subscription, None, idle=True)

    async def is_begun_anew(self, subscription: str, before: bytes | None, *, idle: bool = False) -> None:
        async def changed() -> bool:
            owner = await self.owner(subscription)
            return owner is None if idle else owner not in (None, before)

        await until(changed, f"the lease of {subscription} to be {'released' if idle else 'acquired again'}")


@pytest.fixture
def server(store_url: str) -> str:
    return store_url


@asynccontextmanager
async def staged(url: str, directory: Path) -> AsyncIterator[Scene]:
    client = commands(url)
    async with receiving() as sink:
        scene = Scene(
            directory, OpenStore(url, client, store_clock()), sink, Registry(client, SubscriptionKeys.of("poller"))
        )
        try:
            yield scene
        finally:
            await scene.stop()
            await client.aclose()


@pytest.fixture
async def scene(server: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with staged(server, tmp_path) as one:
        yield one


async def test_what_the_registry_says_is_carried_out(scene: Scene) -> None:
    """Adding, pausing, resuming, changing and removing a subscription takes effect and does not disturb another one."""
    settings = scene.settings("file")
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("file", "e1")

    table = msgspec.json.decode((await scene.registry.all()).registered["file"].settings)
    added = table | {"id": "run", "sink": f"{scene.sink.url}/run"}
    await scene.registry.add("run", msgspec.json.encode(added), (SECRETS[0],), now())
    await scene.arrives("run", "e1")
    assert scene.sink.requests[-1].header("webhook-signature")

    await until(lambda: value("poller_attempts_total", subscription="run", outcome="delivered") == 1, "its count")
    await scene.registry.pause("run", Paused("operator", "rest", now()))
    await scene.is_idle("run")
    await until(lambda: value("poller_attempts_total", subscription="run", outcome="delivered") is None, "no series")
    await scene.add("e2")
    await scene.arrives("file", "e1", "e2")
    assert scene.got("run") == ["e1"]
    await scene.registry.resume("run")
    await scene.arrives("run", "e1", "e2")

    owner = await scene.owner("run")
    await scene.registry.remove("run")
    changed = added | {"sink": f"{scene.sink.url}/elsewhere"}
    await scene.registry.add("run", msgspec.json.encode(changed), (), now())
    await scene.is_begun_anew("run", owner)
    await scene.add("e3")
    await scene.arrives("elsewhere", "e3")
    assert scene.got("run") == ["e1", "e2"]

    await scene.registry.remove("run")
    await scene.is_idle("run")
    await scene.add("e4")
    await scene.arrives("file", "e1", "e2", "e3", "e4")
    assert scene.got("elsewhere") == ["e3"]


async def test_a_lease_that_is_free_because_another_has_the_id_now_is_not_used(scene: Scene) -> None:
    """A process that missed a subscription's replacement neither sends to the old sink nor uses its start position."""
    settings, subscriptions = scene.settings("file"), SubscriptionKeys.of("poller")
    await scene.add("e1")
    lease = ConsumerKeys.of("poller", FEED, "run").lease
    await scene.client.set(lease, "another/1")
    table = msgspec.json.decode(filed(settings)[0][1])
    replaced = table | {"id": "run", "sink": f"{scene.sink.url}/run", "start": "now"}
    await scene.registry.add("run", msgspec.json.encode(replaced), (), now())
    with capture_logs() as said:
        scene.deliver(settings)
        await scene.arrives("file", "e1")
        await scene.client.set(subscriptions.parked, "many")
        await until(lambda: "the subscriptions cannot be read" in [line["event"] for line in said], "a failed reading")
    assert "holds no number" in scene.roles[0].failing()["the subscriptions"]
    await scene.registry.remove("run")
    added = table | {"id": "run", "sink": f"{scene.sink.url}/elsewhere"}
    await scene.registry.add("run", msgspec.json.encode(added), (), now())
    await scene.client.delete(lease)
    await scene.client.incr(MemberKeys.of("poller").version)  # as a process that releases leases does
    await until(lambda: scene.client.exists(lease), "its lease to be acquired")
    await scene.client.delete(subscriptions.parked)
    await scene.arrives("elsewhere", "e1")
    assert scene.got("run") == []


async def test_what_is_sent_of_an_event_is_by_the_settings_of_subscription_and_feed(scene: Scene) -> None:
    """``fields`` picks and keeps the id field of the feed; changed settings hold for the events after the change."""
    scene.settings("file", more='fields = { pick = ["/a"] }')
    file = scene.directory / "poller.toml"
    file.write_text(file.read_text("utf-8").replace(_FEED, f'{_FEED}id_field = "code"\n'), "utf-8")
    scene.deliver(load(file, {}))
    record = {"code": "K", "id": "of another", "a": 1, "b": 2}
    await scene.client.xadd(EVENTS, {"data": spelled(id="e1", data={"record": record})})
    await scene.arrives("file", "e1")
    assert msgspec.json.decode(scene.sink.requests[-1].body)["data"] == {"record": {"code": "K", "a": 1}}
    owner = await scene.owner("file")
    table = msgspec.json.decode((await scene.registry.all()).registered["file"].settings)
    await scene.registry.change("file", msgspec.json.encode(table | {"fields": {"drop": ["/a"]}}))
    await scene.is_begun_anew("file", owner)
    await scene.client.xadd(EVENTS, {"data": spelled(id="e2", data={"record": record})})
    await scene.arrives("file", "e1", "e2")
    left = {"code": "K", "id": "of another", "b": 2}
    assert msgspec.json.decode(scene.sink.requests[-1].body)["data"] == {"record": left}


async def test_what_comes_between_subscribing_and_delivering_is_delivered(scene: Scene) -> None:
    """With ``start = "now"`` a subscription gets all events since it was added, even those before its first start."""
    await scene.add("before")
    last = int((await last_id(scene.client, EVENTS)).partition("-")[0])
    await until(lambda: scene.later_than(last), "the store's next millisecond")
    settings = scene.settings("file")
    table = msgspec.json.decode(filed(settings)[0][1])
    added = table | {"id": "run", "sink": f"{scene.sink.url}/run", "start": "now"}
    await scene.registry.add("run", msgspec.json.encode(added), (), now())
    await scene.add("between")
    scene.deliver(settings)
    await scene.arrives("file", "before", "between")
    await scene.add("after")
    await scene.arrives("run", "between", "after")


@pytest.mark.parametrize("there", [(), ("e1",)], ids=["a new stream", "one that exists"])
@pytest.mark.parametrize("source", ["file", "run"])
async def test_what_comes_after_the_stores_clock_was_set_back_is_delivered(
    scene: Scene, source: str, there: tuple[str, ...]
) -> None:
    """Law: all that is published after a subscription was asked for is new to it, however low its entry ids are."""
    for number, one in enumerate(there, 1):
        await scene.client.xadd(EVENTS, {"data": spelled(id=one, partitionkey=one)}, id=f"{number}000-0")
    settings = scene.settings("a", start="now")
    without = scene.settings()
    if source == "run":
        await subscribing.add(scene.registry, without, settings.subscriptions[0], secrets=(), now=now())
    else:
        seen = Membership(
            Members(scene.client, MemberKeys.of("poller"), name="m", ttl=timedelta(minutes=1), clock=store_clock()),
            ttl=timedelta(minutes=1),
            watch=StoreMonitor("warn", clock=Clock()),
            clock=Clock(),
        )
        await FileSubscriptions(settings, scene.registry, scene.client, seen, clock=Clock()).register()
    for number, one in ((5000, "e5"), (6000, "e6")):  # as a clock that shows 1970 makes them
        await scene.client.xadd(EVENTS, {"data": spelled(id=one, partitionkey=one)}, id=f"{number}-0")
    scene.deliver(settings if source == "file" else without)
    await scene.arrives("a", "e5", "e6")


async def test_a_registry_that_was_deleted_by_hand_is_noticed(scene: Scene) -> None:
    """A deleted registry is noticed although its version is unchanged; file subscriptions are restored and continue."""
    scene.deliver(scene.settings("file"))
    await scene.add("e1")
    await scene.arrives("file", "e1")
    keys = SubscriptionKeys.of("poller")
    await scene.client.delete(keys.registry)

    async def back() -> bool:
        return "file" in (await scene.registry.all()).registered

    await until(back, "the file's subscription to be registered again")
    await scene.add("e2")
    await scene.arrives("file", "e1", "e2")


@pytest.mark.parametrize("then", [("b",), ("b", "c"), ("b", "c", "d")])
async def test_a_store_that_went_back_and_has_changed_since_is_noticed(scene: Scene, then: tuple[str, ...]) -> None:
    """Law: if a pause is lost and others come before the next look, all of them hold, and a resumed one goes on."""
    scene.deliver(scene.settings("a", "b", "c", "d"))
    await scene.add("e1")
    for name in ("a", "b", "c", "d"):
        await scene.arrives(name, "e1")
    elsewhere = Registry(scene.client, SubscriptionKeys.of("elsewhere"))
    await scene.move_registry("poller", "elsewhere")
    await scene.registry.pause("a", Paused("operator", "by request", now()))
    await scene.is_idle("a")
    for name in then:
        await elsewhere.pause(name, Paused("operator", "by request", now()))
    await scene.move_registry("elsewhere", "poller")
    await until(lambda: paused(scene.registry, "a"), "the lost pause")
    for name in ("a", *then):
        await scene.is_idle(name)
    await scene.add("e2")
    for name in {"b", "c", "d"} - set(then):
        await scene.arrives(name, "e1", "e2")
    assert [scene.got(name) for name in ("a", *then)] == [["e1"]] * (1 + len(then))
    await scene.registry.resume("a")
    await scene.arrives("a", "e1", "e2")


@pytest.mark.parametrize("is_gone", [False, True], ids=["older", "gone"])
async def test_processes_with_different_files_restore_the_settings_that_there_were(
    scene: Scene, *, is_gone: bool
) -> None:
    """Law: after a loss a subscription has the settings that it had, whichever process restores it."""
    older, newer = (filed(scene.settings("a", url=f"{scene.sink.url}/{name}")) for name in ("older", "newer"))
    if not is_gone:
        await scene.registry.sync(older, now())
        await scene.move_registry("poller", "elsewhere")
    await scene.registry.sync(newer, now())
    before = await scene.registry.all()
    await scene.move_registry("elsewhere", "poller")

    async def announce(_: OperationalEvent) -> None:
        pytest.fail("nothing is to be announced")

    for file in (older, newer, older):
        kept = await restore(scene.registry, file, before, now=now(), announce=announce)
        assert kept.registered == before.registered


async def test_one_whose_id_is_taken_in_an_older_copy_comes_back_when_it_is_free(scene: Scene) -> None:
    """Law: the others of the file are delivered meanwhile, and none needs a restart once the conflict is removed."""
    of_run = scene.settings("x", url=f"{scene.sink.url}/run")
    await scene.registry.add("x", filed(of_run)[0][1], (), now())
    await scene.move_registry("poller", "elsewhere")
    await scene.registry.remove("x")
    scene.deliver(scene.settings("x", "y"))
    await scene.add("e1")
    for name in ("x", "y"):
        await scene.arrives(name, "e1")
    before = await scene.registry.all()
    with capture_logs() as said:
        await scene.move_registry("elsewhere", "poller")
        await until(lambda: "subscriptions brought back" in events(said), "the loss to be noticed")
    await scene.add("e2")
    await scene.arrives("run/x", "e2")
    await scene.arrives("y", "e1", "e2")
    await remove(scene.client, scene.settings("y"), "x", clock=Clock())
    await scene.add("e3")
    await scene.arrives("y", "e1", "e2", "e3")
    await scene.sink.until(lambda: "e3" in scene.got("x"), "the one of the file to be delivered again")
    kept = await scene.registry.all()
    assert kept.registered == before.registered


async def test_what_was_resumed_after_the_store_went_back_goes_on(scene: Scene) -> None:
    """Law: a resumption after a loss is not undone, and the log names each subscription whose pause is brought back."""
    scene.deliver(scene.settings("a", "c"))
    await scene.add("e1")
    for name in ("a", "c"):
        await scene.arrives(name, "e1")
    elsewhere = Registry(scene.client, SubscriptionKeys.of("elsewhere"))
    await scene.registry.pause("c", Paused("operator", "by request", now()))
    await scene.is_idle("c")
    await scene.move_registry("poller", "elsewhere")
    await scene.registry.pause("a", Paused("operator", "by request", now()))
    await scene.is_idle("a")
    await elsewhere.resume("c")
    with capture_logs() as said:
        await scene.move_registry("elsewhere", "poller")
        await scene.add("e2")
        await scene.arrives("c", "e1", "e2")
    assert set((await scene.registry.all()).paused) == {"a"}
    (line,) = [line for line in said if line["event"] == "subscriptions brought back"]
    assert (line["paused"], "again, as before: a" in line["advice"]) == (["a"], True)


async def test_who_was_resumed_goes_on_though_the_store_went_back_to_its_pause(scene: Scene) -> None:
    """Law: a subscription that a running process delivers is not silenced by an older copy in which it was paused."""
    settings = scene.settings("a", "rests")
    scene.deliver(settings)
    await scene.add("e1")
    for name in ("a", "rests"):
        await scene.arrives(name, "e1")
        await scene.registry.pause(name, Paused("operator", "by request", now()))
        await scene.is_idle(name)
    await scene.move_registry("poller", "elsewhere")
    await resume(scene.client, settings, "a", now=now())
    await scene.add("e2")
    await scene.arrives("a", "e1", "e2")
    with capture_logs() as said:
        await scene.move_registry("elsewhere", "poller")
        await until(lambda: "subscriptions brought back" in events(said), "the loss to be noticed")
    await scene.add("e3")
    await scene.arrives("a", "e1", "e2", "e3")
    assert (scene.got("rests"), set((await scene.registry.all()).paused)) == (["e1"], {"rests"})
    (line,) = [line for line in said if line["event"] == "subscriptions brought back"]
    assert (line["paused"], line["resumed"], "Resumed again, as before: a" in line["advice"]) == ([], ["a"], True)
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await scene.client.xrange(operations_key("poller")))
    operations = [msgspec.json.decode(fields[b"data"]) for _, fields in entries]
    told = [(one["type"], one["subject"]) for one in operations]
    assert told == [("poller.subscription.resumed.v1", "a")] * 2  # by the operator, and again


async def test_pauses_that_the_store_loses_are_brought_back(scene: Scene) -> None:
    """A paused subscription gets nothing although the store loses all pauses; they are stored again."""
    scene.deliver(scene.settings("file", "paused"))
    await scene.add("e1")
    await scene.arrives("file", "e1")
    await scene.arrives("paused", "e1")
    await scene.registry.pause("paused", Paused("sink", "status 410", now()))
    await scene.is_idle("paused")
    keys = SubscriptionKeys.of("poller")
    await scene.client.delete(keys.paused)
    await until(lambda: scene.client.hexists(keys.paused, "paused"), "the pause to be stored again")
    await scene.add("e2")
    await scene.arrives("file", "e1", "e2")
    assert scene.got("paused") == ["e1"]


async def test_a_subscription_that_left_the_file_waits(scene: Scene) -> None:
    """A subscription that leaves the file is paused, keeps its events, and continues when it is listed again."""
    scene.deliver(scene.settings("one"))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    await scene.stop()
    scene.deliver(scene.settings())
    await until(lambda: paused(scene.registry, "one"), "its pause")
    await scene.add("e2")
    await scene.stop()
    scene.deliver(scene.settings("one"))
    await scene.arrives("one", "e1", "e2")


async def paused(registry: Registry, name: str) -> bool:
    return name in (await registry.all()).paused


async def test_two_processes_share_the_work_and_one_takes_over(scene: Scene) -> None:
    """Two processes deliver each event once; a sink's pause that one process has stored also holds for the other."""
    settings = scene.settings("one")
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("one", "e1")
    scene.deliver(settings)
    await scene.add("e2")
    await scene.arrives("one", "e1", "e2")
    scene.stops[0].set()
    await scene.tasks[0]
    await scene.add("e3")
    await scene.arrives("one", "e1", "e2", "e3")
    moment = now() + timedelta(seconds=2.5)
    await scene.registry.note_pause("one", moment - now())
    before = await looks(scene.client)  # both roles read members and registry with HGETALL
    await until(lambda: since(scene.client, before + 8), "both processes to read the registry")
    await scene.add("e4")
    await scene.arrives("one", "e1", "e2", "e3", "e4")
    assert now() >= moment - timedelta(seconds=0.5)  # each process knows the store's clock to within a request


async def looks(client: Redis) -> int:
    stats = [await one.info("commandstats") for one in await servers(client)]
    return sum(one.get("cmdstat_hgetall", {"calls": 0})["calls"] for one in stats)


async def since(client: Redis, calls: int) -> bool:
    return await looks(client) >= calls


async def test_a_pause_is_the_sinks_whichever_subscription_met_it(scene: Scene) -> None:
    """A Retry-After pauses all subscriptions of the same URL, and none of another URL."""
    scene.sink.answer = lambda request: (
        Reply(429, headers=(("Retry-After", "60"),)) if request.target == "/a" else Reply()
    )
    settings = scene.settings("a", "b", "c")
    file = scene.directory / "poller.toml"
    file.write_text(file.read_text("utf-8").replace(f"{scene.sink.url}/b", f"{scene.sink.url}/a"), "utf-8")
    settings = load(file, {})
    scene.deliver(settings)
    await scene.add("1")
    await scene.arrives("c", "1")

    async def noted() -> bool:
        return set((await scene.registry.pauses()).until) == {"a", "b"}

    await until(noted, "the pause of both to be stored")
    await scene.add("2")
    await scene.arrives("c", "1", "2")
    assert set(scene.got("a")) == {"1"}
    assert len(scene.got("a")) <= 2  # the second was under way


async def test_resuming_ends_a_pause_of_the_sink_in_all_processes(scene: Scene) -> None:
    """A resume ends the sink's pause in all processes, delivers the waiting events, and returns the pause."""
    scene.sink.answer = lambda _: Reply(503, headers=(("Retry-After", "3600"),))
    settings = scene.settings("one", "two", more="concurrency = 1")
    scene.deliver(settings)
    scene.deliver(settings)
    await scene.add("e1")

    async def noted() -> bool:
        return set((await scene.registry.pauses()).until) == {"one", "two"}

    await until(noted, "the pauses to be stored")
    before = await looks(scene.client)
    await until(lambda: since(scene.client, before + 4), "both processes to read the registry")
    scene.sink.answer = lambda _: Reply()
    await scene.add("e2")
    asked = {name: len(scene.got(name)) for name in ("one", "two")}
    for name in ("one", "two"):
        paused = await resume(scene.client, settings, name, now=now())
        assert paused is not None
        assert paused.by == "sink"
    for name in ("one", "two"):
        await scene.sink.until(lambda name=name: set(scene.got(name)[asked[name] :]) == {"e1", "e2"}, "both events")  # type: ignore[misc] # bound here
    assert (await resume(scene.client, settings, "one", now=now())) is None


@pytest.mark.parametrize("resumptions", [1, pytest.param(2, marks=pytest.mark.thorough)])
async def test_a_resumption_that_the_store_loses_ends_no_retry_after(scene: Scene, resumptions: int) -> None:
    """Law: a store that goes back to before an operator's resumption, or to an earlier one, ends no sink's pause."""
    settings = scene.settings("one", "two")
    await scene.registry.sync(filed(settings), now())
    for number in range(resumptions):
        if number == resumptions - 1:
            await scene.move_registry("poller", "elsewhere")
        await scene.registry.pause("one", Paused("operator", "by request", now()))
        await scene.registry.resume("one")
    scene.sink.answer = lambda request: _LATER if request.target == "/one" else Reply()
    scene.deliver(settings)
    await scene.add("e1")
    await until(lambda: noted_pause(scene.registry, "one"), "the pause to be stored")
    before = await looks(scene.client)
    await until(lambda: since(scene.client, before + 4), "the registry to be read")
    with capture_logs() as said:
        await scene.move_registry("elsewhere", "poller")
        await until(lambda: "subscriptions brought back" in events(said), "the loss to be noticed")
    before = await looks(scene.client)
    await until(lambda: since(scene.client, before + 4), "the registry to be read")
    await scene.add("e2")
    await scene.arrives("two", "e1", "e2")
    assert scene.got("one") == ["e1"]
    scene.sink.answer = lambda _: Reply()
    await scene.registry.pause("one", Paused("operator", "by request", now()))
    await scene.registry.resume("one")
    await scene.sink.until(lambda: set(scene.got("one")[1:]) == {"e1", "e2"}, "both events")


async def noted_pause(registry: Registry, name: str) -> bool:
    return name in (await registry.pauses()).until


@pytest.mark.parametrize("resumed", ["as it is stored again", "before that"])
async def test_a_pause_that_the_store_has_lost_is_stored_again_and_can_be_ended(scene: Scene, resumed: str) -> None:
    """Law: no pause of a sink is known to one process alone: status shows it, and a resume ends it."""
    scene.sink.answer = lambda _: _LATER
    settings = scene.settings("one", "other")
    scene.deliver(settings)
    await scene.add("e1")
    await until(lambda: noted_pause(scene.registry, "one"), "the pause to be stored")
    await scene.client.delete(SubscriptionKeys.of("poller").until)
    if resumed == "as it is stored again":
        await scene.registry.pause("other", Paused("operator", "by request", now()))  # something else has changed
        await until(lambda: noted_pause(scene.registry, "one"), "the pause to be stored again")
    scene.sink.answer = lambda _: Reply()
    await scene.registry.resume("one")
    await scene.sink.until(lambda: scene.got("one")[1:2] == ["e1"], "the event")


async def test_a_pause_that_a_wrong_clock_has_written_silences_nobody(scene: Scene) -> None:
    """A stored pause of a month, written by a process with a wrong clock, does not hold up deliveries."""
    settings = scene.settings("one")
    await scene.registry.sync(filed(settings), now())
    await scene.client.hset(SubscriptionKeys.of("poller").until, "one", milliseconds_of(now() + timedelta(days=30)))
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("one", "e1")


_LATER = Reply(503, headers=(("Retry-After", "3600"),))


@pytest.mark.parametrize(("late", "noticed"), [(_LATER, False), (_LATER, True), (Reply(410), False)])
async def test_what_a_sink_says_after_it_was_replaced_is_not_the_next_one_s(
    scene: Scene, late: Reply, *, noticed: bool
) -> None:
    """A late reply from a replaced sink pauses neither the subscription nor others that use its new sink."""
    asked = asyncio.Event()
    scene.sink.answer = lambda request: Held(asked, late) if request.target == "/before" else Reply()
    settings = scene.settings("beside")
    table = msgspec.json.decode(filed(settings)[0][1])
    run = table | {"id": "run", "sink": f"{scene.sink.url}/before"}
    await scene.registry.add("run", msgspec.json.encode(run), (), now())
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("before", "e1")
    await scene.arrives("beside", "e1")
    owner = await scene.owner("run")
    with capture_logs() as said:
        await scene.registry.change("run", msgspec.json.encode(run | {"sink": f"{scene.sink.url}/beside"}))
        if noticed:  # deliveries to the previous sink are stopping
            await until(lambda: any(line["event"] == "share" and line["of"] == 1 for line in said), "a stop")
        asked.set()
        await scene.is_begun_anew("run", owner)
    kept = await scene.registry.all()
    assert (kept.until, kept.paused) == ({}, {})
    await scene.add("e2")
    await scene.sink.until(lambda: scene.got("beside").count("e2") == 2, "the next event of both subscriptions")


async def test_secrets_that_are_rotated_in_their_files_sign_from_then_on(scene: Scene) -> None:
    """A secret replaced in its file signs the next request, without a restart of the deliveries."""
    file = scene.directory / "secret"
    file.write_text(SECRETS[0], "utf-8")
    file.chmod(0o600)
    scene.deliver(scene.settings("one", more=f'secret_files = ["{file}"]'))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    fresh = scene.directory / "fresh"
    fresh.write_text(SECRETS[1] + "\n", "utf-8")
    fresh.chmod(0o600)
    fresh.replace(file)
    await scene.add("e2")
    await scene.arrives("one", "e1", "e2")
    one, two = (signed(request.header) for request in scene.sink.requests)
    assert (one, two) == (0, 1)


def signed(header: Callable[[str], str | None]) -> int:
    """The index of the secret that signed the request, or -1."""
    from standardwebhooks import Webhook  # noqa: PLC0415 -- the oracle, slow to import

    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    headers = {name: header(name) or "" for name in names}
    body = spelled(id=headers["webhook-id"], partitionkey=headers["webhook-id"]).decode()
    for number, secret in enumerate(SECRETS):
        try:
            Webhook(secret).verify(body, headers)
        except Exception:  # noqa: BLE001, S112 -- the library's errors have no common base
            continue
        return number
    return -1


async def test_nothing_is_sent_before_it_was_granted(scene: Scene) -> None:
    """A sink gets no event before it grants permission; when it grants later, it gets the events that waited."""
    scene.sink.answer = Reply(200)
    scene.deliver(scene.settings("one", more="validate = true"))
    await scene.add("e1")
    await until(lambda: scene.registry.handshake("one"), "the handshake to be stored")
    assert scene.got("one") == []
    await scene.registry.note_handshake("one", encoded(Granted(origin(None))))
    await scene.arrives("one", "e1")
    assert [request.method for request in scene.sink.requests] == ["OPTIONS", "POST"]


async def test_a_sink_that_grants_at_once_gets_its_events(scene: Scene) -> None:
    """Each request names its origin to the sink, and the grant is stored for the next process."""
    scene.sink.answer = Reply(200, headers=(("WebHook-Allowed-Origin", "*"),))
    scene.deliver(scene.settings("one", more="validate = true"))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    assert scene.sink.requests[-1].header("WebHook-Request-Origin") == origin(None)
    assert isinstance(decoded(await scene.registry.handshake("one") or b""), Granted)


async def test_told_to_stop_it_leaves_in_time_though_a_sink_hangs(scene: Scene) -> None:
    """A stop gives requests in flight a short time, then cancels them and releases the lease."""
    hang = asyncio.Event()
    scene.sink.answer = Held(hang, Reply())
    scene.deliver(scene.settings("one"))
    await scene.add("e1")
    await scene.sink.received(1)
    async with limited(8):
        await scene.stop()
    await scene.is_idle("one")
    hang.set()


async def test_a_process_with_another_file_silences_nothing(scene: Scene) -> None:
    """A subscription is active while a live process lists it; when the last one leaves, it is paused and logged."""
    scene.deliver(scene.settings("one"))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    version = await scene.registry.version()
    with capture_logs() as said:
        scene.deliver(scene.settings("other"))
        await scene.add("e2")
        await scene.arrives("other", "e1", "e2")
        await scene.arrives("one", "e1", "e2")
        assert (await scene.registry.version(), events(said).count("subscription paused")) == (version + 1, 0)
        scene.stops[0].set()
        await scene.tasks[0]
        await until(lambda: paused(scene.registry, "one"), "its pause")
        await until(lambda: events(said).count("subscription paused") == 1, "the pause to be logged")
    scene.deliver(scene.settings("one"))
    await scene.add("e3")
    await scene.arrives("one", "e1", "e2", "e3")
    await scene.arrives("other", "e1", "e2", "e3")


async def test_a_process_delivers_what_comes_at_a_feed_that_only_another_has(scene: Scene) -> None:
    """A subscription that names its feeds gets all their events, also by a process whose file has other feeds."""
    second = "acme/evidenceVariants"
    scene.settings("one")
    file = scene.directory / "poller.toml"
    both = file.read_text("utf-8").replace(_FEED, _FEED + _FEED.replace("contractTypes", "evidenceVariants"))
    file.write_text(f'{both}feeds = ["{FEED}", "{second}"]\n', "utf-8")
    scene.deliver(load(file, {}))
    file.write_text(_SOURCE + _FEED.replace("contractTypes", "employmentUnavailabilities"), "utf-8")
    other = load(file, {})
    await scene.add("e1")
    await scene.arrives("one", "e1")
    scene.deliver(other)
    streams = [FeedKeys.of("poller", name).events for name in (FEED, second)]
    leases = [ConsumerKeys.of("poller", name, "one").lease for name in (FEED, second)]

    async def shared() -> bool:
        owners = {owner_of(lease) for lease in cast("list[bytes | None]", await scene.client.mget(leases))}
        return len(owners - {None}) == 2

    await until(shared, "each process to deliver one of the feeds")
    for number, stream in enumerate((*streams, *streams), 2):
        await scene.client.xadd(stream, {"data": spelled(id=f"e{number}", partitionkey=f"e{number}")})
        await scene.arrives("one", *(f"e{one}" for one in range(1, number + 1)))


async def test_what_no_file_lists_any_more_is_not_begun(scene: Scene) -> None:
    """A daemon whose file lacks a registered subscription sends nothing for it and logs that it is paused."""
    await scene.registry.sync(filed(scene.settings("gone")), now())
    await scene.add("e1")
    with capture_logs() as said:
        scene.deliver(scene.settings("one"))
        await scene.arrives("one", "e1")
    assert scene.got("gone") == []
    assert (await scene.registry.all()).paused["gone"].by == "removed"
    assert [line["subscription"] for line in said if line["event"] == "subscription paused"] == ["gone"]


async def test_what_an_older_process_has_paused_is_resumed(scene: Scene) -> None:
    """A process resumes a subscription of its file that a process of an older version has paused as removed."""
    scene.deliver(scene.settings("one"))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    with capture_logs() as said:
        await scene.registry.pause("one", Paused("removed", "it is not in the configuration file any more", now()))
        await until(lambda: "subscription resumed" in events(said), "the subscription to be resumed")
    assert not (await scene.registry.all()).paused
    await scene.add("e2")
    await scene.arrives("one", "e1", "e2")


@pytest.mark.thorough
async def test_a_process_that_does_not_say_what_it_lists_keeps_all_going(scene: Scene) -> None:
    """A live process that does not publish its configuration counts as listing every subscription: none is paused."""
    older = Members(scene.client, MemberKeys.of("poller"), name="older", ttl=timedelta(minutes=1), clock=store_clock())
    await older.beat(("deliver",), MemberList())
    await scene.registry.sync(filed(scene.settings("gone")), now())
    await scene.add("e1")
    scene.deliver(scene.settings("one"))
    await scene.arrives("one", "e1")
    await scene.arrives("gone", "e1")
    await older.leave(MemberList())
    await until(lambda: paused(scene.registry, "gone"), "its pause")


async def test_a_process_that_is_missing_in_the_list_pauses_nothing(scene: Scene) -> None:
    """A process that is missing from the member list pauses nothing: its own subscriptions are missing there too."""
    settings = scene.settings("one")
    keys, ttl, lacks = MemberKeys.of("poller"), timedelta(minutes=1), stated(scene.settings())
    other = Members(scene.client, keys, name="other", ttl=ttl, clock=store_clock(), configuration=lacks)
    members = Members(scene.client, keys, name="stopped", ttl=ttl, clock=store_clock(), configuration=stated(settings))
    membership = Membership(members, ttl=ttl, watch=StoreMonitor("warn", clock=Clock()), clock=Clock())
    await other.beat(("deliver",), MemberList())
    filing = FileSubscriptions(settings, scene.registry, scene.client, membership, clock=Clock())
    await filing.register()
    kept = await scene.registry.all()
    membership.seen = await members.beat(("deliver",), MemberList())
    assert not await filing.reconcile(kept)
    membership.seen = await members.leave(membership.seen)
    assert not await filing.reconcile(kept)
    await scene.registry.pause("one", Paused("removed", "so", now()))
    membership.seen = await members.beat(("deliver",), membership.seen)
    await members.leave(MemberList())  # the membership has not read this yet
    kept = await scene.registry.all()
    assert await filing.reconcile(kept)
    assert await paused(scene.registry, "one")
    membership.seen = await members.beat(("deliver",), MemberList())
    assert await filing.reconcile(kept)
    assert not await paused(scene.registry, "one")


async def test_a_stop_waits_for_no_reading(scene: Scene) -> None:
    """A process that stops does not wait for the next reading of the member list."""
    other = Members(scene.client, MemberKeys.of("poller"), name="~", ttl=timedelta(minutes=9), clock=store_clock())
    await other.beat(("deliver",), MemberList())  # with two members the registry is read with the list
    scene.deliver(scene.settings("one"), look_seconds=3600)
    await scene.add("e1")
    async with limited():
        await scene.arrives("one", "e1")
        await scene.stop()


async def test_a_stop_waits_for_no_registry(server: str, tmp_path: Path) -> None:
    """A stop does not wait for the store's reply to a reading of the registry."""
    async with proxied(server) as proxy, staged(proxy.url, tmp_path) as scene, commands(server) as direct:
        scene.deliver(scene.settings("one"))
        await scene.add("e1")
        await scene.arrives("one", "e1")
        silent = proxy.silence(to=_ALL)
        await Registry(direct, SubscriptionKeys.of("poller")).pause("one", Paused("operator", "by request", now()))
        await silent.struck.wait()
        with capture_logs() as said:
            await scene.stop()
    assert "redis unavailable" not in {line["event"] for line in said}  # the stop did not wait for the reply timeout


async def test_a_stop_begins_nothing_after_what_it_waits_for(server: str, tmp_path: Path) -> None:
    """A stop does not restart a subscription that was paused and resumed, and does not read the registry for it."""
    hang = asyncio.Event()
    async with proxied(server) as proxy, staged(proxy.url, tmp_path) as scene, commands(server) as direct:
        registry = Registry(direct, SubscriptionKeys.of("poller"))
        scene.sink.answer = Held(hang, Reply())
        scene.deliver(scene.settings("one"))
        await scene.add("e1")
        await scene.sink.received(1)
        for change in (registry.pause("one", Paused("operator", "by request", now())), registry.resume("one")):
            readings = proxy.times(_ALL)
            await change
            await until(lambda: proxy.times(_ALL) > readings, "the change to be read")  # noqa: B023 -- awaited here
        silent = proxy.silence(to=_ALL, times=9)
        async with limited(6):
            await scene.stop()
        assert not silent.struck.is_set()
    hang.set()


async def test_settings_that_cannot_be_used_are_a_failure_that_is_seen(scene: Scene) -> None:
    """A subscription with unusable settings shows as failing in the status until its settings are corrected."""
    settings = scene.settings("file")
    mended = msgspec.json.decode(filed(settings)[0][1]) | {"id": "run", "sink": f"{scene.sink.url}/run"}
    await scene.registry.add("run", msgspec.json.encode(mended | {"mode": "of a later version"}), (), now())
    scene.deliver(settings)

    async def fails() -> bool:
        _, one = await subscription_statuses(scene.client, settings, now=now())
        return one.state == "failing" and "this version cannot use" in str(one.error)

    await until(fails, "the failure")
    await scene.registry.change("run", msgspec.json.encode(mended))
    await scene.add("e1")
    await scene.arrives("run", "e1")
    assert not await fails()


async def test_what_is_unreadable_of_one_subscription_stops_no_other(scene: Scene) -> None:
    """An unreadable or lost part of one subscription is named as its failure; it is not sent unsigned, others go on."""
    settings, keys = scene.settings("file"), SubscriptionKeys.of("poller")
    table = msgspec.json.decode(filed(settings)[0][1])
    await scene.client.hset(keys.registry, "strange", b"[]")
    await scene.client.hset(keys.until, "file", b"later")
    for one in ("unreadable", "lost", "paused"):
        added = table | {"id": one, "sink": f"{scene.sink.url}/{one}"}
        await scene.registry.add(one, msgspec.json.encode(added), (SECRETS[0],), now())
    await scene.client.hset(keys.secrets, "unreadable", b"{}")
    await scene.client.hdel(keys.secrets, "lost")
    await scene.client.hset(keys.paused, "paused", b"\xff")
    await scene.add("e1")
    scene.deliver(settings)
    await scene.arrives("file", "e1")

    async def errors() -> dict[str, str | None] | None:
        found = await subscription_statuses(scene.client, settings, now=now())
        health = (await scene.registry.all()).health
        noted = {"strange", "unreadable", "lost"} <= health.keys()
        return {one.subscription: one.error or one.reason for one in found} if noted else None

    named = await until(errors, "the failures")
    parts = {
        "strange": ":registry cannot",
        "unreadable": ":secrets cannot",
        "lost": "lost its",
        "paused": ":paused cannot",
    }
    assert named.pop("file") is None
    assert {one for one, part in parts.items() if part in str(named[one])} == named.keys() == parts.keys()
    await resume(scene.client, settings, "paused", now=now())
    await scene.arrives("paused", "e1")
    assert scene.sink.requests[-1].header("webhook-signature")
    assert {request.target for request in scene.sink.requests} == {"/file", "/paused"}


async def test_an_orphaned_feed_that_cannot_be_read_stops_no_other_feed(scene: Scene) -> None:
    """While a key of a feed that no process has is of another type, that is named and all else is delivered."""
    await scene.client.hset(remembered_key("poller"), "acme/old", b"{}")
    await scene.client.set(ConsumerKeys.of("poller", "acme/old", "file").state, "x")
    scene.deliver(scene.settings("file"))
    await scene.add("e1")
    await scene.arrives("file", "e1")
    assert "WRONGTYPE" in scene.roles[0].failing()["acme/old"]


@pytest.mark.parametrize(
    "key", [SubscriptionKeys.of("poller").registry, SubscriptionKeys.of("poller").until, remembered_key("poller")]
)
async def test_who_cannot_read_the_subscriptions_at_its_start_is_not_ready(scene: Scene, key: str) -> None:
    """While a key that all deliveries need has another type at the start, the process is not ready and names it."""
    await scene.client.set(key, "x")
    await scene.add("e1")
    scene.deliver(scene.settings("file"))
    readiness = Readiness(StoreMonitor("warn", clock=StubClock(now=now)))
    readiness.started()
    await until(lambda: scene.roles, "the role")
    readiness.delivering(scene.roles[0].failing, lambda: scene.roles[0].unread)

    async def reason() -> str | None:
        return {one.name: one.text for one in (await readiness.report()).reasons}.get("subscriptions")

    assert key in (await until(reason, "the reason") or "")
    await scene.client.delete(key)
    await scene.arrives("file", "e1")
    assert await reason() is None
    await scene.client.set(key, "x")  # deliveries go on
    await until(scene.roles[0].failing, "the failure")
    assert await reason() is None


@pytest.mark.parametrize("part", ["parked", "lease"])
async def test_a_key_that_stops_a_subscription_is_its_failure(scene: Scene, part: str) -> None:
    """While a key that a subscription needs at a feed has another type, the process names it; then it is delivered."""
    key = getattr(ConsumerKeys.of("poller", FEED, "file"), part)
    await (scene.client.set(key, "x") if part == "parked" else scene.client.hset(key, "x", "y"))
    await scene.add("e1")
    scene.deliver(scene.settings("file"))
    await until(lambda: scene.roles and "WRONGTYPE" in scene.roles[0].failing().get("file", ""), "the failure")
    await scene.client.delete(key)
    await scene.arrives("file", "e1")
    await until(lambda: not scene.roles[0].failing(), "the end of the failure")


async def test_what_comes_at_an_orphaned_feed_while_it_is_delivered_is_delivered_too(scene: Scene) -> None:
    """Events that a command publishes at a feed that no process has do not wait once its backlog was read."""
    await scene.client.hset(remembered_key("poller"), FEED, b"{}")
    scene.settings("one")
    file = scene.directory / "poller.toml"
    file.write_text(file.read_text("utf-8").replace("contractTypes", "evidenceVariants"), "utf-8")
    await scene.add("e1")
    scene.deliver(load(file, {}))
    await scene.arrives("one", "e1")
    await scene.add("e2")
    await scene.arrives("one", "e1", "e2")
    await scene.add("e3")
    await scene.arrives("one", "e1", "e2", "e3")


async def test_an_unusable_stream_stops_no_other_feed(scene: Scene) -> None:
    """While one stream's key has another type, the events of the other feeds are delivered."""
    scene.settings("file")
    file = scene.directory / "poller.toml"
    file.write_text(file.read_text("utf-8").replace(_FEED, _FEED + _FEED.replace("contractTypes", "evidenceVariants")))
    await scene.client.set(FeedKeys.of("poller", "acme/evidenceVariants").events, "x")
    with capture_logs() as said:
        scene.deliver(load(file, {}))
        await scene.add("e1")
        await scene.arrives("file", "e1")
        await until(lambda: "new entries cannot be seen" in events(said), "the failure")
        await scene.add("e2")
        await scene.arrives("file", "e1", "e2")


async def test_a_certificate_file_that_appears_is_used_without_a_restart(scene: Scene) -> None:
    """A missing client key is logged once; deliveries start when the key appears."""
    authority = trustme.CA()
    certificate = authority.issue_cert("client.example")
    ca, key, chain = (scene.directory / name for name in ("ca.pem", "client.key", "client.pem"))
    authority.cert_pem.write_to_path(ca)
    certificate.cert_chain_pems[0].write_to_path(chain)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    async with receiving(tls=context) as sink:
        files = "".join(
            f'{name} = "{path}"\n'
            for name, path in (("ca_file", ca), ("client_cert_file", chain), ("client_key_file", key))
        )
        settings = scene.settings("one", more=files, url=sink.url)
        await scene.add("e1")
        with capture_logs() as said:
            scene.deliver(settings)
            await until(lambda: "subscription cannot be delivered" in events(said), "the failure")
            certificate.private_key_pem.write_to_path(key)
            await sink.until(lambda: len(sink.requests) > 0, "the event to arrive")
        assert events(said).count("subscription cannot be delivered") == 1
        (status,) = await subscription_statuses(scene.client, settings, now=now())
        assert (status.state, status.error) == ("active", None)


async def test_types_that_nothing_publishes_here_are_told_and_stop_nothing(scene: Scene) -> None:
    """A subscription whose types no feed publishes is logged as a warning and does not affect the others."""
    settings = scene.settings("file")
    table = msgspec.json.decode(filed(settings)[0][1])
    added = table | {"id": "run", "types": ["org.other.thing.created.v1"]}
    await scene.registry.add("run", msgspec.json.encode(added), (), now())
    with capture_logs() as said:
        scene.deliver(settings)
        await scene.add("e1")
        await scene.arrives("file", "e1")
        await until(lambda: "subscription matches nothing" in events(said), "the warning")
    (line,) = [line for line in said if line["event"] == "subscription matches nothing"]
    assert (line["log_level"], line["subscription"]) == ("warning", "run")
    assert "org.other.thing.created.v1" in line["reason"]


def events(said: list[EventDict]) -> list[str]:
    return [line["event"] for line in said]


async def test_what_waited_for_a_subscription_comes_although_its_feeds_were_changed(scene: Scene) -> None:
    """Law: an event published since a subscription wants its feed arrives, even if the list of feeds changed since."""
    settings = scene.settings("file")
    added = msgspec.json.decode(filed(settings)[0][1]) | {"id": "run", "sink": f"{scene.sink.url}/run", "start": "now"}
    await scene.registry.add("run", msgspec.json.encode(added | {"feeds": [FEED]}), (), now())
    await scene.registry.pause("run", Paused("operator", "not yet", now()))
    await scene.add("e1")
    await scene.registry.change("run", msgspec.json.encode(added | {"feeds": [FEED, "acme/evidenceVariants"]}))
    await scene.registry.resume("run")
    scene.deliver(settings)
    await scene.arrives("run", "e1")


async def test_what_waited_at_a_feed_comes_when_it_is_listed_again(scene: Scene) -> None:
    """Law: a subscription that has not begun at a feed gets what waited there, though it was unlisted meanwhile."""
    settings = scene.settings("file")
    added = msgspec.json.decode(filed(settings)[0][1]) | {"id": "run", "sink": f"{scene.sink.url}/run", "start": "now"}
    listed, other = (msgspec.json.encode(added | {"feeds": [feed]}) for feed in (FEED, "acme/other"))
    await scene.registry.add("run", listed, (), now())
    await scene.registry.pause("run", Paused("operator", "not yet", now()))
    await scene.add("e1")
    await scene.registry.change("run", other)
    await scene.add("e2")
    await scene.registry.change("run", listed)
    await scene.registry.resume("run")
    scene.deliver(settings)
    await scene.arrives("run", "e1", "e2")


async def test_a_feed_that_is_listed_no_more_holds_no_stream(scene: Scene) -> None:
    """Law: once nothing waits, the group of an unlisted feed goes; listed again, the feed goes on where it was."""
    settings = scene.settings("file")
    added = msgspec.json.decode(filed(settings)[0][1]) | {"id": "run", "sink": f"{scene.sink.url}/run"}
    listed, other = (msgspec.json.encode(added | {"feeds": [feed]}) for feed in (FEED, "acme/other"))
    await scene.registry.add("run", listed, (), now())
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("run", "e1")

    async def groups() -> set[bytes]:
        return {one["name"] for one in await scene.client.xinfo_groups(EVENTS)}

    async def left() -> bool:
        return await groups() == {b"sub:file"}

    await scene.registry.change("run", other)
    await until(left, "the group of the unlisted feed to go")
    await scene.add("e2")
    await scene.arrives("file", "e1", "e2")
    await scene.registry.change("run", listed)
    await scene.arrives("run", "e1", "e2")


class Unlisting:
    """The subscription ``run``, which has listed :data:`FEED`, and the looks of the processes that deliver."""

    def __init__(self, scene: Scene) -> None:
        self.client, self.registry, self.settings = scene.client, scene.registry, scene.settings("file")
        self.age = self.settings.retention.age
        self.keys = ConsumerKeys.of("poller", FEED, "run")
        self._added = msgspec.json.decode(filed(self.settings)[0][1]) | {"id": "run", "start": "now"}
        self._added["sink"] = f"{scene.sink.url}/run"

    async def lists(self, *feeds: str) -> None:
        """Add the subscription, or change the feeds that it lists."""
        settings, ends = (
            msgspec.json.encode(self._added | {"feeds": feeds}),
            await filed_ends(self.registry, self.settings),
        )
        if "run" in (await self.registry.all()).registered:
            await self.registry.change("run", settings, ends=ends)
        else:
            await self.registry.add("run", settings, (), now(), ends=ends)

    async def publish(self, *entries: str) -> None:
        for entry in entries:
            await self.client.xadd(EVENTS, {"data": spelled()}, id=entry)

    async def look(self, at: timedelta, counts: timedelta = timedelta(0)) -> list[UnlistedFeed]:
        """One look, at a moment of the store's clock since 1970."""
        kept, moment = await self.registry.all(), moment_of(0) + at
        return await end_unlisted_feeds(self.client, self.settings, kept, now=moment, counts=counts)


_DAY: Final = timedelta(days=1)
_START: Final = timedelta(days=20000)
_WAITS: Final = [UnlistedFeed("run", FEED, "waits", 1)]
_LEFT: Final = [UnlistedFeed("run", FEED, "ended", 1)]


async def test_what_waits_at_a_feed_that_is_listed_no_more_waits_for_the_retention_age(scene: Scene) -> None:
    """Law: events that wait at an unlisted feed stay for ``retention.age``; then they are dropped, and counted."""
    one, client = Unlisting(scene), scene.client
    await one.lists(FEED)
    await one.publish("1-0", "2-0")
    await client.xgroup_create(EVENTS, "sub:run", id="1-0")
    await one.lists("acme/other")
    await client.set(one.keys.lease, "another's")
    assert await one.look(_START) == [UnlistedFeed("run", FEED, "busy", 0)]
    await client.delete(one.keys.lease)
    for day in range(one.age // _DAY):
        assert await one.look(_START + day * _DAY, _DAY) == _WAITS
    await client.hset(one.keys.parked, "1-0", b"{}")
    assert await one.look(_START + one.age, _DAY) == [UnlistedFeed("run", FEED, "ended", 2)]
    assert (await client.xinfo_groups(EVENTS), await client.exists(one.keys.parked)) == ([], 0)
    assert await one.look(_START + one.age, _DAY) == []


async def test_what_waits_where_delivery_has_not_begun_waits_as_long(scene: Scene) -> None:
    """Law: a subscription without a group keeps what waited for it when the feed was unlisted, for as long."""
    one = Unlisting(scene)
    await one.publish("1-0")
    await one.lists(FEED)
    await one.publish("2-0")
    await one.lists("acme/other")
    for day in range(one.age // _DAY):
        assert await one.look(_START + day * _DAY, _DAY) == _WAITS
        await one.publish(f"{day + 3}-0")
    assert await one.look(_START + one.age, _DAY) == _LEFT
    assert await one.look(_START + one.age + _DAY, _DAY) == []


async def test_a_feed_at_which_nothing_waits_is_left_immediately(scene: Scene) -> None:
    """Law: what is published after a feed was unlisted does not wait, whether or not delivery has begun there."""
    one = Unlisting(scene)
    await one.publish("1-0")
    await one.lists(FEED)
    await one.lists("acme/other")
    assert await one.look(_START) == []
    await one.publish("2-0")
    assert await one.look(_START + _DAY, _DAY) == []
    periods = (await grace_periods(scene.client, "poller", [FEED]))[FEED]
    assert periods == {
        "run": GracePeriod((await scene.registry.all()).registered["run"].unlisted_at(FEED), is_ended=True)
    }


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("off", [-8 * _DAY, -timedelta(hours=2), 8 * _DAY], ids=["8 d back", "2 h back", "8 d ahead"])
@pytest.mark.parametrize("wrong", ["when it was unlisted", "since"])
async def test_a_wrong_clock_drops_nothing_early(scene: Scene, off: timedelta, wrong: str, *, begun: bool) -> None:
    """Law: whatever the store's clock says when a feed is unlisted or later, what waits there stays for its time.

    A moment of the clock may be before those of the ids of all entries, and days before the next one.
    """
    one, minute = Unlisting(scene), timedelta(minutes=1)
    await one.lists(FEED)
    await one.publish(f"{(_START - timedelta(hours=1)) // timedelta(milliseconds=1)}-0")
    if begun:
        await scene.client.xgroup_create(EVENTS, "sub:run", id="0-0")
    await one.lists("acme/other")
    first, second = (off, timedelta(0)) if wrong == "when it was unlisted" else (timedelta(0), off)
    assert await one.look(_START + first) == _WAITS
    for _ in range(3):  # set back and forth
        assert await one.look(_START + second, minute) == _WAITS
        assert await one.look(_START + first, minute) == _WAITS
    days = one.age // _DAY
    found = [await one.look(_START + second + day * _DAY, _DAY) for day in range(1, days + 2)]
    assert found[: days - 1] == [_WAITS] * (days - 1)
    assert _LEFT in found


@pytest.mark.parametrize("seed", range(8))
async def test_what_waits_stays_at_least_for_its_time_and_a_look(scene: Scene, seed: int) -> None:
    """Law: with any clock of the store, only time that has passed counts; with a right one, all of it does."""
    one, draw = Unlisting(scene), Random(seed)
    await one.lists(FEED)
    await one.publish("1-0")
    await one.lists("acme/other")
    passed, at, is_right = timedelta(0), _START, seed % 2 == 0
    assert await one.look(at) == _WAITS
    while True:
        step = draw.random() * one.age / 10
        passed, at = passed + step, at + step if is_right else _START + draw.uniform(-1, 1) * one.age * 4
        if (found := await one.look(at, step)) == _LEFT:
            break
        assert found == _WAITS
        assert not is_right or passed < one.age + timedelta(seconds=1)
    assert passed >= one.age - timedelta(seconds=1)  # parts of milliseconds do not count


async def test_a_clock_that_is_set_forward_drops_nothing_in_a_running_process(scene: Scene) -> None:
    """Law: a process counts what has passed by its monotonic clock: what waits stays and comes when listed again."""
    one, client = Unlisting(scene), scene.client
    unlisted = FeedKeys.of("poller", FEED).unlisted
    await one.lists(FEED)
    await scene.registry.pause("run", Paused("operator", "not yet", now()))
    await scene.add("e1")
    await one.lists("acme/other")
    scene.deliver(one.settings)

    async def noted() -> int:
        """When the last look was, by the store's clock; 0: none was."""
        return int((await client.hget(unlisted, "run") or b"0 0").split()[1])

    async def looked(after: int) -> None:
        await scene.registry.resume("run")  # any change: then the process looks again
        await until(lambda: _is_after(noted, after), "a look")

    await looked(0)
    scene.off = 9 * one.age
    await scene.registry.pause("run", Paused("operator", "not yet", now()))
    await looked(milliseconds_of(now()) + 8 * one.age // timedelta(milliseconds=1))
    await one.lists(FEED)
    await scene.arrives("run", "e1")


async def _is_after(moment: Callable[[], Awaitable[int]], after: int) -> bool:
    return await moment() > after


async def test_a_running_process_looks_at_unlisted_feeds_that_none_has(scene: Scene) -> None:
    """Law: what waits at an orphaned feed is looked at as soon as the feed is known to be one."""
    one, keys = Unlisting(scene), FeedKeys.of("poller", "acme/evidenceVariants")
    await one.lists(FEED, keys.feed)
    await one.publish("1-0")
    await scene.client.xadd(keys.events, {"data": spelled()}, id="1-0")
    await one.lists("acme/other")
    scene.deliver(one.settings)
    await until(lambda: _is_after(lambda: scene.client.hlen(FeedKeys.of("poller", FEED).unlisted), 0), "a look")
    assert not await scene.client.exists(keys.unlisted)
    await scene.client.hset(keys.state, mapping={"generation": "g", "sequence": "1"})
    await scene.client.hset(remembered_key("poller"), keys.feed, b"{}")
    await until(lambda: _is_after(lambda: scene.client.hlen(keys.unlisted), 0), "a look at the orphan")


async def test_time_without_a_look_does_not_count(scene: Scene) -> None:
    """Law: the first look of a process counts nothing, for it cannot say how much time has passed."""
    one = Unlisting(scene)
    await one.lists(FEED)
    await one.publish("1-0")
    await one.lists("acme/other")
    assert [await one.look(_START + restart * 2 * one.age) for restart in range(4)] == [_WAITS] * 4


@pytest.mark.parametrize("seen", [True, False])
async def test_what_waits_at_a_feed_that_was_listed_meanwhile_waits_anew(scene: Scene, *, seen: bool) -> None:
    """Law: the time begins again when a feed was listed meanwhile, seen or not, and only then."""
    one = Unlisting(scene)
    await one.lists(FEED)
    await one.publish("1-0")
    await one.lists("acme/other")
    await one.look(_START)
    assert await one.look(_START + one.age - _DAY, one.age) == _WAITS
    await one.lists("acme/more")
    assert await one.look(_START + one.age - 2 * timedelta(hours=1), one.age) == _WAITS
    await one.lists(FEED)
    if seen:
        assert await one.look(_START + one.age, one.age) == []
        assert (await grace_periods(scene.client, "poller", [FEED]))[FEED] == {}
    await one.lists("acme/more")
    assert await one.look(_START + one.age, one.age) == _WAITS
    await one.lists("acme/other")
    assert await one.look(_START + 2 * one.age, one.age) == _LEFT
    await one.lists("acme/more")
    assert await one.look(_START + 2 * one.age, one.age) == []


async def test_what_waits_stays_when_the_registry_goes_back_to_before_its_feed_was_listed(scene: Scene) -> None:
    """Law: at a feed that an older registry does not list, the time begins when that is first seen."""
    one, client = Unlisting(scene), scene.client
    await one.lists("acme/other")
    keys = SubscriptionKeys.of("poller")
    before = await client.hget(keys.registry, "run")
    assert before is not None
    await one.lists("acme/other", FEED)
    await one.publish("1-0")
    await client.xgroup_create(EVENTS, "sub:run", id="1-0")
    await client.hset(one.keys.parked, "1-0", b"{}")
    await client.hset(keys.registry, "run", before)
    later = timedelta(milliseconds=(await scene.registry.all()).at) + 9 * one.age
    assert await one.look(later) == _WAITS
    assert await one.look(later + one.age - _DAY, one.age) == _WAITS
    assert await one.look(later + one.age, one.age) == _LEFT


async def test_an_unlisted_feed_that_an_earlier_version_has_stored(scene: Scene) -> None:
    """Law: what waits by a registration of an earlier version waits, and what was left before is left."""
    one, client = Unlisting(scene), scene.client
    await one.lists(FEED)
    await one.publish("1-0")
    await one.lists("acme/other")
    keys = SubscriptionKeys.of("poller")
    old = msgspec.json.decode(await client.hget(keys.registry, "run") or b"")
    assert old.pop("unlisted") is not None
    await client.hset(keys.registry, "run", msgspec.json.encode(old))
    assert await one.look(_START) == _WAITS
    assert await one.look(_START + one.age, one.age) == _LEFT
    await client.delete(FeedKeys.of("poller", FEED).unlisted)
    await client.hset(one.keys.state, "place", "0-0")
    assert await one.look(_START) == []


async def test_what_was_noted_of_an_unlisted_feed_goes_with_its_subscription(scene: Scene) -> None:
    """Law: a subscription that is removed leaves no note of the feeds that it had left."""
    one = Unlisting(scene)
    await one.lists(FEED)
    await one.publish("1-0")
    await one.lists("acme/other")
    await one.look(_START)
    assert await scene.client.exists(FeedKeys.of("poller", FEED).unlisted)
    await remove(scene.client, one.settings, "run", clock=Clock())
    assert not await scene.client.exists(FeedKeys.of("poller", FEED).unlisted)


async def test_what_waits_at_an_unlisted_feed_that_no_process_has_waits_as_long(scene: Scene) -> None:
    """Law: an orphaned feed is left like any other."""
    one, orphan = Unlisting(scene), "acme/evidenceVariants"
    events = FeedKeys.of("poller", orphan).events
    await one.lists(orphan)
    await scene.client.xadd(events, {"data": spelled()}, id="1-0")
    await one.lists("acme/other")
    kept = await scene.registry.all()
    for number, left in enumerate(("waits", "ended")):
        moment = moment_of(0) + _START + number * one.age
        looked = end_unlisted_feeds(scene.client, one.settings, kept, now=moment, counts=one.age, others=[orphan])
        assert [(found.feed, found.left) for found in await looked] == [(orphan, left)]


async def test_a_redelivery_is_noticed_although_the_registry_was_lost_meanwhile(scene: Scene) -> None:
    """Law: what a command scheduled while the registry was restored is delivered then, not after the next restart."""
    scene.deliver(scene.settings("one"))
    await scene.add("e1")
    await scene.arrives("one", "e1")
    keys = SubscriptionKeys.of("poller")
    again = Delivery("e2", event=msgspec.Raw(spelled(id="e2", partitionkey="e2")), repeat="1")
    async with scene.client.pipeline(transaction=True) as together:
        together.delete(keys.version, keys.registry)
        together.hset(ConsumerKeys.of("poller", FEED, "one").parked, "1-0", encode(again))
        together.incr(keys.parked)
        await together.execute()
    await scene.arrives("one", "e1", "e2")


async def test_a_redelivery_that_told_nobody_is_noticed(scene: Scene) -> None:
    """Law: what a command scheduled that was killed before it informed the daemons is delivered all the same."""
    scene.deliver(scene.settings("one"), reload_seconds=0.5)
    await scene.add("e1")
    await scene.arrives("one", "e1")
    again = Delivery("e2", event=msgspec.Raw(spelled(id="e2", partitionkey="e2")), repeat="1")
    await scene.client.hset(ConsumerKeys.of("poller", FEED, "one").parked, "1-0", encode(again))
    await scene.arrives("one", "e1", "e2")


async def test_the_last_requests_of_a_changed_subscription_keep_its_lease(scene: Scene) -> None:
    """Law: while the last requests of a changed subscription are in flight, its lease is renewed: they are settled."""
    settings = scene.settings("file")
    ttl = timedelta(milliseconds=500)
    settings = settings.model_copy(update={"lease": settings.lease.model_copy(update={"ttl": ttl})})
    table = msgspec.json.decode(filed(settings)[0][1]) | {"id": "run", "sink": f"{scene.sink.url}/run"}
    answered = asyncio.Event()
    scene.sink.answer = Held(answered, Reply())
    await scene.registry.add("run", msgspec.json.encode(table), (), now())
    scene.deliver(settings)
    await scene.add("e1")
    await scene.arrives("run", "e1")
    owner = await scene.owner("run")
    lasts: list[int] = []

    async def renewed() -> bool:
        lasts.append(await scene.client.pttl(ConsumerKeys.of("poller", FEED, "run").lease))
        assert await scene.owner("run") == owner
        return len(lasts) > 1 and lasts[-1] > lasts[-2]

    with capture_logs() as said:
        await scene.registry.change("run", msgspec.json.encode(table | {"concurrency": 3}))
        await until(lambda: any(line["event"] == "share" and line["of"] == 1 for line in said), "a stop")
    await until(renewed, "the lease to be renewed")
    answered.set()
    await scene.add("e2")
    await scene.arrives("run", "e1", "e2")
