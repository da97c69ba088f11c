"""A backfill by real daemons that are killed, before the judge of the acceptance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from poller.failpoints import OF_BACKFILLS, OF_DELIVERIES
from poller.redis.client import commands
from poller.store.backfill import backfill_of
from tests.chaos.backfill import CONFIG, DELIVER, KEYS, MAX_EVENTS, has_ended, played
from tests.harness.backfilled import BackfillJudge, ChangingFeed
from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.receiver import Received, Reply, receiving


async def test_a_late_subscription_gets_the_present_state_and_what_follows(tmp_path: Path, store: str) -> None:
    """Law: nothing is missed and no revision falls, although daemons are killed.

    That the judge catches a naive reader is for `python -m tests.chaos.backfill`: it needs more changes than these.
    """
    outcome = await played(store, tmp_path, records=4000, rate=400, kills=3, seed=1)
    assert outcome.held, outcome
    assert outcome.judge.records == 4000
    assert outcome.kills >= 1, outcome


@pytest.mark.parametrize("point", [*OF_BACKFILLS, *OF_DELIVERIES[1:]])
async def test_a_death_in_the_middle_goes_on_where_it_was_written(tmp_path: Path, store: str, point: str) -> None:
    """Law: killed at any place of a backfill, it goes on at the position that was written, and misses nothing."""
    judge, over = BackfillJudge(), asyncio.Event()

    def answer(request: Received) -> Reply:
        judge.add(request.body)
        return Reply(204)

    async with receiving(answer, recording=False) as sink, commands(store) as client:
        config, feed = tmp_path / "poller.toml", ChangingFeed(client)
        config.write_text(CONFIG.format(url=store, sink=sink.url, events=MAX_EVENTS), "utf-8")
        await feed.fill(1500)
        changing = asyncio.create_task(feed.change(100, Random(1), over))
        async with daemon(config, command=DELIVER, failpoint=f"{point}:3") as first:
            assert await first.left() == -9
        stored = await backfill_of(client, KEYS)
        async with daemon(config, command=DELIVER) as second:
            await until(lambda: has_ended(client), "the end of the backfill")
            over.set()
            await changing
            await until(lambda: judge.is_level(feed.revisions), "the last changes")
            went_on = [line for line in second.lines if str(line.get("event", "")).startswith("backfill ")]
    assert stored is not None
    assert went_on[0].get("done") == stored.done
    assert not judge.missed(feed.revisions)
    assert not judge.fallen
