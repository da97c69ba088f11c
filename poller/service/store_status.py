"""What is known of the store: where it is, and how it keeps the promises. Reads only."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from poller.service.opening import OpenStore
from poller.store.checks import Durability, Severity, check_store, weighed


class StoreCheck(msgspec.Struct, frozen=True):
    """One thing that was looked at; see :class:`poller.store.finding.Finding`."""

    name: str
    severity: Severity
    text: str


class StoreStatus(msgspec.Struct, frozen=True):
    """What ``poller status --json`` has under ``store``, key for key.

    Attributes:
        url: where it is, without anything secret.
        ok: whether nothing is an error.
        version: of the server, in words; None where it does not tell.
        checks: everything that was looked at.
    """

    url: str
    ok: bool
    version: str | None
    checks: tuple[StoreCheck, ...]


async def store_status(store: OpenStore, durability: Durability, *, now: Callable[[], datetime]) -> StoreStatus:
    """Look at the store.

    Args:
        store: open.
        durability: decides how grave it is what is found.
        now: the wall clock, UTC.

    Raises:
        StoreError: it does not answer.
    """
    found = [weighed(one, durability) for one in await check_store(store.client, now=now)]
    return StoreStatus(
        url=store.shown,
        ok=all(one.severity != "error" for one in found),
        version=next((one.text for one in found if one.name == "version" and one.severity == "ok"), None),
        checks=tuple(StoreCheck(one.name, one.severity, one.text) for one in found),
    )
