"""The daemon stops soon and in order on a signal, and leaves no lease."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon, takes_sigterm
from tests.harness.scene import RESOURCES, scene
from tests.harness.waiting import patience, strain, unless, until
from tests.proxy import proxied

if TYPE_CHECKING:
    from tests.harness.processes import Daemon

_SOON = 5.0


@pytest.mark.parametrize("stops", [3, pytest.param(10, marks=pytest.mark.thorough)])
async def test_stopping_at_any_instant_is_clean(stops: int, tmp_path: Path, store: str) -> None:
    """A signal at a random instant ends the daemon with 0 within seconds and without a lease; the next polls soon."""
    rng = Random(6)
    async with scene(tmp_path, store=store, records=300, changes_per_second=60) as played:
        config = played.config(ttl="60s", limit="20")
        for turn in range(stops):
            async with daemon(config) as stopped:
                await stopped.started()
                await unless(stopped.gone, rng.random() * 0.3)
                stopped.send((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[turn % 3])
                async with patience("the daemon to stop", _SOON):
                    assert await stopped.left() == 0, stopped
                assert await played.leases() == 0
                assert not [line for line in stopped.rounds() if not line["ok"]], stopped
        async with daemon(config) as last:
            verdict = await played.caught_up()
            assert await _to_first_round(last) < timedelta(seconds=3 * strain())
    assert verdict.clean, verdict


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_stopping_while_it_starts_is_clean(tmp_path: Path, number: signal.Signals) -> None:
    """A daemon that is stopped while it still imports exits with 0."""
    config = tmp_path / "poller.toml"
    config.write_text('embedded = { data_dir = "data" }\n')
    environ = {"POLLER_BASE_URL": "http://127.0.0.1:9", "POLLER_TOKEN": "t"}
    async with daemon(config, environ=environ, importing=True) as starting:
        await until(lambda: takes_sigterm(starting.pid), "the process to handle signals")
        starting.send(number)
        assert await starting.left() == 0, starting
    assert not starting.lines


async def test_a_lease_is_given_back_though_its_grant_was_never_heard(tmp_path: Path, store: str) -> None:
    """A lease is released on a stop even if the reply that granted it was not received."""
    async with scene(tmp_path, store=store) as played, proxied(store) as proxy:
        config = played.config(store=proxy.url, ttl="10s")
        async with daemon(config) as first:  # loads the scripts into the store
            await first.polled(RESOURCES)
            first.send(signal.SIGTERM)
            assert await first.left() == 0, first
        grants = proxy.hold_reply(to=b"}:state", times=len(RESOURCES))
        async with daemon(config) as stopped, patience("a lease to be granted"):
            await grants.struck.wait()
            assert await played.leases()
            stopped.send(signal.SIGTERM)
            assert await stopped.left() == 0, stopped
        assert await played.leases() == 0


async def _to_first_round(started: Daemon) -> timedelta:
    """The time from the start to the end of the first round; an unreleased lease would cost a minute."""
    first = await started.until(lambda line: line.get("event") == "round", "its first round")
    begun = await started.until(lambda line: line.get("event") == "started", "started")
    return datetime.fromisoformat(first["at"]) - datetime.fromisoformat(begun["at"])
