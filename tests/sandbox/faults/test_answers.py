"""Laws of :mod:`poller.sandbox.faults.answers`: each profile behaves on a socket as its description says."""

from __future__ import annotations

import asyncio
import codecs
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from poller.sandbox.server import DRIP_SECONDS
from tests.harness.waiting import strain
from tests.sandbox.conftest import NOON
from tests.sandbox.faults.stage import ACHIEVEMENTS, LIST, Law, Stage, ids, shown, stage


def instead(body: bytes, content_type: str = "application/json") -> Law:
    async def law(api: Stage) -> None:
        for path in (LIST, f"{LIST}/c1", f"{LIST}/none"):
            said = await api.get(path)
            assert (said.status_code, said.content, said.headers["content-type"]) == (200, body, content_type)

    return law


async def html(api: Stage) -> None:
    said = await api.get()
    assert (said.status_code, said.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert said.content.startswith(b"<!doctype html>")


async def bomb(api: Stage) -> None:
    async with api.client.stream("GET", LIST) as said:
        assert said.headers["content-encoding"] == "gzip"
        packed = b"".join([chunk async for chunk in said.aiter_raw()])
    assert 250_000 < len(packed) < 350_000
    unpacking, size, end = zlib.decompressobj(wbits=31), 0, b""
    first = unpacking.decompress(packed, 2**20)
    while left := unpacking.decompress(unpacking.unconsumed_tail, 2**20):
        size, end = size + len(left), left[-24:]
    assert size + len(first) > 300 * 2**20
    assert first.startswith(b'{"results":[  ')
    assert end.strip() == b'],"deltaToken":"bomb"}'


async def bom(api: Stage) -> None:
    body = (await api.get()).content
    assert body.startswith(codecs.BOM_UTF8 + b'{"results":[{')


async def utf_16(api: Stage) -> None:
    said = await api.get()
    assert said.headers["content-type"] == "application/json; charset=utf-8"
    assert said.content.decode("utf-16").startswith('{"results":[{"id":"c0"')


@asynccontextmanager
async def connected(api: Stage) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which a list has been requested."""
    url = httpx.URL(api.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(f"GET {LIST} HTTP/1.1\r\nHost: sandbox\r\nAuthorization: Bearer sandbox\r\n\r\n".encode())
        yield reader
    finally:
        writer.close()
        with suppress(ConnectionError):  # the sandbox may have reset it
            await writer.wait_closed()


async def dripping(api: Stage) -> None:
    clock = asyncio.get_running_loop().time
    start = clock()
    async with connected(api) as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(3) == b'{"r'
    assert b"content-length" in head
    assert 2 * DRIP_SECONDS - 0.05 <= clock() - start < 10 * strain()
    assert DRIP_SECONDS == 0.5


def cut(header: bytes) -> Law:
    async def law(api: Stage) -> None:
        async with stage() as plain:
            whole = (await plain.get()).content
        async with connected(api) as reader:
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"\r\n" + header.replace(b"LENGTH", b"%d" % len(whole)) in head
        assert (b"content-length" in head, b"transfer-encoding" in head) == (b"LENGTH" in header, b"chunked" in header)
        half = whole[: len(whole) // 2]
        assert body == (b"%x\r\n%b\r\n" % (len(half), half) if b"chunked" in header else half)

    return law


async def half(api: Stage) -> None:
    async with stage() as plain:
        whole = (await plain.get()).content
    assert (await api.get()).content == whole[: len(whole) // 2]


async def long_page(api: Stage) -> None:
    async with stage() as plain:
        whole = (await plain.get()).content
    length = len(whole) + 70 * 2**20
    async with connected(api) as reader:
        assert b"content-length: %d\r\n" % length in await reader.readuntil(b"\r\n\r\n")
        assert (await reader.readexactly(length)).strip() == whole


async def long_header(api: Stage) -> None:
    async with connected(api) as reader:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await reader.read(2**16)
    assert b"\r\nx-long: " + b"x" * 2**17 in head


def said_to_be(encoding: bytes) -> Law:
    async def law(api: Stage) -> None:
        async with connected(api) as reader:
            assert b"content-encoding: " + encoding in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(3) == b'{"r'

    return law


async def packed(api: Stage) -> None:
    async with stage() as plain:
        expected = (await plain.get()).content
    said = await api.get()
    assert (said.headers["content-encoding"], said.content) == ("gzip", expected)


async def with_more(api: Stage) -> None:
    text = (await api.get(limit=3)).text
    assert text.startswith('{"count":7,"links":{"results":["]",{"pageToken":"no"}]},"deltaToken":"')
    assert text.index('"pageToken":"') < text.index('"results":[{"id":"c0"')
    assert list(map(len, map(ids, await api.pages()))) == [3, 3, 1]


async def endless(api: Stage) -> None:
    async with connected(api) as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length" not in head
        assert len(await reader.readexactly(2**20)) == 2**20


async def silent(api: Stage) -> None:
    async with connected(api) as reader:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)


async def no_http(api: Stage) -> None:
    async with connected(api) as reader:
        assert (await reader.read(-1)).startswith(b"220 mail.example.org ESMTP\r\n\x00")


async def reset(api: Stage) -> None:
    async with connected(api) as reader:
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


LAWS = {
    "html-200": html,
    "empty-200": instead(b""),
    "null-200": instead(b"null"),
    "list-200": instead(b"[]"),
    "object-200": instead(b"{}"),
    "error-200": instead(b'{"error":{"code":"internal","message":"try later"}}'),
    "results-null": instead(b'{"results":null,"deltaToken":"t"}'),
    "token-number": instead(b'{"results":[],"deltaToken":7,"pageToken":8}'),
    "deep-200": instead(b'{"results":[],"more":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "unknown-members": with_more,
    "half-json": half,
    "huge-page": long_page,
    "long-header": long_header,
    "not-gzip": said_to_be(b"gzip"),
    "brotli": said_to_be(b"br"),
    "gzip": packed,
    "endless-body": endless,
    "silent": silent,
    "not-http": no_http,
    "gzip-bomb": bomb,
    "bom": bom,
    "wrong-charset": utf_16,
    "drip": dripping,
    "cut-with-length": cut(b"content-length: LENGTH"),
    "cut-without-length": cut(b"connection: close"),
    "cut-chunked": cut(b"transfer-encoding: chunked"),
    "reset": reset,
}


async def test_each_does_what_its_line_says() -> None:
    """Each body profile behaves as its description in the table says."""
    await shown(LAWS)


# Laws of :mod:`poller.sandbox.faults.answers`: profiles of the contents of listings.


async def partial(api: Stage) -> None:
    first = await api.page()
    assert first["results"][1] == {"id": "c1", "code": "old", "name": "n1"}
    api.change(1)
    api.history.put("contractTypes", {"id": "fresh", "code": "old"}, NOON)
    delta = await api.page(sinceDeltaToken=first["deltaToken"])
    assert delta["results"] == [{"id": "c1", "code": "new"}, {"id": "fresh", "code": "old"}]
    api.history.put("contractTypes", {"id": "c1", "code": "new", "name": "other"}, NOON)
    assert (await api.page(sinceDeltaToken=first["deltaToken"]))["results"][-1]["code"] == "new"


async def same_delta(api: Stage) -> None:
    token = (await api.page())["deltaToken"]
    api.change(1)
    delta = await api.page(sinceDeltaToken=token)
    assert (ids(delta), delta["deltaToken"]) == (["c1"], token)


async def newer_before_older(api: Stage) -> None:
    api.change(1)
    api.change(1, code="newest")
    codes = [(record["id"], record["code"]) for record in (await api.page())["results"]]
    assert codes[-2:] == [("c1", "newest"), ("c1", "new")]
    assert len(codes) == 8


async def twice(api: Stage) -> None:
    assert ids((await api.pages())[0]) == ["c0", "c1", "c2", "c0"]


async def forgetting(api: Stage) -> None:
    for number in range(400):
        api.change(number)
    listed = set(ids(await api.page(limit=5000)))
    missing = {f"c{number}" for number in range(400)} - listed
    assert 20 < len(missing) < 60
    for id_ in sorted(missing)[:3]:
        assert (await api.get(f"/contractTypes/{id_}")).json()["id"] == id_


async def empty(api: Stage) -> None:
    pages = [await api.page(limit=3), (await api.get(ACHIEVEMENTS)).json()]
    assert [(page["results"], page.keys()) for page in pages] == [([], {"results", "deltaToken"})] * 2


async def alternating(api: Stage) -> None:
    pages = [(await api.page(limit=2, fields="code"))["results"] for _ in range(3)]
    assert [[record["id"] for record in page] for page in pages] == [["C0", "C1"], ["c0", "c1"], ["C0", "C1"]]
    assert {record["code"] for page in pages for record in page} == {"old"}


async def respelled(api: Stage) -> None:
    api.history.put("contractTypes", {"id": "e", "name": "\u00e9", "order": 1, "is": True}, NOON)
    bodies = [(await api.get()).content for _ in range(3)]
    assert bodies[0] == bodies[2] != bodies[1]
    assert [json.loads(body) for body in bodies[:2]] == [json.loads(bodies[0])] * 2
    assert b'"is": true,\n "order": 1.0,\n "name": "\\u00e9",\n "id": "e"' in bodies[1]


async def orphaned(api: Stage) -> None:
    assert (await api.get(ACHIEVEMENTS)).status_code == 404
    assert (await api.get()).status_code == 200


async def unequal(api: Stage) -> None:
    api.change(1)
    codes = [(await api.page())["results"][-1]["code"] for _ in range(4)]
    assert codes == ["new", "old", "new", "old"]
    assert [(await api.get("/contractTypes/c1")).json()["code"] for _ in range(2)] == ["new", "old"]
    api.change(1, code="newest")
    codes = [(await api.page())["results"][-1]["code"] for _ in range(2)]
    assert codes == ["newest", "new"]


CONTENTS = {
    "partial-deltas": partial,
    "same-delta": same_delta,
    "newer-before-older": newer_before_older,
    "repeated-record": twice,
    "forgets-records": forgetting,
    "two-backends": unequal,
    "empty-listings": empty,
    "respelled": respelled,
    "alternating-case": alternating,
    "parent-gone": orphaned,
}


async def test_each_content_is_what_its_line_says() -> None:
    """Each content profile behaves as its description in the table says."""
    await shown(CONTENTS)


# Laws of :mod:`poller.sandbox.faults.answers`: each profile's bytes come first in every page.

ID = b"00000000-0000-4000-8000-0000000000"
RECORDS = {
    "id-number": b'{"id":1},{"id":"1"}',
    "id-nfc-nfd": b'{"id":"\xc3\xa9"},{"id":"e\xcc\x81"}',
    "id-empty": b'{"id":""}',
    "id-1mb": b'{"id":"' + b"i" * 1_048_576 + b'"}',
    "deep": b'{"id":"' + ID + b'01","name":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "big-integer": b'{"id":"' + ID + b'02","name":' + b"7" * 5000 + b"}",
    "nan": b'{"id":"' + ID + b'03","name":NaN}',
    "duplicate-keys": b'{"id":"' + ID + b'04","name":"a","name":"b"}',
    "not-utf-8": b'{"id":"' + ID + b'06","name":"\xff"}',
    "not-an-object": b'null,7,"x",["id"]',
    "no-id": b'{},{"id":null},{"id":true},{"id":{}}',
    "id-control": rb'{"id":"a\u0000b"},{"id":"a\u000ab"}',
    "lone-surrogate": b'{"id":"' + ID + b'05","name":"\\ud800"}',
}


def in_front(records: bytes) -> Law:
    async def law(api: Stage) -> None:
        async with stage() as plain:
            own, others = await three(api), await three(plain)
        front = b'{"results":[' + records
        assert own[0] == front + b"," + others[0].removeprefix(b'{"results":[')
        assert own[1] == front + others[1].removeprefix(b'{"results":[')
        assert own[2] == others[2]

    return law


IN_FRONT = {name: in_front(records) for name, records in RECORDS.items()}


async def test_each_record_is_what_its_line_says() -> None:
    """A profile's records come first in every page, even an empty one, and all other bytes are unchanged."""
    await shown(IN_FRONT)


async def three(api: Stage) -> list[bytes]:
    """A full page, an empty one, a single record. The tokens of two equal histories are equal."""
    path = "/employmentUnavailabilities"
    return [(await api.get()).content, (await api.get(path)).content, (await api.get("/contractTypes/c1")).content]
