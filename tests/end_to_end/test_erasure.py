"""Erasure of a record from a daemon at work: nothing of it is left anywhere, and nothing else is harmed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

import aiohttp
import pytest
from redis.asyncio import Redis

from poller.failpoints import OF_ERASURES
from poller.redis.client import commands
from poller.sandbox.history import History
from poller.sandbox.server import SANDBOX_TOKEN, serving
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.snapshots import SnapshotCodec, key_of
from tests.cli.commands import Ended, ran
from tests.cli.conftest import started
from tests.harness.processes import Daemon, daemon
from tests.harness.waiting import patience, until
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
        lines = [f'embedded = {{ data_dir = "{short}/data" }}', 'http = { bind = "127.0.0.1:0" }']
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
            url = (await one.until(lambda line: line.get("event") == "listening", "its address"))["page"]
            letters = [json.loads(line)["id"] for line in (await told_by(scene, "dead-letters", "list", "--json"))]
            assert showing(await shown(scene, url, letters, 1)) >= SHOWN_BEFORE
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
                assert {one["message_id"] for one in pending} == {entry for entry, _ in there[:-1]}  # one came since
            release.set()
            for sink in scene.sinks.values():
                await sink.until(lambda sink=sink: len(subjects(sink)) >= COUNT - 1, "all others")  # type: ignore[misc]
            after = {name: len([one for one in sink.requests if is_of(ID)(one)]) for name, sink in scene.sinks.items()}
            assert after == counts
            assert showing(await shown(scene, url, letters, 2)) == set()
            left = " ".join(await told_by(scene, "dead-letters", "list"))
            assert (ID in left, "does not hold" in left) == (False, False), left
            async with scene.store() as client:
                await until(lambda: not_rewriting(client), "the file to be written again")
                assert places_of(await everything(client)) == set()
                (event,) = await erasures_announced(client)
            assert (event["subject"], event["data"]["reason"], event["data"]["feed"]) == (ID, "request 12", FEED)
            assert event["data"]["sequences"] == result["sequences"]
            assert [line for line in map(str, one.lines) if is_shown(line) or "HTTP Request" in line] == []
            scene.write(5, "back")
            await scene.sinks["well"].until(lambda: b'"reason":"back"' in scene.sinks["well"].requests[-1].body, "it")
            returned = json.loads(scene.sinks["well"].requests[-1].body)
            assert (returned["type"].split(".")[-2], returned["data"]["revision"]) == (
                "created",
                result["revision"] + 1,
            )
            assert_no_file_holds_it(scene)
            await trimmed(scene)
        assert_no_file_holds_it(scene)


async def trimmed(scene: Scene) -> None:
    """Bytes of deleted entries stay in a stream's memory until it is trimmed, and nowhere after that."""
    async with scene.store() as client:
        await client.xtrim(KEYS.events, maxlen=0, approximate=False)
        assert places_of(await dumped(client)) == set()
        await client.bgrewriteaof()
        await until(lambda: not_rewriting(client), "the file to be written again")
        assert places_of(await dumped(client)) == set()
    assert_no_file_holds_it(scene)


def assert_no_file_holds_it(scene: Scene) -> None:
    paths = [path for path in (scene.directory / "data").rglob("*") if path.is_file()]
    assert [path.name for path in paths if path.suffix == ".aof"]
    assert places_of({str(path): path.read_bytes() for path in paths}) == set()


async def dumped(client: Redis) -> dict[str, bytes]:
    """The bytes of each key as they would be in a file of the server."""
    names: list[bytes] = [name async for name in client.scan_iter()]
    return {name.decode(): cast("Any", await client.dump(name)) or b"" for name in names}


# What commands and the HTTP interface show.

COMMANDS = [
    ("status",),
    ("status", FEED),
    ("records", "list", FEED),
    ("records", "get", FEED, ID),
    ("records", "history", FEED, ID),
    ("dead-letters", "list"),
    ("subscriptions", "list"),
]
"""Those that have ``--json`` and end by themselves."""

SHOWN_BEFORE = {
    f"records list {FEED} --json",
    f"records get {FEED} {ID}",
    f"records history {FEED} {ID}",
    f"records history {FEED} {ID} --json",
    "dead-letters show",
    "tail --from earliest --json",
    "/events",
    "/feeds/{source}/{name}/records",
    "/feeds/{source}/{name}/records as lines",
    "/feeds/{source}/{name}/records/{record}",
    "/feeds/{source}/{name}/records/{record}/history",
}


def is_shown(text: str) -> bool:
    return any(value in text for value in (PRIVATE, LATER))


def showing(found: dict[str, str]) -> set[str]:
    """The names of what shows a value of the record."""
    return {name for name, text in found.items() if is_shown(text)}


async def told_by(scene: Scene, *words: str) -> list[str]:
    ended = await scene.poller(*words)
    assert ended.code in {0, 1}, ended
    return (ended.out + ended.err).splitlines()


async def shown(scene: Scene, url: str, letters: list[str], time: int) -> dict[str, str]:
    """All that commands and the HTTP interface show, by command and by path.

    Args:
        scene: the daemon and its API.
        url: of the HTTP interface.
        letters: ids of dead letters and quarantined records to be shown, also where they are gone.
        time: how many times this was called; it makes the last event, up to which streams are read.
    """
    last = f"the last one {time}"
    scene.write(6, last)
    found: dict[str, str] = {}
    plain = [("subscriptions", "show", name) for name in SUBSCRIPTIONS]
    plain += [("dead-letters", "show", one) for one in letters]
    for words in [*plain, *COMMANDS, *((*words, "--json") for words in COMMANDS)]:
        name = " ".join(word for word in words if word not in letters)
        found[name] = "\n".join([found.get(name, ""), *await told_by(scene, *words)])
    for more in ((), ("--json",)):
        words = ("tail", "--from", "earliest", "--operations", FEED, *more)
        found["tail --from earliest" + "".join(f" {one}" for one in more)] = await tailed(scene, words, last)
    async with aiohttp.ClientSession(url) as http:
        async with http.get("/openapi.json") as answer:
            paths = [path for path, methods in (await answer.json())["paths"].items() if "get" in methods]
        for path in paths:
            found[path] = await answered(http, path, last)
        found["/feeds/{source}/{name}/records as lines"] = await answered(
            http, "/feeds/{source}/{name}/records", last, accept="application/x-ndjson"
        )
    return found


async def tailed(scene: Scene, words: tuple[str, ...], last: str) -> str:
    """What it writes up to the last event, which it is given by its subject where values are not shown."""
    async with started(*words, "--config", str(scene.file), cwd=scene.directory, **scene.environ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        async with patience("the last event"):
            while last not in "".join(lines[-1:]):
                line = await process.stdout.readline()
                assert line, lines
                lines.append(line.decode())
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    return "".join(lines)


async def answered(http: aiohttp.ClientSession, path: str, last: str, **headers: str) -> str:
    """All pages of an answer; events from the first to the last one."""
    names = {"source": "acme", "name": "events" if "schemas" in path else RESOURCE}
    following: str | None = path.format(**names, record=ID, subscription="given-up")
    text = ""
    async with patience(path):
        if path == "/events":
            async with http.get("/events?from=earliest") as answer:
                while last not in text:
                    text += (await answer.content.readline()).decode()
            return text
        while following is not None:
            async with http.get(following, headers=headers) as answer:
                assert answer.status in ({400, 404} if "callback" in path else {200, 410}), (path, answer.status)
                text += await answer.text()
                link = re.search('<([^>]*)>; rel="next"', answer.headers.get("link", ""))
                following = link[1] if link else None
    return text


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
