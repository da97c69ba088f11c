"""The sandbox's calls under ``/_sandbox``: change records, read the history, misbehave.

**Invariants**

- The log shows every version in order, one to a line, with the record's own bytes.
- A call that makes the API misbehave takes effect before it answers (204), from the next request on.
- No credential is needed: this is a tool on a loopback address.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from poller.sandbox.data import completed, instant, mutate
from poller.sandbox.history import RESOURCES, UnusableRecord

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime
    from random import Random

    from starlette.requests import Request

    from poller.sandbox.faults.base import Switches
    from poller.sandbox.history import History, Version


_LINES_A_CHUNK = 500
_MOST_CHANGES = 100_000
_DIGITS = 15
_BREAKS = bytes.maketrans(b"\r\n", b"  ")


class LogLine(msgspec.Struct, frozen=True):
    """A version as the log shows it; ``record`` is null when the record was removed."""

    version: int
    at: str
    resource: str
    id: str
    qualification: str | None
    op: str
    record: msgspec.Raw | None


class Control:
    """The calls that change and show one history."""

    __slots__ = ("_history", "_now", "_rng")

    def __init__(self, history: History, rng: Random, now: Callable[[], datetime]) -> None:
        self._history = history
        self._rng = rng
        self._now = now

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/_sandbox/records/{resource}", self.put, methods=["POST"]),
            Route("/_sandbox/records/{resource}/{id}", self.remove, methods=["DELETE"]),
            Route("/_sandbox/changes", self.change, methods=["POST"]),
            Route("/_sandbox/log", self.log, methods=["GET"]),
            Route("/_sandbox/version", self.version, methods=["GET"]),
        ]

    async def put(self, request: Request) -> Response:
        """Create (201) or replace (200) the record in the body: ``{"version", "record"}``."""
        resource = _resource(request)
        body = await request.body()
        at = self._now()
        try:
            record = completed(body, present=lambda id_: self._present(resource, id_), rng=self._rng, at=at)
            before = self._history.count(resource)
            version = self._history.put(resource, record, at)
        except UnusableRecord as error:
            raise HTTPException(HTTPStatus.BAD_REQUEST, str(error)) from error
        status = HTTPStatus.CREATED if self._history.count(resource) > before else HTTPStatus.OK
        return _json({"version": version.number, "record": msgspec.Raw(record)}, status)

    async def remove(self, request: Request) -> Response:
        """Remove a record (204), or say that there is none (404)."""
        if self._history.remove(_resource(request), request.path_params["id"], self._now()) is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "no such record")
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def change(self, request: Request) -> Response:
        """Make ``count`` changes (default 1): ``{"version"}``."""
        for _ in range(_number(request, "count", default=1, most=_MOST_CHANGES)):
            mutate(self._history, self._rng, self._now())
        return await self.version(request)

    async def version(self, _request: Request) -> Response:
        """The number of the latest version: ``{"version"}``."""
        return _json({"version": self._history.version})

    async def log(self, request: Request) -> Response:
        """All versions above ``since`` (default 0) as a JSON array."""
        since = _number(request, "since", default=0, most=10**_DIGITS)
        return StreamingResponse(self._chunks(since), media_type="application/json")

    async def _chunks(self, since: int) -> AsyncIterator[bytes]:
        """The array in chunks of many lines, between which other requests are answered."""
        lines: list[bytes] = []
        opening = b"[\n"
        for version in self._history.since(since):
            lines.append(_line(version))
            if len(lines) == _LINES_A_CHUNK:
                yield opening + b",\n".join(lines)
                lines, opening = [], b",\n"
        yield (opening + b",\n".join(lines) if lines or opening == b"[\n" else b"") + b"\n]\n"

    def _present(self, resource: str, id_: str) -> bytes | None:
        version = self._history.find(resource, id_)
        return None if version is None else version.record


def _line(version: Version) -> bytes:
    record = version.record
    line = LogLine(
        version=version.number,
        at=instant(version.at),
        resource=version.resource,
        id=version.id,
        qualification=version.qualification,
        op="delete" if record is None else "put",
        # A line break in JSON is never inside a string, so a blank in its place changes nothing.
        record=None if record is None else msgspec.Raw(record.translate(_BREAKS)),
    )
    return msgspec.json.encode(line)


def _resource(request: Request) -> str:
    name: str = request.path_params["resource"]
    if name not in RESOURCES:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"no such resource; there are {', '.join(RESOURCES)}")
    return name


def _number(request: Request, name: str, *, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (len(text) <= _DIGITS and text.isascii() and text.isdigit() and int(text) <= most):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} must be an integer from 0 to {most}")
    return int(text)


def _json(value: object, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


_DONE: Final = HTTPStatus.NO_CONTENT


class SwitchControl:
    """The calls that set the switches of one sandbox."""

    __slots__ = ("_switches",)

    def __init__(self, switches: Switches) -> None:
        self._switches = switches

    def routes(self) -> list[Route]:
        """What the application mounts."""
        return [
            Route("/_sandbox/expire", self.expire, methods=["POST"]),
            Route("/_sandbox/blank", self.blank, methods=["POST"]),
            Route("/_sandbox/token", self.token, methods=["POST"]),
            Route("/_sandbox/profiles", self.profiles, methods=["POST"]),
            Route("/_sandbox/forget/{resource}/{id}", self.forget, methods=["POST"]),
        ]

    async def expire(self, request: Request) -> Response:
        """Refuse all delta tokens given so far; with ``pages=1`` all page tokens."""
        self._switches.expire(pages=_flag(request, "pages", default="0"))
        return Response(status_code=_DONE)

    async def blank(self, request: Request) -> Response:
        """Make every listing empty; with ``on=0``, no longer."""
        self._switches.blank = _flag(request, "on", default="1")
        return Response(status_code=_DONE)

    async def profiles(self, request: Request) -> Response:
        """Apply the chosen profiles and faults; with ``on=0`` the API behaves well."""
        self._switches.profiles = _flag(request, "on", default="1")
        return Response(status_code=_DONE)

    async def token(self, request: Request) -> Response:
        """Require another bearer token: ``value``."""
        value = request.query_params.get("value", "").strip()
        if not value:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "value must be the new bearer token")
        self._switches.change_token(value)
        return Response(status_code=_DONE)

    async def forget(self, request: Request) -> Response:
        """Hide the record from listings, not from GET by id; ``on=0``: list it again."""
        resource = request.path_params["resource"]
        if resource not in RESOURCES:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no such resource; there are {', '.join(RESOURCES)}")
        self._switches.forget(resource, request.path_params["id"], on=_flag(request, "on", default="1"))
        return Response(status_code=_DONE)


def _flag(request: Request, name: str, *, default: str) -> bool:
    text = request.query_params.get(name, default)
    if text not in ("0", "1"):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"{name} must be 0 or 1")
    return text == "1"
