"""The checks that every file passes: they run with the tests, so nobody has to remember them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command", [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]], ids=["ruff", "format", "mypy"]
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


def test_the_top_level_holds_nothing_else() -> None:
    """Law: the project's root has these entries and no others that are visible."""
    listed = subprocess.run(["git", "ls-files"], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    visible = {name.split("/")[0] for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert visible == {"pyproject.toml", "README.md", "Procfile", "poller", "tests", "deploy"}
