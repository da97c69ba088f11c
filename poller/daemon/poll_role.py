"""The polling role: polls the feeds whose leases this process holds, and handles commands to them.

A feed whose lease is acquired has its first round immediately, or after the feeds of its source that it depends on. A
lease is handed back between rounds, never within one.

**Invariants**

- A command holds without its handler: it is in the store, and the script that begins a round obeys it. The handler
  carries it out now and replies. Commands to feeds that are polled elsewhere are left to their pollers.
- Pending commands are read together with the list of processes, once a second at least. So nothing has to wake the
  handler, and the next owner of a feed finds what a dead process left.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Final, Protocol

import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.control.commands import CommandKind
from poller.daemon.cluster.leases import LeaseBalancer, WorkLease
from poller.daemon.cluster.membership import Membership
from poller.daemon.round_runner import PolledFeed, RoundObserver
from poller.daemon.schedule import SOONEST, Schedule
from poller.errors import StoreError, StoreUnavailable, fault_text
from poller.lifecycle import ended, first_of
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.store.clock import StoreClock
from poller.store.commands import KEPT, Command, CommandQueue, CommandReply
from poller.store.lease import HeldElsewhere, keep_renewed, release_all
from poller.store.scripts import ScriptSender

ROLE: Final = "poll"
_REFUSED_FOR: Final = 10.0  # seconds; a lease that the store refuses is tried again sooner
_FIRST, _TURN, _AGAIN, _ASKED = "first", "turn", "again", "asked"  # why a round is run, for the log

_log = structlog.get_logger("poller.daemon")


async def poll_until(
    stop: asyncio.Event,
    feeds: Sequence[PolledFeed],
    membership: Membership,
    client: Redis,
    after: RoundObserver,
    *,
    prefix: str,
    ttl: timedelta,
    clock: StoreClock,
) -> None:
    """Poll this process's share of the feeds until ``stop`` is set, then release all leases.

    Args:
        stop: ends polling in order.
        feeds: all configured feeds, each with its store and its client.
        membership: this process among the others.
        client: of the store.
        after: is informed of each round.
        prefix: of the store's keys.
        ttl: how long leases live.
        clock: the store's, which knows this process's.
    """
    stores = [polled.store for polled in feeds]
    schedule = Schedule(clock, wall=clock.process)
    balancer = LeaseBalancer(ROLE, membership, client, ttl=ttl, watch=after.watch, clock=clock)
    leases = leases_of(feeds, schedule, balancer.rested, after, clock)
    for lease in leases:
        balancer.add(lease)
    after.polling(lambda: {lease.name: lease.refusal for lease in leases if lease.refusal is not None})
    schedule.start()
    membership.join(ROLE)
    renewing = asyncio.create_task(keep_renewed([store.lease for store in stores], ttl=ttl, clock=clock), name="leases")
    balancing = asyncio.create_task(balancer.run(), name="shares")
    handling = asyncio.create_task(
        handle_commands(CommandQueue(client, prefix), leases, send=membership.ask, member=membership.name, clock=clock),
        name="commands",
    )
    try:
        await first_of(stop, renewing, balancing, handling)
    finally:
        membership.leave(ROLE)
        await ended(balancing, handling)
        await schedule.drain()
        await ended(renewing)
        await release_all(stores)
        membership.announce_release()


def leases_of(
    feeds: Sequence[PolledFeed],
    schedule: Schedule,
    rested: Callable[[WorkLease], None],
    after: RoundObserver,
    clock: Clock,
) -> list[FeedLease]:
    """The lease of each feed; ``rested`` is called when a round of one has ended."""
    sources: dict[str, list[PolledFeed]] = defaultdict(list)
    for polled in feeds:
        sources[polled.feed.id.partition("/")[0]].append(polled)
    leases = []
    for own in sources.values():
        siblings = SourceGroup(len(own), own[0].api.share)
        leases += [FeedLease(polled, schedule, siblings, rested=rested, after=after, clock=clock) for polled in own]
    return leases


def _next_full_reading(result: RoundResult, interval: timedelta | None) -> timedelta | None:
    """The wait until a full reading that has to follow this round; None: the next regular round is early enough."""
    second_look = result.second_look if result.ok else None
    wanted = min((one for one in (second_look, result.recheck) if one is not None), default=None)
    return None if wanted is None or (interval is not None and interval <= wanted) else wanted


class FeedLease:
    """A feed, its lease, and its rounds; see :class:`poller.daemon.cluster.leases.WorkLease`."""

    def __init__(
        self,
        polled: PolledFeed,
        schedule: Schedule,
        siblings: SourceGroup,
        *,
        rested: Callable[[WorkLease], None],
        after: RoundObserver,
        clock: Clock,
    ) -> None:
        """Hold no lease yet."""
        self.name = self.feed = polled.feed.id
        self.busy = False
        self._lease = polled.store.lease
        self.lease = self._lease.key
        self.nonce = self._lease.token.encode()
        self._polled = polled
        self._schedule = schedule
        self._siblings = siblings
        self._rested = rested
        self._after = after
        self._clock = clock
        self._polls = False
        self._trigger = _FIRST
        self._round_now: asyncio.Task[RoundResult] | None = None
        self._again = False
        self._was_ordered = False  # an operator's command came since the last round began
        self._awaited: list[asyncio.Future[RoundResult]] = []
        self._last_full: tuple[datetime, RoundResult] | None = None
        self._refused = "", -math.inf

    @property
    def refusal(self) -> str | None:
        """Why the store has just refused the lease, so that the feed is not polled here; None: it has not."""
        text, at = self._refused
        return text if self._clock.monotonic() - at < _REFUSED_FOR else None

    @property
    def has_lease(self) -> bool:
        """Whether this process polls the feed."""
        return self._polls

    @property
    def held(self) -> bool:
        """Whether this process has the lease, as far as it knows."""
        return self._lease.held  # asked of each of thousands, every second

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire the lease; None: this process has it."""
        self._refused = "", -math.inf
        try:
            return await self._lease.acquire()
        except StoreUnavailable:
            raise
        except StoreError as error:
            self._refused = str(error), self._clock.monotonic()
            raise

    def start(self) -> None:
        """Poll the feed from now on."""
        self._polls = True
        self._trigger = _FIRST
        self._siblings.add(self._polled.feed)
        # By then the other leases of this turn are acquired, so it is known which feeds to wait for.
        asyncio.get_running_loop().call_soon(self._start)

    def lost(self) -> None:
        """Stop polling the feed."""
        if self._polls:
            self._polls = False
            self._schedule.remove(self.name)
            self._after.gone(self.name)
            self._hasten(self._siblings.remove(self._polled.feed))
            self._settle_waiting(None)

    async def hand_back(self) -> None:
        """Stop polling the feed and release its lease."""
        self.lost()
        await self._polled.store.release()

    def _start(self) -> None:
        if self._polls:
            at_once = self._siblings.begins_at_once(self._polled.feed)
            self._schedule.add(self.name, self._round, self._polled.timing, at_once=at_once)

    async def confirmed(self) -> bool:
        """Whether this process has the lease; asks the store by renewing it."""
        return self._polls and await self._lease.renew()

    async def broken_off(self) -> bool:
        """End the round that is under way in order. False: there is none."""
        self._was_ordered = True
        under_way = self._round_now
        if under_way is None:
            return False
        await ended(under_way)
        return True

    def poll_soon(self) -> None:
        """Start a round after this moment, as soon as possible."""
        self._was_ordered = True
        self._again = self.busy
        if not self.busy:
            self._trigger = _ASKED
            self._schedule.hasten(self.name, self._clock.now() + SOONEST)

    def round_ended(self) -> asyncio.Future[RoundResult]:
        """The result of the round that ends next; cancelled if none ends in this process."""
        ending: asyncio.Future[RoundResult] = asyncio.get_running_loop().create_future()
        self._awaited.append(ending)
        return ending

    def full_round_since(self, moment: datetime) -> RoundResult | None:
        """The result of the last full reading, if it ended in this process after this moment."""
        return self._last_full[1] if self._last_full is not None and self._last_full[0] >= moment else None

    async def _round(self) -> timedelta | None:
        if not self._polls:  # it was handed back meanwhile
            return None
        self.busy, self._again, result = True, False, None
        try:
            with structlog.contextvars.bound_contextvars(trigger=self._trigger):
                result = await self._unless_broken_off()
        finally:
            self.busy = False
            if result is not None and result.mode not in {RoundMode.DELTA, RoundMode.SKIPPED}:
                self._last_full = self._clock.now(), result
            self._rested(self)
            self._settle_waiting(result)
        self._hasten(self._siblings.polled(self._polled.feed))
        if not self.has_lease:  # lost meanwhile: its owner reports on it
            return None
        if result is None:  # broken off, by a pause or a failing store: the next round finds out
            sooner: timedelta | None = timedelta()
        else:
            sooner = (
                self._after(result)
                or self._siblings.again(self._polled.feed, result)
                or _next_full_reading(result, self._polled.timing.interval)
            )
        self._trigger = _ASKED if self._again else _AGAIN if sooner is not None else _TURN
        return timedelta() if self._again else sooner

    async def _unless_broken_off(self) -> RoundResult | None:
        due = partial(self._schedule.next_round, self.name)
        began = partial(self._after.began, self.name)
        if self._was_ordered:
            self._was_ordered = False
            self._polled.store.forget_idle_start()
        self._round_now = asyncio.create_task(self._polled.round(due=due, began=began), name=f"round of {self.name}")
        try:
            return await self._round_now
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            return None
        except Exception as fault:  # noqa: BLE001 -- a fault of the program in one feed's round is that feed's failure
            _log.exception("round failed", feed=self.name)
            return RoundResult(feed=self.name, mode=RoundMode.SKIPPED, ok=False, error=fault_text(fault))
        finally:
            self._round_now = None

    def _hasten(self, names: Sequence[str]) -> None:
        for name in names:
            self._schedule.hasten(name, self._clock.now())

    def _settle_waiting(self, result: RoundResult | None) -> None:
        """Resolve the futures of :meth:`round_ended`; None: no round ends here."""
        awaited, self._awaited = self._awaited, []
        for one in awaited:
            if result is None:
                one.cancel()
            elif not one.done():
                one.set_result(result)


# The feeds of one source in this process. A feed with substreams by qualification starts after the first rounds of the
# other feeds, which name qualifications. Each process uses a part of the source's rate and concurrency.

_FRUITLESS: Final = 12  # rounds that found no qualification; the wait doubles after each

Share = Callable[[Fraction], None]
"""Sets the part of a source's rate and concurrency to use; see :meth:`poller.source.client.ApiClient.share`."""


class SourceGroup:
    """The feeds of one source that this process polls. Used within one event loop."""

    def __init__(self, count: int, share: Share) -> None:
        """Begin without feeds; ``count``: the source's feeds in all processes."""
        self._count = count
        self._share = share
        self._here: dict[str, Feed] = {}
        self._waited_for: set[str] = set()
        self._fruitless: dict[str, int] = {}

    def add(self, feed: Feed) -> None:
        """The feed is polled here from now on."""
        self._here[feed.id] = feed
        self._fruitless[feed.id] = 0
        if not feed.discover:
            self._waited_for.add(feed.id)
        self._shared()

    def remove(self, feed: Feed) -> tuple[str, ...]:
        """The feed is not polled here any more. Returns the feeds that need not wait any longer."""
        self._here.pop(feed.id, None)
        self._shared()
        return self._released_by(feed)

    def begins_at_once(self, feed: Feed) -> bool:
        """Whether its first round need not wait for others."""
        return not (feed.discover and self._waited_for)

    def polled(self, feed: Feed) -> tuple[str, ...]:
        """The feed has had a round. Returns the feeds that need not wait any longer."""
        return self._released_by(feed)

    def again(self, feed: Feed, result: RoundResult) -> timedelta | None:
        """The wait before a round that found no qualification is repeated: other feeds may name the first ones soon.

        None: it found some, or too many repetitions found none.
        """
        found = not (feed.discover and result.ok and result.mode is RoundMode.BASELINE and not result.pages)
        turns = self._fruitless.get(feed.id, 0)
        if found or turns >= _FRUITLESS:
            return None
        self._fruitless[feed.id] = turns + 1
        return timedelta(seconds=2**turns)

    def _released_by(self, feed: Feed) -> tuple[str, ...]:
        if feed.id not in self._waited_for:
            return ()
        self._waited_for.discard(feed.id)
        return () if self._waited_for else tuple(name for name, one in self._here.items() if one.discover)

    def _shared(self) -> None:
        if self._here:
            self._share(Fraction(len(self._here), max(self._count, len(self._here))))


# Commands of operators to the feeds that are polled here.

_KNOWN: Final = frozenset(map(str, CommandKind))  # others are a newer version's, and wait for it
_ENDED: Final = "its round has ended"


class CommandedFeed(Protocol):
    """What the handler of commands needs of a :class:`FeedLease`."""

    name: str

    @property
    def has_lease(self) -> bool:
        """Whether this process polls the feed."""
        ...

    async def confirmed(self) -> bool:
        """As :attr:`has_lease`, but asks the store.

        Raises:
            StoreError: the store did not answer.
        """
        ...

    async def broken_off(self) -> bool:
        """End the round that is under way. False: there is none."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        ...

    def poll_soon(self) -> None:
        """Start a round after this moment, as soon as possible."""
        ...

    def round_ended(self) -> asyncio.Future[RoundResult]:
        """The result of the round that ends next; cancelled if none ends in this process."""
        ...

    def full_round_since(self, moment: datetime) -> RoundResult | None:
        """The result of the last full reading, if it ended in this process after this moment."""
        ...


async def handle_commands(
    queue: CommandQueue,
    commanded: Iterable[CommandedFeed],
    *,
    send: ScriptSender,
    member: str,
    clock: Clock,
) -> None:
    """Carry out pending commands and reply to them until cancelled.

    Args:
        queue: of commands.
        commanded: all feeds, including those that other processes poll.
        send: sends the script that reads the pending commands, when it is time to.
        member: this process's name.
        clock: the store's.
    """
    feeds = {feed.name: feed for feed in commanded}
    under_way: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            with suppress(StoreError):  # rounds report that the store fails
                for command in await queue.pending(send):
                    feed = feeds.get(command.feed)
                    is_polled = feed is not None and feed.has_lease
                    if command.id in under_way:
                        await queue.keep_alive(command)  # a round may take hours
                    elif _is_expired(clock.now() - command.at, is_polled=is_polled) and await queue.withdraw(command):
                        pass
                    elif feed is not None and feed.has_lease and command.order in _KNOWN:
                        task = asyncio.create_task(_handle(queue, command, feed, member), name=f"command {command.id}")
                        under_way[command.id] = task
            # Before the next reading is sent: what it shows is found again, unless its task had replied by then.
            under_way = {name: task for name, task in under_way.items() if not task.done()}
    finally:
        await ended(*under_way.values())


def _is_expired(age: timedelta, *, is_polled: bool) -> bool:
    """Whether a command is too old. One from the future was submitted before the store's clock was set back."""
    return age > KEPT or (age < -KEPT and not is_polled)


async def _handle(queue: CommandQueue, command: Command, feed: CommandedFeed, member: str) -> None:
    """Carry out a command and reply. If the store fails or the lease is lost, the command stays pending."""
    with suppress(StoreError):
        if not await feed.confirmed():  # this process was suspended, and another one has the feed
            return
        if command.order == "pause" and not await queue.is_paused(command):
            await queue.reply(command, CommandReply(member, done=True, text="it was resumed meanwhile"))
        elif command.order == "pause":
            text = "the round under way was ended" if await feed.broken_off() else "no round was under way"
            await queue.reply(command, CommandReply(member, done=True, text=text))
        elif command.order == "resume":
            feed.poll_soon()
            await queue.reply(command, CommandReply(member, done=True, text="its next round begins now"))
        else:
            await _handle_in_round(queue, command, feed, member)
    _log.info("command", feed=feed.name, command=command.order)


async def _handle_in_round(queue: CommandQueue, command: Command, feed: CommandedFeed, member: str) -> None:
    """Run rounds until one has carried the command out, failed, or begun with the command and left it.

    The store says whether the command was carried out. A round that begins now knows of it; if the command is still
    there afterwards (there was nothing to read), more rounds would not change that.
    """
    if not feed.busy and not await queue.is_outstanding(command):  # a round carried it out before it was found here
        result = feed.full_round_since(command.at)
        said = CommandReply(member, done=True, text=_ENDED) if result is None else _final_reply(member, result)
        await queue.reply(command, said)
        return
    if await queue.is_paused(command):
        await queue.reply(command, _put_off(member, "it is paused"))
        return
    begins = "its next round begins when the one under way has ended" if feed.busy else "its next round begins now"
    await queue.reply(command, CommandReply(member, done=False, text=begins))
    while True:
        ending, knows = feed.round_ended(), not feed.busy
        if knows:
            feed.poll_soon()
        await asyncio.wait([ending])
        if ending.cancelled():  # another process has the feed now, and handles the command
            return
        result = ending.result()
        if result.wait is not None:  # the same, though this process has not noticed yet
            return
        if knows or not result.ok or result.paused is not None or not await queue.is_outstanding(command):
            await queue.reply(command, _final_reply(member, result))
            return


def _put_off(member: str, why: str) -> CommandReply:
    return CommandReply(member, done=True, text=f"{why}; it is carried out when the feed is resumed", put_off=True)


def _final_reply(member: str, result: RoundResult) -> CommandReply:
    if result.paused is not None:
        return _put_off(member, result.paused)
    public = {name: value for name, value in result.public.items() if isinstance(value, str | int | float | None)}
    return CommandReply(member, done=True, text=_ENDED, round=public)
