"""The end of a full reading: the records that it did not hold are looked for, and removed where they are gone.

A record counts as gone when the API says so of itself (404 or 410 for ``GET …/{id}``). Where there is no single-record
endpoint, a second full reading that does not hold it either has to do; until then its snapshot is marked missing.
Anything else that goes wrong ends the round and removes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from enum import Enum, auto
from typing import Final, Protocol

from poller.changes.classify import Snapshot
from poller.changes.removal import Seen
from poller.errors import RoundHeld, SourceRefused
from poller.source.feed import Feed
from poller.source.reading import Get
from poller.store.feed import Absent

_AT_ONCE: Final = 256  # records looked for and removed together
_GONE: Final = frozenset({404, 410})


class _Verdict(Enum):
    GONE = auto()
    HERE = auto()
    UNSURE = auto()


class AbsenceStore(Protocol):
    """What is needed of the store; see :class:`poller.store.feed.FeedStore`."""

    async def absent(self, seen: Container[str], *, most: int) -> Absent:
        """The live snapshots that were not seen."""
        ...


Remove = Callable[[Mapping[str, Snapshot]], Awaitable[None]]
"""Commits what becomes of these records: removed, or marked missing."""


async def settle_absent(
    feed: Feed, store: AbsenceStore, get: Get, seen: Seen, *, released: bool, remove: Remove, mark: Remove
) -> bool:
    """Find, confirm and remove what a complete reading did not hold.

    Answers whether that settled it: False where a record is known and not in the listing still, so that the next full
    reading has to look for it again, be the listing as it was or not.

    Args:
        feed: whose records they are.
        store: where the known ones are.
        get: one exchange with the API.
        seen: the keys of the reading; those that turn out to be there are added.
        released: whether an operator has let through what the breaker holds.
        remove: commits the removal of records.
        mark: commits that records are missing for the first time.

    Raises:
        RoundHeld: too much is missing; nothing was removed.
        SourceError: a record could not be asked for.
    """
    anything_read = bool(seen)
    settled = True
    absent = await store.absent(seen, most=_AT_ONCE)
    holds = feed.breaker.holds(missing=absent.missing, live=absent.live, anything_read=anything_read)
    if holds and not released:
        raise RoundHeld(
            f"{absent.missing} of {absent.live} known records are missing from the full reading: nothing is removed; "
            f"if they are really gone, let it through with: poller release {feed.id}"
        )
    while absent.some:
        verdicts = await _verdicts(feed, get, absent.some)
        await remove(_of(_Verdict.GONE, verdicts, absent.some))
        await mark(_of(_Verdict.UNSURE, verdicts, absent.some))
        seen.update(key for key, verdict in verdicts.items() if verdict is not _Verdict.GONE)
        settled = settled and all(verdict is _Verdict.GONE for verdict in verdicts.values())
        absent = await store.absent(seen, most=_AT_ONCE)
    return settled


def _of(wanted: _Verdict, verdicts: Mapping[str, _Verdict], snapshots: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    return {key: snapshots[key] for key, verdict in verdicts.items() if verdict is wanted}


async def _verdicts(feed: Feed, get: Get, missing: Mapping[str, Snapshot]) -> dict[str, _Verdict]:
    if feed.resource.detail_path is None:
        return {key: _Verdict.GONE if snapshot.missing else _Verdict.UNSURE for key, snapshot in missing.items()}
    paths = {key: feed.detail_path(snapshot) for key, snapshot in missing.items()}
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
