"""What deliveries are measured on: a real server, events in one feed's stream, the real daemon, its subscriptions."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import psutil  # type: ignore[import-untyped]  # has no types of its own
from redis.asyncio import Redis

from tests.bench.receiver import Arrived, arrived, stamp
from tests.harness.processes import Daemon, daemon
from tests.harness.waiting import until

STREAM = "poller:{acme/employmentUnavailabilities}:events"
_SECRET = "whsec_" + b64encode(bytes(range(32))).decode()
_KEYS = 5_000
_CHUNK = 1_000
_TICK = 0.004  # seconds
_LONG = 120.0  # seconds
_REWRITES = "auto-aof-rewrite-percentage"
_USUALLY = 100  # per cent, the server's own default
_LOOK = 0.05  # seconds between looks at the receiver: each costs it something
_CONFIG = """\
[redis]
url = "{store}"
[http]
bind = "off"
[[sources]]
name = "acme"
base_url = "http://127.0.0.1:9"
[[sources.feeds]]
resource = "employmentUnavailabilities"
"""
_SUBSCRIPTION = """\
[[subscriptions]]
id = "s{number}"
sink = "{sink}"
allow_private = true
start = "{start}"
concurrency = {concurrency}
mode = "{mode}"
secret_files = ["{secret}"]
"""


def event(number: int, *, at: float = 0.0, words: int = 12) -> bytes:
    """An event of about 600 bytes; of ``words`` times 18 fewer where those are fewer. There are 5 000 records."""
    key = UUID(int=number % _KEYS + 1)
    return (
        f'{{"specversion":"1.0","id":"{number:032x}","source":"https://api.example.org/v1/employmentUnavailabilities",'
        f'"type":"org.example.api.employmentUnavailability.modified.v1","subject":"{key}",'
        f'"time":"2026-03-02T08:15:00.000Z","sequence":"{number:020}","partitionkey":"{key}",'
        f'"cause":"delta","datacontenttype":"application/json",'
        f'"data":{{"record":"{"some eighteen char" * words}","at":{stamp(at)}}}}}'
    ).encode()


class Place(msgspec.Struct, frozen=True):
    """Where it is measured: the store, a directory of our own, the receiver's URL."""

    redis: Redis
    store: str
    root: Path
    url: str


class Wanted(msgspec.Struct, frozen=True):
    """Subscriptions: a sink's URL for each, and what they have in common."""

    sinks: Sequence[str]
    concurrency: int = 8
    mode: str = "structured"
    start: str = "earliest"
    linger: float | None = None  # seconds


class Ran(msgspec.Struct, frozen=True):
    """Events delivered to sinks a second, and CPU for each in microseconds."""

    a_second: float
    cpu: float


@asynccontextmanager
async def delivering(store: str, root: Path, wanted: Wanted) -> AsyncIterator[Daemon]:
    """The daemon, delivering and not polling, while the block runs."""
    secret, config = root / "secret", root / "deliveries.toml"
    secret.write_text(_SECRET)
    secret.chmod(0o600)
    subscriptions = (
        _SUBSCRIPTION.format(
            number=number,
            sink=sink,
            start=wanted.start,
            concurrency=wanted.concurrency,
            mode=wanted.mode,
            secret=secret,
        )
        for number, sink in enumerate(wanted.sinks)
    )
    linger = "" if wanted.linger is None else f'batch = {{ linger = "{wanted.linger:g}s" }}\n'
    config.write_text(_CONFIG.format(store=store) + "".join(one + linger for one in subscriptions))
    only_deliver = ("poller", "run", "--only", "deliver")
    async with daemon(config, command=only_deliver, level="warning") as running:
        yield running


async def fill(redis: Redis, count: int, *, words: int = 12) -> None:
    """A stream with so many events, and nothing else in the store."""
    await redis.flushall()
    for first in range(0, count, _CHUNK):
        adding = redis.pipeline(transaction=False)
        for number in range(first, min(first + _CHUNK, count)):
            adding.xadd(STREAM, {"data": event(number, words=words)})
        await adding.execute()


@asynccontextmanager
async def no_rewrites(redis: Redis) -> AsyncIterator[None]:
    """No rewrite of the store's append-only file begins while the block runs.

    It would take place within some of the measurements, because each begins with an empty store; elsewhere the file has
    to double first. The server forks for it, and the child takes one of two processors, which four processes share.
    """
    await redis.config_set(_REWRITES, 0)
    try:
        yield
    finally:
        await redis.config_set(_REWRITES, _USUALLY)


async def publish(redis: Redis, a_second: float, seconds: float) -> int:
    """Add stamped events at an even pace, those of some milliseconds together; how many."""
    begun, number, count = time.monotonic(), 0, int(a_second * seconds)
    while number < count:
        await asyncio.sleep(_TICK)  # the pace is what is wanted
        now = time.monotonic()
        due = min(count, int((now - begun) * a_second))
        adding = redis.pipeline(transaction=False)
        for place in range(number, due):
            adding.xadd(STREAM, {"data": event(place, at=now)})
        await adding.execute()
        number = due
    return count


async def groups(redis: Redis, count: int) -> None:
    """Wait until so many subscriptions read the stream."""

    async def there() -> bool:
        return bool(await redis.exists(STREAM)) and len(await redis.xinfo_groups(STREAM)) >= count

    await until(there, f"{count} groups", seconds=_LONG, every=_LOOK)


async def collected(url: str, events: int, *, within: float = _LONG) -> Arrived:
    """What has come, once it is so many events or the time (seconds) is over."""
    all_of, end = Arrived(), time.monotonic() + within

    def enough() -> bool:
        all_of.add(arrived(url))
        return all_of.events >= events or time.monotonic() >= end

    await until(enough, "events", seconds=None, every=_LOOK)
    return all_of


async def drained(running: Daemon, url: str, events: int) -> Ran:
    """How fast what lies in the stream is delivered, from a tenth of it on."""
    process = psutil.Process(running.pid)
    start = await collected(url, events // 10)
    before = sum(process.cpu_times()[:2])
    rest = await collected(url, events - start.events)
    after = sum(process.cpu_times()[:2])
    if start.events + rest.events < events:
        raise RuntimeError(f"{start.events + rest.events} of {events} events arrived: {running}")
    seconds = rest.at[-1] - start.at[-1]
    return Ran(rest.events / seconds, (after - before) / rest.events * 1e6)


def peak_rss(running: Daemon) -> int:
    """Bytes."""
    status = Path(f"/proc/{running.pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])
