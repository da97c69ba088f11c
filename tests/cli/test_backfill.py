"""Laws of ``poller backfill`` and of the same over HTTP, before the real daemon that delivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from poller.redis.client import commands
from poller.store.backfill import backfill_of
from poller.store.keys import ConsumerKeys
from poller.store.replay import last_read
from tests.cli.conftest import Poller
from tests.harness.backfilled import FEED, BackfillJudge, ChangingFeed
from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.receiver import HANG, Received, Receiver, Reply, receiving

KEYS = ConsumerKeys.of("poller", FEED, "a")
CONFIG = """
redis = {{ url = "{url}" }}
http = {{ bind = "off" }}
[[sources]]
name = "acme"
base_url = "http://127.0.0.1:1"
auth = {{ none = true }}
[[sources.feeds]]
resource = "employmentUnavailabilities"
[[sources.feeds]]
resource = "contractTypes"
[[subscriptions]]
id = "a"
sink = "{sink}"
allow_private = true
{more}
"""
DELIVER = ("poller", "run", "--only", "deliver")


def configured(directory: Path, url: str, sink: Receiver, more: str = "") -> Path:
    config = directory / "poller.toml"
    config.write_text(CONFIG.format(url=url, sink=sink.url, more=more), "utf-8")
    return config


async def is_begun(client: Redis) -> bool:
    return all([await last_read(client, f"poller:{{{feed}}}:events", "a") for feed in (FEED, "acme/contractTypes")])


async def is_empty(client: Redis) -> bool:
    return not await client.exists(KEYS.letters, KEYS.parked)


async def test_all_records_once_and_then_what_changes(poller: Poller, tmp_path: Path, store_url: str) -> None:
    """Law: --wait shows the progress until each record was delivered once; what changes then comes after it."""
    judge = BackfillJudge()

    def answer(request: Received) -> Reply:
        judge.add(request.body)
        return Reply(204)

    async with receiving(answer) as sink, commands(store_url) as client:
        config, feed = configured(tmp_path, store_url, sink), ChangingFeed(client)
        await feed.fill(300)
        async with daemon(config, command=DELIVER):
            await until(lambda: is_begun(client), "the subscription to begin")
            told = await poller("backfill", "a", "--wait", "-c", str(config))
            assert told.code == 0, told.err
            assert told.out.splitlines()[0] == f"{FEED}: 300 records to deliver"
            assert told.out.splitlines()[-1] == f"{FEED}: done"
            assert "acme/contractTypes was not read yet: it has no records to deliver" in told.err
            assert (judge.records, judge.events, judge.backfilled) == (300, 300, 300)
            await feed.publish(range(10))
            await until(lambda: judge.is_level(feed.revisions), "the changes")
            assert not judge.missed(feed.revisions)
            assert not judge.fallen
            told = await poller("backfill", "a", FEED, "--wait", "--json", "-c", str(config))
            lines = [json.loads(line) for line in told.out.splitlines()]
            assert (lines[0]["feed"], lines[0]["state"], lines[0]["total"]) == (FEED, "begun", 300)
            assert judge.backfilled == 600
            assert judge.again[True] == 290, "the same ids for the same revisions"
        assert not await client.exists(KEYS.parked, KEYS.letters)


async def test_progress_pause_and_cancellation(poller: Poller, tmp_path: Path, store_url: str) -> None:
    """Law: a backfill under way goes on, is in the status, waits while its subscription is paused, and is cancelled."""
    async with receiving(HANG) as sink, commands(store_url) as client:
        config, feed = configured(tmp_path, store_url, sink, 'start = "snapshot"'), ChangingFeed(client)
        await feed.fill(200)
        async with daemon(config, command=DELIVER):
            await until(lambda: backfill_of(client, KEYS), "the backfill to begin")
            told = await poller("backfill", "a", FEED, "-c", str(config))
            assert told.out == f"{FEED}: a backfill is in progress and goes on, 0 of 200; --cancel ends it\n"
            told = await poller("status", "-c", str(config))
            assert "a: backfill in progress: 0 of 200 records" in told.out
            status = json.loads((await poller("subscriptions", "list", "--json", "-c", str(config))).out)
            assert status["backfill_records"] == 200
            backfill: dict[str, Any] = next(one["backfill"] for one in status["feeds"] if one["feed"] == FEED)
            assert (backfill["done"], backfill["total"]) == (0, 200)
            assert (await poller("subscriptions", "pause", "a", "-c", str(config))).code == 0
            told = await poller("backfill", "a", FEED, "--wait", "-c", str(config))
            assert told.code == 1
            assert "a is paused (operator" in told.err
            told = await poller("backfill", "a", "--cancel", "-c", str(config))
            assert f"{FEED}: backfill cancelled" in told.out
            assert await backfill_of(client, KEYS) is None
            told = await poller("backfill", "a", "--cancel", FEED, "-c", str(config))
            assert (told.code, told.err) == (1, "poller: no backfill of a is in progress\n")


@pytest.mark.parametrize(
    "case",
    [
        ("", ("b",), (2, 'there is no subscription "b"')),
        ("", ("a", "other"), (2, "other")),
        ("", ("a", "--wait", "--cancel"), (2, "expected --wait or --cancel, not both")),
        ('feeds = ["acme/contractTypes"]', ("a", FEED), (2, f"a does not subscribe to {FEED}")),
        ('types = ["*.removed.v1"]', ("a",), (2, "types of a do not choose")),
        ('filters = [{ not = { suffix = { type = ".created.v1" } } }]', ("a",), (2, "filters of a let no")),
        ('when = { not_cause = ["backfill"] }', ("a",), (2, "when of a leaves out events with the cause backfill")),
        ("", ("a",), (1, "has not begun for a yet: a daemon does that soon; try again")),
    ],
)
async def test_refusals(
    poller: Poller, tmp_path: Path, store_url: str, case: tuple[str, tuple[str, ...], tuple[int, str]]
) -> None:
    """Law: what cannot bring anything is refused, with the reason, and nothing begins."""
    more, arguments, ending = case
    async with receiving(Reply(204)) as sink, commands(store_url) as client:
        config = configured(tmp_path, store_url, sink, more)
        async with daemon(config, command=DELIVER) as one:
            await one.started()
            await until(lambda: client.hexists("poller:{subscriptions}:registry", "a"), "the registration")
        await client.delete(f"poller:{{{FEED}}}:events", "poller:{acme/contractTypes}:events")
        told = await poller("backfill", *arguments, "-c", str(config))
        assert told.code == ending[0], told.err
        assert ending[1] in told.err
        assert await backfill_of(client, KEYS) is None


async def test_a_parked_event_of_it_becomes_a_dead_letter_with_its_event(
    poller: Poller, tmp_path: Path, store_url: str
) -> None:
    """Law: what a sink refuses of a backfill is listed, shown, redelivered and dropped like any dead letter."""
    async with receiving(Reply(500)) as sink, commands(store_url) as client:
        more = 'start = "snapshot"\nretry = { schedule = ["10ms"], jitter = 0 }'
        config, feed = configured(tmp_path, store_url, sink, more), ChangingFeed(client)
        await feed.fill(3)

        async def given_up() -> bool:
            return bool(await client.hlen(KEYS.letters) == 3)

        async with daemon(config, command=DELIVER):
            await until(given_up, "all to be given up on")
            listed = await poller("dead-letters", "list", "--json", "-c", str(config))
            ids = [json.loads(line)["id"] for line in listed.out.splitlines()]
            assert len(ids) == 3
            assert all("+" in one for one in ids)
            shown = await poller("dead-letters", "show", ids[0], "-c", str(config))
            assert '"cause":"backfill"' in shown.out.replace(" ", ""), shown.out + shown.err
            dropped = await poller("dead-letters", "drop", ids[1], "-c", str(config))
            assert dropped.code == 0, dropped.err
            sink.answer = Reply(204)
            tried = sink.count
            told = await poller("dead-letters", "redeliver", "--subscription", "a", "--all", "-c", str(config))
            assert told.out == "2 dead letters scheduled for redelivery\n", told.err
            await sink.received(tried + 2)
            last = json.loads(sink.requests[-1].body)
            assert (last["data"]["cause"], last["data"]["revision"]) == ("backfill", 1)
            await until(lambda: is_empty(client), "all to be settled")


async def test_one_that_is_added_begins_with_the_snapshots(poller: Poller, tmp_path: Path, store_url: str) -> None:
    """Law: a subscription added at run time with --start snapshot gets every record; the others hear nothing."""
    judge = BackfillJudge()

    def answer(request: Received) -> Reply:
        judge.add(request.body)
        return Reply(204)

    async with receiving(Reply(204)) as other, receiving(answer) as sink, commands(store_url) as client:
        config, feed = configured(tmp_path, store_url, other), ChangingFeed(client)
        await feed.fill(20)
        async with daemon(config, command=DELIVER):
            await until(lambda: is_begun(client), "the other subscription to begin")
            add = ("subscriptions", "add", "late", sink.url, "--start", "snapshot", "--allow-private")
            added = await poller(*add, "-c", str(config))
            assert added.code == 0, added.err
            await until(lambda: judge.is_level(feed.revisions), "all records")
            assert (judge.events, judge.backfilled, other.count) == (20, 20, 0)
