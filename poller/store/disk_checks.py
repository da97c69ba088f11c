"""Judging what a server has on disk: whether it keeps an append-only file, when it is synced, whether writing works.

Pure. Each takes what the server tells, as :func:`poller.store.checks.examine` does; any key may be missing, and what is
not told is unknown and a warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poller.store.finding import Finding


def aof(told: Mapping[str, Any]) -> Finding:
    """Whether there is an append-only file."""
    enabled = told.get("aof_enabled")
    if enabled is None:
        return Finding("warning", "aof", "append-only file unknown: make sure that appendonly is yes")
    if not int(enabled):
        text = (
            "append-only file off: a restart loses what was written since the last snapshot; CONFIG SET appendonly yes"
        )
        return Finding("warning", "aof", text)
    return Finding("ok", "aof", "append-only file on")


def fsync(told: Mapping[str, Any]) -> Finding:
    """When the file is on disk."""
    if not int(told.get("aof_enabled", 1)):
        return Finding("ok", "fsync", "appendfsync does not matter without an append-only file")
    when = told.get("appendfsync")
    if when is None:
        return Finding("warning", "fsync", "appendfsync unknown (CONFIG GET refused?): make sure that it is not no")
    if when == "no":
        text = "appendfsync no: a crash of the machine loses half a minute or more; CONFIG SET appendfsync everysec"
        return Finding("warning", "fsync", text)
    loss = "nothing acknowledged is lost" if when == "always" else "a crash loses up to a second, which is read again"
    return Finding("ok", "fsync", f"appendfsync {when}: {loss}")


def disk(told: Mapping[str, Any]) -> Finding:
    """Whether the files could be written the last time."""
    if told.get("aof_last_write_status", "ok") != "ok":
        text = "append-only file cannot be written: writes are refused; make room on the server's disk"
        return Finding("error", "disk", text)
    if told.get("rdb_last_bgsave_status", "ok") != "ok" and told.get("save") != "":
        if told.get("stop-writes-on-bgsave-error", "yes") == "yes":
            text = "the last snapshot (RDB) failed: writes are refused; make room for it on disk and in memory"
            return Finding("error", "disk", f"{text}, or CONFIG SET stop-writes-on-bgsave-error no")
        return Finding("warning", "disk", "the last snapshot (RDB) failed: make room for it on disk and in memory")
    if told.get("aof_last_bgrewrite_status", "ok") != "ok":
        text = "the last rewrite of the append-only file failed, so it grows on: make room for it on disk and in memory"
        return Finding("warning", "disk", text)
    if "aof_enabled" not in told:
        return Finding("warning", "disk", "disk unknown: the server does not tell whether its files can be written")
    return Finding("ok", "disk", "its files can be written")
