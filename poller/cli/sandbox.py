"""``poller sandbox``: the simulated API, until it is told to stop."""

from __future__ import annotations

from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say
from poller.sandbox.program import run_sandbox


def sandbox(asked: Asked, *, port: int, records: int, changes_per_second: float, seed: int, token: str) -> None:
    """Serve until SIGTERM or SIGINT; see :func:`poller.sandbox.program.run_sandbox`.

    Raises:
        ConfigurationError: the port cannot be listened on.
    """
    asked.set_up_logs("info")
    run(run_sandbox(port=port, records=records, changes_per_second=changes_per_second, seed=seed, token=token, say=say))
