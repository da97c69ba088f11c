"""The sandbox as a program: seeded, served, stopped by a signal.

Law: the same seed gives the same records, byte for byte, at every start, and the same choice of changes after it.

It does not know: the command line, where its one line of output goes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

from poller.sandbox.answer import answer
from poller.sandbox.model import History
from poller.sandbox.seed import seed as sow
from poller.sandbox.serving import LOOPBACK, serving
from poller.stopping import stopped_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from poller.sandbox.answer import Respond
    from poller.sandbox.profiles.choice import Choice

SEEDED_AT = datetime(2025, 1, 1, tzinfo=UTC)
"""The seed's records are of this time and not of today, so that the same seed gives the same bytes on any day."""


async def run_sandbox(
    *,
    port: int,
    records: int,
    changes_per_second: float,
    seed: int,
    token: str,
    say: Callable[[str], None],
    host: str = LOOPBACK,
    respond: Respond = answer,
    choices: Sequence[Choice] = (),
    qualifications: int | None = None,
) -> None:
    """Serve made-up records until SIGTERM or SIGINT, then return.

    Args:
        port: the port; 0 for any that is free.
        records: how many records to begin with.
        changes_per_second: how many changes to make by itself.
        seed: the same seed gives the same records and the same sequence of changes.
        token: the bearer token that the API asks for.
        say: told one line when the API can be reached; it must show the line at once.
        host: the address to listen on.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.
        qualifications: how many there are; by default as many as befits the records.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    rng = Random(seed)  # noqa: S311 - made-up records, not secrets
    history = History()
    with stopped_by_signals() as stopped:
        sow(history, rng, records=records, at=SEEDED_AT, qualifications=qualifications)
        async with serving(
            history,
            rng=rng,
            host=host,
            port=port,
            token=token,
            changes_per_second=changes_per_second,
            respond=respond,
            choices=choices,
        ) as url:
            say(f"sandbox API on {url} (token: {token}); all that it ever held: {url}/_sandbox/log")
            await stopped.wait()
