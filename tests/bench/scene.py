"""What is measured on: a sandbox in a process of its own, a real server, one feed, and rounds run in this process."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec
from redis.asyncio import Redis

from poller.auth.base import EnvironmentToken
from poller.clock import Clock
from poller.redis.client import commands
from poller.resources import RESOURCES
from poller.source.client import ApiClient
from poller.source.feed import Feed, RoundResult
from poller.source.paging import ListQuery
from poller.source.round import run_round
from poller.store.feed import FeedScripts, FeedStore
from poller.store.keys import FeedKeys
from poller.store.scripts import SHEBANG

PAGE = 1000
RESOURCE = RESOURCES["employmentUnavailabilities"]


@contextmanager
def sandbox(records: int, *more: str) -> Iterator[str]:
    """The base URL of a sandbox with so many records that makes no changes by itself."""
    command = [sys.executable, "-m", "poller", "sandbox", "--port", "0", "--records", str(records)]
    process = subprocess.Popen([*command, "--changes-per-second", "0", *more], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise RuntimeError(f"the sandbox did not start: {line!r}")
        yield found[0]
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Bench(msgspec.Struct):
    """One feed on one server, read from one API."""

    feed: Feed
    keys: FeedKeys
    store: FeedStore
    api: ApiClient
    redis: Redis

    async def round(self) -> RoundResult:
        """One real round; raises if it fails, for a failure has no speed."""
        result = await run_round(self.feed, self.store, self.api.get, clock=Clock(), qualifications=_none)
        if not result.ok:
            raise RuntimeError(result.error)
        return result


@asynccontextmanager
async def bench(
    api_url: str, store_url: str, *, delta: bool = True, limit: int = PAGE, qualifications: tuple[str, ...] = ()
) -> AsyncIterator[Bench]:
    """A feed of unavailabilities, or of the achievements of qualifications, joined from the program's own parts."""
    resource = RESOURCES["achievements"] if qualifications else RESOURCE
    redis = commands(store_url)
    keys = FeedKeys.of("bench", f"sandbox/{resource.name}")
    store = FeedStore(
        redis,
        FeedScripts(redis, shebang=SHEBANG),
        keys,
        nonce=secrets.token_hex(16),
        lease=timedelta(minutes=5),
        clock=Clock(),
    )
    query, delta = ListQuery(limit=limit), delta and resource.delta
    feed = Feed(f"sandbox/{resource.name}", resource, query, api_url, "org.example", delta=delta)
    feed = msgspec.structs.replace(feed, qualifications=qualifications, discover=False)
    token = EnvironmentToken("TOKEN", {"TOKEN": "sandbox"})
    async with ApiClient(api_url, credential=token, clock=Clock()) as api:
        try:
            yield Bench(feed, keys, store, api, redis)
        finally:
            await redis.aclose()


async def _none(since: int) -> Mapping[str, int]:
    return {}


def short_directory(root: Path, name: str) -> Path:
    """A directory whose path leaves room for a socket's name."""
    directory = root / name
    directory.mkdir()
    return directory
