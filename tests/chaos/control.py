"""The control: naive programs under the same faults, before the same judges.

Law: a chaos test that cannot fail proves nothing, so here each chapter must fail; one that holds is the failure.

There is only one naive daemon, because two would publish everything twice even without a fault; and as it detects no
removals, none are made. Without faults both naive programs are right (:mod:`tests.end_to_end.test_control`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tests.chaos.catalogue import FAULTS, MOST
from tests.chaos.plan import planned
from tests.chaos.playing import play
from tests.chaos.stage import Cast
from tests.harness.subscribed import Wish

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.outcome import Outcome

_DISPATCHER = ("tests.harness.naive_dispatcher",)
_PATIENCE = 4.0
_TIMES = 20
_CHAPTERS = 5


@dataclass(frozen=True, slots=True)
class Control:
    """A naive daemon that writes ``first`` the events or the snapshots, under a fault."""

    first: str
    fault: str

    @property
    def row(self) -> str:
        return f"control: naive, {self.first} first; {FAULTS[self.fault].row}"


CONTROLS: Final = (Control("events", "kill"), Control("snapshots", "kill"), Control("events", "lost-reply"))


async def play_control(control: Control, directory: Path, seed: int, *, times: int = _TIMES) -> Outcome:
    """Run it; :attr:`~tests.chaos.outcome.Outcome.caught` says whether the judges found the fault.

    Only by chance does a strike meet the moment at which a naive program is wrong. So a program that passes is run
    again with other strikes, up to :data:`_CHAPTERS` times. A correct program passes all of them.
    """
    commands = (("tests.harness.naive", control.first), _DISPATCHER)
    cast = Cast(
        commands, (Wish("one", signed=False),), receiver=False, consumers=False, removals=False, commits=b"XADD"
    )
    fault = replace(FAULTS[control.fault], row=control.row, patience=_PATIENCE)
    again = 0
    while True:
        chapter = planned({fault.name: min(times, fault.most)}, seed + again, most=MOST)[0]
        outcome = await play(chapter, fault, directory / f"{again}", cast)
        again += 1
        if outcome.caught or again == _CHAPTERS:
            return outcome
