"""One route for each path, whatever may be done there, and what the query of a request says.

Starlette answers a method that a path does not know with those of the first route of that path alone; so a path has
one route.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from poller.service.web.problems import Refused, Wrong

JSON: Final = "application/json"
MOST: Final = 1000
"""Of a list in one answer."""

_USUAL: Final = 100
_DIGITS: Final = len(str(MOST))

Endpoint = Callable[[Request], Awaitable[Response]]


def at(path: str, **endpoints: Endpoint) -> Route:
    """The route of a path: ``at("/feeds", GET=…)``. OPTIONS is answered with the methods that there are."""
    methods = {*endpoints, "OPTIONS", *(("HEAD",) if "GET" in endpoints else ())}
    allow = ", ".join(sorted(methods))

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": allow})
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, endpoint, methods=sorted(methods))


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The answer that is this value."""
    return Response(msgspec.json.encode(value) + b"\n", status, headers, media_type=JSON)


class Span(msgspec.Struct, frozen=True):
    """Which part of a list is wanted.

    Attributes:
        limit: how many at most.
        after: the name after which it begins; "" for the beginning.
    """

    limit: int
    after: str

    def of(self, names: Sequence[str]) -> list[str]:
        """The part of these names, in their alphabetical order."""
        return sorted(name for name in names if name > self.after)[: self.limit]

    def links(self, path: str, names: Sequence[str]) -> dict[str, str]:
        """The header that leads to the next part (RFC 8288), where there is one."""
        here = self.of(names)
        if not here or here[-1] == max(names):
            return {}
        query = urlencode({"limit": self.limit, "after": here[-1]})
        return {"link": f'<{path}?{query}>; rel="next"'}


def span_of(request: Request) -> Span:
    """What ``limit`` and ``after`` of a request say.

    Raises:
        Refused: the limit is none.
    """
    limit = request.query_params.get("limit", str(_USUAL))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= _DIGITS and 1 <= int(limit) <= MOST):
        expected = f"expected 1 to {MOST}"
        raise Refused(400, f"limit: {expected}", errors=[Wrong("limit", expected, limit[:20])])
    return Span(int(limit), request.query_params.get("after", ""))
