"""What an attempt tells of itself to whoever traces: a trace of its own that follows from those of its events.

It is no child of theirs: an event is delivered to many, for days, and once more when somebody asks for it. A trace that
held all of that would never end. Each attempt names its own span to the sink, in the header ``traceparent``.
"""

from __future__ import annotations

from collections.abc import Sequence

from poller.delivery.drafting import Told
from poller.delivery.outcome import Outcome
from poller.delivery.subscription import Event
from poller.telemetry import tracing
from poller.telemetry.http_words import tell_answer
from poller.telemetry.tracing import Current, Kind, Link, Nothing, Span


def attempt_at(events: Sequence[Event], *, feed: str, subscription: str) -> Current | Nothing:
    """The trace of one attempt with these."""
    if not tracing.on():
        return tracing.NOTHING
    words: dict[str, str | int] = {"poller.subscription": subscription, "poller.feed": feed}
    words["poller.events"] = len(events)
    if len(events) == 1:
        words["poller.event.id"] = events[0][0].id
    links = [_link(event) for event in events]
    return tracing.root("deliver", kind=Kind.CLIENT, attributes=words, links=links)


def tell_attempt(span: Span, told: Sequence[Told], outcome: Outcome | None) -> None:
    """Tell how it ended, and what follows; ``outcome`` is None where nothing could be sent."""
    if span is tracing.NOTHING or not told:
        return
    steps = dict.fromkeys(type(one.step).__name__.lower() for one in told)
    span.tell({"poller.attempt": max(one.attempt for one in told), "poller.step": ",".join(steps)})
    if outcome is None:
        span.fail("not_sent")
    else:
        tell_answer(span, outcome.status, text=outcome.text, failure=outcome.failure)


def _link(event: Event) -> Link:
    envelope, _ = event
    carried = {"traceparent": envelope.traceparent or ""}
    if envelope.tracestate:
        carried["tracestate"] = envelope.tracestate
    return carried, {"poller.event.id": envelope.id}
