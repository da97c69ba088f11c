"""Requests and responses: problem details (RFC 9457), JSON bodies, pages of lists.

**Invariants**

- A refusal names the key, the value, what is expected, and the remedy.
- A value is shown only if it cannot be a secret. An internal error is logged; its text is not in the response.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from poller.config.errors import shown_key
from poller.config.validation import repeated_keys
from poller.errors import StoreError
from poller.text import without_credentials

PROBLEM: Final = "application/problem+json"
_AGAIN: Final = "2"  # seconds after which to retry while the store is unavailable


class InvalidParameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """An invalid part of a request.

    Attributes:
        key: its place, such as ``config.rate``; "": the whole.
        expected: the expected value.
        value: the given value, if it may be shown.
    """

    key: str
    expected: str
    value: str | None = None


class ProblemDetails(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a problem response.

    Attributes:
        status: the HTTP status.
        title: the kind of problem.
        detail: this problem and its remedy.
        errors: the invalid parts of the request.
    """

    status: int
    title: str
    detail: str
    errors: tuple[InvalidParameter, ...] = ()


class RequestRefused(HTTPException):
    """A request is refused."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Sequence[InvalidParameter] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin with the fields of :class:`ProblemDetails` and headers of the response."""
        super().__init__(status, detail, headers)
        self.errors = tuple(errors)


def problem(
    status: int, detail: str, *, errors: Sequence[InvalidParameter] = (), headers: Mapping[str, str] | None = None
) -> Any:
    """The response to a refused request."""
    said = ProblemDetails(status, HTTPStatus(status).phrase, without_credentials(detail), tuple(errors))
    return Response(msgspec.json.encode(said) + b"\n", status, headers, media_type=PROBLEM)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- it is asked for these alone
    errors = error.errors if isinstance(error, RequestRefused) else ()
    answer: Response = problem(error.status_code, error.detail, errors=errors, headers=error.headers)
    return answer


async def _store_away(_: Request, error: Exception) -> Response:
    answer: Response = problem(503, f"the store is unavailable: {error}", headers={"retry-after": _AGAIN})
    return answer


async def _gone(_: Request, __: Exception) -> Response:
    """The response to a client that has gone; only the counter of responses sees it."""
    answer: Response = problem(400, "the request ended before its body did")
    return answer


async def _failed(_: Request, __: Exception) -> Response:
    answer: Response = problem(500, "this is an error of the program; its log has the details")
    return answer


ANSWERS: Final[Mapping[Any, Any]] = {
    HTTPException: _refused,
    StoreError: _store_away,
    ClientDisconnect: _gone,
    Exception: _failed,
}
"""The responses to errors that routes raise."""


# One route for each path: for an unknown method Starlette names only the methods of the first route of a path.

JSON: Final = "application/json"
MOST: Final = 1000
"""Entries of a list in one response."""

_USUAL: Final = 100
_DIGITS: Final = len(str(MOST))
_UNKNOWN_NAMED: Final = 16
_ONCE: Final = "expected once: this parameter occurs twice"

Endpoint = Callable[[Request], Awaitable[Response]]


def at(path: str, **endpoints: Endpoint) -> Route:
    """The route of a path: ``at("/feeds", GET=…)``. OPTIONS lists the methods."""
    methods = {*endpoints, "OPTIONS", *(("HEAD",) if "GET" in endpoints else ())}
    allow = ", ".join(sorted(methods))

    async def endpoint(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": allow})
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, endpoint, methods=sorted(methods))


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with this value as JSON."""
    return Response(msgspec.json.encode(value) + b"\n", status, headers, media_type=JSON)


class PageRange(msgspec.Struct, frozen=True):
    """The requested part of a list.

    Attributes:
        limit: the greatest number of entries.
        after: the name before the first entry; "": begin with the first.
    """

    limit: int
    after: str

    def of(self, names: Sequence[str]) -> list[str]:
        """This part of these names, in alphabetical order."""
        return sorted(name for name in names if name > self.after)[: self.limit]

    def links(self, path: str, names: Sequence[str]) -> dict[str, str]:
        """The ``Link`` header to the next part (RFC 8288), if there is one."""
        here = self.of(names)
        if not here or here[-1] == max(names):
            return {}
        query = urlencode({"limit": self.limit, "after": here[-1]})
        return {"link": f'<{path}?{query}>; rel="next"'}


def require_known_parameters(request: Request, *known: str) -> None:
    """Check that the query names no other parameters than these, and each once: others would be passed over.

    Raises:
        RequestRefused: it does; the refusal names them.
    """
    require_single_parameters(request, *known)
    unknown = sorted({name[:64] for name in request.query_params} - set(known))
    if unknown:
        expected = f"unknown parameter; known are {', '.join(known)}" if known else "unknown parameter; there are none"
        errors = [InvalidParameter(shown_key((name,)), expected) for name in unknown[:_UNKNOWN_NAMED]]
        raise RequestRefused(400, f"{errors[0].key}: {expected}", errors=errors)


def require_single_parameters(request: Request, *names: str) -> None:
    """Check that the query has none of these parameters twice: only one would count.

    Raises:
        RequestRefused: it does; the refusal names them.
    """
    twice = [name for name in names if len(request.query_params.getlist(name)) > 1]
    if twice:
        errors = [InvalidParameter(name, _ONCE) for name in twice]
        raise RequestRefused(400, f"{twice[0]}: {_ONCE}", errors=errors)


def span_of(request: Request) -> PageRange:
    """The range from ``limit`` and ``after`` of a request.

    Raises:
        RequestRefused: the limit is invalid, or one of them occurs twice.
    """
    require_single_parameters(request, "limit", "after")
    limit = request.query_params.get("limit", str(_USUAL))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= _DIGITS and 1 <= int(limit) <= MOST):
        expected = f"expected 1 to {MOST}"
        raise RequestRefused(400, f"limit: {expected}", errors=[InvalidParameter("limit", expected, limit[:20])])
    return PageRange(int(limit), request.query_params.get("after", ""))


_WEIGHT: Final = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)")


def weight_of(request: Request, kind: str) -> float:
    """How much a client wants a media type, by ``Accept``: 0 (not at all) to 1. The most specific range counts."""
    ranges = {kind: 2, f"{kind.partition('/')[0]}/*": 1, "*/*": 0}
    found = [(0, 0.0)]
    for one in request.headers.get("accept", "").lower().split(","):
        wanted, *parameters = (part.strip() for part in one.split(";"))
        weights = [float(weight[1]) for part in parameters if (weight := _WEIGHT.fullmatch(part))]
        if wanted in ranges:
            found.append((ranges[wanted], weights[0] if weights else 1.0))
    return max(found)[1]


# Bodies of requests: JSON of a known shape, or a refusal that names its errors.

_KINDS: Final = frozenset({JSON, "application/cloudevents-subscription+json"})
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH: Final = " - at `$"

T = TypeVar("T")


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a pause request.

    Attributes:
        reason: shown in the status.
    """

    reason: Annotated[str, msgspec.Meta(max_length=500)] = "by request"


async def reason_of(request: Request) -> str:
    """The reason of a pause request; a default if none is given.

    Raises:
        RequestRefused: the body is no :class:`PauseRequest`.
    """
    body = await body_of(request)
    return usable(body, lambda one: decoded(one, PauseRequest)).reason if body else PauseRequest().reason


async def body_of(request: Request) -> bytes:
    """The bytes of the body.

    Raises:
        RequestRefused: the content type is not JSON.
    """
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind not in _KINDS:
        raise RequestRefused(415, f"content-type: expected {JSON}", headers={"accept": JSON})
    return body


def usable(body: bytes, read: Callable[[bytes], T | list[InvalidParameter]]) -> T:
    """The value that ``read`` returns for the body.

    Raises:
        RequestRefused: the body is no JSON, or ``read`` finds errors.
    """
    try:
        found = read(body)
    except ValueError as error:
        raise RequestRefused(400, str(error)) from None
    if isinstance(found, list):
        raise unusable(found)
    return found


def unusable(errors: list[InvalidParameter]) -> RequestRefused:
    """The refusal of a body with these errors."""
    first = errors[0]
    return RequestRefused(422, f"{first.key}: {first.expected}" if first.key else first.expected, errors=errors)


def decoded(body: bytes, shape: type[T]) -> T | list[InvalidParameter]:
    """A request's JSON value, or the errors of its shape.

    Raises:
        ValueError: no JSON, or nested too deep.
    """
    try:
        made = msgspec.json.decode(body, type=shape)
        twice = list(repeated_keys(body))
    except msgspec.ValidationError as error:
        return [_wrong(str(error), shape, body)]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise ValueError("expected a JSON object") from None
    return [InvalidParameter(shown_key(key), "expected once: this key occurs twice") for key in twice] or made


def _wrong(said: str, shape: type[Any], body: bytes) -> InvalidParameter:
    """The error that msgspec reports, with the name of an unknown key, or with all known keys."""
    head, found, path = said.rpartition(_PATH)
    place = _named(path.removeprefix(".").removesuffix("`"), body) if found else ""
    said = head if found else said
    unknown = _UNKNOWN.fullmatch(said)
    if unknown is None:
        return InvalidParameter(place, said)
    known = "" if place else f"; known are {', '.join(shape.__struct_fields__)}"
    return InvalidParameter(f"{place}.{unknown[1]}".lstrip("."), f"unknown key{known}")


def _named(place: str, body: bytes) -> str:
    """The place of an error with the key of a table of texts, which msgspec writes as ``[...]``."""
    table, found, _ = place.partition("[...]")
    if not found:
        return place
    values: Any = msgspec.json.decode(body)
    for name in table.split("."):
        values = values[name]
    wrong = next((name for name, value in values.items() if not isinstance(value, str)), "")
    return f"{table}.{shown_key((wrong,))}"
