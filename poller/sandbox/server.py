"""The simulated API on a socket: an ASGI application, seeded and changing.

**Invariants**

- Every call of the API needs the bearer token, and every refusal has the JSON error body. What is answered is decided
  elsewhere: by :func:`~poller.sandbox.api.answer`, the switches around it and the profiles around those.
- When the address is known, connections to it are answered; when the block is left, no socket and no task of it is
  left. Signals are handled by the owner of the loop.
- Change number *n* is due *n* / rate seconds after the start. Late changes are caught up with; none is early.
- An answer that is broken off has sent the beginning of the whole answer. It ends when the reader leaves.
- The same seed gives the same records, byte for byte, at every start, and the same choice of changes after it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from poller.clock import Clock
from poller.http.server import listening
from poller.lifecycle import stopped_by_signals
from poller.resources import RESOURCES
from poller.sandbox.api import SandboxRequest, SandboxResponse, WireMode, answer, refusal
from poller.sandbox.control import Control, SwitchControl
from poller.sandbox.data import mutate
from poller.sandbox.data import seed as sow
from poller.sandbox.faults.base import SandboxScene, Switches
from poller.sandbox.faults.registry import composed
from poller.sandbox.history import History

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send

    from poller.sandbox.api import Respond
    from poller.sandbox.faults.registry import ChosenProfile


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request

    from poller.sandbox.api import Respond
    from poller.sandbox.faults.registry import ChosenProfile
    from poller.sandbox.history import History

    Endpoint = Callable[[Request], Awaitable[Response]]

_CODES = {
    HTTPStatus.BAD_REQUEST: "badRequest",
    HTTPStatus.NOT_FOUND: "notFound",
    HTTPStatus.METHOD_NOT_ALLOWED: "methodNotAllowed",
}


def application(
    history: History,
    *,
    token: str,
    rng: Random,
    now: Callable[[], datetime],
    respond: Respond = answer,
    choices: Sequence[ChosenProfile] = (),
) -> Starlette:
    """The API's endpoints and the sandbox's own calls over one history.

    Args:
        history: what is served and changed.
        token: the bearer token that the API's endpoints require, until it is switched.
        rng: where the sandbox's own changes and ids come from.
        now: the time of changes made through the sandbox's own calls, UTC.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.
    """
    switches = Switches(token)
    respond = composed(choices, SandboxScene(switches, now), lambda: _own_chance(rng), respond)
    own = [*Control(history, rng, now).routes(), *SwitchControl(switches).routes()]
    routes = [*_api(history, switches, respond), *own]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False  # a path that the reference does not have is 404
    return app


def _own_chance(rng: Random) -> Random:
    """A generator as reproducible as ``rng`` that draws nothing from it."""
    return Random(repr(rng.getstate()))  # noqa: S311 - made-up misfortune, not secrets


def _api(history: History, switches: Switches, respond: Respond) -> list[Route]:
    def endpoint(ask: Callable[[Request], SandboxRequest]) -> Endpoint:
        async def call(request: Request) -> Response:
            return _response(_unauthorized(request, switches.token) or respond(history, ask(request)))

        return call

    routes = []
    for name, resource in RESOURCES.items():
        if resource.per_qualification:
            routes.append(Route(resource.path, endpoint(_asks_qualification(name))))
        else:
            routes.append(Route(resource.path, endpoint(_asks_list(name))))
            if resource.detail_path:
                routes.append(Route(resource.detail_path, endpoint(_asks_single(name))))
    return routes


def _asks_list(name: str) -> Callable[[Request], SandboxRequest]:
    return lambda request: SandboxRequest(name, query=_query(request), if_none_match=_if_none_match(request))


def _asks_single(name: str) -> Callable[[Request], SandboxRequest]:
    return lambda request: SandboxRequest(
        name, request.path_params["id"], None, _query(request), _if_none_match(request)
    )


def _asks_qualification(name: str) -> Callable[[Request], SandboxRequest]:
    return lambda request: SandboxRequest(
        name, None, request.path_params["id"], _query(request), _if_none_match(request)
    )


def _query(request: Request) -> tuple[tuple[str, str], ...]:
    return tuple(request.query_params.multi_items())


def _if_none_match(request: Request) -> str | None:
    return request.headers.get("if-none-match")


def _unauthorized(request: Request, token: str) -> SandboxResponse | None:
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and credential.strip() == token:
        return None
    challenge = 'Bearer error="invalid_token"' if credential else "Bearer"
    message = "the bearer token is wrong" if credential else "a bearer token is needed"
    return refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", message, (("www-authenticate", challenge),))


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = _CODES.get(HTTPStatus(error.status_code), "refused")
    return _response(refusal(error.status_code, code, error.detail, tuple((error.headers or {}).items())))


def _response(said: SandboxResponse) -> Response:
    if said.wire is not None:
        return Broken(said)
    return Response(said.body, status_code=said.status, headers=dict(said.headers))


_MOST_AT_ONCE = 200
"""When far behind: the number of calls before other tasks may run."""


async def repeat(
    act: Callable[[], object],
    *,
    per_second: float,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Call ``act`` at a rate until cancelled; at a rate of 0 return immediately.

    Args:
        act: what to do; it must not take long.
        per_second: how often, on average over any time.
        clock: monotonic seconds; default the running loop's.
        sleep: waits for this number of seconds.
    """
    if per_second <= 0:
        return
    clock = clock or asyncio.get_running_loop().time
    start, done = clock(), 0
    while True:
        owed = int((clock() - start) * per_second) - done
        for _ in range(min(owed, _MOST_AT_ONCE)):
            act()
            done += 1
        await sleep(max(0.0, start + (done + 1) / per_second - clock()))


LOOPBACK = "127.0.0.1"
SANDBOX_TOKEN = "sandbox"  # noqa: S105 - public on purpose: the contract names it

_LONGEST_HEAD = 256 * 1024  # bytes; the profile page-token-64k has its tokens come back


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@asynccontextmanager
async def serving(
    history: History,
    *,
    rng: Random,
    host: str = LOOPBACK,
    port: int = 0,
    token: str = SANDBOX_TOKEN,
    changes_per_second: float = 0.0,
    now: Callable[[], datetime] = utc_now,
    respond: Respond = answer,
    choices: Sequence[ChosenProfile] = (),
) -> AsyncIterator[str]:
    """Serve a history while the block runs; gives the base URL.

    Args:
        history: what is served; the block may change it too.
        rng: where the sandbox's own changes and ids come from.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        token: the bearer token that the API asks for.
        changes_per_second: how many changes the sandbox makes by itself.
        now: the time of changes, UTC.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    app = application(history, token=token, rng=rng, now=now, respond=respond, choices=choices)
    async with listening(with_connection(app), host, port, clock=Clock(), longest_head=_LONGEST_HEAD) as url:
        changes = asyncio.create_task(
            repeat(lambda: mutate(history, rng, now()), per_second=changes_per_second), name="sandbox changes"
        )
        try:
            yield url
        finally:
            changes.cancel()
            with suppress(asyncio.CancelledError):
                await changes


DRIP_SECONDS: Final = 0.5
"""Seconds between two bytes of a dripping body."""

_CONNECTION: Final = "poller.connection"
_WHITE_SPACE: Final = b" " * 2**16
_NOT_HTTP: Final = b"220 mail.example.org ESMTP\r\n" + b"\x00\xff\n" * 1000
_NO_LINGER: Final = struct.pack("ii", 1, 0)


def with_connection(app: ASGIApp) -> ASGIApp:
    """The application, given the connection of each request. For uvicorn only."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        # ASGI cannot break a connection. uvicorn's ``send`` is a method of the exchange, which has the transport.
        scope[_CONNECTION] = send.__self__.transport  # type: ignore[attr-defined] # see above
        await app(scope, receive, send)

    return call


class Broken(Response):
    """An answer whose ``wire`` says how it is sent."""

    def __init__(self, said: SandboxResponse, *, pause: float = DRIP_SECONDS) -> None:
        super().__init__(said.body, status_code=said.status, headers=dict(said.headers))
        self._wire = said.wire
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is to send."""
        if self._wire is WireMode.DRIP:
            await self._drip(receive, send)
        elif self._wire is WireMode.ENDLESS:
            await self._pour(receive, send)
        elif self._wire is WireMode.SILENT:
            await _left(receive)
        else:
            self._break(scope[_CONNECTION])
            await _left(receive)

    async def _drip(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for index in range(len(body)):
            more = index + 1 < len(body)
            await send({"type": "http.response.body", "body": body[index : index + 1], "more_body": more})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await _left(receive)
                    return

    async def _pour(self, receive: Receive, send: Send) -> None:
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        leaving = asyncio.create_task(_left(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": _WHITE_SPACE, "more_body": True})
            await asyncio.sleep(0)

    def _break(self, transport: asyncio.Transport) -> None:
        if self._wire is WireMode.RESET:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
            return
        if self._wire is WireMode.NOT_HTTP:
            transport.write(_NOT_HTTP)
            transport.close()
            return
        transport.write(self._head() + self._half())
        transport.close()

    def _head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status_code} {HTTPStatus(self.status_code).phrase}".encode()]
        lines += [name + b": " + value for name, value in self.raw_headers if name != b"content-length"]
        if self._wire is WireMode.CUT_WITH_LENGTH:
            lines.append(b"content-length: %d" % len(self.body))
        elif self._wire is WireMode.CUT_CHUNKED:
            lines.append(b"transfer-encoding: chunked")
        else:
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def _half(self) -> bytes:
        half = bytes(self.body)[: len(self.body) // 2]
        return b"%x\r\n%b\r\n" % (len(half), half) if self._wire is WireMode.CUT_CHUNKED else half


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


SEEDED_AT = datetime(2025, 1, 1, tzinfo=UTC)
"""The time of the first records. It is fixed, so that the same seed gives the same bytes on any day."""


async def run_sandbox(
    *,
    port: int,
    records: int,
    changes_per_second: float,
    seed: int,
    token: str,
    say: Callable[[str], None],
    host: str = LOOPBACK,
    respond: Respond = answer,
    choices: Sequence[ChosenProfile] = (),
    qualifications: int | None = None,
) -> None:
    """Serve made-up records until SIGTERM or SIGINT, then return.

    Args:
        port: the port; 0 for any that is free.
        records: how many records to begin with.
        changes_per_second: how many changes to make by itself.
        seed: the same seed gives the same records and the same sequence of changes.
        token: the bearer token that the API asks for.
        say: shows one line when the API can be reached, without a buffer.
        host: the address to listen on.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.
        qualifications: the number of qualifications; by default it depends on ``records``.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    rng = Random(seed)  # noqa: S311 - made-up records, not secrets
    history = History()
    with stopped_by_signals() as stopped:
        sow(history, rng, records=records, at=SEEDED_AT, qualifications=qualifications)
        async with serving(
            history,
            rng=rng,
            host=host,
            port=port,
            token=token,
            changes_per_second=changes_per_second,
            respond=respond,
            choices=choices,
        ) as url:
            say(f"sandbox API on {url} (token: {token}); all that it ever held: {url}/_sandbox/log")
            await stopped.wait()
