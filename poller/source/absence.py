"""Confirms that records which a full reading did not list are gone, and then removes them.

Theory of operation
-------------------
A record is gone when ``GET …/{id}`` answers 404 or 410 twice; the second
request starts after all first ones, at least :attr:`Feed.apart` later. An API behind two unequal backends answers 404
now and then for what the other one has; a backend that lags by less has caught up by then.

In a feed with deltas a record that was published lately is given more time (:attr:`Feed.lag`): the listing and the
endpoint may show a copy of the data that lags behind. If they lag by more, the record is removed, and a full reading a
minute later publishes it again (:data:`poller.store.feed_state.RECHECK_AT`). Deltas go on while this waits or asks.

A listing of several pages is read once more before records are removed (:class:`poller.source.drain.SecondPass`). A
record may slip over the edge of a page while the listing is read, and the endpoint may be one that never shows it.

In some cases a second full reading at least as much later has to miss the record too; until then its snapshot is marked
missing. A record that the endpoint has is not removed then either. The cases are:

- The endpoint does not have a record that is listed: its path is wrong, it takes another id, or it does not show
  archived records. A few records that are listed are requested to find that out, other ones each time; it counts for a
  day (:meth:`poller.source.paging.DetectedCapabilities.lacks_listed`).
- The second pass does not say what is listed: a key in it cannot be read, it failed, or the round has taken too long.
- It answers with something else than the record: a page of HTML, an empty object, a list.
- There is no such endpoint, servers may misread the id (``a/b``, ``..``), or a cache repeats the first answer.

**Invariants**

- One or two records that cannot be requested fail the round, but do not stop the removal of the others in their batch.
  After three requests without an answer no more are made: an endpoint that hangs would otherwise take the source's
  places from all its feeds.
- An answer that a cache had kept from before the confirmation does not say that a record is gone; nor does a copy of
  a listing from before the records were marked missing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Final

import msgspec

from poller.changes.diff import Snapshot, checked
from poller.changes.plan import SeenKeys
from poller.changes.records import subject_of
from poller.clock import Clock
from poller.errors import RoundHeld, SourceError, SourceRefused, SourceUnavailable
from poller.lifecycle import ended
from poller.source.drain import OLDEST_COPY, DeltaReader, SecondPass
from poller.source.feed import Feed
from poller.source.paging import SLICE_RECORDS, Get
from poller.source.writer import GONE, RoundStore, batches, single_record
from poller.store.feed import MissingRecords

_LOOKED_FOR_AT_ONCE: Final = 16 * SLICE_RECORDS  # records; each time all snapshots are gone through
_ROUNDED: Final = 1  # second; ``Age`` is a whole number
_UNANSWERED: Final = 3  # requests after which no more are made


class _Verdict(Enum):
    GONE = auto()
    HERE = auto()
    REPEATED = auto()  # a cache on the way has repeated the first answer
    UNCLEAR = auto()  # an answer that is not this record


_UNDECIDED: Final = frozenset({_Verdict.REPEATED, _Verdict.UNCLEAR})

WriteAbsent = Callable[[Mapping[str, Snapshot]], Awaitable[None]]
"""Commits these records as removed, or marks them as missing."""


class SettledAbsence(msgspec.Struct, frozen=True):
    """What became of the records that a full reading did not hold.

    Attributes:
        is_complete: whether all are gone; else some are known and still absent from the listing, so the next full
            reading has to look for them again, even if the listing is unchanged.
        uses_release: whether this was all that an operator's release lets through; False: removals that it lets
            through wait for a second reading.
        awaits_reading: whether records are missing for the first time, and a second reading decides.
        lacks_listed: whether the single-record endpoint was found not to have a record that is listed.
        has_young: whether a record is left alone because a delta has just brought it.
    """

    is_complete: bool
    uses_release: bool = True
    awaits_reading: bool = False
    lacks_listed: bool = False
    has_young: bool = False


async def settle_absent(
    feed: Feed,
    store: RoundStore,
    get: Get,
    seen: SeenKeys,
    *,
    are_known: bool = False,
    anything_read: bool,
    released: bool,
    released_missing: int | None = None,
    since_marked: timedelta | None,
    age: timedelta = timedelta(),
    lacks_listed: bool = False,
    lag: timedelta = timedelta(),
    remove: WriteAbsent,
    mark: WriteAbsent,
    keeps: Callable[[str, Snapshot], bool] = lambda *_: False,
    second_pass: SecondPass | None = None,
    deltas: DeltaReader | None = None,
    clock: Clock,
) -> SettledAbsence:
    """Confirm and remove the records that a complete reading did not hold.

    Args:
        feed: the feed.
        store: has the snapshots.
        get: one exchange with the API.
        seen: the keys of the reading; absent keys are added.
        are_known: whether each of them is of a record that is known and not removed.
        anything_read: whether the listings held anything.
        released: whether an operator has approved what the removal guard holds.
        released_missing: how many records were missing when it was held; the guard decides about more. None: unknown.
        since_marked: the time since records were last marked missing; None: never, or unknown.
        age: how long a cache had kept the oldest answer of the reading.
        lacks_listed: whether the single-record endpoint is known not to have all records that are listed.
        lag: by how much the listing may lag behind deltas; zero: it has none.
        remove: commits the removal of records.
        mark: commits that records are missing for the first time.
        keeps: whether a record may be in a listing that could not be read; then no reading confirms that it is gone.
        second_pass: over the listing; None: it has no edge of a page.
        deltas: those that go on meanwhile; None: there are none.
        clock: of this process.

    Raises:
        RoundHeld: too much is missing; nothing was removed.
        SourceError: a record could not be requested, or a cache had kept the listing since before records were marked
            missing; those that are certainly gone are removed.
    """
    absent = await store.absent(seen, most=_LOOKED_FOR_AT_ONCE, known=len(seen) if are_known else None)
    holding = partial(feed.breaker.holds, live=absent.live, anything_read=anything_read)
    holds = holding(missing=absent.missing)
    too_many = released and released_missing is not None and holding(missing=max(absent.missing - released_missing, 0))
    if holds and (too_many or not released):
        more = f", {released_missing} when they were released" if too_many else ""
        raise RoundHeld(
            f"{absent.missing} of {absent.live} known records are missing from the full reading{more}: nothing is "
            f"removed; if they are really gone, let it through with: poller release {feed.id}",
            missing=absent.missing,
        )
    too_soon = since_marked is not None and timedelta() <= since_marked < feed.apart + age
    young = await store.subjects_since(lag + min(age, OLDEST_COPY)) if lag and absent.missing else frozenset[str]()
    readings = _AbsenceByReadings(store, remove, mark, too_soon=too_soon, keeps=keeps, young=young, deltas=deltas)
    if feed.resource.detail_path is None:
        settled = await _settle_by_readings(
            store, absent, seen, readings, second_pass, apart=feed.apart, deltas=deltas, clock=clock
        )
    else:
        requests = _AbsenceByRequests(
            feed,
            store,
            get,
            remove,
            readings,
            lacks_listed=lacks_listed,
            second_pass=second_pass,
            deltas=deltas,
            clock=clock,
        )
        settled = await requests.settle(absent, seen)
        lacks_listed = requests.has_lacked
    if too_soon and readings.is_first and since_marked is not None and since_marked >= feed.apart:
        raise SourceUnavailable(
            f"a cache on the way has kept the listing for {age.total_seconds():g} s, so it does not say that the "
            "records which an earlier answer lacked are gone now"
        )
    uses_release = not (holds and readings.is_first)
    return SettledAbsence(settled, uses_release, readings.awaits_reading, lacks_listed, readings.has_young)


class _AbsenceByReadings:
    """Confirms absence by a second reading, for records that cannot be requested."""

    def __init__(
        self,
        store: RoundStore,
        remove: WriteAbsent,
        mark: WriteAbsent,
        *,
        too_soon: bool,
        keeps: Callable[[str, Snapshot], bool],
        young: Container[str],
        deltas: DeltaReader | None,
    ) -> None:
        # This reading confirms nothing: records that it misses first count as missed first by the next one.
        self.too_soon = too_soon
        self.is_first = False  # whether a second reading is needed, and this one has confirmed none
        self.awaits_reading = False  # whether a second reading is needed
        self._has_removed = False
        self._store = store
        self._deltas = deltas
        self._remove = remove
        self._mark = mark
        self._keeps = keeps
        self.listed: Container[str] | None = ()  # in a second pass, of the absent records; None: it did not say
        self.young = young  # the subjects of records that a delta has just brought
        self.has_young = False  # whether one of these was left alone

    async def settle(self, missing: Mapping[str, Snapshot]) -> bool:
        """Remove or mark them; whether all of them are gone."""
        if not missing or self.too_soon:
            self.is_first = self.awaits_reading = self.is_first or bool(missing)
            return not missing
        present = await self._without_brought(missing)
        grown = {key: snapshot for key, snapshot in present.items() if subject_of(key) not in self.young}
        self.has_young = self.has_young or len(grown) < len(missing)
        absent = {key: snapshot for key, snapshot in grown.items() if not self._keeps(key, snapshot)}
        marked = {key: snapshot for key, snapshot in absent.items() if snapshot.missing}
        is_unknown = self.listed is None and bool(marked)
        again = {} if self.listed is None else {key: one for key, one in marked.items() if key not in self.listed}
        await self._remove(again)
        unsure = {key: snapshot for key, snapshot in absent.items() if not snapshot.missing}
        # An unreadable snapshot does not say which listing it was in: it stays until the record is back.
        first = {key: snapshot for key, snapshot in unsure.items() if not snapshot.unreadable}
        await self._mark(first)
        self.awaits_reading = self.awaits_reading or bool(first) or is_unknown
        self._has_removed = self._has_removed or bool(again)
        self.is_first = (self.is_first or self.has_young or bool(first) or is_unknown) and not self._has_removed
        return not unsure and len(again) == len(missing)

    async def _without_brought(self, missing: Mapping[str, Snapshot]) -> Mapping[str, Snapshot]:
        """Those that no delta has brought since they were found missing, as they are known now."""
        if self._deltas is None or not self._deltas.brought:
            return missing
        brought = self._deltas.brought
        return await _known_now(self._store, [key for key in missing if key not in brought])


async def _known_now(store: RoundStore, keys: list[str]) -> dict[str, Snapshot]:
    """The snapshots of these keys that are not removed; those that cannot be read are marked as such."""
    known = (await store.known(keys)).items()
    return {key: checked(snapshot) for key, snapshot in known if not snapshot.removed}


async def _wait_until(moment: float, deltas: DeltaReader | None, clock: Clock) -> None:
    """Wait for a moment of the monotonic clock; deltas go on until then."""
    if deltas is not None:
        await deltas.read_until(moment)
    else:
        await clock.sleep(max(moment - clock.monotonic(), 0))


async def _settle_by_readings(
    store: RoundStore,
    absent: MissingRecords,
    seen: SeenKeys,
    readings: _AbsenceByReadings,
    second_pass: SecondPass | None,
    *,
    apart: timedelta,
    deltas: DeltaReader | None,
    clock: Clock,
) -> bool:
    if readings.too_soon:
        return await readings.settle(absent.some)
    if second_pass is not None and any(snapshot.missing for snapshot in absent.some.values()):
        # Else a cache may repeat the first pass, and its age does not show that.
        await _wait_until(clock.monotonic() + apart.total_seconds(), deltas, clock)
        readings.listed = await second_pass.keys()
        if second_pass.is_futile:
            readings.listed = ()  # the readings decide
    settled = True
    while absent.some:
        for some in batches(absent.some.items()):
            settled = await readings.settle(some) and settled
        seen.update(absent.some)
        absent = await store.absent(seen, most=_LOOKED_FOR_AT_ONCE)
    return settled


class _AbsenceByRequests:
    """Confirms absence by two requests for each record."""

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        get: Get,
        remove: WriteAbsent,
        readings: _AbsenceByReadings,
        *,
        lacks_listed: bool,
        second_pass: SecondPass | None,
        deltas: DeltaReader | None,
        clock: Clock,
    ) -> None:
        self.has_lacked = False  # a record that is listed
        self._second_pass = second_pass
        self._deltas = deltas
        self._listed: Container[str] = ()  # what the second pass has listed of the absent records
        self._lacks_listed = lacks_listed
        self._feed = feed
        self._store = store
        self._get = get
        self._remove = remove
        self._readings = readings
        self._clock = clock
        self._begun = clock.monotonic()
        self._apart = feed.apart
        self._failure: SourceError | None = None  # of one record; the others of its batch are settled all the same
        self._gone: list[tuple[float, list[str]]] = []  # by the first answers: when the last of them came, and whose

    async def settle(self, absent: MissingRecords, seen: SeenKeys) -> bool:
        settled, listed = True, absent.listed
        while absent.some and self._failure is None:
            for some in batches(absent.some.items()):
                if self._failure is None:
                    settled = await self._asked_once(some) and settled
                    if self._deltas is not None:  # changes do not wait for thousands of missing records
                        await self._deltas.read_if_due()
            seen.update(absent.some)
            absent = await self._store.absent(seen, most=_LOOKED_FOR_AT_ONCE)
        if self._gone and not (await self._has_all(listed) and await self._has_listed_again()):
            return await self._leave_to_readings() and settled
        for answered_at, keys in self._gone:
            await self._wait_after(answered_at)
            settled = await self._asked_again(keys, answered_at) and settled
            if self._deltas is not None:
                await self._deltas.read_if_due()
        if self._failure is not None:
            raise self._failure
        return settled

    async def _has_all(self, listed: Mapping[str, Snapshot]) -> bool:
        """Whether the endpoint has these records, which are listed, as far as they can be requested."""
        readable = {key: snapshot for key, snapshot in listed.items() if not snapshot.unreadable}
        paths = {key: self._feed.absence_path(key, snapshot) for key, snapshot in readable.items()}
        asked = {key: path for key, path in paths.items() if path is not None}
        verdicts = await self._verdicts(asked)
        self.has_lacked = _Verdict.GONE in verdicts.values()
        return all(verdicts.get(key) is _Verdict.HERE for key in asked)

    async def _has_listed_again(self) -> bool:
        """Read the listing once more if it has several pages; whether what is listed is known."""
        if self._second_pass is None:
            return True
        await self._wait_after(self._gone[-1][0])
        try:
            listed = await self._second_pass.keys()
        except SourceError as failure:
            self._failure = self._failure or failure
            return False
        if listed is not None:
            self._listed = listed
        return listed is not None

    async def _wait_after(self, answered_at: float) -> None:
        await _wait_until(answered_at + self._apart.total_seconds(), self._deltas, self._clock)

    async def _leave_to_readings(self) -> bool:
        settled = True
        for _, keys in self._gone:
            settled = await self._readings.settle(await _known_now(self._store, keys)) and settled
        if self._failure is not None:
            raise self._failure
        return settled

    async def _asked_once(self, absent: Mapping[str, Snapshot]) -> bool:
        paths = {key: self._feed.absence_path(key, snapshot) for key, snapshot in absent.items()}
        verdicts = await self._verdicts({key: path for key, path in paths.items() if path is not None})
        undecided = {key for key, path in paths.items() if path is None or verdicts.get(key) is _Verdict.UNCLEAR}
        gone = {key for key, verdict in verdicts.items() if verdict is _Verdict.GONE}
        if self._lacks_listed:
            slipped = {key for key in gone if not absent[key].unreadable}  # these cannot be marked missing
            undecided, gone = undecided | slipped, gone - slipped
        settled = await self._readings.settle({key: absent[key] for key in paths if key in undecided})
        if any(subject_of(key) in self._readings.young for key in gone):
            self._apart = max(self._feed.apart, self._feed.lag)
        if gone:
            self._gone.append((self._clock.monotonic(), sorted(gone)))
        return settled and all(verdict is not _Verdict.HERE for verdict in verdicts.values())

    async def _asked_again(self, keys: list[str], answered_at: float) -> bool:
        known = await _known_now(self._store, keys)
        paths = {key: self._feed.absence_path(key, snapshot) for key, snapshot in known.items()}
        verdicts = await self._verdicts({key: path for key, path in paths.items() if path is not None}, answered_at)
        brought = self._deltas.brought if self._deltas is not None else ()
        here = {key for key in known if key in brought}
        self._readings.has_young = self._readings.has_young or bool(here)
        gone = {key: known[key] for key, verdict in verdicts.items() if verdict is _Verdict.GONE and key not in here}
        lacked = {key for key in gone if key in self._listed}
        self.has_lacked = self.has_lacked or bool(lacked)
        await self._remove({key: snapshot for key, snapshot in gone.items() if key not in lacked})
        undecided = {key: known[key] for key, verdict in verdicts.items() if verdict in _UNDECIDED}
        settled = await self._readings.settle(undecided) and not (lacked or here)
        return settled and all(verdict is not _Verdict.HERE for verdict in verdicts.values())

    async def _verdicts(self, paths: Mapping[str, str], answered_at: float | None = None) -> dict[str, _Verdict]:
        """What the requests say, by record key. A record whose request failed or was not made is left out.

        Requests are made one by one until one is answered; then the others are made at the same time. Each round begins
        with another record, so a record that always fails does not block the others forever.
        """
        verdicts: dict[str, _Verdict] = {}
        unanswered = 0

        async def ask(key: str) -> None:
            nonlocal unanswered
            try:
                verdicts[key] = await self._verdict(key, paths[key], answered_at)
            except SourceError as failure:
                self._failure = self._failure or failure
                unanswered += isinstance(failure, SourceUnavailable)

        keys = list(paths)
        begin = int(self._begun * 1000) % max(len(keys), 1)
        left = deque((*keys[begin:], *keys[:begin]))
        while left and unanswered < _UNANSWERED:
            before = unanswered
            await ask(left.popleft())
            if unanswered == before:
                break
        asking = [asyncio.create_task(ask(key)) for key in left] if unanswered < _UNANSWERED else []
        try:
            for asked in asyncio.as_completed(asking):
                await asked
                if unanswered >= _UNANSWERED:
                    break
        finally:
            await ended(*asking)
        return {key: verdicts[key] for key in paths if key in verdicts}

    async def _verdict(self, key: str, path: str, answered_at: float | None) -> _Verdict:
        """What one request says; a second one is made after the first was answered at a moment."""
        try:
            body = await self._get(path, ())
        except SourceRefused as refused:
            if refused.status not in GONE:
                raise
            now = self._clock.monotonic()
            if refused.age > now - self._begun + _ROUNDED:
                # The record may have been made since, and be missing from a listing that a cache had kept, too.
                raise SourceUnavailable(
                    f"{refused}; a cache on the way has kept that for {refused.age} s, so it does not say that the "
                    "record is gone now"
                ) from None
            if answered_at is not None and refused.age and refused.age > now - answered_at - _ROUNDED:
                return _Verdict.REPEATED
            return _Verdict.GONE
        found = single_record(body, self._feed)
        return _Verdict.HERE if found and subject_of(found.key) == subject_of(key) else _Verdict.UNCLEAR
