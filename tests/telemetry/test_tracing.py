"""Laws of :mod:`poller.telemetry.tracing`: spans, and how OpenTelemetry's own errors are logged."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import StatusCode
from structlog.testing import capture_logs

from poller.errors import SourceUnavailable
from poller.telemetry import tracing
from poller.telemetry.otel import EVERY, exporter_logs, secrets_of
from poller.telemetry.tracing import record_response, request_words, sent_again
from tests.harness.clock import FakeClock
from tests.harness.waiting import turns
from tests.telemetry.recording import parent, recorded, told, traceparent

ENVIRON = {
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cret.one,x-key=s3cret-two",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=s3cret%2Fthree,spelt:s3cret-four",
}
LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


@pytest.fixture
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def test_one_in_a_minute(said: list[Any]) -> None:
    """Law: an exporter's errors are logged once a minute, with the number of those left out."""
    clock = FakeClock(monotonic=1000.0)
    with exporter_logs({}, clock):
        for _ in range(3):
            LOG.error("Failed to export %s batch", "span")
        clock.move(EVERY - 1)
        LOG.warning("once more")
        clock.move(1)
        logging.getLogger("urllib3.connectionpool").warning("and again")
    assert [(line["event"], line["error"], line.get("left_out")) for line in said] == [
        ("tracing fails", "Failed to export span batch", None),
        ("tracing fails", "and again", 3),
    ]
    assert {line["log_level"] for line in said} == {"warning"}


@pytest.mark.parametrize(
    "text",
    [
        "Header format invalid: authorization=Bearer%20s3cret.one,x-key=s3cret-two",
        "Invalid character in header value: 'Bearer s3cret.one'",
        "Invalid character in header value: 's3cret.one'",
        "value s3cret-two",
        "Header format invalid: spelt:s3cret-four",
        "value s3cret/three or s3cret%2Fthree",
        "http://me:s3cret@collector:4318/v1/traces?key=s3cret",
    ],
)
def test_no_header_of_ours_is_in_it(text: str, said: list[Any]) -> None:
    """Law: no logged error has a configured header, in plain or encoded form, nor its credential."""
    with exporter_logs(ENVIRON, FakeClock(monotonic=1000.0)):
        LOG.error("failed: %s", text)
    assert len(said) == 1
    assert "s3cret" not in said[0]["error"]


def test_exceptions_are_one_line(said: list[Any]) -> None:
    """Law: an exception is logged on one line without its traceback, which could show arguments."""
    with exporter_logs(ENVIRON, FakeClock(monotonic=1000.0)):
        LOG.error("Exception while exporting.", exc_info=ValueError("with s3cret-two\nand more"))
    assert said[0]["error"] == "Exception while exporting. ValueError: with [redacted] and more"
    assert "exc_info" not in said[0]


def test_debug_is_not_told(said: list[Any]) -> None:
    """Law: these libraries are logged from level WARNING, whatever the program's own level is."""
    with exporter_logs({}, FakeClock(monotonic=1000.0)):
        LOG.info("sent")
        logging.getLogger("urllib3").debug("sent")
    assert not said


def test_silence_lasts(said: list[Any]) -> None:
    """Law: once silenced, no complaint of the exporter is logged, also after tracing has ended."""
    handlers = logging.getLogger("opentelemetry").handlers
    before = handlers[:], logging.getLogger("opentelemetry").propagate
    try:
        with exporter_logs({}, FakeClock(monotonic=1000.0)) as complaints:
            complaints.silence()
            LOG.error("too late")
        LOG.error("too late")
        assert not logging.getLogger("opentelemetry").propagate
    finally:
        for name in ("opentelemetry", "urllib3", "requests"):
            logging.getLogger(name).removeHandler(complaints)
            logging.getLogger(name).propagate = before[1]
            logging.getLogger(name).setLevel(logging.NOTSET)
    assert not said


def test_they_speak_for_themselves_again() -> None:
    """Law: after the block the libraries' loggers are as before."""
    logger = logging.getLogger("opentelemetry")
    before = (logger.level, logger.propagate, logger.handlers[:])
    with exporter_logs({}, FakeClock(monotonic=1000.0)):
        assert (logger.level, logger.propagate) == (logging.WARNING, False)
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_what_is_too_short_is_no_secret() -> None:
    """Law: a short header value is not redacted, as it occurs in other texts."""
    assert not secrets_of({"OTEL_EXPORTER_OTLP_HEADERS": "a=b"})


# While OpenTelemetry is blocked, redis-py does not find it.

_LOOK = """
import sys
from poller.telemetry import block_opentelemetry, unblock_opentelemetry
if {hide}:
    block_opentelemetry()
import redis.asyncio
print(len([name for name, module in sys.modules.items() if name.startswith("opentelemetry") and module]))
unblock_opentelemetry()
import opentelemetry.sdk.metrics
print("found")
"""


def found(*, hide: bool) -> tuple[int, str]:
    """How many modules of OpenTelemetry redis-py imported, and whether they can be imported afterwards."""
    said = subprocess.run([sys.executable, "-c", _LOOK.format(hide=hide)], capture_output=True, text=True, check=True)
    count, after = said.stdout.split()
    return int(count), after


def test_redis_py_does_not_find_it_and_others_do() -> None:
    """Law: while OpenTelemetry is blocked, redis-py does not import it; unblocked, it can be imported."""
    assert found(hide=True) == (0, "found")
    assert found(hide=False)[0] > 0


# Requests, with the attribute names of OpenTelemetry's conventions.


@pytest.mark.parametrize(
    ("url", "full", "host", "port"),
    [
        ("https://api.example.org/v1/x?sinceDeltaToken=s3cret", "https://api.example.org/v1/x", "api.example.org", 443),
        ("http://me:s3cret@127.0.0.1:8090/%C3%A9#s3cret", "http://127.0.0.1:8090/%C3%A9", "127.0.0.1", 8090),
    ],
)
def test_a_place_and_no_secret(url: str, full: str, host: str, port: int) -> None:
    """Law: a span's URL has no query, fragment or user information."""
    assert request_words("GET", url) == {
        "http.request.method": "GET",
        "url.full": full,
        "server.address": host,
        "server.port": port,
    }


def test_what_is_no_url_is_left_out() -> None:
    """Law: a URL that cannot be parsed is left out without an error."""
    assert request_words("POST", "http://[x") == {"http.request.method": "POST"}


@pytest.mark.parametrize(
    ("status", "failure", "said", "code"),
    [
        (200, None, {"http.response.status_code": 200}, StatusCode.UNSET),
        (304, None, {"http.response.status_code": 304}, StatusCode.UNSET),
        (404, None, {"http.response.status_code": 404, "error.type": "404"}, StatusCode.ERROR),
        (None, "timeout", {"error.type": "timeout"}, StatusCode.ERROR),
        (None, None, {"error.type": "_OTHER"}, StatusCode.ERROR),
    ],
)
def test_how_it_ended(status: int | None, failure: str | None, said: dict[str, object], code: StatusCode) -> None:
    """Law: a status from 400 on, or no answer, marks the span as failed; a 200 or 304 does not."""
    with recorded() as spans, tracing.root("x") as span:
        record_response(span, status, text="what came", failure=failure)
    assert told(spans.one("x")) == said
    assert spans.one("x").status.status_code is code


def test_repetitions_are_numbered() -> None:
    """Law: repetitions are numbered from 1; the first request has no number."""
    assert [sent_again(0), sent_again(2)] == [{}, {"http.request.resend_count": 2}]


# The current span, and the null span without a tracer.


def test_without_a_tracer_there_is_nothing() -> None:
    """Law: without a tracer every span is the same null span, which ignores everything."""
    assert not tracing.on()
    with tracing.root("round") as span, tracing.child("GET") as child:
        assert span is child is tracing.current() is tracing.NOTHING
        span.set_attributes({"a": 1})
        span.fail("x", "y")
        assert not span.carried
        assert span.child("z", tracing.SpanScope.OWN, {}) is span
        span.finish()


def test_work_that_belongs_to_no_trace_begins_none() -> None:
    """Law: a child without a parent records no span."""
    with recorded() as spans:
        assert tracing.on()
        with tracing.child("GET"):
            pass
    assert not spans.all


def test_children_belong_to_the_span_that_is_current() -> None:
    """Law: the current span is that of the innermost block; after the block it is the previous one again."""
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
    """Law: a task's spans belong to the span in which the task was started."""

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
    """Law: an error that leaves a block fails its span and passes on; only the program's own errors are quoted."""

    def fail() -> None:
        with tracing.root("round"):
            raise error

    with recorded() as spans, pytest.raises(type(error)):
        fail()
    span = spans.one("round")
    assert told(span) == {"error.type": kind}
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, text)
    assert tracing.current() is tracing.NOTHING
