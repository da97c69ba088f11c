"""Laws of ``/feeds/…/records``: lists are complete or end with an error, and lead to the exact present state."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from urllib.parse import quote

import aiohttp
import pytest
from redis.asyncio import Redis
from starlette.requests import Request
from structlog.testing import capture_logs
from yarl import URL

from poller.changes.diff import Snapshot
from poller.clock import Clock
from poller.http.server import listening
from poller.store.feed import FeedStore
from poller.store.feed_state import FORMS
from poller.store.keys import FeedKeys
from poller.store.records import ScanPosition
from poller.store.snapshots import SnapshotCodec, name_of
from poller.store.stream import EntryId
from poller.web.app import application
from poller.web.http import JSON, RequestRefused
from poller.web.records import NDJSON, Seats, record_routes
from tests.harness.waiting import patience, until
from tests.store.test_feed import write
from tests.store.test_records import opened, remove
from tests.web.served import TOKEN, Served, configured, served

FEED: Final = "acme/contractTypes"
KEYS: Final = FeedKeys.of("poller", FEED)
RECORDS: Final = f"/feeds/{FEED}/records"
ID: Final = "0B8E7C5E-9D4A-4D9F-8A55-6C1F3F0E2A11"
LINES: Final = {"accept": NDJSON}
ADMIN: Final = {"authorization": f"Bearer {TOKEN}"}
BOTH: Final = {**LINES, **ADMIN}
CODEC: Final = SnapshotCodec()


def raw(key: str | int, number: int = 0) -> bytes:
    return json.dumps({"id": key, "number": number}).encode()


def links(headers: Any) -> dict[str, str]:
    """The URLs of a Link header by their relation."""
    return {relation: path for path, relation in re.findall(r'<([^>]*)>; rel="(\w+)"', headers["link"])}


async def paged(given: Served, path: str = f"{RECORDS}?limit=7") -> list[Any]:
    """All pages, from a path on."""
    pages = []
    following: str | None = path
    while following is not None:
        status, headers, page = await given.ask(following)
        assert (status, headers["content-type"], links(headers)["first"]) == (
            200,
            "application/json",
            f"{RECORDS}?limit=7",
        )
        pages.append(page)
        following = links(headers).get("next")
    return pages


async def all_text(given: Served) -> str:
    async with patience("all records"), given.http.get(given.url + RECORDS, headers=BOTH) as answer:
        found = answer.status, answer.headers["content-type"], answer.headers["vary"]
        assert found == (200, NDJSON, "accept")
        return await answer.text()


async def lines(given: Served) -> list[Any]:
    return [json.loads(line) for line in (await all_text(given)).splitlines()]


async def test_all_records_are_on_pages_and_on_lines(given: Served) -> None:
    """Law: each record that is not removed is on a page and on a line, with what was received of it."""
    run_id = (await given.store.info("server"))["run_id"]
    unknown = {"generation": "", "run_id": run_id, "silent_reading": False}
    assert await paged(given) == [{"as_of": {"entry": "0-0", "sequence": 0}, **unknown, "records": []}]
    assert await lines(given) == [{"as_of": {"entry": "0-0", "sequence": 0}}]
    store = opened(given.store, KEYS)
    keys = [f"r{number}" for number in range(600)]
    await write(store, [raw(key) for key in keys])
    await write(store, [raw(ID), b'{ "id" : 7,\n"number" : 1.50 }', raw("r3", 4)])
    await remove(store, "r5")
    expected = {key: (1, {"id": key, "number": 0}) for key in keys if key not in {"r3", "r5"}}
    expected |= {ID: (1, {"id": ID, "number": 0}), "7": (1, {"id": 7, "number": 1.5})}
    expected["r3"] = 2, {"id": "r3", "number": 4}
    pages = await paged(given)
    assert len(pages) > 50
    newest: Any = await given.store.xrevrange(KEYS.events, count=1)
    as_of = {"entry": newest[0][0].decode(), "sequence": 604}
    assert all(page["as_of"] == as_of for page in pages)
    generation: Any = await given.store.hget(KEYS.state, "generation")
    assert {page["generation"] for page in pages} == {generation.decode()}
    on_pages = [record for page in pages for record in page["records"]]
    assert len(on_pages) == len(expected)
    head, *on_lines = await lines(given)
    assert head == {"as_of": as_of}
    line = ("id", "revision", "record", "changed_at")
    for found, fields in ((on_pages, (*line, "sequence", "event")), (on_lines, line)):
        assert {one["id"]: (one["revision"], one["record"]) for one in found} == expected
        assert {one["changed_at"] for one in found} == {"2026-01-02T03:04:05Z"}
        assert {tuple(one) for one in found} == {fields}
    text = await all_text(given)
    assert '"record":{"id":7,"number":1.50}' in text


async def test_a_page_says_whether_a_silent_first_reading_is_under_way(tmp_path: Path, store_url: str) -> None:
    """Law: until a silent first reading has ended its pages say so, and no earlier page counts as the same."""
    settings = configured(tmp_path, store_url)
    feeds = tuple(feed.model_copy(update={"baseline": "silent"}) for feed in settings.sources[0].feeds)
    source = settings.sources[0].model_copy(update={"feeds": feeds})
    async with served(settings.model_copy(update={"sources": (source,)})) as given:
        await write(opened(given.store, KEYS), [raw(ID)])
        _, headers, page = await given.ask(RECORDS)
        assert page["silent_reading"] is True
        await given.store.hset(KEYS.state, "read_at", "2026-01-02T03:04:05Z")
        _, _, page = await given.ask(RECORDS, headers={"if-none-match": headers["etag"]})
        assert page["silent_reading"] is False


async def test_a_client_that_has_a_page_is_not_sent_it_again(given: Served) -> None:
    """Law: a page and a record have an entity tag until something of them changes, and no cache keeps them."""
    store = opened(given.store, KEYS)
    await write(store, [raw(ID), raw("b")])
    for path in (RECORDS, f"{RECORDS}/{ID}"):
        status, headers, body = await given.ask(path)
        assert (status, headers["cache-control"]) == (200, "no-store")
        known = {"if-none-match": f'"other", {headers["etag"]}'}
        assert (await given.ask(path, headers=known))[::2] == (304, "")
        status, head, nothing = await given.ask(path, "HEAD")
        assert (status, head["etag"], nothing) == (200, headers["etag"], None)
        await write(store, [raw(ID, len(str(body)))])
        status, changed, _ = await given.ask(path, headers=known)
        assert (status, changed["etag"] != headers["etag"]) == (200, True)
    status, headers, _ = await given.ask(RECORDS, "HEAD", headers=LINES)
    assert (status, headers["content-type"]) == (200, NDJSON)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (f"{NDJSON};q=0.5, application/json", JSON),
        (f"{NDJSON};q=0.5, */*", JSON),
        (f"{NDJSON}, application/*;q=0.9", NDJSON),
        (f"application/json;q=0.5, {NDJSON.upper()};q=0.7", NDJSON),
        (f"{NDJSON}, application/json", NDJSON),
        (f"{NDJSON};q=0", JSON),
        (f"{NDJSON};q=0.000, */*", JSON),
        (f"{NDJSON};q=0.1, application/json;q=0", NDJSON),
        ("*/*", JSON),
        (f"{NDJSON}-other, */*", JSON),
    ],
)
async def test_a_list_has_the_type_that_its_client_wants_most(given: Served, accept: str, kind: str) -> None:
    """Law: a complete list is sent to a client that names its type and wants it no less than that of a page."""
    await write(opened(given.store, KEYS), [raw(ID)])
    status, headers, _ = await given.ask(RECORDS, "HEAD", headers={"accept": accept})
    assert (status, headers["content-type"].partition(";")[0]) == (200, kind)


@pytest.mark.parametrize(
    ("path", "method", "key"),
    [
        (f"{RECORDS}?cursor=", "GET", "cursor"),
        (f"{RECORDS}?limit=1&limit=2", "GET", "limit"),
        (f"{RECORDS}?cursor=a&cursor=b", "GET", "cursor"),
        (f"{RECORDS}/{ID}?force=false&force=true", "DELETE", "force"),
        (f"{RECORDS}/{ID}/history?before=1-0&before=2-0", "GET", "before"),
        ("/feeds?limit=1&limit=2", "GET", "limit"),
        ("/subscriptions?after=a&after=b", "GET", "after"),
    ],
)
async def test_an_empty_or_repeated_parameter_is_refused(given: Served, path: str, method: str, key: str) -> None:
    """Law: of a parameter that occurs twice none is chosen, and an empty cursor is not the first page."""
    await write(opened(given.store, KEYS), [raw(ID)])
    status, _, told = await given.ask(path, method)
    assert (status, [one["key"] for one in told["errors"]]) == (400, [key])


ODD: Final = ("a/b", "x/history", "history", "..", "a b%2F", "ü?&#", "+", "a;b", ".", "%")


async def test_one_record_and_its_history(given: Served) -> None:
    """Law: a record is found by its percent-encoded id, whatever characters that has, and so is its history."""
    store = opened(given.store, KEYS)
    await write(store, [raw(ID), raw(7), *(raw(one) for one in ODD)])
    await write(store, [raw(one, 1) for one in ODD])
    for one in ODD:
        encoded = quote(one, safe="").replace(".", "%2E")  # clients take dots alone for a step to another path
        status, _, found = await asked(given, f"{RECORDS}/{encoded}")
        assert (status, found["id"], found["revision"], found["record"]["number"]) == (200, one, 2, 1), one
        status, headers, events = await asked(given, f"{RECORDS}/{encoded}/history")
        assert (status, [event["revision"] for event in events]) == (200, [2, 1])
        assert events[0]["changes"] == [{"pointer": "/number", "before": 0, "after": 1}]
        assert "next" not in links(headers)
    status, _, found = await given.ask(f"{RECORDS}/{ID.lower()}")
    assert found == {
        "id": ID,
        "revision": 1,
        "record": {"id": ID, "number": 0},
        "changed_at": "2026-01-02T03:04:05Z",
        "sequence": 1,
        "missing": False,
    }
    assert (await given.ask(f"{RECORDS}/7"))[2]["record"] == {"id": 7, "number": 0}
    await remove(store, "7", "\x017")
    status, headers, found = await given.ask(f"{RECORDS}/7")
    assert (status, headers["content-type"], found["revision"]) == (410, "application/problem+json", 2)
    assert ("erased" in found, found["detail"]) == (False, f"this record of {FEED} is removed")
    for path in ("unknown", "", "a/b", "a/history/x", "%FF", "unknown/history", "%017", "%02" + "%41" * 16, "%00"):
        status, _, found = await asked(given, f"{RECORDS}/{path}")
        assert (status, found["status"]) == (404, 404), path
    for path in ("/feeds/acme/nope/records", "/feeds/acme/nope/records/7", "/feeds/acme/nope/records/7/history"):
        assert (await given.ask(path))[0] == 404


async def asked(given: Served, path: str) -> tuple[int, Any, Any]:
    """As :meth:`Served.ask`, with the path as it is."""
    url = URL(given.url + path, encoded=True)
    async with given.http.get(url, headers=ADMIN) as answer:
        return answer.status, answer.headers, await answer.json(content_type=None)


async def test_a_history_has_pages(given: Served) -> None:
    """Law: the pages of a history hold each event once, the latest first; an unreadable entry is passed over."""
    store = opened(given.store, KEYS)
    for number in range(10):
        await write(store, [raw("a", number), raw("b", number)])
        await given.store.xadd(KEYS.events, {"data": f'{{"subject":"a","n":{number}'})
    revisions: list[int] = []
    following: str | None = f"{RECORDS}/a/history?limit=3"
    while following is not None:
        status, headers, events = await given.ask(following)
        assert (status, len(events) <= 3) == (200, True)
        revisions += [event["revision"] for event in events]
        following = links(headers).get("next")
    assert revisions == list(range(10, 0, -1))


async def test_a_cursor_that_means_nothing_is_refused(given: Served) -> None:
    """Law: a cursor is refused with what to do where the rest of its list would not be complete."""
    await write(opened(given.store, KEYS), [raw(f"r{number}") for number in range(600)])
    _, headers, _ = await given.ask(f"{RECORDS}?limit=5")
    following = links(headers)["next"]
    assert (await given.ask(following))[0] == 200
    text = following.partition("cursor=")[2]
    position = ScanPosition.parse(text)
    other = ScanPosition(position.cursor, "0" * 40, position.generation, position.forms, position.as_of)
    status, _, found = await given.ask(following.replace(text, str(other)))
    assert (status, "begin again with the first page" in found["detail"]) == (410, True)
    await given.store.hset(KEYS.state, "generation", "other")
    assert (await given.ask(following))[0] == 410
    for wrong in ("cursor=x", f"cursor={text[:-9]}", "limit=0", "limit=1001", "limit=x"):
        status, _, found = await given.ask(f"{RECORDS}?{wrong}")
        assert (status, found["errors"][0]["key"]) == (400, wrong.partition("=")[0])
    for wrong in ("before=x", "before=01-1", "limit=0"):
        status, _, found = await given.ask(f"{RECORDS}/r1/history?{wrong}")
        assert (status, found["errors"][0]["key"]) == (400, wrong.partition("=")[0])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "known"),
    [("", "limit, cursor"), (f"/{ID}/history", "limit, before"), (f"/{ID}", ""), (f"/{ID}", "force, reason")],
)
async def test_an_unknown_parameter_is_refused(given: Served, path: str, known: str, method: str) -> None:
    """Law: one with a typing error is not passed over, but refused with its name and those that there are."""
    await write(opened(given.store, KEYS), [raw(ID, 1)])
    method = "DELETE" if "force" in known else method
    status, _, found = await given.ask(
        f"{RECORDS}{path}?limits=5&{known.partition(',')[0] or 'x'}=1&forse=true", method
    )
    assert status == 400
    if method != "HEAD":
        assert [one["key"] for one in found["errors"]] == ["forse", "limits", *([] if known else ["x"])]
        assert found["errors"][0]["expected"].endswith(known or "there are none")
    assert (await given.ask(f"{RECORDS}/{ID}"))[0] == 200


async def test_no_list_during_a_conversion(given: Served) -> None:
    """Law: while snapshots are converted a list is refused with when to come again; a single record is not."""
    await write(opened(given.store, KEYS), [raw("a")])
    await given.store.hset(KEYS.state, cast("Any", FORMS), "1 2")
    for headers in ({}, LINES):
        status, answered, found = await given.ask(RECORDS, headers=headers)
        assert (status, answered["retry-after"], "being converted" in found["detail"]) == (503, "5", True)
    assert (await given.ask(f"{RECORDS}/a"))[0] == 200


async def test_an_unreadable_record_is_an_error_of_its_own(given: Served) -> None:
    """Law: a snapshot that cannot be read is left out of lists, and its request is answered with 500, not 404."""
    await write(opened(given.store, KEYS), [raw("a"), raw("b")])
    await given.store.hset(KEYS.snapshots, "a", b"\x10")
    assert [one["id"] for one in (await lines(given))[1:]] == ["b"]
    assert (await given.ask(f"{RECORDS}/a"))[0] == 500


# The law of the present state.

State = dict[str, tuple[int, Any]]


async def followed(given: Served, state: State, start: str, *, last: Callable[[], int | None]) -> None:
    """Apply the events after an entry to a state, until the last one."""
    url = f"{given.url}/events?feed={FEED}&from={start}"
    sequence = 0
    async with given.http.get(url, headers=ADMIN) as answer:
        while last() is None or sequence < (last() or 0):
            async with patience("an event"):
                line = await answer.content.readline()
            if line.startswith(b'data: {"specversion"'):
                event = json.loads(line.removeprefix(b"data: "))
                sequence = int(event["sequence"])
                apply(state, event["subject"], event["data"]["revision"], event["data"].get("record"))


def apply(state: State, key: str, revision: int, record: Any) -> None:
    """Keep the higher revision."""
    if key not in state or state[key][0] <= revision:
        state[key] = revision, record


async def churn(store: FeedStore, rounds: int, seed: int) -> None:
    """Records come, change and go; some come back."""
    rng, keys = Random(seed), [f"r{number}" for number in range(900)]
    for number in range(1, rounds + 1):
        await write(store, [raw(key, number) for key in rng.sample(keys, 40)])
        await remove(store, *rng.sample(keys, 10))


@pytest.mark.parametrize("way", ["pages", "lines"])
async def test_pages_and_then_events_are_the_exact_state(given: Served, way: str) -> None:
    """Law: who reads all records, then events after the first as_of, and keeps the higher revision, has the state."""
    store = opened(given.store, KEYS)
    await churn(store, 30, seed=1)
    writing = asyncio.create_task(churn(store, 40, seed=2))
    state: State = {}
    if way == "pages":
        pages = await paged(given)
        start, found = pages[0]["as_of"]["entry"], [record for page in pages for record in page["records"]]
        assert len({page["as_of"]["entry"] for page in pages}) > 3  # changes came between pages
    else:
        head, *found = await lines(given)
        start = head["as_of"]["entry"]
    for one in found:
        apply(state, one["id"], one["revision"], one["record"])
    end: list[int] = []
    following = asyncio.create_task(followed(given, state, start, last=lambda: end[0] if end else None))
    await writing
    await write(store, [raw("last")])
    end.append(int(cast("bytes", await given.store.hget(KEYS.state, "sequence"))))
    await following
    now: State = {one["id"]: (one["revision"], one["record"]) for one in (await lines(given))[1:]}
    assert {key: one for key, one in state.items() if one[1] is not None} == now


async def test_a_page_is_not_older_than_its_records(given: Served) -> None:
    """Law: the last event of each record of a page is not after its as_of, also behind many that are removed."""
    store = opened(given.store, KEYS)
    keys, live = [f"r{number}" for number in range(900)], [f"r{number}" for number in range(0, 900, 60)]
    await write(store, [raw(key) for key in keys])
    await remove(store, *(key for key in keys if key not in live))
    over = asyncio.Event()

    async def change() -> None:
        number = 0
        while not over.is_set():
            number += 1
            await write(store, [raw(key, number) for key in live])

    changing = asyncio.create_task(change())
    pages = await paged(given)
    over.set()
    await changing
    assert {record["id"] for page in pages for record in page["records"]} == set(live)
    assert len({page["as_of"]["entry"] for page in pages}) > 3  # changes came between pages
    for page in pages:
        assert all(record["sequence"] <= page["as_of"]["sequence"] for record in page["records"])
    for entry, fields in cast("Any", await given.store.xrange(KEYS.events)):
        event = json.loads(fields[b"data"])
        for page in pages:
            if EntryId.parse(entry.decode()) > EntryId.parse(page["as_of"]["entry"]):
                assert int(event["sequence"]) > max((one["sequence"] for one in page["records"]), default=0)


# Streams that cannot be completed.


async def filled(client: Redis, number: int = 2000, size: int = 6000) -> set[str]:
    """More records than fit into the buffers of a connection."""
    await opened(client, KEYS).open_round()
    padding = Random(1).randbytes(size).hex().encode()
    keys = [f"r{one}" for one in range(number)]
    for at in range(0, number, 500):
        some = keys[at : at + 500]
        stored = {}
        for key in some:
            content = b'{"id":"%b","x":"%b"}' % (key.encode(), padding[len(key) :] + key.encode())
            stored[name_of(key)] = CODEC.encode(key, Snapshot(1, 1, content))
        await client.hset(KEYS.snapshots, mapping=cast("Any", stored))
    await client.hset(KEYS.state, "sequence", "1")
    return set(keys)


async def read_after(given: Served, turn: Callable[[], Any]) -> list[str]:
    """The ids of a stream of which the rest is read after something has happened.

    Raises:
        aiohttp.ClientPayloadError: it was aborted.
    """
    async with patience("a stream"), given.http.get(given.url + RECORDS, headers=BOTH, read_bufsize=4096) as answer:
        await answer.content.readexactly(2000)
        await turn()
        text = await answer.read()
        return re.findall(r'"id":"(r\d+)","revision"', text.decode())


async def test_a_stream_goes_on_after_its_scan_began_again(given: Served) -> None:
    """Law: where a scan has to begin again within the same generation, records come twice and none is missing."""
    keys = await filled(given.store)
    found = await read_after(given, lambda: given.store.hset(KEYS.state, cast("Any", FORMS), "2 after 1"))
    assert len(found) > len(keys)
    assert len(keys - set(found)) <= 1  # the first one was read before


@pytest.mark.parametrize(
    ("field", "value"), [("generation", "other"), ("sequence", "0")], ids=["another generation", "gone back"]
)
async def test_a_stream_that_cannot_be_completed_is_aborted(
    given: Served, caplog: pytest.LogCaptureFixture, field: str, value: str
) -> None:
    """Law: no client takes a list for complete whose rest is of another feed or of a store that went back."""
    await filled(given.store)
    with capture_logs() as logs, pytest.raises(aiohttp.ClientError):
        await read_after(given, lambda: given.store.hset(KEYS.state, field, value))
    assert [(one["event"], one["log_level"]) for one in logs] == [("list of records aborted", "warning")]
    assert caplog.records == []  # the server has nothing to add


async def test_streams_are_few_and_end_with_their_permission(tmp_path: Path, store_url: str) -> None:
    """Law: beyond the greatest number a stream is refused until one ends; a stream ends when its token is replaced."""
    allowed = [True]

    def may_read(_: Request) -> bool:
        return allowed[0]

    async with served(configured(tmp_path, store_url, "filed")) as given:
        await filled(given.store)
        site = application(*record_routes(given.backing, may_read, streams=1))
        async with listening(site, "127.0.0.1", 0, clock=Clock()) as url:

            async def status(**headers: str) -> int:
                async with given.http.get(url + RECORDS, headers=headers) as answer:
                    return answer.status

            async with given.http.get(url + RECORDS, headers=LINES) as first:
                await first.content.readexactly(2000)
                assert await status(**LINES) == 503
                assert await status() == 200  # a page has its own number
                allowed[0] = False
                with pytest.raises(aiohttp.ClientError):
                    await first.read()
            allowed[0] = True

            async def admitted() -> bool:
                return await status(**LINES) == 200

            await until(admitted, "room for a stream")


async def test_the_service_ends_with_a_stream_that_nobody_reads(tmp_path: Path, store_url: str) -> None:
    """Law: a client that reads nothing does not hold back the end of the service, and nothing is logged of it."""
    async with aiohttp.ClientSession() as http:
        with capture_logs() as logs:
            async with patience("the end"), served(configured(tmp_path, store_url, "filed")) as given:
                await filled(given.store)
                answer = await http.get(given.url + RECORDS, headers=BOTH, read_bufsize=4096)
                await answer.content.readexactly(2000)
            answer.close()
        assert logs == []


async def erase(given: Served, path: str, token: str = TOKEN) -> tuple[int, Any]:
    status, _, body = await given.ask(path, "DELETE", token=token)
    return status, body


def test_a_refusal_for_want_of_room_reads_as_a_sentence() -> None:
    """Law: who finds no room is told how many are served at a time, and when to try again."""
    seats = Seats(1, "record is erased")
    with seats.taken(), pytest.raises(RequestRefused) as refused:
        seats.check()
    assert refused.value.detail == "at most 1 record is erased at a time; try again later"
    assert refused.value.headers == {"retry-after": "10"}


async def test_a_record_is_erased(given: Served) -> None:
    """Law: DELETE with ``force`` answers with the counts; the record is gone, and it is announced by whom and why."""
    await write(opened(given.store, KEYS), [raw(ID, 1), raw("other", 2)])
    status, result = await erase(given, f"{RECORDS}/{ID.lower()}?force=true&reason=a%20request")
    assert (status, result["snapshots"], result["events"], result["revision"]) == (200, 1, 1, 1)
    status, _, gone = await given.ask(f"{RECORDS}/{ID}")
    assert (status, gone["erased"], f"was erased at {gone['changed_at']}" in gone["detail"]) == (410, True, True)
    assert (await given.ask(f"{RECORDS}/other"))[0] == 200
    announced: Any = await given.store.xrange("poller:{operations}:events")
    data = json.loads(announced[0][1][b"data"])["data"]
    assert (data["by"], data["reason"], data["sequences"]) == ("an operator, by HTTP", "a request", "1")


async def test_an_erasure_is_refused(given: Served) -> None:
    """Law: without the admin token; of an unknown record, or a history; with a wrong ``force``; not asked the API."""
    await write(opened(given.store, KEYS), [raw(ID, 1)])
    for path, expected in (
        (f"{RECORDS}/unknown?force=true", 404),
        (f"{RECORDS}/{ID}/history?force=true", 404),
        (f"{RECORDS}/{ID}?force=perhaps", 400),
        (f"{RECORDS}/{ID}", 409),  # this list has no endpoint for one record
    ):
        assert (await erase(given, path))[0] == expected, path
    assert (await erase(given, f"{RECORDS}/{ID}?force=true", TOKEN[:-1]))[0] == 401
    assert (await given.ask(f"{RECORDS}/{ID}"))[0] == 200
