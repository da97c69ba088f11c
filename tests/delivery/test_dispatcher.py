"""Laws of :mod:`poller.delivery.dispatcher`: spans, trace headers and log lines of attempts."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from poller.auth.base import EnvironmentToken
from poller.clock import Clock
from poller.delivery.cloudevent import envelope_of
from poller.delivery.delivery_tracker import DeliveryTracker
from poller.delivery.dispatcher import Dispatcher
from poller.delivery.endpoint import EndpointState
from poller.delivery.filters import Batching
from poller.delivery.retry import RetryPolicy
from poller.delivery.signing import Signer, new_secret
from poller.delivery.sinks.base import Failure, Outcome, Sink
from poller.delivery.sinks.webhook import SignedRequests
from poller.telemetry import tracing
from tests.delivery.events import spelled
from tests.delivery.outcomes import unanswered
from tests.delivery.scene import OK, Noted, Posted, now, subscription
from tests.delivery.sinks import sink_of
from tests.receiver import Received, Receiver, Reply, receiving
from tests.telemetry.recording import linked, parent, recorded, told, traceparent

ROUND = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"
SECRET = new_secret(b"s" * 32)
SIGNER = Signer([SECRET])


class _Stream:
    held = True

    async def fetch(self, entries: Sequence[str]) -> Mapping[str, bytes]:
        raise AssertionError(entries)


async def sent(receiver: Receiver, *events: bytes, mode: str = "structured", **options: Any) -> None:
    """Deliver these events, each in one attempt."""
    requests = SignedRequests(mode, secrets=[SECRET])  # type: ignore[arg-type] # one of the modes
    async with sink_of(receiver.url + "/hooks/s3cret?key=s3cret", requests=requests, **options) as sink:
        await _through(sink, events, mode)


async def _through(
    sink: Sink, events: Sequence[bytes], mode: str, *, stream: _Stream | None = None, noted: Noted | None = None
) -> None:
    batching = Batching(max_events=100) if mode == "batch" else Batching()
    wanted = subscription(batching=batching, patience=RetryPolicy([timedelta(hours=1)], 0.0))
    clock = Clock()
    subscriber = EndpointState(
        wanted,
        sink,
        noted or Noted(),
        paused_until=None,
        clock=clock,
    )
    tracker = DeliveryTracker(wanted)
    tracker.take_in([(f"{number}-0", event) for number, event in enumerate(events, 1)], now=now())
    requests = Dispatcher(tracker, subscriber, stream or _Stream(), feed="acme/a", changed=lambda: None, clock=clock)
    requests.start()
    await requests.finish(within=20)
    if requests.failed:
        raise requests.failed


def event(number: int = 1, **members: str) -> bytes:
    return spelled(id=f"e{number}", subject=f"r{number}", partitionkey=f"r{number}", data={"n": 1}, **members)


def names(request: Received) -> list[str]:
    return [name for name, _ in request.headers if name.lower().startswith("trace")]


async def test_an_attempt_is_a_trace_of_its_own() -> None:
    """Law: an attempt is a trace of its own, linked to its event's round, and its traceparent is sent to the sink."""
    async with receiving() as receiver:
        with recorded() as spans, tracing.root("round"):
            await sent(receiver, event(traceparent=ROUND))
        [request] = receiver.requests
    span = spans.one("deliver")
    assert (parent(span), linked(span), span.kind) == (None, [ROUND], SpanKind.CLIENT)
    assert request.header("traceparent") == traceparent(span)
    assert names(request) == ["traceparent"]
    host, port = receiver.url.removeprefix("http://").split(":")
    assert told(span) == {
        "poller.subscription": "s",
        "poller.feed": "acme/a",
        "poller.events": 1,
        "poller.event.id": "e1",
        "poller.attempt": 1,
        "poller.step": "delivered",
        "http.request.method": "POST",
        "url.full": receiver.url,
        "server.address": host,
        "server.port": int(port),
        "http.response.status_code": 204,
    }


async def test_a_batch_follows_from_all_its_events() -> None:
    """Law: a batch is one span, with a link for each event that has a traceparent."""
    async with receiving() as receiver:
        with recorded() as spans:
            events = [event(1, traceparent=ROUND), event(2), event(3, traceparent=OTHER, tracestate="a=b")]
            await sent(receiver, *events, mode="batch")
        [request] = receiver.requests
    span = spans.one("deliver")
    assert linked(span) == [ROUND, OTHER]
    assert [(link.attributes or {})["poller.event.id"] for link in span.links] == ["e1", "e3"]
    assert told(span)["poller.events"] == 3
    assert "poller.event.id" not in told(span)
    assert request.header("traceparent") == traceparent(span)


async def test_how_it_ended_is_told_there_and_in_the_log() -> None:
    """Law: a failed attempt's span has its status and next step; the attempt's log line belongs to this span."""
    async with receiving(Reply(503)) as receiver:
        with recorded() as spans, capture_logs([_noting]) as lines:
            await sent(receiver, event())
    span = spans.one("deliver")
    assert told(span)["poller.step"] == "retry"
    assert told(span)["error.type"] == "503"
    assert span.status.status_code is StatusCode.ERROR
    [line] = [line for line in lines if line["event"] == "attempt"]
    assert line["current"] == traceparent(span)


async def test_without_an_answer_the_failure_is_named() -> None:
    """Law: without an answer, the span's error type is the failure's name."""
    async with receiving() as receiver:
        pass
    with recorded() as spans:
        await sent(receiver, event())
    assert told(spans.one("deliver"))["error.type"] == "refused"


async def test_what_cannot_be_sent_is_told_as_that() -> None:
    """Law: an event that no request can carry becomes a dead letter, and its span's error type is ``not_sent``."""
    async with receiving() as receiver:
        with recorded() as spans:
            await sent(receiver, event(datacontenttype="application/cloudevents"), mode="binary")
        assert not receiver.requests
    assert (told(spans.one("deliver"))["poller.step"], told(spans.one("deliver"))["error.type"]) == (
        "deadletter",
        "not_sent",
    )


@pytest.mark.parametrize("outcome", [OK, unanswered(Failure.TIMEOUT)], ids=["accepted", "no answer"])
async def test_of_a_feed_that_is_delivered_elsewhere_no_health_is_stored(outcome: Outcome) -> None:
    """An attempt that ends after its lease is lost, as in a suspended process, changes no stored health."""
    stream, noted = _Stream(), Noted()

    def answer(_: bytes) -> Outcome:
        stream.held = False
        return outcome

    await _through(Posted(answer), [event()], "structured", stream=stream, noted=noted)
    assert noted.told == []


@pytest.mark.parametrize("waiting_for", ["connection", "token"])
async def test_an_attempt_whose_lease_runs_out_before_it_is_sent_is_not_sent(waiting_for: str) -> None:
    """An event is not sent if its lease runs out while the sink is being connected to, or a token is fetched.

    Another process may have sent it, and later events of its record, meanwhile.
    """
    stream, noted = _Stream(), Noted()

    class Slow(EnvironmentToken):
        async def token(self) -> str:
            stream.held = waiting_for != "token"
            return "t"

    async def lookup(_: str) -> list[str]:
        stream.held = waiting_for != "connection"
        return ["127.0.0.1"]

    async with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "sink.example")
        async with sink_of(url, lookup=lookup, credential=Slow("a test", {})) as sink:
            await _through(sink, [event()], "structured", stream=stream, noted=noted)
        assert receiver.requests == []
    assert noted.told == []


async def test_off_nothing_is_sent_of_it() -> None:
    """Law: without tracing no trace header is sent; in binary mode the event's traceparent is an attribute."""
    async with receiving() as receiver:
        await sent(receiver, event(traceparent=ROUND), mode="binary")
        [request] = receiver.requests
    assert names(request) == []
    assert request.header("ce-traceparent") == ROUND


async def test_in_binary_mode_both_are_there() -> None:
    """Law: in binary mode the event's traceparent is an attribute, and the attempt's is the header."""
    async with receiving() as receiver:
        with recorded() as spans:
            await sent(receiver, event(traceparent=ROUND, tracestate="a=b"), mode="binary")
        [request] = receiver.requests
    assert (request.header("ce-traceparent"), request.header("ce-tracestate")) == (ROUND, "a=b")
    assert request.header("traceparent") == traceparent(spans.one("deliver"))
    assert request.header("tracestate") is None


async def test_a_header_of_the_subscriptions_own_stays() -> None:
    """Law: a configured traceparent is sent once, whatever its case, and without tracestate."""
    async with receiving() as receiver:
        with recorded():
            await sent(receiver, event(), headers=(("TraceParent", OTHER),))
        [request] = receiver.requests
    assert [(name, text) for name, text in request.headers if name.lower().startswith("trace")] == [
        ("TraceParent", OTHER)
    ]


async def test_the_signature_covers_the_body_alone() -> None:
    """Law: tracing changes neither the signature nor the body, which is the entry's bytes."""
    carrying = event(traceparent=ROUND)
    async with receiving() as receiver:
        await sent(receiver, carrying)
        with recorded():
            await sent(receiver, carrying)
        plain, traced = receiver.requests
    assert plain.body == traced.body == carrying
    for request in (plain, traced):
        at = int(request.header("webhook-timestamp") or 0)
        assert request.header("webhook-signature") == SIGNER.headers("e1", at, carrying)["webhook-signature"]


async def test_a_sink_learns_that_it_is_not_sampled() -> None:
    """Law: the sink gets a traceparent with the flag "not sampled", and no span is recorded."""
    async with receiving() as receiver:
        with recorded(ALWAYS_OFF) as spans:
            await sent(receiver, event())
        [request] = receiver.requests
    assert int((request.header("traceparent") or "")[-2:], 16) & 1 == 0
    assert not spans.all


def test_events_are_read_fast_with_and_without() -> None:
    """Law: events with and without trace attributes are decoded in one pass."""
    assert envelope_of(event()).traceparent is None
    both = envelope_of(event(traceparent=ROUND, tracestate="a=b"))
    assert (both.traceparent, both.tracestate) == (ROUND, "a=b")
    assert type(both) is type(envelope_of(event()))


def _noting(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    line["current"] = tracing.current().carried.get("traceparent")
    return line
