"""Runs a chapter from its first strike to its verdict, and keeps the evidence where something did not hold."""

from __future__ import annotations

import shutil
import time
import traceback
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.chaos.outcome import Outcome
from tests.chaos.stage import Cast, Unpublished
from tests.chaos.staging import staged

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.fault import Fault
    from tests.chaos.plan import Chapter


async def play(chapter: Chapter, fault: Fault, directory: Path, cast: Cast | None = None) -> Outcome:
    """Run it in a directory of its own, which is removed if everything held."""
    directory.mkdir(parents=True)  # noqa: ASYNC240 -- a local directory, and no other task waits
    began, outcome = time.monotonic(), Outcome(chapter, fault.row)
    try:
        outcome = await _played(outcome, fault, directory, cast or Cast())
    except Exception as failure:  # noqa: BLE001 -- a chapter ends here, and the error is its outcome
        text = "".join(traceback.format_exception(failure, limit=-4))
        outcome = replace(outcome, remarks=(text,))
    outcome = replace(outcome, seconds=time.monotonic() - began)
    if outcome.held:
        shutil.rmtree(directory)
    else:
        (directory / "outcome").write_text(f"{outcome}\n{chapter}\n")
    return outcome


async def _played(outcome: Outcome, fault: Fault, directory: Path, cast: Cast) -> Outcome:
    struck = 0
    async with staged(outcome.chapter, fault, directory, cast) as stage:
        try:
            if fault.loses_writes:
                await stage.begin()
            for number, strike in enumerate(outcome.chapter.strikes, start=1):
                struck = number
                await stage.work(strike)
                await fault.strike(stage, Random(strike.dice))
            outcome = await stage.judged(outcome, fault)
        except Unpublished as found:
            played = replace(outcome.chapter, strikes=outcome.chapter.strikes[:struck])
            changes = await stage.scene.played.version()
            outcome = replace(outcome, chapter=played, changes=changes, stream=found.verdict)
        finally:
            if not (outcome.held and outcome.stream):
                await stage.keep(directory / "seen")
        return outcome
