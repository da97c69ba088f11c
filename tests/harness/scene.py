"""A scene: a changing source, a durable store, and a judge of the streams.

Source and store are real processes, accessed from outside by the names of the contract.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import aiohttp

from poller.clock import Clock
from poller.redis.client import blocking
from poller.store.stream import follow, last_id
from tests.harness.checker import Verdict, judge
from tests.harness.json_values import read
from tests.harness.processes import SANDBOX_TOKEN, sandbox
from tests.harness.waiting import PATIENCE, Deadline, lasting, patience, strain
from tests.servers import running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from redis.asyncio import Redis

RESOURCES = ("contractTypes", "evidenceVariants", "employmentUnavailabilities", "achievements")


def stream(resource: str) -> str:
    """The key of a feed's stream."""
    return f"poller:{{acme/{resource}}}:events"


def lease(resource: str) -> str:
    """The key of a feed's lease."""
    return f"poller:{{acme/{resource}}}:lease"


@dataclass(frozen=True, slots=True)
class Scene:
    """Source, store and a directory of its own.

    Attributes:
        source: the sandbox's URL.
        store: the store's URL, for daemons.
        client: a client of the store, for reading.
        http: a client for the sandbox.
    """

    directory: Path
    source: str
    store: str
    client: Redis
    http: aiohttp.ClientSession

    def config(
        self,
        name: str = "poller",
        *,
        resources: Sequence[str] = RESOURCES,
        lines: Mapping[str, str] = MappingProxyType({}),
        **differing: str,
    ) -> Path:
        """A configuration file.

        Args:
            name: of the file.
            resources: the feeds.
            lines: more lines for the tables of some feeds; a ``limit`` among them replaces the common one.
            differing: ``store``, ``source``, ``interval``, ``ttl``, ``limit``, ``reconcile``, ``timeout`` or ``bind``,
                where the default does not fit.
        """
        use = {"store": self.store, "source": self.source, "interval": "150ms", "ttl": lasting(0.5), "limit": "40"}
        use |= {"reconcile": "off", "timeout": "30s", "bind": "off"} | differing
        feeds = (
            f'[[sources.feeds]]\nresource = "{resource}"\ninterval = "{use["interval"]}"\njitter = "20ms"\n'
            f'reconcile = "{use["reconcile"]}"\n{_with_limit(lines.get(resource, ""), use["limit"])}\n'
            for resource in resources
        )
        token = self.directory / "token"
        token.write_text(SANDBOX_TOKEN)
        token.chmod(0o600)
        path = self.directory / f"{name}.toml"
        path.write_text(
            f'[redis]\nurl = "{use["store"]}"\n[lease]\nttl = "{use["ttl"]}"\n[http]\nbind = "{use["bind"]}"\n'
            f'[[sources]]\nname = "acme"\nbase_url = "{use["source"]}"\n'
            f'auth = {{ token_file = "{token}" }}\ntimeout = "{use["timeout"]}"\n' + "".join(feeds)
        )
        return path

    async def version(self) -> int:
        """The number of the source's latest version."""
        return int((await self._asked("GET", "version"))["version"])

    async def change(self, count: int) -> None:
        """Make the source change this many times immediately."""
        await self._asked("POST", f"changes?count={count}")

    async def put(self, resource: str, record: Mapping[str, Any]) -> None:
        """Create or replace a record of the source."""
        await self._asked("POST", f"records/{resource}", json.dumps(record).encode())

    async def remove(self, resource: str, record_id: str) -> None:
        """Remove a record of the source."""
        await self._asked("DELETE", f"records/{resource}/{record_id}")

    async def call(self, what: str) -> None:
        """Make one of the sandbox's control calls, such as ``expire?pages=1``."""
        await self._asked("POST", what)

    async def log(self, *, since: int = 0) -> list[dict[str, Any]]:
        """The source's history after a version."""
        found: list[dict[str, Any]] = await self._asked("GET", f"log?since={since}")
        return found

    async def events(self, resource: str) -> list[bytes]:
        """A feed's stream from its start."""
        entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await self.client.xrange(stream(resource)))
        return [fields[b"data"] for _, fields in entries]

    async def published(self) -> int:
        """How many events there are in all streams."""
        return sum([await self.client.xlen(stream(resource)) for resource in RESOURCES])

    async def leases(self) -> int:
        """How many feeds have a lease."""
        return sum([int(await self.client.exists(lease(resource))) for resource in RESOURCES])

    async def owners(self, *leases: str) -> dict[str, str]:
        """The owner of each of these leases, by default those of all feeds; free leases are left out."""
        names = leases or tuple(map(lease, RESOURCES))
        values = zip(names, cast("list[bytes | None]", [await self.client.get(name) for name in names]), strict=True)
        return {name: value.decode().partition("/")[0] for name, value in values if value}

    async def shared(self, *counts: int, leases: Sequence[str] = ()) -> dict[str, str]:
        """Wait until the processes have these counts of leases, in any order; the owners then."""
        async with patience(f"leases to be shared {counts}"):
            owners = await self.owners(*leases)
            while sorted(Counter(owners.values()).values()) != sorted(counts):
                await self._more()
                owners = await self.owners(*leases)
        return owners

    async def verdict(self, upto: int | None = None) -> Verdict:
        """Judge all streams; they are read before the log, so that the log covers all they may hold."""
        version = await self.version() if upto is None else upto
        streams = {resource: await self.events(resource) for resource in RESOURCES}
        return judge(await self.log(), streams, upto=version)

    async def growth(self, count: int, *, unless: asyncio.Event, seconds: float = PATIENCE) -> None:
        """Wait until the streams have grown by this many entries, or the event is set."""
        target = await self.published() + count
        async with patience(f"{count} more events", seconds):
            while await self.published() < target and not unless.is_set():
                await self._more()

    async def caught_up(self) -> Verdict:
        """Wait until everything the source has now is published, and judge; what is missing by then is lost."""
        upto, deadline = await self.version(), Deadline()
        verdict = await self.verdict(upto)
        while verdict.lost and deadline.left > 0:
            await self._more()
            verdict = await self.verdict(upto)
        return verdict

    async def _more(self) -> None:
        """Return when a stream has new entries, or after a short time."""
        last = {stream(resource): await last_id(self.client, stream(resource)) for resource in RESOURCES}
        async with aclosing(follow(self.client, last, block=timedelta(milliseconds=50), clock=Clock())) as coming:
            await anext(coming)

    async def _asked(self, method: str, path: str, body: bytes | None = None) -> Any:
        async with self.http.request(method, f"{self.source}/_sandbox/{path}", data=body) as answer:
            answer.raise_for_status()
            return read(await answer.text() or "null")


def _with_limit(lines: str, limit: str) -> str:
    return lines if "limit" in lines else f"limit = {limit}\n{lines}"


@asynccontextmanager
async def scene(
    directory: Path,
    *,
    records: int = 120,
    changes_per_second: float = 40,
    seed: int = 1,
    profile: str = "",
    faults: str = "",
    store: str | None = None,
) -> AsyncIterator[Scene]:
    """A scene for the duration of the block; it starts its own store unless one is given.

    The rate of changes is that of a quiet machine, and lower on a busy one.
    """
    async with AsyncExitStack() as stack:
        if store is None:
            store = stack.enter_context(running("valkey", directory / "v", appendfsync="always")).url
        source = await stack.enter_async_context(
            sandbox(
                records=records,
                changes_per_second=changes_per_second / strain(),
                seed=seed,
                profile=profile,
                faults=faults,
            )
        )
        client = await stack.enter_async_context(blocking(store, block=timedelta(seconds=PATIENCE)))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Scene(directory, source, store, client, http)
