"""The daemon's records over HTTP, as far as a bootstrap needs them: pages, each as of an entry of the stream.

One script reads the end of the stream and the records, so that a page is of one moment, as the daemon's. A page goes on
behind a name, not at a number: a record that is there all the time is in a page, whatever else is removed. Its link is
of one process of the server and one generation, as the daemon's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import parse_qs

from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from poller.clock import Clock
from poller.http.server import listening
from tests.client.published import FEED, SOURCE, STEM, STREAM

RECORDS: Final = "records-of-the-source"
SEQUENCE: Final = "sequence-of-the-source"
GENERATION: Final = "generation-of-the-source"
FIRST: Final = "first"
"""The generation where none is stored."""

_READ: Final = """
local last = redis.call('XINFO', 'STREAM', KEYS[1])
local entry = '0-0'
for at = 1, #last, 2 do if last[at] == 'last-generated-id' then entry = last[at + 1] end end
local sequence = redis.call('GET', KEYS[3]) or '0'
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
return {entry, sequence, redis.call('GET', KEYS[4]) or ARGV[1], run_id, redis.call('HGETALL', KEYS[2])}
"""


@dataclass
class RecordsApi:
    """An ASGI application, with faults on request.

    Attributes:
        store: of stream and records.
        token: expected; empty: none.
        page: records of a page.
        answers: statuses to answer before the next pages.
        asked: the paths of all requests.
        read: those of which the records are read.
        may_answer: cleared: answers wait.
        is_silent: whether a silent first reading is under way.
    """

    store: Redis
    token: str = ""
    page: int = 10
    answers: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    is_silent: bool = False

    def __post_init__(self) -> None:
        """Answer, until that is cleared."""
        self.may_answer.set()

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Answer a request."""
        path, query = scope["path"], parse_qs(scope["query_string"].decode())
        self.asked.append(f"{path}?{scope['query_string'].decode()}")
        given = dict(scope["headers"]).get(b"authorization", b"").decode()
        headers: list[tuple[bytes, bytes]] = []
        body: dict[str, Any] = {}
        if self.token and given != f"Bearer {self.token}":
            status = 401
        elif self.answers:
            status = self.answers.pop(0)
            headers.append((b"retry-after", b"1"))
        elif path != f"/feeds/{FEED}/records":
            status = 404
        else:
            body = await self._listed(query.get("cursor", [""])[0], headers)
            status = 200 if body else 410
            self.read.append(path)
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    @property
    def pages(self) -> list[str]:
        """The paths of requests for pages, without the questions for the generation."""
        return [path for path in self.asked if not path.endswith("limit=1")]

    async def _listed(self, cursor: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        read = await self.store.eval(_READ, 4, STREAM, RECORDS, SEQUENCE, GENERATION, FIRST)
        entry, sequence, generation, run_id = (text.decode() for text in read[:4])
        scan, _, after = cursor.partition(".")
        if cursor and scan != f"{run_id}:{generation}":
            return {}
        found = dict(zip(read[4][::2], read[4][1::2], strict=True))
        rest = sorted(name for name in found if name.decode() > after)
        names = rest[: self.page]
        if len(rest) > self.page:
            following = f"/feeds/{FEED}/records?cursor={run_id}:{generation}.{names[-1].decode()}"
            headers.append((b"link", f'<{following}>; rel="next"'.encode()))
        records = [_listed_record(generation, name.decode(), found[name].decode()) for name in names]
        as_of = {"entry": entry, "sequence": int(sequence)}
        return {
            "as_of": as_of,
            "generation": generation,
            "run_id": run_id,
            "silent_reading": self.is_silent,
            "records": records,
        }


def _listed_record(generation: str, name: str, stored: str) -> dict[str, Any]:
    """A record; what is stored of it is its revision, and perhaps its value behind a colon."""
    event_id = blake2b(f"{generation}:{name}:{stored}".encode(), digest_size=16).hexdigest()
    number, _, value = stored.partition(":")
    revision = int(number)
    return {
        "id": name,
        "revision": revision,
        "record": {"id": name} | ({"value": value} if value else {}),
        "changed_at": None,
        "sequence": revision,
        "event": {"id": event_id, "source": SOURCE, "type": f"{STEM}.created.v1"},
    }


@asynccontextmanager
async def serving(api: RecordsApi) -> AsyncIterator[str]:
    """The application on a loopback port; its URL."""
    async with listening(api, "127.0.0.1", 0, clock=Clock()) as url:
        yield url
