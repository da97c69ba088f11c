"""A thousand APIs in one process: the cheapest thing that the daemon can poll, so that what is measured is the daemon.

``/sN/RESOURCE`` is a listing of the source ``sN``, one page, with delta tokens where the resource has them; the token
is the number of the last change. ``POST /change?feeds=K`` changes one record in each of ``K`` feeds, the next ones in
turn. ``GET /polled`` tells when each feed was asked since this was last asked.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen
from uuid import UUID

import msgspec
import uvloop

from tests.bench.serving import Connection, serve
from tests.programs import program

RESOURCES: Final = ("evidenceVariants", "employmentUnavailabilities", "contractTypes", "achievements")
QUALIFICATIONS: Final = 2
"""Of each source; so many requests a round of achievements takes."""

_SINCE: Final = "sinceDeltaToken"
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


def many_sources(count: int, *, records: int) -> AbstractContextManager[str]:
    """The URL of so many sources with so many records in each feed, while the block runs."""
    return program("tests.bench.many_sources", count, records)


def polled(url: str) -> dict[str, list[float]]:
    """When each feed was asked, CLOCK_MONOTONIC in seconds, since this was last asked."""
    with urlopen(f"{url}/polled", timeout=60) as answer:  # noqa: S310 -- our own process
        return msgspec.json.decode(answer.read(), type=dict[str, list[float]])


def change(url: str, feeds: int) -> None:
    """Change one record in each of so many feeds."""
    with urlopen(Request(f"{url}/change?feeds={feeds}", method="POST"), timeout=60):  # noqa: S310 -- as above
        pass


class _Listing:
    """One feed of one source."""

    def __init__(self, source: int, number: int, records: int) -> None:
        self.polls: list[float] = []
        self._last = 0
        self._changed = [0] * records
        self._first = (source * len(RESOURCES) + number) << 32
        self._qualification = source << 8

    def change(self) -> None:
        self._last += 1
        self._changed[self._last % len(self._changed)] = self._last

    def page(self, since: str | None, qualification: str | None) -> bytes:
        least = int(since) + 1 if since else 0
        results = [
            self._record(number, changed)
            for number, changed in enumerate(self._changed)
            if changed >= least and (qualification is None or self._qualified(number) == qualification)
        ]
        return msgspec.json.encode({"results": results, "deltaToken": str(self._last), "pageToken": None})

    def _qualified(self, number: int) -> str:
        return str(UUID(int=self._qualification + number % QUALIFICATIONS))

    def _record(self, number: int, changed: int) -> Mapping[str, object]:
        return {
            "id": str(UUID(int=self._first + number)),
            "qualificationID": self._qualified(number),
            "code": f"C-{number:06}",
            "name": f"Record {number}, changed {changed} times and more",
            "externalCode": f"X-{number:06}",
            "createdAt": "2025-01-01T00:00:00Z",
            "lastModifiedAt": "2025-01-01T00:00:00Z",
        }


class _Sources:
    def __init__(self, count: int, records: int) -> None:
        self.feeds = {
            f"s{source}/{resource}": _Listing(source, number, records)
            for source in range(count)
            for number, resource in enumerate(RESOURCES)
        }
        self._turn = 0

    def answer(self, target: str) -> bytes:
        url = urlsplit(target)
        source, _, path = url.path.removeprefix("/").partition("/")
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        if source == "polled":
            told = {name: feed.polls for name, feed in self.feeds.items()}
            for feed in self.feeds.values():
                feed.polls = []
            return msgspec.json.encode(told)
        if source == "change":
            return self._change(int(asked["feeds"]))
        parts = path.split("/")
        feed = self.feeds[f"{source}/{parts[-1]}"]
        feed.polls.append(time.monotonic())
        return feed.page(asked.get(_SINCE), parts[1] if len(parts) > 1 else None)

    def _change(self, count: int) -> bytes:
        feeds = list(self.feeds.values())
        for step in range(count):
            feeds[(self._turn + step) % len(feeds)].change()
        self._turn += count
        return b"{}"


class _Connection(Connection):
    def __init__(self, sources: _Sources) -> None:
        super().__init__()
        self._sources = sources

    def answer(self, head: bytes, body: bytes) -> None:  # noqa: ARG002 -- no request has one
        answered = self._sources.answer(head.split(b" ", 2)[1].decode())
        self.transport.write(_ANSWER % (len(answered), answered))


if __name__ == "__main__":
    uvloop.run(serve(partial(_Connection, _Sources(*map(int, sys.argv[1:])))))
