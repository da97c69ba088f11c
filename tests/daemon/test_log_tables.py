"""The manual's tables of the round and attempt logs list every field that is logged, and no other."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from structlog.testing import capture_logs

from poller.daemon.round_runner import _report
from poller.delivery.delivery_tracker import AttemptReport
from poller.delivery.dispatcher import STEPS, report
from poller.delivery.retry import DeadLetter, Delivered, PauseSink, Step
from poller.delivery.sinks.base import Failure
from poller.source.feed import RoundMode, RoundResult
from poller.telemetry.logs import redacted
from poller.telemetry.metrics import RoundCosts
from tests import documents
from tests.delivery.outcomes import answered, unanswered

MANUAL: Final = documents.MANUAL.read_text("utf-8")
SHARED: Final = {"event", "log_level"}


def table(name: str) -> list[tuple[set[str], str]]:
    """Rows of the manual's table of this name: the names in the first column, and the rest."""
    found = re.search(rf"^\| `{name}` \| \|\n\|---\|---\|\n((?:\|.*\n)+)", MANUAL, re.MULTILINE)
    assert found, f"deploy/README.md has no table of {name}"
    rows = [line.strip("|").split(" | ", 1) for line in found[1].splitlines()]
    return [(set(re.findall(r"`([^`]+)`", first)), rest) for first, rest in rows]


@pytest.fixture
def spoken() -> Iterator[None]:
    log = logging.getLogger("poller.delivery")
    before = log.level
    log.setLevel("DEBUG")
    yield
    log.setLevel(before)


def test_of_rounds() -> None:
    """The table of ``round`` lists each logged field and explains each mode."""
    with capture_logs() as logs:
        _report(RoundResult(feed="a/x", mode=RoundMode.DELTA, ok=True), RoundCosts(), stream="s")
    rows = table("round")
    named = [name for names, _ in rows for name in names]
    assert sorted(named) == sorted({*logs[0], "trigger"} - SHARED)
    modes = next(text for names, text in rows if names == {"mode"})
    assert all(f"`{mode}`" in modes for mode in RoundMode)


@pytest.mark.usefixtures("spoken")
def test_of_attempts() -> None:
    """The table of ``attempt`` lists each logged field and names each step and each failure."""
    wait = timedelta(seconds=5)
    steps: list[Step] = [Delivered(), PauseSink(wait), DeadLetter("gone")]
    with capture_logs() as logs:
        for outcome in (answered(429), unanswered(Failure.DNS)):
            told = [AttemptReport("1-0", "id", 1, step, "2026-03-02T08:15:00Z", 1) for step in steps]
            report(told, outcome, feed="a/x", subscription="s", sink="h", now=datetime(2026, 3, 3, tzinfo=UTC))
    rows = table("attempt")
    named = [name for names, _ in rows for name in names]
    assert sorted(named) == sorted({name for line in logs for name in line} - SHARED)
    words = {word for names, text in rows for word in re.findall(r"`([^`]+)`", text) if names & {"step", "failure"}}
    assert words == {*STEPS.values(), *Failure}


@pytest.mark.parametrize("name", ["round", "attempt"])
def test_no_field_is_taken_for_a_secret(name: str) -> None:
    """No documented field has a name that the redaction takes for a secret."""
    fields = {field: "seen" for names, _ in table(name) for field in names}
    assert redacted(fields) == fields
