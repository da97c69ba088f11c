"""Laws of :mod:`poller.service.checking`: each answer of a source comes with its way out."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from poller.config.load import load
from poller.service.checking import check

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

CONFIG = """
http = {{ bind = "off" }}
[embedded]
data_dir = "{directory}/data"
[[sources]]
name = "acme"
base_url = "{url}"
auth = {{ none = true }}
{more}
[[sources.feeds]]
resource = "contractTypes"
"""
EMPTY = b'{"results": []}'


@asynccontextmanager
async def answering(status: bytes, body: bytes, headers: bytes = b"") -> AsyncIterator[str]:
    """An API that has one answer; gives its URL."""
    sent = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s" % (status, len(body), headers, body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def told(directory: Path, url: str, more: str = "") -> dict[str, str]:
    """What is said of the source and its feed."""
    file = directory / "poller.toml"
    file.write_text(CONFIG.format(directory=directory, url=url, more=more))
    found = [one async for one in check(load(file, {}), {})]
    return {one.subject: one.text for one in found if one.subject in {"acme/contractTypes", "source acme"}}


@pytest.mark.parametrize(
    ("status", "body", "way"),
    [
        (b"401 Unauthorized", b"{}", "auth"),
        (b"403 Forbidden", b"{}", "ask the API's owner"),
        (b"404 Not Found", b"{}", "is base_url right"),
        (b"302 Found", b"", "redirects are not followed"),
        (b"200 OK", b"<!DOCTYPE html><html></html>", "a page for people"),
        (b"200 OK", b"[]", "no list of records"),
        (b"200 OK", b"hello", "no list of records"),
    ],
)
async def test_an_answer_that_is_none_has_a_way_out(tmp_path: Path, status: bytes, body: bytes, way: str) -> None:
    """Through the very messages that rounds have."""
    async with answering(status, body) as url:
        found = await told(tmp_path, url)
    assert way in found["acme/contractTypes"]
    assert found["source acme"] == f"configured, {url}; what it answers, each feed says"


async def test_a_source_whose_clock_is_off_is_told(tmp_path: Path) -> None:
    """By the Date of its answer."""
    async with answering(b"200 OK", EMPTY, b"Date: Mon, 02 Mar 2020 08:15:30 GMT\r\n") as url:
        found = await told(tmp_path, url)
    assert "set both by NTP" in found["source acme"]


async def test_a_proxy_that_is_away_is_not_taken_for_the_source(tmp_path: Path) -> None:
    """The address in the message is the proxy's, so the way out is one for it."""
    found = await told(tmp_path, "http://api.example.org", 'proxy = "http://127.0.0.1:1"')
    assert "is proxy right" in found["acme/contractTypes"]


async def test_an_api_that_does_not_answer_is_told_once(tmp_path: Path) -> None:
    """By the feeds that were asked, with the way out; the others, which were not, point to them."""
    async with answering(b"503 Service Unavailable", b"") as url:
        file = tmp_path / "poller.toml"
        feeds = "".join(f'[[sources.feeds]]\nresource = "r{number}"\npath = "/r{number}"\n' for number in range(5))
        more = '[[sources.feeds]]\nresource = "achievements"\nqualifications = ["q"]\n'
        file.write_text(CONFIG.format(directory=tmp_path, url=url, more="concurrency = 1") + feeds + more)
        found = [one async for one in check(load(file, {}), {}) if one.subject.startswith("acme/")]
    assert len(found) == 7
    assert {one.severity for one in found} == {"error"}
    pointing = [one.text for one in found if "503" not in one.text]
    asked = [one.subject for one in found if "503" in one.text]
    assert pointing
    assert set(pointing) == {f"not asked: the API has not answered for {asked[0]}, see there"}
