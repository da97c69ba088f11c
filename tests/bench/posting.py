"""A raw limit in a process of its own: the same bodies, posted by a bare HTTP client to the same receiver.

It prints posts a second and microseconds of its CPU for each.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Literal

import aiohttp
import httpx
import msgspec
import uvloop
from httpx_aiohttp import AiohttpTransport

from tests.bench.delivering import event

Client = Literal["httpx", "aiohttp"]
_WARM = 200


class Posted(msgspec.Struct, frozen=True):
    """How fast: posts a second, and CPU for each in microseconds."""

    a_second: float
    cpu: float


def posting(client: Client, url: str, *, concurrency: int, count: int) -> Posted:
    """Post so many events with so many requests in flight."""
    command = [sys.executable, "-m", "tests.bench.posting", client, url, str(concurrency), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Posted)


async def main(client: Client, url: str, concurrency: int, count: int) -> None:
    """Post, print."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency))
        )
        post = _aiohttp(session, url)
        if client == "httpx":
            transport = AiohttpTransport(client=session)
            post = _httpx(await stack.enter_async_context(httpx.AsyncClient(transport=transport)), url)
        await _all(post, concurrency, _WARM)
        begun, cpu = time.perf_counter(), time.process_time()
        await _all(post, concurrency, count)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    sys.stdout.buffer.write(msgspec.json.encode(Posted(count / seconds, cpu / count * 1e6)))


async def _all(post: Callable[[bytes], Awaitable[None]], concurrency: int, count: int) -> None:
    bodies = iter([event(number) for number in range(count)])

    async def some() -> None:
        for body in bodies:
            await post(body)

    await asyncio.gather(*(some() for _ in range(concurrency)))


def _httpx(http: httpx.AsyncClient, url: str) -> Callable[[bytes], Awaitable[None]]:
    async def post(body: bytes) -> None:
        (await http.post(url, content=body)).raise_for_status()

    return post


def _aiohttp(session: aiohttp.ClientSession, url: str) -> Callable[[bytes], Awaitable[None]]:
    async def post(body: bytes) -> None:
        async with session.post(url, data=body) as answer:
            answer.raise_for_status()

    return post


if __name__ == "__main__":
    _client, _url, _concurrency, _count = sys.argv[1:]
    uvloop.run(main("httpx" if _client == "httpx" else "aiohttp", _url, int(_concurrency), int(_count)))
