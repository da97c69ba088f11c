"""Records that are new and came in part: asked for by themselves, for a part is no record.

A delta of parts says of a record that it has just been created only what the API takes for changed. Nothing is known
that it could be laid over, so the whole is asked for where there is a single-record endpoint. What the API then does
not have any more is kept as it came: that it existed is not to be lost.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import Container, Sequence
from typing import Final

from poller.changes.records import Record, Rejected, record_reader
from poller.errors import SourceRefused
from poller.source.feed import Feed
from poller.source.reading import Get

_DETAILS_AT_ONCE: Final = 32
_GONE: Final = frozenset({404, 410})


async def completed(
    records: Sequence[Record | Rejected], known: Container[str], *, feed: Feed, get: Get
) -> list[Record | Rejected]:
    """The same, each that is not known as a whole.

    Args:
        records: of a page.
        known: the keys of those that something is known of.
        feed: whose records they are.
        get: one exchange with the API.

    Raises:
        SourceError: one of them could not be asked for.
    """
    whole = list(records)
    if feed.resource.detail_path is None:
        return whole
    places = [place for place, record in enumerate(records) if isinstance(record, Record) and record.key not in known]
    for start in range(0, len(places), _DETAILS_AT_ONCE):
        asked = places[start : start + _DETAILS_AT_ONCE]
        parts = [record for record in (records[place] for place in asked) if isinstance(record, Record)]
        answers = await asyncio.gather(*(_whole(part, feed, get) for part in parts), return_exceptions=True)
        for place, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            whole[place] = answer
    return whole


async def _whole(part: Record, feed: Feed, get: Get) -> Record:
    path = feed.resource.record_path(part.subject)
    if path is None:
        return part
    try:
        body = await get(path, ())
    except SourceRefused as refused:
        if refused.status in _GONE:
            return part
        raise
    found = record_reader(feed.id_field)((body or b"").removeprefix(BOM_UTF8))
    return found if isinstance(found, Record) and found.key == part.key else part
