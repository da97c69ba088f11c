"""The checks that every file passes: they run with the tests, so nobody has to remember them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_SLEEP = r"\basyncio\.sleep\((?!0\))|(?<!await )\btime\.sleep\(|^from (?:asyncio|time) import .*\bsleep\b"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff"),
        pytest.param(["ruff", "format", "--check", "."], id="format"),
        pytest.param(["mypy"], id="mypy", marks=pytest.mark.thorough),
    ],
)
def test_check(command: list[str]) -> None:
    """Law: lint, layout and types are clean."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


_SLEEPING = {
    "harness/waiting.py": 2,  # the one place that waits for conditions
    "harness/wire.py": 1,  # a slow network is the fault
    "harness/sinks.py": 1,  # so is a slow sink
    "receiver.py": 1,  # so is an answer that drips
    "harness/naive_dispatcher.py": 1,  # the pause of a program that is wrong on purpose
    "bench/scale.py": 3,  # spans that are measured, and paces
    "bench/delivering.py": 1,  # a pace
    "bench/metering.py": 1,  # a span that is measured
}
"""Files that sleep, how often, and why."""


def test_nothing_sleeps_to_wait() -> None:
    """Law: tests wait for conditions, in one place; a sleep is the fault or the span that is meant, and no other."""
    found = {
        str(file.relative_to(ROOT / "tests")): len(re.findall(_SLEEP, file.read_text("utf-8"), re.MULTILINE))
        for file in (ROOT / "tests").rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == _SLEEPING


def test_the_top_level_holds_nothing_else() -> None:
    """Law: the project's root has these entries and no others that are visible."""
    listed = subprocess.run(["git", "ls-files"], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    visible = {name.split("/")[0] for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert visible == {"pyproject.toml", "README.md", "Procfile", "poller", "tests", "deploy"}
