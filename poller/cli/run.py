"""``poller run``: the daemon, until it is told to stop."""

from __future__ import annotations

import gc
import os
from typing import Final

from poller import app as daemon
from poller.cli.loop import run as run_loop
from poller.cli.options import Asked, utc_now
from poller.config.settings import Settings
from poller.errors import ConfigurationError
from poller.http.server import raise_descriptor_limit
from poller.lifecycle import stopped_by_signals
from poller.telemetry.asking import traced_if_asked

ROLES: Final = ("poll", "deliver", "serve")
_COLLECT_AFTER: Final = 10_000  # objects; at Python's 700 the collector takes a sixth of all time in deliveries


def run(asked: Asked, *, only: str | None) -> None:
    """Poll and deliver until SIGTERM, SIGINT or SIGHUP.

    Raises:
        PollerError: see :func:`poller.app.run`.
    """
    asked.set_up_logs("info")
    roles = check_roles(only)
    settings = asked.settings()
    raise_descriptor_limit()
    gc.freeze()  # what is there by now stays
    gc.set_threshold(_COLLECT_AFTER)
    with traced_if_asked(os.environ):
        run_loop(_until_told(settings, roles))


async def _until_told(settings: Settings, roles: frozenset[str]) -> None:
    with stopped_by_signals() as stop:
        await daemon.run(settings, os.environ, stop=stop, now=utc_now, roles=roles)


def check_roles(only: str | None) -> frozenset[str]:
    """The roles that ``--only`` names; None asks for every role there is.

    Raises:
        ConfigurationError: no such role.
    """
    if only is None:
        return frozenset(ROLES)
    roles = [role.strip() for role in only.split(",")]
    for role in roles:
        if role not in ROLES:
            raise ConfigurationError(f'--only: there is no role "{role}"; expected one or more of {",".join(ROLES)}')
    return frozenset(roles)
