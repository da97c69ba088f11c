"""Every test has a time limit, so that a hanging test fails by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_HANGS = """
import asyncio
import threading

async def test_a_coroutine():
    await asyncio.Event().wait()

async def test_a_busy_loop():
    while True:
        pass

def test_a_thread():
    threading.Event().wait()

async def test_a_swallowed_alarm():
    try:
        while True:
            pass
    except BaseException:
        await asyncio.Event().wait()

def test_that_ends():
    pass
"""


@pytest.mark.thorough
def test_a_test_that_hangs_fails(tmp_path: Path) -> None:
    """A test that waits forever, in a loop or in a thread, fails at the limit, and the run goes on."""
    (tmp_path / "test_hangs.py").write_text(_HANGS, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-o", "timeout=0.5", str(tmp_path)],
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 1, done.stdout
    assert "4 failed, 1 passed" in done.stdout, done.stdout
    assert done.stdout.count("from pytest-timeout") >= 4


def test_the_limit_is_set(request: pytest.FixtureRequest) -> None:
    """The suite has a time limit for every test."""
    assert 0 < float(request.config.getini("timeout")) <= 300
