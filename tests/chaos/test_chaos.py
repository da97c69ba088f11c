"""The short form of ``python -m tests.chaos``: two strikes of each fault, and a control that must be caught.

The quick suite has one fault of each kind, a thorough run all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.catalogue import FAULTS, MOST
from tests.chaos.control import Control, play_control
from tests.chaos.plan import planned
from tests.chaos.playing import play

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.fault import Fault

_SEED = 1
_TIMES = 2
_QUICK = {"kill", "pause", "lost-reply", "redis-kill", "sinks"}
_LONGEST = 360  # seconds on a quiet machine: an older version is held back for a minute at each strike


@pytest.mark.timeout(_LONGEST)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=() if name in _QUICK else pytest.mark.thorough)
        for name, fault in FAULTS.items()
    ],
)
async def test_the_promises_hold(fault: Fault, tmp_path: Path) -> None:
    """Under each fault nothing is lost, doubled, misclassified or out of order, in streams and at sinks."""
    if reason := fault.missing():
        pytest.skip(reason)
    (chapter,) = planned({fault.name: _TIMES}, _SEED, most=MOST)
    outcome = await play(chapter, fault, tmp_path / "c")
    assert outcome.held, f"{outcome}\n{chapter}"
    assert outcome.changes


@pytest.mark.thorough
async def test_naive_programs_are_caught(tmp_path: Path) -> None:
    """The same scene, fault and judges report the faults of a naive program."""
    outcome = await play_control(Control("events", "lost-reply"), tmp_path / "c", _SEED, times=6)
    assert outcome.caught, outcome
    assert outcome.stream is not None
    assert outcome.stream.doubled, outcome
