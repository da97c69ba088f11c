"""Laws of :mod:`poller.cli.completing`: what the shell offers, and that nothing that is wrong reaches the terminal."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import typer
from typer.core import TyperCommand

from poller.cli import completing
from poller.config.types import RESOURCES
from poller.redis.embedded import SOCKET
from tests.cli.commands import environment
from tests.stores import looking

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
[redis]
url = "URL"
[[sources]]
name = "acme"
base_url = "https://api.example.org"
auth = { none = true }
[[sources.feeds]]
resource = "contractTypes"
[[sources.feeds]]
resource = "positions"
name = "jobs"
[[subscriptions]]
id = "rostering"
"""


def offered(directory: Path, words: str, **environ: str) -> list[str]:
    """What bash is told after ``words``; nothing may be said beside it."""
    asked = {"_POLLER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "poller"],
        cwd=directory,
        env=environment(asked | environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


def configured(directory: Path, url: str) -> None:
    (directory / "poller.toml").write_text(CONFIG.replace("URL", url))


@pytest.mark.usefixtures("one_server")
def test_feeds_and_subscriptions_are_offered(tmp_path: Path, store_url: str) -> None:
    """Of the file, of the environment alone, and of the store's registry; by what was begun."""
    with looking(store_url) as client:
        client.hset("poller:{subscriptions}:registry", "run-time", "{}")
    configured(tmp_path, store_url)
    assert offered(tmp_path, "poller pause ac") == ["acme/contractTypes", "acme/jobs"]
    assert offered(tmp_path, "poller status j") == ["jobs"]
    assert offered(tmp_path, "poller subscriptions show r") == ["rostering", "run-time"]
    (tmp_path / "poller.toml").unlink()
    environ = {"POLLER_BASE_URL": "https://api.example.org"}
    assert "default/achievements" in offered(tmp_path, "poller tail default/", **environ)


@pytest.mark.parametrize("config", ["", "sources = 1", "no TOML", CONFIG.replace("URL", "redis://127.0.0.1:1/0")])
def test_nothing_is_said_of_what_is_wrong(tmp_path: Path, config: str) -> None:
    """A store that is away costs no more than its patience, and those of the file are offered all the same."""
    (tmp_path / "poller.toml").write_text(config)
    found = offered(tmp_path, "poller subscriptions resume ro")
    assert found == (["rostering"] if "rostering" in config else [])


def test_a_directory_is_relative_to_the_file(tmp_path: Path) -> None:
    """As the configuration has it; what is none is as if it were not said."""
    file = tmp_path / "poller.toml"
    file.write_text('[embedded]\ndata_dir = "data"\n')
    context = typer.Context(TyperCommand("poller"))
    context.params = {"config": str(file)}
    assert completing.configuration(context) == {"embedded": {"data_dir": f"{tmp_path}/data"}}
    file.write_text("embedded = 1")
    assert completing.configuration(context) == {"embedded": 1}


def test_what_it_knows_by_itself_is_right() -> None:
    """It imports nothing for the sake of speed, so this says whether its words are still those of the others."""
    assert set(completing.RESOURCES) == set(RESOURCES)
    assert SOCKET == "valkey.sock"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tmp_path: Path, shell: str) -> None:
    """It is shown by an option, for whoever does not want it installed."""
    done = subprocess.run(
        [sys.executable, "-m", "poller", "--show-completion", shell],
        cwd=tmp_path,
        env=environment({"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "_POLLER_COMPLETE" in done.stdout) == (0, True), done
