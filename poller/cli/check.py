"""``poller check``: what is configured, and whether it answers; line by line, changing nothing."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path
from typing import Final

from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import on_terminal, say_styled
from poller.config.settings import Settings
from poller.control.diagnostics import CheckLine, check

_MARKS: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}
_WORD_WIDTH: Final = len("warning")


def check_all(asked: Asked) -> bool:
    """Show what is found; whether nothing failed.

    Raises:
        ConfigurationError: the configuration cannot be used.
    """
    asked.set_up_logs("error")
    file = asked.file()
    settings = asked.settings()
    _show(_configuration(settings, file))
    return run(_check(settings))


async def _check(settings: Settings) -> bool:
    good = True
    async with aclosing(check(settings, os.environ)) as findings:
        async for found in findings:
            _show(found)
            good = good and found.severity != "error"
    return good


def _configuration(settings: Settings, file: Path | None) -> CheckLine:
    sources, feeds = len(settings.sources), len(settings.feed_ids)
    where = "the environment alone" if file is None else str(file)
    text = f"{where}: {_several(sources, 'source')}, {_several(feeds, 'feed')}"
    return CheckLine("ok" if feeds else "warning", "configuration", text)


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _show(found: CheckLine) -> None:
    mark, style = _MARKS[found.severity]
    word = mark if on_terminal() else found.severity.ljust(_WORD_WIDTH)
    say_styled([(word, style), (f"  {found.subject}: {found.text}", "")])
