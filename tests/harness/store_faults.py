"""Faults of a reachable store, caused on a real server and undone.

Each is a context manager that restores the server at its end. ``admin`` is a client of the server's own socket.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from tests.harness.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from redis.asyncio import Redis

    from tests.servers import Server

    Fault = Callable[[Server, Redis], AbstractAsyncContextManager[None]]

OPTIONS: Final = {"enable-debug-command": "yes", "busy-reply-threshold": "50"}
"""Server options that some of the faults need."""


async def _said(admin: Redis, *command: str) -> Any:
    return await admin.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


@asynccontextmanager
async def _set(admin: Redis, name: str, value: str | int, *, back: str | int) -> AsyncIterator[None]:
    await admin.config_set(name, value)
    try:
        yield
    finally:
        await admin.config_set(name, back)


async def _refuses(admin: Redis) -> bool:
    try:
        await admin.ping()
    except RedisError:
        return True
    return False


async def _writes(admin: Redis, *, fails: bool) -> bool:
    """Whether the append-only file is in the expected state; a failing write needs something to write."""
    if fails:
        with suppress(RedisError):
            await admin.set("poller-test-filler", "x")
    return bool(((await admin.info("persistence"))["aof_last_write_status"] != "ok") is fails)


@asynccontextmanager
async def out_of_memory(_: Server, admin: Redis) -> AsyncIterator[None]:
    """``maxmemory`` below what is in use: OOM for commands that need memory."""
    used = (await admin.info("memory"))["used_memory"]
    async with _set(admin, "maxmemory", used // 2, back=0):
        yield


@asynccontextmanager
async def read_only(_: Server, admin: Redis) -> AsyncIterator[None]:
    """A replica without a primary: READONLY."""
    await admin.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        await admin.replicaof("NO", "ONE")


@asynccontextmanager
async def without_a_primary(server: Server, admin: Redis) -> AsyncIterator[None]:
    """A replica that serves no stale data: MASTERDOWN, even for reads."""
    async with _set(admin, "replica-serve-stale-data", "no", back="yes"), read_only(server, admin):
        yield


@asynccontextmanager
async def without_replicas(_: Server, admin: Redis) -> AsyncIterator[None]:
    """More replicas required than connected: NOREPLICAS."""
    async with _set(admin, "min-replicas-to-write", 1, back=0):
        yield


@asynccontextmanager
async def disk_full(server: Server, admin: Redis) -> AsyncIterator[None]:
    """No file may grow, so the append-only file cannot be written: MISCONF. For ``appendfsync everysec``.

    The server ignores SIGXFSZ, which it inherits from the Python process that started it.
    """
    before = resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    try:
        await until(lambda: _writes(admin, fails=True), "a failed write")
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, before)
        await until(lambda: _writes(admin, fails=False), "a successful write")
        await admin.delete("poller-test-filler")


@asynccontextmanager
async def busy(_: Server, admin: Redis) -> AsyncIterator[None]:
    """A foreign script that does not end: BUSY."""
    running = asyncio.create_task(_said(admin, "EVAL", "while true do end", "0"))
    try:
        await until(lambda: _refuses(admin), "the server to be busy")
        yield
    finally:
        await admin.script_kill()
        await asyncio.wait([running])
        running.exception()


@asynccontextmanager
async def loading(_: Server, admin: Redis) -> AsyncIterator[None]:
    """The server reloads its append-only file slowly: LOADING."""
    async with admin.pipeline(transaction=False) as filling:
        for number in range(3000):
            filling.hset("poller-test-filler", str(number), "x")
        await filling.execute()
    await admin.config_set("key-load-delay", 200)
    running = asyncio.create_task(_said(admin, "DEBUG", "LOADAOF"))
    try:
        await until(lambda: _refuses(admin), "the server to be loading")
        yield
    finally:
        await asyncio.wait([running])
        await admin.config_set("key-load-delay", 0)
        await admin.delete("poller-test-filler")


@asynccontextmanager
async def forgetful(_: Server, admin: Redis) -> AsyncIterator[None]:
    """Scripts are flushed as fast as they are loaded: NOSCRIPT."""

    async def forget() -> None:
        while True:
            await admin.script_flush()

    forgetting = asyncio.create_task(forget())
    try:
        yield
    finally:
        forgetting.cancel()
        await asyncio.wait([forgetting])
