"""Erasure of a record from a daemon at work: nothing of it is left anywhere, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from poller.failpoints import OF_ERASURES
from poller.redis.client import commands
from poller.sandbox.history import History
from poller.sandbox.server import SANDBOX_TOKEN, serving
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.snapshots import SnapshotCodec, key_of
from tests.cli.commands import Ended, ran
from tests.harness.processes import Daemon, daemon
from tests.harness.waiting import until
from tests.receiver import Held, Received, Receiver, Reply, receiving
from tests.store.records import unavailability

FEED = "acme/employmentUnavailabilities"
KEYS = FeedKeys.of("poller", FEED)
RESOURCE = "employmentUnavailabilities"
PRIVATE = "an illness that is nobody's business"
LATER = "a second illness of the same person"
AT = datetime(2026, 1, 2, tzinfo=UTC)
COUNT = 70  # more than a dictionary is trained on; the record is among the first


def record(number: int, reason: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(unavailability(number))
    return {**found, "reason": reason}


ID = str(record(5, "")["id"])
OTHER = str(record(6, "")["id"])


def is_of(key: str) -> Callable[[Received], bool]:
    return lambda request: key.encode() in request.body


@dataclass
class Scene:
    """A daemon with an embedded server, an API, and sinks that refuse the record in different ways."""

    directory: Path
    file: Path
    history: History
    sinks: dict[str, Receiver]
    environ: dict[str, str]

    def write(self, number: int, reason: str) -> None:
        self.history.put(RESOURCE, record(number, reason), AT)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Redis]:
        async with commands(f"unix://{self.directory}/data/valkey.sock") as client:
            yield client

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Daemon]:
        async with daemon(self.file, environ=self.environ, level="debug") as one:
            await one.started()
            yield one

    async def poller(self, *words: str, failpoint: str = "") -> Ended:
        extra = {**self.environ, **({"POLLER_FAILPOINT": failpoint} if failpoint else {})}
        return await ran((*words, "--config", str(self.file)), cwd=self.directory, extra=extra)


SUBSCRIPTIONS = {
    "well": "",
    "retried": 'retry = { schedule = ["1h"], jitter = 0 }',
    "given-up": 'retry = { schedule = ["1ms"], jitter = 0 }',
    "held": 'concurrency = 1\ntimeout = "10m"',
}


@asynccontextmanager
async def scened() -> AsyncIterator[Scene]:
    history = History()
    async with AsyncExitStack() as stack:
        short = stack.enter_context(TemporaryDirectory(prefix="pe-"))
        url = await stack.enter_async_context(serving(history, rng=Random(3)))
        sinks = {name: await stack.enter_async_context(receiving()) for name in SUBSCRIPTIONS}
        lines = [f'embedded = {{ data_dir = "{short}/data" }}', 'http = { bind = "off" }']
        lines += ["[[sources]]", 'name = "acme"', f'base_url = "{url}"', 'auth = { token_env = "API_TOKEN" }']
        lines += ["[[sources.feeds]]", f'resource = "{RESOURCE}"', 'interval = "200ms"', 'removals = "off"']
        for name, more in SUBSCRIPTIONS.items():
            lines += ["[[subscriptions]]", f'id = "{name}"', f'sink = "{sinks[name].url}"', 'start = "earliest"']
            lines += ["allow_private = true", more]
        file = Path(short) / "poller.toml"
        file.write_text("\n".join(lines), "utf-8")
        yield Scene(Path(short), file, history, sinks, {"API_TOKEN": SANDBOX_TOKEN})


async def planted(scene: Scene) -> asyncio.Event:
    """Values of the record in every place that may hold them. Setting the event lets the sink that hangs answer."""
    is_private, release = is_of(ID), asyncio.Event()
    for name in ("retried", "given-up"):
        scene.sinks[name].answer = lambda request: Reply(500 if is_private(request) else 204)
    scene.sinks["held"].answer = Held(release, Reply())
    for number in range(COUNT):
        scene.write(number, PRIVATE if number == 5 else f"reason {number}")
    async with scene.store() as client:
        for name, place in (("retried", "parked"), ("given-up", "letters")):
            key = getattr(ConsumerKeys.of("poller", FEED, name), place)
            await until(lambda key=key: client.hlen(key), f"something in {key}")  # type: ignore[misc]
        scene.write(5, LATER)
        await until(lambda: _published(client, LATER), "the second version")
        again = f'{{"id":"{ID}","reason":"{PRIVATE}","reason":"{LATER}"}}'
        scene.history.put(RESOURCE, again.encode(), AT)
        await until(lambda: client.xlen(KEYS.quarantine), "a quarantined copy")
        await client.xgroup_create(KEYS.events, "foreign", "0")
        await client.xreadgroup("foreign", "reader", {KEYS.events: ">"}, count=1000)
    replayed = await scene.poller("replay", "retried", "--from", "earliest")
    assert replayed.code == 0, replayed
    return release


async def _published(client: Redis, text: str) -> bool:
    found: Any = await client.xrange(KEYS.events)
    return any(text.encode() in fields.get(b"data", b"") for _, fields in found)


async def everything(client: Redis) -> dict[str, bytes]:
    """All that the store holds, by key; compressed snapshots as records."""
    found: dict[str, bytes] = {}
    keys: Any = [key async for key in client.scan_iter()]
    for key in keys:
        kind = cast("bytes", await client.type(key)).decode()
        read: Any = {
            "hash": lambda key=key: client.hgetall(key),
            "stream": lambda key=key: client.xrange(key),
            "zset": lambda key=key: client.zrange(key, 0, -1),
            "string": lambda key=key: client.get(key),
        }[kind]
        found[key.decode()] = repr(await read()).encode("utf-8", "surrogateescape")
    dictionaries = cast("dict[bytes, bytes]", await client.hgetall(KEYS.dictionaries))
    codec = SnapshotCodec({int(number): content for number, content in dictionaries.items()})
    stored = cast("dict[bytes, bytes]", await client.hgetall(KEYS.snapshots))
    found["records"] = b"".join(codec.decode(key_of(name), value).raw for name, value in stored.items())
    found["dictionary"] = b"".join(dictionaries.values())
    return found


def places_of(found: dict[str, bytes]) -> set[str]:
    """The keys that hold a value of the record."""
    texts = [text.encode() for text in (PRIVATE, LATER)] + [repr(text)[1:-1].encode() for text in (PRIVATE, LATER)]
    return {key.rpartition("}:")[2] for key, value in found.items() if any(text in value for text in texts)}


async def test_nothing_of_an_erased_record_is_left() -> None:
    """Law: no key, command, log or file shows a value of it; it is sent nowhere; others arrive; no letter for a gap."""
    async with scened() as scene:
        async with scene.running() as one:
            release = await planted(scene)
            async with scene.store() as client:
                await client.config_set("rdbcompression", "no")  # so that bytes would be found in a file of that form
                before = places_of(await everything(client))
            assert before >= {"events", "records", "quarantine", "sub:given-up:letters"}, before
            assert "dictionary" not in before
            refused = await scene.poller("records", "erase", FEED, ID, "--yes")
            assert (refused.code, "--force" in refused.err or "force it" in refused.err) == (1, True), refused
            scene.history.remove(RESOURCE, ID, AT)
            erased = await scene.poller("records", "erase", FEED, ID, "--yes", "--reason", "request 12", "--json")
            assert erased.code == 0, erased
            result = json.loads(erased.out)
            assert {name: result[name] for name in ("snapshots", "events", "dead_letters", "quarantined")} == {
                "snapshots": 1,
                "events": 2,
                "dead_letters": 2,
                "quarantined": 1,
            }
            assert (result["retries"] >= 1, result["acknowledged"] >= 2, result["unaware"]) == (True, True, [])
            counts = {name: len([one for one in sink.requests if is_of(ID)(one)]) for name, sink in scene.sinks.items()}
            async with scene.store() as client:
                assert places_of(await everything(client)) == set()
                pending: Any = await client.xpending_range(KEYS.events, "foreign", "-", "+", 1000)
                there: Any = await client.xrange(KEYS.events)
                assert {one["message_id"] for one in pending} == {entry for entry, _ in there}
            release.set()
            for sink in scene.sinks.values():
                await sink.until(lambda sink=sink: len(subjects(sink)) >= COUNT - 1, "all others")  # type: ignore[misc]
            after = {name: len([one for one in sink.requests if is_of(ID)(one)]) for name, sink in scene.sinks.items()}
            assert after == counts
            for words in (["get", FEED, ID], ["list", FEED], ["history", FEED, ID, "--json"]):
                shown = await scene.poller("records", *words)
                assert not any(text in shown.out + shown.err for text in (PRIVATE, LATER)), shown
            letters = await scene.poller("dead-letters", "list")
            assert ID not in letters.out, letters
            assert "does not hold" not in letters.out
            async with scene.store() as client:
                await until(lambda: not_rewriting(client), "the file to be written again")
                assert places_of(await everything(client)) == set()
                (event,) = await erasures_announced(client)
            assert (event["subject"], event["data"]["reason"], event["data"]["feed"]) == (ID, "request 12", FEED)
            assert event["data"]["sequences"] == result["sequences"]
            for line in one.lines:
                assert not any(text in json.dumps(line, ensure_ascii=False) for text in (PRIVATE, LATER)), line
            scene.write(5, "back")
            await scene.sinks["well"].until(lambda: b'"reason":"back"' in scene.sinks["well"].requests[-1].body, "it")
            returned = json.loads(scene.sinks["well"].requests[-1].body)
            assert (returned["type"].split(".")[-2], returned["data"]["revision"]) == (
                "created",
                result["revision"] + 1,
            )
        for path in (scene.directory / "data").rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert not any(text.encode() in content for text in (PRIVATE, LATER)), path


async def erasures_announced(client: Redis) -> list[dict[str, Any]]:
    announced: Any = await client.xrange("poller:{operations}:events")
    told = [json.loads(fields[b"data"]) for _, fields in announced]
    return [one for one in told if one["type"] == "poller.record.erased.v1"]


async def not_rewriting(client: Redis) -> bool:
    info: Any = await client.info("persistence")
    return not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]


def subjects(sink: Receiver) -> set[str]:
    return {json.loads(one.body)["subject"] for one in sink.requests} - {ID}


@pytest.mark.parametrize("point", OF_ERASURES)
async def test_an_erasure_that_was_killed_is_completed_by_another(point: str) -> None:
    """Law: killed anywhere, it has harmed nothing, and the same command again leaves nothing of the record.

    It announces the erasure, with what the killed one had found; an event that is repeated has the same id.
    """
    async with scened() as scene, scene.running():
        await planted(scene)
        scene.history.remove(RESOURCE, ID, AT)
        killed = await scene.poller("records", "erase", FEED, ID, "--yes", failpoint=point)
        assert killed.code == -9, killed
        async with scene.store() as client:
            assert "records" not in places_of(await everything(client))
        for _ in range(2):
            again = await scene.poller("records", "erase", FEED, ID, "--yes")
            assert again.code == 0, again
        async with scene.store() as client:
            assert places_of(await everything(client)) == set()
            announced = await erasures_announced(client)
            assert f"unannounced:{ID}".encode() not in cast("list[bytes]", await client.hkeys(KEYS.erased))
        assert len(announced) == (2 if point == "erasure.announced" else 1)
        assert len({event["id"] for event in announced}) == 1
        for event in announced:
            assert event["subject"] == ID
            assert {name: event["data"][name] for name in ("snapshots", "events", "quarantined")} == {
                "snapshots": 1,
                "events": 2,
                "quarantined": 1,
            }
            assert event["data"]["sequences"].count(",") == 1
            assert event["data"]["dead_letters"] >= 2
            assert event["data"]["retries"] >= 1
