"""What OpenTelemetry says of its troubles is told seldom, and holds no credential."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from poller.telemetry.complaints import EVERY, complaining, secrets_of

ENVIRON = {
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20s3cret.one,x-key=s3cret-two",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=s3cret%2Fthree,spelt:s3cret-four",
}
LOG = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def said() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def test_one_in_a_minute(said: list[Any]) -> None:
    """Law: and the next says how many were left out; from the first moment on, whatever the clock shows."""
    clock = Clock()
    with complaining({}, clock):
        for _ in range(3):
            LOG.error("Failed to export %s batch", "span")
        clock.seconds += EVERY - 1
        LOG.warning("once more")
        clock.seconds += 1
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
    """Law: neither as it is written, nor decoded, nor the credential in it alone; not in an exception either."""
    with complaining(ENVIRON, Clock()):
        LOG.error("failed: %s", text)
    assert len(said) == 1
    assert "s3cret" not in said[0]["error"]


def test_exceptions_are_one_line(said: list[Any]) -> None:
    """Law: no traceback, which would show what it was called with."""
    with complaining(ENVIRON, Clock()):
        LOG.error("Exception while exporting.", exc_info=ValueError("with s3cret-two\nand more"))
    assert said[0]["error"] == "Exception while exporting. ValueError: with [redacted] and more"
    assert "exc_info" not in said[0]


def test_debug_is_not_told(said: list[Any]) -> None:
    """Law: these libraries are heard from WARNING up, at whatever level we log."""
    with complaining({}, Clock()):
        LOG.info("sent")
        logging.getLogger("urllib3").debug("sent")
    assert not said


def test_silence_lasts(said: list[Any]) -> None:
    """Law: once silenced, nothing of them is told by us or by anybody else."""
    handlers = logging.getLogger("opentelemetry").handlers
    before = handlers[:], logging.getLogger("opentelemetry").propagate
    try:
        with complaining({}, Clock()) as complaints:
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
    """Law: what was set for the block is as it was."""
    logger = logging.getLogger("opentelemetry")
    before = (logger.level, logger.propagate, logger.handlers[:])
    with complaining({}, Clock()):
        assert (logger.level, logger.propagate) == (logging.WARNING, False)
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_what_is_too_short_is_no_secret() -> None:
    """Law: or every letter would be taken out."""
    assert not secrets_of({"OTEL_EXPORTER_OTLP_HEADERS": "a=b"})
