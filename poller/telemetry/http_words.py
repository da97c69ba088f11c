"""A request and its answer as attributes of a span, in the words of OpenTelemetry's HTTP conventions.

Law: of a URL its place is told, never its query and its user information: tokens stand in both. Pure.
"""

from __future__ import annotations

from typing import Final

from yarl import URL

from poller.telemetry.tracing import Attributes, Span

_ERRORS_FROM: Final = 400
UNNAMED: Final = "_OTHER"
"""The word for a failure that has none."""


def request_words(method: str, url: str) -> dict[str, str | int]:
    """What is asked of whom; a URL that is none is left out."""
    try:
        place = URL(url, encoded=True).with_user(None).with_query(None).with_fragment(None)
    except ValueError:
        return {"http.request.method": method}
    words: dict[str, str | int] = {"http.request.method": method, "url.full": str(place)}
    if place.host is not None and place.port is not None:
        words |= {"server.address": place.host, "server.port": place.port}
    return words


def tell_answer(span: Span, status: int | None, *, text: str, failure: str | None = None) -> None:
    """Tell how it ended.

    Args:
        span: of the exchange.
        status: of the answer; None where none came.
        text: one line that says what came.
        failure: a word for why none came.
    """
    if status is not None:
        span.tell({"http.response.status_code": status})
    if status is None:
        span.fail(failure or UNNAMED, text)
    elif status >= _ERRORS_FROM:
        span.fail(str(status), text)


def sent_again(count: int) -> Attributes:
    """That this request is a repetition, the n-th; 0: it is none."""
    return {"http.request.resend_count": count} if count else {}
