"""Events that a sink gets again from the real daemon: redelivered dead letters, and a replay."""

from __future__ import annotations

import json
from pathlib import Path

from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys
from tests.cli.conftest import Poller
from tests.delivery.events import entry
from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.receiver import Receiver, Reply, receiving

FEED = "acme/contractTypes"
EVENTS = FeedKeys.of("poller", FEED).events
KEYS = ConsumerKeys.of("poller", FEED, "a")
CONFIG = """
redis = {{ url = "{url}" }}
http = {{ bind = "off" }}
[[sources]]
name = "acme"
base_url = "http://127.0.0.1:1"
auth = {{ none = true }}
[[sources.feeds]]
resource = "contractTypes"
[[subscriptions]]
id = "a"
sink = "{sink}"
start = "earliest"
allow_private = true
retry = {{ schedule = ["10ms"], jitter = 0 }}
"""


async def test_redelivered_and_replayed(poller: Poller, tmp_path: Path, store_url: str) -> None:
    """Law: redelivered dead letters and replayed events arrive in order and with the same ids."""
    async with receiving(Reply(500)) as receiver, commands(store_url) as client:
        config = tmp_path / "poller.toml"
        config.write_text(CONFIG.format(url=store_url, sink=receiver.url), "utf-8")
        for number in range(1, 4):
            await client.xadd(EVENTS, {"data": entry(number=number)})

        async def given_up() -> bool:
            return bool(await client.hlen(KEYS.letters) == 3)

        async with daemon(config, command=("poller", "run", "--only", "deliver")):
            await until(given_up, "all to be given up on")
            receiver.answer = Reply(204)
            tried = receiver.count
            told = await poller("dead-letters", "redeliver", "--subscription", "a", "--all", "-c", str(config))
            assert told.out == "3 dead letters scheduled for redelivery\n", told.err
            assert await numbers(receiver, tried) == [1, 2, 3]
            told = await poller("replay", "a", "--from", "earliest", "--wait", "-c", str(config))
            assert told.out.splitlines()[0] == f"{FEED}: 3 events to replay", told.err
            assert told.out.splitlines()[-1] == f"{FEED}: 3 of 3"
            assert await numbers(receiver, tried + 3) == [1, 2, 3]
        assert not await client.exists(KEYS.letters, KEYS.parked)
        assert json.loads(receiver.requests[-1].body)["id"] == json.loads(entry(number=3))["id"]


async def numbers(receiver: Receiver, since: int) -> list[int]:
    """The sequence numbers of the next three events after this many."""
    await receiver.received(since + 3)
    return [int(json.loads(request.body)["sequence"]) for request in receiver.requests[since:]]
