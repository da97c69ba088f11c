"""A naive dispatcher: the control that the judge of deliveries must catch.

It stores its position *before* it sends, sends everything it has read concurrently, retries failures after a fixed
delay, and signs nothing. Run as ``python -m tests.harness.naive_dispatcher --config FILE``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from redis.asyncio import Redis

from poller.config.load import load

if TYPE_CHECKING:
    from poller.config.settings import Settings
    from poller.config.subscriptions import SubscriptionSettings

_AGAIN = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=0.4)


async def run(settings: Settings) -> None:
    """Deliver until killed."""
    async with (
        Redis.from_url(settings.redis.url or "") as client,
        aiohttp.ClientSession(timeout=_TIMEOUT) as http,
        asyncio.TaskGroup() as working,
    ):
        for subscription in settings.subscriptions:
            for feed in settings.feed_ids:
                working.create_task(_deliver(client, http, subscription, feed))
        sys.stderr.write(json.dumps({"event": "started"}) + "\n")


async def _deliver(client: Redis, http: aiohttp.ClientSession, subscription: SubscriptionSettings, feed: str) -> None:
    stream, place = f"poller:{{{feed}}}:events", f"naive:{subscription.id}:{feed}"
    async with asyncio.TaskGroup() as sending:
        while True:
            after = await client.get(place) or b"0"
            answer: Any = await client.xread({stream: after}, count=50, block=100)
            # With RESP3 the answer is a dict, and each stream a list of one list.
            for entries in (some[0] for some in answer.values()) if isinstance(answer, dict) else dict(answer).values():
                await client.set(place, entries[-1][0])
                for _, fields in entries:
                    sending.create_task(_sent(http, subscription.sink, fields[b"data"]))


async def _sent(http: aiohttp.ClientSession, sink: str, event: bytes) -> None:
    headers = {"Content-Type": "application/cloudevents+json", "webhook-id": json.loads(event)["id"]}
    while True:
        try:
            async with http.post(sink, data=event, headers=headers, allow_redirects=False) as answer:
                if answer.ok:
                    return
        except (aiohttp.ClientError, TimeoutError):
            pass  # like any other failure
        await asyncio.sleep(_AGAIN)  # its retry: as naive as the rest


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-format")
    parser.add_argument("--log-level")
    asyncio.run(run(load(parser.parse_args().config, os.environ)))


if __name__ == "__main__":
    main()
