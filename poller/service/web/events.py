"""``GET /events``: the events of the feeds as they come, as server-sent events.

Law: a client that comes back with the ``Last-Event-ID`` that it had last misses nothing and sees nothing twice, in any
of its feeds. There are :data:`READERS` of them at most, each sent what its connection takes; one that takes nothing for
:data:`STALLED` seconds is let go. All of them end in order when the service does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from poller.config.event_types import type_test, unmatched
from poller.errors import StoreError, StoreUnavailable
from poller.service.feed_values import keys_of
from poller.service.web.backing import Backing
from poller.service.web.news import News
from poller.service.web.places import BEGINNING, Place, Places, place_of, read_places
from poller.service.web.problems import Refused, Wrong
from poller.service.web.reader import Reader, newest
from poller.service.web.routing import at
from poller.service.web.server_sent import AWAY, KIND
from poller.stopping import ended
from poller.telemetry.process import EVENT_READERS

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

_log = structlog.get_logger("poller.web")


def event_routes(
    backing: Backing,
    *,
    clock: Callable[[], float],
    beat: float = BEAT,
    readers: int = READERS,
    stalled: float = STALLED,
) -> list[Route]:
    """The route.

    Args:
        backing: what it stands on.
        clock: seconds that only go forward.
        beat: seconds after which a reader is told that nothing has come.
        readers: how many there may be.
        stalled: seconds after which a reader that takes nothing is let go.
    """
    streams = {keys_of(backing.settings, feed).events: feed for feed in backing.settings.feed_ids}
    news, following = News(tuple(streams)), set[_Following]()

    async def follow(request: Request) -> Any:
        """GET: ends when whoever asks goes, or the service does."""
        chosen = _chosen(request, streams)
        begin = _begin(request, chosen)
        types = _types(request, backing.settings.types_of(chosen.values()))
        if request.method == "HEAD":
            return Response(media_type=KIND)
        if len(following) >= readers:
            raise Refused(503, f"there are {readers} readers already", headers={"retry-after": _FULL_AGAIN})

        async def begun() -> Reader:
            places = Places(await newest(backing.client, chosen) if begin is None else begin)
            return Reader(
                backing.client,
                news,
                chosen,
                places,
                types=types,
                from_now=begin is None,
                beat_seconds=beat,
                clock=clock,
            )

        return _Following(begun, news, backing, following, stalled)

    return [at("/events", GET=follow)]


def _chosen(request: Request, streams: Mapping[str, str]) -> dict[str, str]:
    wanted = request.query_params.getlist("feed")
    unknown = [feed for feed in wanted if feed not in streams.values()]
    if unknown:
        expected = f"expected SOURCE/NAME, one of {', '.join(list(streams.values())[:20])}"
        raise Refused(404, f"feed: {expected}", errors=[Wrong("feed", expected, unknown[0][:64])])
    chosen = {key: feed for key, feed in streams.items() if not wanted or feed in wanted}
    if len(chosen) > MOST_FEEDS:
        raise Refused(400, f"feed: expected {MOST_FEEDS} feeds at most; name them by feed=SOURCE/NAME, one by one")
    return chosen


def _types(request: Request, there: Collection[str]) -> Callable[[str], bool] | None:
    wanted = request.query_params.getlist("type")
    for _, entry, expected in unmatched(wanted, there):
        raise Refused(400, f"type: {expected}", errors=[Wrong("type", expected, entry[:64])])
    return type_test(wanted) if wanted else None


def _begin(request: Request, chosen: Mapping[str, str]) -> dict[str, Place] | None:
    """Where to begin in each feed; None: behind all that is there by then."""
    name, text = "from", request.query_params.get("from", "now")
    if last := request.headers.get("last-event-id"):
        name, text = "Last-Event-ID", last
    if text == "now":
        return None
    if text == "earliest":
        return dict.fromkeys(chosen.values(), BEGINNING)
    with suppress(ValueError):
        return dict.fromkeys(chosen.values(), place_of(text))
    try:
        return read_places(text, chosen.values())
    except ValueError:
        raise Refused(400, f"{name}: {_FROM}", errors=[Wrong(name, _FROM, text[:64])]) from None


class _Following:
    """The answer: it begins at once, and where the store is away it waits, for a browser that is refused stays away."""

    def __init__(
        self,
        begun: Callable[[], Awaitable[Reader]],
        news: News,
        backing: Backing,
        following: set[_Following],
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
                await asyncio.sleep(_STORE_AGAIN)
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
