"""A test API on a loopback socket: each connection carries one request and gets the bytes that the test chose."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A received request: target as on the wire, headers by lower-case name, the loop's time, method and body."""

    target: str
    headers: dict[str, str]
    at: float
    method: str = "GET"
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def form(self) -> dict[str, str]:
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True, strict_parsing=True))

    @property
    def params(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.target).query, keep_blank_values=True, strict_parsing=True)


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[bytes | None]]


class Api:
    """The URL of the API and the requests so far."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                method, target, _ = head[0].split(" ")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(target, headers, asyncio.get_running_loop().time(), method, body)
                self.requests.append(request)
                writer.write(await self._answer(request, writer) or b"")
                await writer.drain()
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def serving(answer: Answer | bytes | list[bytes], *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Api]:
    """Run the API. It gives one fixed answer, the answers of a list (the last one repeatedly), or a function's."""
    api = Api(_constant(answer) if isinstance(answer, (bytes, list)) else answer)
    server = await asyncio.start_server(api.connected, "127.0.0.1", 0, ssl=tls)
    host, port = server.sockets[0].getsockname()
    api.url = f"http{'s' if tls else ''}://{host}:{port}"
    try:
        yield api
    finally:
        server.close()
        await api.close()  # before wait_closed, which from Python 3.12 on waits for the connections
        await server.wait_closed()


def _constant(answers: bytes | list[bytes]) -> Answer:
    left = [answers] if isinstance(answers, bytes) else list(answers)

    async def answer(*_: Any) -> bytes:
        return left.pop(0) if len(left) > 1 else left[0]

    return answer


def http(status: int, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """An HTTP/1.1 answer; ``length`` overrides the Content-Length."""
    length = len(body) if length is None else length
    lines = (f"HTTP/1.1 {status} Some Reason", f"Content-Length: {length}", "Connection: close", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


class Flying:
    """Answers 200 once this number of requests is in flight; ``most`` is the highest number in flight so far."""

    def __init__(self, together: int) -> None:
        self.most = 0
        self._now = 0
        self._together = asyncio.Barrier(together)

    async def answer(self, *_: object) -> bytes:
        self._now += 1
        self.most = max(self.most, self._now)
        await self._together.wait()
        self._now -= 1
        return http(200)
