"""The files of ``deploy``, and what their commands mean to the program's own command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer.main
import yaml
from typer.core import TyperGroup

from poller.cli.app import app
from poller.cli.run import roles_of as roles_named

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
_ADMIN: Final = re.compile(r"^( *)# (?=\[http\]$|admin_token_file = |admin: \{|- \{ key: admin)", re.MULTILINE)


def documents(path: Path) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def with_admin(text: str) -> str:
    """The text of a file with its commented-out lines for an admin token enabled."""
    return _ADMIN.sub(r"\1", text)


def roles_of(arguments: Sequence[str]) -> frozenset[str]:
    """The roles that ``poller ARGUMENTS`` runs; fails on any other command."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    with group.make_context("poller", list(arguments)) as context:
        name, command, left = group.resolve_command(context, [*context._protected_args, *context.args])
        assert name == "run"
        assert command is not None
        with command.make_context(name, left, parent=context) as inner:
            return roles_named(inner.params["only"])
