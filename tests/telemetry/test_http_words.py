"""Requests in the words of the conventions."""

from __future__ import annotations

import pytest
from opentelemetry.trace import StatusCode

from poller.telemetry import tracing
from poller.telemetry.http_words import request_words, sent_again, tell_answer
from tests.telemetry.recording import recorded, told


@pytest.mark.parametrize(
    ("url", "full", "host", "port"),
    [
        ("https://api.example.org/v1/x?sinceDeltaToken=s3cret", "https://api.example.org/v1/x", "api.example.org", 443),
        ("http://me:s3cret@127.0.0.1:8090/%C3%A9#s3cret", "http://127.0.0.1:8090/%C3%A9", "127.0.0.1", 8090),
    ],
)
def test_a_place_and_no_secret(url: str, full: str, host: str, port: int) -> None:
    """Law: neither query, fragment nor user information is told."""
    assert request_words("GET", url) == {
        "http.request.method": "GET",
        "url.full": full,
        "server.address": host,
        "server.port": port,
    }


def test_what_is_no_url_is_left_out() -> None:
    """Law: telling never fails."""
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
    """Law: a status from 400 on, or none at all, is a failure; a redirect or a 304 is not."""
    with recorded() as spans, tracing.root("x") as span:
        tell_answer(span, status, text="what came", failure=failure)
    assert told(spans.one("x")) == said
    assert spans.one("x").status.status_code is code


def test_repetitions_are_numbered() -> None:
    """Law: from 1; the first request says nothing."""
    assert [sent_again(0), sent_again(2)] == [{}, {"http.request.resend_count": 2}]
