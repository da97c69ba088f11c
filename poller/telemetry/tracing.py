"""Spans of rounds, requests, commits and attempts, and whether they are recorded.

A *root* begins a trace; a *child* belongs to the span that is current where it begins. Which one is current goes with
the context of a task and of the tasks it starts. What a span *carries* for others is ``traceparent`` and, where there
is one, ``tracestate``, as W3C Trace Context spells them.

Traces are configured by the variables that every program with OpenTelemetry knows:

=================================================================  ======================================
variable                                                           traces are
=================================================================  ======================================
``OTEL_SDK_DISABLED=true``                                         off, whatever else is said
``OTEL_TRACES_EXPORTER=otlp``, ``console``, or both with a comma   sent there
``OTEL_TRACES_EXPORTER=none``                                      off
``OTEL_EXPORTER_OTLP_ENDPOINT``, ``…_TRACES_ENDPOINT``, any value  sent by OTLP, unless the others say no
=================================================================  ======================================

OpenTelemetry reads the others (headers, service name, sampler, limits) by itself. An empty variable counts as unset.

**Invariants**

- Without a tracer every span is :data:`NOTHING`, and nothing of OpenTelemetry is imported.
- A child without a parent is not recorded: work that belongs to no trace begins none.
- Recording never fails and never waits.
- Of a URL scheme, host and path are recorded, never the query and the user information: tokens stand in both.
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
"""What another span carries, and what is to be said of it."""

NO_ATTRIBUTES: Final[Attributes] = MappingProxyType({})
_CARRIES_NOTHING: Final[Carried] = MappingProxyType({})


class SpanScope(Enum):
    """Whether others are asked for something meanwhile."""

    OWN = "own"
    CLIENT = "client"


class Span:
    """Something that takes a while; this one is recorded nowhere.

    As a block it is the current span. It ends with the block, and has failed where an error leaves it.

    Attributes:
        carried: ``traceparent``, and ``tracestate`` where there is one; empty for a span that is not recorded.
    """

    __slots__ = ("carried",)

    def __init__(self, carried: Carried = _CARRIES_NOTHING) -> None:
        """Take what names it to others."""
        self.carried = carried

    def set_attributes(self, attributes: Attributes) -> None:
        """Add these attributes."""

    def fail(self, kind: str, text: str = "") -> None:
        """Mark it as failed: a word, and one line."""

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> Span:  # noqa: ARG002 -- for those recorded
        """Start a span that belongs to it."""
        return self

    def finish(self) -> None:
        """End it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        pass


class Tracer:
    """Starts spans; this one starts none that are recorded."""

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
        elif error is not None:  # others' texts may hold anything
            self.fail(type(error).__name__, str(error) if isinstance(error, PollerError) else "")
        self.finish()


@contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Trace by this one while the block runs, and in all tasks that are started in it."""
    before = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(before)


def on() -> bool:
    """Whether spans are recorded, where their attributes cost something."""
    return _tracer.get() is not _NO_TRACER


def current() -> Span:
    """The span that what runs now belongs to."""
    return _current.get()


def root(
    name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES, links: Sequence[Link] = ()
) -> Span:
    """A block that is a trace of its own; ``links`` are the traces that it follows from."""
    return _tracer.get().root(name, kind, attributes, links)


def child(name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES) -> Span:
    """A block that is a part of the current span."""
    return _current.get().child(name, kind, attributes)


def ids_of(carried: Carried) -> tuple[str, str]:
    """The ids of the trace and of the span that carries this, which is not nothing."""
    _, trace_id, span_id, _ = carried["traceparent"].split("-")
    return trace_id, span_id


_ERRORS_FROM: Final = 400
UNNAMED: Final = "_OTHER"
"""The word for a failure that has none."""


def request_words(method: str, url: str) -> dict[str, str | int]:
    """What is asked of whom; a URL that is none is left out."""
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
        status: of the answer; None where none came.
        text: one line that says what came.
        failure: a word for why none came.
    """
    if status is not None:
        span.set_attributes({"http.response.status_code": status})
    if status is None:
        span.fail(failure or UNNAMED, text)
    elif status >= _ERRORS_FROM:
        span.fail(str(status), text)


def sent_again(count: int) -> Attributes:
    """That this request is a repetition, the n-th; 0: it is none."""
    return {"http.request.resend_count": count} if count else {}


EXPORTER: Final = "OTEL_TRACES_EXPORTER"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL: Final = "http/protobuf"
_KNOWN: Final = ("otlp", "console", "none")


def exporters_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where traces are sent: ``otlp``, ``console``; empty: they are off.

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
    """Trace while the block runs, where the environment says so; at its end the rest is sent, within moments.

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
