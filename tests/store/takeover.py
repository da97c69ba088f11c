"""The scene of :mod:`tests.store.test_takeover`: an API, sinks, a configuration, and a store kept as JSON.

``python -m tests.store.takeover FILE``, run with an earlier version of the program, plays the first half with real
processes and writes the contents of their store to the file. The store then holds: two feeds with a baseline and delta
tokens, one of them paused; a subscription of the file with a delivery that waits for its next attempt and an event that
was never sent; one added at run time with a dead letter; one paused by an operator with an undelivered event; one that
left the file, with an undelivered event.

One receiver serves as all sinks and as the proxy before the API. Its URL is part of the stored data, and its port has
five digits in every run, so that the length of the stored values stays the same.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from redis.asyncio import Redis

from tests.harness.processes import daemon, ran
from tests.harness.waiting import lasting, until
from tests.receiver import Received, Receiver, Reply, receiving
from tests.servers import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

KEPT: Final = Path(__file__).with_name("takeover.json")
PORT: Final = "{PORT}"
API: Final = "http://api.example.org/v1"
DELTA: Final = "sinceDeltaToken"
SINKS: Final = ("waits", "added", "rests", "left")
_LARGEST: Final = 65_535
_SMALLEST: Final = 10_000


class World:
    """The API and the sinks, behind one receiver.

    Attributes:
        records: of each resource, by id.
        tokens: the delta token that each resource gives out.
        changed: the records in the delta of the token before.
        failing: the sinks that answer 503.
        asked: the targets of the requests to the API.
        delivered: the ids of the events that each sink has accepted, in their order.
    """

    def __init__(self) -> None:
        self.records: dict[str, dict[str, dict[str, Any]]] = {"contractTypes": {}, "evidenceVariants": {}}
        self.tokens = {"contractTypes": "c1", "evidenceVariants": "e1"}
        self.changed: dict[str, dict[str, list[dict[str, Any]]]] = {"contractTypes": {}, "evidenceVariants": {}}
        self.failing: set[str] = set()
        self.asked: list[str] = []
        self.delivered: dict[str, list[str]] = {name: [] for name in SINKS}
        self.refused: dict[str, list[str]] = {name: [] for name in SINKS}

    def put(self, resource: str, record: dict[str, Any], *, version: str) -> None:
        """Store a new version of a record in the API; the delta of the token before shows it."""
        self.records[resource][record["id"]] = record
        self.changed[resource] = {self.tokens[resource]: [record]}
        self.tokens[resource] = version

    def has_delivered(self, count: int, sinks: Sequence[str]) -> bool:
        """Whether each of these sinks has accepted this number of events."""
        return all(len(self.delivered[name]) == count for name in sinks)

    def __call__(self, request: Received) -> Reply:
        path, _, query = request.target.removeprefix(API).partition("?")
        name = path.strip("/")
        if name in self.delivered:
            event = request.header("webhook-id") or ""
            (self.refused if name in self.failing else self.delivered)[name].append(event)
            return Reply(503 if name in self.failing else 204)
        self.asked.append(request.target)
        return self._page(name, query)

    def _page(self, resource: str, query: str) -> Reply:
        parameters = dict(part.split("=") for part in query.split("&") if "=" in part)
        token = parameters.get(DELTA)
        if token is None:
            found = list(self.records[resource].values())
        elif token == self.tokens[resource]:
            found = []
        else:
            found = self.changed[resource][token]
        body = {"results": found, "deltaToken": self.tokens[resource]}
        return Reply(200, [("Content-Type", "application/json")], json.dumps(body).encode())


def configured(directory: Path, *, store: str, receiver: str, left: bool) -> Path:
    """The configuration; ``left``: whether the file lists the subscription "left"."""
    sinks = ["waits", *(["left"] if left else [])]
    subscriptions = (
        f'[[subscriptions]]\nid = "{name}"\nsink = "{receiver}/{name}"\nallow_private = true\n'
        'feeds = ["acme/evidenceVariants"]\nstart = "earliest"\nretry = { schedule = ["60s"], jitter = 0 }\n'
        for name in sinks
    )
    feeds = (
        f'[[sources.feeds]]\nresource = "{resource}"\ninterval = "200ms"\njitter = "10ms"\nreconcile = "off"\n'
        for resource in ("contractTypes", "evidenceVariants")
    )
    path = directory / "poller.toml"
    path.write_text(
        f'[redis]\nurl = "{store}"\n[lease]\nttl = "{lasting(1)}"\n[http]\nbind = "off"\n[retention]\nage = "3650d"\n'
        f'[[sources]]\nname = "acme"\nbase_url = "{API}"\nproxy = "{receiver}"\nauth = {{ none = true }}\n'
        + "".join(feeds)
        + "".join(subscriptions)
    )
    return path


async def poller(config: Path, *arguments: str) -> str:
    """The standard output of a command, which has to succeed."""
    code, said = await ran("--config", str(config), *arguments)
    assert code == 0, (arguments, said)
    return said.decode()


@asynccontextmanager
async def five_digits(world: World) -> AsyncIterator[Receiver]:
    """A receiver whose port number has five digits."""
    async with receiving(world) as receiver:
        port = int(receiver.url.rpartition(":")[2])
        assert _SMALLEST <= port <= _LARGEST, port
        yield receiver


def _text(value: bytes, port: str) -> str:
    return value.decode("latin-1").replace(f":{port}", f":{PORT}")


def _bytes(value: str, port: str) -> bytes:
    return value.replace(f":{PORT}", f":{port}").encode("latin-1")


async def dumped(client: Any, port: str) -> dict[str, Any]:
    """All that the store holds except leases, which have expired by the time it is restored; bytes as Latin-1."""
    store: dict[str, Any] = {}
    for key in sorted([key.decode() async for key in client.scan_iter()]):
        kind = (await client.type(key)).decode()
        if await client.pttl(key) >= 0:
            continue
        if kind == "string":
            held: Any = _text(cast("bytes", await client.get(key)), port)
        elif kind == "hash":
            fields = cast("dict[bytes, bytes]", await client.hgetall(key))
            held = {_text(name, port): _text(value, port) for name, value in fields.items()}
        elif kind == "zset":
            held = [[_text(name, port), score] for name, score in await client.zrange(key, 0, -1, withscores=True)]
        else:
            held = await _stream(client, key, port)
        store[key] = [kind, held]
    return store


async def _stream(client: Any, key: str, port: str) -> dict[str, Any]:
    entries = [
        [number.decode(), {_text(name, port): _text(value, port) for name, value in fields.items()}]
        for number, fields in await client.xrange(key)
    ]
    last = (await client.xinfo_stream(key))["last-generated-id"].decode()
    groups = {}
    for group in await client.xinfo_groups(key):
        name = group["name"].decode()
        pending = await client.xpending_range(key, name, "-", "+", 1000)
        groups[name] = [
            group["last-delivered-id"].decode(),
            [[one["message_id"].decode(), one["consumer"].decode()] for one in pending],
        ]
    return {"entries": entries, "last": last, "groups": groups}


async def restored(client: Any, store: dict[str, Any], port: str) -> None:
    """Restore a dumped store."""
    for key, (kind, held) in store.items():
        if kind == "string":
            await client.set(key, _bytes(held, port))
        elif kind == "hash":
            await client.hset(key, mapping={_bytes(name, port): _bytes(value, port) for name, value in held.items()})
        elif kind == "zset":
            await client.zadd(key, {_bytes(name, port): score for name, score in held})
        else:
            for number, fields in held["entries"]:
                await client.xadd(
                    key, {_bytes(one, port): _bytes(value, port) for one, value in fields.items()}, number
                )
            for name, (read, pending) in held["groups"].items():
                await client.xgroup_create(key, name, id=read, mkstream=True)
                for number, consumer in pending:
                    await client.xclaim(key, name, consumer, 0, [number], force=True, justid=True)


async def play() -> dict[str, Any]:
    """Play the first half with the installed version of the program."""
    world = World()
    for number in range(1, 4):
        world.records["contractTypes"][f"c{number}"] = {"id": f"c{number}", "name": f"contract {number}"}
        world.records["evidenceVariants"][f"e{number}"] = {"id": f"e{number}", "name": f"variant {number}"}
    with tempfile.TemporaryDirectory() as place, running("valkey", Path(place) / "v") as server:
        async with five_digits(world) as receiver, Redis.from_url(server.url) as client:
            config = configured(Path(place), store=server.url, receiver=receiver.url, left=True)
            for name, schedule in (("added", '["10ms"]'), ("rests", '["60s"]')):
                settings = Path(place) / name
                settings.write_text(
                    f'{{"id":"{name}","sink":"{receiver.url}/{name}","allow_private":true,"start":"earliest",'
                    f'"feeds":["acme/evidenceVariants"],"retry":{{"schedule":{schedule},"jitter":0}}}}'
                )
                await poller(config, "subscriptions", "add", "--from-json", str(settings))
            async with daemon(config) as running_daemon:
                await until(partial(world.has_delivered, 3, SINKS), "the deliveries")
                world.failing |= {"waits", "added"}
                world.put("evidenceVariants", {"id": "e1", "name": "changed once"}, version="e2")
                await until(lambda: len(world.refused["waits"]) == 1, "a refused attempt")
                await until(lambda: len(world.refused["added"]) == 2, "both attempts")
                prefix = "poller:{acme/evidenceVariants}:sub"
                await until(lambda: client.hlen(f"{prefix}:waits:parked"), "a parked delivery")
                await until(lambda: client.hlen(f"{prefix}:added:letters"), "a dead letter")
                await until(partial(world.has_delivered, 4, ("rests", "left")), "the deliveries")
                await poller(config, "pause", "contractTypes")
                await poller(config, "subscriptions", "pause", "rests")
                running_daemon.send(signal.SIGTERM)
                assert await running_daemon.left() == 0
            config = configured(Path(place), store=server.url, receiver=receiver.url, left=False)
            async with daemon(config, command=("poller", "run", "--only", "deliver")) as deliverer:
                await until(
                    lambda: client.hexists("poller:{subscriptions}:paused", "left"), "the subscription to be paused"
                )
                deliverer.send(signal.SIGTERM)
                assert await deliverer.left() == 0
            world.put("evidenceVariants", {"id": "e2", "name": "never sent"}, version="e3")
            async with daemon(config, command=("poller", "run", "--only", "poll")) as poll:
                await poll.until(lambda line: line.get("event") == "round" and line["modified"] == 1, "a change")
                poll.send(signal.SIGTERM)
                assert await poll.left() == 0
            port = receiver.url.rpartition(":")[2]
            return await dumped(client, port)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asyncio.run(play()), indent=1) + "\n")
