"""The sandbox's calls under ``/_sandbox`` that make the API misbehave on command.

Law: a call has done its work when it answers (204); the next request meets what it did. No credential is asked for.

It does not know: what the switches do to answers.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from poller.sandbox.resources import RESOURCES

if TYPE_CHECKING:
    from starlette.requests import Request

    from poller.sandbox.switches import Switches

_DONE: Final = HTTPStatus.NO_CONTENT


class Switching:
    """The calls, bound to the switches of one sandbox."""

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
        """All delta tokens given so far are refused from now on; with ``pages=1`` all page tokens instead."""
        self._switches.expire(pages=_flag(request, "pages", default="0"))
        return Response(status_code=_DONE)

    async def blank(self, request: Request) -> Response:
        """Every listing is empty; with ``on=0`` it is not any more."""
        self._switches.blank = _flag(request, "on", default="1")
        return Response(status_code=_DONE)

    async def profiles(self, request: Request) -> Response:
        """The profiles and faults that were chosen apply; with ``on=0`` the API behaves well."""
        self._switches.profiles = _flag(request, "on", default="1")
        return Response(status_code=_DONE)

    async def token(self, request: Request) -> Response:
        """Another bearer token is asked for: ``value``."""
        value = request.query_params.get("value", "").strip()
        if not value:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "value must be the new bearer token")
        self._switches.change_token(value)
        return Response(status_code=_DONE)

    async def forget(self, request: Request) -> Response:
        """No listing shows the record, GET by id still does; with ``on=0`` it is listed again."""
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
