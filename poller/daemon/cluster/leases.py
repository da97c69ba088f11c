"""Lease balancing: acquires and hands back leases, and notices lost ones.

:mod:`poller.daemon.cluster.assignment` decides which leases move; this module reads them and moves them. A lease is
read when the list of processes changes, when a lease of a process outside the list expires, and at long intervals, so
the cost of a quiet second does not depend on the number of leases.

**Invariants**

- The work under a lease starts after the lease was acquired, and has ended before it is released.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal, Protocol

import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.daemon.cluster.assignment import LeaseMoves, SurplusLease, moves, offers_counted
from poller.daemon.cluster.membership import MemberRank, Membership, StoreObserver
from poller.errors import Fenced, StoreError, StoreUnavailable, fault_text
from poller.lifecycle import finished
from poller.store.lease import RELEASE_SECONDS, Held, HeldElsewhere, Releasable, held_leases
from poller.telemetry.logs import LogOnce
from poller.telemetry.metrics import LeaseKind, lease_changed, leases_held

_SIDE_BY_SIDE: Final = 100
_REFUSED: Final = 5.0  # seconds before a lease is tried again that the store refuses

_log = structlog.get_logger("poller.members")


class LeaseBalancer:
    """Balances the leases of one role in one process. Used within one event loop."""

    def __init__(
        self,
        role: str,
        membership: Membership,
        client: Redis,
        *,
        ttl: timedelta,
        watch: StoreObserver,
        clock: Clock,
    ) -> None:
        """Begin without leases.

        Args:
            role: the work.
            membership: this process among the others.
            client: of the store.
            ttl: how long leases live.
            watch: is informed when the store fails.
            clock: of this process.
        """
        self._role = role
        self._kind: LeaseKind = "feed" if role == "poll" else "delivery"
        self._membership = membership
        self._ttl = ttl.total_seconds()
        self._watch = watch
        self._clock = clock
        self._lots = LeaseTable(client, ttl=self._ttl, clock=clock)
        self._wake = asyncio.Event()
        self._version = ""
        self._names: tuple[str, ...] = ()
        self._over = self._is_settled = False  # settled: time alone moves no lease
        self._handing: set[asyncio.Task[None]] = set()
        self._failure = LogOnce(_log, "leases cannot be shared", role=role)
        self._reported: tuple[int, int, int] | None = None
        membership.listen(self.wake)

    def add(self, lot: WorkLease) -> None:
        """Balance this lease, too."""
        self._lots.add(lot)
        self.wake()

    def drop(self, lot: WorkLease) -> None:
        """Stop balancing this lease; the caller ends its work."""
        if self._lots.drop(lot):
            lease_changed(self._kind, "released")
        self.wake()

    def wake(self) -> None:
        """Check the leases now: something has changed."""
        self._wake.set()

    def rested(self, lot: WorkLease) -> None:
        """A lease is not busy any more. Matters only if it is lost or to be handed back."""
        if self._over or not lot.held:
            self.wake()

    def announce_release(self) -> None:
        """Tell the other processes that a lease is free."""
        self._membership.announce_release()

    async def run(self) -> None:
        """Acquire and hand back leases until cancelled, and finish handing back then."""
        try:
            while True:
                woken = self._wake.is_set()
                self._wake.clear()
                await self._tried(anyway=woken)
                seconds = self._lots.until_look
                is_regular = seconds == LOOK_AGAIN  # no lease of another process is due before
                await self._clock.wait(self._wake, self._clock.aligned(seconds) if is_regular else seconds)
        finally:
            if self._handing:
                await finished(asyncio.gather(*self._handing, return_exceptions=True), within=RELEASE_SECONDS)

    async def _tried(self, *, anyway: bool) -> None:
        try:
            await self._turn(anyway=anyway)
            self._watch.worked(f"leases to {self._role}")
            self._failure.worked()
        except StoreUnavailable as error:
            self._watch.failed(f"leases to {self._role}", str(error))
            await self._clock.sleep(LOOK_AGAIN)
        except StoreError as error:
            self._failure.failed(str(error))
            await self._clock.sleep(LOOK_AGAIN)

    async def _turn(self, *, anyway: bool) -> None:
        """Notice what has changed, and move leases. ``anyway``: something has woken this."""
        lots, seen = self._lots, self._membership.seen
        lost = lots.notice_lost()
        for _ in range(lost):
            lease_changed(self._kind, "lost")
        among = self._membership.steady(self._role)
        if among is None:
            self._is_settled = False
            return
        if among.names != self._names:
            self._names, anyway = among.names, True
            lots.members_changed()
        if seen.version != self._version:
            self._version, anyway = seen.version, True
            lots.look_at_all()
        if self._is_settled and not (anyway or lost or lots.is_due):
            return
        self._is_settled = False
        away = await lots.refresh(seen.roles.keys())
        while True:
            now = self._moves(among)
            self._over = now.over
            if not (now.take or now.beyond or now.hand):
                break
            hand, take, beyond = ([lots[name] for name in names] for names in (now.hand, now.take, now.beyond))
            for place in hand:
                self._hand(place)
            await self._taken(take)
            await self._taken(beyond, beyond=True)
        self._report(among)
        if away is not None:
            raise away
        self._is_settled = lots.is_settled and not (self._over or self._wake.is_set())

    def _moves(self, among: MemberRank) -> LeaseMoves:
        lots = self._lots
        return moves(
            tuple(lots),
            own=lots.own,
            busy=lots.busy,
            free=lots.free,
            place=among.place,
            members=len(among.names),
            patience=self._ttl,
            extras=lots.extras(self._membership.listed(self._role)),
        )

    async def _taken(self, wanted: Sequence[LeaseState], *, beyond: bool = False) -> None:
        """Acquire the free ones of these leases.

        Raises:
            StoreUnavailable: the store is unavailable.
        """
        for first in range(0, len(wanted), _SIDE_BY_SIDE):
            some = wanted[first : first + _SIDE_BY_SIDE]
            try:
                results = await asyncio.gather(*map(self._acquire, some), return_exceptions=True)
            except asyncio.CancelledError:
                for place in some:
                    if not self._lots.knows(place):  # its work has ended meanwhile, and its release may have come first
                        self._hand(place)
                raise
            for place, result in zip(some, results, strict=True):
                if result is True:
                    self._start(place, beyond=beyond)
            for failed in (one for one in results if isinstance(one, BaseException)):
                raise failed

    async def _acquire(self, place: LeaseState) -> bool:
        # A request that has been sent is answered first: a release would overtake it, and the lease would stay taken.
        acquiring = asyncio.create_task(place.lot.acquire(), name=f"acquiring {place.lot.name}")
        try:
            held = await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            await finished(acquiring, within=RELEASE_SECONDS)
            raise
        except StoreUnavailable:
            raise
        except StoreError as error:
            _log.warning("lease cannot be acquired", lease=place.lot.lease, error=str(error))
            place.elsewhere(self._clock.monotonic() + _REFUSED)
            return False
        if held is not None:  # the next read says by which process
            place.elsewhere(self._clock.monotonic())
            return False
        return True

    def _start(self, place: LeaseState, *, beyond: bool) -> None:
        """Start the work of an acquired lease. All starts of a turn come together: feeds may wait for each other."""
        if not self._lots.knows(place):  # it was dropped meanwhile
            self._hand(place)
            return
        place.state = "own"
        if beyond:
            self._lots.taken_beyond(place)
        lease_changed(self._kind, "taken")
        place.lot.start()

    def _hand(self, place: LeaseState) -> None:
        if place.state == "own":
            lease_changed(self._kind, "released")
        self._lots.handed(place)
        place.lot.lost()  # now: a round that began before the task does would lose its lease in the middle
        task = asyncio.create_task(self._handed(place), name=f"handing back {place.lot.name}")
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _handed(self, place: LeaseState) -> None:
        """Hand back a lease; retries while the store is unavailable and the lease may last."""
        until = self._clock.monotonic() + self._ttl
        while True:
            try:
                await place.lot.hand_back()
            except StoreUnavailable:
                if self._clock.monotonic() < until:
                    await self._clock.sleep(LOOK_AGAIN)
                    continue
            except StoreError as error:
                _log.warning("lease cannot be handed back", lease=place.lot.lease, error=str(error))
            break
        place.elsewhere(self._clock.monotonic() + self._ttl)
        self.announce_release()

    def _report(self, among: MemberRank) -> None:
        now = len(self._lots.own), len(self._lots), len(among.names)
        leases_held(self._kind, now[0])
        if now != self._reported and (now[1] or self._reported):
            self._reported = now
            _log.info("share", role=self._role, own=now[0], of=now[1], processes=now[2])


# A feed consumer runs from when its lease is acquired until it is handed back, which waits for deliveries in flight. A
# store failure, a lost lease or an unforeseen error ends a run; after a pause it may be started again.

_delivery_log = structlog.get_logger("poller.delivery")
_AFTER_FAILURE: Final = 1.0
# The process that removes a subscription deletes its leases. The process that delivers it notices when it next reads
# the registry, and must not have started the consumer again by then.
_AFTER_LOSS: Final = 2.0
_AFTER_FAULT: Final = 5.0


class ConsumerLease(Releasable, Protocol):
    """The feed consumer's lease; see :class:`poller.store.lease.Lease`."""

    key: str
    token: str
    claimed: bool

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire the lease; None: this process has it."""
        ...


class LeasedWork(Protocol):
    """The work under a lease; see :class:`poller.delivery.feed_consumer.FeedConsumer`."""

    feed: str

    def ready(self) -> None:
        """Allow another run after a stop."""
        ...

    async def run(self) -> None:
        """Work until :meth:`stop`."""
        ...

    def stop(self) -> None:
        """End the work soon."""
        ...


class LeaseKeeper:
    """Keeps one feed consumer running while its lease is held; see :class:`WorkLease`.

    Attributes:
        error: why the feed consumer does not run, in words: the store refuses what it needs, or the program has a
            fault; None: it runs.
    """

    def __init__(
        self,
        pair: LeasedWork,
        lease: ConsumerLease,
        *,
        subscription: str,
        watch: StoreObserver,
        changed: Callable[[], None],
        let_go: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Hold no lease yet.

        Args:
            pair: the feed consumer.
            lease: under which it runs.
            subscription: its id.
            watch: is informed when the store fails.
            changed: is called when the feed consumer has started or ended, so that its lease may move.
            let_go: is called when the lease was released at the end.
            clock: of this process.
        """
        self.name, self.feed = f"{subscription} {pair.feed}", pair.feed
        self.lease = lease.key
        self.nonce = lease.token.encode()
        self._pair = pair
        self.error: str | None = None
        self._held = lease
        self._watch = watch
        self._changed = changed
        self._let_go = let_go
        self._clock = clock
        self._stop = asyncio.Event()
        self._turn = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pausing = self._again = False
        self._log = _delivery_log.bind(feed=pair.feed, subscription=subscription)
        self._failure = LogOnce(self._log, "not delivering")

    @property
    def held(self) -> bool:
        """Whether this process has the lease, as far as it knows."""
        return self._held.held

    @property
    def is_active(self) -> bool:
        """Whether the feed consumer runs here, or is about to start or end."""
        return self._turn.is_set() or not self._idle.is_set()

    @property
    def busy(self) -> bool:
        """Whether the lease can neither be acquired nor handed back now: its work failed a moment ago."""
        return self._pausing or not (self._idle.is_set() or self._held.held)

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire the lease; None: this process has it."""
        try:
            held = await self._held.acquire()
        except StoreUnavailable:
            raise
        except StoreError as error:
            self.error = str(error)
            raise
        self.error = None
        self._watch.worked(self.name)
        return held

    def start(self) -> None:
        """Deliver from now on."""
        self._again = False
        self._turn.set()
        self._changed()

    def lost(self) -> None:
        """Stop delivering; requests in flight may end."""
        if not self._stop.is_set():
            self._turn.clear()
        self._pair.stop()
        if self._idle.is_set():
            self._forget_failure()

    def _forget_failure(self) -> None:
        """What failed here is no concern of this process any more: another one has the lease, or acquires it."""
        self.error = None
        self._watch.worked(self.name)

    async def hand_back(self) -> None:
        """Stop delivering, and release the lease when the requests in flight have ended, or soon."""
        self.lost()
        await self._idle.wait()
        self.error = None
        await self._held.release()

    def stop(self) -> None:
        """Make :meth:`run` return when the requests in flight have ended, or soon."""
        self._stop.set()
        self._turn.set()
        self._pair.stop()

    async def run(self) -> None:
        """Deliver whenever the lease is held, until :meth:`stop`; then release it."""
        try:
            while True:
                await self._turn.wait()
                if self._stop.is_set():
                    return
                if self._turn.is_set():
                    await self._run()
        finally:
            self._watch.worked(self.name)
            if self._held.claimed:
                with suppress(StoreError, TimeoutError):  # the lease expires by itself
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await self._held.release()
                self._let_go()

    async def _run(self) -> None:
        self._pair.ready()
        self._idle.clear()
        try:
            wait = await self._ended()
        finally:
            self._idle.set()
        if wait:
            self._pausing = True
            await self._clock.wait(self._stop, wait)
            self._pausing = False
            if not self._held.held and not self._stop.is_set():
                self._turn.clear()
        if not self._turn.is_set():
            self._forget_failure()
        self._changed()

    async def _ended(self) -> float:
        """Run the feed consumer once. Returns the seconds to wait before it may run again."""
        try:
            if self._again and await self.acquire() is not None:  # the lease was lost meanwhile, not by the failure
                return _AFTER_FAILURE
            self._again = True
            await asyncio.create_task(self._pair.run())  # or each step of its work would pass through all callers
        except Fenced as error:
            (self._log.debug if self._watch.away else self._log.warning)("lease lost", error=str(error))
            return _AFTER_LOSS
        except StoreUnavailable as error:
            self._watch.failed(self.name, str(error))
            return _AFTER_FAILURE
        except StoreError as error:
            self.error = str(error)
            self._failure.failed(self.error)
            return _AFTER_FAILURE
        except Exception as error:  # noqa: BLE001 -- a task ends here: a fault of the program costs a pause here, and nothing elsewhere
            self.error = fault_text(error)
            self._log.exception("not delivering")
            return _AFTER_FAULT
        self._failure.worked()
        self._again = False
        return 0.0


# What this process knows of each lease: *own*; *leaving*, while its work ends; *free*; or *foreign*. A foreign lease of
# a listed process is read when the list changes and otherwise rarely; any other one when it expires.

LOOK_AGAIN: Final = 1.0
"""Seconds between checks of this process's leases."""

_AFTER: Final = 0.02  # seconds; an expiring lease is read this much later
_SWEEP: Final = 3  # terms after which every lease is read
_ELSEWHERE: Final = frozenset({"free", "foreign"})


class WorkLease(Protocol):
    """A lease and the work under it."""

    name: str
    feed: str

    @property
    def lease(self) -> str:
        """Its key."""
        ...

    @property
    def nonce(self) -> bytes:
        """The lease's value while this process has it."""
        ...

    @property
    def held(self) -> bool:
        """Whether this process has it, as far as it knows."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the lease can neither be handed back nor acquired now."""
        ...

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire the lease; None: this process has it."""
        ...

    def start(self) -> None:
        """Start the work: the lease was acquired."""
        ...

    def lost(self) -> None:
        """Stop the work: the lease was lost, or will be handed back. May be called again."""
        ...

    async def hand_back(self) -> None:
        """End the work in order and release the lease. May be called again."""
        ...


class LeaseState:
    """The last known state of a lease."""

    def __init__(self, lot: WorkLease, now: float) -> None:
        """Begin with an unknown state; the lease is due to be read."""
        self.lot = lot
        self.state: Literal["own", "leaving", "free", "foreign"] = "foreign"
        self.free_since = now
        self.look_at = now
        self.extra_since: float | None = None
        self.offers = 0
        self.offered_at = -math.inf

    def elsewhere(self, look_at: float) -> None:
        """Another process has the lease; read it again at ``look_at``."""
        self.state, self.look_at = "foreign", look_at
        self.extra_since = None


class LeaseTable:
    """The states of all leases of one role. Used within one event loop."""

    def __init__(self, client: Redis, *, ttl: float, clock: Clock) -> None:
        """Begin empty, with the store's client, the lifetime of leases in seconds, and the process's clock."""
        self._client = client
        self._ttl = ttl
        self._clock = clock
        self._places: dict[str, LeaseState] = {}

    def __len__(self) -> int:
        """The number of leases of all processes."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._places)

    def __getitem__(self, name: str) -> LeaseState:
        """The state of one lease."""
        return self._places[name]

    def add(self, lot: WorkLease) -> None:
        """Add a lease."""
        self._places[lot.name] = LeaseState(lot, self._clock.monotonic())

    def drop(self, lot: WorkLease) -> bool:
        """Remove a lease. True: this process had it."""
        place = self._places.pop(lot.name, None)
        return place is not None and place.state == "own"

    def knows(self, place: LeaseState) -> bool:
        """Whether the lease is still in the table."""
        return self._places.get(place.lot.name) is place

    @property
    def own(self) -> set[str]:
        """The leases that this process has."""
        return {name for name, place in self._places.items() if place.state == "own"}

    @property
    def busy(self) -> set[str]:
        """The leases that can neither be acquired nor handed back now."""
        return {name for name, place in self._places.items() if place.lot.busy}

    @property
    def free(self) -> dict[str, float]:
        """The free leases, with the seconds since this is known."""
        now = self._clock.monotonic()
        return {
            name: now - place.free_since
            for name, place in self._places.items()
            if place.state == "free" and not place.lot.busy
        }

    @property
    def until_look(self) -> float:
        """Seconds until the next lease is due to be read, at most :data:`LOOK_AGAIN`."""
        now = self._clock.monotonic()
        looks = (place.look_at - now for place in self._places.values() if place.state in _ELSEWHERE)
        return max(min((LOOK_AGAIN, *looks)), _AFTER)

    @property
    def is_due(self) -> bool:
        """Whether a lease is due to be read."""
        now = self._clock.monotonic()
        return any(place.look_at <= now for place in self._places.values() if place.state in _ELSEWHERE)

    @property
    def is_settled(self) -> bool:
        """Whether time alone changes nothing: patience for a free lease would end, and an extra grow old."""
        return not any(
            place.state in {"free", "leaving"} or place.extra_since is not None for place in self._places.values()
        )

    def look_at_all(self) -> None:
        """Make all leases of other processes due: something has changed."""
        for place in self._places.values():
            place.look_at = self._clock.monotonic()

    def extras(self, listed: Collection[str] | None) -> dict[str, SurplusLease]:
        """This process's extras. ``listed``: the feeds that other processes list; None: any."""
        now = self._clock.monotonic()
        return {
            name: SurplusLease(now - place.extra_since, place.offers, listed is None or place.lot.feed in listed)
            for name, place in self._places.items()
            if place.state == "own" and place.extra_since is not None
        }

    def taken_beyond(self, place: LeaseState) -> None:
        """Mark a lease as an extra."""
        now = self._clock.monotonic()
        place.extra_since = now
        place.offers = offers_counted(place.offers, now - place.offered_at, self._ttl)

    def handed(self, place: LeaseState) -> None:
        """Mark a lease as being handed back."""
        if place.extra_since is not None:
            place.offers, place.offered_at = place.offers + 1, self._clock.monotonic()
        place.state, place.extra_since = "leaving", None

    def members_changed(self) -> None:
        """The list of processes has changed: restart the patience for free leases; no lease is an extra."""
        for place in self._places.values():
            place.free_since = self._clock.monotonic()
            place.extra_since, place.offers = None, 0

    def notice_lost(self) -> int:
        """Stop the work of lost leases. Returns their number."""
        lost = 0
        for place in self._places.values():
            if place.state == "own" and not place.lot.held and not place.lot.busy:
                place.lot.lost()
                place.elsewhere(self._clock.monotonic())
                lost += 1
        return lost

    async def refresh(self, known: Collection[str]) -> StoreUnavailable | None:
        """Read the leases that are due. ``known``: the live processes.

        Returns:
            The error of a server of a cluster that is away: the leases there stay as they are. None: all were read.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        now = self._clock.monotonic()
        due = [place for place in self._places.values() if place.state in _ELSEWHERE and place.look_at <= now]
        found = await held_leases(self._client, [place.lot.lease for place in due], known=known)
        away: StoreUnavailable | None = None
        for place, held in zip(due, found, strict=True):
            if place.state in _ELSEWHERE and isinstance(held, Held):
                self._seen(place, held, known)
            elif isinstance(held, StoreUnavailable):
                away = held
                if place.state in _ELSEWHERE:
                    place.elsewhere(self._clock.monotonic() + LOOK_AGAIN)
        return away

    def _seen(self, place: LeaseState, held: Held, known: Collection[str]) -> None:
        now = self._clock.monotonic()
        if held.value in (None, place.lot.nonce) or held.is_overlong:  # this process has it, though the reply was lost
            place.free_since = place.free_since if place.state == "free" else now
            place.state = "free"
            patient_until = place.free_since + self._ttl
            place.look_at = patient_until if patient_until > now else now + self._ttl
            return
        lasts = _SWEEP * self._ttl if held.owner in known or held.seconds is None else held.seconds + _AFTER
        place.elsewhere(now + lasts)
