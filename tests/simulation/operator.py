"""The operator of a simulated world: asks what the command line asks, through the same use cases.

**Invariants**

- An action is asked again while the store is away, as an operator would; it is never given up before the end.
- What the operator was told is what the judge goes by: a pause counts from the reply on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from poller.control import subscriptions
from poller.control.backfill import BackfillControl, backfill_scope
from poller.control.commands import CommandKind, run_command
from poller.control.dead_letters import DeadLetters
from poller.control.orphans import forget
from poller.control.replay import EARLIEST, LATEST, ReplayControl
from poller.control.status import FeedStatus, SubscriptionStatus, feed_statuses, subscription_statuses
from poller.errors import PollerError, StoreError, SubscriptionResumed
from poller.store.session import STORE_PATIENCE, OpenStore, clock_of, opened_store, until_ready
from tests.simulation.backfills import BegunBackfill
from tests.simulation.plan import Deed
from tests.simulation.watch import Pause

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.simulation.world import World

_AGAIN: Final = 1.0  # seconds
_TRIES: Final = 20
_BY: Final = "operator"


class Operator:
    """Carries out the actions of a plan."""

    def __init__(self, world: World) -> None:
        """Act in this world."""
        self._world = world
        self._resumed: Counter[str] = Counter()  # how often a feed or a subscription was resumed
        self._resumptions: Counter[str] = Counter()  # how many of these are under way
        self._adding: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def act(self, deed: Deed) -> None:
        """Carry out an action to its end."""
        await _ACTIONS[deed.kind](self, deed)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[OpenStore]:
        """The store for one command, as the command line opens it."""
        world = self._world
        clock = clock_of(world.settings, world.operator.clock)
        async with opened_store(world.settings, clock=clock) as store:
            await until_ready(store, patience=STORE_PATIENCE)
            yield store

    async def _done(self, what: str, ask: Callable[[OpenStore], Awaitable[object]]) -> None:
        """Ask until there is an answer; an answer may be a refusal."""
        while True:
            try:
                async with self.store() as store:
                    answer = await ask(store)
                self._world.chronicle.tell(_BY, f"{what}: {answer}")
                return
            except StoreError as error:
                self._world.chronicle.tell(_BY, f"{what}: {error}")
            except PollerError as refusal:
                self._world.chronicle.tell(_BY, f"{what}: refused: {refusal}")
                return
            await self._world.rest(_AGAIN)

    async def _command(self, feed: str, kind: CommandKind) -> None:
        """Give a command to a feed, by the name that it has in the store."""

        async def ask(store: OpenStore) -> object:
            name = f"acme/{feed}"
            result = await run_command(
                store.client, self._world.settings, name, kind, clock=store.clock, by=_BY, reason="planned"
            )
            return f"{result.outcome}; {result.text}"

        await self._done(f"{kind} {feed}", ask)

    @contextmanager
    def _pausing(self, name: str) -> Iterator[None]:
        """It must be quiet afterwards, unless it was resumed at the same time: which came first is not known."""
        before = self._resumed[name]
        yield
        if self._resumed[name] == before and not self._resumptions[name]:
            self._world.watch.paused[name] = Pause(name, self._world.now() + self._world.grace)

    @contextmanager
    def _resuming(self, name: str) -> Iterator[None]:
        self._resumed[name] += 1
        self._resumptions[name] += 1
        self._world.watch.paused.pop(name, None)
        try:
            yield
        finally:
            self._resumptions[name] -= 1
            self._world.watch.paused.pop(name, None)

    async def pause_feed(self, deed: Deed) -> None:
        """Pause a feed for some time."""
        world, feed = self._world, self._world.name_of(deed.target)
        with self._pausing(feed):
            await self._command(feed, CommandKind.PAUSE)
        await world.rest(deed.seconds)
        with self._resuming(feed):
            await self._command(feed, CommandKind.RESUME)

    async def resync(self, deed: Deed) -> None:
        """Have a feed read again in full."""
        await self._command(self._world.name_of(deed.target), CommandKind.RESYNC)

    async def release(self, deed: Deed) -> None:
        """Publish what is held of a feed, if anything is."""
        await self._command(self._world.name_of(deed.target), CommandKind.RELEASE)

    async def reset_feed(self, deed: Deed) -> None:
        """Have a feed read again after all that is known of it is forgotten."""
        feed = self._world.name_of(deed.target)
        self._world.asked_anew.add(feed)
        await self._command(feed, CommandKind.ANEW)

    async def purge(self, deed: Deed) -> None:
        """Remove all records of a resource at the source; what is held of that is released at the end."""
        self._world.api.purge(deed.target)
        self._world.purged = True

    async def rename_feed(self, deed: Deed) -> None:
        """Give a feed another name in the file, and restart the daemons one after another."""
        await self._world.rename_feed(deed.target)

    async def drop_feed(self, deed: Deed) -> None:
        """Take a feed out of the file for some time."""
        world = self._world
        gone = await world.drop_feed(deed.target)
        await world.rest(deed.seconds)
        if gone is not None:
            await world.put_back(gone)

    async def forget_feed(self, deed: Deed) -> None:
        """Give a feed another name, and after some time delete all that the store has of it by its former name."""
        world = self._world
        former = world.name_of(deed.target)
        if not await world.rename_feed(deed.target):
            return
        await world.rest(deed.seconds)
        for _ in range(_TRIES):
            if await self._forgotten(former):
                return
            await world.rest(_AGAIN)

    async def _forgotten(self, feed: str) -> bool:
        """Whether a feed is forgotten now; a process that has died is there as long as its lease may last."""
        world, done = self._world, []

        async def ask(store: OpenStore) -> object:
            world.about_to_forget(feed)
            gone = await forget(store.client, world.settings, f"acme/{feed}", clock=store.clock)
            world.feed_forgotten(feed)
            done.append(gone)
            return gone

        await self._done(f"forget {feed}", ask)
        return bool(done)

    async def release_all(self) -> None:
        """Release all that is held."""
        held: list[str] = []

        async def look(store: OpenStore) -> object:
            held[:] = [one.feed.rpartition("/")[2] for one in (await self._statuses(store))[0] if one.state == "held"]
            return held

        await self._done("what is held", look)
        for feed in held:
            await self._command(feed, CommandKind.RELEASE)

    async def redeliver(self, deed: Deed) -> None:
        """Have all dead letters of a subscription delivered once more."""
        world, name = self._world, deed.target

        async def redeliver(store: OpenStore) -> object:
            letters = DeadLetters(store.client, world.settings.redis.prefix)
            wanted = await letters.all_of(name, [f"acme/{feed}" for feed in world.watch.feeds])
            if wanted:
                world.repeats(name)
            return (await letters.redeliver(wanted)).moved

        await self._done(f"redeliver {name}", redeliver)

    async def redeliver_all(self) -> None:
        """Redeliver whatever is a dead letter."""
        for one in self._world.plan.subscriptions:
            if one.id not in self._world.removed:
                await self.redeliver(Deed(self._world.now(), "redeliver", one.id))

    async def pause_subscription(self, deed: Deed) -> None:
        """Pause a subscription for some time."""
        world, name = self._world, deed.target

        async def pause(store: OpenStore) -> object:
            now = store.clock.now()
            return await subscriptions.pause(store.client, world.settings, name, reason="planned", now=now)

        with self._pausing(name):
            await self._done(f"pause subscription {name}", pause)
        await world.rest(deed.seconds)
        await self.resume_subscription(name)

    async def resume_subscription(self, name: str) -> None:
        """Resume a subscription, whatever paused it."""
        world = self._world

        async def resume(store: OpenStore) -> object:
            now = store.clock.now()
            world.resumed.setdefault(name, []).append(world.now())
            return await subscriptions.resume(store.client, world.settings, name, now=now)

        with self._resuming(name):
            await self._done(f"resume subscription {name}", resume)

    async def add_subscription(self, deed: Deed) -> None:
        """Add a subscription that the file does not have."""
        world = self._world
        wanted = world.addable[deed.target]

        async def add(store: OpenStore) -> object:
            registry = subscriptions.registry_of(world.settings, store.client)
            await subscriptions.add(registry, world.settings, wanted, secrets=(), now=store.clock.now())
            return "done"

        async with self._adding[deed.target]:
            await self._done(f"add subscription {deed.target}", add)

    async def remove_subscription(self, deed: Deed) -> None:
        """Remove a subscription that was added; one of the file is refused."""
        world = self._world

        async def remove(store: OpenStore) -> object:
            while True:
                with suppress(SubscriptionResumed):
                    await subscriptions.remove(store.client, world.settings, deed.target, clock=store.clock)
                    return "done"

        if deed.target in world.addable:
            world.removed.add(deed.target)
        async with self._adding[deed.target]:  # one that comes first is refused, and the subscription stays
            await self._done(f"remove subscription {deed.target}", remove)

    async def replay(self, deed: Deed) -> None:
        """Have a part of what was delivered delivered once more."""
        world, name = self._world, deed.target

        async def replay(store: OpenStore) -> object:
            control = ReplayControl(store.client, world.settings.redis.prefix, name)
            planned = [
                await control.planned(feed, EARLIEST, LATEST, name=store.clock.random.randbytes(8).hex())
                for feed in world.settings.feed_ids
                if not world.feeds_of(name) or feed.rpartition("/")[2] in world.feeds_of(name)
            ]
            wanted = [one for one in planned if one is not None]
            world.repeats(name)
            taken = await control.start(wanted)
            return f"{sum(one.events for one in wanted if one.feed not in taken)} events"

        await self._done(f"replay {name}", replay)

    async def backfill(self, deed: Deed) -> None:
        """Have every record delivered once to a subscription."""
        world, name = self._world, deed.target

        async def backfill(store: OpenStore) -> object:
            scope = await backfill_scope(store.client, world.settings, name)
            control = BackfillControl(store.client, world.settings, scope)
            before = {feed: len(found) for feed, found in world.watch.archive.items()}
            begun = await control.start(name=store.clock.random.randbytes(8).hex())
            for one in begun:
                feed = one.feed.rpartition("/")[2]
                if one.state == "begun":
                    world.backfills.append(BegunBackfill(name, feed, world.now(), before.get(feed, 0)))
            return ", ".join(f"{one.feed} {one.state}" for one in begun)

        await self._done(f"backfill {name}", backfill)

    async def look(self, _deed: Deed) -> None:
        """Look at the status, as ``poller status`` does."""

        async def look(store: OpenStore) -> object:
            feeds, sinks = await self._statuses(store)
            states = [f"{one.feed} {one.state}" for one in feeds]
            states += [f"{one.subscription} {one.state} lag {one.lag_entries}" for one in sinks]
            return ", ".join(states)

        await self._done("status", look)

    async def statuses(self) -> tuple[list[FeedStatus], list[SubscriptionStatus]]:
        """The status of all feeds and subscriptions.

        Raises:
            StoreError: the store does not answer.
        """
        async with self.store() as store:
            return await self._statuses(store)

    async def _statuses(self, store: OpenStore) -> tuple[list[FeedStatus], list[SubscriptionStatus]]:
        now, settings = store.clock.now(), self._world.settings
        return (
            await feed_statuses(store.client, settings, now=now),
            await subscription_statuses(store.client, settings, now=now),
        )

    async def end_pauses(self) -> None:
        """Resume what is still paused: what the store forgot of a resumption, or what a sink has asked for.

        What is still being removed is removed again.
        """

        async def ask(store: OpenStore) -> object:
            feeds, sinks = await self._statuses(store)
            for one in sinks:
                if one.paused_by == "failures" or (
                    one.paused_by == "sink" and one.subscription not in self._world.told_gone
                ):  # none fails for days
                    self._world.found(f"{one.subscription} was paused by {one.paused_by}: {one.reason}")
            return msgspec.json.encode(
                [
                    [one.feed.rpartition("/")[2] for one in feeds if one.state == "paused"],
                    [one.subscription for one in sinks if one.state == "paused"],
                ]
            )

        found: list[bytes] = []

        async def kept(store: OpenStore) -> object:
            answer = await ask(store)
            assert isinstance(answer, bytes)
            found.append(answer)
            return answer.decode()

        await self._done("what is paused", kept)
        feeds, sinks = msgspec.json.decode(found[-1], type=tuple[list[str], list[str]])
        for feed in feeds:
            with self._resuming(feed):
                await self._command(feed, CommandKind.RESUME)
        for name in sinks:
            if name in self._world.removed:  # the store has lost the end of its removal
                await self.remove_subscription(Deed(self._world.now(), "remove_subscription", name))
            else:
                await self.resume_subscription(name)


_ACTIONS: Final[dict[str, Callable[[Operator, Deed], Awaitable[None]]]] = {
    "pause_feed": Operator.pause_feed,
    "pause_subscription": Operator.pause_subscription,
    "resync": Operator.resync,
    "replay": Operator.replay,
    "add_subscription": Operator.add_subscription,
    "remove_subscription": Operator.remove_subscription,
    "status": Operator.look,
    "redeliver": Operator.redeliver,
    "release": Operator.release,
    "reset_feed": Operator.reset_feed,
    "purge": Operator.purge,
    "rename_feed": Operator.rename_feed,
    "drop_feed": Operator.drop_feed,
    "forget_feed": Operator.forget_feed,
    "backfill": Operator.backfill,
}
