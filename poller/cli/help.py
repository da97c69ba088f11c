"""What ``--help`` prints: commands in groups, an example for each, and the global options once.

**Invariants**

- A global option (``--config``, ``--log-format``, ``--log-level``) is explained by ``poller --help`` alone. Every
  command takes it as well, and its help names it in one line.
- Every command has an example and belongs to one group; ``tests/cli/test_help.py`` parses them all.
- Plain text: it is ready before rich is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable

GLOBAL_OPTIONS: Final = ("config", "log_format", "log_level")

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Try it": ("demo", "sandbox"),
    "Run it": ("check", "once", "run"),
    "See how it does": ("status", "tail", "dead-letters"),
    "Change what it does": ("pause", "resume", "resync", "release", "subscriptions", "keys", "replay", "feeds"),
    "Make documents": ("config", "schema"),
}
"""The commands of ``poller --help``, in the order in which a newcomer meets them."""

EXAMPLES: Final[Mapping[str, str]] = {
    "demo": "demo --seconds 10 --keep trial",
    "sandbox": "sandbox --records 1000 --profile no-delta",
    "check": "check -c poller.toml",
    "once": "once acme/contractTypes --json",
    "run": "run --only poll,serve",
    "status": "status acme/contractTypes --watch 5",
    "tail": "tail --from 2h --type removed",
    "pause": 'pause acme/contractTypes --reason "API is moving"',
    "resume": "resume acme/contractTypes",
    "resync": "resync acme/contractTypes --wait",
    "release": "release acme/contractTypes",
    "replay": "replay rostering --from 2h --wait",
    "config example": "config example",
    "schema": "schema config",
    "feeds forget": "feeds forget acme/contractTypes",
    "dead-letters list": "dead-letters list --subscription rostering",
    "dead-letters show": "dead-letters show acme/contractTypes:1735689600000-0 --raw",
    "dead-letters redeliver": "dead-letters redeliver --subscription rostering --all",
    "dead-letters drop": "dead-letters drop --feed acme/contractTypes --all",
    "subscriptions list": "subscriptions list --json",
    "subscriptions show": "subscriptions show rostering",
    "subscriptions add": "subscriptions add rostering https://rostering.example.org/hooks --type removed",
    "subscriptions remove": "subscriptions remove rostering --yes",
    "subscriptions pause": 'subscriptions pause rostering --reason "moving house"',
    "subscriptions resume": "subscriptions resume rostering",
    "subscriptions test": "subscriptions test rostering",
    "keys new": "keys new --ed25519",
}
"""One example for each command, by its path without ``poller``."""


class HelpfulCommand(TyperCommand):
    """A command whose help ends with an example."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each list under its heading, without the global options."""
        arguments, options = [], []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or param.name in GLOBAL_OPTIONS:
                continue
            if param.param_type_name == "argument":
                name, text = record
                arguments.append((name.partition(" <")[0], text))  # the name says what it is, the type only repeats it
            else:
                options.append(record)
        for heading, rows in (("Arguments", arguments), ("Options", options)):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Name the global options, then show the example."""
        formatter.write_paragraph()
        formatter.write_text("Global options, see poller --help: --config, --log-format, --log-level.")
        example = EXAMPLES.get(ctx.command_path.partition(" ")[2])
        if example is not None:
            formatter.write_paragraph()
            formatter.write(f"Example: {ctx.find_root().info_name} {example}\n")


class GroupedCommands(TyperGroup):
    """Commands under the headings of :data:`GROUPS`; those that no group names come last."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group that has commands here."""
        left = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        width = max(map(len, left), default=0)
        for heading, names in (*GROUPS.items(), ("Commands", tuple(left))):
            rows = [
                (name.ljust(width), command.get_short_help_str(formatter.width - 6 - width))
                for name in names
                if (command := left.pop(name, None)) is not None and not command.hidden
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class CommandLine(typer.Typer):
    """An app whose commands are :class:`HelpfulCommand` unless they ask for another class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(rich_markup_mode=None, **options)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[Any], Any]:
        """Register a command; see :meth:`typer.Typer.command`."""
        return super().command(name, cls=cls or HelpfulCommand, **options)
