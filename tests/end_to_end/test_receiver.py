"""The client library's receiver takes what a real daemon delivers, in every mode, through kills."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.received import received
from tests.harness.subscribed import FEEDS, SECRET, Wish, subscribed
from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MODES = {
    "structured": "validate = true",
    "binary": 'mode = "binary"',
    "batch": 'mode = "batch"\nbatch = { max_events = 20, linger = "50ms" }',
}
_ENOUGH = 60  # events between two kills


@pytest.mark.parametrize("kills", [1, pytest.param(8, marks=pytest.mark.thorough)])
async def test_each_event_is_handled_once(tmp_path: Path, store: str, kills: int) -> None:
    """In each mode each event is handled once, in order per record, although daemons are killed and the handler fails.

    One subscription asks for permission first.
    """
    rng = Random(kills)
    with received(tmp_path / "ledger", secret=SECRET, seed=kills) as receiver:
        async with subscribed(tmp_path, [], store=store, logged=False) as scene:
            config = scene.config()
            tables = [
                Wish(sink, lines=lines).table(tmp_path / "secret", receiver.url, "5s") for sink, lines in _MODES.items()
            ]
            config.write_text(config.read_text() + "".join(tables))

            def handled() -> int:
                return min(len(receiver.handled(sink)) for sink in _MODES)

            for _ in range(kills):
                enough = handled() + _ENOUGH + rng.randrange(20)
                async with daemon(config) as killed:
                    await until(partial(_reached, handled, enough), "events", every=0.05)
                    await killed.kill()
            async with daemon(config):
                upto = await scene.played.version()

                async def missing() -> bool:
                    verdict = await scene.source_verdict(upto)
                    streams = {feed: await scene.entries(feed) for feed in FEEDS}
                    return not verdict.lost and not any(receiver.missing(sink, streams) for sink in _MODES)

                await until(missing, "each event to be handled", every=0.1, seconds=60)
            streams = {feed: await scene.entries(feed) for feed in FEEDS}
            assert [remark for sink in _MODES for remark in receiver.remarks(sink, streams)] == []


def _reached(count: Callable[[], int], enough: int) -> bool:
    return count() >= enough
