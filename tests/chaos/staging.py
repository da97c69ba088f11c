"""Sets up the scene of a chapter with the store, wires and proxies that its fault needs."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import quote

from poller.redis.embedded import SOCKET
from tests.chaos.checkouts import exported
from tests.chaos.confided import SECRETS, SOURCE, confided, users
from tests.chaos.lasting import LastingStore
from tests.chaos.load import Load
from tests.chaos.replicas import Replicas
from tests.chaos.stage import EMBEDDED, MOODS, RECEIVED, TTL, Cast, Served, Stage, heard
from tests.harness.cluster import cluster
from tests.harness.consumed import consumed
from tests.harness.processes import daemon
from tests.harness.received import received
from tests.harness.scene import RESOURCES
from tests.harness.sentinels import sentinels
from tests.harness.subscribed import SECRET, Wish, subscribed
from tests.harness.waiting import strain
from tests.harness.wire import wired
from tests.proxy import proxied

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from tests.chaos.fault import Fault, Setting
    from tests.chaos.plan import Chapter
    from tests.harness.consumed import ConsumerGroup
    from tests.harness.processes import Daemon
    from tests.harness.received import ReceiverProcess
    from tests.harness.wire import Wire

_CHANGES = 40.0  # a second
_LEASE = 0.5  # seconds on a quiet machine, of a member of a group
_CONFIG = {"interval": "200ms", "ttl": f"{TTL:g}s", "limit": "40", "reconcile": "3s", "timeout": "2s"}


@asynccontextmanager
async def staged(chapter: Chapter, fault: Fault, directory: Path, cast: Cast) -> AsyncIterator[Stage]:
    """A stage for the duration of the block; it already polls when the block begins."""
    setting = fault.setting
    async with AsyncExitStack() as stack:
        served = await _served(stack, setting, directory)
        url = served.url if served else f"unix://{directory / EMBEDDED / SOCKET}"
        scene = await stack.enter_async_context(
            subscribed(
                directory,
                cast.wishes,
                store=url,
                seed=chapter.seed,
                records=setting.records,
                changes_per_second=0,
                feeds=RESOURCES,
                profile=setting.profile,
                faults=setting.misbehaviour,
            )
        )
        scene.heard = heard()
        if setting.misbehaviour:
            await scene.played.call("profiles?on=0")
        await scene.played.call(f"token?value={quote(SECRETS[SOURCE], safe='')}")
        ends = {"store": url, "source": scene.played.source, "sinks": scene.sinks.url}
        wires: dict[str, Wire] = {
            name: await stack.enter_async_context(wired(end)) for name, end in ends.items() if name in setting.between
        }
        if "sinks" in wires:
            scene.losses = wires["sinks"].losses
        scene.wire = wires.get("store")
        proxy = await stack.enter_async_context(proxied(url)) if "commands" in setting.between else None
        ways = {name: wire.url for name, wire in wires.items()} | ({"store": proxy.url} if proxy else {})
        config = scene.config(lines=setting.feeds, **{**_CONFIG, **setting.config, **ways})
        receiver = _receiver(stack, chapter, directory, config) if cast.receiver else None
        if served is None:
            _own_store(config, url, directory / EMBEDDED)
        environ = {name: text.format(directory=directory) for name, text in setting.environ.items()}
        environ |= confided(config, ways.get("store", url) if setting.store == "lasting" else "")
        load = Load(scene.played, Random(chapter.seed), per_second=_CHANGES, removals=cast.removals)
        checkout = await asyncio.to_thread(exported, setting.former, directory) if setting.former else None
        replicas = Replicas(partial(started_with, config), cast.commands, environ, checkout)
        stack.push_async_callback(load.close)
        stack.push_async_callback(replicas.close)
        for wish in cast.wishes:
            scene.sinks.mood(wish.sink, MOODS)
        await replicas.open()
        await replicas.at_work()
        load.start()
        consumers = _consumers(stack, chapter, directory, ways.get("store", url)) if cast.consumers else None
        yield Stage(directory, cast, scene, replicas, load, served, wires, proxy, receiver, consumers)


def _receiver(stack: AsyncExitStack, chapter: Chapter, directory: Path, config: Path) -> ReceiverProcess:
    """A receiver of the client library, and its subscription in the configuration."""
    receiver = stack.enter_context(received(directory / "ledger", secret=SECRET, seed=chapter.seed))
    table = Wish(RECEIVED).table(directory / "secret", receiver.url, "2s")
    config.write_text(config.read_text() + table)
    return receiver


def _consumers(stack: AsyncExitStack, chapter: Chapter, directory: Path, url: str) -> ConsumerGroup:
    """A group of the client library that reads all feeds."""
    feeds, lease = [f"acme/{resource}" for resource in RESOURCES], timedelta(seconds=_LEASE * strain())
    ledger = directory / "consumed"
    return stack.enter_context(consumed(ledger, store=url, feeds=feeds, lease=lease, seed=chapter.seed))


async def _served(stack: AsyncExitStack, setting: Setting, directory: Path) -> Served | None:
    if setting.store == "cluster":
        return await asyncio.to_thread(stack.enter_context, cluster(directory / "c"))
    if setting.store == "sentinel":
        return await asyncio.to_thread(stack.enter_context, sentinels(directory / "w"))
    if setting.store == "embedded":
        return None
    options = {**setting.options, "aclfile": str(users(directory))}
    environ = {name: text.format(directory=directory) for name, text in setting.store_environ.items()}
    lasting = LastingStore(directory / "v", appendfsync=setting.appendfsync, options=options, environ=environ)
    stack.callback(lasting.close)
    await lasting.start()
    return lasting


def started_with(
    config: Path,
    command: Sequence[str],
    *,
    failpoint: str,
    environ: Mapping[str, str],
    checkout: Path | None = None,
) -> AbstractAsyncContextManager[Daemon]:
    """A process with this configuration, for the duration of a block."""
    return daemon(config, command=command, failpoint=failpoint, environ=environ, level="debug", checkout=checkout)


def _own_store(config: Path, url: str, directory: Path) -> None:
    """Configure the embedded store."""
    text = config.read_text()
    told = text.replace(f'[redis]\nurl = "{url}"', f'[embedded]\ndata_dir = "{directory}"')
    assert told != text
    config.write_text(told)
