"""Digests of pages on a store that was changed behind their back: nothing is lost, doubled or misclassified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from poller.store.recovery import FeedMemory
from tests.harness.clock import StubClock
from tests.harness.json_values import equal
from tests.harness.json_values import read as as_json
from tests.harness.reading import reading
from tests.harness.scene import RESOURCES
from tests.stores import flushed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.harness.reading import Reading

LISTED = [resource for resource in RESOURCES if resource != "achievements"]  # its listings have none


async def _digests(read: Reading) -> list[bytes | None]:
    return [await polled.store.page_digests() for polled in read.feeds]


async def _copy(read: Reading) -> dict[bytes, bytes]:
    client: Any = read.played.client
    return {key: await client.dump(key) async for key in client.scan_iter("poller:*") if b":lease" not in key}


async def _restored(read: Reading, kept: dict[bytes, bytes]) -> None:
    """The keys as they were, and nothing in the process that remembers what came after them."""
    for polled in read.feeds:
        polled.store.memory = FeedMemory(clock=StubClock(now=read.now))
    for key, value in kept.items():
        await read.played.client.restore(key, 0, value, replace=True)


async def _rolled_back(read: Reading) -> None:
    before = await _copy(read)
    read.source.change(30)
    await read.good_rounds()
    await _restored(read, before)


async def _rolled_back_but_for_digests(read: Reading) -> None:
    before = await _copy(read)
    read.source.change(30)
    for _ in range(2):
        await read.good_rounds()
    await _restored(read, {key: value for key, value in before.items() if not key.endswith(b":page_digests")})


async def _flushed(read: Reading) -> None:
    await flushed(read.played.client)


async def _foreign_digests(read: Reading) -> None:
    first, *others = [polled.store.keys.page_digests for polled in read.feeds]
    for key in others:
        await read.played.client.copy(first, key, replace=True)


async def _snapshots_lost(read: Reading) -> None:
    for polled in read.feeds:
        key = polled.store.keys.snapshots
        fields = await read.played.client.hkeys(key)
        await read.played.client.hdel(key, *fields[:3])


@pytest.mark.parametrize(
    "change",
    [_rolled_back, _rolled_back_but_for_digests, _flushed, _foreign_digests, _snapshots_lost],
    ids=["rolled back", "rolled back but for the digests", "flushed", "digests of another feed", "snapshots lost"],
)
async def test_the_latest_events_are_the_source(
    change: Callable[[Reading], Awaitable[None]], tmp_path: Path, store: str
) -> None:
    """After the change the latest event of each record is what the source has of it, and no more is published."""
    async with reading(tmp_path, store, resources=LISTED, feed='limit = 12\ndelta = "off"') as read:
        for _ in range(3):
            await read.good_rounds()
        assert all(await _digests(read))
        await change(read)
        read.source.change(3)  # few, so that most pages stay as they were
        for _ in range(4):
            await read.rounds()
        assert all(result.ok and not result.changes for result in read.results[-len(LISTED) :])
        assert all(await _digests(read))
        present = {(line["resource"], line["id"]): line["record"] for line in await read.played.log()}
        shown: dict[tuple[str, str], Any] = {}
        for resource in LISTED:
            for event in map(as_json, await read.played.events(resource)):
                shown[resource, event["subject"]] = event["data"].get("record")
        assert equal(
            {f"{resource} {id_}": record for (resource, id_), record in shown.items() if record is not None},
            {
                f"{resource} {id_}": record
                for (resource, id_), record in present.items()
                if resource in LISTED and record
            },
        )
