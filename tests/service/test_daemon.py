"""The daemon stops when it is told to, whatever its store is doing."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from poller.config import load
from poller.config.settings import Settings
from poller.sandbox.model import History
from poller.sandbox.seed import seed
from poller.sandbox.serving import serving
from poller.service.daemon import run
from tests.servers import running

SOON = 8.0  # seconds; a supervisor kills after ten


def now() -> datetime:
    return datetime.now(UTC)


def settings(directory: Path, *, url: str, store: str) -> Settings:
    file = directory / "poller.toml"
    file.write_text(
        f'{store}\n[[sources]]\nname = "acme"\nbase_url = "{url}"\nauth = {{ token_env = "TOKEN" }}\n'
        '[[sources.feeds]]\nresource = "employmentUnavailabilities"\ninterval = "200ms"\n',
        "utf-8",
    )
    return load(file, {})


async def test_stopping_while_the_embedded_server_cannot_start(tmp_path: Path) -> None:
    """Law: a directory that another server holds is waited for, and no longer than until the stop."""
    held = tmp_path / "data"
    held.mkdir()
    with (held / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stop = asyncio.Event()
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'embedded = {{ data_dir = "{held}" }}')
        daemon = asyncio.create_task(run(wanted, {}, stop=stop, now=now))
        asyncio.get_running_loop().call_later(0.2, stop.set)
        await asyncio.wait_for(daemon, SOON)


async def test_stopping_while_the_store_hangs(tmp_path: Path) -> None:
    """Law: a store that stops answering in the middle of rounds does not keep the daemon from leaving in time."""
    history, rng = History(), Random(1)
    seed(history, rng, records=400, at=now())
    stop = asyncio.Event()
    with running("valkey", tmp_path / "s") as server:
        async with serving(history, rng=rng, changes_per_second=200) as url:
            wanted = settings(tmp_path, url=url, store=f'redis = {{ url = "{server.url}" }}')
            daemon = asyncio.create_task(run(wanted, {"TOKEN": "sandbox"}, stop=stop, now=now))
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, os.kill, server.pid, signal.SIGSTOP)
            loop.call_later(1.5, stop.set)
            try:
                await asyncio.wait_for(asyncio.shield(daemon), 1.5 + SOON)
            finally:
                os.kill(server.pid, signal.SIGCONT)
                await asyncio.gather(daemon, return_exceptions=True)
