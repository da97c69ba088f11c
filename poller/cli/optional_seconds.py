"""``--watch`` alone, and ``--watch 5``: an option whose number may be missing.

Law: what follows the option is its number if it is one, and else whatever it would be without the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from poller.cli.help import HelpfulCommand

if TYPE_CHECKING:
    import typer

EVERY: Final = "2"
"""Seconds where none are given."""

_OPTION: Final = "--watch"
_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)


class OptionalSeconds(HelpfulCommand):
    """A command with this option."""

    def parse_args(self, ctx: typer.Context | Any, args: list[str]) -> list[str]:
        """Read the arguments, the number put in where it is missing."""
        return list(super().parse_args(ctx, list(with_seconds(args))))


def with_seconds(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments with a number after each ``--watch`` that has none."""
    for at, argument in enumerate(arguments):
        yield argument
        if argument == _OPTION and not _NUMBER.fullmatch("".join(arguments[at + 1 : at + 2])):
            yield EVERY
