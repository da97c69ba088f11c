"""The polling role: the process with a feed's lease polls it on schedule.

A feed whose lease is taken has its first round immediately, or when its siblings have had theirs. A feed whose lease is
lost or handed back has none any more here; it is handed back between rounds, never within one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from fractions import Fraction
from functools import partial
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.daemon.cluster.leases import LeaseBalancer, WorkLease
from poller.daemon.cluster.membership import Membership
from poller.daemon.command_inbox import obey
from poller.daemon.round_runner import PolledFeed, RoundObserver
from poller.daemon.schedule import SOONEST, Schedule
from poller.lifecycle import ended, first_of
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.store.commands import CommandQueue
from poller.store.lease import HeldElsewhere, keep_renewed, release_all

ROLE: Final = "poll"
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
    clock: Clock,
) -> None:
    """Poll this process's share of the feeds until ``stop`` is set, then let all leases go.

    Args:
        stop: ends it, in order.
        feeds: all that there are, each with its store and its client.
        membership: this process among the others.
        client: of the store.
        after: is informed of each round.
        prefix: of the store's keys.
        ttl: how long leases live.
        clock: the store's.
    """
    stores = [polled.store for polled in feeds]
    schedule = Schedule(clock)
    sharing = LeaseBalancer(ROLE, membership, client, ttl=ttl, watch=after.watch, clock=clock)
    lots = lots_of(feeds, schedule, sharing.rested, after, clock)
    for lot in lots:
        sharing.add(lot)
    schedule.start()
    membership.join(ROLE)
    renewing = asyncio.create_task(
        keep_renewed([store.lease for store in stores], ttl=ttl, sleep=clock.sleep), name="leases"
    )
    taking = asyncio.create_task(sharing.run(), name="shares")
    obeying = asyncio.create_task(
        obey(CommandQueue(client, prefix), lots, member=membership.name, clock=clock), name="orders"
    )
    try:
        await first_of(stop, renewing, taking, obeying)
    finally:
        _log.info("stopping")
        membership.leave(ROLE)
        await ended(taking, obeying)
        await schedule.drain()
        await ended(renewing)
        await release_all(stores)
        membership.announce_release()


def lots_of(
    feeds: Sequence[PolledFeed],
    schedule: Schedule,
    rested: Callable[[WorkLease], None],
    after: RoundObserver,
    clock: Clock,
) -> list[FeedLease]:
    """All feeds as they are shared; ``rested`` is called when one stops being busy."""
    sources: dict[str, list[PolledFeed]] = defaultdict(list)
    for polled in feeds:
        sources[polled.feed.id.partition("/")[0]].append(polled)
    lots = []
    for own in sources.values():
        siblings = SourceGroup(len(own), own[0].api.share)
        lots += [FeedLease(polled, schedule, siblings, rested=rested, after=after, clock=clock) for polled in own]
    return lots


def _second_look(result: RoundResult, interval: timedelta | None) -> timedelta | None:
    """After how long the round comes that what is held back waits for, where no turn comes as soon."""
    wanted = result.second_look
    if wanted is None or not result.ok or (interval is not None and interval <= wanted):
        return None
    return wanted


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
        """Nothing is polled yet."""
        self.name = self.feed = polled.feed.id
        self.busy = False
        self.lease = polled.store.lease.key
        self.nonce = polled.store.lease.token.encode()
        self._polled = polled
        self._schedule = schedule
        self._siblings = siblings
        self._rested = rested
        self._after = after
        self._clock = clock
        self._ours = False
        self._trigger = _FIRST
        self._round_now: asyncio.Task[RoundResult] | None = None
        self._again = False
        self._awaited: list[asyncio.Future[RoundResult]] = []

    @property
    def has_lease(self) -> bool:
        """Whether it is polled here."""
        return self._ours

    @property
    def held(self) -> bool:
        """Whether this process has the lease, as far as it knows."""
        return self._polled.store.held

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire the lease; None: this process has it."""
        return await self._polled.store.lease.acquire()

    def start(self) -> None:
        """Poll it, from now on."""
        self._ours = True
        self._trigger = _FIRST
        self._siblings.came(self._polled.feed)
        # Those that are taken in the same turn are here by then, and known to be waited for.
        asyncio.get_running_loop().call_soon(self._start)

    def lost(self) -> None:
        """Poll it no more."""
        if self._ours:
            self._ours = False
            self._schedule.remove(self.name)
            self._after.gone(self.name)
            self._hasten(self._siblings.went(self._polled.feed))
            self._settle_waiting(None)

    async def hand_back(self) -> None:
        """Poll it no more, and let the lease go."""
        self.lost()
        await self._polled.store.release()

    def _start(self) -> None:
        if self._ours:
            at_once = self._siblings.begins_at_once(self._polled.feed)
            self._schedule.add(self.name, self._round, self._polled.timing, at_once=at_once)

    async def confirmed(self) -> bool:
        """Whether this process has the lease beyond doubt: renews it and sees."""
        return self._ours and await self._polled.store.lease.renew()

    async def broken_off(self) -> bool:
        """End the round that is under way, in order; whether there was one."""
        under_way = self._round_now
        if under_way is None:
            return False
        await ended(under_way)
        return True

    def poll_soon(self) -> None:
        """Have a round begin after this moment, as soon as can be."""
        self._again = self.busy
        if not self.busy:
            self._trigger = _ASKED
            self._schedule.hasten(self.name, self._clock.now() + SOONEST)

    def round_ended(self) -> asyncio.Future[RoundResult]:
        """The next round that ends; cancelled where none does here."""
        ending: asyncio.Future[RoundResult] = asyncio.get_running_loop().create_future()
        self._awaited.append(ending)
        return ending

    async def _round(self) -> timedelta | None:
        if not self._ours:  # it was handed back after this was begun
            return None
        self.busy, self._again, result = True, False, None
        try:
            with structlog.contextvars.bound_contextvars(trigger=self._trigger):
                result = await self._unless_broken_off()
        finally:
            self.busy = False
            self._rested(self)
            self._settle_waiting(result)
        self._hasten(self._siblings.polled(self._polled.feed))
        if not self.has_lease:  # lost meanwhile: no process would correct what is reported of it now
            return None
        if result is None:  # broken off: the next one finds whether it is paused, and what the store does
            sooner: timedelta | None = timedelta()
        else:
            sooner = (
                self._after(result)
                or self._siblings.again(self._polled.feed, result)
                or _second_look(result, self._polled.timing.interval)
            )
        self._trigger = _ASKED if self._again else _AGAIN if sooner is not None else _TURN
        return timedelta() if self._again else sooner

    async def _unless_broken_off(self) -> RoundResult | None:
        due = partial(self._schedule.next_round, self.name)
        began = partial(self._after.began, self.name)
        self._round_now = asyncio.create_task(self._polled.round(due=due, began=began), name=f"round of {self.name}")
        try:
            return await self._round_now
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if this is None or this.cancelling():
                raise
            return None
        finally:
            self._round_now = None

    def _hasten(self, names: Sequence[str]) -> None:
        for name in names:
            self._schedule.hasten(name, self._clock.now())

    def _settle_waiting(self, result: RoundResult | None) -> None:
        """Tell those who wait how the round ended; None: none does."""
        awaited, self._awaited = self._awaited, []
        for one in awaited:
            if result is None:
                one.cancel()
            elif not one.done():
                one.set_result(result)


# The feeds of one source in this process. A feed that lists by qualification starts after the first round of the others
# that are polled here, which name qualifications. The process uses a part of the rate and concurrency of the source.

_FRUITLESS: Final = 12  # rounds that found nothing; each has twice the wait of the one before

Share = Callable[[Fraction], None]
"""Uses this part of a source's rate and concurrency; see :meth:`poller.source.client.ApiClient.share`."""


class SourceGroup:
    """The feeds of one source. Used within one event loop."""

    def __init__(self, count: int, share: Share) -> None:
        """``count``: how many feeds the source has, wherever they are polled."""
        self._count = count
        self._share = share
        self._here: dict[str, Feed] = {}
        self._waited_for: set[str] = set()
        self._fruitless: dict[str, int] = {}

    def came(self, feed: Feed) -> None:
        """It is polled here from now on."""
        self._here[feed.id] = feed
        self._fruitless[feed.id] = 0
        if not feed.discover:
            self._waited_for.add(feed.id)
        self._shared()

    def went(self, feed: Feed) -> tuple[str, ...]:
        """It is not polled here any more; the feeds that need not wait any longer."""
        self._here.pop(feed.id, None)
        self._shared()
        return self._no_more(feed)

    def begins_at_once(self, feed: Feed) -> bool:
        """Whether its first round need not wait for others."""
        return not (feed.discover and self._waited_for)

    def polled(self, feed: Feed) -> tuple[str, ...]:
        """It has had a round; the feeds that need not wait any longer."""
        return self._no_more(feed)

    def again(self, feed: Feed, result: RoundResult) -> timedelta | None:
        """After how long a round is worth repeating that found no qualification: others may be naming the first ones.

        None: it found some, or none were named for long.
        """
        found = not (feed.discover and result.ok and result.mode is RoundMode.BASELINE and not result.pages)
        turns = self._fruitless.get(feed.id, 0)
        if found or turns >= _FRUITLESS:
            return None
        self._fruitless[feed.id] = turns + 1
        return timedelta(seconds=2**turns)

    def _no_more(self, feed: Feed) -> tuple[str, ...]:
        if feed.id not in self._waited_for:
            return ()
        self._waited_for.discard(feed.id)
        return () if self._waited_for else tuple(name for name, one in self._here.items() if one.discover)

    def _shared(self) -> None:
        if self._here:
            self._share(Fraction(len(self._here), max(self._count, len(self._here))))
