"""The cheapest sink there is, in a process of its own: it counts what arrives and notes when.

``/N`` is answered 204 at once, ``/slow`` after :data:`SLOW`, ``/hang`` never. ``GET /`` tells what has come since it
was last asked. An event that ends in its :func:`stamp` counts with the time since then, up to the moment of the answer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager
from typing import Final
from urllib.request import urlopen

import msgspec
import uvloop

from tests.bench.serving import Connection, serve
from tests.programs import program

SLOW: Final = 0.05
_STAMP: Final = 20  # characters
_ENDS: Final = (b"}}", b"}}]")
_ANSWER: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
_EVENT: Final = b'"specversion"'


class Arrived(msgspec.Struct):
    """What has come.

    Attributes:
        events: how many, each as often as it came.
        at: CLOCK_MONOTONIC in seconds, of each request.
        took: seconds from the stamp to the answer, for each request whose last event has one.
        cpu: seconds of CPU of the receiver so far.
    """

    events: int = 0
    at: list[float] = []
    took: list[float] = []
    cpu: float = 0.0

    def add(self, more: Arrived) -> None:
        """Count what has come since."""
        self.events += more.events
        self.at += more.at
        self.took += more.took
        self.cpu = more.cpu

    def took_at_most(self, share: float) -> float:
        """Seconds within which so great a share of them was answered."""
        return sorted(self.took)[int(share * (len(self.took) - 1))]


def stamp(moment: float) -> str:
    """A moment of CLOCK_MONOTONIC as it stands at the end of an event's data: a JSON number of fixed width."""
    return f"{moment:.6f}".rjust(_STAMP)


def receiver() -> AbstractContextManager[str]:
    """Its URL while the block runs."""
    return program("tests.bench.receiver")


def arrived(url: str) -> Arrived:
    """What has come since this was last asked."""
    with urlopen(url, timeout=60) as answer:  # noqa: S310 -- our own process
        return msgspec.json.decode(answer.read(), type=Arrived)


class _Connection(Connection):
    known: Arrived = Arrived()

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self.known.cpu = time.process_time()
            content, _Connection.known = msgspec.json.encode(self.known), Arrived()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content))
        elif head.startswith(b"POST /slow"):
            asyncio.get_running_loop().call_later(SLOW, self._take, body)
        elif not head.startswith(b"POST /hang"):
            self._take(body)

    def _take(self, body: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(_ANSWER)
        now, known = time.monotonic(), self.known
        known.events += body.count(_EVENT)
        known.at.append(now)
        if body.endswith(_ENDS):
            end = body.rindex(_ENDS[0])
            known.took.append(now - float(body[end - _STAMP : end]))


if __name__ == "__main__":
    uvloop.run(serve(_Connection))
