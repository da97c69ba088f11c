"""``/feeds/SOURCE/NAME/records``: the records of a feed, one of them, its history, and its erasure.

**Invariants**

- A list is complete or it ends with an error: one that cannot be completed is aborted, and a page's cursor that has
  lost its meaning is refused. So a client that reads all of it and then the events after its first ``as_of``, and keeps
  the higher revision of each record, has the present state.
- A list is sent while it is read, at the speed of its client. At most :data:`STREAMS` streams and :data:`PAGES` pages
  are sent at a time, and :data:`HISTORIES` histories are looked for.
- Permission to read is checked before each part, as for events.
- No cache keeps a record: an entity tag serves programs that remember one themselves.
- An id is one part of the path, percent-encoded; ``/`` in it is ``%2F``.
- A parameter that is unknown or invalid is refused with 400, which names it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urlencode

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from poller.clock import Clock
from poller.control.erasure import RecordErasure, RecordStillThere
from poller.control.record_history import RecordEvent, RecordHistory
from poller.control.records import FeedRecords, RecordLine, RecordUnknown, line_of, on_one_line, rfc3339_seconds
from poller.delivery.backfill import BackfillSource, EventIdentity
from poller.errors import Converting, StoreError, StoreUnavailable
from poller.http.server import ResponseAborted
from poller.lifecycle import ended
from poller.store.records import AsOf, RecordChunk, ScanPosition, StoredRecord
from poller.store.stream import EntryId
from poller.web.context import AppContext
from poller.web.http import (
    JSON,
    PROBLEM,
    Endpoint,
    InvalidParameter,
    ProblemDetails,
    RequestRefused,
    as_json,
    at,
    require_known_parameters,
    span_of,
    weight_of,
)

NDJSON: Final = "application/x-ndjson"
STREAMS: Final = 16
PAGES: Final = 32
HISTORIES: Final = 4
ERASURES: Final = 1

_RECORDS: Final = "/feeds/{source}/{name}/records"
_FULL_AGAIN: Final = "10"
_CONVERTED_AGAIN: Final = "5"
_PAGE_BYTES: Final = 512 * 1024  # packed, about
_SENT_BYTES: Final = 32 * 1024  # at a time
_STORE_SECONDS: Final = 30.0  # that a stream waits for a store that is away
_STORE_AGAIN: Final = 0.5
_SEARCHED_SECONDS: Final = 2.0  # for one page of a history
_HISTORY_BYTES: Final = 1024 * 1024
_CURSOR: Final = "expected the cursor of a page's Link, as it was sent"
_FORCE: Final = "expected true or false"
_TRUTH: Final = {"true": True, "false": False}
_BY: Final = "an operator, by HTTP"
_LONGEST_REASON: Final = 1000  # characters
_BEFORE: Final = "expected the id of a stream's entry such as 1735689600000-0"

_log = structlog.get_logger("poller.web")
_encode: Final = msgspec.json.Encoder().encode


class RecordOnPage(RecordLine, frozen=True):
    """A record on a page.

    Attributes:
        sequence: of its last event; 0: it had none.
        event: what identifies the event of a backfill with this revision.
    """

    sequence: int
    event: EventIdentity


class RecordPage(msgspec.Struct, frozen=True):
    """A page of records.

    Attributes:
        as_of: when it was read, all in one step: the last event of each record that is on it is not after that entry. A
            client that reads all pages, and then the events after the first one's, misses nothing.
        generation: drawn at random when the feed was created or reset: under another one, what was known of its records
            is void. Empty: nothing is known of the feed yet.
        run_id: of the process of the store that it was read from: another one may hold what was before.
        silent_reading: whether a silent first reading is under way: records come of which no event is published, so
            begin again with the first page when it has ended.
        records: those that are not removed, in no order. There may be a few more than the limit, or fewer, or none
            before the last page.
    """

    as_of: AsOf
    generation: str
    run_id: str
    silent_reading: bool
    records: list[RecordOnPage]


class CurrentRecord(msgspec.Struct, frozen=True):
    """A record as it was last published.

    Attributes:
        id: as received.
        revision: of its last event; 0: a silent baseline published none.
        record: as received.
        changed_at: when its last change was noticed, RFC 3339; None: unknown.
        sequence: of its last event; 0: it had none.
        missing: whether the last full reading did not hold it, and another one decides whether it is removed.
    """

    id: str
    revision: int
    record: msgspec.Raw
    changed_at: str | None
    sequence: int
    missing: bool


class RemovedRecord(ProblemDetails, frozen=True, omit_defaults=True, kw_only=True):
    """The body of the response to a request for a record that is removed, or was erased.

    Attributes:
        revision: of its last event.
        sequence: of its last event, or of its erasure.
        changed_at: when its removal was noticed, or when it was erased, RFC 3339; absent: unknown.
        erased: whether it was erased; absent: it is removed.
    """

    revision: int
    sequence: int
    changed_at: str | None = None
    erased: bool = False


def record_routes(
    backing: AppContext,
    may_read: Callable[[Request], bool] = lambda _: True,
    *,
    changing: Callable[[Endpoint], Endpoint] = lambda endpoint: endpoint,
    streams: int = STREAMS,
    pages: int = PAGES,
    histories: int = HISTORIES,
) -> list[Route]:
    """The routes.

    Args:
        backing: what they stand on.
        may_read: whether a request that was permitted to read still is.
        changing: restricts an endpoint to requests that may make changes.
        streams: the greatest number of complete lists that are sent at a time.
        pages: the greatest number of pages that are sent at a time.
        histories: the greatest number of histories that are looked for at a time.
    """
    sent, paged = Seats(streams, "lists of records are sent"), Seats(pages, "pages of records are sent")
    searched, erasing = Seats(histories, "histories are read"), Seats(ERASURES, "record is erased")

    async def listed(request: Request) -> Any:
        """GET: a page, or with ``Accept: application/x-ndjson`` all records."""
        return await _list(request, backing, sent if _wants_all(request) else paged, partial(may_read, request))

    async def one(request: Request) -> Response:
        """GET: one record, or its history."""
        path = _path_of(request)
        records = _records_of(request, backing)
        if not path.is_history:
            return await _one(request, records, path.id)
        with searched.taken():
            return await _history(request, records, path.id, backing)

    async def erased(request: Request) -> Response:
        """DELETE: erase one record."""
        path = _path_of(request)
        if path.is_history:
            raise RequestRefused(404, "a record is erased with its history: DELETE the record itself")
        with erasing.taken():
            return await _erase(request, backing, path.id)

    return [
        at(_RECORDS, GET=listed),
        at(f"{_RECORDS}/{{record:path}}/history", GET=one),
        at(f"{_RECORDS}/{{record:path}}", GET=one, DELETE=changing(erased)),
    ]


# One record.


class RecordPath(NamedTuple):
    """What a path below ``records`` names: the record of this id, or its history."""

    id: str
    is_history: bool


def _path_of(request: Request) -> RecordPath:
    """What the path names: as it was sent, for ``/`` in an id is part of it only where it was encoded.

    Raises:
        RequestRefused: no record.
    """
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    parts = raw.partition(b"?")[0].split(b"/")[5:]  # "", feeds, SOURCE, NAME, records
    with suppress(UnicodeDecodeError):
        if parts and parts[0] and (len(parts) == 1 or parts[1:] == [b"history"]):
            return RecordPath(unquote_to_bytes(parts[0]).decode(), len(parts) > 1)
    raise RequestRefused(404, "no record: its id is one part of the path, percent-encoded (/ is %2F)")


def _records_of(request: Request, backing: AppContext) -> FeedRecords:
    feed = f"{request.path_params['source']}/{request.path_params['name']}"
    if feed not in backing.settings.feed_ids:
        raise RequestRefused(404, f"there is no such feed; there are {', '.join(backing.settings.feed_ids[:20])}")
    return FeedRecords(backing.client, backing.settings, feed, clock=backing.clock)


async def _one(request: Request, records: FeedRecords, subject: str) -> Response:
    require_known_parameters(request)
    record, found = await records.find(subject)
    if record is None:
        raise RequestRefused(404, f"{records.feed.id} has no record with this id, and had none that was removed")
    if record.unreadable:
        return _unreadable(records, record)
    if record.removed:
        return await _removed(records, record)
    body = _encode(_current(record)) + b"\n"
    tag = f'"{blake2b(found.generation.encode() + body, digest_size=16).hexdigest()}"'
    if _has(request, tag):
        return Response(status_code=304, headers={"etag": tag})
    return Response(body, headers={"etag": tag}, media_type=JSON)


def _current(record: StoredRecord) -> CurrentRecord:
    return CurrentRecord(
        record.subject,
        record.revision,
        on_one_line(record.raw),
        rfc3339_seconds(record.changed_at),
        record.sequence,
        record.missing,
    )


async def _removed(records: FeedRecords, record: StoredRecord) -> Response:
    erased, changed_at = await records.is_erased(record), rfc3339_seconds(record.changed_at)
    told = RemovedRecord(
        410,
        "Gone",
        f"this record of {records.feed.id} was erased at {changed_at}; nothing of its content is stored"
        if erased
        else f"this record of {records.feed.id} is removed",
        revision=record.revision,
        sequence=record.sequence,
        changed_at=changed_at,
        erased=erased,
    )
    return Response(_encode(told) + b"\n", 410, media_type=PROBLEM)


def _unreadable(records: FeedRecords, record: StoredRecord) -> Response:
    records.reader.pass_over(record)
    told = ProblemDetails(
        500,
        "Internal Server Error",
        "the snapshot of this record cannot be read; the next round that reads the record publishes it as modified",
    )
    return Response(_encode(told) + b"\n", 500, media_type=PROBLEM)


def _has(request: Request, tag: str) -> bool:
    asked = {one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")}
    return tag.removeprefix("W/") in asked or "*" in asked


# Erasure.


async def _erase(request: Request, backing: AppContext, subject: str) -> Response:
    require_known_parameters(request, "force", "reason")
    feed = _records_of(request, backing).feed.id
    force = request.query_params.get("force", "false")
    if force not in _TRUTH:
        raise RequestRefused(400, f"force: {_FORCE}", errors=[InvalidParameter("force", _FORCE, force[:64])])
    erasure = RecordErasure(backing.client, backing.settings, feed, subject, clock=backing.clock)
    try:
        if not _TRUTH[force]:
            await erasure.require_gone(backing.environ)
        result = await erasure.erase(by=_BY, reason=request.query_params.get("reason", "")[:_LONGEST_REASON])
    except RecordUnknown as error:
        raise RequestRefused(404, str(error)) from None
    except RecordStillThere as error:
        raise RequestRefused(409, f"{error} (force=true)") from None
    return as_json(result)


# History: a page takes a bounded time, however few events it finds.


async def _history(request: Request, records: FeedRecords, subject: str, backing: AppContext) -> Response:
    require_known_parameters(request, "limit", "before")
    limit, before = span_of(request).limit, _before(request)
    record, _ = await records.find(subject)
    subject = record.subject if record else subject
    reading = RecordHistory(backing.client, records.reader.keys.events, subject, before=before)
    found = await _searched(reading, limit, backing.clock)
    if not found and record is None and not before and reading.is_over:
        raise RequestRefused(404, f"{records.feed.id} has no record with this id, and its stream no event of one")
    links = [_link(request, {"limit": limit}, "first")]
    if not reading.is_over:
        links.insert(0, _link(request, {"limit": limit, "before": reading.place}, "next"))
    return as_json(found, headers={"link": ", ".join(links)})


def _before(request: Request) -> str:
    text = request.query_params.get("before", "")
    if not text:
        return ""
    with suppress(ValueError):
        if str(EntryId.checked(text)) == text:
            return text
    raise RequestRefused(400, f"before: {_BEFORE}", errors=[InvalidParameter("before", _BEFORE, text[:64])])


async def _searched(reading: RecordHistory, limit: int, clock: Clock) -> list[RecordEvent]:
    found, size, until = list[RecordEvent](), 0, clock.monotonic() + _SEARCHED_SECONDS
    async with aclosing(reading.found()) as events:
        async for event in events:
            if event is None:
                if clock.monotonic() >= until:
                    break
                continue
            found.append(event)
            size += len(_encode(event))
            if len(found) == limit or size >= _HISTORY_BYTES:
                break
    return found


def _link(request: Request, query: Mapping[str, Any], relation: str) -> str:
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    return f'<{path}?{urlencode(query)}>; rel="{relation}"'


# Lists.


class ListContent(NamedTuple):
    """A list that is sent while it is read.

    Attributes:
        headers: of the response.
        parts: of the body.
    """

    headers: dict[str, str]
    parts: AsyncGenerator[bytes]


async def _list(request: Request, backing: AppContext, seats: Seats, may_read: Callable[[], bool]) -> Any:
    records = _records_of(request, backing)
    require_known_parameters(request, "limit", "cursor")
    seats.check()
    try:
        content = await (_whole(records, backing.clock) if _wants_all(request) else _page(request, records))
    except Converting as error:
        raise RequestRefused(503, str(error), headers={"retry-after": _CONVERTED_AGAIN}) from None
    content.headers["vary"] = "accept"
    tag = content.headers.get("etag")
    if tag is not None and _has(request, tag):
        headers = {name: value for name, value in content.headers.items() if name != "content-type"}
        return Response(status_code=304, headers=headers)
    return _without_body(content) if request.method == "HEAD" else _ListResponse(content, seats, backing, may_read)


def _wants_all(request: Request) -> bool:
    """Whether the client names the type of a complete list, and wants that of a page no more."""
    ranges = request.headers.get("accept", "").lower().split(",")
    is_named = any(one.partition(";")[0].strip() == NDJSON for one in ranges)
    weight = weight_of(request, NDJSON)
    return is_named and weight > 0 and weight >= weight_of(request, JSON)


async def _page(request: Request, records: FeedRecords) -> ListContent:
    """A page from the cursor of the request on.

    Raises:
        RequestRefused: the cursor is none, or has lost its meaning.
        Converting: see :meth:`poller.store.records.RecordReader.scan`.
        StoreError: likewise.
    """
    limit, position = span_of(request).limit, _position(request)
    chunk = await records.reader.scan(position, count=limit, size=_PAGE_BYTES)
    if chunk.restarted:
        raise RequestRefused(
            410,
            "the cursor has lost its meaning: the server of the store was started again, or the feed was reset; begin "
            "again with the first page, and follow the events after its as_of",
        )
    links = [_link(request, {"limit": limit}, "first")]
    if chunk.next is not None:
        links.insert(0, _link(request, {"limit": limit, "cursor": str(chunk.next)}, "next"))
    silent = records.feed.silent_baseline and not chunk.is_read
    digest = blake2b(
        f"{chunk.as_of}\0{chunk.next}\0{chunk.run_id}\0{silent}\0{chunk.digest()}".encode(), digest_size=16
    )
    headers = {"content-type": JSON, "link": ", ".join(links), "etag": f'"{digest.hexdigest()}"'}
    return ListContent(headers, _page_parts(BackfillSource(records.feed, records.reader), chunk, silent=silent))


def _position(request: Request) -> ScanPosition | None:
    text = request.query_params.get("cursor")
    if text is None:
        return None
    try:
        return ScanPosition.parse(text)
    except ValueError:
        wrong = InvalidParameter("cursor", _CURSOR, text[:64])
        raise RequestRefused(400, f"cursor: {_CURSOR}", errors=[wrong]) from None


async def _page_parts(source: BackfillSource, chunk: RecordChunk, *, silent: bool) -> AsyncGenerator[bytes]:
    head = _encode(chunk.as_of), _encode(chunk.generation), _encode(chunk.run_id), _encode(silent)
    yield b'{"as_of":%b,"generation":%b,"run_id":%b,"silent_reading":%b,"records":[' % head
    separator = b""
    listed = (_encode(_listed(source, record, chunk.generation)) for record in chunk.records)
    for part in _joined(listed, b","):
        yield separator + part
        separator = b","
    yield b"]}\n"


def _listed(source: BackfillSource, record: StoredRecord, generation: str) -> RecordOnPage:
    line, event = line_of(record), source.identity(record, generation=generation)
    return RecordOnPage(line.id, line.revision, line.record, line.changed_at, record.sequence, event)


async def _whole(records: FeedRecords, clock: Clock) -> ListContent:
    """All records, from one scan; its first part is read already.

    Raises:
        Converting: see :meth:`poller.store.records.RecordReader.scan`.
        StoreError: likewise.
    """
    chunk = await records.reader.scan()
    return ListContent({"content-type": NDJSON}, _all_parts(records, chunk, clock))


class _WholeList(msgspec.Struct, frozen=True):
    as_of: AsOf


async def _all_parts(records: FeedRecords, chunk: RecordChunk, clock: Clock) -> AsyncGenerator[bytes]:
    """The lines of all records; some come twice where the scan begins again.

    Raises:
        ResponseAborted: the rest is another feed's, or cannot be read.
    """
    yield _encode(_WholeList(chunk.as_of)) + b"\n"
    while True:
        for part in _joined((_encode(line_of(record)) for record in chunk.records), b"\n"):
            yield part + b"\n"
        if chunk.next is None:
            return
        before, chunk = chunk, await _next(records, chunk.next, clock)
        if chunk.generation != before.generation:
            raise ResponseAborted("the feed was reset")
        if chunk.as_of.is_before(before.as_of):
            raise ResponseAborted("the store has gone back")


async def _next(records: FeedRecords, position: ScanPosition, clock: Clock) -> RecordChunk:
    """The next part; waits a while for a store that is away."""
    until = clock.monotonic() + _STORE_SECONDS
    while True:
        try:
            return await records.reader.scan(position)
        except StoreUnavailable as error:
            if clock.monotonic() >= until:
                raise ResponseAborted(str(error)) from None
        except StoreError as error:
            raise ResponseAborted(str(error)) from None
        await clock.sleep(_STORE_AGAIN)


def _joined(lines: Iterator[bytes], separator: bytes) -> Iterator[bytes]:
    """The lines, some at a time."""
    some, size = list[bytes](), 0
    for line in lines:
        some.append(line)
        size += len(line)
        if size >= _SENT_BYTES:
            yield separator.join(some)
            some, size = [], 0
    if some:
        yield separator.join(some)


def _without_body(content: ListContent) -> Response:
    """The response to HEAD: how long the body would be is not known."""
    answer = Response(headers=content.headers)
    del answer.headers["content-length"]
    return answer


class Seats:
    """A bounded number of things that are done at a time."""

    def __init__(self, most: int, what: str) -> None:
        """Begin with none; ``what`` says in a refusal what is done with them."""
        self._most = most
        self._what = what
        self._taken = 0

    def check(self) -> None:
        """Check that there is room.

        Raises:
            RequestRefused: there is none.
        """
        if self._taken >= self._most:
            detail = f"at most {self._most} {self._what} at a time; try again later"
            raise RequestRefused(503, detail, headers={"retry-after": _FULL_AGAIN})

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A block that takes one.

        Raises:
            RequestRefused: there is no room.
        """
        self.check()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class _ListResponse:
    """The response with a list: ends with the list, the client or the service."""

    def __init__(self, content: ListContent, seats: Seats, backing: AppContext, may_read: Callable[[], bool]) -> None:
        self._content = content
        self._seats = seats
        self._backing = backing
        self._may_read = may_read

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        with self._seats.taken():
            await self._answer(receive, send)

    async def _answer(self, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._content.headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.create_task(self._send(send), name="records")
        gone = asyncio.create_task(_gone(receive))
        closing = asyncio.create_task(self._backing.closing.wait())
        try:
            await asyncio.wait({sending, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(sending, gone, closing)
        if sending.cancelled():
            raise ResponseAborted("the client has gone, or the service ends")
        if (error := sending.exception()) is None:
            await send({"type": "http.response.body", "body": b""})
            return
        if isinstance(error, ResponseAborted):
            _log.warning("list of records aborted", error=str(error), advice="its client has to begin again")
        raise error

    async def _send(self, send: Send) -> None:
        async with self._backing.in_use(), aclosing(self._content.parts) as parts:
            async for part in parts:
                if not self._may_read():
                    raise ResponseAborted("the client may not read any more")
                await send({"type": "http.response.body", "body": part, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
