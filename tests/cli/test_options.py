"""Laws of :mod:`poller.cli.options`: help pages, quick start, completion and ``--watch [SECONDS]``."""

from __future__ import annotations

import importlib
import pkgutil
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import typer
import typer.main
from typer.core import TyperCommand

import poller.cli
from poller.cli import options
from poller.cli.app import GROUPS, app
from poller.cli.options import GLOBAL_OPTIONS, CommandLine, with_seconds
from poller.redis.embedded import SOCKET
from tests.cli.commands import Program, called_at
from tests.harness.waiting import blocking_until
from tests.stores import looking

if TYPE_CHECKING:
    from pathlib import Path


TOP: Any = typer.main.get_command(app)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Path and command of each command that is no group."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    elif not command.hidden:
        yield " ".join(path), command


LEAVES = dict(leaves(TOP))
EXAMPLES = {path: command.epilog for path, command in LEAVES.items()}


def declared() -> Iterator[str]:
    """The names of all commands, and of all groups of commands, that the modules declare."""
    for module in pkgutil.iter_modules(poller.cli.__path__, "poller.cli."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, CommandLine) and one is not app:
                group = typer.main.get_group(one)
                yield from [group.name] if group.name else group.commands


def test_every_command_has_an_example_and_one_group() -> None:
    """Every command has an example and is in one group, and no group names an unknown command."""
    assert all(EXAMPLES.values())
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(declared())
    assert grouped == list(TOP.commands)


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_is_accepted(path: str) -> None:
    """An example begins with its command, and the command accepts its arguments."""
    words = shlex.split(EXAMPLES[path])
    here = path.split(" ")
    assert words[: len(here)] == here
    context = LEAVES[path].make_context(path, words[len(here) :])
    assert context.params


async def test_what_help_shows() -> None:
    """Each page shows its example, global options are explained once, and no type of Python is shown."""
    program = Program()
    pages = {path: (await program.run(*path.split(), "--help")).out for path in LEAVES}
    top = (await program.run("--help")).out
    for path, page in pages.items():
        assert f"Example: poller {EXAMPLES[path]}" in page
        assert "list[" not in page
        assert page.count("--config") == (1 if "--config" not in EXAMPLES[path] else 2)
    assert all(
        f"--{name.replace('_', '-')} " in top or f"--{name.replace('_', '-')}\n" in top for name in GLOBAL_OPTIONS
    )
    for heading in GROUPS:
        assert f"\n{heading}:\n" in top


def test_help_imports_nothing_that_is_slow() -> None:
    """``--help`` imports no module that is slow to import, a command's help none of another command."""
    every, one = imported("--help"), imported("run", "--help")
    slow = {"aiohttp", "asyncio", "httpx", "msgspec", "pydantic", "redis", "rich", "structlog", "uvloop", "yarl"}
    assert not every & slow
    commands = {f"poller.cli.{place.partition(':')[0]}" for places in GROUPS.values() for place in places.values()}
    assert every >= commands
    assert one & commands == {"poller.cli.run"}


def imported(*arguments: str) -> set[str]:
    """The modules that a command line imports."""
    program = "import sys; from poller.cli.app import run_app; run_app(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


async def test_a_suggestion_is_one_sentence() -> None:
    """An unknown command is answered with the nearest one, in a sentence that ends with a question mark."""
    ended = await Program().run("statu")
    assert ended.code == 2
    assert "Did you mean 'status'? See poller --help" in ended.err


async def test_a_global_option_between_the_words_of_a_command() -> None:
    """A global option after the name of a group is refused with the places where it may stand."""
    ended = await Program().run("subscriptions", "-c", "x.toml", "list")
    assert ended.code == 2
    assert "No such option: -c after subscriptions; it goes before that, or after the command that" in ended.err


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
    """What completion offers to bash after ``words``; standard error stays empty."""
    asked = {"_POLLER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = called_at((), cwd=directory, extra=asked | environ)
    assert done.err == ""
    return done.out.split()


def configured(directory: Path, url: str) -> None:
    (directory / "poller.toml").write_text(CONFIG.replace("URL", url))


@pytest.mark.usefixtures("one_server")
def test_feeds_and_subscriptions_are_offered(tmp_path: Path, store_url: str) -> None:
    """Completion offers names of the file, of the environment and of the store's registry that begin as typed."""
    with looking(store_url) as client:
        client.hset("poller:{subscriptions}:registry", "run-time", "{}")
    configured(tmp_path, store_url)
    assert offered(tmp_path, "poller pause ac") == ["acme/contractTypes", "acme/jobs"]
    assert offered(tmp_path, "poller status j") == ["jobs"]
    blocking_until(
        lambda: offered(tmp_path, "poller subscriptions show r") == ["rostering", "run-time"],
        "the names of both",  # a busy store takes longer than completion waits
    )
    (tmp_path / "poller.toml").rename(tmp_path / "other.toml")
    for words in ("-c other.toml pause", "-c other.toml records list", "records list --config other.toml"):
        assert "acme/jobs" in offered(tmp_path, f"poller {words} ac"), words
    assert "acme/jobs" in offered(tmp_path, "poller -c other.toml subscriptions add --feed ac")
    environ = {"POLLER_BASE_URL": "https://api.example.org"}
    assert "default/achievements" in offered(tmp_path, "poller tail default/", **environ)


@pytest.mark.parametrize("config", ["", "sources = 1", "no TOML", CONFIG.replace("URL", "redis://127.0.0.1:1/0")])
def test_completion_never_reports_an_error(tmp_path: Path, config: str) -> None:
    """A broken configuration offers nothing; without a store, the names of the file are still offered."""
    (tmp_path / "poller.toml").write_text(config)
    found = offered(tmp_path, "poller subscriptions resume ro")
    assert found == (["rostering"] if "rostering" in config else [])


def test_a_directory_is_relative_to_the_file(tmp_path: Path) -> None:
    """The data directory is relative to the file, as in the configuration; a value of a wrong type stays."""
    file = tmp_path / "poller.toml"
    file.write_text('[embedded]\ndata_dir = "data"\n')
    context = typer.Context(TyperCommand("poller"))
    context.params = {"config": str(file)}
    assert options.configuration(context) == {"embedded": {"data_dir": f"{tmp_path}/data"}}
    file.write_text("embedded = 1")
    assert options.configuration(context) == {"embedded": 1}


def test_the_socket_of_completion_is_that_of_the_server() -> None:
    """Completion copies the name to avoid slow imports; the copy is equal to the original."""
    assert SOCKET == "valkey.sock"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(tmp_path: Path, shell: str) -> None:
    """``--show-completion`` prints the script for each shell."""
    extra = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = called_at(("--show-completion", shell), cwd=tmp_path, extra=extra)
    assert (done.code, "_POLLER_COMPLETE" in done.out) == (0, True), done


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--watch"], ["--watch", "2"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["--watch", "0.5", "acme/x"], ["--watch", "0.5", "acme/x"]),
        (["--watch", "acme/x"], ["--watch", "2", "acme/x"]),
        (["acme/x", "--watch", "--json"], ["acme/x", "--watch", "2", "--json"]),
        (["--watch=7"], ["--watch=7"]),
        (["acme/x"], ["acme/x"]),
    ],
)
def test_a_missing_number_is_inserted(given: list[str], meant: list[str]) -> None:
    """A number is inserted only where none follows; a feed stays a feed, an option an option."""
    assert list(with_seconds(given)) == meant
