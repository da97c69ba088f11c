"""Which span is current, and that nothing is where nobody traces."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.trace import StatusCode

from poller.errors import SourceUnavailable
from poller.telemetry import tracing
from tests.harness.waiting import turns
from tests.telemetry.recording import parent, recorded, told, traceparent


def test_without_a_tracer_there_is_nothing() -> None:
    """Law: every span is the same nothing, carries nothing, and hears whatever it is told."""
    assert not tracing.on()
    with tracing.root("round") as span, tracing.child("GET") as child:
        assert span is child is tracing.current() is tracing.NOTHING
        span.tell({"a": 1})
        span.fail("x", "y")
        assert not span.carried
        assert span.child("z", tracing.Kind.OWN, {}) is span
        span.end()


def test_work_that_belongs_to_no_trace_begins_none() -> None:
    """Law: a child without a parent is nothing."""
    with recorded() as spans:
        assert tracing.on()
        with tracing.child("GET"):
            pass
    assert not spans.all


def test_children_belong_to_the_span_that_is_current() -> None:
    """Law: the current one is that of the innermost block, and after it the one before."""
    with recorded() as spans:
        with tracing.root("round") as round_span, tracing.child("GET") as get:
            assert tracing.current() is get
        with tracing.root("round"), tracing.root("deliver") as deliver:
            pass
        assert tracing.current() is tracing.NOTHING
    assert parent(spans.one("GET")) == tracing.ids_of(round_span.carried)[1]
    assert parent(spans.one("deliver")) is None
    assert traceparent(spans.one("deliver")) == deliver.carried["traceparent"]
    assert len({traceparent(span).split("-")[1] for span in spans.all}) == 3


async def test_tasks_belong_to_the_span_in_which_they_were_started() -> None:
    """Law: side by side, each task has its own; what a task makes current is so for nobody else."""

    async def ask() -> str:
        with tracing.child("GET") as span:
            await turns()
            assert tracing.current() is span
            return tracing.ids_of(span.carried)[0]

    async def a_round() -> None:
        with tracing.root("round") as span:
            found = await asyncio.gather(asyncio.create_task(ask()), asyncio.create_task(ask()))
            assert {*found} == {tracing.ids_of(span.carried)[0]}

    with recorded() as spans:
        await asyncio.gather(a_round(), a_round())
    assert len(spans.named("GET")) == 4


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (SourceUnavailable("GET /x: no answer"), "SourceUnavailable", "GET /x: no answer"),
        (ValueError("with what a stranger has sent"), "ValueError", None),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
def test_a_block_that_an_error_leaves_has_failed(error: BaseException, kind: str, text: str | None) -> None:
    """Law: it passes on; only our own errors, which are fit to be shown, are repeated."""

    def fail() -> None:
        with tracing.root("round"):
            raise error

    with recorded() as spans, pytest.raises(type(error)):
        fail()
    span = spans.one("round")
    assert told(span) == {"error.type": kind}
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, text)
    assert tracing.current() is tracing.NOTHING
