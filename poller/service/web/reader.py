"""One who follows streams over HTTP: what is there after its places, then what comes, as server-sent messages.

Law: of each stream every entry after its place is given out once, in order, and each with the id by which one comes
back behind it. What was trimmed away in between is told before the entry that follows. A store that goes away is waited
for.

A reader takes a few entries of one stream at a time, the streams in turns, and no more before it has given these out.
So one that is slow holds little, and holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, cast

import msgspec
from redis.asyncio import Redis

from poller.errors import StoreUnavailable
from poller.service.web.news import News
from poller.service.web.places import BEGINNING, Place, Places, place_of
from poller.service.web.server_sent import AWAY, BEAT_COMMENT, event, gap, greeting, moved
from poller.store.connection import translated

AT_ONCE: Final = 20
"""Entries of one stream."""

_AGAIN: Final = 0.5  # seconds before a store that is away is asked again
_DIGITS: Final = 20  # of a sequence
_COME_BACK: Final = 2000  # milliseconds

_Entries = list[tuple[bytes, Mapping[bytes, bytes]]]


class _Outline(msgspec.Struct, frozen=True):
    type: str = ""
    sequence: str = "0"


class Reader:
    """Of one request."""

    def __init__(
        self,
        client: Redis,
        news: News,
        streams: Mapping[str, str],
        places: Places,
        *,
        types: Callable[[str], bool] | None,
        from_now: bool,
        beat_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
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
            clock: seconds that only go forward.
            sleep: waits for so many seconds.
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
        self._sleep = sleep

    async def messages(self) -> AsyncGenerator[bytes]:
        """What to send, for ever.

        Raises:
            StoreRefused: the store does not want us.
        """
        self._told = self._places.text
        yield greeting(self._told, again_milliseconds=_COME_BACK)
        if self._from_now:
            yield moved(self._told)
        due, mark, said = deque(self._streams), self._news.mark, self._clock()
        while True:
            fresh, mark = self._news.since(mark, self._streams), self._news.mark
            due.extend(key for key in fresh if key not in due)
            quiet = self._clock() - said
            if quiet >= self._beat:
                said, before, self._told = self._clock(), self._told, self._places.text
                yield BEAT_COMMENT if self._told == before else moved(self._told)
            elif not due:
                await self._news.beyond(mark, self._beat - quiet)
            else:
                for message in await self._next(due):
                    yield message
                    said = self._clock()

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
            await self._sleep(_AGAIN)
            return [AWAY]
        if len(found) == AT_ONCE:
            due.append(key)
        told = [gap(feed, after=None, before=sequence_of(outline_of(found[0][1][b"data"])))] if unknown else []
        for entry, fields in found:
            told += self._messages(feed, entry, fields.get(b"data", b""))
        return told

    async def _trimmed_unknown(self, key: str, feed: str, first: tuple[bytes, Mapping[bytes, bytes]]) -> bool:
        """Whether something may have been trimmed away after a place that is an entry's id and no more.

        What is told by its ``sequence`` is known; here the stream begins behind the place, and did so before.
        """
        place = self._places[feed]
        if place.sequence or place == BEGINNING or sequence_of(outline_of(first[1].get(b"data", b""))) <= 1:
            return False
        oldest = cast("_Entries", await self._client.xrange(key, count=1))
        return bool(oldest) and oldest[0][0] == first[0]

    def _messages(self, feed: str, entry: bytes, content: bytes) -> list[bytes]:
        before, outline = self._places[feed], outline_of(content)
        sequence = sequence_of(outline)
        self._places.move(feed, place_of(entry.decode())._replace(sequence=sequence))
        missing = before.sequence and sequence > before.sequence + 1
        told = [gap(feed, after=before.sequence, before=sequence)] if missing else []
        if self._types and not self._types(outline.type):
            return told
        self._told = self._places.text
        return [*told, event(self._told, content)]


def outline_of(content: bytes) -> _Outline:
    """What is to be known of an event; nothing where it cannot be read."""
    try:
        return msgspec.json.decode(content, type=_Outline)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return _Outline()


def sequence_of(outline: _Outline) -> int:
    """Its number; 0 where it has none."""
    text = outline.sequence
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else 0


async def newest(client: Redis, streams: Mapping[str, str]) -> dict[str, Place]:
    """The place behind all that is there, by feed.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for key in streams:
            asking.xrevrange(key, count=1)
        answers: list[Any] = await asking.execute()
    found = {}
    for feed, entries in zip(streams.values(), answers, strict=True):
        place = Place()
        for entry, fields in entries:
            sequence = sequence_of(outline_of(fields.get(b"data", b"")))
            place = place_of(entry.decode())._replace(sequence=sequence)
        found[feed] = place
    return found
