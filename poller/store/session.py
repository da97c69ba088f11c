"""The configured store, opened and checked: a Redis by URL, or the embedded server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.client import blocking, commands, shown
from poller.redis.embedded import EmbeddedServer, disk_shortage
from poller.redis.errors import let_in, translated
from poller.redis.health import ServerCheck, check_store, enforced
from poller.store.clock import StoreClock
from poller.store.keys import KEY_TYPES, MemberKeys
from poller.store.scripts import SHEBANG

STORE_PATIENCE: Final = timedelta(seconds=3)
"""How long a command waits for a store that does not answer; a daemon waits for ever."""

_FIRST_PAUSE: Final = 0.25  # seconds between looks at a store that is away; doubles up to
_LONGEST_PAUSE: Final = 5.0
_SHEBANG_SINCE: Final = 7  # major version, of Redis and of Valkey's claim to be compatible with it

_log = structlog.get_logger("poller.store")


def command_client(url: str, clock: Clock) -> Redis:
    """A client for commands that do not block; its errors name a key of another type."""
    return commands(url, key_types=KEY_TYPES, clock=clock)


def blocking_client(url: str, *, block: timedelta, clock: Clock) -> Redis:
    """A client for reads that BLOCK at most ``block``; its errors name a key of another type."""
    return blocking(url, block=block, key_types=KEY_TYPES, clock=clock)


class OpenStore(msgspec.Struct, frozen=True):
    """An open store: its URL, client and clock.

    Attributes:
        url: for further clients.
        client: for commands that do not block.
        clock: the store's; known once the store is ready, see :func:`until_ready`.
    """

    url: str
    client: Redis
    clock: StoreClock

    @property
    def shown(self) -> str:
        """The URL without anything secret."""
        return shown(self.url)


@asynccontextmanager
async def opened_store(
    settings: Settings, *, clock: StoreClock, waits_for_disk: bool = False
) -> AsyncIterator[OpenStore]:
    """The store for the time of the block; an embedded server is started, kept, and stopped if it was started here.

    A Redis by URL is not asked anything yet: see :func:`until_ready`.

    Args:
        settings: the configuration.
        clock: of this store, see :func:`clock_of`.
        waits_for_disk: open the store also if the embedded server cannot start yet because its disk is full.

    Raises:
        ConfigurationError: the URL or the embedded server's directory cannot be used.
        StoreUnavailable: the embedded server does not start.
    """
    if settings.redis.url is not None:
        async with _client(settings.redis.url, clock) as client:
            yield OpenStore(settings.redis.url, client, clock)
        return
    server = EmbeddedServer(settings.embedded.data_dir, clock=clock)
    try:
        try:
            await server.ensure()
        except StoreUnavailable as error:
            if not (waits_for_disk and disk_shortage(settings.embedded.data_dir)):
                raise
            _warn(str(error))
        keeping = asyncio.create_task(server.keep(), name="embedded server")
        try:
            async with _client(server.url, clock) as client:
                yield OpenStore(server.url, client, clock)
        finally:
            await ended(keeping)
    finally:
        await server.stop()


@asynccontextmanager
async def ready_store(settings: Settings) -> AsyncIterator[OpenStore]:
    """The store for one command: open, and known to answer.

    Raises:
        ConfigurationError: see :func:`opened_store`.
        StoreError: it did not answer within :data:`STORE_PATIENCE`, or refused.
    """
    async with opened_store(settings, clock=clock_of(settings, Clock())) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        yield store


def clock_of(settings: Settings, process: Clock) -> StoreClock:
    """The clock of the store that the configuration names; nothing is known of it yet."""
    return StoreClock(MemberKeys.of(settings.redis.prefix).version, process=process)


@asynccontextmanager
async def _client(url: str, clock: Clock) -> AsyncIterator[Redis]:
    client = command_client(url, clock)
    try:
        yield client
    finally:
        await client.aclose()


def _warn(text: str) -> None:
    _log.warning("redis unavailable", error=text, advice="retrying; no data is lost")


async def until_ready(
    store: OpenStore,
    *,
    patience: timedelta | None,
    away: Callable[[str], None] = _warn,
) -> str:
    """Wait until the store answers; returns the first line that its scripts begin with.

    Args:
        store: open.
        patience: how long to wait before the failure is raised; None: until cancelled.
        away: called with a line of text each time that it does not answer.

    Raises:
        StoreUnavailable: it did not answer within ``patience``.
        StoreRefused: it refuses access (password, permission).
    """
    clock = store.clock
    begun, pause = clock.monotonic(), _FIRST_PAUSE
    while True:
        try:
            with translated(store.client):
                server = await store.client.info("server")
            let_in(store.client)
            with suppress(StoreError):  # a server that runs no script now sends its time with a later reply
                await clock.ask(store.client)
            return SHEBANG if _major(server.get("redis_version")) >= _SHEBANG_SINCE else ""
        except StoreUnavailable as error:
            if patience is not None and clock.monotonic() + pause - begun > patience.total_seconds():
                raise
            away(str(error))
        await clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


def _major(version: object) -> int:
    text = str(version).partition(".")[0]
    return int(text) if text.isdecimal() else 0


async def examined(settings: Settings, store: OpenStore) -> Sequence[ServerCheck]:
    """Check the store against ``redis.durability`` and log every check that is not ok; returns all checks.

    Raises:
        ConfigurationError: it is less durable than is required.
        StoreError: it does not answer.
    """
    findings = await check_store(store.client, process=store.clock.process)
    for finding in enforced(findings, settings.redis.durability):
        log = _log.error if finding.severity == "error" else _log.warning
        log("store check", check=finding.name, severity=finding.severity, advice=finding.text)
    return findings
