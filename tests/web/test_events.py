"""Laws of ``/events``: a reader that reconnects gets every event once, whatever happened in between."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import httpx
import msgspec
import pytest
from fakeredis import FakeAsyncRedis
from httpx_sse import ServerSentEvent, aconnect_sse
from httpx_sse._decoders import SSEDecoder
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError
from redis.exceptions import ConnectionError as Cut
from starlette.routing import BaseRoute
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.control.factories import keys_of
from poller.errors import StoreUnavailable
from poller.http.server import listening
from poller.redis.client import commands
from poller.redis.errors import translated
from poller.store.session import OpenStore
from poller.web.app import application
from poller.web.context import AppContext
from poller.web.events import (
    AWAY,
    BEAT_COMMENT,
    BEGINNING,
    LONGEST,
    EventReader,
    StreamNotifier,
    StreamPosition,
    StreamPositions,
    event,
    event_routes,
    gap,
    greeting,
    moved,
    read_places,
)
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import PATIENCE, patience, strain, turns, until
from tests.servers import running
from tests.telemetry.series import grown
from tests.web.served import FEEDS, NOW, TOKEN, Served, configured, served
from tests.web.sse import Message, Parser, following, messages_of

CREATED = "org.example.api.contractType.created.v1"
REMOVED = "org.example.api.contractType.removed.v1"


class Published:
    """Events in the streams of two feeds, numbered for each."""

    def __init__(self, client: Redis, given: Served) -> None:
        self._client = client
        self._given = given
        self._sequence = Counter[str]()

    async def add(self, feed: str, *, kind: str = CREATED, entry: str = "*", padding: int = 0) -> str:
        """Publish one more event; its name."""
        number = self._sequence[feed] + 1
        name = f"{feed}#{number}"
        event = {"id": name, "type": kind, "sequence": f"{number:020}", "x": "x" * padding}
        key = keys_of(self._given.settings, feed).events
        await self._client.xadd(key, {"data": json.dumps(event, indent=1)}, id=entry)
        self._sequence[feed] = number
        return name

    def goes_back(self, feed: str, number: int) -> None:
        """Number the next events of a feed after this one."""
        self._sequence[feed] = number


@pytest.fixture
def published(given: Served) -> Published:
    return Published(given.store, given)


class Following:
    """One reader and its messages."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer
        self.parser = Parser()
        self._messages = following(answer, self.parser)

    async def next(self) -> Message:
        """The next message that is not a place."""
        async with patience("a message"):
            while (message := await anext(self._messages)).kind == "place":
                pass
            return message

    async def names(self, count: int) -> list[str]:
        return [json.loads((await self.next()).data)["id"] for _ in range(count)]

    async def ended(self) -> bool:
        async with patience("the end of the answer"):
            async for one in self._messages:
                if one.kind != "place":
                    return False
            return True

    async def begun(self) -> None:
        """Wait for the greeting, after which every event is new to the reader."""
        async with patience("the greeting"):
            while not self.parser.last:
                self.parser.line((await self.answer.content.readline()).decode().rstrip("\n"))


@asynccontextmanager
async def reader(given: Served, query: str = "", *, last: str = "") -> AsyncIterator[Following]:
    headers = {"last-event-id": last} if last else {}
    async with given.http.get(f"{given.url}/events{query}", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        yield Following(answer)


async def test_from_now_on(given: Served, published: Published) -> None:
    """By default a reader gets only new events, of all feeds, unchanged from the stream."""
    await published.add(FEEDS[0])
    async with reader(given) as one:
        await one.begun()
        expected = [await published.add(feed) for feed in (FEEDS[1], FEEDS[0])]
        came = {json.loads(message.data)["id"]: message for message in (await one.next(), await one.next())}
        assert set(came) == set(expected)  # the order between feeds is not promised
        found: Any = await given.store.xrange(keys_of(given.settings, FEEDS[1]).events)
        assert came[expected[0]].data.split() == found[0][1][b"data"].decode().split()
        assert {message.kind for message in came.values()} == {"message"}


async def test_from_the_beginning_and_of_some(given: Served, published: Published) -> None:
    """``from=earliest`` gives all events, in several reads if needed; ``feed`` and ``type`` filter."""
    mine = [await published.add(FEEDS[0]) for _ in range(45)]
    others = [await published.add(FEEDS[1], kind=REMOVED) for _ in range(3)]
    async with reader(given, "?from=earliest") as one:
        found = await one.names(48)
    assert [name for name in found if name in mine] == mine
    assert [name for name in found if name in others] == others
    async with reader(given, f"?from=earliest&feed={FEEDS[1]}") as one:
        assert await one.names(3) == others
    for types in (f"type={REMOVED}", "type=*.contractType.removed.*", "type=removed&type=*.evidenceVariant.created.v1"):
        async with reader(given, f"?from=earliest&{types}") as one:
            assert await one.names(3) == others


async def test_after_an_entry(given: Served, published: Published) -> None:
    """``from`` takes an entry's id, as ``poller tail`` does."""
    await published.add(FEEDS[0], entry="5-1")
    second = await published.add(FEEDS[0], entry="5-2")
    async with reader(given, "?from=5-1") as one:
        assert await one.names(1) == [second]


async def test_after_the_last_entry_that_a_stream_can_have(tmp_path: Path, store_url: str) -> None:
    """After the largest entry id a reader waits as usual instead of failing with a store error."""
    async with small_service(configured(tmp_path, store_url), beat=0.02) as given:
        await Published(given.store, given).add(FEEDS[0])
        largest = f"{2**64 - 1}-{2**64 - 1}"
        for query, last in ((f"?from={largest}", ""), ("", largest)):
            async with reader(given, query, last=last) as one, patience("a beat"):
                await one.begun()
                while not (line := await one.answer.content.readline()).startswith(b":"):
                    assert line


async def test_coming_back_again_and_again(given: Served, published: Published) -> None:
    """A reader that reconnects, after any number of messages, gets each event of each feed once."""
    names = [
        await published.add(FEEDS[number % 2], entry=f"7-{number}" if number % 2 else f"3-{number}")
        for number in range(12)
    ]
    seen: list[str] = []
    last = ""
    for count in (1, 0, 2, 1, 3, 0, 5):
        async with reader(given, "?from=earliest", last=last) as one:
            await one.begun()
            seen += await one.names(count)
            last = one.parser.last
    assert sorted(seen) == sorted(names)


async def test_coming_back_by_way_of_a_process_without_the_feed(
    given: Served, published: Published, tmp_path: Path, store_url: str
) -> None:
    """A client that meets a process without one of its feeds, and comes back, gets that feed's events once."""
    settings = configured(tmp_path, store_url)
    (source,) = settings.sources
    fewer = source.model_copy(update={"feeds": source.feeds[:1]})
    published_all, seen, last = list[str](), list[str](), ""
    async with served(settings.model_copy(update={"sources": (fewer,)})) as other:
        for service, count in ((given, 2), (other, 1), (given, 3), (other, 1), (given, 3)):
            published_all += [await published.add(feed) for feed in FEEDS]
            async with reader(service, "?from=earliest", last=last) as one:
                await one.begun()
                seen += await one.names(count)
                last = one.parser.last
    assert sorted(seen) == sorted(published_all)


async def test_coming_back_before_anything_came(given: Served, published: Published) -> None:
    """An id is sent before the first event, so that a client that disconnects then misses nothing."""
    async with reader(given) as one, patience("a place"):
        place = await anext(following(one.answer, one.parser))
        last = place.id
        assert (place.kind, json.loads(place.data)) == ("place", {"place": last})
    missed = await published.add(FEEDS[0])
    async with reader(given, last=last) as one:
        assert await one.names(1) == [missed]


async def test_by_httpx_sse(tmp_path: Path, store_url: str) -> None:
    """httpx-sse reads the stream with its sample code: every message has an id and JSON data."""
    async with (
        small_service(configured(tmp_path, store_url), beat=0.02) as given,
        httpx.AsyncClient(trust_env=False, timeout=PATIENCE * strain()) as client,
        patience("the messages"),
    ):
        published = Published(given.store, given)
        for query, kinds in (
            ("", ["place", "message", "place", "message"]),
            ("?from=earliest", ["message"] * 3),
        ):
            found: list[ServerSentEvent] = []
            async with aconnect_sse(client, "GET", f"{given.url}/events{query or f'?type={REMOVED}'}") as source:
                async for one in source.aiter_sse():
                    found.append(one)
                    assert one.json()
                    assert one.id
                    if len(found) == len(kinds):
                        break
                    if not query:
                        await published.add(FEEDS[0], kind=REMOVED if one.event == "place" else CREATED)
            assert [one.event for one in found] == kinds


async def test_an_event_that_was_not_wanted_is_not_looked_at_again(tmp_path: Path, store_url: str) -> None:
    """A beat moves the id past events that ``type`` filtered out, without a message event."""
    now = [0.0]
    async with small_service(
        configured(tmp_path, store_url), clock=StubClock(monotonic=lambda: now[0]), beat=0.01
    ) as given:
        published = Published(given.store, given)
        async with reader(given, f"?from=earliest&type={REMOVED}") as one:
            await one.begun()
            await published.add(FEEDS[0])
            before = one.parser.last
            async with patience("a beat with a new id"):
                while one.parser.last == before:
                    now[0] += 1
                    one.parser.line((await one.answer.content.readline()).decode().rstrip("\n"))
            wanted = await published.add(FEEDS[0], kind=REMOVED)
            last = one.parser.last
        async with reader(given, last=last) as one:
            assert await one.names(1) == [wanted]


async def test_what_was_trimmed_is_told(given: Served, published: Published) -> None:
    """A gap message before the first event after trimmed ones names the feed and how many are missing."""
    newest = await published.add(FEEDS[0])
    async with reader(given, "?from=earliest") as one:
        assert await one.names(1) == [newest]
        last = one.parser.last
    for before, missing in ((3, 1), (6, 2)):  # one missing event counts
        for _ in range(missing):
            await published.add(FEEDS[0])
        newest = await published.add(FEEDS[0])
        await given.store.xtrim(keys_of(given.settings, FEEDS[0]).events, maxlen=1, approximate=False)
        async with reader(given, last=last) as one:
            told = await one.next()
            gap = {"feed": FEEDS[0], "after": before - missing - 1, "before": before, "missing": missing}
            assert (told.kind, json.loads(told.data)) == ("gap", gap)
            assert await one.names(1) == [newest]
            last = one.parser.last
    other = await published.add(FEEDS[1])
    async with reader(given, "?from=earliest") as one:  # a reader from the beginning has no gap
        assert sorted(await one.names(2)) == sorted([newest, other])


async def test_what_was_erased_is_told_as_such(given: Served, published: Published) -> None:
    """A gap message says how many of the missing events were of erased records; the others were trimmed."""
    newest = await published.add(FEEDS[0])
    async with reader(given, "?from=earliest") as one:
        assert await one.names(1) == [newest]
        last = one.parser.last
    for _ in range(5):
        newest = await published.add(FEEDS[0])
    keys = keys_of(given.settings, FEEDS[0])
    await given.store.xtrim(keys.events, maxlen=1, approximate=False)
    await given.store.zadd(keys.erased_events, {"1": 1, "3": 3, "4": 4, "6": 6, "7": 7})
    async with reader(given, last=last) as one:
        told = await one.next()
        gap = {"feed": FEEDS[0], "after": 1, "before": 6, "missing": 4, "erased": 2}
        assert (told.kind, json.loads(told.data)) == ("gap", gap)
        assert await one.names(1) == [newest]


async def test_what_was_trimmed_is_told_whatever_is_chosen(given: Served, published: Published) -> None:
    """A gap is sent before the next event of the chosen type, whatever types were trimmed."""
    await published.add(FEEDS[0])
    async with reader(given, "?from=earliest") as one:
        await one.names(1)
        last = one.parser.last
    *_, newest = [await published.add(FEEDS[0], kind=kind) for kind in (REMOVED, CREATED, REMOVED)]
    await given.store.xtrim(keys_of(given.settings, FEEDS[0]).events, maxlen=2, approximate=False)
    async with reader(given, f"?type={REMOVED}", last=last) as one:
        told = await one.next()
        gap = {"feed": FEEDS[0], "after": 1, "before": 3, "missing": 1}
        assert (told.kind, json.loads(told.data)) == ("gap", gap)
        assert await one.names(1) == [newest]


async def test_what_was_trimmed_after_a_beginning_from_now_is_counted(given: Served, published: Published) -> None:
    """The id of the greeting knows the last event's number, so a later gap has a count."""
    await published.add(FEEDS[0])
    async with reader(given) as one:
        await one.begun()
        last = one.parser.last
    *_, newest = [await published.add(FEEDS[0]) for _ in range(2)]
    await given.store.xtrim(keys_of(given.settings, FEEDS[0]).events, maxlen=1, approximate=False)
    async with reader(given, last=last) as one:
        told = await one.next()
        gap = {"feed": FEEDS[0], "after": 1, "before": 3, "missing": 1}
        assert (told.kind, json.loads(told.data)) == ("gap", gap)
        assert await one.names(1) == [newest]


async def test_who_comes_while_another_follows_has_what_was_there_before(given: Served, published: Published) -> None:
    """A new reader gets existing events immediately, also while another reader waits for new ones."""
    async with reader(given) as first:
        await first.begun()
        name = await published.add(FEEDS[0])
        assert await first.names(1) == [name]
        async with reader(given, "?from=earliest") as second:
            assert await second.names(1) == [name]


UNFOLLOWED: Final[list[Any]] = [
    ("?from=yesterday", "", 400),
    ("?from=18446744073709551616", "", 400),
    ("", "not-an-id", 400),
    ("?type=creatd", "", 400),
    (f"?type=created&type={REMOVED}&feed={FEEDS[0]}&type=*.evidenceVariant.*", "", 400),
    (f"?type={'[' * 8_000}", "", 400),
    ("?type=*" + "&type=*" * 3_000, "", 400),
    ("?feed=acme/none", "", 404),
    ("?feed=", "", 404),
]


async def test_what_cannot_be_followed(given: Served) -> None:
    """An invalid position or filter gets 400 and an unknown feed 404, as problem documents."""
    for query, last, status in UNFOLLOWED:
        answered, headers, told = await given.ask(f"/events{query}", headers={"last-event-id": last} if last else {})
        assert (answered, headers["content-type"], told["status"]) == (status, "application/problem+json", status)


async def test_head_ends(given: Served) -> None:
    """HEAD is answered and does not start a stream."""
    status, headers, _ = await given.ask("/events", "HEAD")
    assert (status, headers["content-type"].partition(";")[0]) == (200, "text/event-stream")


@pytest.mark.parametrize("query", ["", "?from=earliest", "?from=5-1"])
async def test_before_the_store_has_answered(tmp_path: Path, store_url: str, query: str) -> None:
    """Before the store has answered the stream opens and waits, because a refused browser never reconnects."""
    async with (
        small_service(configured(tmp_path, store_url), standing=False) as given,
        given.http.get(f"{given.url}/events{query}") as answer,
        patience("the first line"),
    ):
        assert (answer.status, await answer.content.readline()) == (200, AWAY.splitlines(keepends=True)[0])
        async with given.backing.standing(OpenStore(store_url, given.store, store_clock())):
            one = Following(answer)
            await one.begun()
            name = await Published(given.store, given).add(FEEDS[0])
            assert await one.names(1) == [name]
            given.backing.closing.set()


async def test_a_gap_behind_an_entry_of_which_nothing_is_known_is_told(given: Served, published: Published) -> None:
    """A reader that starts at a trimmed entry's id gets one gap without a count."""
    key = keys_of(given.settings, FEEDS[0]).events
    names = [await published.add(FEEDS[0], entry=f"{number}-0") for number in (1000, 2000, 3000, 4000)]
    async with reader(given, "?from=1000-0") as one:
        assert await one.names(3) == names[1:]
    await given.store.xtrim(key, maxlen=2, approximate=False)
    async with reader(given, "?from=1000-0") as one:
        told = await one.next()
        assert (told.kind, json.loads(told.data)) == (
            "gap",
            {"feed": FEEDS[0], "after": None, "before": 3, "missing": None},
        )
        assert await one.names(2) == names[2:]
    async with reader(given, "?from=3000-0") as one:
        assert await one.names(1) == names[3:]


async def test_a_reader_past_the_end_of_its_stream_begins_again(given: Served, published: Published) -> None:
    """If the store went back and its clock is behind, what comes before a reader's place is sent, after a gap."""
    key = keys_of(given.settings, FEEDS[0]).events
    names = [await published.add(FEEDS[0], entry=f"{number}-0") for number in (1000, 2000, 3000)]
    async with reader(given, "?from=earliest") as one:
        assert await one.names(3) == names
    last = one.parser.last
    await given.store.delete(key)
    published.goes_back(FEEDS[0], 0)
    again = [await published.add(FEEDS[0], entry=f"{number}-0") for number in (1000, 1500)]
    async with reader(given, last=last) as one:
        await one.begun()
        await published.add(FEEDS[1])
        assert await one.names(1) == [f"{FEEDS[1]}#1"]  # an older copy in which nothing has come yet repeats nothing
        again.append(await published.add(FEEDS[0], entry="1600-0"))
        told = await one.next()
        gap = {"feed": FEEDS[0], "after": None, "before": 1, "missing": None}
        assert (told.kind, json.loads(told.data)) == ("gap", gap)
        assert await one.names(3) == again
        name = await published.add(FEEDS[0], entry="1700-0")
        assert await one.names(1) == [name]


@asynccontextmanager
async def small_service(settings: Any, *, standing: bool = True, **how: Any) -> AsyncIterator[Served]:
    """The events route alone, with options such as another clock or fewer readers."""
    backing = AppContext(settings, clock=how.pop("clock", None) or StubClock(now=lambda: NOW))
    routes: list[BaseRoute] = [*event_routes(backing, **how)]
    url = settings.redis.url
    async with (
        listening(application(*routes), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession() as http,
        commands(url) as client,
        backing.standing(OpenStore(url, client, store_clock())) if standing else nullcontext(),
    ):
        yield Served(web, http, client, settings, backing)


async def test_no_more_than_so_many(tmp_path: Path, store_url: str) -> None:
    """A reader beyond the limit gets 503, and is accepted once another has left."""
    async with (
        small_service(configured(tmp_path, store_url), readers=2) as given,
        reader(given),
        reader(given) as second,
    ):
        status, headers, _ = await given.ask("/events")
        assert (status, headers["retry-after"]) == (503, "10")
        assert grown("poller_event_readers") == 2
        second.answer.close()

        async def let_in() -> bool:
            async with given.http.get(f"{given.url}/events") as answer:
                return answer.status == 200

        await until(let_in, "a free slot")
    await until(lambda: grown("poller_event_readers") == 0, "all readers to leave")


async def test_a_slow_reader_holds_little_and_nobody_up(given: Served, published: Published) -> None:
    """A stalled reader is buffered only up to its connection's capacity, and does not delay another reader."""
    names = [await published.add(FEEDS[0], padding=100_000) for _ in range(300)]  # 30 MB; sockets may hold ten
    before = await entries_read(given.store)
    async with given.http.get(f"{given.url}/events?from=earliest&feed={FEEDS[0]}") as stalled:
        assert stalled.status == 200
        async with reader(given, f"?from=earliest&feed={FEEDS[0]}") as one:
            assert await one.names(300) == names
        read = await entries_read(given.store) - before
        assert read < 2 * 300 / 20  # all of the other reader's, and fewer for the stalled one


async def test_one_that_takes_nothing_is_let_go(tmp_path: Path, store_url: str) -> None:
    """A reader that does not read is disconnected after a while, and the log says why."""
    async with small_service(configured(tmp_path, store_url), readers=1, stalled=0.2) as given:
        published = Published(given.store, given)
        for _ in range(5):
            await published.add(FEEDS[0], padding=8_000_000)
        with capture_logs() as lines:
            async with given.http.get(f"{given.url}/events?from=earliest") as stalled:
                assert stalled.status == 200
                await until(lambda: grown("poller_event_readers") == 0, "the reader to be disconnected")
        assert [line["event"] for line in lines] == ["reader of events disconnected: it reads nothing"]


@pytest.mark.parametrize("how", ["replaced", "deleted"])
async def test_a_reader_whose_token_was_replaced_gets_nothing_more(tmp_path: Path, store_url: str, how: str) -> None:
    """An open answer ends before the next event once its read token is not valid any more, and the log says why."""
    file = tmp_path / "read"
    file.write_text("before", "utf-8")
    file.chmod(0o600)
    async with served(configured(tmp_path, store_url, http=f'read_token_file = "{file}"')) as given:
        published = Published(given.store, given)
        headers = {"authorization": "Bearer before"}
        async with given.http.get(f"{given.url}/events?from=earliest", headers=headers) as answer:
            one = Following(answer)
            assert [await published.add(FEEDS[0])] == await one.names(1)
            if how == "deleted":
                file.unlink()
            else:
                file.write_text("after", "utf-8")
            with capture_logs() as lines:
                await published.add(FEEDS[0])
                assert await one.ended()
        assert "reader of events disconnected: it may not read any more" in [line["event"] for line in lines]
        async with given.http.get(f"{given.url}/events", headers={"authorization": f"Bearer {TOKEN}"}) as answer:
            assert answer.status == 200


async def entries_read(client: Redis) -> int:
    found: Any = await client.info("commandstats")
    return int(found.get("cmdstat_xrange", {}).get("calls", 0))


async def test_the_end_of_the_service_is_the_end_of_the_answer(tmp_path: Path, store_url: str) -> None:
    """When the service closes, the answer of every waiting reader ends."""
    async with served(configured(tmp_path, store_url)) as given:
        published = Published(given.store, given)
        for _ in range(60):
            await published.add(FEEDS[0], padding=50_000)
        async with reader(given) as waiting, given.http.get(f"{given.url}/events?from=earliest") as stalled:
            await waiting.begun()
            given.backing.closing.set()
            assert await waiting.ended()
            assert stalled.status == 200


async def test_a_store_that_goes_and_comes_back(tmp_path: Path) -> None:
    """A reader stays connected through a store restart and gets every event once."""
    with TemporaryDirectory(prefix="pe-") as short:
        settings = configured(tmp_path, f"unix://{short}/s")
        async with small_service(settings) as given:
            with running("valkey", Path(short)):
                published = Published(given.store, given)
                first = await published.add(FEEDS[0])
                answer = await given.http.get(f"{given.url}/events?from=earliest")
                one = Following(answer)
                assert await one.names(1) == [first]
            with running("valkey", Path(short)):
                second = await until(lambda: published.add(FEEDS[0]), "the store", despite=(Cut,))
                assert await one.names(1) == [second]
                third = await published.add(FEEDS[1])
                assert await one.names(1) == [third]
                answer.close()


async def test_a_password_that_is_changed_is_waited_for(tmp_path: Path, store_url: str) -> None:
    """An authentication error of the store counts as unavailable, so readers wait while the password changes."""
    async with small_service(configured(tmp_path, store_url)) as given:
        with pytest.raises(StoreUnavailable), translated(given.backing.client):
            raise AuthenticationError("WRONGPASS")


async def test_too_many_feeds(tmp_path: Path, store_url: str) -> None:
    """With more feeds than an id holds, a reader must name the feeds it follows."""
    settings = configured(tmp_path, store_url)
    source = settings.sources[0]
    feeds = [source.feeds[0].model_copy(update={"name": f"f{number}"}) for number in range(257)]
    many = settings.model_copy(update={"sources": (source.model_copy(update={"feeds": tuple(feeds)}),)})
    async with small_service(many) as given:
        assert (await given.ask("/events"))[0] == 400
        async with reader(given, "?" + "&".join(f"feed=acme/f{number}" for number in range(256))) as one:
            await one.begun()
            last = one.parser.last
        assert len(last) < 8000
        async with reader(given, "?feed=acme/f256", last=last):
            pass


# Laws of :mod:`poller.web.events`: new entries wake all waiting readers, and one blocking read serves them all.

BLOCK = timedelta(milliseconds=200)
KEYS = ("{a}:events", "{b}:events")
AN_HOUR = 3600.0


async def connections(client: Redis) -> int:
    return int((await client.info("clients"))["blocked_clients"])


async def test_whoever_waits_is_woken(store_url: str, one_server: None) -> None:
    """A new entry wakes all waiting readers and names its stream."""
    news = StreamNotifier(KEYS, block=timedelta(seconds=PATIENCE), clock=Clock())  # no second read in between
    async with commands(store_url) as client, news.followed(store_url), news.followed(store_url):
        await until(lambda: news.mark, "the first read")
        mark = news.mark
        waiting = [asyncio.create_task(news.beyond(mark, AN_HOUR)) for _ in range(2)]
        await until(lambda: connections(client), "the read to block")
        assert await connections(client) == 1
        await client.xadd(KEYS[1], {"data": b"{}"})
        async with patience("both readers to wake up"):
            await asyncio.gather(*waiting)
        assert news.since(mark, KEYS) == [KEYS[1]]
        assert news.since(news.mark, KEYS) == []


async def test_nobody_looks_for_nobody(store_url: str, one_server: None) -> None:
    """The shared read ends with its last reader, and starts again with the next."""
    news = StreamNotifier(KEYS, block=BLOCK, clock=Clock())
    for looks in (1, 2):
        async with news.followed(store_url):
            await until(partial(_beyond, news, looks - 1), "a read")
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("news")]


async def test_one_that_leaves_ends_the_look_of_nobody_else(store_url: str, one_server: None) -> None:
    """The shared read goes on as long as one reader is left."""
    news = StreamNotifier(KEYS, block=BLOCK, clock=Clock())
    async with commands(store_url) as client, news.followed(store_url):
        async with news.followed(store_url):
            pass
        await until(lambda: news.mark, "the first look")
        mark = news.mark
        await client.xadd(KEYS[0], {"data": b"{}"})
        await until(lambda: news.since(mark, KEYS), "the stream to be told")


async def test_one_that_comes_while_the_look_ends_has_its_own(store_url: str, one_server: None) -> None:
    """A reader that arrives while the shared read is ending misses nothing."""

    async def follow(stop: asyncio.Event) -> None:
        async with news.followed(store_url):
            await stop.wait()

    async with commands(store_url) as client:
        for count in range(1, 5):
            news, stop = StreamNotifier(KEYS, block=BLOCK, clock=Clock()), asyncio.Event()
            leaving = asyncio.create_task(follow(stop))
            await until(partial(_beyond, news, 0), "the first look")
            stop.set()
            await turns(count)
            async with news.followed(store_url):
                await leaving
                mark = news.mark
                await client.xadd(KEYS[0], {"data": b"{}"})
                await until(partial(_beyond, news, mark), "the stream to be told")


async def test_what_came_before_the_wait_is_not_waited_for(store_url: str, one_server: None) -> None:
    """A wait beyond a mark returns immediately if something came after that mark."""
    news = StreamNotifier(KEYS, block=BLOCK, clock=Clock())
    async with news.followed(store_url):
        mark = news.mark
        await until(partial(_beyond, news, mark), "the first look")
        async with patience("the wait to end"):
            await news.beyond(mark, AN_HOUR)


async def test_a_store_that_refuses_is_told_once(store_url: str, one_server: None) -> None:
    """A store error on the shared read is logged once and the read retried."""
    asked = 0

    async def sleep(_: float) -> None:
        nonlocal asked
        asked += 1
        await turns()

    async with commands(store_url) as client:
        await client.set(KEYS[0], "no stream")
        with capture_logs() as lines:
            async with StreamNotifier(KEYS, block=BLOCK, clock=StubClock(sleep=sleep)).followed(store_url):
                await until(lambda: asked >= 3, "the third read")
    assert [line["event"] for line in lines] == ["streams cannot be followed"]


async def test_a_stream_that_cannot_be_read_keeps_no_news_of_the_others(store_url: str, one_server: None) -> None:
    """After a failed read all streams count as fresh, so that each reader finds its own entries, or its own error."""
    news = StreamNotifier(KEYS, block=BLOCK, clock=StubClock(sleep=lambda _: turns()))
    async with commands(store_url) as client:
        await client.set(KEYS[0], "no stream")
        async with news.followed(store_url):
            await until(lambda: news.mark, "the first failed read")
            mark = news.mark
            await until(lambda: news.since(mark, KEYS[1:]), "the other stream to be told")


async def test_a_fault_of_the_shared_read_leaves_no_reader_without_news(store_url: str, one_server: None) -> None:
    """The shared read goes on after an error of the program, which is logged: readers would wait in vain, silently."""
    faults = [RuntimeError("a fault")]

    def monotonic() -> float:
        if faults:
            raise faults.pop()
        return time.monotonic()

    news = StreamNotifier(KEYS, block=BLOCK, clock=StubClock(monotonic=monotonic))
    with capture_logs() as lines:
        async with commands(store_url) as client, news.followed(store_url):
            await until(lambda: news.mark, "the first look after the fault")
            mark = news.mark
            await client.xadd(KEYS[0], {"data": b"{}"})
            await until(lambda: news.since(mark, KEYS), "the stream to be told")
    assert [line["event"] for line in lines] == ["streams cannot be followed"]


def _beyond(news: StreamNotifier, mark: int) -> bool:
    return news.mark > mark


# Laws of :mod:`poller.web.events`: an id encodes the positions in all feeds, and any other text is refused.

OLD = urlsafe_b64encode(b"\x01" + b"name5" + b"\0\0\0").rstrip(b"=").decode()
NEGATIVE = urlsafe_b64encode(msgspec.msgpack.encode([(b"name5", -1, 0, 0)])).rstrip(b"=").decode()
NUMBERS = st.integers(0, 2**64 - 1)
PLACES = st.dictionaries(st.text("abc/", min_size=1), st.builds(StreamPosition, NUMBERS, NUMBERS, NUMBERS), max_size=20)


@given(PLACES, PLACES)
def test_read_as_it_was_written(places: dict[str, StreamPosition], moved: dict[str, StreamPosition]) -> None:
    """Decoding an id gives each feed's position after any moves; a feed that is not in it starts at the beginning."""
    written = StreamPositions(places)
    for feed, place in moved.items():
        if feed in places:
            written.move(feed, place)
    expected = places | {feed: place for feed, place in moved.items() if feed in places}
    found = read_places(written.text, [*places, "new"])
    assert {feed: found[feed] for feed in (*places, "new")} == expected | {"new": BEGINNING}
    assert all(written[feed] == place for feed, place in expected.items())


@given(PLACES)
def test_the_same_places_are_the_same_text(places: dict[str, StreamPosition]) -> None:
    """The same positions give the same id in any order, of characters that are safe in headers and queries."""
    text = StreamPositions(places).text
    assert StreamPositions(dict(reversed(places.items()))).text == text
    assert text.replace("-", "").replace("_", "").isalnum()


@given(PLACES, PLACES, st.data())
def test_a_process_without_a_feed_passes_its_position_on(
    places: dict[str, StreamPosition], moved: dict[str, StreamPosition], data: st.DataObject
) -> None:
    """An id that comes back by processes with any of its feeds has each position, as moved where the feed was."""
    had = data.draw(st.sets(st.sampled_from(sorted(places)))) if places else set()
    between = read_places(StreamPositions(places).text, had)
    for feed in moved.keys() & had:
        between.move(feed, moved[feed])
    back = read_places(between.text, places)
    expected = places | {feed: place for feed, place in moved.items() if feed in had}
    assert {feed: back[feed] for feed in places} == expected
    assert back.text == StreamPositions(expected).text


def test_no_id_grows_beyond_what_a_client_may_send_back() -> None:
    """Positions at other feeds are bounded in number, the newest stay, and names that are no hashes are left out."""
    largest = StreamPosition(2**64 - 1, 2**64 - 1, 2**64 - 1)
    own = {f"acme/{number}": largest for number in range(200)}
    others = {number.to_bytes(5, "big"): largest._replace(milliseconds=2**60 + number) for number in range(300)}
    kept = StreamPositions(own, others)
    assert len(kept.text) <= LONGEST
    parts = msgspec.msgpack.decode(urlsafe_b64decode(kept.text + "=" * (-len(kept.text) % 4)))
    assert [name for name, *_ in parts[200:]] == [number.to_bytes(5, "big") for number in range(244, 300)]
    assert StreamPositions({f"acme/{number}": largest for number in range(300)}, others)._others == []
    strange = urlsafe_b64encode(msgspec.msgpack.encode([(b"x" * 8000, 1, 0, 0), (b"", 1, 0, 0)])).decode().rstrip("=")
    assert read_places(strange, ["a"]).text == StreamPositions({"a": BEGINNING}).text


def test_it_is_short() -> None:
    """An id takes about thirty characters for each feed, so that 256 feeds fit into a header."""
    usual = {f"acme/{number}": StreamPosition(1_772_439_303_123, 3, 10**9) for number in range(256)}
    assert len(StreamPositions(usual).text) < 32 * 256


@given(st.one_of(st.text(), st.binary().map(lambda some: some.decode("latin-1"))))
def test_what_was_not_made_here_is_refused(text: str) -> None:
    """Any text is either a valid id or a ValueError."""
    try:
        found = read_places(text, ["a"])
    except ValueError:
        return
    assert min(found["a"]) >= 0
    assert len(found.text) <= LONGEST


@pytest.mark.parametrize("text", ["", "AQ" + "A" * 20_000, "AA", "AQ" + "_" * 40, "é", OLD, NEGATIVE])
def test_some_that_are_refused(text: str) -> None:
    """An empty, oversized, outdated, negative or non-ASCII id is refused."""
    with pytest.raises(ValueError, match=r"too long|not an id that this service has sent"):
        read_places(text, ["a"])


def test_a_position_names_what_may_follow_its_entry() -> None:
    """A position's successor is the next entry id."""
    assert str(StreamPosition(17, 3, 9).following) == "17-4"


# Laws of :mod:`poller.web.events` with a store that fails during a read.

KEY, FEED = "{acme/a}:events", "acme/a"


class Unanswered(FakeAsyncRedis):
    """A store that fails one read of a stream and serves everything else."""

    failures = 1

    async def xrange(self, *args: Any, **how: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise Cut("no answer")
        return await super().xrange(*args, **how)


@asynccontextmanager
async def reading(client: FakeAsyncRedis, *, beat: float = 3600) -> AsyncIterator[AsyncGenerator[bytes]]:
    """The messages of a stream with one event, after the greeting; no new event comes."""
    await client.xadd(KEY, {"data": b'{"sequence":"1"}'})
    reader = EventReader(
        client,
        StreamNotifier((KEY,), clock=Clock()),
        {KEY: FEED},
        StreamPositions({FEED: BEGINNING}),
        types=None,
        from_now=False,
        beat_seconds=beat,
        clock=StubClock(sleep=lambda _: turns()),
    )
    async with aclosing(reader.messages()) as messages, patience("the messages"):
        await anext(messages)
        yield messages
    await client.aclose()


async def test_a_stream_whose_reading_was_not_answered_is_read_again() -> None:
    """After one lost reply the existing event is still sent, although no new event wakes the reader."""
    async with reading(Unanswered()) as messages:
        assert await anext(messages) == AWAY
        assert b'data: {"sequence":"1"}' in await anext(messages)


class Counted(FakeAsyncRedis):
    """A store that notes how many entries are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    async def xrange(self, *args: Any, **how: Any) -> Any:
        if "min" in how:
            self.asked.append(how["count"])
        return await super().xrange(*args, **how)


@pytest.mark.parametrize(("size", "count", "asked"), [(9, 41, [1, 4, 16, 20, 20]), (3_000_000, 6, [1, 4, 1, 1])])
async def test_large_events_are_read_one_at_a_time(size: int, count: int, asked: list[int]) -> None:
    """A reader holds twenty small events, and one large one, for it may be as slow as it likes."""
    client = Counted()
    async with reading(client) as messages:
        for _ in range(count):
            await client.xadd(KEY, {"data": b'{"sequence":"0","padding":"%b"}' % (b"x" * size)})
        for _ in range(1 + count):
            assert b"data: {" in await anext(messages)
    assert client.asked == asked


async def test_a_place_that_an_event_has_told_is_not_told_again() -> None:
    """After an event a beat is a comment, because the event carried the position."""
    async with reading(FakeAsyncRedis(), beat=0.02) as messages:
        while b"data: {" not in await anext(messages):
            pass
        assert await anext(messages) == BEAT_COMMENT


# Laws of :mod:`poller.web.events`: how a browser parses the bytes.


@pytest.mark.parametrize("content", [b'{"a":1}', b'{\n"a":\r\n1}', b'{"a":\r1}\n', b""])
def test_line_breaks_do_not_end_an_event(content: bytes) -> None:
    """Line breaks in the API's JSON, of any kind, do not end the message or change its value."""
    (message,) = messages_of(event("P", content))
    assert message.id == "P"
    assert message.data.split() == content.decode().split()
    assert message.kind == "message"


ALL = (
    greeting("A", again_milliseconds=5),
    BEAT_COMMENT,
    moved("B"),
    AWAY,
    BEAT_COMMENT,
    gap("acme/x", after=3, before=7),
    AWAY,
    event("C", b"{}"),
)


def test_what_is_no_event_is_named() -> None:
    """Places and gaps are event kinds of their own, and comments raise no event; a gap does not move the id."""
    place, told, last = messages_of(b"".join(ALL))
    assert (place.kind, place.id, told.kind, told.id, last.kind, last.id) == ("place", "B", "gap", "B", "message", "C")
    assert json.loads(place.data) == {"place": "B"}
    assert json.loads(told.data) == {"feed": "acme/x", "after": 3, "before": 7, "missing": 3}


def test_each_empty_line_ends_a_message_with_data() -> None:
    """A client that emits a message for each empty line, as httpx-sse does, gets no message without data."""
    decoder = SSEDecoder()
    found = [one for line in b"".join(ALL).decode().splitlines() if (one := decoder.decode(line)) is not None]
    assert [(one.event, one.id, one.retry, type(one.json())) for one in found] == [
        ("place", "B", 5, dict),
        ("gap", "B", None, dict),
        ("message", "C", None, dict),
    ]
