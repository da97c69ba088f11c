"""``poller run``, ``once`` and ``check``: the daemon, one round for each feed, and the checks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from poller.cli.options import CommandLine, Feeds, GlobalOptions, Json, named_feeds, run_loop
from poller.cli.output import (
    Column,
    count,
    escaped,
    listing,
    on_terminal,
    warn,
    width,
    write_json,
    write_line,
    write_styled,
)
from poller.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from poller.clock import Clock
    from poller.config.settings import Settings
    from poller.control.diagnostics import CheckLine
    from poller.source.feed import RoundResult

ROLES: Final = ("poll", "deliver", "serve")

COLLECT_AFTER: Final = 30_000  # objects; an event on its way to a thousand sinks is 20 000, which are no garbage
_MARKS: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}
_WORD_WIDTH: Final = len("warning")

app = CommandLine()


@app.command(example="run --only poll,serve", logs="info")
def run(
    options: GlobalOptions,
    *,
    only: Annotated[
        str | None, typer.Option(metavar="ROLES", help="Roles out of poll,deliver,serve. Default: all roles.")
    ] = None,
) -> None:
    """Run the daemon until a signal stops it. It polls every feed and delivers to every subscription."""
    import gc

    from poller.clock import Clock
    from poller.telemetry import absent

    with absent("click"):  # of httpx's own command line
        import httpx  # noqa: F401 -- for its first import alone

    from poller import app as _daemon  # noqa: F401 -- before what stays is frozen
    from poller.http.server import raise_descriptor_limit
    from poller.telemetry.tracing import configured_tracing

    roles = roles_of(only)
    settings = options.settings()
    raise_descriptor_limit()
    gc.freeze()  # modules stay until the end
    gc.set_threshold(COLLECT_AFTER)
    clock = Clock()
    with configured_tracing(os.environ, clock=clock):
        run_loop(_run_until_stopped(settings, roles, clock))


def roles_of(only: str | None) -> frozenset[str]:
    """The roles that ``--only`` names; all roles for None.

    Raises:
        ConfigurationError: a name is no role.
    """
    if only is None:
        return frozenset(ROLES)
    roles = [role.strip() for role in only.split(",")]
    for role in roles:
        if role not in ROLES:
            raise ConfigurationError(f'--only: there is no role "{role}"; expected one or more of {",".join(ROLES)}')
    return frozenset(roles)


async def _run_until_stopped(settings: Settings, roles: frozenset[str], clock: Clock) -> None:
    from poller import app as daemon
    from poller.lifecycle import stopped_by_signals

    with stopped_by_signals() as stop:
        await daemon.run(settings, os.environ, stop=stop, clock=clock, roles=roles)


@app.command(example="once acme/contractTypes --json")
async def once(options: GlobalOptions, feeds: Feeds = None, *, json: Json = False) -> bool:
    """Poll every feed once, or those named. Exit code 1 if a round failed."""
    from asyncio import CancelledError

    from poller.app import once as run_once
    from poller.clock import Clock
    from poller.telemetry.tracing import configured_tracing

    settings = options.settings()
    feed_ids = named_feeds(settings, feeds)
    results: list[RoundResult] = []

    def report(result: RoundResult) -> None:
        results.append(result)
        if json:
            write_json(result.public)

    clock = Clock()
    try:
        with configured_tracing(os.environ, clock=clock):
            return await run_once(settings, os.environ, feed_ids, clock=clock, report=report)
    except CancelledError:
        ended = {result.feed for result in results}
        if left := [feed for feed in feed_ids if feed not in ended]:
            rounds = f"the round{'s' if left[1:] else ''} of {_named(left)}"
            warn(f"interrupted before {rounds} had ended; the next `poller once` publishes the rest")
        raise
    finally:
        if results and not json:
            _write_results(sorted(results, key=lambda result: feed_ids.index(result.feed)))


def _write_results(results: Sequence[RoundResult]) -> None:
    for line in listing(_ROUNDS, results, width()):
        write_styled(line)
    reasons: dict[str, list[str]] = {}  # what several feeds share, as a store that cannot be reached, is said once
    for result in results:
        if reason := _reason(result):
            reasons.setdefault(reason, []).append(result.feed)
    for reason, feeds in reasons.items():
        write_line(f"{_named(feeds)}: {reason}")


def _reason(result: RoundResult) -> str | None:
    """Why a round failed, was skipped, or had nothing to read."""
    from poller.control.problems import NO_QUALIFICATION, has_no_listing

    if result.error is not None:
        return result.error
    if result.paused is not None:
        return f"{escaped(result.paused)}; poller resume {result.feed}"
    if result.mode.value == "skipped":
        return "another process polls it"
    return NO_QUALIFICATION if has_no_listing(result.mode.value, result.pages) else None


def _named(feeds: Sequence[str]) -> str:
    """The first of these feeds, and how many others there are."""
    return f"{feeds[0]} and {count(len(feeds) - 1, 'other feed')}" if feeds[1:] else feeds[0]


def _mode(result: RoundResult) -> str:
    """The mode of a round. One that failed before it began has none."""
    return "-" if result.mode.value == "skipped" and not result.ok else result.mode.value


_ROUNDS: Final = (
    Column("feed", least=24, cell=lambda one: one.feed),
    Column("mode", leave=3, cell=_mode),
    Column("", styles={"ok": "green", "failed": "red"}, cell=lambda one: "ok" if one.ok else "failed"),
    Column("pages", right=True, leave=6, cell=lambda one: str(one.pages)),
    Column("records", right=True, leave=2, cell=lambda one: str(one.records)),
    Column("created", right=True, cell=lambda one: str(one.created)),
    Column("modified", right=True, cell=lambda one: str(one.modified)),
    Column("removed", right=True, cell=lambda one: str(one.removed)),
    Column("unchanged", right=True, leave=4, cell=lambda one: str(one.unchanged)),
    Column("quarantined", right=True, leave=1, cell=lambda one: str(one.quarantined)),
    Column("seconds", right=True, leave=5, cell=lambda one: f"{one.seconds:.3f}"),
)


@app.command(example="check -c poller.toml")
async def check(options: GlobalOptions) -> bool:
    """Check configuration, store, sources and sinks. Changes nothing."""
    from contextlib import aclosing

    from poller.clock import Clock
    from poller.control.diagnostics import check as check_all

    file = options.file()
    settings = options.settings()
    _write_finding(_configuration(settings, file))
    problems = 0
    async with aclosing(check_all(settings, os.environ, clock=Clock())) as findings:
        async for found in findings:
            _write_finding(found)
            problems += found.severity == "error"
    return not problems


def _configuration(settings: Settings, file: Path | None) -> CheckLine:
    from poller.control.diagnostics import CheckLine

    feeds = len(settings.feed_ids)
    where = "the environment alone" if file is None else str(file)
    text = f"{where}: {count(len(settings.sources), 'source')}, {count(feeds, 'feed')}"
    return CheckLine("ok" if feeds else "warning", "configuration", text)


def _write_finding(found: CheckLine) -> None:
    mark, style = _MARKS[found.severity]
    word = mark if on_terminal() else found.severity.ljust(_WORD_WIDTH)
    write_styled([(word, style), (f"  {found.subject}: {escaped(found.text)}", "")])
