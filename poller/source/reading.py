"""Reading one listing page by page, each page fetched while the one before it is being committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Final

from poller.changes.records import Record, Rejected
from poller.errors import SourceNonsense
from poller.source.envelope import Page, decode_page
from poller.source.paging import Drain, Params
from poller.stopping import ended

# A commit of so many records or bytes keeps the store busy for some milliseconds, not more.
SLICE_RECORDS: Final = 256
SLICE_BYTES: Final = 256 * 1024

Get = Callable[[str, Params], Awaitable[bytes | None]]
"""One exchange: path and parameters to body; None where the API says that the whole listing is unchanged."""


async def read_pages(get: Get, path: str, drain: Drain) -> AsyncGenerator[Page]:
    """The pages of one listing, in order. Close it (``contextlib.aclosing``): a page may be on its way.

    A listing that is unchanged has none.

    Raises:
        SourceError: an exchange failed, or the listing leads nowhere. All pages before that were given out.
    """

    async def fetch(params: Params) -> Page | None:
        body = await get(path, params)
        return None if body is None else decode_page(body)

    ahead: asyncio.Task[Page | None] | None = asyncio.create_task(fetch(drain.start()))
    try:
        while ahead is not None:
            page = await ahead
            ahead = None
            if page is None:
                return
            try:
                further = drain.take(page)
            except SourceNonsense:
                yield page  # its records count, though the listing leads nowhere
                raise
            if further is not None:
                ahead = asyncio.create_task(fetch(further))
            yield page
    finally:
        if ahead is not None:
            await ended(ahead)


def slices(records: Sequence[Record | Rejected]) -> Iterator[Sequence[Record | Rejected]]:
    """The records in runs that are each small enough for one commit."""
    start = size = 0
    for index, record in enumerate(records):
        length = len(record.raw)
        if index > start and (index - start == SLICE_RECORDS or size + length > SLICE_BYTES):
            yield records[start:index]
            start, size = index, 0
        size += length
    if start < len(records):
        yield records[start:]
