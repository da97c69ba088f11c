"""One subscription to one feed: from the stream to the sink, until the lease is lost or somebody stops it.

Theory of operation
-------------------
One loop, and a task for each request in flight. The loop wakes the lanes that are due, starts what may be sent, reads
more when there is room, and writes down what has been settled; then it waits until something of that has changed. All
that was settled meanwhile is written at once: so the faster attempts end, the more of them one write carries.

==========================  ==================================================================================
an entry is                 and after a crash
==========================  ==================================================================================
unread, in the stream       is read by whoever comes next
fresh: held by the group    is read again, from the first on, before anything new
parked: waiting             is loaded with its due time, its attempts and the events of its record behind it
asked for once more         stands in the stream (a replay) or is parked (a dead letter that is to be redelivered)
settled                     is not seen again; sent again only if the crash came before this was written
==========================  ==================================================================================

A lane goes on only when it is *written* that its foremost event is settled. So no crash can make a sink see an event of
a record again after a later one of the same record, unless somebody asks for it: what is asked for once more is older
than what was delivered since, and takes its place before what of its record was not.

Memory is bounded: :data:`WINDOW` fresh entries, as many of a replay, :data:`MOST_PARKED` ids of parked ones; beyond
that nothing is read. A replay leaves half of these to what is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

import msgspec
import structlog

from poller.changes.events import recorded_time
from poller.delivery.attempts import (
    DeadLetter,
    Delivered,
    PauseSink,
    PauseSubscription,
    Retry,
    Step,
    next_tries,
    step_after,
)
from poller.delivery.envelope import envelope_of, record_of
from poller.delivery.kept import Delivery, Letter, before, deliveries_of, encode
from poller.delivery.lanes import Lanes, Waiting
from poller.delivery.outcome import Outcome
from poller.delivery.replaying import Replay
from poller.delivery.subscriber import Event, Subscriber
from poller.failpoints import reach
from poller.stopping import ended
from poller.store.deliveries import Settlement
from poller.store.replays import Entry, ReplaySpan

WINDOW: Final = 64
MOST_PARKED: Final = 1000
LAST_WAIT: Final = 3.0  # seconds that requests in flight may still take when told to stop
_BASELINE: Final = b',"cause":"baseline"}}'

_log = structlog.get_logger("poller.delivery")


class Deliveries(Protocol):
    """What a pair needs of the store; see :class:`poller.store.deliveries.PairStore`."""

    held: bool

    async def open(self, start: Literal["now", "earliest"]) -> None:
        """See to it that the group is there."""
        ...

    async def parked(self) -> dict[str, bytes]:
        """The deliveries that wait."""
        ...

    async def parked_besides(self, known: Container[str]) -> dict[str, bytes]:
        """Those of them that are not known."""
        ...

    async def replay(self) -> ReplaySpan | None:
        """What is to be delivered once more."""
        ...

    async def past(self, span: ReplaySpan, *, most: int) -> list[Entry]:
        """The first entries of it."""
        ...

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """Entries that the group holds."""
        ...

    async def read(self, *, most: int) -> list[Entry]:
        """Entries that nobody has read yet."""
        ...

    async def fetch(self, entries: Sequence[str]) -> dict[str, bytes]:
        """The events of entries."""
        ...

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write down what became of entries."""
        ...


class _Draft:
    """What is to be written next."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.parked: dict[str, bytes] = {}
        self.unparked: list[str] = []
        self.letters: dict[str, bytes] = {}
        self.reopen: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.acked or self.parked or self.unparked or self.reopen)


class Pair:
    """One subscription to one feed. :meth:`run` it as long as the lease is held."""

    def __init__(
        self,
        feed: str,
        subscriber: Subscriber,
        store: Deliveries,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """Join them.

        Args:
            feed: ``SOURCE/NAME``.
            subscriber: the subscription.
            store: of this pair.
            now: the wall clock, UTC.
            clock: seconds that only go forward; the loop's.
            chance: draws from [0, 1), for jitter.
        """
        self.feed = feed
        self._subscriber = subscriber
        self._store = store
        self._now = now
        self._clock = clock
        self._chance = chance
        batching = subscriber.subscription.batching
        self._window = max(WINDOW, 4 * batching.max_events, 4 * subscriber.subscription.concurrency)
        self._changed = asyncio.Event()
        self._stopping = False
        self._fresh_start()

    def _fresh_start(self) -> None:
        self._lanes: Lanes[Event] = Lanes()
        self._deliveries: dict[str, Delivery] = {}
        self._draft = _Draft()
        self._attempts: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._until: datetime | None = None
        self._unread = True
        self._last_read = ""
        self._asked = False
        self._replay = Replay()
        self._linger_until: float | None = None

    def news(self) -> None:
        """There is something in the stream that was not there before."""
        self._unread = True
        self._changed.set()

    def look(self) -> None:
        """Something may have changed; look."""
        self._changed.set()

    def reload(self) -> None:
        """Somebody has parked deliveries, or asked for a replay."""
        self._asked = True
        self._changed.set()

    def stop(self) -> None:
        """Start nothing more; :meth:`run` returns once what is in flight has ended, or soon."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver until told to stop.

        Raises:
            Fenced: the lease is another's.
            StoreError: the store does not do what it is asked.
        """
        self._fresh_start()
        self._subscriber.listen(self.look)
        try:
            await self._load()
            while not self._stopping:
                self._changed.clear()
                await self._reload()
                self._lanes.wake(self._clock())
                self._start()
                await self._read()
                await self._read_again()
                await self._settle()
                await self._wait()
            if self._attempts:
                await asyncio.wait(self._attempts, timeout=LAST_WAIT)
                await self._settle()
        finally:
            self._subscriber.leave(self.look)
            await ended(*self._attempts)

    async def _load(self) -> None:
        """What a predecessor has left: deliveries that wait, then entries that the group holds."""
        await self._store.open(self._subscriber.subscription.start)
        kept = deliveries_of(await self._store.parked())
        lanes: dict[str, list[str]] = {}
        for entry, delivery in kept.items():
            lanes.setdefault(delivery.key, []).append(entry)
        self._deliveries = kept
        for key, entries in lanes.items():
            waiting: list[Waiting[Event]] = [Waiting(entry, key, None, fresh=False) for entry in entries]
            self._lanes.restore(key, waiting, self._due(kept[entries[0]]))
        after = "0"
        while pending := await self._store.pending(after, most=self._window):
            after = pending[-1][0]
            self._take_in(pending)
        self._last_read = after if after != "0" else ""
        self._replay = self._replay.follows(await self._store.replay())

    async def _reload(self) -> None:
        if not self._asked:
            return
        self._asked = False
        known = {*self._deliveries, *self._draft.unparked, *self._replay.open}
        kept = deliveries_of(await self._store.parked_besides(known))
        self._deliveries |= kept
        for entry, delivery in kept.items():
            self._lanes.insert(Waiting(entry, delivery.key, None, fresh=False))
        self._replay = self._replay.follows(await self._store.replay())

    def _due(self, delivery: Delivery) -> float:
        """By our clock. A wall clock that was set back makes nothing wait longer than its schedule has it."""
        left = delivery.due / 1000 - self._now().timestamp()
        patience = self._subscriber.subscription.patience
        longest = max(patience.schedule) * (1 + patience.jitter)
        return self._clock() + min(max(left, 0.0), longest.total_seconds())

    async def _read(self) -> None:
        room = self._window - self._lanes.fresh
        if not self._unread or room <= 0 or self._lanes.parked >= MOST_PARKED or self._subscriber.resting:
            return
        if self._subscriber.breathing and self._lanes.fresh:
            return
        try:
            entries = await self._store.read(most=room)
        except LookupError:  # the group is gone; it is made again where all before was settled
            await self._store.open(self._subscriber.subscription.start)
            entries = await self._store.read(most=room)
        self._unread = len(entries) == room
        if entries:
            self._take_in(entries)
            self._last_read = entries[-1][0]
            self._changed.set()
            reach("delivery.read")

    async def _read_again(self) -> None:
        """The next events of a replay, where there is one, and room for them."""
        span = self._replay.wants(self._window)
        if span is None or self._lanes.parked >= MOST_PARKED // 2 or self._subscriber.resting:
            return
        if self._subscriber.breathing:
            return
        entries = await self._store.past(span, most=self._window)
        self._replay.took(entries, most=self._window)
        for entry, event in entries:
            self._take_again(entry, event)
        self._changed.set()

    def _take_again(self, entry: str, event: bytes) -> None:
        if entry in self._deliveries or self._lanes.holds_fresh(entry):
            return  # it is going to be delivered as it is
        try:
            envelope = envelope_of(event)
        except ValueError:
            return
        if self._subscriber.subscription.wanted(envelope):
            waiting = Waiting(entry, record_of(envelope), (envelope, event), fresh=False, size=len(event) + 1)
            self._replay.open[entry] = None
            self._lanes.insert(waiting)
            if self._lanes.waits(waiting.key):
                self._park(waiting, Delivery(waiting.key))

    def _take_in(self, entries: Sequence[Entry]) -> None:
        subscription = self._subscriber.subscription
        for entry, event in entries:
            try:
                envelope = envelope_of(event)
            except ValueError as error:
                self._draft.acked.append(entry)
                _log.warning(
                    "not an event", feed=self.feed, subscription=subscription.id, entry=entry, error=str(error)
                )
                continue
            if not subscription.wanted(envelope) or (subscription.start == "now" and event.endswith(_BASELINE)):
                self._draft.acked.append(entry)
                continue
            key = record_of(envelope)
            waiting = Waiting(entry, key, (envelope, event), fresh=True, size=len(event) + 1)
            self._lanes.add(waiting)
            if self._lanes.waits(key):
                self._park(waiting, Delivery(key))

    def _start(self) -> None:
        subscriber, batching = self._subscriber, self._subscriber.subscription.batching
        while self._lanes.ready and subscriber.free and self._gathered(batching.max_events):
            if subscriber.breathing and not self._lanes.due:
                return
            unit = self._lanes.take(most=batching.max_events, most_bytes=batching.max_bytes)
            subscriber.begin()
            task = asyncio.create_task(self._attempt(unit))
            self._attempts.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        self._attempts.discard(attempt)
        self._subscriber.end()
        if not attempt.cancelled() and (error := attempt.exception()):
            self._failed = error

    def _gathered(self, wanted: int) -> bool:
        """Whether to send what there is, or to wait a little for more."""
        linger = self._subscriber.subscription.batching.linger.total_seconds()
        if not linger or self._lanes.fresh + self._lanes.parked >= wanted:
            self._linger_until = None
            return True
        if self._linger_until is None:
            self._linger_until = self._clock() + linger
        if self._clock() < self._linger_until:
            return False
        self._linger_until = None
        return True

    async def _attempt(self, unit: list[Waiting[Event]]) -> None:
        events = await self._events(unit)
        if events is None:
            return
        try:
            outcome = await self._subscriber.send(events, allowed=lambda: self._store.held)
        except ValueError as error:
            self._conclude(unit, None, DeadLetter(str(error)))
            return
        if outcome is None:
            self._put_back(unit)
            return
        reach("delivery.answered")
        rest = self._conclude(unit, outcome, None)
        if rest:
            await self._subscriber.rest("sink", rest)
        await self._subscriber.learn(outcome)

    async def _events(self, unit: list[Waiting[Event]]) -> list[Event] | None:
        """Their events, fetched where need be; None where one is gone, which is settled here."""
        for waiting in unit:
            if waiting.item is None and (event := self._own_event(waiting.id)):
                waiting.item = (envelope_of(event), event)
        absent = [waiting.id for waiting in unit if waiting.item is None]
        found = await self._store.fetch(absent) if absent else {}
        for waiting in unit:
            if waiting.item is None and waiting.id in found:
                event = found[waiting.id]
                waiting.item = (envelope_of(event), event)
        lost = [waiting for waiting in unit if waiting.item is None]
        if lost:
            for waiting in lost:
                self._conclude([waiting], None, DeadLetter("the stream does not hold its event any more"))
            self._put_back([waiting for waiting in unit if waiting.item is not None])
            return None
        return [waiting.item for waiting in unit if waiting.item is not None]

    def _own_event(self, entry: str) -> bytes:
        """The event that a delivery holds itself; empty where it stands in the stream."""
        delivery = self._deliveries.get(entry)
        return bytes(delivery.event) if delivery else b""

    def _put_back(self, unit: Sequence[Waiting[Event]]) -> None:
        for key in dict.fromkeys(waiting.key for waiting in unit):
            self._lanes.reopen(key)
        self._changed.set()

    def _conclude(self, unit: Sequence[Waiting[Event]], outcome: Outcome | None, given: Step | None) -> str | None:
        """Draft what follows from an attempt for each of its events; why nothing more is to be sent, if so."""
        now = self._now()
        waits: dict[str, timedelta | None] = {}
        for waiting in unit:
            delivery = self._deliveries.get(waiting.id, Delivery(waiting.key))
            if outcome is not None:
                delivery = delivery.after(outcome, now)
            step = given or self._step_after(outcome, delivery, now)
            self._report(waiting, delivery, outcome, step)
            if isinstance(step, PauseSubscription):  # it does not depend on the event
                self._put_back(unit)
                return step.reason
            if waits.get(waiting.key) is not None:
                self._park(waiting, delivery)  # an event before it waits
            else:
                waits[waiting.key] = self._draft_step(waiting, delivery, step, now)
        for key, wait in waits.items():
            if wait is None:
                self._draft.reopen.append(key)
            else:
                self._lanes.wait(key, self._clock() + wait.total_seconds())
        self._changed.set()
        return None

    def _step_after(self, outcome: Outcome | None, delivery: Delivery, now: datetime) -> Step:
        if outcome is None:
            return Delivered()
        patience = self._subscriber.subscription.patience
        return step_after(outcome, tries=delivery.tries, patience=patience, chance=self._chance(), now=now)

    def _draft_step(self, waiting: Waiting[Event], delivery: Delivery, step: Step, now: datetime) -> timedelta | None:
        """Draft it; how long the lane waits, None where it goes on."""
        if isinstance(step, Retry | PauseSink):
            if isinstance(step, PauseSink):
                self._until = self._subscriber.pause(step.pause)
            due = int((now + step.after).timestamp() * 1000)
            self._park(waiting, msgspec.structs.replace(delivery, due=due, tries=next_tries(delivery.tries, step)))
            for behind in self._lanes.stranded(waiting.key, self._replay.open):
                self._park(behind, Delivery(waiting.key))
            return step.after
        if isinstance(step, DeadLetter):
            if step.pause:
                self._until = self._subscriber.pause(step.pause)
            event = waiting.item[1] if waiting.item else b"null"
            letter = Letter(msgspec.Raw(event), step.reason, recorded_time(now), delivery.attempts)
            self._draft.letters[waiting.id] = encode(letter)
        (self._draft.acked if waiting.fresh else self._draft.unparked).append(waiting.id)
        self._replay.settled(waiting.id)
        self._deliveries.pop(waiting.id, None)
        self._draft.parked.pop(waiting.id, None)
        self._lanes.settle(waiting)
        return None

    def _park(self, waiting: Waiting[Event], delivery: Delivery) -> None:
        if waiting.fresh:
            self._draft.acked.append(waiting.id)
        self._draft.parked[waiting.id] = encode(delivery)
        self._deliveries[waiting.id] = delivery
        self._replay.settled(waiting.id)
        self._lanes.park(waiting)

    async def _settle(self) -> None:
        """Write what is drafted; then let the lanes go on."""
        until, self._until = self._until, None
        if until is not None:
            await self._subscriber.paused(until)
        if self._failed is not None:
            raise self._failed
        replay = self._replay.place
        draft, self._draft = self._draft, _Draft()
        if not draft and replay is None:
            return
        oldest = self._lanes.oldest_fresh
        place = before(oldest) if oldest else self._last_read
        settlement = Settlement(draft.acked, draft.parked, draft.unparked, draft.letters, place, replay)
        reach("delivery.settling")
        await self._store.settle(settlement, now_ms=int(self._now().timestamp() * 1000))
        reach("delivery.settled")
        if replay is not None:
            self._replay.wrote(replay)
        for key in draft.reopen:
            self._go_on(key)
        if draft.reopen:
            self._changed.set()

    def _go_on(self, key: str) -> None:
        """Open a lane that was shut, unless what is foremost in it now has a wait of its own."""
        foremost = self._lanes.foremost(key)
        delivery = self._deliveries.get(foremost) if foremost else None
        if delivery is not None and delivery.due:
            self._lanes.wait(key, self._due(delivery))
        else:
            self._lanes.reopen(key)

    async def _wait(self) -> None:
        moments = [self._lanes.next_due, self._subscriber.next_moment, self._linger_until]
        later = min((moment for moment in moments if moment is not None), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(later):
                await self._changed.wait()

    def _report(self, waiting: Waiting[Event], delivery: Delivery, outcome: Outcome | None, step: Step) -> None:
        fields = {
            "feed": self.feed,
            "subscription": self._subscriber.subscription.id,
            "entry": waiting.id,
            "id": waiting.item[0].id if waiting.item else None,
            "attempt": delivery.tries.attempts,
            "status": outcome.status if outcome else None,
            "failure": outcome.failure if outcome else None,
            "seconds": round(outcome.seconds, 3) if outcome else None,
            "step": type(step).__name__.lower(),
        }
        if isinstance(step, Delivered):
            _log.debug("attempt", **fields)
        elif isinstance(step, DeadLetter | PauseSubscription):
            _log.error("attempt", **fields, reason=step.reason)
        else:
            _log.warning("attempt", **fields, error=outcome.text if outcome else None)


__all__ = ["MOST_PARKED", "WINDOW", "Pair"]
