"""What a round and its requests tell of themselves to whoever traces. Pure but for the telling."""

from __future__ import annotations

from typing import Final

from poller.source.exchange import Reply
from poller.source.result import RoundResult
from poller.telemetry import tracing
from poller.telemetry.http_words import request_words, sent_again, tell_answer
from poller.telemetry.tracing import Current, Kind, Nothing, Span

_COUNTS: Final = ("pages", "records", "created", "modified", "removed", "unchanged", "quarantined")


def round_of(feed: str) -> Current | Nothing:
    """The trace of one round."""
    return tracing.root("round", attributes={"poller.feed": feed})


def tell_round(span: Span, result: RoundResult) -> None:
    """Tell how it ended."""
    counts = {f"poller.round.{name}": getattr(result, name) for name in _COUNTS}
    span.tell({"poller.round.mode": result.mode.value, "poller.round.ok": result.ok, **counts})
    if not result.ok:
        span.fail("round", result.error or "")


def request_of(base_url: str, path: str, *, again: int) -> Current | Nothing:
    """One request to the API; ``again`` says which repetition it is, 0: none."""
    if not tracing.on():
        return tracing.NOTHING
    words = {**request_words("GET", base_url + path), **sent_again(again)}
    return tracing.child("GET", kind=Kind.CLIENT, attributes=words)


def tell_reply(span: Span, reply: Reply) -> None:
    """Tell what came."""
    tell_answer(span, reply.outcome.status, text=reply.text)
    if reply.too_large:
        span.fail("too_large", reply.text)
