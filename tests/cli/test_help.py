"""Laws of ``--help``: groups, an example for each command that works as written, global options once."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from poller.cli.app import app
from poller.cli.help import EXAMPLES, GLOBAL_OPTIONS, GROUPS
from tests.cli.commands import commands_in

TOP: Any = typer.main.get_command(app)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command that is no group, by its path."""
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
    elif not command.hidden:
        yield " ".join(path), command


LEAVES = dict(leaves(TOP))


def test_every_command_has_an_example_and_stands_in_one_group() -> None:
    """Law: no command is without either, and neither names a command that is not there."""
    assert EXAMPLES.keys() == LEAVES.keys()
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(name for name, command in TOP.commands.items() if not command.hidden)


@pytest.mark.parametrize("path", LEAVES)
def test_the_example_is_taken(path: str) -> None:
    """Law: an example begins with its command, and its arguments are ones that the command takes."""
    words = shlex.split(EXAMPLES[path])
    here = path.split(" ")
    assert words[: len(here)] == here
    context = LEAVES[path].make_context(path, words[len(here) :])
    assert context.params


async def test_what_help_shows() -> None:
    """Law: each page shows its example, global options are explained once, and no type of Python is shown."""
    async with commands_in() as quickly:
        pages = {path: (await quickly.run(*path.split(), "--help")).out for path in LEAVES}
        top = (await quickly.run("--help")).out
    for path, page in pages.items():
        assert f"Example: poller {EXAMPLES[path]}" in page
        assert "list[" not in page
        assert page.count("--config") == (1 if "--config" not in EXAMPLES[path] else 2)
    assert all(
        f"--{name.replace('_', '-')} " in top or f"--{name.replace('_', '-')}\n" in top for name in GLOBAL_OPTIONS
    )
    for heading in GROUPS:
        assert f"\n{heading}:\n" in top


async def test_a_suggestion_is_one_sentence() -> None:
    """Law: a command that is misspelt is answered with the nearest one, its question mark the last of the sentence."""
    async with commands_in() as quickly:
        ended = await quickly.run("statu")
    assert ended.code == 2
    assert "Did you mean 'status'? See poller --help" in ended.err
