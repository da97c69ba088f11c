"""Spans: what a round and an attempt tell of themselves to whoever collects traces.

Theory of operation
-------------------
A span is something that takes a while, with attributes and an outcome. A *root* begins a trace of its own; a *child*
belongs to the span that is current where it begins. Which one is current goes with the context of a task and of those
that it starts, so nobody hands spans around. What a span hands on to others is what it *carries*: ``traceparent`` and,
where there is one, ``tracestate``, as W3C Trace Context spells them.

The law: where no tracer is in use, every span is :data:`NOTHING`, which does nothing and carries nothing. A child
without a parent is nothing, too: work that belongs to no trace begins none. Telling never fails and never waits.

Refuses to know who collects, and how (:mod:`poller.telemetry.otel` does), and what is told.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol, Self
from urllib.parse import unquote

import structlog
from yarl import URL

from poller.errors import PollerError
from poller.text import hidden, one_line, without_credentials

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


class Span(Protocol):
    """Something that takes a while; it began when it was made."""

    @property
    def carried(self) -> Carried:
        """What names it to others: ``traceparent``, and ``tracestate`` where there is one; empty for nothing."""
        ...

    def tell(self, attributes: Attributes) -> None:
        """Say this of it."""
        ...

    def fail(self, kind: str, text: str = "") -> None:
        """Say that it went wrong: in a word, and in one line."""
        ...

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> Span:
        """One that belongs to it begins."""
        ...

    def end(self) -> None:
        """It is over."""
        ...


class Tracer(Protocol):
    """Whoever makes spans."""

    def root(self, name: str, kind: SpanScope, attributes: Attributes, links: Sequence[Link]) -> Span:
        """A trace begins."""
        ...


class NullSpan:
    """No span: where nobody traces. Also the block of one that is not."""

    carried = _CARRIES_NOTHING

    def tell(self, attributes: Attributes) -> None:
        """To nobody."""

    def fail(self, kind: str, text: str = "") -> None:
        """Nobody hears it."""

    def child(self, name: str, kind: SpanScope, attributes: Attributes) -> NullSpan:  # noqa: ARG002 -- as a span's
        """Nothing again."""
        return self

    def end(self) -> None:
        """It never began."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NOTHING: Final = NullSpan()

_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
_current: ContextVar[Span] = ContextVar("span", default=NOTHING)


class ActiveSpan:
    """A block in which a span is the current one; it ends with the block, and has failed where an error leaves it."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._before: Token[Span] | None = None

    def __enter__(self) -> Span:
        self._before = _current.set(self._span)
        return self._span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._before is not None:
            _current.reset(self._before)
        if isinstance(error, CancelledError):
            self._span.fail("cancelled")
        elif error is not None:  # others' texts may hold anything
            self._span.fail(type(error).__name__, str(error) if isinstance(error, PollerError) else "")
        self._span.end()


@contextmanager
def using(tracer: Tracer) -> Iterator[None]:
    """Trace by this one while the block runs, and in all tasks that are started in it."""
    before = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(before)


def on() -> bool:
    """Whether anybody traces, where it costs something to find out what to tell."""
    return _tracer.get() is not None


def current() -> Span:
    """The span that what runs now belongs to."""
    return _current.get()


def root(
    name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES, links: Sequence[Link] = ()
) -> ActiveSpan | NullSpan:
    """A block that is a trace of its own; ``links`` are the traces that it follows from."""
    tracer = _tracer.get()
    return NOTHING if tracer is None else ActiveSpan(tracer.root(name, kind, attributes, links))


def child(
    name: str, *, kind: SpanScope = SpanScope.OWN, attributes: Attributes = NO_ATTRIBUTES
) -> ActiveSpan | NullSpan:
    """A block that is a part of the current span."""
    parent = _current.get()
    return NOTHING if parent is NOTHING else ActiveSpan(parent.child(name, kind, attributes))


def ids_of(carried: Carried) -> tuple[str, str]:
    """The ids of the trace and of the span that carries this, which is not nothing."""
    _, trace_id, span_id, _ = carried["traceparent"].split("-")
    return trace_id, span_id


# A request and its answer as attributes of a span, in the words of OpenTelemetry's HTTP conventions.
#
# Law: of a URL its place is told, never its query and its user information: tokens stand in both. Pure.

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


def tell_answer(span: Span, status: int | None, *, text: str, failure: str | None = None) -> None:
    """Tell how it ended.

    Args:
        span: of the exchange.
        status: of the answer; None where none came.
        text: one line that says what came.
        failure: a word for why none came.
    """
    if status is not None:
        span.tell({"http.response.status_code": status})
    if status is None:
        span.fail(failure or UNNAMED, text)
    elif status >= _ERRORS_FROM:
        span.fail(str(status), text)


def sent_again(count: int) -> Attributes:
    """That this request is a repetition, the n-th; 0: it is none."""
    return {"http.request.resend_count": count} if count else {}


# What OpenTelemetry has to say of its own troubles, told in our log: seldom, and without what it was given to keep.
#
# Law: one warning in :data:`EVERY` seconds, however often a collector fails; the next one says how many were left
# out. No
# value of the headers that authorize us at the collector is in it, however the text has come by it.

EVERY: Final = 60.0
"""Seconds between two warnings."""

_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SECRET: Final = 4  # characters; what is shorter guards nothing
_SPEAKERS: Final = ("opentelemetry", "urllib3", "requests")  # the last two are what it sends by

_log = structlog.get_logger("poller.tracing")


class ExporterLogFilter(logging.Handler):
    """Takes the place of what these libraries would log by themselves."""

    def __init__(self, secrets: tuple[str, ...], clock: Callable[[], float]) -> None:
        """Take what is never shown, and seconds that only go forward."""
        super().__init__(logging.WARNING)
        self._secrets = secrets
        self._clock = clock
        self._silent_until: float | None = None
        self._left_out = 0
        self.silent = False

    def silence(self) -> None:
        """Tell nothing any more."""
        self.silent = True

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it, or count it. The lock of a handler is held here."""
        if self.silent:
            return
        now = self._clock()
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
def complaining(environ: Mapping[str, str], clock: Callable[[], float]) -> Iterator[ExporterLogFilter]:
    """While the block runs, all that these libraries say comes through here.

    After it they speak as before, unless it was silenced: then something of them is left, and stays silent.
    """
    complaints = ExporterLogFilter(secrets_of(environ), clock)
    speakers = [logging.getLogger(name) for name in _SPEAKERS]
    before = [(speaker.level, speaker.propagate) for speaker in speakers]
    for speaker in speakers:
        speaker.addHandler(complaints)
        speaker.setLevel(logging.WARNING)
        speaker.propagate = False
    try:
        yield complaints
    finally:
        if not complaints.silent:
            for speaker, (level, propagate) in zip(speakers, before, strict=True):
                speaker.removeHandler(complaints)
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
