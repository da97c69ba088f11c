"""One round for every feed, then the end: for cron, for tests, for a first look."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from poller.config.settings import Settings
from poller.errors import StoreError
from poller.service.first_look import look_first
from poller.service.opening import STORE_PATIENCE, examined, opened_store, until_ready
from poller.service.polling import Polled, polled_feeds
from poller.source.feed import Mode
from poller.source.result import RoundResult
from poller.stopping import ended
from poller.store.lease import keep_renewed, release_all

_LOOK_AGAIN: Final = timedelta(milliseconds=250)
_SOONEST: Final = timedelta(milliseconds=100)


Sleep = Callable[[float], Awaitable[None]]


async def once(
    settings: Settings,
    environ: Mapping[str, str],
    feed_ids: tuple[str, ...],
    *,
    now: Callable[[], datetime],
    report: Callable[[RoundResult], None],
    sleep: Sleep = asyncio.sleep,
) -> bool:
    """Run one round for each of these feeds; True where all went well.

    Feeds run side by side; those that list by qualification come last, for the others name the qualifications.

    Args:
        settings: the configuration.
        environ: where tokens may be.
        feed_ids: which feeds, as ``SOURCE/NAME``.
        now: the wall clock, UTC.
        report: told each result as it comes.
        sleep: waits for so many seconds.

    Raises:
        ConfigurationError: something is set up wrongly, or the store is less durable than is required.
        Exception: what ``report`` raised, after the other rounds were stopped.
    """
    try:
        async with opened_store(settings) as store:
            shebang = await until_ready(store, patience=STORE_PATIENCE)
            await examined(settings, store, now=now)
            await look_first(store.client, settings)
            async with polled_feeds(
                settings, environ, store.client, shebang=shebang, now=store.clock.now, only=frozenset(feed_ids)
            ) as feeds:
                return await _rounds(feeds, settings.lease.ttl, report, sleep)
    except StoreError as error:
        for feed_id in feed_ids:
            report(RoundResult(feed=feed_id, mode=Mode.SKIPPED, ok=False, error=str(error)))
        return False


async def _rounds(
    feeds: tuple[Polled, ...], ttl: timedelta, report: Callable[[RoundResult], None], sleep: Sleep
) -> bool:
    async def run(polled: Polled) -> bool:
        result = await _when_free(polled, sleep)
        report(result)
        return result.ok

    stores = [polled.store for polled in feeds]
    renewing = asyncio.create_task(keep_renewed(stores, ttl=ttl, sleep=sleep), name="leases")
    good: list[bool] = []
    try:
        for last in (False, True):
            turn = (polled for polled in feeds if polled.feed.resource.per_qualification is last)
            good += await _together(map(run, turn))
    finally:
        await ended(renewing)
        await release_all(stores)
    return all(good)


async def _together(rounds: Iterable[Coroutine[None, None, bool]]) -> list[bool]:
    """All their results; the first failure of one is raised when the others, cancelled, have ended too."""
    tasks = [asyncio.create_task(one) for one in rounds]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


async def _when_free(polled: Polled, sleep: Sleep) -> RoundResult:
    """A round; where another process has the lease, once it has run out. A lease that is renewed has a living owner."""
    result = await polled.round(whole=True)
    while result.wait is not None:
        pause = max(_SOONEST, min(result.wait, _LOOK_AGAIN))
        await sleep(pause.total_seconds())
        again = await polled.round(whole=True)
        if again.wait is not None and again.wait > result.wait:
            return again
        result = again
    return result
