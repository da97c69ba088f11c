"""``GET /events``: the events of the feeds as they come, as server-sent events.

**Invariants**

* A client that comes back with its latest ``Last-Event-ID`` misses nothing and sees nothing twice, in any of its feeds.
* At most :data:`READERS` clients read, each sent what its connection takes; one that takes nothing for :data:`STALLED`
  seconds is disconnected.
* All connections end in order when the service does.
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
from hashlib import blake2b
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
from poller.store.session import blocking_client
from poller.store.stream import EntryId, arrivals
from poller.telemetry.logs import LogOnce
from poller.telemetry.metrics import EVENT_READERS
from poller.web.context import AppContext
from poller.web.http import InvalidParameter, RequestRefused, at

# Server-sent messages as bytes, as the HTML standard has them.
#
# Law: the event arrives as it stands in the stream, but for line breaks between its JSON values: each becomes one
# line
# feed. No block is without data, and no comment ends one: some clients hand out a message for each empty line. A
# place
# that comes before the first event, or changes without one, is a message ``place`` of its own.
#
# Pure.

KIND: Final = "text/event-stream"
AWAY: Final = b": the store is away; this goes on when it is back\n"
BEAT_COMMENT: Final = b": nothing new\n"
"""That all is well and nothing has come."""

_BREAKS: Final = re.compile(rb"\r\n|\r|\n")


class GapNotice(msgspec.Struct, frozen=True):
    """The ``data`` of a message ``gap``: events that are gone from the stream and were not given out.

    Attributes:
        feed: ``SOURCE/NAME``.
        after: the sequence number of the last event before them; None: not known.
        before: that of the first one after them.
        missing: how many they are; None: not known.
    """

    feed: str
    after: int | None
    before: int
    missing: int | None


class PositionNotice(msgspec.Struct, frozen=True):
    """The ``data`` of a message ``place``.

    Attributes:
        place: the message's id.
    """

    place: str


def event(place: str, content: bytes) -> bytes:
    """An event, with the id to come back with once it has arrived."""
    return b"id: %b\n%b\n" % (place.encode(), _lines(content))


def gap(feed: str, *, after: int | None, before: int) -> bytes:
    """That something is missing before the event that follows; ``after`` is None where it is not known how much."""
    missing = None if after is None else before - after - 1
    return b"event: gap\n" + _lines(msgspec.json.encode(GapNotice(feed, after, before, missing))) + b"\n"


def moved(place: str) -> bytes:
    """The id to come back with, where no event says it."""
    return b"event: place\nid: %b\n%b\n" % (place.encode(), _lines(msgspec.json.encode(PositionNotice(place))))


def greeting(place: str, *, again_milliseconds: int) -> bytes:
    """What the first message begins with: after how long to come back, and an id for those who note it by the line."""
    return b"retry: %d\nid: %b\n" % (again_milliseconds, place.encode())


def _lines(content: bytes) -> bytes:
    return b"".join(b"data: %b\n" % line for line in _BREAKS.split(content))


# Streams with new entries, found by one connection for all readers, and only while there are readers. Marks hold across
# an absence of the store.

BLOCK: Final = timedelta(seconds=2)
_NEWS_AGAIN: Final = 0.5  # seconds before a store that is away is asked again

_log = structlog.get_logger("poller.web")


class StreamNotifier:
    """What has come in the streams, in turns that are counted."""

    def __init__(
        self,
        keys: Sequence[str],
        clock: Clock,
        *,
        block: timedelta = BLOCK,
    ) -> None:
        """Take the streams' keys, the clock, and how long the store may wait for something new."""
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
        """Look at the streams of this store while the block runs, or longer where others follow."""
        self._followers += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._watch(url), name="news for server-sent events")
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._looking is not None:
                looking, self._looking = self._looking, None  # a reader that comes meanwhile starts another
                await ended(looking)

    @property
    def mark(self) -> int:
        """What came until now came before this."""
        return self._turn

    def since(self, mark: int, keys: Collection[str]) -> list[str]:
        """Those of these streams in which something has come after the mark."""
        return [key for key in keys if self._changed.get(key, 0) > mark]

    async def beyond(self, mark: int, seconds: float) -> None:
        """Wait until something has come after the mark, wherever that is; at most so long."""
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
            finally:
                await client.aclose()
            await self._clock.sleep(_NEWS_AGAIN)

    def _publish(self, fresh: set[str]) -> None:
        self._turn += 1
        self._changed |= dict.fromkeys(fresh, self._turn)
        before, self._fresh = self._fresh, asyncio.Event()
        before.set()


READERS: Final = 64
MOST_FEEDS: Final = 256
"""Of one reader: each has its place in the id of each message."""

BEAT: Final = 15.0
"""Seconds."""

STALLED: Final = 60.0
"""Seconds."""

_STORE_AGAIN: Final = 1.0  # seconds before it is looked again for a store that has not answered yet
_GOODBYE: Final = 0.5  # seconds that the end of an answer may take
_FULL_AGAIN: Final = "10"
_FROM: Final = "expected now, earliest, the id of a message, or the id of a stream's entry such as 1735689600000-0"
_HEADERS: Final = [(b"content-type", KIND.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


def event_routes(
    backing: AppContext,
    *,
    beat: float = BEAT,
    readers: int = READERS,
    stalled: float = STALLED,
) -> list[Route]:
    """The route.

    Args:
        backing: what it stands on.
        beat: seconds without a message after which a reader gets a comment.
        readers: how many there may be.
        stalled: seconds after which a reader that takes nothing is let go.
    """
    streams = {keys_of(backing.settings, feed).events: feed for feed in backing.settings.feed_ids}
    news, following = StreamNotifier(tuple(streams), backing.clock), set[_EventStreamResponse]()

    async def follow(request: Request) -> Any:
        """GET: ends when the client or the service does."""
        chosen = _chosen(request, streams)
        begin = _start_positions(request, chosen)
        types = _types(request, backing.settings.types_of(chosen.values()))
        if request.method == "HEAD":
            return Response(media_type=KIND)
        if len(following) >= readers:
            raise RequestRefused(503, f"there are {readers} readers already", headers={"retry-after": _FULL_AGAIN})

        async def begun() -> EventReader:
            places = StreamPositions(await newest(backing.client, chosen) if begin is None else begin)
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

        return _EventStreamResponse(begun, news, backing, following, stalled)

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


def _start_positions(request: Request, chosen: Mapping[str, str]) -> dict[str, StreamPosition] | None:
    """Where to begin in each feed; None: behind all that is there by then."""
    name, text = "from", request.query_params.get("from", "now")
    if last := request.headers.get("last-event-id"):
        name, text = "Last-Event-ID", last
    if text == "now":
        return None
    if text == "earliest":
        return dict.fromkeys(chosen.values(), BEGINNING)
    with suppress(ValueError):
        return dict.fromkeys(chosen.values(), StreamPosition(*EntryId.checked(text)))
    try:
        return read_places(text, chosen.values())
    except ValueError:
        raise RequestRefused(400, f"{name}: {_FROM}", errors=[InvalidParameter(name, _FROM, text[:64])]) from None


class _EventStreamResponse:
    """The answer: begins immediately, and waits while the store is away, for a refused browser stays away."""

    def __init__(
        self,
        begun: Callable[[], Awaitable[EventReader]],
        news: StreamNotifier,
        backing: AppContext,
        following: set[_EventStreamResponse],
        stalled: float,
    ) -> None:
        self._begun = begun
        self._news = news
        self._backing = backing
        self._following = following
        self._stalled = stalled
        following.add(self)
        EVENT_READERS.inc()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(receive, send)
        finally:
            self._following.discard(self)
            EVENT_READERS.dec()

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
        except TimeoutError:
            _log.info("a reader of events is let go: it takes nothing", seconds=self._stalled)
        except StoreError as error:
            _log.warning("events cannot be read", error=str(error))

    async def _sent_all(self, send: Send) -> bool:
        """Send what is to be sent, for ever. False: there is no store yet."""
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
        async with asyncio.timeout(self._stalled):
            await send({"type": "http.response.body", "body": message, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# One reader: each entry after its position once, in order, with the id by which it can come back. Trimmed entries are
# announced before the next one. A store that is away is waited for. A reader takes a few entries of one stream at a
# time, so a slow one holds little and delays no other.

AT_ONCE: Final = 20
"""Entries of one stream."""

_AGAIN: Final = 0.5  # seconds before a store that is away is asked again
_DIGITS: Final = 20  # of a sequence
_COME_BACK: Final = 2000  # milliseconds

_Entries = list[tuple[bytes, Mapping[bytes, bytes]]]


class _EventOutline(msgspec.Struct, frozen=True):
    type: str = ""
    sequence: str = "0"


class EventReader:
    """Of one request."""

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
        """Take what is read, and where to begin.

        Args:
            client: of the store.
            news: of these streams.
            streams: each feed's ``SOURCE/NAME`` by its stream's key.
            places: where to begin in each.
            types: whether events of a type are wanted; None for all.
            from_now: whether who comes back without an id would miss what came meanwhile.
            beat_seconds: after how long without a message to tell that all is well.
            clock: of this process.
        """
        self._client = client
        self._news = news
        self._streams = streams
        self._places = places
        self._types = types
        self._from_now = from_now
        self._told = ""
        self._beat = beat_seconds
        self._clock = clock

    async def messages(self) -> AsyncGenerator[bytes]:
        """What to send, for ever.

        Raises:
            StoreRefused: the store does not want us.
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
        """The messages of some entries of the stream whose turn it is."""
        key = due.popleft()
        feed = self._streams[key]
        try:
            with translated(self._client):
                after = f"({self._places[feed].entry}"
                found = cast("_Entries", await self._client.xrange(key, min=after, count=AT_ONCE))
                unknown = bool(found) and await self._trimmed_unknown(key, feed, found[0])
        except StoreUnavailable:
            due.append(key)
            await self._clock.sleep(_AGAIN)
            return [AWAY]
        if len(found) == AT_ONCE:
            due.append(key)
        told = [gap(feed, after=None, before=sequence_of(outline_of(found[0][1][b"data"])))] if unknown else []
        for entry, fields in found:
            told += self._messages(feed, entry, fields.get(b"data", b""))
        return told

    async def _trimmed_unknown(self, key: str, feed: str, first: tuple[bytes, Mapping[bytes, bytes]]) -> bool:
        """Whether something may have been trimmed away after a place that is an entry's id and no more.

        Loss that the ``sequence`` shows is known; here the stream begins behind the place, and did so before.
        """
        place = self._places[feed]
        if place.sequence or place == BEGINNING or sequence_of(outline_of(first[1].get(b"data", b""))) <= 1:
            return False
        oldest = cast("_Entries", await self._client.xrange(key, count=1))
        return bool(oldest) and oldest[0][0] == first[0]

    def _messages(self, feed: str, entry: bytes, content: bytes) -> list[bytes]:
        before, outline = self._places[feed], outline_of(content)
        sequence = sequence_of(outline)
        self._places.move(feed, StreamPosition(*EntryId.parse(entry), sequence))
        missing = before.sequence and sequence > before.sequence + 1
        told = [gap(feed, after=before.sequence, before=sequence)] if missing else []
        if self._types and not self._types(outline.type):
            return told
        self._told = self._places.text
        return [*told, event(self._told, content)]


def outline_of(content: bytes) -> _EventOutline:
    """What is to be known of an event; nothing where it cannot be read."""
    try:
        return msgspec.json.decode(content, type=_EventOutline)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _EventOutline()


def sequence_of(outline: _EventOutline) -> int:
    """Its number; 0 where it has none."""
    text = outline.sequence
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0


async def newest(client: Redis, streams: Mapping[str, str]) -> dict[str, StreamPosition]:
    """The place behind all that is there, by feed.

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
        sequence: of its event; 0: not known, or none was sent.
    """

    milliseconds: int = 0
    number: int = 0
    sequence: int = 0

    @property
    def entry(self) -> str:
        """The entry's id."""
        return f"{self.milliseconds}-{self.number}"


_Number = Annotated[int, msgspec.Meta(ge=0)]
_Part = tuple[bytes, _Number, _Number, _Number]

BEGINNING: Final = StreamPosition()
LONGEST: Final = 16 * 1024
"""Characters of a text."""

_decoder: Final = msgspec.msgpack.Decoder(list[_Part])
_NOT_OURS: Final = "not as it was given out"


class StreamPositions:
    """A position in each of several streams, and their text: the id of a server-sent message.

    The text is URL-safe base64 of MessagePack: for each feed, by name, ``[hash of 5 bytes, milliseconds, number,
    sequence]``. 256 feeds take some 8 KiB, which fits a header.
    """

    def __init__(self, places: Mapping[str, StreamPosition]) -> None:
        """Take the positions by feed."""
        self._places = dict(sorted(places.items()))
        self._names = {feed: _hash(feed) for feed in self._places}

    def __getitem__(self, feed: str) -> StreamPosition:
        """The position in a feed's stream."""
        return self._places[feed]

    def move(self, feed: str, place: StreamPosition) -> None:
        """Replace the position in a feed's stream."""
        self._places[feed] = place

    @property
    def text(self) -> str:
        """All positions."""
        parts = [(self._names[feed], *place) for feed, place in self._places.items()]
        return urlsafe_b64encode(msgspec.msgpack.encode(parts)).rstrip(b"=").decode()


def read_places(text: str, feeds: Iterable[str]) -> dict[str, StreamPosition]:
    """The positions of these feeds; a feed that the text does not hold begins at its beginning.

    Raises:
        ValueError: it is no such text.
    """
    if len(text) > LONGEST:
        raise ValueError("too long")
    try:
        parts = _decoder.decode(urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)))
    except (Error, UnicodeEncodeError, msgspec.MsgspecError):
        raise ValueError(_NOT_OURS) from None
    found = {name: StreamPosition(*numbers) for name, *numbers in parts}
    return {feed: found.get(_hash(feed), BEGINNING) for feed in feeds}


def _hash(feed: str) -> bytes:
    return blake2b(feed.encode(), digest_size=5).digest()
