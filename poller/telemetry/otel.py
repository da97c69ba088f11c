"""Spans by OpenTelemetry, sent by a thread of their own. Imported only where traces are wanted.

**Invariants**

- Whatever happens to the collector is felt nowhere else. Spans that cannot be sent are dropped when too many wait; the
  end of the block waits for :data:`FLUSH` and no longer.
- What the exporter logs is passed on as one warning in :data:`EVERY` seconds; the next one says how many were left out.
  No value of the headers that authorize this program at the collector is in it.
- A trace's context is carried whether it is sampled or not: by its flag others know not to record their part of it.
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
"""Seconds that sending what is left may take at the end."""

MOST_LINKS: Final = 10_000  # as many events as a batch may hold
_LINKS: Final = "OTEL_SPAN_LINK_COUNT_LIMIT"
_KINDS: Final = {SpanScope.OWN: SpanKind.INTERNAL, SpanScope.CLIENT: SpanKind.CLIENT}
_spelling: Final = TraceContextTextMapPropagator()
EVERY: Final = 60.0
"""Seconds between two warnings."""

_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SECRET: Final = 4  # characters; what is shorter guards nothing
_SPEAKERS: Final = ("opentelemetry", "urllib3", "requests")  # the last two are what it sends by

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
        """Mark it as failed."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, one_line(without_credentials(text)) or None))

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> OtelSpan:
        """Start a span that belongs to it."""
        began = self._tracer.start_span(name, self._context, kind=_KINDS[kind], attributes=attributes)
        return OtelSpan(self._tracer, began)

    def finish(self) -> None:
        """End it."""
        self._span.end()


class OtelTracer(Tracer):
    """Starts spans of OpenTelemetry."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        """Take what makes spans."""
        self._tracer = provider.get_tracer("poller", __version__)

    def root(self, name: str, kind: SpanScope, attributes: Attributes, links: Sequence[Link]) -> OtelSpan:
        """Start a trace, whatever else is current."""
        began = self._tracer.start_span(
            name, Context(), kind=_KINDS[kind], attributes=attributes, links=list(_linked(links))
        )
        return OtelSpan(self._tracer, began)


def _linked(links: Sequence[Link]) -> Iterator[trace.Link]:
    """Those that name a span; what others have written into an event may be anything."""
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
    """A tracer whose spans are sent where they are ``asked`` for, until the end of the block.

    Args:
        asked: as :func:`poller.telemetry.tracing.exporters_of` says.
        environ: the environment, of which OpenTelemetry reads the process' own by itself.
        clock: of this process.
        flush: seconds that sending what is left may take.

    Raises:
        ConfigurationError: a variable has a value that it may not have.
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
                logs.silence()  # of what is ended by force now
                if exporter is not None:
                    exporter.shutdown()  # type: ignore[no-untyped-call] # it has no annotations


def _provider(exporter: OTLPSpanExporter | None, environ: Mapping[str, str], *, console: bool) -> TracerProvider:
    limits = SpanLimits() if environ.get(_LINKS) else SpanLimits(max_links=MOST_LINKS)
    provider = TracerProvider(resource=_resource(), span_limits=limits, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    if console:  # standard error, as all logs of the work: output belongs to the commands
        lines = ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(SimpleSpanProcessor(lines))
    return provider


def _resource() -> Resource:
    resource = Resource.create({SERVICE_VERSION: __version__})
    unnamed = str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return resource.merge(Resource({SERVICE_NAME: "poller"})) if unnamed else resource


def _shut(provider: TracerProvider, within: float) -> bool:
    """Send what is left; whether that was done in time."""
    ending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    ending.start()
    ending.join(within)
    return not ending.is_alive()


class ExporterLogFilter(logging.Handler):
    """Takes the place of what these libraries would log by themselves."""

    def __init__(self, secrets: tuple[str, ...], clock: Clock) -> None:
        """Take what is never shown, and the clock of this process."""
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._clock = clock
        self._silent_until: float | None = None
        self._left_out = 0
        self.silent = False

    def silence(self) -> None:
        """Log nothing any more."""
        self.silent = True

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record, or count it. The lock of a handler is held here."""
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
    """While the block runs, what OpenTelemetry and its transports log goes through this filter.

    After it they speak as before, unless it was silenced: then something of them is left, and stays silent.
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
    """All that the headers for the collector hold, as it is written, decoded, and in its parts."""
    written = [environ.get(name, "").strip() for name in _HEADERS]
    pairs = [pair.strip() for text in written for pair in text.split(",")]  # one without "=" is complained of by itself
    values = [pair.partition("=")[2].strip() for pair in pairs]
    found = {one for text in (*written, *pairs, *values) for one in (text, unquote(text))}
    found |= {part for one in found for part in one.split()[1:]}
    return tuple(one for one in found if len(one) >= _SECRET)
