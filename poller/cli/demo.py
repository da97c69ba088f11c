"""``poller demo``: the whole system on one machine, nothing to configure, nothing left behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from shlex import quote
from shutil import which
from tempfile import TemporaryDirectory
from typing import Final

from poller.cli.demo_ledger import KINDS, Ledger, Reckoning
from poller.cli.demo_lines import Line
from poller.cli.demo_receiver import receiving
from poller.cli.demo_settings import keep, secret_of, settings_of
from poller.cli.demo_stage import CHANGES_PER_SECOND, Stage
from poller.cli.demo_webhooks import Tally
from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say, say_styled, say_table
from poller.errors import PollerError
from poller.http.server import listener
from poller.lifecycle import stopped_by_signals
from poller.sandbox.data import seed
from poller.sandbox.history import RESOURCES, History
from poller.sandbox.server import SANDBOX_TOKEN, SEEDED_AT, serving
from poller.store.session import opened_store

_RECORDS: Final = 120
_SEED: Final = 33  # its first ten changes show every resource
_WIDTH: Final = max(map(len, RESOURCES))
_PAGE_PORT: Final = 8080
_GO_ON: Final = """
{kept} has a configuration, a token, a secret and a receiver. To go on, in a terminal each:
  {poller} sandbox
  {python} {kept}/receiver.py
  {poller} run -c {kept}/poller.toml"""


def demo(asked: Asked, *, seconds: float | None, kept: Path | None = None) -> None:
    """Show it for so many seconds after the first reading, or until SIGINT or SIGTERM; then the summary.

    Args:
        asked: the global options.
        seconds: how long changes are made; None: until a signal.
        kept: a directory for a configuration to go on with; None: nothing is left.

    Raises:
        ConfigurationError: the directory cannot be used.
        PollerError: something did not work, or a version or a webhook is missing.
    """
    asked.set_up_logs("warning")
    if kept is not None:
        keep(kept)
    with TemporaryDirectory(prefix="poller-demo-") as directory:
        reckoning, tally = run(_perform(Path(directory), seconds))
    if kept is not None:
        poller = "poller" if which("poller") else sys.argv[0]
        python = "python" if which("poller") and which("python") else sys.executable
        say(_GO_ON.format(kept=quote(str(kept)), poller=quote(poller), python=quote(python)))
    tally.judge()
    if reckoning.missing:
        raise PollerError(f"{reckoning.missing} of the sandbox's records did not arrive as they are now")


async def _perform(directory: Path, seconds: float | None) -> tuple[Reckoning, Tally]:
    history, rng = History(), Random(_SEED)  # noqa: S311 -- made-up records, not secrets
    seed(history, rng, records=_RECORDS, at=SEEDED_AT)
    with stopped_by_signals() as told:
        async with serving(history, rng=rng) as url, receiving(secret_of(directory)) as receiver:
            bind = _free_address()
            settings = settings_of(directory, url=url, sink=f"{receiver.url}/hooks", bind=bind)
            async with opened_store(settings) as store:
                _introduce(bind, url, store.shown, receiver.url)
                stage = Stage(settings, store.url, history, rng, reports=receiver.reports(), show=_show)
                try:
                    return await _acts(stage, told, seconds)
                finally:
                    await stage.close()


async def _acts(stage: Stage, told: asyncio.Event, seconds: float | None) -> tuple[Reckoning, Tally]:
    await stage.first_reading(told)
    for resource in RESOURCES:
        say(f"{resource:<{_WIDTH}}  {stage.ledger.first[resource]} records read")
    await stage.changes(told, seconds)
    reckoning = await stage.last_arrivals()
    tally = stage.webhooks.tally
    _summarise(stage.ledger, reckoning, tally)
    return reckoning, tally


def _free_address() -> str:
    """Where the page is served: at its usual address, or at another one where that is taken."""
    try:
        found = listener("127.0.0.1", _PAGE_PORT)
    except PollerError:
        found = listener("127.0.0.1", 0)
    with found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def _introduce(bind: str, url: str, store: str, receiver: str) -> None:
    say(f"The page is on http://{bind}/")
    say(f"A sandbox API on {url} (token: {SANDBOX_TOKEN}) changes {CHANGES_PER_SECOND:g} records a second.")
    say(f"poller asks it for what changed and publishes each change once, to streams in {store}")
    say(f"It delivers each event to a receiver on {receiver}, which checks its signature.")
    say("Ctrl-C ends it.")


def _show(line: Line) -> None:
    say_styled(line, cut=True)


def _summarise(ledger: Ledger, reckoning: Reckoning, tally: Tally) -> None:
    say("")
    say_table(
        ("feed", "first reading", *KINDS),
        ledger.rows(list(RESOURCES)),
        numbers=("first reading", *KINDS),
        unbroken=["feed"],
    )
    if ledger.delay is not None:
        middle, longest = ledger.delay
        say(f"delay from change to event: median {middle:.2f} s, at most {longest:.2f} s")
    say(tally.text)
    verdict = "nothing lost" if not reckoning.missing else f"{reckoning.missing} missing"
    replaced = f", {reckoning.replaced} replaced before the next reading" if reckoning.replaced else ""
    say(f"{verdict}: {reckoning.changes} changes in the sandbox's log, {reckoning.seen} versions seen{replaced}")
