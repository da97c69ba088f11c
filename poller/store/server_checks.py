"""Judging what kind of server it is: its version, its role, what its replicas allow, and its clock.

Pure. Each takes what the server tells, as :func:`poller.store.checks.examine` does; any key may be missing, and what is
not told is unknown and a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from poller.store.finding import Finding

OLDEST: Final = (6, 2)
"""The first version with the commands used: XTRIM MINID, XAUTOCLAIM."""

LENIENT: Final = (7, 0)
"""The first version whose scripts say for themselves that they may run while memory is full."""

CLOCK_APART: Final = 5.0
"""Seconds. All moments that are stored are by the server's clock, those of the log by ours."""


def version(told: Mapping[str, Any]) -> Finding:
    """Whether it knows the commands that are used."""
    text = str(told.get("redis_version", ""))
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    if len(numbers) < len(OLDEST):
        return Finding("warning", "version", "version unknown: the server does not tell; 6.2 or newer is needed")
    if numbers < OLDEST:
        return Finding("error", "version", f"version {text}: upgrade to 6.2 or newer")
    if numbers < LENIENT:
        text += "; from 7.0 on deliveries and trimming would go on while memory is full"
        return Finding("ok", "version", f"version {text}")
    return Finding("ok", "version", f"version {told.get('valkey_version', text)}")


def role(told: Mapping[str, Any]) -> Finding:
    """Whether it may be written to; a node of a cluster by itself may not, nor may a Sentinel."""
    name, mode = told.get("role"), told.get("redis_mode")
    if mode == "sentinel":
        return Finding("error", "role", "this is a Sentinel: redis.url is redis+sentinel://HOST:PORT/SERVICE")
    if mode == "cluster" and not told.get("routed"):
        return Finding("error", "role", "this is a node of a Cluster: redis.url is redis+cluster://HOST:PORT")
    if name is None:
        return Finding("warning", "role", "role unknown: the server does not tell; it must be the primary")
    if name != "master":
        shown = "replica" if name == "slave" else name
        return Finding("error", "role", f"role {shown}: nothing can be written here; let redis.url name the primary")
    return Finding("ok", "role", "role primary")


def replicas(told: Mapping[str, Any]) -> Finding:
    """Whether enough of them follow for the server to take writes, and what a failover may cost."""
    count, good = told.get("connected_slaves"), told.get("min_slaves_good_slaves")
    if count is None:
        return Finding("warning", "replicas", "replicas unknown: the server does not tell")
    wanted = told.get("min-replicas-to-write")
    if good is not None and wanted is not None and int(good) < int(wanted):
        text = f"{good} replicas follow, min-replicas-to-write {wanted}: writes are refused until more do"
        return Finding("error", "replicas", text)
    if not int(count):
        return Finding("ok", "replicas", "no replica")
    if good is None:  # INFO has it only where the server waits for some
        cost = "min-replicas-to-write 0: a failover may lose the last writes, which come again with the same ids"
    else:
        cost = f"min-replicas-to-write {'set' if wanted is None else wanted}"
    return Finding("ok", "replicas", f"{count} replica{'' if int(count) == 1 else 's'}, {cost}")


def clock(told: Mapping[str, Any]) -> Finding:
    """Whether its clock and ours agree; ``clock`` is by how many seconds its own is ahead."""
    ahead = told.get("clock")
    if ahead is None:
        return Finding("warning", "clock", "clock unknown (TIME refused?): keep it together with this machine's by NTP")
    if abs(ahead) > CLOCK_APART:
        which = "ahead of" if ahead > 0 else "behind"
        text = (
            f"clock {abs(ahead):.0f} s {which} this machine's: ages and cron expressions go by the store's, "
            "the log by this machine's; set both by NTP"
        )
        return Finding("warning", "clock", text)
    return Finding("ok", "clock", "clock as this machine's")
