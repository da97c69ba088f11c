"""The control: programs as one would write them without thinking, broken by the same faults and judged by the same judge.

A chaos test that cannot fail proves nothing. So each of these chapters has to end badly; one that holds is the failure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.catalogue import FAULTS
from tests.chaos.playing import play
from tests.chaos.stage import Cast
from tests.harness.subscribed import Wish

if TYPE_CHECKING:
    from pathlib import Path

    from tests.chaos.outcome import Outcome
    from tests.chaos.plan import Chapter

_DISPATCHER = ("tests.harness.naive_dispatcher",)
_WISHES = (Wish("one", signed=False),)
NAIVE = {
    order: Cast((("tests.harness.naive", order), _DISPATCHER), _WISHES, replicas_share=False)
    for order in ("events", "snapshots")
}
_PATIENCE = 5.0
