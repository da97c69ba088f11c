"""A store that an earlier version wrote (commit 12b4310, see :mod:`tests.store.takeover`) is read on by this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.servers import running
from tests.store.takeover import DELTA, KEPT, World, configured, five_digits, poller, restored

EVENTS = "poller:{acme/evidenceVariants}:events"
ONCE_REFUSED, NEVER_SENT = 3, 4


async def ids_of(client: Redis) -> list[str]:
    """The ids of the feed's events, in order."""
    entries: Any = await client.xrange(EVENTS)
    return [json.loads(fields[b"data"])["id"] for _, fields in entries]


async def test_a_store_of_an_earlier_version_is_read_on(tmp_path: Path) -> None:
    """No event is published again and no delivery is lost: neither a scheduled, an unsent nor a dead-letter one.

    Feeds go on with their delta tokens, without a full round. Paused feeds and subscriptions stay paused until resumed;
    a subscription that is in the file again is resumed.
    """
    world = World()
    for number in range(1, 4):
        world.records["contractTypes"][f"c{number}"] = {"id": f"c{number}", "name": f"contract {number}"}
        world.records["evidenceVariants"][f"e{number}"] = {"id": f"e{number}", "name": f"variant {number}"}
    world.put("evidenceVariants", {"id": "e1", "name": "changed once"}, version="e2")
    world.put("evidenceVariants", {"id": "e2", "name": "never sent"}, version="e3")
    store: dict[str, Any] = json.loads(KEPT.read_text("utf-8"))
    with running("valkey", tmp_path / "v") as server:
        async with five_digits(world) as receiver, Redis.from_url(server.url) as client:
            await restored(client, store, receiver.url.rpartition(":")[2])
            before = await ids_of(client)
            refused, unsent = before[ONCE_REFUSED], before[NEVER_SENT]
            config = configured(tmp_path, store=server.url, receiver=receiver.url, left=True)
            async with daemon(config) as successor:
                got = world.delivered
                await until(lambda: sorted(got["waits"]) == sorted([refused, unsent]), "the retry and the unsent event")
                await until(lambda: got["added"] == [unsent], "the unsent event")
                await until(
                    lambda: got["left"] == [unsent], "the event from while the subscription was not in the file"
                )
                assert got["rests"] == []
                await poller(config, "subscriptions", "resume", "rests")
                await until(lambda: got["rests"] == [unsent], "the event from while the subscription was paused")
                await poller(config, "dead-letters", "redeliver", "--subscription", "added", "--all")
                await until(lambda: got["added"] == [unsent, refused], "the dead letter")
                assert await ids_of(client) == before
                assert not any("contractTypes" in target for target in world.asked)
                await poller(config, "resume", "contractTypes")
                await until(lambda: any("contractTypes" in target for target in world.asked), "the feed's next request")
                assert [target for target in world.asked if DELTA not in target] == []
                world.put("evidenceVariants", {"id": "e3", "name": "changed later"}, version="e4")
                await until(lambda: all(len(got[name]) > 1 for name in ("left", "rests")), "the next change")
                entries: Any = await client.xrange(EVENTS)
                event = json.loads(entries[-1][1][b"data"])
                assert (event["sequence"], event["data"]["revision"]) == (f"{len(before) + 1:020}", 2)
                assert not [line for line in successor.lines if line.get("level") == "error"]
