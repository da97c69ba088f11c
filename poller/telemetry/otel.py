"""Spans of OpenTelemetry, sent by a thread of their own. Imported only if traces are on.

**Invariants**

- A failing collector affects nothing else. Spans that cannot be sent are dropped when too many wait; the end of the
  block waits for :data:`FLUSH` at most.
- Messages of the exporter become one warning per :data:`EVERY` seconds, with the number of suppressed ones. It contains
  no value of the headers that authorize this program at the collector.
- A trace's context is propagated whether the trace is sampled or not; its flag tells others not to record it.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from poller import __version__
from poller.clock import Clock
from poller.errors import ConfigurationError
from poller.telemetry.tracing import Attributes, Link, RecordedSpan, SpanScope, Tracer
from poller.text import hidden, one_line, without_credentials

FLUSH: Final = 2.0
"""Seconds for sending the remaining spans at the end."""

MOST_LINKS: Final = 10_000  # as many events as a batch may hold
_LINKS: Final = "OTEL_SPAN_LINK_COUNT_LIMIT"
_KINDS: Final = {SpanScope.OWN: SpanKind.INTERNAL, SpanScope.CLIENT: SpanKind.CLIENT}
_spelling: Final = TraceContextTextMapPropagator()
EVERY: Final = 60.0
"""Seconds between two warnings."""

_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SECRET: Final = 4  # characters; shorter values are no secrets
_SPEAKERS: Final = ("opentelemetry", "urllib3", "requests")  # the last two are its transports

_log = structlog.get_logger("poller.tracing")


class OtelSpan(RecordedSpan):
    """A span of OpenTelemetry."""

    __slots__ = ("_context", "_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span, Context())
        carried: dict[str, str] = {}
        _spelling.inject(carried, self._context)
        super().__init__(carried)

    def set_attributes(self, attributes: Attributes) -> None:
        """Add these attributes."""
        self._span.set_attributes(attributes)

    def fail(self, kind: str, text: str = "") -> None:
        """Mark the span as failed."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, one_line(without_credentials(text)) or None))

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> OtelSpan:
        """Start a child span."""
        began = self._tracer.start_span(name, self._context, kind=_KINDS[kind], attributes=attributes)
        return OtelSpan(self._tracer, began)

    def finish(self) -> None:
        """End the span."""
        self._span.end()


class OtelTracer(Tracer):
    """Starts spans of OpenTelemetry."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        """Start spans with this tracer."""
        self._tracer = provider.get_tracer("poller", __version__)

    def root(self, name: str, kind: SpanScope, attributes: Attributes, links: Sequence[Link]) -> OtelSpan:
        """Start a trace, independent of the current span."""
        began = self._tracer.start_span(
            name, Context(), kind=_KINDS[kind], attributes=attributes, links=list(_linked(links))
        )
        return OtelSpan(self._tracer, began)


def _linked(links: Sequence[Link]) -> Iterator[trace.Link]:
    """The valid links; the context in an event may be arbitrary text."""
    for carried, attributes in links:
        named = trace.get_current_span(_spelling.extract(carried, Context())).get_span_context()
        if named.is_valid:
            yield trace.Link(named, attributes)


@contextmanager
def collecting(
    asked: Sequence[str],
    environ: Mapping[str, str],
    *,
    clock: Clock,
    flush: float = FLUSH,
) -> Iterator[OtelTracer]:
    """A tracer whose spans are sent to these exporters, until the end of the block.

    Args:
        asked: from :func:`poller.telemetry.tracing.exporters_of`.
        environ: the environment; OpenTelemetry itself reads that of the process.
        clock: of this process.
        flush: seconds for sending the remaining spans.

    Raises:
        ConfigurationError: a variable has an invalid value.
    """
    with exporter_logs(environ, clock) as logs:
        try:
            exporter = OTLPSpanExporter() if "otlp" in asked else None
            provider = _provider(exporter, environ, console="console" in asked)
        except (ValueError, RuntimeError, OSError) as wrong:
            raise ConfigurationError(f"the environment asks for traces in a way that does not work: {wrong}") from None
        try:
            yield OtelTracer(provider)
        finally:
            if not _shut(provider, flush):
                logs.silence()  # of the exporter that is ended by force now
                if exporter is not None:
                    exporter.shutdown()  # type: ignore[no-untyped-call] # it has no annotations


def _provider(exporter: OTLPSpanExporter | None, environ: Mapping[str, str], *, console: bool) -> TracerProvider:
    limits = SpanLimits() if environ.get(_LINKS) else SpanLimits(max_links=MOST_LINKS)
    provider = TracerProvider(resource=_resource(), span_limits=limits, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    if console:  # standard error, like all logs; standard output belongs to the commands
        lines = ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(SimpleSpanProcessor(lines))
    return provider


def _resource() -> Resource:
    resource = Resource.create({SERVICE_VERSION: __version__})
    unnamed = str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return resource.merge(Resource({SERVICE_NAME: "poller"})) if unnamed else resource


def _shut(provider: TracerProvider, within: float) -> bool:
    """Send the remaining spans. True: all were sent in time."""
    ending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    ending.start()
    ending.join(within)
    return not ending.is_alive()


class ExporterLogFilter(logging.Handler):
    """Replaces the logging of OpenTelemetry and its transports."""

    def __init__(self, secrets: tuple[str, ...], clock: Clock) -> None:
        """Never show these secrets; ``clock``: of this process."""
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._clock = clock
        self._silent_until: float | None = None
        self._left_out = 0
        self.silent = False

    def silence(self) -> None:
        """Stop logging."""
        self.silent = True

    def emit(self, record: logging.LogRecord) -> None:
        """Log or count a record. The handler's lock is held here."""
        if self.silent:
            return
        now = self._clock.monotonic()
        if self._silent_until is not None and now < self._silent_until:
            self._left_out += 1
            return
        self._silent_until = now + EVERY
        left_out, self._left_out = self._left_out, 0
        more = {"left_out": left_out} if left_out else {}
        _log.warning("tracing fails", error=self._text(record), **more)

    def _text(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return one_line(without_credentials(hidden(text, *self._secrets)))


@contextmanager
def exporter_logs(environ: Mapping[str, str], clock: Clock) -> Iterator[ExporterLogFilter]:
    """Send the logs of OpenTelemetry and its transports through this filter while the block runs.

    Afterwards they log as before, unless the filter was silenced, because a thread of theirs may still run.
    """
    logs = ExporterLogFilter(secrets_of(environ), clock)
    speakers = [logging.getLogger(name) for name in _SPEAKERS]
    before = [(speaker.level, speaker.propagate) for speaker in speakers]
    for speaker in speakers:
        speaker.addHandler(logs)
        speaker.setLevel(logging.WARNING)
        speaker.propagate = False
    try:
        yield logs
    finally:
        if not logs.silent:
            for speaker, (level, propagate) in zip(speakers, before, strict=True):
                speaker.removeHandler(logs)
                speaker.setLevel(level)
                speaker.propagate = propagate


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of the headers for the collector: as written, decoded, and in parts."""
    written = [environ.get(name, "").strip() for name in _HEADERS]
    pairs = [pair.strip() for text in written for pair in text.split(",")]  # OpenTelemetry reports others
    values = [pair.partition("=")[2].strip() for pair in pairs]
    found = {one for text in (*written, *pairs, *values) for one in (text, unquote(text))}
    found |= {part for one in found for part in one.split()[1:]}
    return tuple(one for one in found if len(one) >= _SECRET)
