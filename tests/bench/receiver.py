"""The cheapest sink there is, in a process of its own: it counts what arrives and notes when.

``/N`` is answered 204 at once, ``/slow`` after :data:`SLOW`, ``/hang`` never. ``GET /`` tells what has come since it
was last asked. An event that ends in its :func:`stamp` counts with the time since then, up to the moment of the answer.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast
from urllib.request import urlopen

import msgspec
import uvloop

SLOW: Final = 0.05
_STAMP: Final = 20  # characters
_END: Final = b"}}"
_ANSWER: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
_EVENT: Final = b'"specversion"'


class Arrived(msgspec.Struct):
    """What has come.

    Attributes:
        events: how many, each as often as it came.
        at: CLOCK_MONOTONIC in seconds, of each request.
        took: seconds from the stamp to the answer, for each request that ends in one.
    """

    events: int = 0
    at: list[float] = []
    took: list[float] = []

    def took_at_most(self, share: float) -> float:
        """Seconds within which so great a share of them was answered."""
        return sorted(self.took)[int(share * (len(self.took) - 1))]


def stamp(moment: float) -> str:
    """A moment of CLOCK_MONOTONIC as it stands at the end of an event's data: a JSON number of fixed width."""
    return f"{moment:.6f}".rjust(_STAMP)


@contextmanager
def receiver() -> Iterator[str]:
    """Its URL while the block runs."""
    command = [sys.executable, "-m", "tests.bench.receiver"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        with process.stdout as told:
            yield told.readline().strip()
    finally:
        process.kill()
        process.wait()


def arrived(url: str) -> Arrived:
    """What has come since this was last asked."""
    with urlopen(url, timeout=60) as answer:  # noqa: S310 -- our own process
        return msgspec.json.decode(answer.read(), type=Arrived)


class _Connection(asyncio.Protocol):
    known: Arrived = Arrived()

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one, but not by its class

    def data_received(self, received: bytes) -> None:
        self._buffer += received
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2]
            _, found, length = head.lower().partition(b"\r\ncontent-length: ")
            last = end + 4 + (int(length[: length.index(b"\r")]) if found else 0)
            if len(self._buffer) < last:
                return
            body, self._buffer = self._buffer[end + 4 : last], self._buffer[last:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            content, _Connection.known = msgspec.json.encode(self.known), Arrived()
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))
        elif head.startswith(b"POST /slow"):
            asyncio.get_running_loop().call_later(SLOW, self._take, body)
        elif not head.startswith(b"POST /hang"):
            self._take(body)

    def _take(self, body: bytes) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_ANSWER)
        now, known = time.monotonic(), self.known
        known.events += body.count(_EVENT)
        known.at.append(now)
        if body.endswith(_END):
            known.took.append(now - float(body[-_STAMP - len(_END) : -len(_END)]))


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve())
