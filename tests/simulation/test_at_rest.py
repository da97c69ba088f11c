"""Laws of what a daemon asks of the store while nothing happens, counted by the store itself in simulated time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from poller.app import run
from poller.config.load import load
from poller.sandbox.history import History
from poller.sandbox.server import application
from tests.simulation.asgi import serve
from tests.simulation.loop import SimulatedLoop
from tests.simulation.store import Executed, SimulatedStore
from tests.simulation.system import system_of_hosts
from tests.simulation.test_loop import simulated

_TOKEN = "sandbox"  # noqa: S105 -- of the simulated API
_REST = 20.0  # seconds until most of what a start asks for is over
_COUNTED = 40.0  # seconds


def _file(directory: Path, feeds: int, *, subscribed: bool = True) -> Path:
    lines = [
        'redis.url = "redis://store:6379/0"',
        'http.bind = "off"',
        '[[sources]]\nname = "acme"\nbase_url = "http://api/v1"\nauth = { token_env = "TOKEN" }',
        *(f'[[sources.feeds]]\nresource = "contractTypes"\nname = "f{n}"\ninterval = "1h"' for n in range(feeds)),
        *['[[subscriptions]]\nid = "one"\nsink = "http://10.0.0.5/"\nallow_private = true'] * subscribed,
    ]
    file = directory / "poller.toml"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def _requests(directory: Path, *, daemons: int, feeds: int, subscribed: bool = True) -> Counter[str]:
    """What a store is asked in a span of rest, by command; scripts by the beginning of their digest."""
    settings = load(_file(directory, feeds, subscribed=subscribed), {})
    counted: Counter[str] = Counter()

    def count(executed: Executed) -> None:
        name = executed.words[0].decode().upper()
        counted[f"{name} {executed.words[1][:8].decode()}" if name == "EVALSHA" else name] += 1

    async def main(loop: SimulatedLoop) -> None:
        store = SimulatedStore(loop.true_time, Random(1))
        host = loop.host("store", address="10.0.0.2")
        await host.start(_listen(store.protocol))
        api = loop.host("api", address="10.0.0.3")
        app = application(History(), token=_TOKEN, rng=Random(1), now=loop.true_time)
        await api.start(serve(app, "10.0.0.3", 80))
        stop = asyncio.Event()
        with system_of_hosts(loop):
            machines = [loop.host(f"daemon-{n}", address=f"10.0.0.{10 + n}") for n in range(daemons)]
            running = [one.start(run(settings, {"TOKEN": _TOKEN}, stop=stop, clock=one.clock)) for one in machines]
            await asyncio.sleep(_REST)
            assert not any(task.done() for task in running)
            assert store.read("HLEN", "poller:{members}:roles") == daemons
            store.observers.append(count)
            await asyncio.sleep(_COUNTED)
            store.observers.remove(count)
            stop.set()
            await asyncio.gather(*running)

    simulated(main)
    return counted


async def _listen(protocol: Callable[[], asyncio.Protocol]) -> None:
    await asyncio.get_running_loop().create_server(protocol, "10.0.0.2", 6379)


@pytest.mark.parametrize(("daemons", "feeds", "looks"), [(1, 1, 1), (2, 1, 4), (1, 20, 1)])
def test_a_daemon_at_rest_asks_seldom(tmp_path: Path, daemons: int, feeds: int, looks: int) -> None:
    """Law: while nothing happens a daemon sends at most three requests a second, six if others are there.

    Four of these, or one, read whatever others may have changed, of the members, commands and subscriptions of all
    feeds; most of the rest renew leases, wait for new entries, and look once a minute if streams are to be trimmed.
    """
    counted = _requests(tmp_path, daemons=daemons, feeds=feeds)
    each = counted.total() / _COUNTED / daemons
    assert looks <= each <= looks + 2, counted.most_common()


def test_without_subscriptions_no_stream_is_waited_for(tmp_path: Path) -> None:
    """Law: a daemon without a subscription reads no stream: that would name thousands of them again and again."""
    counted = _requests(tmp_path, daemons=1, feeds=3, subscribed=False)
    assert counted["XREAD"] == 0, counted.most_common()
    assert counted.total() / _COUNTED <= 3
