"""``poller once``: one round for each feed, and what came of it."""

from __future__ import annotations

import os
from typing import Final

from poller.app import once as run_once
from poller.cli.escaping import escaped
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds, utc_now
from poller.cli.output import say, say_json, say_table
from poller.source.feed import RoundMode, RoundResult
from poller.telemetry.asking import traced_if_asked

_COUNTS: Final = ("pages", "records", "created", "modified", "removed", "unchanged", "quarantined")


def once(asked: Asked, names: list[str] | None, *, json: bool) -> bool:
    """Run a round for each of these feeds and show the results; whether all went well.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such feed.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    feed_ids = named_feeds(settings, names)
    results: list[RoundResult] = []

    def report(result: RoundResult) -> None:
        results.append(result)
        if json:
            say_json(result.public)

    with traced_if_asked(os.environ):
        good = run(run_once(settings, os.environ, feed_ids, now=utc_now, report=report))
    if not json:
        _show(sorted(results, key=lambda result: feed_ids.index(result.feed)))
    return good


def _show(results: list[RoundResult]) -> None:
    rows = [
        (
            result.feed,
            result.mode.value,
            "ok" if result.ok else "failed",
            *(str(getattr(result, name)) for name in _COUNTS),
            f"{result.seconds:.3f}",
        )
        for result in results
    ]
    say_table(("feed", "mode", "", *_COUNTS, "seconds"), rows, numbers=(*_COUNTS, "seconds"))
    for result in results:
        if result.error is not None:
            say(f"{result.feed}: {result.error}")
        elif result.paused is not None:
            say(f"{result.feed}: {escaped(result.paused)}; poller resume {result.feed}")
        elif result.mode is RoundMode.SKIPPED:
            say(f"{result.feed}: another process polls it")
