"""The poll round: one reading of a feed, from the lease to the delta token.

Theory of operation
-------------------
1. Acquire or renew the feed's lease. If another process has it, skip the round.
2. Read the state; it says which kind of reading is due, and where it starts (:func:`round_start`).
3. For each page of each listing: compare with the snapshots and commit the changes, slice by slice.
4. After the last page, confirm and commit removals (:func:`poller.source.absence.settle_absent`).
5. Commit the marks (:func:`round_marks`): the result and, if the round was complete, the delta token and where the
   next round starts.

**Invariants**

- Snapshots and events are committed together. A page that is read again after a crash yields nothing.
- No mark moves past what was not read: a round that breaks off leaves the delta token where it was, the next round
  reads the same again, and the diff drops what was committed. Nor is the token of a full reading used whose removals
  are held: deltas go on from the token before it, or, if that is not valid any more, the next round reads in full.
- A round never raises for what the API or the store did; the result says so.
- It may be cancelled at any await; only a commit is finished first.
- An operator's ``resync`` makes a round read everything, even what the API calls unchanged. The command is deleted when
  it has been carried out.
- An incomplete round leaves its result only, except that a confirming reading that ran out of time is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from typing import Final

import msgspec

from poller.changes.diff import Snapshot
from poller.changes.full_readings import (
    MOST,
    Confirmation,
    DigestBasis,
    PageDigests,
    after_doubtful_delta,
    after_reading,
    confirmation_mark,
    confirmation_of,
    decode_digests,
)
from poller.changes.plan import SeenKeys
from poller.clock import Clock, rfc3339
from poller.errors import (
    Fenced,
    OriginHeld,
    PollerError,
    RoundHeld,
    RoundTimeExceeded,
    SourceError,
    SourceRefused,
    Stale,
    StoreError,
    StoreUnavailable,
)
from poller.failpoints import reach
from poller.source.absence import settle_absent
from poller.source.client import ConditionalReader, FeedPosition, unconditional
from poller.source.drain import ROUNDED, DeltaReader, ListingDrain, SecondPass
from poller.source.feed import (
    Feed,
    RoundMode,
    RoundResult,
    RoundTimer,
    casts_doubt,
    due_mode,
    is_known_origin,
    is_recheck_due,
    is_to_be_tried_without,
    is_withheld_origin,
    recheck_wait,
    withheld_origin_reason,
)
from poller.source.idle_round import IdleAttempt
from poller.source.paging import DetectedCapabilities, Get, capabilities_of
from poller.source.substreams import Named, SubstreamReader
from poller.source.writer import RoundStore, RoundWriter
from poller.store.commands import FeedPause
from poller.store.feed_state import (
    CONFIRMATION,
    DELTA_TOKEN,
    DELTA_TOKEN_AT,
    FIELDS,
    GOOD_AT,
    HELD,
    HELD_AT,
    HELD_MISSING,
    HELD_ORIGIN,
    ID_FIELD,
    LEARNT,
    NEXT_AT,
    OLDEST,
    ORIGIN,
    PROGRESS,
    QUERY,
    READ_AT,
    RECHECK_AT,
    RECHECK_FROM,
    RECHECKED,
    REFUSALS,
    RELEASED,
    RESYNC,
    ROTATION,
    ROUND,
    ROUND_AT,
    TOKEN_FAILURES,
    UNIDENTIFIED,
    FeedState,
    fields_mark,
)
from poller.store.lease import HeldElsewhere


async def run_round(
    feed: Feed,
    store: RoundStore,
    get: Get,
    *,
    clock: Clock,
    qualifications: Named,
    unchanged: ConditionalReader | None = None,
    next_at: Callable[[], datetime | None] = lambda: None,
    began: Callable[[], None] = lambda: None,
) -> RoundResult:
    """Run one round of one feed.

    Args:
        feed: what to read.
        store: where it is stored.
        get: one exchange with the API: path and parameters to body.
        clock: the store's.
        qualifications: returns those that the source's other feeds have named.
        unchanged: the owner of ``get``, if listings are requested conditionally.
        next_at: returns when the next round is due, if that is known at the end of this one.
        began: called when the store has answered.
    """
    attempt = IdleAttempt(feed, store, get, clock, answers=unchanged, next_at=next_at)
    idle = await attempt.from_memory()
    if idle is not None:
        if not idle.away:
            began()
        return idle
    try:
        state = await store.open_round()
    except StoreError as error:
        away, seconds = isinstance(error, StoreUnavailable), attempt.seconds
        return RoundResult(feed=feed.id, mode=RoundMode.SKIPPED, ok=False, seconds=seconds, error=str(error), away=away)
    began()
    if isinstance(state, HeldElsewhere):
        return RoundResult(feed=feed.id, mode=RoundMode.SKIPPED, ok=True, wait=state.remaining)
    if isinstance(state, FeedPause):
        return RoundResult(feed=feed.id, mode=RoundMode.SKIPPED, ok=True, paused=state.text)
    reach("lease.taken")
    idle = await attempt.from_state(state)
    if idle is not None:
        return idle
    if attempt.has_answer(state):
        reading = _RoundRun(feed, store, attempt.get, state, clock, now=attempt.began_at, unchanged=unchanged)
    else:
        reading = _RoundRun(feed, store, get, state, clock, now=clock.now(), unchanged=unchanged)
    return await _result(reading, await reading.run(qualifications), attempt, next_at)


async def _result(
    reading: _RoundRun, failure: PollerError | None, attempt: IdleAttempt, next_at: Callable[[], datetime | None]
) -> RoundResult:
    """The result of a round that was read, once its marks are committed, unless that cannot be."""
    result = reading.result(failure, seconds=attempt.seconds)
    if isinstance(failure, StoreUnavailable | Fenced | Stale):
        return result  # any write now would fail in the same way
    try:
        return await reading.conclude(result, failure, next_at())
    except StoreError as unwritten:
        away = isinstance(unwritten, StoreUnavailable)
        return msgspec.structs.replace(result, ok=False, error=result.error or str(unwritten), away=away)


class _RoundRun:
    """One round while it runs.

    No part of it refers to this object, so that all of it is freed when the round has ended: what a thousand rounds
    leave to the collector takes megabytes until it runs.
    """

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        get: Get,
        state: FeedState,
        clock: Clock,
        *,
        now: datetime,
        unchanged: ConditionalReader | None,
    ) -> None:
        self._feed = feed
        self._store = store
        self._get = get
        self._clock = clock
        self._state = state
        self._start = round_start(feed, state, now)
        answers = self._answers = unchanged or ConditionalReader(unconditional(get))
        answers.age = timedelta()
        self._age = lambda: answers.age
        follows = self._start.rechecks and self._start.rechecked > 1
        self._writer = RoundWriter(feed, store, state, get, clock, age=self._age, follows_others=follows)
        self._timer = RoundTimer(self._start.mode, feed.max_round, self._writer.tally, self._writer.marks, clock)
        self._drain = ListingDrain(feed, self._writer, get, self._start.learnt, self._timer)
        self._seen = SeenKeys() if self._start.mode is not RoundMode.DELTA else None
        self._complete = False  # everything was read, or tried
        self._concluded = False  # and removals are settled, or held
        self._settled = False  # nothing is left that the next full reading has to look for
        self._uses_release = True  # a release is carried out by this reading
        self._awaits_reading = False  # a second one decides about missing records
        self._has_young = False  # a record is left alone for now because it was published lately
        self._as_before = False  # the listing is unchanged, and was not read
        self._delta_token: str | None = None
        self._uses_listing_token = False  # although deltas were read beside it
        self._pages = 1
        self._deltas: DeltaReader | None = None
        self._substreams: SubstreamReader | None = None
        self._has_unread = False  # whether there are qualifications whose listings were never read
        self._unsure: frozenset[str] = frozenset()  # qualifications whose listings could not be read at their last turn
        self._left: frozenset[str] = frozenset()  # records that these lacked when they were read last
        self._may_have_moved = False  # whether any missing record may be in one of these
        self._digests: PageDigests | None = None  # of a full reading's pages
        self._second_pass: SecondPass | None = None  # over a listing of several pages
        self._kept = 0  # records that may be in one of these, and are therefore not removed
        self._token_failures: int | None = None  # in a row, this round's the last
        self._doubtful: int | None = None  # the status for which the token was left out
        self._unchanged = None if feed.resource.per_qualification else unchanged
        self._ask = self._answers.ask
        if self._unchanged is not None:
            position = self._position(state.read_at) if self._start.on_condition else None
            self._unchanged.start_round(position, now=self._start.begun)

    async def run(self, qualifications: Named) -> PollerError | None:
        """Read and commit all pages, then settle absent records; return what went wrong, if anything."""
        try:
            self._refuse_another_identity()
            self._withhold_another_origin()
            if self._start.holds:
                await self._writer.load_held_versions()
            self._writer.marks_with_first_records(self._first_marks())
            feed, start, clock = self._feed, self._start, self._clock
            self._writer.marks_with_parts(lambda: soon_marks(feed, start, clock.now()))
            if self._feed.resource.per_qualification:
                await self._read_substreams(qualifications)
            else:
                try:
                    await self._read_all()
                    await self._settle(self._seen)
                except SourceError:
                    await self._read_delta_all_the_same()
                    raise
        except OriginHeld as held:
            return held
        except RoundHeld as held:
            self._concluded = True
            return held
        except PollerError as failure:
            return failure
        reach("round.read")
        return None

    def _first_marks(self) -> dict[str, str | None]:
        """Where the known records come from and what identifies them, for a first reading that is interrupted."""
        marks: dict[str, str | None] = {}
        if self._start.adopts:
            marks[ORIGIN] = self._feed.origin.mark
        if self._state.id_field is None:
            marks[ID_FIELD] = self._feed.id_field
        return marks

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
        if is_withheld_origin(feed.origin, state):
            raise OriginHeld(withheld_origin_reason(feed.id, feed.origin, state))

    def result(self, failure: PollerError | None, *, seconds: float) -> RoundResult:
        """The result of the round."""
        error = str(failure) if failure else None
        if isinstance(failure, SourceError) and self._start.mode is RoundMode.BASELINE and self._state.kept_records:
            error = f"{error}; new records are published as baseline until the first reading is complete"
        learnt = self._drain.learnt
        if self._doubtful is not None and self._drain.pages:
            learnt = learnt.expiring(self._doubtful)
        self._writer.tally.seconds = round(seconds, 3)
        return RoundResult(
            **msgspec.structs.asdict(self._writer.tally),
            feed=self._feed.id,
            mode=self._start.mode,
            ok=error is None,
            error=error,
            held=error if self._is_news(failure) else None,
            learnt=learnt if learnt != self._start.learnt else None,
            away=isinstance(failure, StoreUnavailable),
            token="kept" if self._state.delta_token else "none",
            loss=self._state.loss,
            late=self._deltas.late if self._deltas else None,
            unidentified=self._unidentified,
            backwards=self._writer.backwards,
            held_versions=self._writer.held_versions,
            second_look=None if self._substreams else self._writer.second_look,  # a rotation comes round by itself
        )

    def _is_news(self, failure: PollerError | None) -> bool:
        """Whether this round holds something that was not held before."""
        state = self._state
        if isinstance(failure, OriginHeld):
            return state.held is None or state.held_origin != self._feed.origin.mark
        return isinstance(failure, RoundHeld) and (
            state.held is None or state.held_origin is not None or state.released
        )

    async def conclude(self, result: RoundResult, failure: PollerError | None, next_at: datetime | None) -> RoundResult:
        """Commit the marks of the round."""
        end = RoundEnd(
            at=self._clock.now(),
            result=result,
            complete=self._concluded,
            as_before=self._as_before,
            delta_token=self._delta_token,
            fields=self._drain.query.fields,
            held=str(failure) if isinstance(failure, RoundHeld) else None,
            held_missing=failure.missing if isinstance(failure, RoundHeld) else None,
            next_at=next_at,
            pages=self._pages,
            late=result.late,
            out_of_time=isinstance(failure, RoundTimeExceeded),
            doubtful=self._writer.doubts > 0,
            token_failures=self._token_failures,
            uses_release=self._uses_release,
            awaits_reading=self._awaits_reading,
            gives_token=self._may_lag and (self._start.gives_token or self._uses_listing_token),
            has_removed=self._may_lag and (self._has_young or self._writer.tally.removed > 0),
            has_doubtful_delta=self._has_doubtful_delta,
            has_passed_over=self._has_young or self._writer.passed_over > 0,
            is_old_copy=self._is_old_copy,
        )
        marks = round_marks(self._feed, self._start, end)
        if self._substreams is not None:
            marks |= rotation_marks(self._start, over=self._substreams.is_not_continued, oldest=self._substreams.oldest)
            marks[CONFIRMATION] = confirmation_mark(self._substreams.confirmation)
        if self._timer.shown or self._state.progress is not None:
            marks[PROGRESS] = None
        recheck = self._recheck_after(marks)
        if recheck is not None and next_at is not None:
            marks[NEXT_AT] = rfc3339(min(next_at, end.at + recheck))
        await self._writer.marks(marks, page_digests=self._page_digests() if result.ok else None)
        if end.complete:
            self._writer.keep_doubts()
        if self._unchanged is not None and result.ok and self._start.mode is not RoundMode.DELTA:
            # A record that only a delta has shown may be gone again, and the listing would stay unchanged.
            is_usable = self._settled and not (self._deltas is not None and self._deltas.brought)
            self._unchanged.finish_round(self._position(self._start.begun) if is_usable else None)
        reach("round.done")
        result = msgspec.structs.replace(result, recheck=recheck)
        if DELTA_TOKEN not in marks:
            return result
        return msgspec.structs.replace(result, token="moved" if marks[DELTA_TOKEN] else "none")

    def _recheck_after(self, marks: Mapping[str, str | None]) -> timedelta | None:
        """How long the reading that looks once more waits once these marks are committed; see `RoundResult.recheck`.

        One that has become due while another round ran does not wait.
        """
        new = marks.get(RECHECK_AT)
        at = datetime.fromisoformat(new) if new else self._writer.recheck_at
        wait = recheck_wait(self._feed, at, self._clock.now())
        return timedelta() if wait is None and at is not None and not self._start.rechecks else wait

    def _position(self, read_at: datetime | None) -> FeedPosition:
        return FeedPosition(*self._writer.position, rfc3339(read_at) if read_at else "")

    async def _read_all(self) -> None:
        once_more = True
        while True:
            before = self._drain.pages
            try:
                return await self._read_listing()
            except SourceRefused as refused:
                begun = self._drain.pages > before
                expired = self._drain.is_expired(refused.status)
                if self._start.since and not begun and (expired or self._doubts(refused.status)):
                    # The same request without the delta token decides whether the token is the cause.
                    self._start, self._seen = self._start.without_token(), SeenKeys()
                elif expired and begun and once_more:
                    # A page token expired: the listing is read again from its first page, and what was read already is
                    # silent.
                    once_more, self._seen = False, None if self._seen is None else SeenKeys()
                else:
                    raise

    def _doubts(self, status: int) -> bool:
        """Count an answer that may be about the delta token; whether to try without it."""
        if not casts_doubt(status):
            return False
        self._token_failures = self._start.token_failures + 1
        if not is_to_be_tried_without(self._token_failures):
            return False
        self._doubtful = status
        return True

    async def _read_listing(self) -> None:
        feed, start, clock = self._feed, self._start, self._clock
        path = feed.resource.path
        if start.deltas_since and self._deltas is None:
            lag = feed.lag
            self._deltas = DeltaReader(
                feed,
                self._drain,
                self._writer,
                start.deltas_since,
                recent=partial(self._store.subjects_since, cause=RoundMode.DELTA) if lag else None,
                age=self._age,
                doubt=lambda: doubt_marks(feed, start, clock.now()),
                clock=clock,
            )
        if start.mode is RoundMode.DELTA:
            reader = await self._drain.read_delta(path, start.since)
        else:
            self._digests = PageDigests(await self._known_pages())
            reader = await self._drain.read(
                path, mode=start.mode, listed=self._seen, beside=self._deltas, digests=self._digests
            )
        self._delta_token, self._pages = reader.delta_token, reader.pages
        self._as_before, self._complete = not reader.pages, bool(reader.pages)
        if reader.pages > 1:
            self._second_pass = SecondPass(self._drain, path, self._answers, self._deltas)
            if self._deltas is not None:
                await self._catch_up(self._deltas)
        if self._deltas is not None and self._seen is not None:
            self._deltas.join(self._seen)

    async def _known_pages(self) -> frozenset[bytes]:
        """The digests of the pages of the last full reading, if nothing has changed since."""
        state = self._state
        if not self._start.on_condition or state.read_at is None or state.loss is not None:
            return frozenset()
        return decode_digests(await self._store.page_digests(), self._digest_basis(state.sequence, state.read_at))

    def _digest_basis(self, sequence: int, read_at: datetime) -> DigestBasis:
        state, rules = self._state, self._feed.rules(self._drain.query.fields)
        return DigestBasis(state.generation, sequence, rfc3339(read_at), state.missing_at, rules)

    def _page_digests(self) -> bytes | None:
        """The digests of this reading to be stored; None: a later reading may not rely on them.

        The next reading has to look at all pages if this one has left anything open, if a record was on two pages, or
        if deltas brought some that are on none.
        """
        if self._digests is None or not self._settled or self._as_before or not self._lists_each_record_once:
            return None
        return self._digests.encode(self._digest_basis(self._writer.position[1], self._start.begun))

    @property
    def _lists_each_record_once(self) -> bool:
        """Whether each known record was on exactly one page of this reading."""
        if self._deltas is not None and self._deltas.brought:
            return False
        if self._digests is not None and self._digests.is_unchanged:
            return True
        return self._seen is not None and not self._seen.has_repeated

    async def _read_delta_all_the_same(self) -> None:
        """Read a delta where the full reading has failed, was held or had no pages, unless one was read beside it.

        An API may refuse full readings, need too long for them, lack records for a long time, or call its listing
        unchanged. Changes do not wait for that.
        """
        if self._deltas is not None and not self._deltas.worked:
            with suppress(SourceError):  # the round reports the first failure
                await self._deltas.read()

    async def _catch_up(self, deltas: DeltaReader) -> None:
        """Read a last delta, after which the feed is where its token is."""
        await deltas.read()
        if deltas.refused:
            if self._start.mode is not RoundMode.RESYNC:  # else it was counted before
                self._start = self._start.without_token()
        elif self._delta_token and deltas.worked and deltas.stand_still:
            self._uses_listing_token = True
        else:  # where no delta could be read, deltas go on from the old token: a listing may lag behind its own
            self._delta_token = deltas.token

    async def _read_substreams(self, qualifications: Named) -> None:
        self._substreams = substreams = SubstreamReader(
            self._feed,
            self._drain,
            self._writer,
            self._ask,
            await self._store.listings(),
            clock=self._clock,
            timer=self._timer,
            since=self._start.begun,
            resumed=self._start.resumed,
            conditional=self._start.on_condition,
            rules=self._rules_digest,
        )
        failure: SourceError | None = None
        try:
            slot = self._feed.slot if self._start.in_slots else None
            await substreams.read(qualifications, mode=self._start.mode, slot=slot)
        except SourceError as error:
            failure = error
        self._complete = substreams.is_complete
        if self._complete:
            await self._settle(substreams.seen())
        if self._kept:
            kept = f"{self._kept} missing records are not removed, for they may be in a listing that could not be read"
            failure = SourceError(f"{failure}; {kept}" if failure else kept)
        if failure is not None:
            raise failure

    @property
    def _rules_digest(self) -> bytes:
        rules = f"{self._feed.rules(self._drain.query.fields)} {self._state.taken_over}"
        return blake2b(rules.encode(), digest_size=8).digest()

    @property
    def _unidentified(self) -> int:
        """The number of records whose id cannot be read, in all listings."""
        return self._substreams.unidentified if self._substreams is not None else self._writer.unidentified

    @property
    def _since_marked(self) -> timedelta | None:
        """The time between this reading and the one that last marked records missing."""
        now_ms, marked_ms = self._state.now_ms, self._state.missing_at
        return None if marked_ms is None else timedelta(milliseconds=now_ms - marked_ms)

    async def _settle(self, seen: SeenKeys | None) -> None:
        """Remove what a full reading did not hold. A baseline has nothing to compare with."""
        age = self._answers.age
        if self._substreams is not None:
            self._has_unread, self._unsure = self._substreams.has_unread, self._substreams.unsure
            self._left, age = self._substreams.left, max(age, self._substreams.age)
            self._may_have_moved = not self._released and self._substreams.may_hold(self._state.missing_at)
        if seen is not None and not self._as_before and self._complete:
            await self._writer.release_unseen(seen)
        if not self._feed.removals:
            self._settled = True
        elif self._as_before or (self._digests is not None and self._digests.is_unchanged):
            # The records of an unchanged listing exist; they were settled when the listing was read.
            self._settled = True
        elif self._unidentified:
            self._settled = False  # any of the absent records may be one of those; the next reading may tell
        elif seen is not None and self._start.mode is not RoundMode.BASELINE:
            absence = await settle_absent(
                self._feed,
                self._store,
                self._get,
                seen,
                are_known=self._are_known,
                anything_read=self._writer.has_listed if self._substreams is None else bool(seen),
                released=self._released,
                released_missing=self._state.released_missing,
                since_marked=self._since_marked,
                age=age,
                lacks_listed=self._drain.learnt.lacks_listed(self._state.now_ms),
                lag=self._feed.lag if self._may_lag else timedelta(),
                remove=partial(self._writer.remove, mode=self._start.mode),
                mark=self._writer.mark_missing,
                keeps=self._keeps,
                second_pass=self._second_pass,
                deltas=self._deltas,
                clock=self._clock,
            )
            self._settled, self._uses_release = absence.is_complete, absence.uses_release
            self._awaits_reading = absence.awaits_reading
            self._has_young = absence.has_young
            if absence.lacks_listed:
                self._drain.learnt = msgspec.structs.replace(self._drain.learnt, lacking_at=self._state.now_ms)
        # The token of a listing of one page is not used: it may lag behind the deltas. Others may have been read since.
        if self._deltas is not None and self._as_before:
            await self._read_delta_all_the_same()
            self._settled = self._settled and not self._deltas.brought
        elif self._deltas is not None and self._deltas.token != self._delta_token:
            await self._catch_up(self._deltas)
        self._settled = self._settled and not (self._writer.passed_over or self._writer.unsettled)
        self._concluded = self._complete

    @property
    def _are_known(self) -> bool:
        """Whether each record that is in the listings is known, and not removed."""
        is_alone = self._deltas is None or not self._deltas.brought  # what deltas repeat may be removed since
        are_stored = self._substreams is None or self._substreams.are_stored
        return self._writer.lists_known and is_alone and are_stored

    @property
    def _may_lag(self) -> bool:
        """Whether a record may be known that the listing does not show yet."""
        learnt = self._drain.learnt.delta_token != "none"  # noqa: S105 -- no token, but where there is none
        has_tokens = learnt or (self._state.delta_token or self._delta_token) is not None
        return self._feed.delta and has_tokens and self._substreams is None and bool(self._feed.lag)

    @property
    def _has_doubtful_delta(self) -> bool:
        """Whether a delta had records that could not be distinguished, or that may not be as they are known."""
        if self._start.mode is RoundMode.DELTA:
            return self._writer.doubts > 0
        return self._deltas is not None and self._deltas.doubtful

    @property
    def _is_old_copy(self) -> bool:
        """Whether a cache made this listing before the API had the time to show what the reading was to find."""
        start, age = self._start, self._answers.age
        if not self._may_lag:
            return False
        if start.rechecks:
            return start.recheck_from is not None and start.begun - age < start.recheck_from <= start.begun
        return start.confirms and age > ROUNDED

    @property
    def _released(self) -> bool:
        """Whether an operator has approved what is held: removals, or the differences at this origin."""
        state = self._state
        return state.released and state.held_origin in (None, self._feed.origin.mark)

    def _keeps(self, key: str, snapshot: Snapshot) -> bool:
        """Whether this absent record may be in a listing that could not be read."""
        if not self._unsure:
            return False
        qualification = self._feed.last_seen(key, snapshot).qualification
        own = self._has_unread if qualification is None else qualification.lower() in self._unsure
        kept = own or key in self._left or self._may_have_moved
        self._kept += kept
        return kept


# Readings that may ask for listings conditionally: the store holds all of an unchanged listing. A baseline, a resync
# and a delta must see the records themselves.
_ON_CONDITION: Final = frozenset({RoundMode.FULL, RoundMode.RECONCILE})


class RoundStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a round starts.

    Attributes:
        mode: the kind of reading.
        since: the delta token that it starts from; None: there is none.
        begun: when the reading started, or the rotation that it continues.
        resumed: whether it continues a rotation.
        orders: the marks of what an operator has ordered.
        refusals: how many delta tokens in a row the API has refused.
        learnt: what is known of the API.
        held_at: since when something waits for an operator; None: nothing does, or the time is unknown.
        holds: whether older versions are held back.
        held_origin: see :attr:`poller.store.feed_state.FeedState.held_origin`.
        adopts: whether the feed's origin is committed with the first records; see :mod:`poller.source.feed`.
        deltas_since: the delta token for deltas beside a full reading; None: none are read.
        confirmation: what is left to be confirmed of earlier readings; None: nothing.
        token_failures: see :attr:`poller.store.feed_state.FeedState.token_failures`.
        recheck_at: see :attr:`poller.store.feed_state.FeedState.recheck_at`.
        rechecks: whether it is due.
        is_untimely: whether it is, and comes long before or after its time: the server's clock may have been set, and
            the listing may not show yet what is looked for.
        recheck_from: see :attr:`poller.store.feed_state.FeedState.recheck_from`.
        rechecked: see :attr:`poller.store.feed_state.FeedState.rechecked`.
    """

    mode: RoundMode
    since: str | None
    begun: datetime
    resumed: bool
    orders: tuple[str, ...]
    refusals: int
    learnt: DetectedCapabilities
    held_at: datetime | None = None
    holds: bool = False
    held_origin: str | None = None
    adopts: bool = False
    deltas_since: str | None = None
    confirmation: Confirmation | None = None
    token_failures: int = 0
    recheck_at: datetime | None = None
    rechecks: bool = False
    is_untimely: bool = False
    recheck_from: datetime | None = None
    rechecked: int = 0

    @property
    def in_slots(self) -> bool:
        """Whether a reading of many listings may be continued in the next round."""
        return self.mode in _ON_CONDITION and not self.orders

    @property
    def on_condition(self) -> bool:
        """Whether the API may answer that a listing is unchanged.

        Not while versions are held back, nor when a reading looks for what the listing did not show before.
        """
        return self.in_slots and not (self.holds or self.rechecks or self.confirms)

    @property
    def gives_token(self) -> bool:
        """Whether deltas go on from the token of this listing, for none were read beside it."""
        return self.mode in (RoundMode.BASELINE, RoundMode.FULL, RoundMode.RESYNC)

    @property
    def confirms(self) -> bool:
        """Whether this is one of the readings that confirm earlier ones."""
        return self.mode is RoundMode.RECONCILE and self.confirmation is not None and self.confirmation.due

    def without_token(self) -> RoundStart:
        """The start as a resync, after the API refused the delta token."""
        return msgspec.structs.replace(
            self, mode=RoundMode.RESYNC, since=None, deltas_since=None, refusals=self.refusals + 1
        )


class RoundEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a round ended.

    Attributes:
        at: the store's clock, UTC.
        result: the result.
        complete: whether everything was read, and removals are settled or held.
        as_before: whether the listing is unchanged and was not read.
        delta_token: where the next delta starts; None: the API gave none.
        fields: the requested fields; empty: all.
        held: why something waits for an operator; None: nothing does. In an incomplete round: the origin is withheld
            and nothing was read.
        held_missing: how many missing records wait for an operator; None: another origin does, or nothing.
        next_at: when the next round is due; None: unknown.
        pages: of the listing that was read last.
        late: how many records a full reading brought that no delta beside it had; None: unknown.
        out_of_time: whether it was given up because it took too long.
        doubtful: whether some of its records could not be distinguished, or are known only in part.
        token_failures: how many doubtful answers in a row the delta token has met, this round's the last; None where
            it met none.
        uses_release: whether it has carried out an operator's release; False: what is released waits for a second
            reading.
        awaits_reading: whether a second reading decides about records that it missed.
        gives_token: whether deltas go on from a token of the listing, which may lag behind it.
        has_removed: whether it has removed records, or has left some alone for now.
        has_doubtful_delta: whether a delta had records that could not be separated, or may not be as they are known.
        has_passed_over: whether it left some records as they are known, because a delta has brought them lately.
        is_old_copy: whether it is a copy that a cache had made before it could show what it was to show.
    """

    at: datetime
    result: RoundResult
    complete: bool
    as_before: bool
    delta_token: str | None
    fields: tuple[str, ...]
    held: str | None
    held_missing: int | None = None
    next_at: datetime | None = None
    pages: int = 1
    late: int | None = None
    out_of_time: bool = False
    doubtful: bool = False
    token_failures: int | None = None
    uses_release: bool = True
    awaits_reading: bool = False
    gives_token: bool = False
    has_removed: bool = False
    has_doubtful_delta: bool = False
    has_passed_over: bool = False
    is_old_copy: bool = False


def round_start(feed: Feed, state: FeedState, now: datetime) -> RoundStart:
    """Where a round of this feed starts now."""
    mode, since = due_mode(feed, state, now)
    orders = tuple(name for name, given in ((RELEASED, state.released), (RESYNC, state.resync)) if given)
    goes_on = feed.slot is not None and (mode is RoundMode.BASELINE or (mode in _ON_CONDITION and not orders))
    # A rotation of the future began before the store's clock was set back: it would not end before that moment.
    rotation = state.rotation if goes_on and state.rotation is not None and state.rotation <= now else None
    rechecks = is_recheck_due(feed, state.recheck_at, now)
    starts_over = state.resync or state.query != feed.fingerprint
    return RoundStart(
        mode=mode,
        since=since,
        begun=rotation or now,
        resumed=rotation is not None,
        orders=orders,
        refusals=0 if starts_over else state.refusals,
        learnt=capabilities_of(None if state.resync else state.learnt).about(feed.fingerprint),
        held_at=state.held_at if state.held else None,
        holds=state.held_versions > 0,
        held_origin=state.held_origin,
        adopts=state.origin != feed.origin.mark
        and is_known_origin(feed.origin, state)
        and state.query in (None, feed.fingerprint),
        deltas_since=state.delta_token if mode is RoundMode.RECONCILE else None,
        confirmation=confirmation_of(state.confirmation),
        token_failures=state.token_failures,
        recheck_at=state.recheck_at,
        rechecks=rechecks,
        is_untimely=rechecks and state.recheck_at is not None and abs(now - state.recheck_at) > feed.second_look,
        recheck_from=state.recheck_from,
        rechecked=state.rechecked,
    )


def round_marks(feed: Feed, start: RoundStart, end: RoundEnd) -> dict[str, str | None]:
    """The marks that a round leaves. None deletes a mark."""
    now = rfc3339(end.at)
    marks: dict[str, str | None] = {ROUND: msgspec.json.encode(end.result.public).decode(), ROUND_AT: now}
    marks |= _doubts_of_the_token(start, end)
    if end.next_at is not None:
        marks[NEXT_AT] = rfc3339(end.next_at)
    if end.result.ok:
        marks[GOOD_AT] = now
    if end.result.learnt is not None:
        marks[LEARNT] = msgspec.json.encode(end.result.learnt).decode()
    if start.held_origin is not None and end.held is None and (end.result.ok or end.complete):
        marks |= dict.fromkeys((HELD, HELD_AT, HELD_MISSING, HELD_ORIGIN))
        marks |= {} if start.held_origin == feed.origin.mark else {RELEASED: None}  # which was for another origin
    if end.complete:
        marks |= _next_start_marks(feed, start, end)
    elif end.held is not None:
        marks |= {HELD: end.held, HELD_AT: rfc3339(start.held_at or end.at), HELD_ORIGIN: feed.origin.mark}
        marks[HELD_MISSING] = None
        if RELEASED in start.orders or start.held_origin != feed.origin.mark:  # which is about something else
            marks[RELEASED] = None
    elif end.result.ok and end.as_before:
        marks[READ_AT] = rfc3339(start.begun)
    elif end.out_of_time and start.confirms:
        marks[CONFIRMATION] = confirmation_mark(start.confirmation and start.confirmation.after(None))
    return marks


def _doubts_of_the_token(start: RoundStart, end: RoundEnd) -> dict[str, str | None]:
    if end.result.ok:
        return {TOKEN_FAILURES: None} if start.token_failures else {}
    return {} if end.token_failures is None else {TOKEN_FAILURES: str(end.token_failures)}


def rotation_marks(start: RoundStart, *, over: bool, oldest: int | None) -> dict[str, str | None]:
    """The marks that a round over many listings leaves in addition.

    Args:
        start: where it started.
        over: whether all listings were tried, or the next round begins with all of them again.
        oldest: the start of the oldest last reading, milliseconds; None: some were never read.
    """
    shown = None if oldest is None else rfc3339(datetime.fromtimestamp(oldest / 1000, UTC))
    return {ROTATION: None if over else rfc3339(start.begun), OLDEST: shown}


def _next_start_marks(feed: Feed, start: RoundStart, end: RoundEnd) -> dict[str, str | None]:
    full = start.mode is not RoundMode.DELTA
    marks: dict[str, str | None] = {
        QUERY: feed.fingerprint,
        ID_FIELD: feed.id_field,
        ORIGIN: feed.origin.mark,
        FIELDS: fields_mark(end.fields),
        REFUSALS: str(start.refusals) if start.refusals and full else None,
    }
    # A listing that lacks too much may lack changes, too, and no delta after its token would bring them.
    held = full and end.held is not None
    keeps_token = held and start.mode is RoundMode.RECONCILE
    if end.delta_token and feed.delta and not held:
        marks |= {DELTA_TOKEN: end.delta_token, DELTA_TOKEN_AT: rfc3339(end.at)}
    elif full and not keeps_token:
        marks |= dict.fromkeys((DELTA_TOKEN, DELTA_TOKEN_AT))
    if not full and end.doubtful:
        marks |= doubt_marks(feed, start, end.at)
    if full:
        unidentified = end.result.unidentified
        undecided = bool(unidentified) and start.held_origin is None  # held removals were not looked at
        keeps_release = undecided or not end.uses_release
        done = [order for order in start.orders if order != RELEASED or not keeps_release]
        marks |= {READ_AT: rfc3339(start.begun), **dict.fromkeys(done)}
        marks[UNIDENTIFIED] = str(unidentified) if unidentified else None
        if end.held is None and not keeps_release:  # given meanwhile, it would permit what no round has held yet
            marks[RELEASED] = None
        if not undecided:
            marks |= {HELD: end.held, HELD_AT: rfc3339(start.held_at or end.at) if end.held else None}
            marks[HELD_MISSING] = None if end.held_missing is None else str(end.held_missing)
        if start.held_origin is not None:
            marks[HELD_ORIGIN] = None
        marks |= _recheck_marks(feed, start, end)
        if not feed.resource.per_qualification:
            confirmed_by_deltas = marks.get(DELTA_TOKEN) or keeps_token
            marks[CONFIRMATION] = confirmation_mark(_to_be_confirmed(start, end)) if confirmed_by_deltas else None
    return marks


def doubt_marks(feed: Feed, start: RoundStart, at: datetime) -> dict[str, str | None]:
    """The marks that go with the token of a doubtful delta: for a reading now, and one when the listing shows it."""
    confirmation = confirmation_mark(after_doubtful_delta(start.confirmation))
    return {CONFIRMATION: confirmation, **soon_marks(feed, start, at), RECHECKED: None}


def soon_marks(feed: Feed, start: RoundStart, at: datetime) -> dict[str, str | None]:
    """The marks for a full reading as soon as the listing shows what deltas have brought until this moment."""
    return _recheck_at(feed, start, at, at + feed.lag + feed.apart)


def _recheck_at(feed: Feed, start: RoundStart, at: datetime, due: datetime) -> dict[str, str | None]:
    """The marks for a full reading that looks for what was not shown at a moment, and no earlier than a pending one."""
    pending = due if start.rechecks or start.recheck_at is None else start.recheck_at
    return {RECHECK_AT: rfc3339(max(due, pending)), RECHECK_FROM: rfc3339(at + feed.lag)}


def _recheck_marks(feed: Feed, start: RoundStart, end: RoundEnd) -> dict[str, str | None]:
    """The marks for a full reading that has to follow this one.

    Readings that follow each other are counted, from an ordinary one on, and at most :data:`MOST` are ordered: of a
    feed in which something changes at any time each may leave something to the next one.
    """
    soon, later = end.at + feed.lag + feed.apart, end.at + feed.second_look
    number = start.rechecked if start.rechecks or start.confirms else 0
    due: list[datetime] = []
    # What it has left alone because it was published lately is looked for like what it has passed over.
    has_removed = end.has_removed and (not start.rechecks or end.result.removed > 0)
    if number < MOST:
        if end.gives_token or has_removed or start.is_untimely or (end.is_old_copy and start.rechecks):
            due.append(later)
        if end.has_passed_over or (end.is_old_copy and not start.rechecks):
            due.append(soon + (feed.lag + feed.apart) * start.rechecks)
    number += bool(due) and (start.rechecks or start.recheck_at is None)
    if end.has_doubtful_delta:  # there is an end to these if it ends
        due.append(soon)
    marks: dict[str, str | None] = {RECHECKED: str(number) if number else None}
    looks_for_more = not start.rechecks or any(
        (end.gives_token, has_removed, end.has_passed_over, end.has_doubtful_delta, start.is_untimely)
    )
    if due and not looks_for_more:  # but for a newer copy of what this one was to show
        return marks | {RECHECK_AT: rfc3339(max(due))}
    if due:
        return marks | _recheck_at(feed, start, end.at, max(due))
    if not start.rechecks:
        return marks
    is_over = not (end.has_passed_over or end.is_old_copy or end.awaits_reading or end.doubtful or end.late)
    return {RECHECK_AT: None, RECHECK_FROM: None, RECHECKED: None if is_over else marks[RECHECKED]}


def _to_be_confirmed(start: RoundStart, end: RoundEnd) -> Confirmation | None:
    confirming = start.mode is RoundMode.RECONCILE
    doubtful = end.doubtful or end.awaits_reading or end.held is not None
    if start.rechecks and end.late == 0 and not (doubtful or start.confirms or end.is_old_copy):
        return None
    if start.rechecks and start.confirmation is not None and not start.confirms:  # it was given up
        return after_doubtful_delta(start.confirmation) if doubtful else start.confirmation
    late = None if end.is_old_copy else end.late
    return after_reading(start.confirmation, pages=end.pages, confirming=confirming, late=late, doubtful=doubtful)
