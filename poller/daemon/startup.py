"""Reports at startup: an empty store, a store filled under another prefix, missing credentials.

**Invariants**

- An empty store is no error; the log says that it is empty.
- If the store holds the same feeds under another prefix, the log names that prefix. The search has a time limit, so
  that a large store that other programs use as well delays nothing.
- A missing credential stops nothing. Token programs and token servers are not called here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.config.sources import SourceSettings
from poller.control.factories import credential_of, keys_of
from poller.errors import CredentialUnusable, StoreRefused
from poller.http.transport import Transport
from poller.redis.client import servers
from poller.redis.errors import translated
from poller.store.keys import remembered_key

SEARCH_SECONDS: Final = 1.0
_AT_ONCE: Final = 500
_EVERY_STATE: Final = "*:{*/*}:state"

_log = structlog.get_logger("poller.store")


async def report_empty_store(client: Redis, settings: Settings) -> None:
    """Log that the store has no state of any configured feed, if so.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    if await _has_state(client, settings):
        return
    prefix = settings.redis.prefix
    try:
        others = sorted(await prefixes_of(client, settings.feed_ids) - {prefix})
    except StoreRefused:  # the user may not SCAN
        others = []
    if others:
        _log.warning(
            "no state of any feed under this prefix, but under others",
            prefix=prefix,
            others=others,
            advice=f"check redis.prefix: with {prefix!r}, all feeds are read for the first time",
        )
    else:
        _log.info("first start: the store has no state of any feed", prefix=prefix)


async def prefixes_of(
    client: Redis, feeds: Collection[str], *, within: float = SEARCH_SECONDS, at_once: int = 1000
) -> set[str]:
    """The prefixes under which the store holds one of these feeds, as far as found within this many seconds.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    found: set[str] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for one in await servers(client):
                with translated(one):
                    async for key in one.scan_iter(match=_EVERY_STATE, count=at_once):
                        prefix, _, rest = key.decode("utf-8", "replace").rpartition(":{")
                        if rest.rpartition("}")[0] in feeds:
                            found.add(prefix)
    return found


async def _has_state(client: Redis, settings: Settings) -> bool:
    """Whether the store has, or had, state of any of the feeds."""
    with translated(client):
        if await client.exists(remembered_key(settings.redis.prefix)):
            return True
    states = [keys_of(settings, feed).state for feed in settings.feed_ids]
    for some in (states[at : at + _AT_ONCE] for at in range(0, len(states), _AT_ONCE)):
        with translated(client):
            asking = client.pipeline(transaction=False)
            for state in some:
                asking.exists(state)
            if any(await asking.execute()):
                return True
    return False


# Missing credentials.

_VARIABLE: Final = "set it and start poller again; until then the source's rounds fail"
_FILE: Final = "correct the file; until then the source's rounds fail; they continue without a restart"

_daemon_log = structlog.get_logger("poller.daemon")


async def report_missing_credentials(
    sources: Iterable[SourceSettings], environ: Mapping[str, str], clock: Clock
) -> None:
    """Log the sources whose credential is missing or unusable."""
    for source in sources:
        credential = credential_of(source.auth, environ, Transport(), source.timeout, clock)
        try:
            await credential.check()
        except CredentialUnusable as error:
            advice = _VARIABLE if credential.needs_restart else _FILE
            _daemon_log.error("source without a credential", source=source.name, error=str(error), advice=advice)
