"""Answers that say what is wrong, as RFC 9457 has it: ``application/problem+json``.

Law: whoever is refused reads what was wrong, with key, value and what is expected there, and what to do instead. A
value is shown only where it cannot be a secret. What went wrong in here is a line in the log and no text in an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from poller.errors import StoreError
from poller.hiding import without_credentials

PROBLEM: Final = "application/problem+json"
_AGAIN: Final = "2"  # seconds until a store that is away is worth another question


class Wrong(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing in a request that cannot be used.

    Attributes:
        key: where it stands, such as ``config.rate``; "" for the whole.
        expected: what is expected there.
        value: what stands there, where that may be shown.
    """

    key: str
    expected: str
    value: str | None = None


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer, key for key.

    Attributes:
        status: as in the answer's first line.
        title: the same for each problem of a kind.
        detail: what it is about this one, and the way out.
        errors: each thing that is wrong with the request.
    """

    status: int
    title: str
    detail: str
    errors: tuple[Wrong, ...] = ()


class Refused(HTTPException):
    """A request that is not carried out."""

    def __init__(
        self, status: int, detail: str, *, errors: Sequence[Wrong] = (), headers: Mapping[str, str] | None = None
    ) -> None:
        """Take what :class:`Problem` has, and headers of the answer."""
        super().__init__(status, detail, headers)
        self.errors = tuple(errors)


def problem(status: int, detail: str, *, errors: Sequence[Wrong] = (), headers: Mapping[str, str] | None = None) -> Any:
    """The answer to a request that is not carried out."""
    said = Problem(status, HTTPStatus(status).phrase, without_credentials(detail), tuple(errors))
    return Response(msgspec.json.encode(said) + b"\n", status, headers, media_type=PROBLEM)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 -- it is asked for these alone
    errors = error.errors if isinstance(error, Refused) else ()
    answer: Response = problem(error.status_code, error.detail, errors=errors, headers=error.headers)
    return answer


async def _store_away(_: Request, error: Exception) -> Response:
    answer: Response = problem(503, f"the store does not do what it is asked: {error}", headers={"retry-after": _AGAIN})
    return answer


async def _gone(_: Request, __: Exception) -> Response:
    """Nobody reads it; whoever counts answers counts this one as what it was."""
    answer: Response = problem(400, "the request ended before its body did")
    return answer


async def _failed(_: Request, __: Exception) -> Response:
    answer: Response = problem(500, "this is a fault of the program; its log says more")
    return answer


ANSWERS: Final[Mapping[Any, Any]] = {
    HTTPException: _refused,
    StoreError: _store_away,
    ClientDisconnect: _gone,
    Exception: _failed,
}
"""Which answer an error is given that a route lets through."""
