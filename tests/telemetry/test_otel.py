"""Laws of :mod:`poller.telemetry.otel`: contents and links of spans, and that a slow collector delays nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import TraceState

from poller.clock import Clock
from poller.errors import ConfigurationError
from poller.telemetry import tracing
from poller.telemetry.otel import OtelTracer, collecting
from poller.telemetry.tracing import configured_tracing, exporters_of
from tests.harness.waiting import PATIENCE, strain
from tests.receiver import HANG, receiving
from tests.telemetry.collector import spans_of
from tests.telemetry.recording import linked, recorded, told

EVENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


class _Stateful(Sampler):
    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE, trace_state=TraceState([("ot", "th:8")]))

    def get_description(self) -> str:
        return "has a tracestate"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Restore the loggers of these libraries, which belong to the process."""
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "urllib3", "requests")]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    yield
    for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
        logger.level, logger.propagate, logger.handlers[:] = level, propagate, handlers


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Clear all variables of OpenTelemetry; the SDK reads those of the process."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    yield monkeypatch
    assert not _sending()


def test_the_context_is_carried_whether_it_is_sampled_or_not() -> None:
    """Law: the carried traceparent has the flag of sampling; a tracestate is carried only if there is one."""
    with recorded() as spans, tracing.root("a") as sampled:
        assert _flag(sampled.carried) == 1
        assert [*sampled.carried] == ["traceparent"]
    with recorded(ALWAYS_OFF) as unseen, tracing.root("a") as unsampled, tracing.child("b") as child:
        assert _flag(unsampled.carried) == 0
        assert tracing.ids_of(child.carried)[0] == tracing.ids_of(unsampled.carried)[0]
    with recorded(_Stateful()), tracing.root("a") as stateful:
        assert stateful.carried["tracestate"] == "ot=th:8"
    assert len(spans.all) == 1
    assert not unseen.all


def test_links_name_spans_and_nothing_else() -> None:
    """Law: a valid traceparent of an event becomes a link, an invalid one is ignored."""
    strange = [{"traceparent": text} for text in ("", "x", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "ff-é")]
    with recorded() as spans, tracing.root("a", links=[(EVENT, {"n": 1}), *((one, {}) for one in strange)]):
        pass
    span = spans.one("a")
    assert linked(span) == [EVENT["traceparent"]]
    assert span.links[0].context.is_remote
    assert dict(span.links[0].attributes or {}) == {"n": 1}


def test_failures_hold_no_credential() -> None:
    """Law: the text of a failure is one line without credentials."""
    with recorded() as spans, tracing.root("a") as span:
        span.fail("x", "asked https://me:s3cret@h/p?token=s3cret\nwith Bearer s3cret.s3cret")
    assert "s3cret" not in str(spans.one("a").status.description)
    assert "\n" not in str(spans.one("a").status.description)


async def test_they_are_sent_by_the_standard_variables(otlp: pytest.MonkeyPatch) -> None:
    """Law: OpenTelemetry's variables set endpoint, headers and service name, which is poller by default."""
    async with receiving() as collector:
        otlp.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        otlp.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")
        await asyncio.to_thread(_traced_once)
        otlp.setenv("OTEL_SERVICE_NAME", "mine")
        await asyncio.to_thread(_traced_once)
    first, second = collector.requests
    assert (first.target, first.header("authorization")) == ("/v1/traces", "Bearer s3cret")
    assert [span.resource["service.name"] for span in spans_of([first, second])] == ["poller", "mine"]
    assert [span.name for span in spans_of([first])] == ["round"]


async def test_many_links_are_kept(otlp: pytest.MonkeyPatch) -> None:
    """Law: a span keeps more links than the SDK's limit of 128, unless OpenTelemetry's variable sets a limit."""
    async with receiving() as collector:
        otlp.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url + "/any")
        await asyncio.to_thread(_traced_once, 300)
        otlp.setenv("OTEL_SPAN_LINK_COUNT_LIMIT", "3")
        await asyncio.to_thread(_traced_once, 300)
    assert [request.target for request in collector.requests] == ["/any", "/any"]
    assert [len(span.links) for span in spans_of(collector.requests)] == [300, 3]


async def test_a_collector_that_hangs_costs_moments(otlp: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Law: a hanging collector delays the end only by the flush time, and nothing is logged afterwards."""
    async with receiving(HANG) as collector:
        otlp.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with (
            collecting(("otlp",), os.environ, clock=Clock(), flush=0.05) as tracer,
            tracing.using(tracer),
            tracing.root("round"),
        ):
            pass
        assert _sending()
        await collector.received(1)
    for thread in _sending():
        await asyncio.to_thread(thread.join)
    assert not [record for record in caplog.records if record.name.startswith(("opentelemetry", "poller"))]


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_SPAN_LINK_COUNT_LIMIT", "many"), ("OTEL_BSP_MAX_QUEUE_SIZE", "0")],
)
def test_what_cannot_work_is_the_operators(otlp: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Law: a value that OpenTelemetry refuses is a configuration error."""
    otlp.setenv("OTEL_TRACES_EXPORTER", "otlp")
    otlp.setenv(name, value)
    with pytest.raises(ConfigurationError, match="traces"), configured_tracing(os.environ, clock=Clock()):
        pass


def test_the_console_gets_one_span_a_line(otlp: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Law: the console exporter writes to standard error, one span per line."""
    otlp.setenv("OTEL_TRACES_EXPORTER", "console")
    with configured_tracing(os.environ, clock=Clock()), tracing.root("round"):
        pass
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert '"name": "round"' in said.err


def test_a_root_is_one_whatever_else_is_traced() -> None:
    """Law: a span that another library has made current is no parent of the program's spans."""
    theirs = trace.set_span_in_context(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False)))
    token = context.attach(theirs)
    try:
        with recorded() as spans, tracing.root("a"):
            pass
    finally:
        context.detach(token)
    assert spans.one("a").parent is None


def test_a_provider_of_somebody_else_is_enough() -> None:
    """Law: the tracer works with any tracer provider of the SDK."""
    provider = TracerProvider(shutdown_on_exit=False)
    with tracing.using(OtelTracer(provider)), tracing.root("a") as span:
        assert span.carried
    provider.shutdown()


def _sending() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(("Otel", "last spans"))]


def _flag(carried: tracing.Carried) -> int:
    """The flag of sampling, without the other bits of the last octet."""
    return int(carried["traceparent"][-2:], 16) & 1


def _traced_once(links: int = 1) -> None:
    """Send a span, with more time for it than a daemon has at its end."""
    asked = exporters_of(os.environ)
    with (
        collecting(asked, os.environ, clock=Clock(), flush=PATIENCE * strain()) as tracer,
        tracing.using(tracer),
        tracing.root("round", links=[(EVENT, {})] * links),
    ):
        pass


def test_attributes_are_told() -> None:
    """Law: a span has the attributes given at its start and those set later."""
    with recorded() as spans, tracing.root("a", attributes={"x": 1}) as span:
        span.set_attributes({"y": "z"})
    assert told(spans.one("a")) == {"x": 1, "y": "z"}
