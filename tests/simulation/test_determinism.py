"""Tests of what the simulation rests on: the same seed gives the same run, and no fault breaks the rules of TCP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from hashlib import sha256
from random import Random

import pytest

from tests.simulation.loop import Handle, Host, HostState, SimulatedLoop, Task, name_of
from tests.simulation.system import system_of_hosts
from tests.simulation.test_loop import START

_PORT = 7000
_SECONDS = 150


class _Numbers(asyncio.Protocol):
    """Writes numbers for ever, each in its turn, and reads those of the other side."""

    def __init__(self, kept: dict[str, bytearray], name: str) -> None:
        self._kept = kept.setdefault(name, bytearray())
        self._written = 0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._write()

    def _write(self) -> None:
        self._written += 1
        self._transport.write(b"%d," % self._written)
        self._timer = asyncio.get_running_loop().call_later(0.2, self._write)

    def data_received(self, data: bytes) -> None:
        self._kept += data

    def connection_lost(self, _: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def _connecting(kept: dict[str, bytearray], name: str) -> None:
    number = 0
    while True:
        number += 1
        seen = f"{name} {number}"
        try:
            async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(15))
                group.create_task(asyncio.sleep(15))
                await asyncio.get_running_loop().create_connection(
                    lambda seen=seen: _Numbers(kept, seen),  # type: ignore[misc]  # mypy takes no default here
                    "server",
                    _PORT,
                )
        except* OSError:  # a TimeoutError is one
            await asyncio.sleep(1)


def _strike(loop: SimulatedLoop, hosts: list[Host], random: Random) -> None:
    """Let one fault act, or end all frosts."""
    network, one, server = loop.network, random.choice(hosts[1:]), hosts[0]
    match random.randrange(9):
        case 0:
            network.cut(one, server)
        case 1:
            network.partition(one, server, random.random() * 30, both=random.random() < 0.5)
        case 2:
            network.delay(one, server, 0, random.random())
        case 3:
            network.lose_next(one, server, random.choice(["request", "reply"]))
        case 4:
            network.refuse(server, random.random() * 10)
        case 5:
            for end in network.connections(one, server)[:1]:
                network.half_open(end)
        case 6:
            random.choice(hosts).freeze()
        case _:
            for host in hosts:
                host.thaw()


async def _storm(loop: SimulatedLoop, kept: dict[str, bytearray]) -> None:
    """A server and three clients under all faults for some minutes."""
    random = Random(loop.random.random())
    hosts = [loop.host(name, address=f"10.0.1.{number}") for number, name in enumerate(("server", "a", "b", "c"))]

    async def listen() -> None:
        await loop.create_server(lambda: _Numbers(kept, f"server {len(kept)}"), "server", _PORT)

    await hosts[0].start(listen())
    for host in hosts[1:]:
        host.start(_connecting(kept, host.name))
    while loop.time() < _SECONDS:
        await asyncio.sleep(random.random() * 3)
        if random.random() < 0.1:
            dead = random.choice(hosts)
            await dead.kill(power=random.random() < 0.5)
            again = hosts[hosts.index(dead)] = loop.host(dead.name, address=dead.address)
            again.start(listen() if again.name == "server" else _connecting(kept, f"{again.name} {loop.time():.3f}"))
        _strike(loop, hosts, random)
    assert all(task.host.state is not HostState.DEAD for task in _tasks(loop) if task.host is not None)


def _tasks(loop: SimulatedLoop) -> list[Task]:
    return [task for host in (None, *loop.hosts.values()) for task in loop.tasks_of(host)]


def _digest(main: Callable[[SimulatedLoop], Awaitable[object]], seed: int) -> str:
    loop, digest = SimulatedLoop(Random(seed), START), sha256()

    def trace(handle: Handle) -> None:
        digest.update(f"{loop.time():.9f} {name_of(handle)}\n".encode())

    loop.trace = trace
    loop.note = lambda name, text: digest.update(f"{loop.time():.9f} {name} {text}\n".encode())
    try:
        with system_of_hosts(loop):
            loop.run_until_complete(main(loop))
    finally:
        loop.close()
    assert loop.failures == []
    return digest.hexdigest()


def _storm_digest(seed: int) -> str:
    return _digest(lambda loop: _storm(loop, {}), seed)


@pytest.mark.parametrize("seed", range(3))
def test_no_fault_breaks_the_order_of_bytes(seed: int) -> None:
    """Whatever happens to connections and hosts, what an end has read is a beginning of what the other has written."""
    kept: dict[str, bytearray] = {}
    _digest(lambda loop: _storm(loop, kept), seed)
    expected = b"".join(b"%d," % number for number in range(1, 1 + _SECONDS * 5))
    assert [name for name, read in kept.items() if not expected.startswith(read)] == []
    assert sum(map(bool, kept.values())) > 10


def test_the_same_seed_gives_the_same_run_in_another_process() -> None:
    """All handles and bytes are the same with another seed of hashes, and not with another seed of the run."""
    code = "from tests.simulation.test_determinism import _storm_digest as one; print(one(1))"
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environ = {**os.environ, "PYTHONHASHSEED": hashes}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True, text=True)
    found = done.stdout.split()
    assert found == [_storm_digest(1)]
    assert found != [_storm_digest(2)]
