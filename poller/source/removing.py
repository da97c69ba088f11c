"""The end of a full reading: the records that it did not hold are looked for, and removed where they are gone.

A record counts as gone when the API says so of itself twice (404 or 410 for ``GET …/{id}``): the first answer is asked
for at once, the second after all first ones and at least :attr:`Feed.apart` later. An API behind two unequal backends
says 404 now and then of what the other one has; one that lags for a moment has caught up by then.

Where there is no single-record endpoint, or the id would lead to another path (``..``), a second full reading that does
not hold it either has to do, which begins at least as much later; until then its snapshot is marked missing. Anything
else that goes wrong ends the round and removes nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import timedelta
from enum import Enum, auto
from typing import Final, Protocol

from poller.changes.classify import Snapshot
from poller.changes.removal import Seen
from poller.errors import RoundHeld, SourceError, SourceRefused
from poller.source.feed import Feed
from poller.source.reading import Get
from poller.store.feed import Absent

_REMOVED_AT_ONCE: Final = 256  # records looked for and removed together
_GONE: Final = frozenset({404, 410})


class _Verdict(Enum):
    GONE = auto()
    HERE = auto()


class AbsenceStore(Protocol):
    """What is needed of the store; see :class:`poller.store.feed.FeedStore`."""

    async def absent(self, seen: Container[str], *, most: int) -> Absent:
        """The live snapshots that were not seen."""
        ...

    async def known(self, record_keys: list[str]) -> dict[str, Snapshot]:
        """Read snapshots."""
        ...


Remove = Callable[[Mapping[str, Snapshot]], Awaitable[None]]
"""Commits what becomes of these records: removed, or marked missing."""


async def settle_absent(
    feed: Feed,
    store: AbsenceStore,
    get: Get,
    seen: Seen,
    *,
    released: bool,
    since_marked: timedelta | None,
    remove: Remove,
    mark: Remove,
) -> bool:
    """Find, confirm and remove what a complete reading did not hold.

    Answers whether that settled it: False where a record is known and not in the listing still, so that the next full
    reading has to look for it again, be the listing as it was or not.

    Args:
        feed: whose records they are.
        store: where the known ones are.
        get: one exchange with the API.
        seen: the keys of the reading; all that are absent are added.
        released: whether an operator has let through what the breaker holds.
        since_marked: how long before this reading records were last marked missing; None: never, or nobody knows.
        remove: commits the removal of records.
        mark: commits that records are missing for the first time.

    Raises:
        RoundHeld: too much is missing; nothing was removed.
        SourceError: a record could not be asked for; those that are gone beyond doubt are removed.
    """
    anything_read = bool(seen)
    absent = await store.absent(seen, most=_REMOVED_AT_ONCE)
    holds = feed.breaker.holds(missing=absent.missing, live=absent.live, anything_read=anything_read)
    if holds and not released:
        raise RoundHeld(
            f"{absent.missing} of {absent.live} known records are missing from the full reading: nothing is removed; "
            f"if they are really gone, let it through with: poller release {feed.id}"
        )
    too_soon = since_marked is not None and timedelta() <= since_marked < feed.apart
    readings = _Readings(remove, mark, too_soon=too_soon)
    if feed.resource.detail_path is None:
        return await _settle_by_readings(store, absent, seen, readings)
    return await _Confirming(feed, store, get, remove, readings).settle(absent, seen)


class _Readings:
    """Absent records that cannot be asked for: a second reading has to miss them."""

    def __init__(self, remove: Remove, mark: Remove, *, too_soon: bool) -> None:
        # This reading confirms nothing, and what it is the first to miss the next one is the first to miss.
        self.too_soon = too_soon
        self._remove = remove
        self._mark = mark

    async def settle(self, absent: Mapping[str, Snapshot]) -> bool:
        """Whether all of them are gone."""
        if not absent or self.too_soon:
            return not absent
        await self._remove({key: snapshot for key, snapshot in absent.items() if snapshot.missing})
        unsure = {key: snapshot for key, snapshot in absent.items() if not snapshot.missing}
        # Of a snapshot that cannot be read nobody knows which listing it was in: it stays until the record is back.
        await self._mark({key: snapshot for key, snapshot in unsure.items() if not snapshot.unreadable})
        return not unsure


async def _settle_by_readings(store: AbsenceStore, absent: Absent, seen: Seen, readings: _Readings) -> bool:
    if readings.too_soon:
        return not absent.missing
    settled = True
    while absent.some:
        settled = await readings.settle(absent.some) and settled
        seen.update(absent.some)
        absent = await store.absent(seen, most=_REMOVED_AT_ONCE)
    return settled


class _Confirming:
    """Absent records of a feed with a single-record endpoint: each that can be asked for is, twice."""

    def __init__(self, feed: Feed, store: AbsenceStore, get: Get, remove: Remove, readings: _Readings) -> None:
        self._feed = feed
        self._store = store
        self._get = get
        self._remove = remove
        self._readings = readings
        self._clock = asyncio.get_running_loop().time
        self._gone: list[tuple[float, list[str]]] = []  # by the first answers: when the last of them came, and whose

    async def settle(self, absent: Absent, seen: Seen) -> bool:
        settled, failure = True, None
        try:
            while absent.some:
                settled = await self._asked_once(absent.some) and settled
                seen.update(absent.some)
                absent = await self._store.absent(seen, most=_REMOVED_AT_ONCE)
        except SourceError as error:  # of one record; what it does not concern is settled all the same
            failure = error
        for answered_at, keys in self._gone:
            await asyncio.sleep(max(answered_at + self._feed.apart.total_seconds() - self._clock(), 0))
            settled = await self._asked_again(keys) and settled
        if failure is not None:
            raise failure
        return settled

    async def _asked_once(self, absent: Mapping[str, Snapshot]) -> bool:
        paths = {key: self._feed.record_path(key, snapshot) for key, snapshot in absent.items()}
        settled = await self._readings.settle({key: absent[key] for key, path in paths.items() if path is None})
        verdicts = await _verdicts(self._get, {key: path for key, path in paths.items() if path is not None})
        gone = [key for key, verdict in verdicts.items() if verdict is _Verdict.GONE]
        if gone:
            self._gone.append((self._clock(), gone))
        return settled and len(gone) == len(verdicts)

    async def _asked_again(self, keys: list[str]) -> bool:
        known = await self._store.known(keys)
        paths = {key: self._feed.record_path(key, snapshot) for key, snapshot in known.items()}
        verdicts = await _verdicts(self._get, {key: path for key, path in paths.items() if path is not None})
        await self._remove({key: known[key] for key, verdict in verdicts.items() if verdict is _Verdict.GONE})
        return all(verdict is _Verdict.GONE for verdict in verdicts.values())


async def _verdicts(get: Get, paths: Mapping[str, str]) -> dict[str, _Verdict]:
    answers = await asyncio.gather(*(_verdict(get, path) for path in paths.values()), return_exceptions=True)
    verdicts: dict[str, _Verdict] = {}
    for key, answer in zip(paths, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        verdicts[key] = answer
    return verdicts


async def _verdict(get: Get, path: str) -> _Verdict:
    try:
        await get(path, ())
    except SourceRefused as refused:
        if refused.status in _GONE:
            return _Verdict.GONE
        raise
    return _Verdict.HERE
