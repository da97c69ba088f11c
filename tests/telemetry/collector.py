"""Spans that a collector received by OTLP over HTTP, decoded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.receiver import Received

_VALUES = ("string_value", "bool_value", "int_value", "double_value")


@dataclass(frozen=True, slots=True)
class Span:
    """A span as it was sent; its ids are hexadecimal."""

    name: str
    kind: int
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    status: int
    resource: dict[str, Any]

    @property
    def ids(self) -> tuple[str, str]:
        """Trace id and span id; the flags are not sent."""
        return self.trace, self.id


def spans_of(requests: Iterable[Received]) -> list[Span]:
    """The spans of all requests, in the order of sending."""
    found = []
    for request in requests:
        assert request.header("content-type") == "application/x-protobuf"
        for one in ExportTraceServiceRequest.FromString(request.body).resource_spans:
            resource = _attributes(one.resource.attributes)
            found += [_span(span, resource) for scope in one.scope_spans for span in scope.spans]
    return found


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _attributes(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        span.status.code,
        resource,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {
        pair.key: next(getattr(pair.value, name) for name in _VALUES if pair.value.HasField(name)) for pair in pairs
    }
