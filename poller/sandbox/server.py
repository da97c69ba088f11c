"""The simulated API as an ASGI application: requests in, the answers of :mod:`poller.sandbox.answer` out.

Law: every call of the API needs the bearer token, and every refusal has the JSON error body. What is answered is
decided elsewhere: by :func:`~poller.sandbox.answer.answer`, the switches around it and the profiles around those.

It does not know: how answers come about, on which socket it is served.
"""

from __future__ import annotations

from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from poller.sandbox.answer import Answer, Ask, answer, refusal
from poller.sandbox.control import Control
from poller.sandbox.profiles.choice import composed
from poller.sandbox.profiles.profile import Scene
from poller.sandbox.resources import RESOURCES
from poller.sandbox.switches import Switches
from poller.sandbox.switching import Switching
from poller.sandbox.wire import Broken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from starlette.requests import Request

    from poller.sandbox.answer import Respond
    from poller.sandbox.model import History
    from poller.sandbox.profiles.choice import Choice

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
    choices: Sequence[Choice] = (),
) -> Starlette:
    """The API's seven endpoints and the sandbox's own calls over one history.

    Args:
        history: what is served and changed.
        token: the bearer token that the API's endpoints ask for, until it is switched.
        rng: where the sandbox's own changes and ids come from.
        now: the time of changes made through the sandbox's own calls, UTC.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.
    """
    switches = Switches(token)
    respond = composed(choices, Scene(switches, now), lambda: _own_chance(rng), respond)
    own = [*Control(history, rng, now).routes(), *Switching(switches).routes()]
    routes = [*_api(history, switches, respond), *own]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    app.router.redirect_slashes = False  # a path that the reference does not have is 404
    return app


def _own_chance(rng: Random) -> Random:
    """As reproducible as ``rng``, and without a draw from it: faults leave the changes what they are."""
    return Random(repr(rng.getstate()))  # noqa: S311 - made-up misfortune, not secrets


def _api(history: History, switches: Switches, respond: Respond) -> list[Route]:
    def endpoint(ask: Callable[[Request], Ask]) -> Endpoint:
        async def call(request: Request) -> Response:
            return _response(_unauthorized(request, switches.token) or respond(history, ask(request)))

        return call

    routes = []
    for name, resource in RESOURCES.items():
        if resource.of_qualification:
            routes.append(Route(f"/qualifications/{{id}}/{name}", endpoint(_asks_qualification(name))))
        else:
            routes.append(Route(f"/{name}", endpoint(_asks_list(name))))
            routes.append(Route(f"/{name}/{{id}}", endpoint(_asks_single(name))))
    return routes


def _asks_list(name: str) -> Callable[[Request], Ask]:
    return lambda request: Ask(name, query=_query(request), if_none_match=_if_none_match(request))


def _asks_single(name: str) -> Callable[[Request], Ask]:
    return lambda request: Ask(name, request.path_params["id"], None, _query(request), _if_none_match(request))


def _asks_qualification(name: str) -> Callable[[Request], Ask]:
    return lambda request: Ask(name, None, request.path_params["id"], _query(request), _if_none_match(request))


def _query(request: Request) -> tuple[tuple[str, str], ...]:
    return tuple(request.query_params.multi_items())


def _if_none_match(request: Request) -> str | None:
    return request.headers.get("if-none-match")


def _unauthorized(request: Request, token: str) -> Answer | None:
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


def _response(said: Answer) -> Response:
    if said.wire is not None:
        return Broken(said)
    return Response(said.body, status_code=said.status, headers=dict(said.headers))
