"""Spans of rounds, requests, commits and attempts, and whether they are recorded.

A *root* begins a trace; a *child* belongs to the span that is current when it begins. The current span belongs to the
context of a task and of the tasks that it starts. A span *carries* ``traceparent`` and possibly ``tracestate`` for
other programs (W3C Trace Context).

Traces are configured by the usual variables of OpenTelemetry:

=================================================================  ======================================
variable                                                           traces are
=================================================================  ======================================
``OTEL_SDK_DISABLED=true``                                         off, whatever else is said
``OTEL_TRACES_EXPORTER=otlp``, ``console``, or both with a comma   sent there
``OTEL_TRACES_EXPORTER=none``                                      off
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``…_TRACES_ENDPOINT``, any value  sent by OTLP, unless the others say no
=================================================================  ======================================

OpenTelemetry itself reads the others (headers, service name, sampler, limits). An empty variable counts as unset.

**Invariants**

- Without a tracer every span is :data:`NOTHING`, and OpenTelemetry is not imported.
- A child without a parent is not recorded: work that belongs to no trace begins none.
- Recording never fails and never waits.
- Scheme, host and path of a URL are recorded, never its query and user information, which may hold tokens.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from importlib import import_module
from types import MappingProxyType
from typing import Final, Self

from yarl import URL

from poller.clock import Clock
from poller.errors import ConfigurationError, PollerError
from poller.telemetry import unblock_opentelemetry

Value = str | bool | int | float
Attributes = Mapping[str, Value]
Carried = Mapping[str, str]
Link = tuple[Carried, Attributes]
"""A link to another span: what it carries, and attributes of the link."""

NO_ATTRIBUTES: Final[Attributes] = MappingProxyType({})
_CARRIES_NOTHING: Final[Carried] = MappingProxyType({})


class SpanScope(Enum):
    """Whether the span is a request to another program."""

    OWN = "own"
    CLIENT = "client"


class Span:
    """A span; this one is not recorded.

    Used as a block, it is the current span. It ends with the block, and has failed if an error leaves the block.

    Attributes:
        carried: ``traceparent`` and possibly ``tracestate``; empty: the span is not recorded.
    """

    __slots__ = ("carried",)

    def __init__(self, carried: Carried = _CARRIES_NOTHING) -> None:
        """Begin with the context for other programs."""
        self.carried = carried

    def set_attributes(self, attributes: Attributes) -> None:
        """Add these attributes."""

    def fail(self, kind: str, text: str = "") -> None:
        """Mark the span as failed: a word, and one line of text."""

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> Span:  # noqa: ARG002 -- for those recorded
        """Start a child span."""
        return self

    def finish(self) -> None:
        """End the span."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        pass


class Tracer:
    """Starts spans; this one starts spans that are not recorded."""

    def root(
        self,
        name: str,  # noqa: ARG002 -- for those recorded, as the others
        kind: SpanScope,  # noqa: ARG002
        attributes: Attributes,  # noqa: ARG002
        links: Sequence[Link],  # noqa: ARG002
    ) -> Span:
        """Start a trace."""
        return NOTHING


NOTHING: Final = Span()
_NO_TRACER: Final = Tracer()

_tracer: ContextVar[Tracer] = ContextVar("tracer", default=_NO_TRACER)
_current: ContextVar[Span] = ContextVar("span", default=NOTHING)


class RecordedSpan(Span):
    """A span that is recorded, and current within its block."""

    __slots__ = ("_before",)

    def __enter__(self) -> Self:
        self._before = _current.set(self)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        _current.reset(self._before)
        if isinstance(error, CancelledError):
            self.fail("cancelled")
        elif error is not None:  # the error's text may contain anything
            self.fail(type(error).__name__, str(error) if isinstance(error, PollerError) else "")
        self.finish()


@contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Use this tracer while the block runs, and in all tasks started in it."""
    before = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(before)


def on() -> bool:
    """Whether spans are recorded; check it before computing expensive attributes."""
    return _tracer.get() is not _NO_TRACER


def current() -> Span:
    """The current span."""
    return _current.get()


def root(
    name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES, links: Sequence[Link] = ()
) -> Span:
    """Start a trace; ``links``: the traces that it follows from."""
    return _tracer.get().root(name, kind, attributes, links)


def child(name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES) -> Span:
    """Start a child of the current span."""
    return _current.get().child(name, kind, attributes)


def ids_of(carried: Carried) -> tuple[str, str]:
    """The ids of trace and span in this context, which is not empty."""
    _, trace_id, span_id, _ = carried["traceparent"].split("-")
    return trace_id, span_id


_ERRORS_FROM: Final = 400
UNNAMED: Final = "_OTHER"
"""The word for other failures."""


def request_words(method: str, url: str) -> dict[str, str | int]:
    """The attributes of a request; an invalid URL is left out."""
    try:
        place = URL(url, encoded=True).with_user(None).with_query(None).with_fragment(None)
    except ValueError:
        return {"http.request.method": method}
    words: dict[str, str | int] = {"http.request.method": method, "url.full": str(place)}
    if place.host is not None and place.port is not None:
        words |= {"server.address": place.host, "server.port": place.port}
    return words


def record_response(span: Span, status: int | None, *, text: str, failure: str | None = None) -> None:
    """Record how an exchange ended.

    Args:
        span: of the exchange.
        status: of the response; None: there was none.
        text: one line that describes the response.
        failure: a word for the reason why there was none.
    """
    if status is not None:
        span.set_attributes({"http.response.status_code": status})
    if status is None:
        span.fail(failure or UNNAMED, text)
    elif status >= _ERRORS_FROM:
        span.fail(str(status), text)


def sent_again(count: int) -> Attributes:
    """The attribute of the n-th repetition of a request; 0: no repetition."""
    return {"http.request.resend_count": count} if count else {}


EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_KNOWN: Final = ("otlp", "console", "none")


def exporters_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters of traces: ``otlp``, ``console``; empty: traces are off.

    Raises:
        ConfigurationError: a variable has an unknown value.
    """
    if environ.get(_DISABLED, "").strip().lower() == "true":
        return ()
    said = environ.get(EXPORTER, "").strip().lower()
    if not said:
        said = "otlp" if any(environ.get(name, "").strip() for name in ENDPOINTS) else "none"
    asked = tuple(dict.fromkeys(one.strip() for one in said.split(",")))
    for one in asked:
        if one not in _KNOWN or (one == "none" and len(asked) > 1):
            raise ConfigurationError(f'{EXPORTER} is "{said}"; expected otlp, console, otlp,console or none')
    if "otlp" in asked:
        _check_protocol(environ)
    return tuple(one for one in asked if one != "none")


@contextmanager
def configured_tracing(environ: Mapping[str, str], *, clock: Clock) -> Iterator[None]:
    """Record traces while the block runs, if the environment says so. Its end sends the remaining spans.

    Raises:
        ConfigurationError: a variable has an unknown value, or OpenTelemetry is not installed.
    """
    asked = exporters_of(environ)
    if not asked:
        yield
        return
    unblock_opentelemetry()
    try:
        otel = import_module("poller.telemetry.otel")  # an extra
    except ImportError as missing:
        raise ConfigurationError(
            f"the environment asks for traces ({_why(environ)}), and OpenTelemetry is not installed ({missing}): "
            "pip install 'poller[otel]', or set OTEL_SDK_DISABLED=true"
        ) from None
    with otel.collecting(asked, environ, clock=clock) as tracer, using(tracer):
        yield


def _why(environ: Mapping[str, str]) -> str:
    return next(name for name in (EXPORTER, *ENDPOINTS) if environ.get(name, "").strip())


def _check_protocol(environ: Mapping[str, str]) -> None:
    for name in _PROTOCOLS:
        said = environ.get(name, "").strip().lower()
        if said and said != _PROTOCOL:
            raise ConfigurationError(f'{name} is "{said}"; expected {_PROTOCOL}: traces are sent by no other')
        if said:
            return
