"""``GET /events``: new events of the feeds, as server-sent events.

**Invariants**

* A client that reconnects with its latest ``Last-Event-ID`` misses no event and sees none twice, in any of its feeds,
  also where it meets processes in turn that have and have not one of them, as during a rollout that adds it.
* At most :data:`READERS` clients read, each at the speed of its connection. A client that reads nothing for
  :data:`STALLED` seconds is disconnected.
* Permission to read is checked before each message, so a replaced token ends the connections that were made with it.
* All connections end in order when the service ends.
* An event is sent as it is in the stream, but line breaks between its JSON values become one line feed each. No block
  is without data, and no comment ends a block: some clients report a message for each empty line. A position that comes
  before the first event, or changes without an event, is a message ``place`` of its own.
"""

from __future__ import annotations

import asyncio
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
import structlog
from redis.asyncio import Redis
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from poller.clock import Clock
from poller.config.event_types import type_test, unmatched_types
from poller.control.factories import keys_of
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.errors import let_in, translated
from poller.store.erasure import erased_between
from poller.store.session import blocking_client
from poller.store.stream import EntryId, RollbackWatch, arrivals, last_ids
from poller.telemetry.logs import LogOnce
from poller.telemetry.metrics import process_metrics
from poller.web.context import AppContext
from poller.web.http import InvalidParameter, RequestRefused, at

# Server-sent messages as bytes, in the format of the HTML standard. Pure.

KIND: Final = "text/event-stream"
AWAY: Final = b": the store is away; this goes on when it is back\n"
BEAT_COMMENT: Final = b": nothing new\n"
"""The comment that keeps an idle connection alive."""

_BREAKS: Final = re.compile(rb"\r\n|\r|\n")


class GapNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ``data`` of a message ``gap``: events that went from the stream before they were sent.

    Attributes:
        feed: ``SOURCE/NAME``.
        after: the sequence number of the last event before the gap; None: unknown.
        before: the sequence number of the first event after the gap.
        missing: the number of missing events; None: unknown.
        erased: how many of them were of erased records, if any; the others were trimmed.
    """

    feed: str
    after: int | None
    before: int
    missing: int | None
    erased: int = 0


class PositionNotice(msgspec.Struct, frozen=True):
    """The ``data`` of a message ``place``.

    Attributes:
        place: the message's id.
    """

    place: str


def event(place: str, content: bytes) -> bytes:
    """A message with an event and the id to reconnect with."""
    return b"id: %b\n%b\n" % (place.encode(), _lines(content))


def gap(feed: str, *, after: int | None, before: int, erased: int = 0) -> bytes:
    """A message about events missing before the next event; ``after``: None: their number is unknown."""
    missing = None if after is None else before - after - 1
    return b"event: gap\n" + _lines(msgspec.json.encode(GapNotice(feed, after, before, missing, erased))) + b"\n"


def moved(place: str) -> bytes:
    """A message with the id to reconnect with, without an event."""
    return b"event: place\nid: %b\n%b\n" % (place.encode(), _lines(msgspec.json.encode(PositionNotice(place))))


def greeting(place: str, *, again_milliseconds: int) -> bytes:
    """The head of the first message: the reconnection time, and an id."""
    return b"retry: %d\nid: %b\n" % (again_milliseconds, place.encode())


def _lines(content: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in _BREAKS.split(content))


# New entries of streams are noticed by one connection for all readers, while there are readers. Marks stay valid while
# the store is unavailable.

BLOCK: Final = timedelta(seconds=2)
_NEWS_AGAIN: Final = 0.5  # seconds between attempts while the store is unavailable

_log = structlog.get_logger("poller.web")


class StreamNotifier:
    """Notifies readers of streams with new entries, in numbered turns."""

    def __init__(
        self,
        keys: Sequence[str],
        clock: Clock,
        *,
        block: timedelta = BLOCK,
    ) -> None:
        """Watch these streams; each command to the store waits this long for new entries."""
        self._keys = keys
        self._block = block
        self._clock = clock
        self._turn = 0
        self._changed: dict[str, int] = {}
        self._fresh = asyncio.Event()
        self._followers = 0
        self._looking: asyncio.Task[None] | None = None
        self._failure = LogOnce(_log, "streams cannot be followed")

    @asynccontextmanager
    async def followed(self, url: str) -> AsyncIterator[None]:
        """Watch the streams of this store while the block runs, or longer if other readers follow."""
        self._followers += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._watch(url), name="news for server-sent events")
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._looking is not None:
                looking, self._looking = self._looking, None  # a reader that comes meanwhile starts another task
                await ended(looking)

    @property
    def mark(self) -> int:
        """A mark after all entries noticed so far."""
        return self._turn

    def since(self, mark: int, keys: Collection[str]) -> list[str]:
        """The streams among these with entries after the mark."""
        return [key for key in keys if self._changed.get(key, 0) > mark]

    async def beyond(self, mark: int, seconds: float) -> None:
        """Wait until any stream has entries after the mark, at most this many seconds."""
        if self._turn == mark:
            await self._clock.wait(self._fresh, seconds)

    async def _watch(self, url: str) -> None:
        while True:
            client = blocking_client(url, block=self._block, clock=self._clock)
            let_in(client)  # as the one that the store was opened with
            try:
                async for fresh in arrivals(client, self._keys, block=self._block, clock=self._clock):
                    self._failure.worked()
                    if fresh:
                        self._publish(fresh)
            except StoreUnavailable:
                pass  # the readers log it
            except StoreError as error:
                self._failure.failed(str(error))
            except Exception:  # noqa: BLE001 -- without this task all readers would get nothing, silently
                _log.exception("streams cannot be followed")
            finally:
                with suppress(Exception):  # the next look has a client of its own
                    await client.aclose()
            self._publish(self._keys)  # one stream may be to blame: each reader finds its entries, or its own error
            await self._clock.sleep(_NEWS_AGAIN)

    def _publish(self, fresh: Collection[str]) -> None:
        self._turn += 1
        self._changed |= dict.fromkeys(fresh, self._turn)
        before, self._fresh = self._fresh, asyncio.Event()
        before.set()


READERS: Final = 64
MOST_FEEDS: Final = 256
"""Of one reader: every message id holds the positions of all feeds."""

BEAT: Final = 15.0
"""Seconds."""

STALLED: Final = 60.0
"""Seconds."""

_STORE_AGAIN: Final = 1.0  # seconds between checks whether the store has answered
_GOODBYE: Final = 0.5  # seconds that the end of a response may take
_FULL_AGAIN: Final = "10"
_FROM: Final = "expected now, earliest, the id of a message, or the id of a stream's entry such as 1735689600000-0"
_HEADERS: Final = [(b"content-type", KIND.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


def event_routes(
    backing: AppContext,
    may_read: Callable[[Request], bool] = lambda _: True,
    *,
    beat: float = BEAT,
    readers: int = READERS,
    stalled: float = STALLED,
) -> list[Route]:
    """The route.

    Args:
        backing: what it stands on.
        may_read: whether a request that was permitted to read still is.
        beat: seconds without a message after which a reader gets a comment.
        readers: the greatest number of readers.
        stalled: seconds after which a reader that reads nothing is disconnected.
    """
    streams = {keys_of(backing.settings, feed).events: feed for feed in backing.settings.feed_ids}
    news, following = StreamNotifier(tuple(streams), backing.clock), set[_EventStreamResponse]()

    async def follow(request: Request) -> Any:
        """GET: a response that ends with the client or the service."""
        chosen = _chosen(request, streams)
        begin = _start_positions(request, chosen)
        types = _types(request, backing.settings.types_of(chosen.values()))
        if request.method == "HEAD":
            return Response(media_type=KIND)
        if len(following) >= readers:
            raise RequestRefused(503, f"there are {readers} readers already", headers={"retry-after": _FULL_AGAIN})

        async def begun() -> EventReader:
            places = StreamPositions(await newest(backing.client, chosen)) if begin is None else begin
            return EventReader(
                backing.client,
                news,
                chosen,
                places,
                types=types,
                from_now=begin is None,
                beat_seconds=beat,
                clock=backing.clock,
            )

        return _EventStreamResponse(
            begun, news, backing, following, stalled=stalled, may_read=partial(may_read, request)
        )

    return [at("/events", GET=follow)]


def _chosen(request: Request, streams: Mapping[str, str]) -> dict[str, str]:
    wanted = frozenset(request.query_params.getlist("feed"))
    unknown = sorted(wanted.difference(streams.values()))
    if unknown:
        expected = f"expected SOURCE/NAME, one of {', '.join(list(streams.values())[:20])}"
        raise RequestRefused(404, f"feed: {expected}", errors=[InvalidParameter("feed", expected, unknown[0][:64])])
    chosen = {key: feed for key, feed in streams.items() if not wanted or feed in wanted}
    if len(chosen) > MOST_FEEDS:
        raise RequestRefused(
            400, f"feed: expected {MOST_FEEDS} feeds at most; name them by feed=SOURCE/NAME, one by one"
        )
    return chosen


def _types(request: Request, there: Collection[str]) -> Callable[[str], bool] | None:
    wanted = request.query_params.getlist("type")
    for _, entry, expected in unmatched_types(wanted, there):
        raise RequestRefused(400, f"type: {expected}", errors=[InvalidParameter("type", expected, entry[:64])])
    return type_test(wanted) if wanted else None


def _start_positions(request: Request, chosen: Mapping[str, str]) -> StreamPositions | None:
    """The start position in each feed; None: after all present entries."""
    name, text = "from", request.query_params.get("from", "now")
    if last := request.headers.get("last-event-id"):
        name, text = "Last-Event-ID", last
    if text == "now":
        return None
    if text == "earliest":
        return StreamPositions(dict.fromkeys(chosen.values(), BEGINNING))
    with suppress(ValueError):
        return StreamPositions(dict.fromkeys(chosen.values(), StreamPosition(*EntryId.checked(text))))
    try:
        return read_places(text, chosen.values())
    except ValueError:
        raise RequestRefused(400, f"{name}: {_FROM}", errors=[InvalidParameter(name, _FROM, text[:64])]) from None


class _EventStreamResponse:
    """The response. It starts immediately, even without the store, because a browser does not retry after a refusal."""

    def __init__(
        self,
        begun: Callable[[], Awaitable[EventReader]],
        news: StreamNotifier,
        backing: AppContext,
        following: set[_EventStreamResponse],
        *,
        stalled: float,
        may_read: Callable[[], bool],
    ) -> None:
        self._begun = begun
        self._news = news
        self._backing = backing
        self._following = following
        self._stalled = stalled
        self._may_read = may_read
        following.add(self)
        process_metrics().event_readers.inc()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(receive, send)
        finally:
            self._following.discard(self)
            process_metrics().event_readers.dec()

    async def _answer(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sending = asyncio.create_task(self._send(send), name="server-sent events")
        gone = asyncio.create_task(_gone(receive))
        closing = asyncio.create_task(self._backing.closing.wait())
        try:
            await asyncio.wait({sending, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await ended(sending, gone, closing)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send) -> None:
        try:
            while not await self._sent_all(send):
                await self._sent(send, AWAY)
                await self._backing.clock.sleep(_STORE_AGAIN)
        except _Revoked:
            _log.info("reader of events disconnected: it may not read any more")
        except TimeoutError:
            _log.info("reader of events disconnected: it reads nothing", seconds=self._stalled)
        except StoreError as error:
            _log.warning("events cannot be read", error=str(error))

    async def _sent_all(self, send: Send) -> bool:
        """Send messages until cancelled. False: there is no store yet."""
        try:
            async with self._backing.in_use() as store, self._news.followed(store.url):
                reader = await self._begun()
                async with aclosing(reader.messages()) as messages:
                    async for message in messages:
                        await self._sent(send, message)
        except StoreUnavailable:
            return False
        return True

    async def _sent(self, send: Send, message: bytes) -> None:
        if not self._may_read():
            raise _Revoked
        async with asyncio.timeout(self._stalled):
            await send({"type": "http.response.body", "body": message, "more_body": True})


class _Revoked(Exception):
    """The token of a reader is not valid any more."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# One reader: it gets each entry after its position once, in order, with the id to reconnect with. Trimmed entries are
# reported before the next one. The reader waits while the store is unavailable. It reads a few entries of one stream at
# a time, fewer if they are large, so a slow reader needs little memory and delays no other.

AT_ONCE: Final = 20
"""Entries of one stream."""

_AT_ONCE_BYTES: Final = 2 * 1024 * 1024  # of one stream; one entry may have more
_GROWTH: Final = 4  # from one reading to the next, should small entries be followed by large ones

_AGAIN: Final = 0.5  # seconds between attempts while the store is unavailable
_DIGITS: Final = 20  # of a sequence
_COME_BACK: Final = 2000  # milliseconds

_Entries = list[tuple[bytes, Mapping[bytes, bytes]]]


class _EventOutline(msgspec.Struct, frozen=True):
    type: str = ""
    sequence: str = "0"


class EventReader:
    """The reader of one request."""

    def __init__(
        self,
        client: Redis,
        news: StreamNotifier,
        streams: Mapping[str, str],
        places: StreamPositions,
        *,
        types: Callable[[str], bool] | None,
        from_now: bool,
        beat_seconds: float,
        clock: Clock,
    ) -> None:
        """Read these streams from these positions.

        Args:
            client: of the store.
            news: of these streams.
            streams: each feed's ``SOURCE/NAME`` by its stream's key.
            places: the start position in each stream.
            types: whether events of a type are wanted; None: all.
            from_now: whether a client that reconnects without an id would miss events.
            beat_seconds: seconds without a message after which a comment is sent.
            clock: of this process.
        """
        self._client = client
        self._news = news
        self._streams = streams
        self._places = places
        self._types = types
        self._from_now = from_now
        self._told = ""
        self._ends = RollbackWatch()
        self._left: set[str] = set()  # streams that went back, and are read from their beginning
        self._beat = beat_seconds
        self._clock = clock
        self._most = dict.fromkeys(streams, 1)  # entries of each stream, by the size of those before

    async def messages(self) -> AsyncGenerator[bytes]:
        """Yield messages without end.

        Raises:
            StoreRefused: the store refuses the command.
        """
        self._told = self._places.text
        yield greeting(self._told, again_milliseconds=_COME_BACK)
        if self._from_now:
            yield moved(self._told)
        due, mark, said = deque(self._streams), self._news.mark, self._clock.monotonic()
        while True:
            fresh, mark = self._news.since(mark, self._streams), self._news.mark
            due.extend(key for key in fresh if key not in due)
            quiet = self._clock.monotonic() - said
            if quiet >= self._beat:
                said, before, self._told = self._clock.monotonic(), self._told, self._places.text
                yield BEAT_COMMENT if self._told == before else moved(self._told)
            elif not due:
                await self._news.beyond(mark, self._beat - quiet)
            else:
                for message in await self._next(due):
                    yield message
                    said = self._clock.monotonic()

    async def _next(self, due: deque[str]) -> list[bytes]:
        """The messages of some entries of the next stream."""
        key = due.popleft()
        feed = self._streams[key]
        try:
            with translated(self._client):
                following = str(self._places[feed].following)
                most = self._most[key]
                found = cast("_Entries", await self._client.xrange(key, min=following, count=most))
                if not found and await self._is_lost(key, feed):
                    self._places.move(feed, BEGINNING)
                    self._left.add(key)
                    due.append(key)
                    return []
                unknown = bool(found) and (key in self._left or await self._trimmed_unknown(key, feed, found[0]))
                erased = await self._erased(key, feed, found)
        except StoreUnavailable:
            due.append(key)
            await self._clock.sleep(_AGAIN)
            return [AWAY]
        if len(found) == most:
            due.append(key)
        if found:
            self._left.discard(key)
            mean = sum(len(fields.get(b"data", b"")) for _, fields in found) // len(found)
            self._most[key] = max(1, min(AT_ONCE, _GROWTH * most, _AT_ONCE_BYTES // max(mean, 1)))
        told = [gap(feed, after=None, before=sequence_of(outline_of(found[0][1][b"data"])))] if unknown else []
        for entry, fields in found:
            told += self._messages(feed, entry, fields.get(b"data", b""), erased)
        return told

    async def _is_lost(self, key: str, feed: str) -> bool:
        """Whether the stream went back behind the reader's place and has grown since; only events have a sequence."""
        place = self._places[feed]
        if not place.sequence:
            return False
        ends = await last_ids(self._client, [key])
        return self._ends.is_lost(key, EntryId(place.milliseconds, place.number), ends[key])

    async def _trimmed_unknown(self, key: str, feed: str, first: tuple[bytes, Mapping[bytes, bytes]]) -> bool:
        """Whether entries may have been trimmed after a position without a sequence number.

        With a sequence number, the loss would be known.
        """
        place = self._places[feed]
        if place.sequence or place == BEGINNING or sequence_of(outline_of(first[1].get(b"data", b""))) <= 1:
            return False
        oldest = cast("_Entries", await self._client.xrange(key, count=1))
        return bool(oldest) and oldest[0][0] == first[0]

    async def _erased(self, key: str, feed: str, found: _Entries) -> Sequence[int]:
        """The sequence numbers between the place and the end of these entries that were erased, in order."""
        numbers = [sequence_of(outline_of(fields.get(b"data", b""))) for _, fields in found]
        before = self._places[feed].sequence
        if not before or not numbers or numbers == list(range(before + 1, before + 1 + len(numbers))):
            return ()
        return await erased_between(self._client, key, before, max(numbers))

    def _messages(self, feed: str, entry: bytes, content: bytes, erased: Sequence[int]) -> list[bytes]:
        before, outline = self._places[feed], outline_of(content)
        sequence = sequence_of(outline)
        self._places.move(feed, StreamPosition(*EntryId.parse(entry), sequence))
        missing = before.sequence and sequence > before.sequence + 1
        told = []
        if missing:
            count = sum(before.sequence < number < sequence for number in erased)
            told.append(gap(feed, after=before.sequence, before=sequence, erased=count))
        if self._types and not self._types(outline.type):
            return told
        self._told = self._places.text
        return [*told, event(self._told, content)]


def outline_of(content: bytes) -> _EventOutline:
    """The outline of an event; empty: it cannot be read."""
    try:
        return msgspec.json.decode(content, type=_EventOutline)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _EventOutline()


def sequence_of(outline: _EventOutline) -> int:
    """The event's sequence number; 0: it has none."""
    text = outline.sequence
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0


async def newest(client: Redis, streams: Mapping[str, str]) -> dict[str, StreamPosition]:
    """The position after the last entry of each feed.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for key in streams:
            asking.xrevrange(key, count=1)
        answers: list[Any] = await asking.execute()
    found = {}
    for feed, entries in zip(streams.values(), answers, strict=True):
        place = StreamPosition()
        for entry, fields in entries:
            sequence = sequence_of(outline_of(fields.get(b"data", b"")))
            place = StreamPosition(*EntryId.parse(entry), sequence)
        found[feed] = place
    return found


class StreamPosition(NamedTuple):
    """The last entry of a stream that was sent.

    Attributes:
        milliseconds: the first number of its id.
        number: the second number.
        sequence: of its event; 0: unknown, or none was sent.
    """

    milliseconds: int = 0
    number: int = 0
    sequence: int = 0

    @property
    def following(self) -> EntryId:
        """The id just after the entry's."""
        return EntryId(self.milliseconds, self.number).following


_Number = Annotated[int, msgspec.Meta(ge=0)]
_Part = tuple[bytes, _Number, _Number, _Number]

BEGINNING: Final = StreamPosition()
LONGEST: Final = 16 * 1024
"""Characters of a text."""

_HASH_SIZE: Final = 5  # bytes
_decoder: Final = msgspec.msgpack.Decoder(list[_Part])
_NOT_OURS: Final = "not an id that this service has sent"


class StreamPositions:
    """A position in each of several streams, and their text: the id of a server-sent message.

    The text is URL-safe base64 of MessagePack: for each feed, by name, ``[hash of 5 bytes, milliseconds, number,
    sequence]``. 256 feeds take some 8 KiB, which fits a header.

    Positions at other feeds, which this process does not have or the client has not asked for, stand behind them
    unchanged. Of those the newest are kept, as many as bring all positions to :data:`MOST_FEEDS`.
    """

    def __init__(
        self, places: Mapping[str, StreamPosition], others: Mapping[bytes, StreamPosition] = MappingProxyType({})
    ) -> None:
        """Take the positions by feed, and those at other feeds by the hash of the feed."""
        self._places = dict(sorted(places.items()))
        self._names = {feed: _hash(feed) for feed in self._places}
        left = sorted(others.keys() - self._names.values(), key=lambda name: (others[name], name), reverse=True)
        self._others = sorted((name, *others[name]) for name in left[: max(MOST_FEEDS - len(places), 0)])

    def __getitem__(self, feed: str) -> StreamPosition:
        """The position in a feed's stream."""
        return self._places[feed]

    def move(self, feed: str, place: StreamPosition) -> None:
        """Replace the position in a feed's stream."""
        self._places[feed] = place

    @property
    def text(self) -> str:
        """All positions."""
        parts = [(self._names[feed], *place) for feed, place in self._places.items()] + self._others
        return urlsafe_b64encode(msgspec.msgpack.encode(parts)).rstrip(b"=").decode()


def read_places(text: str, feeds: Iterable[str]) -> StreamPositions:
    """The positions of these feeds, and of others, from a text; a feed not in the text starts at its first entry.

    Raises:
        ValueError: the text is invalid.
    """
    if len(text) > LONGEST:
        raise ValueError("too long")
    try:
        parts = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (Error, UnicodeEncodeError, msgspec.MsgspecError):
        raise ValueError(_NOT_OURS) from None
    found = {name: StreamPosition(*numbers) for name, *numbers in parts if len(name) == _HASH_SIZE}
    return StreamPositions({feed: found.get(_hash(feed), BEGINNING) for feed in feeds}, found)


def _hash(feed: str) -> bytes:
    return blake2b(feed.encode(), digest_size=_HASH_SIZE).digest()
