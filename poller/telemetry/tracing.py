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

from asyncio import CancelledError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol, Self

from poller.errors import PollerError

Value = str | bool | int | float
Attributes = Mapping[str, Value]
Carried = Mapping[str, str]
Link = tuple[Carried, Attributes]
"""What another span carries, and what is to be said of it."""

NO_ATTRIBUTES: Final[Attributes] = MappingProxyType({})
_CARRIES_NOTHING: Final[Carried] = MappingProxyType({})


class Kind(Enum):
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

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Span:
        """One that belongs to it begins."""
        ...

    def end(self) -> None:
        """It is over."""
        ...


class Tracer(Protocol):
    """Whoever makes spans."""

    def root(self, name: str, kind: Kind, attributes: Attributes, links: Sequence[Link]) -> Span:
        """A trace begins."""
        ...


class Nothing:
    """No span: where nobody traces. Also the block of one that is not."""

    carried = _CARRIES_NOTHING

    def tell(self, attributes: Attributes) -> None:
        """To nobody."""

    def fail(self, kind: str, text: str = "") -> None:
        """Nobody hears it."""

    def child(self, name: str, kind: Kind, attributes: Attributes) -> Nothing:  # noqa: ARG002 -- as a span's
        """Nothing again."""
        return self

    def end(self) -> None:
        """It never began."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NOTHING: Final = Nothing()

_tracer: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
_current: ContextVar[Span] = ContextVar("span", default=NOTHING)


class Current:
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
    name: str, *, kind: Kind = Kind.OWN, attributes: Attributes = NO_ATTRIBUTES, links: Sequence[Link] = ()
) -> Current | Nothing:
    """A block that is a trace of its own; ``links`` are the traces that it follows from."""
    tracer = _tracer.get()
    return NOTHING if tracer is None else Current(tracer.root(name, kind, attributes, links))


def child(name: str, *, kind: Kind = Kind.OWN, attributes: Attributes = NO_ATTRIBUTES) -> Current | Nothing:
    """A block that is a part of the current span."""
    parent = _current.get()
    return NOTHING if parent is NOTHING else Current(parent.child(name, kind, attributes))


def ids_of(carried: Carried) -> tuple[str, str]:
    """The ids of the trace and of the span that carries this, which is not nothing."""
    _, trace_id, span_id, _ = carried["traceparent"].split("-")
    return trace_id, span_id
