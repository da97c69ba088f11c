"""``poller sandbox``: the simulated API, until it is told to stop."""

from __future__ import annotations

from collections.abc import Iterable

from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say, say_json, say_table
from poller.errors import AddressTaken
from poller.sandbox.data import shared, shares
from poller.sandbox.faults.registry import PROFILES, chosen
from poller.sandbox.server import run_sandbox


def sandbox(
    asked: Asked,
    *,
    port: int,
    records: int,
    changes_per_second: float,
    seed: int,
    token: str,
    profiles: Iterable[str] = (),
    faults: Iterable[str] = (),
    qualifications: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; see :func:`poller.sandbox.server.run_sandbox`.

    Raises:
        ConfigurationError: the port cannot be listened on, or there is no such profile.
    """

    def tell(address: str) -> None:
        say(address)
        say(f"{records} records to begin with: {shared(shares(records, qualifications))}")

    choices = chosen(profiles, faults)
    asked.set_up_logs("info")
    try:
        run(
            run_sandbox(
                port=port,
                records=records,
                changes_per_second=changes_per_second,
                seed=seed,
                token=token,
                say=tell,
                choices=choices,
                qualifications=qualifications,
            )
        )
    except AddressTaken as taken:
        raise AddressTaken(f"{taken}; --port takes another, --port 0 any that is free") from taken


def show_profiles(*, json: bool) -> None:
    """Print each profile's name, kind and what it does. JSON: one object a line, ``{"name", "kind", "does"}``."""
    if json:
        for profile in PROFILES.values():
            say_json({"name": profile.name, "kind": profile.kind, "does": profile.does})
        return
    rows = [(profile.name, profile.kind.value, profile.does) for profile in PROFILES.values()]
    say_table(("profile", "kind", "what it does"), rows)
