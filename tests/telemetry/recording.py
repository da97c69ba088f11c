"""Spans of the real SDK, kept in memory for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from poller.telemetry.otel import OtelTracer
from poller.telemetry.tracing import using


class Recorded:
    """The spans that have ended, in that order."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        [span] = self.named(name)
        return span


@contextmanager
def recorded(sampler: Sampler = ALWAYS_ON) -> Iterator[Recorded]:
    """Trace while the block runs."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        with using(OtelTracer(provider)):
            yield Recorded(exporter)
    finally:
        provider.shutdown()


def told(span: ReadableSpan) -> dict[str, Any]:
    """The span's attributes."""
    return dict(span.attributes or {})


def traceparent(span: ReadableSpan) -> str:
    """The span's traceparent."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[str]:
    """The traceparents of the span's links."""
    contexts = [link.context for link in span.links]
    return [f"00-{one.trace_id:032x}-{one.span_id:016x}-{one.trace_flags:02x}" for one in contexts]


def parent(span: ReadableSpan) -> str | None:
    """The id of the span's parent."""
    return f"{span.parent.span_id:016x}" if span.parent else None
