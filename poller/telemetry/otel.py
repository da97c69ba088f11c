"""Spans by OpenTelemetry, sent by a thread of their own. Imported only where traces are asked for.

The law: nothing that becomes of the collector is felt elsewhere. Spans that cannot be sent are dropped when too many
wait; the end of the block waits for :data:`FLUSH` and no longer; what goes wrong is told as
:mod:`poller.telemetry.tracing` has it.

A trace's context is carried whether it is sampled or not: the flag in it is how others learn not to record their part
of a trace that has no beginning.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from poller import __version__
from poller.errors import ConfigurationError
from poller.telemetry.tracing import Attributes, Carried, Link, SpanScope, complaining
from poller.text import one_line, without_credentials

FLUSH: Final = 2.0
"""Seconds that sending what is left may take at the end."""

MOST_LINKS: Final = 10_000  # as many events as a batch may hold
_LINKS: Final = "OTEL_SPAN_LINK_COUNT_LIMIT"
_KINDS: Final = {SpanScope.OWN: SpanKind.INTERNAL, SpanScope.CLIENT: SpanKind.CLIENT}
_spelling: Final = TraceContextTextMapPropagator()


class OtelSpan:
    """See :class:`poller.telemetry.tracing.Span`."""

    __slots__ = ("_context", "_span", "_tracer", "carried")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span, Context())
        carried: dict[str, str] = {}
        _spelling.inject(carried, self._context)
        self.carried: Carried = carried

    def tell(self, attributes: Attributes) -> None:
        """Say this of it."""
        self._span.set_attributes(attributes)

    def fail(self, kind: str, text: str = "") -> None:
        """Say that it went wrong."""
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, one_line(without_credentials(text)) or None))

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> OtelSpan:
        """One that belongs to it begins."""
        began = self._tracer.start_span(name, self._context, kind=_KINDS[kind], attributes=attributes)
        return OtelSpan(self._tracer, began)

    def end(self) -> None:
        """It is over."""
        self._span.end()


class OtelTracer:
    """See :class:`poller.telemetry.tracing.Tracer`."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        """Take what makes spans."""
        self._tracer = provider.get_tracer("poller", __version__)

    def root(self, name: str, kind: SpanScope, attributes: Attributes, links: Sequence[Link]) -> OtelSpan:
        """A trace begins, whatever else is current."""
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
    clock: Callable[[], float] = time.monotonic,
    flush: float = FLUSH,
) -> Iterator[OtelTracer]:
    """A tracer whose spans are sent where they are ``asked`` for, until the end of the block.

    Args:
        asked: as :func:`poller.telemetry.asking.asked_for` says.
        environ: the environment, of which OpenTelemetry reads the process' own by itself.
        clock: seconds that only go forward.
        flush: seconds that sending what is left may take.

    Raises:
        ConfigurationError: a variable has a value that it may not have.
    """
    with complaining(environ, clock) as complaints:
        try:
            exporter = OTLPSpanExporter() if "otlp" in asked else None
            provider = _provider(exporter, environ, console="console" in asked)
        except (ValueError, RuntimeError, OSError) as wrong:
            raise ConfigurationError(f"the environment asks for traces in a way that does not work: {wrong}") from None
        try:
            yield OtelTracer(provider)
        finally:
            if not _shut(provider, flush):
                complaints.silence()  # of what is ended by force now
                if exporter is not None:
                    exporter.shutdown()  # type: ignore[no-untyped-call] # it has no annotations


def _provider(exporter: OTLPSpanExporter | None, environ: Mapping[str, str], *, console: bool) -> TracerProvider:
    limits = SpanLimits() if environ.get(_LINKS) else SpanLimits(max_links=MOST_LINKS)
    provider = TracerProvider(resource=_resource(), span_limits=limits, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    if console:  # standard error, as all that is told of the work: output belongs to the commands
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
