"""The daemon's records over HTTP, as far as a bootstrap needs them: pages, each as of an entry of the stream.

One script reads the end of the stream and the records, so that a page is of one moment, as the daemon's. A page goes on
behind a name, not at a number: a record that is there all the time is in a page, whatever else is removed.
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
_READ: Final = """
local last = redis.call('XINFO', 'STREAM', KEYS[1])
local entry = '0-0'
for at = 1, #last, 2 do if last[at] == 'last-generated-id' then entry = last[at + 1] end end
local sequence = redis.call('GET', KEYS[3]) or '0'
return {entry, sequence, redis.call('HGETALL', KEYS[2])}
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
    """

    store: Redis
    token: str = ""
    page: int = 10
    answers: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

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
            status = 200
            body = await self._listed(query.get("cursor", [""])[0], headers)
            self.read.append(path)
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def _listed(self, after: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        entry, sequence, flat = await self.store.eval(_READ, 3, STREAM, RECORDS, SEQUENCE)
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        rest = sorted(name for name in found if name.decode() > after)
        names = rest[: self.page]
        if len(rest) > self.page:
            following = f"/feeds/{FEED}/records?cursor={names[-1].decode()}"
            headers.append((b"link", f'<{following}>; rel="next"'.encode()))
        records = [_listed_record(name.decode(), int(found[name])) for name in names]
        return {"as_of": {"entry": entry.decode(), "sequence": int(sequence)}, "records": records}


def _listed_record(name: str, revision: int) -> dict[str, Any]:
    event_id = blake2b(f"{name}:{revision}".encode(), digest_size=16).hexdigest()
    return {
        "id": name,
        "revision": revision,
        "record": {"id": name},
        "changed_at": None,
        "sequence": revision,
        "event": {"id": event_id, "source": SOURCE, "type": f"{STEM}.created.v1"},
    }


@asynccontextmanager
async def serving(api: RecordsApi) -> AsyncIterator[str]:
    """The application on a loopback port; its URL."""
    async with listening(api, "127.0.0.1", 0, clock=Clock()) as url:
        yield url
