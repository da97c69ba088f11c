"""Webhook requests for tests of the client library, and real servers for its applications."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from socketserver import ThreadingMixIn
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import aiohttp
import uvicorn

from poller.delivery.cloudevent import Mode, RequestForm
from poller.delivery.signing import Signer, new_secret
from tests.delivery.events import entry, pair, spelled

SECRET: Final = new_secret(b"k" * 24)
OTHER: Final = new_secret(b"o" * 64)
PRIVATE: Final = "whsk_" + b64encode(b"s" * 32).decode()
STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
NOW: Final = 1_750_000_000


def now() -> int:
    """The present second."""
    return int(time.time())


def signed(
    body: bytes,
    *secrets: str,
    at: int | None = None,
    webhook_id: str = "msg_1",
    family: str = "webhook",
    content_type: str = STRUCTURED,
) -> dict[str, str]:
    """The headers of a signed request."""
    moment = now() if at is None else at
    signature = Signer(secrets).headers(webhook_id, moment, body)["webhook-signature"]
    return {
        "Content-Type": content_type,
        f"{family}-id": webhook_id,
        f"{family}-timestamp": str(moment),
        f"{family}-signature": signature,
    }


def request_of(mode: Mode, *keys: str, secrets: tuple[str, ...] = (SECRET,)) -> tuple[dict[str, str], bytes]:
    """A request as the daemon makes it, with an event for each record."""
    form = RequestForm(mode, signer=Signer(secrets), user_agent="poller/1")
    sent = form.request([pair(entry(key=key)) for key in keys], timestamp=now())
    return dict(sent.headers), sent.body


def event(event_id: str, **members: Any) -> bytes:
    """An event in structured mode."""
    return spelled(id=event_id, **members)


def batch(*event_ids: str) -> bytes:
    """Events in batch mode."""
    return b"[" + b",".join(map(event, event_ids)) + b"]"


class Answer(NamedTuple):
    """What a server answered."""

    status: int
    text: str
    headers: Mapping[str, str]


async def post(
    url: str, body: Any, *secrets: str, headers: Mapping[str, str] | None = None, content_type: str = STRUCTURED
) -> Answer:
    """Post a body, signed with these secrets unless headers are given."""
    sent = signed(body, *(secrets or (SECRET,)), content_type=content_type) if headers is None else headers
    return await asked("POST", url, headers=sent, data=body)


async def asked(method: str, url: str, **options: Any) -> Answer:
    """Send one request over a connection of its own."""
    async with aiohttp.ClientSession() as session, session.request(method, url, **options) as answer:
        return Answer(answer.status, await answer.text(), answer.headers)


class _QuietServer(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override] # same use
        return nullcontext()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The URL of an ASGI application on uvicorn, with its start and end, for the duration of the block."""
    config = uvicorn.Config(app, lifespan="on", log_config=None, log_level="critical", access_log=False)
    server = _QuietServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: object) -> None:
        """Clients may leave."""


class _Silent(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served_wsgi(app: Any) -> Iterator[str]:
    """The URL of a WSGI application on wsgiref with threads, for the duration of the block."""
    with make_server("127.0.0.1", 0, app, server_class=_Threads, handler_class=_Silent) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
