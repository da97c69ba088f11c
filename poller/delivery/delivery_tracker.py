"""Delivery tracker: unacknowledged deliveries of one feed consumer, and what to write next.

New entries and ended attempts change the key queues and add to the next :class:`AckBatch`. A queue whose first entry
was settled stays shut until that batch is written.

==========================  ==================================================================================
state of an entry           after a crash
==========================  ==================================================================================
unread, in the stream       is read by the next owner of the lease
fresh: held by the group    is read again, from the first on, before anything new
scheduled for a retry       is loaded with its due time, its attempts and the events of its record behind it
to be delivered again       stands in the stream (a replay) or is scheduled (a redelivery)
backfilled, in a queue      its record is read again, as it is then (:mod:`poller.delivery.backfill`)
settled                     is not seen again; sent again only if the crash came before this was written
==========================  ==================================================================================

**Invariants**

* A queue continues only when the settlement of its first event is *written*. So after a crash, a sink never gets an
  event of a record again after a later one, except by redeliveries and replays, which come before the undelivered
  events of their record.
* A scheduled or settled entry that is read again, because the group was lost and created again, is not sent again.
* If the wall clock is set back, no retry waits longer than scheduled.
* An event that reaches a queue is what is sent of it: ``fields`` and ``thin`` are applied when it is read, so nothing
  that comes after (sizes, requests, logs, dead letters) can have the rest.
* The position of a replay is never beyond an entry that is neither settled nor scheduled. After a crash, at most the
  entries that were being sent are sent twice.
* An erased record's deliveries are settled: none is sent once the erasure is known, and none is scheduled or given up
  after it, whatever becomes of a request that is in flight then.
* Pure: moments and random numbers are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.clock import rfc3339
from poller.delivery.backfill import BackfillChunk, BackfillProgress
from poller.delivery.cloudevent import Envelope, Event, envelope_of, record_of
from poller.delivery.delivery_codec import Attempt, Delivery, StoredDeadLetter, encode
from poller.delivery.filters import Subscription, wants
from poller.delivery.key_queues import KeyQueues, QueuedEntry
from poller.delivery.projection import Projection
from poller.delivery.retry import (
    PAUSE_FLOOR,
    DeadLetter,
    Delivered,
    PauseSink,
    PauseSubscription,
    Retry,
    RetryPolicy,
    Step,
    Withhold,
    next_tries,
    step_after,
)
from poller.delivery.sinks.base import Outcome
from poller.store.backfill import BackfillPosition, DeliveryId, is_backfilled
from poller.store.consumer_state import Entry, Settlement
from poller.store.replay import ReplayedEntry, ReplayPosition, ReplaySpan
from poller.store.stream import EARLIEST, EntryId, before

GONE: Final = (
    "the stream does not hold its event any more: retention.max_bytes or another program removed it, or the store has "
    "lost it"
)


# Tuples: the union of two types would be made again for each delivery.
_CONCERN_THE_SINK: Final = (PauseSubscription, Withhold)
_BRING_A_PAUSE: Final = (PauseSink, DeadLetter)
_WAIT: Final = (Retry, PauseSink)
_DELIVERED: Final = Delivered()


class DeliveryTracker:
    """The unacknowledged deliveries of one feed consumer."""

    def __init__(self, subscription: Subscription, projection: Projection | None = None) -> None:
        """Begin without entries.

        Args:
            subscription: of the feed consumer.
            projection: of the feed's events; None: they are sent whole.
        """
        self.queues: KeyQueues[Event] = KeyQueues()
        self.last_read = ""
        self.replay = ReplayProgress()
        self.backfill = BackfillProgress()
        self._subscription = subscription
        self._projection = projection
        self._parked = ScheduledRetries(subscription.patience)
        self._restored: set[str] = set()  # read by an earlier owner of the lease, perhaps settled since
        self._batch = AckBatch()
        self.erased: Mapping[str, EntryId] = {}  # by record key, the entry before which its deliveries are erased

    def is_erased(self, key: str, entry: str) -> bool:
        """Whether this entry of a record is one of those that were erased with it."""
        place = self.erased.get(key)
        return place is not None and DeliveryId.parse(entry) < DeliveryId(*place)

    def erased_of(self, unit: Sequence[QueuedEntry[Event]]) -> Sequence[QueuedEntry[Event]]:
        """Those of these entries that were erased; they are to be dropped."""
        return [one for one in unit if self.is_erased(one.key, one.id)] if self.erased else ()

    def learn_erased(self, places: Mapping[str, EntryId], *refused: AckBatch) -> None:
        """Know of these erasures, and keep nothing of these records that is drafted: here, or in a refused batch.

        While they were read, an answer to what was in flight may have been drafted.
        """
        self.erased = places
        for batch in (self._batch, *refused):
            self._take_out_erased(batch)

    def _take_out_erased(self, draft: AckBatch) -> None:
        for entry, key in draft.keys.items():
            if self.is_erased(key, entry):
                draft.letters.pop(entry, None)
                if draft.parked.pop(entry, None) is not None:
                    draft.unparked.append(entry)

    def restore(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> None:
        """Add the stored scheduled retries, in stream order."""
        queues: dict[str, list[QueuedEntry[Event]]] = {}
        for waiting in self._parked.join(deliveries, now=now, clock=clock):
            queues.setdefault(waiting.key, []).append(waiting)
        for key, queue in queues.items():
            due = self._parked.due(queue[0].id)
            self.queues.restore(key, queue, clock if due is None else due)
        self._restored = set(deliveries)

    @property
    def known(self) -> AbstractSet[str]:
        """What is scheduled, or was at the last write, and loaded entries of replays and backfills."""
        return {*self._parked, *self._batch.unparked, *self.replay.open, *self.backfill.open}

    def join(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> None:
        """Add deliveries that another process has scheduled meanwhile."""
        for waiting in self._parked.join(deliveries, now=now, clock=clock):
            self.queues.insert(waiting)

    @property
    def waits_for_sink(self) -> bool:
        """Whether retries wait for the end of a pause of the sink."""
        return self._parked.any_paused

    def end_pause(self, *, clock: float) -> None:
        """Make retries due that wait for a pause of the sink: it is over, whatever was its length."""
        due = clock + PAUSE_FLOOR.total_seconds()  # the sink may have refused without a pause
        ended = self._parked.end_pause(due)
        if ended:
            self.queues.hasten(ended, due)

    def take_again(self, entries: Sequence[tuple[str, bytes]]) -> None:
        """Add entries of a replay, in stream order."""
        for entry, event in entries:
            if entry in self._parked or self.queues.holds(entry):
                continue  # it will be delivered anyway
            try:
                envelope = envelope_of(event)
                sent = self._sent((envelope, event)) if self._subscription.wanted(envelope) else None
            except ValueError:
                continue
            if sent is not None:
                self._take_one_again(QueuedEntry(entry, record_of(envelope), sent, fresh=False, size=len(sent[1]) + 1))

    def _take_one_again(self, waiting: QueuedEntry[Event]) -> None:
        self.replay.add(waiting.id, waiting.size)
        self.queues.insert(waiting)
        foremost = self.queues.foremost(waiting.key)
        if foremost in self._parked:  # a retry, or stranded behind one
            self._park(waiting, Delivery(waiting.key))

    def take_backfilled(self, chunk: BackfillChunk) -> None:
        """Add the events of a chunk, behind everything that was taken in: all of that is older than what they tell."""
        self.backfill.took(chunk)
        place = max(DeliveryId.parse(chunk.entry), DeliveryId.parse(self.last_read or EARLIEST))
        for envelope, event in chunk.events:
            sent = self._sent((envelope, event)) if self._subscription.wanted(envelope) else None
            if sent is None:
                continue
            key, size = record_of(envelope), len(sent[1]) + 1
            if self.is_erased(key, chunk.entry):  # since the chunk was read
                continue
            last = self.queues.last(key)
            # A stream that was lost has lower ids for a while than what its group has got of it.
            entry = place if last is None else max(place, DeliveryId.parse(last))
            own = str(entry.behind(envelope.id))
            if own in self._parked or not self.backfill.add(own, size):
                continue  # it will be delivered anyway, and nothing has come after it
            waiting = QueuedEntry(own, key, sent, fresh=False, size=size)
            self.queues.add(waiting)
            if self.queues.foremost(key) in self._parked:  # a retry, or stranded behind one
                self._park(waiting, Delivery(key))

    def repeat_of(self, waiting: QueuedEntry[Event]) -> str:
        """The name of the redelivery, replay or backfill of an entry; empty: the first delivery."""
        if waiting.fresh:  # neither scheduled nor of a replay or backfill
            return ""
        return self._parked.of(waiting).repeat or self._repeat_of(waiting.id)

    def _repeat_of(self, delivery_id: str) -> str:
        return self.replay.repeat_of(delivery_id) or self.backfill.repeat_of(delivery_id)

    def event_of(self, entry: str) -> bytes:
        """The event stored with a delivery; empty: it is in the stream."""
        return self._parked.event_of(entry)

    def take_in(
        self,
        entries: Sequence[Entry],
        *,
        now: datetime,
        known_to: str = "",
        reset_entry: str | None = None,
        pending: bool = False,
    ) -> Sequence[tuple[str, str]]:
        """Add entries that were read, in stream order. Returns those that cannot be delivered, with the reason.

        Args:
            entries: that were read.
            now: the store's clock, UTC.
            known_to: entries up to this one were read before.
            reset_entry: the last entry before the reset of the feed; baselines after it repeat earlier events.
            pending: whether the group held them already: then none of them is settled.
        """
        refused = []
        known = EntryId.parse(known_to) if known_to else None
        drafted = frozenset(self._batch.acked) if pending else ()
        for entry, event in entries:
            if not self.queues.holds(entry) and entry not in drafted:
                is_known = known is not None and EntryId.parse(entry) <= known
                if is_known or entry in self._parked or entry in self._restored:
                    self._batch.acked.append(entry)
                elif reason := self._take_one(entry, event, now, reset_entry, pending=pending):
                    refused.append((entry, reason))
        if entries:
            self.last_read = max(self.last_read or entries[-1][0], entries[-1][0], key=EntryId.parse)
        return refused

    def _take_one(
        self, entry: str, event: bytes | None, now: datetime, reset_entry: str | None, *, pending: bool
    ) -> str | None:
        if event is None:
            self._batch.give_up(entry, b"null", GONE, now=now)
            self._batch.acked.append(entry)
            return GONE
        try:
            envelope = envelope_of(event)
            chosen = wants(self._subscription, envelope, entry, event, reset_entry=reset_entry)
            sent = self._sent((envelope, event)) if chosen else None
        except ValueError as error:
            self._batch.acked.append(entry)
            return str(error)
        key = record_of(envelope)
        last = self.queues.last(key)
        is_late = last is not None and DeliveryId.parse(last) >= DeliveryId.parse(entry)
        is_settled = is_late and (not pending or entry in self.replay.open)  # before the entries in its queue
        if is_settled or sent is None:
            self._batch.acked.append(entry)
            return None
        size = len(sent[1]) + 1  # and a comma
        if is_late:  # an earlier version had stored later events of its record while the group held it
            self._batch.acked.append(entry)
            waiting = QueuedEntry(entry, key, sent, fresh=False, size=size)
            self.queues.insert(waiting)
            self._park(waiting, Delivery(key))
            return None
        is_stored = last is not None and self.queues.is_stored(key)
        waiting = QueuedEntry(entry, key, sent, fresh=True, size=size)
        self._batch.urgent = self._batch.urgent or self.queues.awaits_write(key)
        self.queues.add(waiting)
        if is_stored:  # never one behind a fresh entry, which is to be read before it after a crash
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
        """Apply the outcome of one attempt at these entries."""
        if outcome.is_delivered and not outcome.each:
            return self._all_delivered(unit)
        reports: list[AttemptReport] = []
        pauses: list[timedelta] = []
        waits: dict[str, timedelta | None] = {}
        patience = self._subscription.patience
        sent = [waiting.item for waiting in unit]  # what waits behind another of its record is not kept in memory
        for waiting, item, ended in zip(unit, sent, outcome.of_each(len(unit)), strict=True):
            known = self._parked.of(waiting)
            drawn = 0.0 if ended.is_delivered else chance()  # a draw is a system call
            step = step_after(ended, tries=known.tries, patience=patience, chance=drawn, busy=busy)
            reports.append(self._report(waiting, item, known, step))
            step = self._step_of(waiting, step)
            if isinstance(step, _CONCERN_THE_SINK):  # it does not depend on the event
                self.put_back(unit)
                return AttemptResult(reports, rest=step.reason if isinstance(step, PauseSubscription) else None)
            # Nothing is stored of delivered events, and an event that was not sent had no attempt.
            delivery = known if ended.is_delivered or not ended.was_sent else known.after(ended, now)
            if waits.get(waiting.key) is not None:
                self._park(waiting, delivery)  # an event before it waits
                continue
            if isinstance(step, _BRING_A_PAUSE):
                pauses.append(step.pause)
            waits[waiting.key] = self._draft_step(waiting, delivery, step, now)
        for key, wait in waits.items():
            if wait is not None:
                self.queues.wait(key, clock + wait.total_seconds())
        self._continue_after_write([key for key, wait in waits.items() if wait is None])
        for waiting in unit:
            if (wait := waits.get(waiting.key)) and waiting.id in self._parked:  # else it was settled
                self._parked.wait(waiting.id, clock + wait.total_seconds())
        pause = max(pauses, default=timedelta(0))
        return AttemptResult(reports, pause or None)

    def _step_of(self, waiting: QueuedEntry[Event], step: Step) -> Step:
        """The step as far as the store is concerned: nothing is kept of an erased record."""
        return _DELIVERED if self.erased and self.is_erased(waiting.key, waiting.id) else step

    def _all_delivered(self, unit: Sequence[QueuedEntry[Event]]) -> AttemptResult:
        """What :meth:`conclude` does with the usual outcome, in a fraction of the time."""
        reports = []
        for waiting in unit:
            known = None if waiting.fresh else self._parked.of(waiting)
            reports.append(self._report(waiting, waiting.item, known, _DELIVERED))
            self._settle(waiting)
        self._continue_after_write({waiting.key: None for waiting in unit})
        return AttemptResult(reports)

    def _continue_after_write(self, keys: Iterable[str]) -> None:
        """Let these queues continue once the batch is written."""
        batch, last = self._batch, self.queues.last
        for key in keys:
            batch.reopen.append(key)
            batch.urgent = batch.urgent or last(key) is not None

    def give_up(self, unit: Sequence[QueuedEntry[Event]], reason: str, *, now: datetime) -> AttemptResult:
        """Turn entries that cannot be sent into dead letters."""
        reports = []
        for waiting in unit:
            known = self._parked.of(waiting)
            reports.append(self._report(waiting, waiting.item, known, DeadLetter(reason)))
            self._draft_step(waiting, known, self._step_of(waiting, DeadLetter(reason)), now)
        self._batch.reopen += dict.fromkeys(waiting.key for waiting in unit)
        return AttemptResult(reports)

    def load(self, waiting: QueuedEntry[Event], found: bytes) -> bool:
        """Give an entry its event again. False: it is not to be sent any more.

        The settings of its subscription may have changed since it was scheduled. The filters do not apply to
        redeliveries, ``fields`` and ``thin`` do. A dead letter holds what was sent; so if the stream still has the
        event, what the present settings send of it is sent.

        Args:
            waiting: a scheduled entry.
            found: the event in the stream; empty: it is not there.

        Raises:
            ValueError: no event stands there now.
        """
        kept = self.event_of(waiting.id)
        envelope = envelope_of(kept or found)
        if kept and found and (whole := _same_event(envelope, found)) is not None:
            event = (whole, found)
        else:
            event = (envelope, kept or found)
        if not self._is_redelivery(waiting) and not self._subscription.wanted(envelope):
            return False
        with suppress(ValueError):  # another program's event, which cannot be cut: it is not sent
            waiting.item = self._sent(event)
        if waiting.item is None:
            return False
        waiting.size = len(waiting.item[1]) + 1
        return True

    def _is_redelivery(self, waiting: QueuedEntry[Event]) -> bool:
        """Whether a scheduled entry was a dead letter."""
        known = self._parked.of(waiting)
        return known.is_redelivery if is_backfilled(waiting.id) else bool(known.event)

    def _sent(self, event: Event) -> Event | None:
        """What is sent of an event; None: nothing, for what has changed is not sent.

        Raises:
            ValueError: see :meth:`poller.delivery.projection.Projection.of`.
        """
        return event if self._projection is None else self._projection.of(event)

    def drop(self, unit: Sequence[QueuedEntry[Event]], *, now: datetime) -> None:
        """Settle entries that are not wanted any more."""
        for waiting in unit:
            self._draft_step(waiting, self._parked.of(waiting), Delivered(), now)
        self._batch.reopen += dict.fromkeys(waiting.key for waiting in unit)

    def put_back(self, unit: Sequence[QueuedEntry[Event]]) -> None:
        """Open the queues of entries that were not sent."""
        for waiting in unit:
            if waiting.id in self._parked:  # the events of waiting entries are not kept in memory
                waiting.item = None
        for key in dict.fromkeys(waiting.key for waiting in unit):
            self.queues.reopen(key)

    def postpone(self, unit: Sequence[QueuedEntry[Event]], until: float) -> None:
        """Make the queues of entries that were not sent wait until this moment."""
        for key in dict.fromkeys(waiting.key for waiting in unit):
            self.queues.wait(key, until)

    @property
    def patient(self) -> bool:
        """Whether the next batch is not empty, and no queue waits for it."""
        return self._batch.patient

    @property
    def has_batch(self) -> bool:
        """Whether the next batch is not empty."""
        return bool(self._batch) or self.replay.place is not None or self.backfill.place is not None

    def next_batch(self) -> AckBatch | None:
        """The batch to write now, if it is not empty; call :meth:`written` afterwards."""
        if not self.has_batch:
            return None
        draft, self._batch = self._batch, AckBatch()
        draft.place, draft.replay, draft.backfill = self.place, self.replay.place, self.backfill.place
        return draft

    @property
    def place(self) -> str:
        """The entry up to which all are settled or scheduled once the next batch is written."""
        oldest = self.queues.oldest_fresh
        return before(oldest) if oldest else self.last_read

    def written(self, draft: AckBatch) -> bool:
        """Record that the batch was written. True: a queue continues."""
        if draft.replay is not None:
            self.replay.wrote(draft.replay)
        if draft.backfill is not None:
            self.backfill.wrote(draft.backfill)
        for key in draft.reopen:
            self._go_on(key)
        return bool(draft.reopen)

    def _go_on(self, key: str) -> None:
        """Open a shut queue, unless its first entry waits for a retry."""
        due = self._parked.due(self.queues.foremost(key)) if self._parked.any_due else None
        if due is not None:
            self.queues.wait(key, due)
        else:
            self.queues.reopen(key)

    def _draft_step(
        self, waiting: QueuedEntry[Event], delivery: Delivery, step: Step, now: datetime
    ) -> timedelta | None:
        """Add a step to the batch. Returns the wait of the queue; None: it continues."""
        if isinstance(step, _WAIT):
            due = int((now + step.after).timestamp() * 1000)
            paused = int(now.timestamp() * 1000) if isinstance(step, PauseSink) else 0
            tries = next_tries(delivery.tries, step)
            self._park(waiting, msgspec.structs.replace(delivery, due=due, tries=tries, paused=paused))
            for behind in self.queues.stranded(waiting.key, self.replay.open, self.backfill.open):
                self._park(behind, Delivery(waiting.key))
            return step.after
        if isinstance(step, DeadLetter):
            event = waiting.item[1] if waiting.item else b"null"
            repeat = self.repeat_of(waiting)
            self._batch.give_up(waiting.id, event, step.reason, now=now, attempts=delivery.attempts, repeat=repeat)
            self._batch.keys[waiting.id] = waiting.key
        self._settle(waiting)
        return None

    def _settle(self, waiting: QueuedEntry[Event]) -> None:
        if waiting.fresh:  # neither scheduled nor of a replay or backfill
            self._batch.acked.append(waiting.id)
        elif waiting.id in self.backfill.open:  # nothing is stored of it
            self._batch.backfilled += 1
            self.backfill.settled(waiting.id)
        else:
            self._batch.unparked.append(waiting.id)
            self._parked.drop(waiting.id)
            self.replay.settled(waiting.id)
            self._batch.parked.pop(waiting.id, None)
        self.queues.settle(waiting)

    def _park(self, waiting: QueuedEntry[Event], delivery: Delivery) -> None:
        if waiting.fresh:
            self._batch.acked.append(waiting.id)
        again = delivery.again or waiting.id in self.replay.open
        repeat, event = delivery.repeat or self._repeat_of(waiting.id), delivery.event
        if is_backfilled(waiting.id) and waiting.item is not None:  # the stream does not have it
            event = msgspec.Raw(waiting.item[1])
        delivery = msgspec.structs.replace(delivery, size=waiting.size, again=again, repeat=repeat, event=event)
        self._batch.parked[waiting.id] = encode(delivery)
        self._batch.keys[waiting.id] = waiting.key
        self._parked.put(waiting.id, delivery)
        self.replay.settled(waiting.id)
        self.backfill.settled(waiting.id)
        waiting.alone = alone(delivery)
        self.queues.park(waiting)

    def _report(
        self, waiting: QueuedEntry[Event], item: Event | None, delivery: Delivery | None, step: Step
    ) -> AttemptReport:
        """``item``: what was sent; ``delivery``: so far; None: nothing is stored of it."""
        attempts = delivery.tries.attempts if delivery else 1
        if item is None:
            return AttemptReport(waiting.id, None, attempts, step)
        envelope, event = item
        again = delivery and (delivery.again or delivery.event or waiting.id in self.replay.open)
        recorded = None if again or is_backfilled(waiting.id) else envelope.recordedtime
        return AttemptReport(waiting.id, envelope.id, attempts, step, recorded, len(event))


def _same_event(envelope: Envelope, found: bytes) -> Envelope | None:
    """The envelope of an entry, if it holds this event."""
    with suppress(ValueError):
        there = envelope_of(found)
        return there if there.id == envelope.id else None
    return None


class AttemptReport(msgspec.Struct, frozen=True):
    """The step that follows for one event, for the log.

    Attributes:
        entry: the entry's id.
        event: the event's id; None: unknown.
        attempt: the number of the attempt, from 1.
        step: that follows.
        recorded: when the event was published; None: unknown, or a redelivery, replay or backfill.
        size: of the event, in bytes; 0: it is not in memory.
    """

    entry: str
    event: str | None
    attempt: int
    step: Step
    recorded: str | None = None
    size: int = 0


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of one request.

    Attributes:
        reports: one for each of its events.
        pause: of the sink; None: none.
        rest: why the subscription is paused; None: it is not.
    """

    reports: Sequence[AttemptReport]
    pause: timedelta | None = None
    rest: str | None = None


MOST_GATHERED: Final = 100
"""A batch of as many deliveries is written without waiting for more, so a crash repeats no more of them."""


class AckBatch:
    """The next write, and the queues that continue after it."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.parked: dict[str, bytes] = {}
        self.unparked: list[str] = []
        self.letters: dict[str, bytes] = {}
        self.keys: dict[str, str] = {}  # of the records of what is scheduled or given up, by entry
        self.reopen: list[str] = []
        self.place = ""  # every entry up to it is settled or scheduled by this batch or those before
        self.replay: ReplayPosition | None = None
        self.backfill: BackfillPosition | None = None
        self.backfilled = 0  # events of a backfill, of which nothing was stored
        self.urgent = False  # entries in those queues wait for it

    def __bool__(self) -> bool:
        moved = self.replay or self.backfill
        return bool(self.acked or self.parked or self.unparked or self.reopen or moved)

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
        """Add a dead letter."""
        letter = StoredDeadLetter(msgspec.Raw(event), reason, rfc3339(now), attempts, repeat=repeat)
        self.letters[entry] = encode(letter)

    @property
    def patient(self) -> bool:
        """Whether the write may wait: only a crash of this process would make a difference, and not a great one."""
        few = 0 < len(self.acked) + self.backfilled < MOST_GATHERED
        return few and not (self.parked or self.unparked or self.letters or self.urgent)

    def settlement(self) -> Settlement:
        """The batch in the store's form."""
        return Settlement(self.acked, self.parked, self.unparked, self.letters, self.place, self.replay, self.backfill)


class ScheduledRetries:
    """The scheduled retries of one feed consumer, by entry id."""

    def __init__(self, patience: RetryPolicy) -> None:
        """Begin empty, with the retry policy."""
        self._patience = patience
        self._deliveries: dict[str, Delivery] = {}
        self._due: dict[str, float] = {}
        self._paused: set[str] = set()  # of these, those that wait for the end of a pause

    def __contains__(self, entry: str | None) -> bool:
        return entry in self._deliveries

    def __iter__(self) -> Iterator[str]:
        return iter(self._deliveries)

    def join(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> Iterator[QueuedEntry[Event]]:
        """Add stored deliveries. Returns them in the form and order of their queues.

        Args:
            deliveries: by entry id.
            now: the wall clock, UTC.
            clock: monotonic, in seconds.
        """
        self._deliveries |= deliveries
        for entry, one in deliveries.items():
            if one.due:
                longest = self._patience.longest(one.tries).total_seconds()
                self._due[entry] = clock + min(max(one.due / 1000 - now.timestamp(), 0.0), longest)
                self._note_pause(entry, one)
        return (
            QueuedEntry(entry, one.key, None, fresh=False, size=one.size, alone=alone(one))
            for entry, one in deliveries.items()
        )

    def of(self, waiting: QueuedEntry[Event]) -> Delivery:
        """The delivery of an entry so far."""
        return self._deliveries.get(waiting.id) or Delivery(waiting.key)

    def event_of(self, entry: str) -> bytes:
        """The event stored with a delivery; empty: it is in the stream."""
        one = self._deliveries.get(entry)
        return bytes(one.event) if one else b""

    def due(self, entry: str | None) -> float | None:
        """When this entry is due, by the monotonic clock; None: it does not wait."""
        return self._due.get(entry) if entry else None

    @property
    def any_due(self) -> bool:
        """Whether an entry waits."""
        return bool(self._due)

    @property
    def any_paused(self) -> bool:
        """Whether an entry waits for the end of a pause."""
        return bool(self._paused)

    def _note_pause(self, entry: str, one: Delivery) -> None:
        if one.paused:
            self._paused.add(entry)
        else:
            self._paused.discard(entry)

    def end_pause(self, due: float) -> Collection[str]:
        """Make all that wait for the end of a pause due at this moment at the latest, and return them."""
        ended, self._paused = self._paused, set()
        for entry in ended:
            self._due[entry] = min(self._due[entry], due)
        return ended

    def put(self, entry: str, delivery: Delivery) -> None:
        """Schedule an entry."""
        self._deliveries[entry] = delivery

    def wait(self, entry: str, until: float) -> None:
        """Make an entry due at this moment, if it waits."""
        one = self._deliveries[entry]
        if one.due:
            self._due[entry] = until
            self._note_pause(entry, one)

    def drop(self, entry: str) -> None:
        """Remove a settled entry."""
        self._deliveries.pop(entry, None)
        self._due.pop(entry, None)
        self._paused.discard(entry)


def alone(delivery: Delivery) -> bool:
    """Whether the entry is sent without others. Refusals because of the sink's load do not count against an event."""
    return delivery.tries.counted > 1


class ReplayProgress:
    """The progress of a feed consumer's replay, if there is one."""

    def __init__(self, span: ReplaySpan | None = None) -> None:
        """Begin with the stored replay.

        ``open``: the sizes in bytes of its entries that were read and are not settled, in order; ``open_bytes``: their
        sum.
        """
        self.open: dict[str, int] = {}
        self.open_bytes = 0
        self._span = span
        self._read = self._written = span.after if span else ""
        self._exhausted = span is None

    def follows(self, span: ReplaySpan | None) -> ReplayProgress:
        """This progress if the stored replay is the same, else the progress of the stored one."""
        kept, known = (one.id if one else None for one in (span, self._span))
        return self if kept == known else ReplayProgress(span)

    def wants(self, most: int) -> ReplaySpan | None:
        """The span to read next; None: ``most`` entries are open already."""
        if self._span is None or self._exhausted or len(self.open) >= most:
            return None
        return ReplaySpan(self._span.id, self._read, self._span.to)

    @property
    def is_read(self) -> bool:
        """Whether there is nothing more to read."""
        return self._exhausted

    def took(self, entries: Sequence[ReplayedEntry], *, most: int) -> None:
        """Record entries that were read; fewer than ``most``: the replay has no more."""
        self._exhausted = len(entries) < most
        if entries:
            self._read = entries[-1][0]

    def repeat_of(self, entry_id: str) -> str:
        """The name of this replay for one of its entries; empty: not one of them."""
        return self._span.id if self._span is not None and entry_id in self.open else ""

    def add(self, entry_id: str, size: int) -> None:
        """Record that an entry is to be delivered; ``size`` in bytes."""
        self.open[entry_id] = size
        self.open_bytes += size

    def settled(self, entry_id: str) -> None:
        """Record that an entry is settled or scheduled."""
        self.open_bytes -= self.open.pop(entry_id, 0)

    @property
    def place(self) -> ReplayPosition | None:
        """The position to write; None: unchanged."""
        if self._span is None:
            return None
        if self._exhausted and not self.open:
            return ReplayPosition(self._span.id, "")
        oldest = next(iter(self.open), None)
        after = before(oldest) if oldest else self._read
        return None if after == self._written else ReplayPosition(self._span.id, after)

    def wrote(self, place: ReplayPosition) -> None:
        """Record that this position was written."""
        if self._span is None or place.id != self._span.id:
            return
        self._written = place.after
        if not place.after:
            self._span = None
