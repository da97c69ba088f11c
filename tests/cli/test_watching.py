"""``poller status --watch``: the real program, on a pipe and on a terminal, while its store comes and goes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

from tests.cli.commands import environment
from tests.cli.conftest import started
from tests.harness.waiting import patience
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}


async def test_on_a_pipe_one_table_follows_the_other(tmp_path: Path, store_url: str) -> None:
    """And a store that goes away ends nothing: it is told, and waited for; Ctrl-C ends it with exit code 0."""
    async with (
        proxied(store_url) as proxy,
        started("status", "--watch", "0.1", cwd=tmp_path, REDIS_URL=proxy.url, **SOURCE) as watching,
    ):
        out = watching.stdout
        assert out is not None
        for sign in (b"all is well\n", b"all is well\n"):
            await _until(out, sign)
        proxy.reset(to=b"INFO", times=2)
        await _until(out, b"the store is away, waiting for it")
        await _until(out, b"all is well\n")
        watching.send_signal(signal.SIGINT)
        assert await watching.wait() == 0


async def test_on_a_terminal_it_is_drawn_in_place(tmp_path: Path, store_url: str) -> None:
    """What stood there is taken away before the next one is written."""
    ours, theirs = os.openpty()
    environ = environment({"REDIS_URL": store_url, "TERM": "xterm", "COLUMNS": "80", "LINES": "40", **SOURCE})
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "poller", "status", "--watch", "0.1"),
        cwd=tmp_path,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        async with patience("three tables"):
            written = b""
            while written.count(b"default/contractTypes") < 5:
                written += await asyncio.to_thread(os.read, ours, 65536)
        assert b"\x1b[1A" in written  # a line up
        process.send_signal(signal.SIGINT)
        draining = asyncio.create_task(asyncio.to_thread(_drained, ours))
        assert await process.wait() == 0
        await draining
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


def _drained(terminal: int) -> None:
    try:
        while os.read(terminal, 65536):
            pass
    except OSError:  # Linux says so where the other side is closed
        pass


async def _until(out: asyncio.StreamReader, sign: bytes) -> None:
    async with patience(f"{sign!r}"):
        while sign not in await out.readline():
            pass
