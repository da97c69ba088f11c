"""A process that uses the embedded server as the daemon does; tests start several and kill them.

``python -m tests.store.owner DIRECTORY`` prints ``ready PID own`` or ``ready PID shared`` for each server that it
connects to. It writes each ``NAME VALUE`` line of standard input to the server and answers ``written``. On SIGINT or
SIGTERM it writes ``last words`` to the server, stops, and prints ``left``.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import structlog
from redis.exceptions import RedisError

from poller.clock import Clock
from poller.redis.client import commands
from poller.redis.embedded import EmbeddedServer, until_gone


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _report(server: EmbeddedServer, socket: Path) -> None:
    while True:
        await server.ensure()
        try:
            async with commands(server.url) as client:
                pid = (await client.info("server"))["process_id"]
        except RedisError:  # the server of another process, which is about to end
            continue
        _say(f"ready {pid} {'own' if server.running_here else 'shared'}")
        await until_gone(socket)


async def _written(server: EmbeddedServer, line: str) -> None:
    name, value = line.split()
    async with commands(server.url) as client:
        await client.set(name, value)
    _say("written")


async def _main(directory: Path) -> None:
    loop, leave = asyncio.get_running_loop(), asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, leave.set)
    server = EmbeddedServer(directory, clock=Clock())
    await server.ensure()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(server.keep()), tasks.create_task(_report(server, directory / "valkey.sock"))]
        running.append(tasks.create_task(_obey(server, orders)))
        await leave.wait()
        for task in running:
            task.cancel()
    await _written(server, "last words")
    await server.stop()
    _say("left")


async def _obey(server: EmbeddedServer, orders: asyncio.StreamReader) -> None:
    while line := await orders.readline():
        await _written(server, line.decode())


def main() -> None:
    """Use the embedded server in the directory named on the command line."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    asyncio.run(_main(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
