"""Feeds that were renamed or dropped with undelivered events: the real program over real sockets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.test_removals import poller
from tests.harness.processes import Daemon, daemon
from tests.harness.scene import Scene, stream
from tests.harness.subscribed import Subscribed, Wish, subscribed
from tests.harness.waiting import patience, until
from tests.stores import looking

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = "acme/contractTypes", "acme/renamed"


def renamed(config: Path) -> Path:
    """The same configuration with another name for the feed."""
    found = config.with_name("renamed.toml")
    found.write_text(config.read_text().replace('"contractTypes"\n', '"contractTypes"\nname = "renamed"\n', 1))
    return found


def ids(events: list[bytes]) -> set[str]:
    return {json.loads(event)["id"] for event in events}


def left(played: Scene) -> list[Any]:
    """The keys of the old feed."""
    with looking(played.store) as client:
        return list(client.scan_iter(match=f"poller:{{{OLD}}}:*", count=1000))


async def reported(config: Path) -> list[dict[str, Any]]:
    """The orphaned feeds in the status."""
    code, said = await poller(config, "status", "--json")
    assert code == 0, said
    return [one for line in said.splitlines() for one in json.loads(line).get("orphaned_feeds", ())]


async def behind(played: Subscribed) -> None:
    """A daemon has polled the old feed, and its sink has refused everything."""
    played.sinks.mood("w", "503")
    async with daemon(played.config()) as running:
        await running.polled(["contractTypes"])
        await played.more_requests("w", 3)
    assert not played.taken("w")


async def orphan_named(running: Daemon) -> None:
    await running.until(lambda line: line["event"] == "orphaned feed" and line["feed"] == OLD, "the orphaned feed")


@pytest.mark.thorough
async def test_what_waits_at_a_renamed_feed_is_delivered_and_the_feed_forgotten(tmp_path: Path, store: str) -> None:
    """A renamed feed's events are delivered, log, status and check name it, and forgetting it leaves no key."""
    wishes = [Wish("w")]
    async with subscribed(tmp_path, wishes, store=store, records=60, changes_per_second=0) as played:
        await behind(played)
        waiting, config = ids(await played.played.events("contractTypes")), renamed(played.config())

        async def gone() -> bool:
            return bool(await reported(config))

        await until(gone, "the killed process to be gone")  # until then it has the feed
        code, said = await poller(config, "check")
        assert f"{OLD}: no running configuration has this feed" in " ".join(said.split()), said
        (found,) = await reported(config)
        assert (found["feed"], found["undelivered"]) == (OLD, len(waiting))
        played.sinks.mood("w", "ok")
        async with daemon(config) as running:
            await orphan_named(running)
            async with patience("all of the old stream to arrive"):
                await played.until(lambda: waiting <= played.taken("w"))

            async def over() -> bool:
                return [one["undelivered"] for one in await reported(config)] == [0]

            await until(over, "the old feed to be delivered")
            assert (await poller(config, "feeds", "forget", "acme/renamed"))[0] == 2
            assert (await poller(config, "feeds", "forget", "acme/contractType"))[0] == 2
            code, said = await poller(config, "feeds", "forget", "renamed")
            assert (code, "acme/renamed is in the configuration" in said) == (2, True)
            code, said = await poller(config, "feeds", "forget", "contractTypes")  # one feed alone has this name
            assert code == 0, said
            await played.played.put("contractTypes", {"id": "later"})
            await played.more("w", 1)  # the subscription goes on with its other feeds
            assert await reported(config) == []
            assert left(played.played) == []
        assert await played.played.client.exists(stream("renamed"))


@pytest.mark.thorough
async def test_what_a_live_process_has_is_not_forgotten(tmp_path: Path, store: str) -> None:
    """A feed is not forgotten while a live process lists it or holds its lease, nor without --yes if events wait."""
    wishes = [Wish("w")]
    async with subscribed(tmp_path, wishes, store=store, records=60, changes_per_second=0) as played:
        await behind(played)
        config = renamed(played.config())
        async with daemon(played.config()) as running:
            await running.started()
            code, said = await poller(config, "feeds", "forget", OLD, "--yes")
            assert code == 1, said
            assert "has acme/contractTypes in its configuration" in said
            assert await reported(config) == []

        async def alone() -> bool:
            return bool(await reported(config))

        await until(alone, "the process to be gone")
        code, said = await poller(config, "feeds", "forget", OLD)
        assert code == 2, said  # there is no terminal to ask at
        assert "--yes" in said
        assert left(played.played)
        lease = f"poller:{{{OLD}}}:lease"
        await played.played.client.set(lease, "someone-1-ab/nonce")
        code, said = await poller(config, "feeds", "forget", OLD, "--yes")
        assert code == 1, said
        assert "someone-1-ab has it" in said
        await played.played.client.delete(lease)
        assert (await poller(config, "feeds", "forget", OLD, "--yes"))[0] == 0
        assert left(played.played) == []


@pytest.mark.thorough
async def test_configurations_that_differ_are_named(tmp_path: Path, store: str) -> None:
    """A differing base_url or sink is named with both processes in each daemon's log, by status and by check."""
    async with subscribed(tmp_path, [Wish("w")], store=store, records=20, changes_per_second=0) as played:
        first = played.config("first")
        localhost = played.played.source.replace("127.0.0.1", "localhost")
        second = played.config("second", source=localhost, sinks=played.sinks.url.replace("127.0.0.1", "localhost"))
        wanted = {"base_url of source acme", "sink of subscription w"}
        async with daemon(first) as one, daemon(second) as other:
            names = sorted([await one.started(), await other.started()])
            for running in (one, other):
                assert await differing(running, "base_url of source acme") == names
                assert await differing(running, "sink of subscription w") == names
            _, said = await poller(first, "status", "--json")
            found = [one for line in said.splitlines() for one in json.loads(line).get("configuration_differences", ())]
            assert {one["what"] for one in found} == wanted
            _, said = await poller(first, "check")
            assert "base_url of source acme differs between" in " ".join(said.split())


async def differing(running: Daemon, what: str) -> list[str]:
    """The processes of both sides, once the daemon has logged this difference."""
    line = await running.until(lambda line: (line["event"], line.get("what")) == ("configurations differ", what), what)
    return sorted(name for side in line["processes"] for name in side)
