"""Delivery tracker: unacknowledged deliveries of one feed consumer, and what to write next.

Entries come in, attempts end; each of that changes the key queues and adds to the next :class:`AckBatch`. A queue whose
first entry was settled stays shut until that batch is written.

==========================  ==================================================================================
an entry is                 and after a crash
==========================  ==================================================================================
unread, in the stream       is read by the next owner of the lease
fresh: held by the group    is read again, from the first on, before anything new
scheduled for a retry       is loaded with its due time, its attempts and the events of its record behind it
to be delivered again       stands in the stream (a replay) or is scheduled (a redelivery)
settled                     is not seen again; sent again only if the crash came before this was written
==========================  ==================================================================================

**Invariants**

* A queue goes on only when it is *written* that its first event is settled. So no crash can make a sink see an event of
  a record again after a later one of the same record, but for redeliveries and replays, which are older and take their
  place before what of their record was not delivered.
* What was scheduled or settled and is read once more, because the group was lost and made again, is not sent again.
* A wall clock that was set back makes nothing wait longer than was scheduled.
* The position of a replay is never beyond an entry that is neither settled nor scheduled. It is read some entries at a
  time and stored as one position, so after a crash at most what was being sent comes twice.
* Pure: moments and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.clock import rfc3339
from poller.delivery import retry as attempts
from poller.delivery.cloudevent import Event, envelope_of, record_of
from poller.delivery.delivery_codec import Attempt, Delivery, StoredDeadLetter, encode
from poller.delivery.filters import Subscription, wants
from poller.delivery.key_queues import KeyQueues, QueuedEntry
from poller.delivery.retry import (
    PAUSE_FLOOR,
    DeadLetter,
    PauseSink,
    PauseSubscription,
    Retry,
    RetryPolicy,
    Step,
    next_tries,
    step_after,
)
from poller.delivery.sinks.base import Outcome
from poller.store.consumer_state import Entry, Settlement
from poller.store.replay import ReplayedEntry, ReplayPosition, ReplaySpan
from poller.store.stream import EntryId, before

GONE: Final = "the stream does not hold its event any more: retention.max_bytes removed it, or another program"


class DeliveryTracker:
    """The deliveries of one subscription from one feed."""

    def __init__(self, subscription: Subscription) -> None:
        """Nothing is known yet."""
        self.queues: KeyQueues[Event] = KeyQueues()
        self.last_read = ""
        self.replay = ReplayProgress()
        self._subscription = subscription
        self._parked = ScheduledRetries(subscription.patience)
        self._restored: set[str] = set()  # read by a predecessor, if not by us; settled since or not
        self._batch = AckBatch()

    def restore(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> None:
        """What is parked, in the order of the stream."""
        queues: dict[str, list[QueuedEntry[Event]]] = {}
        for waiting in self._parked.join(deliveries, now=now, clock=clock):
            queues.setdefault(waiting.key, []).append(waiting)
        for key, queue in queues.items():
            due = self._parked.due(queue[0].id)
            self.queues.restore(key, queue, clock if due is None else due)
        self._restored = set(deliveries)

    @property
    def known(self) -> AbstractSet[str]:
        """Entries that are scheduled, or were at the last write, and loaded replay entries."""
        return {*self._parked, *self._batch.unparked, *self.replay.open}

    def join(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> None:
        """Add deliveries that another process has scheduled meanwhile; none of them is known."""
        for waiting in self._parked.join(deliveries, now=now, clock=clock):
            self.queues.insert(waiting)

    def resume(self, upto: int, *, clock: float) -> None:
        """Make due now what waits for the end of a pause of the sink.

        Only pauses that began until ``upto`` (milliseconds) count.
        """
        resumed = set(self._parked.resumed(upto))
        for entry in resumed:
            self._parked.wait(entry, clock)
        self.queues.hasten(resumed, clock)

    def take_again(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Entries of a replay, in the order of the stream."""
        for entry, event in entries:
            if entry in self._parked or self.queues.holds(entry):
                continue  # it is going to be delivered as it is
            try:
                envelope = envelope_of(event)
            except ValueError:
                continue
            if self._subscription.wanted(envelope):
                self._take_one_again(
                    QueuedEntry(entry, record_of(envelope), (envelope, event), fresh=False, size=len(event) + 1)
                )

    def _take_one_again(self, waiting: QueuedEntry[Event]) -> None:
        self.replay.open[waiting.id] = None
        self.queues.insert(waiting)
        foremost = self.queues.foremost(waiting.key)
        if foremost in self._parked:  # it has been tried, or stands behind one that was
            self._park(waiting, Delivery(waiting.key))

    def repeat_of(self, waiting: QueuedEntry[Event]) -> str:
        """Which redelivery or replay of its event this is; empty for the first delivery."""
        return self._parked.of(waiting).repeat or self.replay.repeat_of(waiting.id)

    def event_of(self, entry: str) -> bytes:
        """The event that a delivery holds itself; empty where it stands in the stream."""
        return self._parked.event_of(entry)

    def take_in(
        self, entries: Sequence[Entry], *, now: datetime, known_to: str = "", reset_entry: str | None = None
    ) -> Sequence[tuple[str, str]]:
        """Entries that were read, in the order of the stream; those that cannot be delivered, with the reason.

        Args:
            entries: what was read.
            now: the store's clock, UTC.
            known_to: entries up to this one were read before.
            reset_entry: the last entry before the reset of the feed; baselines after it repeat earlier events.
        """
        refused = []
        known = EntryId.parse(known_to) if known_to else (-1, -1)
        for entry, event in entries:
            if not self.queues.holds(entry):
                if entry in self._parked or entry in self._restored or EntryId.parse(entry) <= known:
                    self._batch.acked.append(entry)
                elif reason := self._take_one(entry, event, now, reset_entry):
                    refused.append((entry, reason))
        if entries:
            self.last_read = max(self.last_read or entries[-1][0], entries[-1][0], key=EntryId.parse)
        return refused

    def _take_one(self, entry: str, event: bytes | None, now: datetime, reset_entry: str | None) -> str | None:
        if event is None:
            self._batch.give_up(entry, b"null", GONE, now=now)
            self._batch.acked.append(entry)
            return GONE
        try:
            envelope = envelope_of(event)
        except ValueError as error:
            self._batch.acked.append(entry)
            return str(error)
        key = record_of(envelope)
        last = self.queues.last(key)
        behind = last is None or EntryId.parse(last) < EntryId.parse(
            entry
        )  # else it was settled before what waits in its queue
        if not behind or not wants(self._subscription, envelope, entry, event, reset_entry=reset_entry):
            self._batch.acked.append(entry)
            return None
        tried = self.queues.tried(key)
        waiting = QueuedEntry(entry, key, (envelope, event), fresh=True, size=len(event) + 1)  # and a comma
        self.queues.add(waiting)
        if tried:
            self._park(waiting, Delivery(key))
        return None

    def conclude(
        self,
        unit: Sequence[QueuedEntry[Event]],
        outcome: Outcome,
        *,
        now: datetime,
        clock: float,
        chance: Callable[[], float],
        busy: timedelta = PAUSE_FLOOR,
    ) -> AttemptResult:
        """What follows from an attempt at these, which were taken together."""
        reports: list[AttemptReport] = []
        pauses: list[timedelta] = []
        waits: dict[str, timedelta | None] = {}
        patience = self._subscription.patience
        for waiting, ended in zip(unit, outcome.of_each(len(unit)), strict=True):
            known = self._parked.of(waiting)
            step = step_after(ended, tries=known.tries, patience=patience, chance=chance(), busy=busy)
            reports.append(self._report(waiting, known, step))
            if isinstance(step, PauseSubscription | attempts.Withhold):  # it does not depend on the event
                self.put_back(unit)
                return AttemptResult(reports, rest=step.reason if isinstance(step, PauseSubscription) else None)
            # Nothing is kept of what was delivered, and what was not sent was no attempt.
            delivery = known if ended.is_delivered or not ended.was_sent else known.after(ended, now)
            if waits.get(waiting.key) is not None:
                self._park(waiting, delivery)  # an event before it waits
                continue
            if isinstance(step, PauseSink | DeadLetter):
                pauses.append(step.pause)
            waits[waiting.key] = self._draft_step(waiting, delivery, step, now)
        for key, wait in waits.items():
            if wait is None:
                self._batch.reopen.append(key)
                self._batch.urgent = self._batch.urgent or self.queues.last(key) is not None
            else:
                self.queues.wait(key, clock + wait.total_seconds())
        for waiting in unit:
            if wait := waits.get(waiting.key):
                self._parked.wait(waiting.id, clock + wait.total_seconds())
        pause = max(pauses, default=timedelta(0))
        return AttemptResult(reports, pause or None)

    def give_up(self, unit: Sequence[QueuedEntry[Event]], reason: str, *, now: datetime) -> AttemptResult:
        """These cannot be sent at all."""
        reports = []
        for waiting in unit:
            known = self._parked.of(waiting)
            reports.append(self._report(waiting, known, DeadLetter(reason)))
            self._draft_step(waiting, known, DeadLetter(reason), now)
        self._batch.reopen += dict.fromkeys(waiting.key for waiting in unit)
        return AttemptResult(reports)

    def put_back(self, unit: Sequence[QueuedEntry[Event]]) -> None:
        """These were not sent; their queues are open again."""
        for waiting in unit:
            if waiting.id in self._parked:  # what waits is not kept here, however many of them were fetched in vain
                waiting.item = None
        for key in dict.fromkeys(waiting.key for waiting in unit):
            self.queues.reopen(key)

    def postpone(self, unit: Sequence[QueuedEntry[Event]], until: float) -> None:
        """These were not sent; their queues are open again then."""
        for key in dict.fromkeys(waiting.key for waiting in unit):
            self.queues.wait(key, until)

    @property
    def patient(self) -> bool:
        """Whether there is something to be written, and nothing waits for that."""
        return self._batch.patient

    def next_batch(self) -> AckBatch | None:
        """What is to be written now, if there is something; say when it is: :meth:`written`."""
        draft, self._batch = self._batch, AckBatch()
        draft.replay = self.replay.place
        return draft or None

    @property
    def place(self) -> str:
        """Entry up to which all are settled or scheduled once the current batch is written."""
        oldest = self.queues.oldest_fresh
        return before(oldest) if oldest else self.last_read

    def written(self, draft: AckBatch) -> bool:
        """It is; whether a queue goes on."""
        if draft.replay is not None:
            self.replay.wrote(draft.replay)
        for key in draft.reopen:
            self._go_on(key)
        return bool(draft.reopen)

    def _go_on(self, key: str) -> None:
        """Open a shut queue, unless its first entry now has a wait of its own."""
        due = self._parked.due(self.queues.foremost(key))
        if due is not None:
            self.queues.wait(key, due)
        else:
            self.queues.reopen(key)

    def _draft_step(
        self, waiting: QueuedEntry[Event], delivery: Delivery, step: Step, now: datetime
    ) -> timedelta | None:
        """Draft it; how long the queue waits, None where it goes on."""
        if isinstance(step, Retry | PauseSink):
            due = int((now + step.after).timestamp() * 1000)
            paused = int(now.timestamp() * 1000) if isinstance(step, PauseSink) else 0
            tries = next_tries(delivery.tries, step)
            self._park(waiting, msgspec.structs.replace(delivery, due=due, tries=tries, paused=paused))
            for behind in self.queues.stranded(waiting.key, self.replay.open):
                self._park(behind, Delivery(waiting.key))
            return step.after
        if isinstance(step, DeadLetter):
            event = waiting.item[1] if waiting.item else b"null"
            repeat = self.repeat_of(waiting)
            self._batch.give_up(waiting.id, event, step.reason, now=now, attempts=delivery.attempts, repeat=repeat)
        (self._batch.acked if waiting.fresh else self._batch.unparked).append(waiting.id)
        self._parked.drop(waiting.id)
        self.replay.settled(waiting.id)
        self._batch.parked.pop(waiting.id, None)
        self.queues.settle(waiting)
        return None

    def _park(self, waiting: QueuedEntry[Event], delivery: Delivery) -> None:
        if waiting.fresh:
            self._batch.acked.append(waiting.id)
        again = delivery.again or waiting.id in self.replay.open
        repeat = delivery.repeat or self.replay.repeat_of(waiting.id)
        delivery = msgspec.structs.replace(delivery, size=waiting.size, again=again, repeat=repeat)
        self._batch.parked[waiting.id] = encode(delivery)
        self._parked.put(waiting.id, delivery)
        self.replay.settled(waiting.id)
        waiting.alone = alone(delivery)
        self.queues.park(waiting)

    def _report(self, waiting: QueuedEntry[Event], delivery: Delivery, step: Step) -> AttemptReport:
        if waiting.item is None:
            return AttemptReport(waiting.id, None, delivery.tries.attempts, step)
        envelope, event = waiting.item
        again = delivery.again or delivery.event or waiting.id in self.replay.open
        recorded = None if again else envelope.recordedtime
        return AttemptReport(waiting.id, envelope.id, delivery.tries.attempts, step, recorded, len(event))


class AttemptReport(msgspec.Struct, frozen=True):
    """The step that follows for one event, for the log.

    Attributes:
        entry: its place in the stream.
        event: its id; None where that is not known.
        attempt: which one it was, from 1.
        step: what follows.
        recorded: when the event was published, as it says; None where that is not known, or where it is delivered once
            more and was published long ago.
        size: bytes of the event; 0 where it is not here.
    """

    entry: str
    event: str | None
    attempt: int
    step: Step
    recorded: str | None = None
    size: int = 0


class AttemptResult(msgspec.Struct, frozen=True):
    """What follows from one request.

    Attributes:
        reports: the reports, one for each of its events.
        pause: for how long the sink is to be sent nothing; None: it may be.
        rest: why the subscription gets nothing more at all; None: it does.
    """

    reports: Sequence[AttemptReport]
    pause: timedelta | None = None
    rest: str | None = None


class AckBatch:
    """What is to be written next, and the queues that go on when it is."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.parked: dict[str, bytes] = {}
        self.unparked: list[str] = []
        self.letters: dict[str, bytes] = {}
        self.reopen: list[str] = []
        self.replay: ReplayPosition | None = None
        self.urgent = False  # something in those queues waits for it

    def __bool__(self) -> bool:
        return bool(self.acked or self.parked or self.unparked or self.reopen or self.replay)

    def give_up(
        self,
        entry: str,
        event: bytes,
        reason: str,
        *,
        now: datetime,
        attempts: tuple[Attempt, ...] = (),
        repeat: str = "",
    ) -> None:
        """It becomes a dead letter."""
        letter = StoredDeadLetter(msgspec.Raw(event), reason, rfc3339(now), attempts, repeat=repeat)
        self.letters[entry] = encode(letter)

    @property
    def patient(self) -> bool:
        """Whether nothing but the crash of this process makes it matter when it is written."""
        return bool(self.acked) and not (self.parked or self.unparked or self.letters or self.urgent)

    def settlement(self, place: str) -> Settlement:
        """The batch as the store takes it; settles or schedules every entry up to ``place``."""
        return Settlement(self.acked, self.parked, self.unparked, self.letters, place, self.replay)


class ScheduledRetries:
    """Those of one subscription from one feed, by entry id."""

    def __init__(self, patience: RetryPolicy) -> None:
        """None is known; take how often an event is tried, and with which waits."""
        self._patience = patience
        self._deliveries: dict[str, Delivery] = {}
        self._due: dict[str, float] = {}

    def __contains__(self, entry: str | None) -> bool:
        return entry in self._deliveries

    def __iter__(self) -> Iterator[str]:
        return iter(self._deliveries)

    def join(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> Iterator[QueuedEntry[Event]]:
        """Know these too, which the store holds; as they stand in their queues, in the same order.

        Args:
            deliveries: by entry id.
            now: the wall clock, UTC.
            clock: seconds that only go forward.
        """
        self._deliveries |= deliveries
        for entry, one in deliveries.items():
            if one.due:
                longest = self._patience.longest(one.tries).total_seconds()
                self._due[entry] = clock + min(max(one.due / 1000 - now.timestamp(), 0.0), longest)
        return (
            QueuedEntry(entry, one.key, None, fresh=False, size=one.size, alone=alone(one))
            for entry, one in deliveries.items()
        )

    def of(self, waiting: QueuedEntry[Event]) -> Delivery:
        """How this one was tried until now."""
        return self._deliveries.get(waiting.id) or Delivery(waiting.key)

    def event_of(self, entry: str) -> bytes:
        """The event that a delivery holds itself; empty where it stands in the stream."""
        one = self._deliveries.get(entry)
        return bytes(one.event) if one else b""

    def due(self, entry: str | None) -> float | None:
        """When this entry may be tried, by the local clock; None without a wait."""
        return self._due.get(entry) if entry else None

    def resumed(self, upto: int) -> list[str]:
        """Those that wait for the end of a pause that began until then, in milliseconds of the store's clock."""
        return [entry for entry, one in self._deliveries.items() if 0 < one.paused <= upto and entry in self._due]

    def put(self, entry: str, delivery: Delivery) -> None:
        """It is parked like this from now on."""
        self._deliveries[entry] = delivery

    def wait(self, entry: str, until: float) -> None:
        """It is due then, if it has a wait of its own."""
        if self._deliveries[entry].due:
            self._due[entry] = until

    def drop(self, entry: str) -> None:
        """It is settled."""
        self._deliveries.pop(entry, None)
        self._due.pop(entry, None)


def alone(delivery: Delivery) -> bool:
    """Whether it is sent by itself. A refusal that is about the sink's load says nothing against the event."""
    return delivery.tries.counted > 1


class ReplayProgress:
    """The replay that a feed consumer works off, if there is one."""

    def __init__(self, span: ReplaySpan | None = None) -> None:
        """Take what is kept of it; ``open`` are the entries that were read and are not done with, in their order."""
        self.open: dict[str, None] = {}
        self._span = span
        self._read = self._written = span.after if span else ""
        self._exhausted = span is None

    def follows(self, span: ReplaySpan | None) -> ReplayProgress:
        """This one, where that is what is kept of it; else the one that has taken its place."""
        kept, known = (one.id if one else None for one in (span, self._span))
        return self if kept == known else ReplayProgress(span)

    def wants(self, most: int) -> ReplaySpan | None:
        """What of it is to be read next, if there are fewer than ``most`` that are not done with."""
        if self._span is None or self._exhausted or len(self.open) >= most:
            return None
        return ReplaySpan(self._span.id, self._read, self._span.to)

    def took(self, entries: Sequence[ReplayedEntry], *, most: int) -> None:
        """These were read, where ``most`` were asked for."""
        self._exhausted = len(entries) < most
        if entries:
            self._read = entries[-1][0]

    def repeat_of(self, entry_id: str) -> str:
        """What tells the delivery of an entry of this replay from its other deliveries; empty where it is none."""
        return self._span.id if self._span is not None and entry_id in self.open else ""

    def settled(self, entry_id: str) -> None:
        """This entry is delivered, given up, or parked."""
        self.open.pop(entry_id, None)

    @property
    def place(self) -> ReplayPosition | None:
        """What is to be written of it; None where that is as it was."""
        if self._span is None:
            return None
        if self._exhausted and not self.open:
            return ReplayPosition(self._span.id, "")
        oldest = next(iter(self.open), None)
        after = before(oldest) if oldest else self._read
        return None if after == self._written else ReplayPosition(self._span.id, after)

    def wrote(self, place: ReplayPosition) -> None:
        """This place was written."""
        if self._span is None or place.id != self._span.id:
            return
        self._written = place.after
        if not place.after:
            self._span = None
