"""Laws of :mod:`poller.telemetry.logs`: logs are readable by machines or people, and hold no secret."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from poller.telemetry import tracing
from poller.telemetry.logs import Format, Level, LogOnce, redacted, set_up
from tests.telemetry.recording import recorded, traceparent


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(form: Format, level: Level = "info") -> io.StringIO:
    stream = io.StringIO()
    set_up(form, level, stream=stream)
    return stream


def test_json_is_one_object_a_line_with_time_and_level() -> None:
    """Law: in JSON each line is one object with time and level."""
    stream = lines("json")
    structlog.get_logger("poller.round").warning("round", feed="acme/contractTypes", seconds=0.25, error="a\nb")
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["event"] == "round"
    assert line["level"] == "warning"
    assert line["at"].endswith("Z")
    assert (line["feed"], line["seconds"], line["error"]) == ("acme/contractTypes", 0.25, "a\nb")


def test_console_is_plain_text_where_it_is_no_terminal() -> None:
    """Law: the console format has no colours unless its stream is a terminal."""
    stream = lines("console")
    structlog.get_logger().info("started", feeds=3)
    assert "started" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_taken_out_wherever_they_stand(form: Format) -> None:
    """Law: no credential, user information or query string is logged, by this program or by a library."""
    stream = lines(form)
    structlog.get_logger().error(
        "failed",
        url="https://user:hunter2@api.example.org/x?sinceDeltaToken=hunter3",
        header="Bearer hunter4",
        headers={"Authorization": "hunter5", "nested": ["redis://:hunter6@db:6379/0"]},
        password="hunter7",  # noqa: S106 -- made up
        secret_file="hunter8",  # noqa: S106 -- made up
        signed="whsec_hunter9==",
    )
    logging.getLogger("httpx").warning("GET %s", "https://api.example.org/y?token=hunter10")
    try:
        int("rediss://u:hunter11@db/0")
    except ValueError:
        structlog.get_logger().exception("broken")
    assert "hunter" not in stream.getvalue()
    assert "api.example.org/x" in stream.getvalue()


def test_what_only_sounds_like_a_secret_stays() -> None:
    """Law: a sentence that mentions a token is not redacted."""
    assert redacted("the bearer token is wrong") == "the bearer token is wrong"


def test_libraries_speak_from_warning_up() -> None:
    """Law: libraries log from level WARNING, since httpx would log each URL at INFO."""
    stream = lines("json")
    logging.getLogger("httpx").info("HTTP Request: GET https://api.example.org")
    logging.getLogger("apscheduler.executors").info("Running job")
    assert stream.getvalue() == ""


def test_libraries_speak_no_louder_than_the_program() -> None:
    """Law: with level error a library's warning is left out, too."""
    stream = lines("json", "error")
    logging.getLogger("httpx").warning("a warning")
    assert stream.getvalue() == ""
    logging.getLogger("httpx").error("an error")
    assert "an error" in stream.getvalue()


def test_what_is_no_secret_stays() -> None:
    """Law: redaction does not change values that are no secrets."""
    value = {"feed": "acme/x", "delta_token_kept": True, "pages": 3, "list": ("a", 1)}
    assert redacted(value) == {"feed": "acme/x", "delta_token_kept": True, "pages": 3, "list": ["a", 1]}


def test_people_read_first_what_it_is_about() -> None:
    """Law: a console line has a short time, then the subject and the result first, and leaves out most zeros."""
    stream = lines("console")
    log = structlog.get_logger()
    log.warning("round", trigger="turn", pages=0, created=0, seconds=0.25, error="no answer", ok=False, feed="acme/x")
    log.info("share", role="poll", ours=0, of=0)
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ \[warning +\] round +feed=acme/x ok=False error='no answer' .*", first)
    assert first.endswith(" trigger=turn seconds=0.25")
    assert second.endswith("role=poll ours=0 of=0")


def test_a_line_belongs_to_its_span() -> None:
    """Law: within a span each line, also of a library, has trace and span id; outside a span it has none."""
    stream = lines("json")
    with recorded() as spans, tracing.root("round"):
        structlog.get_logger().info("within")
        logging.getLogger("some.library").warning("within")
    structlog.get_logger().info("after")
    *within, after = [json.loads(line) for line in stream.getvalue().splitlines()]
    _, trace_id, span_id, _ = traceparent(spans.one("round")).split("-")
    assert [(line["trace_id"], line["span_id"]) for line in within] == [(trace_id, span_id)] * 2
    assert not [name for name in after if name.endswith("_id")]


def test_a_failure_is_logged_once_and_its_end_once() -> None:
    """Law: a repeated failure is one line, a different failure a second line, and recovery one line."""
    failure = LogOnce(structlog.get_logger("poller.test"), "not read", feed="a/x")
    with capture_logs() as logs:
        failure.worked()
        for error in ("gone", "gone", "refused"):
            failure.failed(error)
        failure.worked()
        failure.worked()
        failure.failed("refused")
    assert logs == [
        {"event": "not read", "log_level": "warning", "error": "gone", "feed": "a/x"},
        {"event": "not read", "log_level": "warning", "error": "refused", "feed": "a/x"},
        {"event": "works again", "log_level": "info", "failure": "not read", "feed": "a/x"},
        {"event": "not read", "log_level": "warning", "error": "refused", "feed": "a/x"},
    ]
