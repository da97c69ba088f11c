"""How a subscription is doing over its attempts, and when that is worth telling.

The law: a subscription is disabled when ``disable_after`` has gone by with failures and no success in it, counted from
the first failure after the last success. That is announced each time that it happens, once. What has been disabled is
recovered by its first success, whether an operator resumed it or an attempt was still on its way: announced once, too.

Pure: states in, states out. Attempts may end in another order than they began, so moments need not rise.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec


class Turn(StrEnum):
    """What is to be announced."""

    DISABLED = "disabled"
    RECOVERED = "recovered"


class Health(msgspec.Struct, frozen=True):
    """The state of a subscription; a new one is ``Health()``.

    Attributes:
        failing_since: the first failure after the last success, UTC; None where there is none, or none since it was
            resumed.
        failed_in_a_row: attempts since the last success.
        delivered: attempts that succeeded, in all.
        failed: attempts that did not, in all.
        delivered_at: the last success, UTC.
        disabled: whether it rests because of its failures.
        unwell: whether it was disabled and nothing has succeeded since; outlives being resumed.
    """

    failing_since: datetime | None = None
    failed_in_a_row: int = 0
    delivered: int = 0
    failed: int = 0
    delivered_at: datetime | None = None
    disabled: bool = False
    unwell: bool = False


def after_success(health: Health, at: datetime) -> tuple[Health, Turn | None]:
    """The next state, and what to announce.

    Args:
        health: the state so far.
        at: when the attempt ended, UTC.
    """
    latest = max(at, health.delivered_at or at)
    well = Health(delivered=health.delivered + 1, failed=health.failed, delivered_at=latest)
    return well, Turn.RECOVERED if health.unwell else None


def after_failure(health: Health, at: datetime, *, disable_after: timedelta) -> tuple[Health, Turn | None]:
    """The next state, and what to announce.

    Args:
        health: the state so far.
        at: when the attempt ended, UTC.
        disable_after: how long there may be failures alone.
    """
    since = at if health.failing_since is None else health.failing_since
    disabled = health.disabled or at - since >= disable_after
    worse = msgspec.structs.replace(
        health,
        failing_since=since,
        failed_in_a_row=health.failed_in_a_row + 1,
        failed=health.failed + 1,
        disabled=disabled,
        unwell=health.unwell or disabled,
    )
    return worse, Turn.DISABLED if disabled and not health.disabled else None


def resumed(health: Health) -> Health:
    """The state after an operator has resumed it: it is tried again, for another ``disable_after``."""
    return msgspec.structs.replace(health, disabled=False, failing_since=None)
