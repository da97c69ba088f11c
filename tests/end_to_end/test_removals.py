"""Records withdrawn from the source are found by full readings: the real program over real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from tests.harness.processes import sandbox
from tests.harness.scene import Scene, scene, stream

if TYPE_CHECKING:
    from pathlib import Path


async def poller(config: Path, *arguments: str) -> tuple[int, str]:
    """Run a command; its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "poller", "-c", str(config), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


async def once(config: Path, feed: str) -> dict[str, Any]:
    _, said = await poller(config, "once", feed, "--json")
    result: dict[str, Any] = json.loads(said)
    return result


async def withdraw(played: Scene, resource: str, count: int | None = None) -> list[str]:
    """Delete this many records of the source, or all; their ids."""
    log = await played.log()
    ids = list(dict.fromkeys(version["id"] for version in log if version["resource"] == resource))[:count]
    for subject in ids:
        async with played.http.delete(f"{played.source}/_sandbox/records/{resource}/{subject}") as answer:
            assert answer.status == 204
    return ids


@pytest.mark.thorough
async def test_what_is_withdrawn_is_removed_once(tmp_path: Path, store: str) -> None:
    """Deltas do not show a withdrawal; the next full reading publishes each record as removed once."""
    async with scene(tmp_path, store=store, records=400, changes_per_second=0) as played:
        config, feed = played.config(), "acme/employmentUnavailabilities"
        baseline = await once(config, feed)
        assert (await once(config, feed))["mode"] == "reconcile"  # of several pages, so it is confirmed
        withdrawn = await withdraw(played, "employmentUnavailabilities", 7)
        assert (await once(config, feed))["removed"] == 0
        assert (await poller(config, "resync", feed))[0] == 0
        result = await once(config, feed)
        assert (result["mode"], result["ok"], result["removed"]) == ("resync", True, 7)
        assert result["unchanged"] == baseline["records"] - 7
        published = [json.loads(event) for event in await played.events("employmentUnavailabilities")]
        removed = [event for event in published if event["type"].endswith(".removed.v1")]
        assert sorted(event["subject"] for event in removed) == sorted(withdrawn)
        assert [(await once(config, feed))["mode"] for _ in range(2)] == ["reconcile", "delta"]
        await poller(config, "resync", feed)
        assert (await once(config, feed))["removed"] == 0


@pytest.mark.thorough
async def test_an_empty_answer_for_everything_waits_for_an_operator(tmp_path: Path, store: str) -> None:
    """An empty answer removes nothing: the feed is held, shown as such and announced once, until it is released."""
    async with scene(tmp_path, store=store, records=100, changes_per_second=0) as played:
        config, feed = played.config(), "acme/contractTypes"
        baseline = await once(config, feed)
        assert await poller(config, "release", feed) == (
            1,
            "poller: acme/contractTypes: no removals or changes are held\n",
        )
        await withdraw(played, "contractTypes")
        await poller(config, "resync", feed)
        held = await once(config, feed)
        assert (held["ok"], held["removed"]) == (False, 0)
        assert "poller release acme/contractTypes" in held["error"]
        _, status = await poller(config, "status", "--json")
        assert json.loads(status.splitlines()[0])["state"] == "held"
        await poller(config, "resync", feed)
        assert (await once(config, feed))["ok"] is False  # still held, and announced once
        told: Any = await played.client.xrange("poller:{operations}:events")
        (announced,) = [json.loads(fields[b"data"]) for _, fields in told]
        assert (announced["type"], announced["subject"]) == ("poller.feed.held.v1", feed)
        assert announced["data"]["reason"] == held["error"]
        assert (await poller(config, "release", feed))[0] == 0
        result = await once(config, feed)
        assert (result["mode"], result["ok"], result["removed"]) == ("full", True, baseline["records"])


@pytest.mark.thorough
async def test_another_api_in_place_of_the_known_one_waits_for_an_operator(tmp_path: Path, store: str) -> None:
    """Another API publishes nothing until an operator decides: --anew publishes all, release what differs."""
    feed = "acme/contractTypes"
    async with (
        scene(tmp_path, store=store, records=100, changes_per_second=0, seed=1) as played,
        sandbox(records=100, changes_per_second=0, seed=2) as other,
        sandbox(records=100, changes_per_second=0, seed=2) as moved,
    ):
        known = (await once(played.config(), feed))["created"]
        held = await once(played.config(source=other), feed)
        assert (held["ok"], held["created"], held["removed"]) == (False, 0, 0)
        assert f'base_url was "{played.source}" and is "{other}" now' in held["error"]
        assert await played.client.xlen(stream("contractTypes")) == known
        config = played.config(source=other)
        _, said = await poller(config, "status", "--json")
        status = json.loads(said.splitlines()[0])
        assert (status["state"], status["held_reason"]) == ("held", held["error"])
        told: Any = await played.client.xrange("poller:{operations}:events")
        (announced,) = [json.loads(fields[b"data"]) for _, fields in told]
        assert (announced["type"], announced["data"]["reason"]) == ("poller.feed.held.v1", ANY)
        assert announced["data"]["reason"][:150] == held["error"][:150]  # the reason is shortened
        assert (await once(played.config(), feed))["ok"] is True  # the old base_url again
        await once(played.config(source=other), feed)
        assert (await poller(config, "resync", feed, "--anew", "--yes"))[0] == 0
        anew = await once(config, feed)
        assert (anew["mode"], anew["ok"], anew["created"], anew["removed"]) == ("baseline", True, anew["records"], 0)
        config = played.config(source=moved)
        assert (await once(config, feed))["ok"] is False
        assert (await poller(config, "release", feed))[0] == 0
        released = await once(config, feed)
        assert (released["ok"], released["unchanged"]) == (True, anew["records"])
        assert (await once(config, feed))["mode"] != "resync"
