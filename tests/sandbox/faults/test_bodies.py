"""Laws of :mod:`poller.sandbox.faults.bodies`: each profile shows on a socket what its line says."""

from __future__ import annotations

import asyncio
import codecs
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from poller.sandbox.server import DRIP_SECONDS
from tests.harness.waiting import strain
from tests.sandbox.faults.stage import LIST, Law, Stage, ids, shown, stage


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
    """A connection that a list was asked for on."""
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
    said = (await api.get()).content
    assert (len(said), said.strip()) == (len(whole) + 70 * 2**20, whole)


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
    """Each profile shows what its line in the table says."""
    await shown(LAWS)
