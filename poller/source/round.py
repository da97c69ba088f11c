"""The poll round: one drain of a feed, from the lease to the delta token.

Theory of operation
-------------------
1. Take or renew the feed's lease. Another process has it: skip.
2. Read the state; it says which kind of reading is due.
3. For each page of each listing: compare with what is known, commit what changed, slice by slice. Snapshot and event
   go together, so a page that is read again after a crash yields nothing, and slices need no mark of their own.
4. After the last page, and only then, commit the delta token. A round that breaks off anywhere before leaves the
   token where it was; the next one reads the same again and the diff drops what was seen.

A round never raises for what the API or the store did; it ends in a result that says so. It may be cancelled at any
await: the commit alone is finished first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import msgspec

from poller.changes.confirmation import confirmation_mark
from poller.changes.events import recorded_time
from poller.changes.removal import Seen
from poller.errors import (
    Fenced,
    OriginHeld,
    OutOfTime,
    PollerError,
    RoundHeld,
    SourceError,
    SourceRefused,
    Stale,
    StoreError,
    StoreUnavailable,
)
from poller.failpoints import reach
from poller.source.deltas import Deltas
from poller.source.draining import Draining
from poller.source.each import Each, Named
from poller.source.feed import Feed, Mode
from poller.source.origin import is_withheld, withheld_reason
from poller.source.progress import RoundClock
from poller.source.reading import Get
from poller.source.removing import settle_absent
from poller.source.result import RoundResult
from poller.source.starting import End, marks_of, rotation_marks, start_of
from poller.source.unchanged import Standing, Unchanged, unconditional
from poller.source.writing import RoundStore, Writer
from poller.store.feed import HeldElsewhere
from poller.store.pauses import Pause
from poller.store.state import CONFIRMATION, DELTA_TOKEN, ORIGIN, PROGRESS, FeedState


async def poll(
    feed: Feed,
    store: RoundStore,
    get: Get,
    *,
    now: Callable[[], datetime],
    qualifications: Named,
    unchanged: Unchanged | None = None,
    next_at: Callable[[], datetime | None] = lambda: None,
    began: Callable[[], None] = lambda: None,
) -> RoundResult:
    """One round of one feed.

    Args:
        feed: what to read.
        store: where it is kept.
        get: one exchange with the API: path and parameters to body.
        now: the store's clock, UTC.
        qualifications: those that the source's other feeds have named.
        unchanged: what ``get`` belongs to, where listings are asked for on condition.
        next_at: when the next round is due, as far as that is known when this one ends.
        began: told when the store has answered.
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        state = await store.begin()
    except StoreError as error:
        away, seconds = isinstance(error, StoreUnavailable), round(clock() - started, 3)
        return RoundResult(feed=feed.id, mode=Mode.SKIPPED, ok=False, seconds=seconds, error=str(error), away=away)
    began()
    if isinstance(state, HeldElsewhere):
        return RoundResult(feed=feed.id, mode=Mode.SKIPPED, ok=True, wait=state.remaining)
    if isinstance(state, Pause):
        return RoundResult(feed=feed.id, mode=Mode.SKIPPED, ok=True, paused=state.text)
    reach("lease.taken")
    reading = _Reading(feed, store, get, state, now, unchanged=unchanged)
    failure = await reading.run(qualifications)
    result = reading.result(failure, seconds=clock() - started)
    if isinstance(failure, StoreUnavailable | Fenced | Stale):
        return result  # nothing can be written now that would not fail in the same way
    try:
        return await reading.conclude(result, failure, next_at())
    except StoreError as unwritten:
        away = isinstance(unwritten, StoreUnavailable)
        return msgspec.structs.replace(result, ok=False, error=result.error or str(unwritten), away=away)


class _Reading:
    """A round while it runs."""

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        get: Get,
        state: FeedState,
        now: Callable[[], datetime],
        *,
        unchanged: Unchanged | None,
    ) -> None:
        self._feed = feed
        self._store = store
        self._get = get
        self._now = now
        self._state = state
        self._start = start_of(feed, state, now())
        self._writer = Writer(feed, store, state, get, now)
        self._clock = RoundClock(self._start.mode, feed.max_round, lambda: self._writer.tally, self._writer.marks)
        self._draining = Draining(feed, self._writer, get, self._start.learnt, self._clock)
        self._seen = Seen() if self._start.mode is not Mode.DELTA else None
        self._complete = False  # everything was read, or tried
        self._concluded = False  # and what that means for removals is settled, or held
        self._settled = False  # nothing is left that the next full reading has to look for
        self._as_before = False  # the listing is unchanged, and was not read
        self._delta_token: str | None = None
        self._pages = 1
        self._deltas: Deltas | None = None
        self._each: Each | None = None
        self._unchanged = None if feed.resource.per_qualification else unchanged
        self._ask = unchanged.ask if unchanged else unconditional(get)
        if self._unchanged is not None:
            self._unchanged.begin(self._standing(state.read_at) if self._start.on_condition else None)

    async def run(self, qualifications: Named) -> PollerError | None:
        """Read and commit all pages, then settle what is gone; answers what went wrong, if something did."""
        try:
            self._refuse_another_identity()
            self._withhold_another_origin()
            if self._start.holds:
                await self._writer.recall()
            if self._start.adopts:
                self._writer.marks_with_first_records({ORIGIN: self._feed.origin.mark})
            if self._feed.resource.per_qualification:
                await self._read_each(qualifications)
            else:
                await self._read_all()
                await self._settle(self._seen)
        except OriginHeld as held:
            return held
        except RoundHeld as held:
            self._concluded = True
            return held
        except PollerError as failure:
            return failure
        reach("round.read")
        return None

    def _refuse_another_identity(self) -> None:
        known, now = self._state.id_field, self._feed.id_field
        if known is not None and known != now:
            raise SourceError(
                f'id_field was "{known}" and is "{now}" now: the known records could not be recognised by it; '
                "give the feed another name, and it is read as a new one, or let "
                f"`poller resync {self._feed.id} --anew` forget what is known"
            )

    def _withhold_another_origin(self) -> None:
        feed, state = self._feed, self._state
        if is_withheld(feed.origin, state):
            raise OriginHeld(withheld_reason(feed.id, feed.origin, state))

    def result(self, failure: PollerError | None, *, seconds: float) -> RoundResult:
        """How it ended."""
        error = str(failure) if failure else None
        learnt = self._draining.learnt
        return msgspec.structs.replace(
            RoundResult.of(
                self._feed.id,
                self._start.mode,
                self._writer.tally,
                pages=self._draining.pages,
                seconds=seconds,
                error=error,
            ),
            held=error if self._is_news(failure) else None,
            learnt=learnt if learnt != self._start.learnt else None,
            away=isinstance(failure, StoreUnavailable),
            token="kept" if self._state.delta_token else "none",
            loss=self._state.loss,
            late=self._deltas.late if self._deltas else None,
            unidentified=self._unidentified,
            held_versions=self._writer.held_versions,
            second_look=None if self._each else self._writer.second_look,  # a rotation comes round by itself
        )

    def _is_news(self, failure: PollerError | None) -> bool:
        """Whether something is held that was not held before this round."""
        state = self._state
        if isinstance(failure, OriginHeld):
            return state.held is None or state.held_origin != self._feed.origin.mark
        return isinstance(failure, RoundHeld) and (state.held is None or state.held_origin is not None)

    async def conclude(self, result: RoundResult, failure: PollerError | None, next_at: datetime | None) -> RoundResult:
        """Commit what the round leaves behind: its result and, if it was complete, where the next one starts."""
        end = End(
            at=self._now(),
            result=result,
            complete=self._concluded,
            as_before=self._as_before,
            delta_token=self._delta_token,
            fields=self._draining.query.fields,
            held=str(failure) if isinstance(failure, RoundHeld) else None,
            next_at=next_at,
            pages=self._pages,
            late=result.late,
            out_of_time=isinstance(failure, OutOfTime),
        )
        marks = marks_of(self._feed, self._start, end)
        if self._each is not None:
            marks |= rotation_marks(self._start, over=self._each.over, oldest=self._each.oldest)
            marks[CONFIRMATION] = confirmation_mark(self._each.confirmation)
        if self._clock.shown or self._state.progress is not None:
            marks[PROGRESS] = None
        await self._writer.marks(marks)
        if self._unchanged is not None and result.ok and self._start.mode is not Mode.DELTA:
            self._unchanged.keep(self._standing(self._start.begun) if self._settled else None)
        reach("round.done")
        if DELTA_TOKEN not in marks:
            return result
        return msgspec.structs.replace(result, token="moved" if marks[DELTA_TOKEN] else "none")

    def _standing(self, read_at: datetime | None) -> Standing:
        return Standing(*self._writer.place, recorded_time(read_at) if read_at else "")

    async def _read_all(self) -> None:
        once_more = True
        while True:
            before = self._draining.pages
            try:
                return await self._drain()
            except SourceRefused as refused:
                begun = self._draining.pages > before
                if refused.status not in self._feed.expired_statuses:
                    raise
                if self._start.since and not begun:
                    # Whether the delta token is what the API does not like, the same request without it decides.
                    self._start, self._seen = self._start.without_token(), Seen()
                elif begun and once_more:
                    # A page token died on the way: once more from the start, and what was read already is silent.
                    once_more = False
                else:
                    raise

    async def _drain(self) -> None:
        path, start = self._feed.resource.path, self._start
        if start.deltas_since and self._deltas is None:
            self._deltas = Deltas(
                self._feed, self._draining, self._writer, start.deltas_since, seen=self._seen, now=self._now
            )
        drain = await self._draining.drain(
            path, mode=start.mode, since=start.since, seen=self._seen, beside=self._deltas
        )
        self._delta_token, self._pages = drain.delta_token, drain.pages
        self._as_before, self._complete = not drain.pages, bool(drain.pages)
        if self._deltas is not None and drain.pages > 1:
            await self._catch_up(self._deltas)

    async def _catch_up(self, deltas: Deltas) -> None:
        """A last delta, for what has changed since the one before: after it the feed is where its token is."""
        await deltas.read()
        if deltas.refused:
            self._start = self._start.without_token()
        elif deltas.worked:
            self._delta_token = deltas.token

    async def _read_each(self, qualifications: Named) -> None:
        self._each = each = Each(
            self._feed,
            self._draining,
            self._writer,
            self._ask,
            await self._store.listings(),
            now=self._now,
            clock=self._clock,
            since=self._start.begun,
            resumed=self._start.resumed,
            conditional=self._start.on_condition,
        )
        failure: SourceError | None = None
        try:
            slot = self._feed.slot if self._start.in_slots else None
            await each.read(qualifications, mode=self._start.mode, slot=slot)
        except SourceError as error:
            failure = error
        self._complete = each.complete
        if self._complete:
            await self._settle(each.seen())
        if failure is not None:
            raise failure

    @property
    def _unidentified(self) -> int:
        """How many records of the reading, or of all listings, have no id that can be read."""
        return self._each.unidentified if self._each is not None else self._writer.unidentified

    @property
    def _since_marked(self) -> timedelta | None:
        """How long before this reading records were last marked missing."""
        now_ms, marked_ms = self._state.now_ms, self._state.missing_at
        return None if marked_ms is None else timedelta(milliseconds=now_ms - marked_ms)

    async def _settle(self, seen: Seen | None) -> None:
        """After a full reading: remove what it did not hold. A baseline has nothing to compare with."""
        if seen is not None and not self._as_before and self._complete:
            await self._writer.let_go(seen)
        if not self._feed.removals:
            self._settled = True
        elif self._as_before:
            # What an unchanged listing holds was not seen, and is there; it was settled when it was read.
            self._settled = True
        elif self._unidentified:
            self._settled = False  # any of the absent ones may be one of those, and the next reading may tell
        elif seen is not None and self._start.mode is not Mode.BASELINE:
            self._settled = await settle_absent(
                self._feed,
                self._store,
                self._get,
                seen,
                released=self._state.released,
                since_marked=self._since_marked,
                remove=partial(self._writer.remove, mode=self._start.mode),
                mark=self._writer.mark_missing,
            )
        self._concluded = self._complete
