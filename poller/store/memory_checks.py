"""Judging how a server keeps things in memory: whether it evicts, how much is left, how streams are cut into nodes.

Pure. Each takes what the server tells, as :func:`poller.store.checks.examine` does; any key may be missing, and what is
not told is unknown and a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from poller.store.finding import Finding

HEADROOM: Final = 0.9
"""The share of maxmemory in use from which an operator should act."""

SMALLEST_NODE: Final = 2048
"""Bytes. Below it most nodes hold one event, which was measured to take 8 to 16 % more memory, and time of XADD."""

LARGEST_NODE: Final = 256 * 1024
"""Bytes. Each read or deletion by id walks through a node: measured 1 to 2 µs up to 64 KiB, 20 at 1 MiB, 35 at 4."""

EVENT: Final = 700
"""Bytes of an event that is neither small nor large."""


def eviction(told: Mapping[str, Any]) -> Finding:
    """Whether it keeps what it has taken."""
    policy = told.get("maxmemory_policy")
    if policy is None:
        return Finding("warning", "eviction", "maxmemory-policy unknown: make sure that it is noeviction")
    if policy != "noeviction":
        text = (
            f"maxmemory-policy {policy}: the server may drop state and events; CONFIG SET maxmemory-policy noeviction"
        )
        return Finding("error", "eviction", text)
    return Finding("ok", "eviction", "maxmemory-policy noeviction")


def memory(told: Mapping[str, Any]) -> Finding:
    """How much room there is."""
    limit, used = told.get("maxmemory"), told.get("used_memory")
    if limit is None or used is None:
        return Finding("warning", "memory", "memory unknown: watch that maxmemory leaves room")
    if not int(limit):
        return Finding("ok", "memory", f"memory {_mebibytes(used)} in use, no maxmemory")
    text = f"memory {_mebibytes(used)} of {_mebibytes(limit)} in use"
    if int(used) - int(told.get("mem_not_counted_for_evict", 0)) >= int(limit):
        return Finding("error", "memory", f"{text}: commits are refused; raise maxmemory or lower retention")
    if int(used) >= HEADROOM * int(limit):
        return Finding("warning", "memory", f"{text}: raise maxmemory or lower retention before commits are refused")
    return Finding("ok", "memory", text)


def nodes(told: Mapping[str, Any]) -> Finding:
    """Whether the nodes of a stream are neither too small, which costs memory, nor too large, which costs time."""
    limit, entries = told.get("stream-node-max-bytes"), told.get("stream-node-max-entries")
    if limit is None or entries is None:
        return Finding("warning", "nodes", "stream-node-max-bytes unknown (CONFIG GET refused?): 4096 to 65536 is good")
    size = min(int(limit) or LARGEST_NODE * EVENT, int(entries) * EVENT or LARGEST_NODE * EVENT)  # 0: no limit
    text = f"stream-node-max-bytes {limit}, stream-node-max-entries {entries}"
    if size < SMALLEST_NODE:
        text += ": streams take a tenth more memory than they need; CONFIG SET stream-node-max-bytes 16384"
        return Finding("warning", "nodes", f"{text} and stream-node-max-entries 100")
    if size > LARGEST_NODE:
        text += ": reading or deleting by id takes ten times as long; CONFIG SET stream-node-max-bytes 16384"
        return Finding("warning", "nodes", text)
    return Finding("ok", "nodes", text)


def _mebibytes(count: Any) -> str:
    return f"{int(count) / 2**20:.1f} MiB"
