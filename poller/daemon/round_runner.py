"""Runs rounds: joins each feed with its store and client, and reports the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control.factories import client_of, feed_of, keys_of
from poller.daemon.health import Readiness, StoreMonitor
from poller.daemon.schedule import PollTiming, timing_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import StoreError
from poller.http.server import connections_for
from poller.http.transport import SharedConnections
from poller.limits import ConnectionBudget
from poller.source.client import ApiClient, ConditionalReader, record_round, round_span
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.round import run_round
from poller.store.feed import FeedScripts, FeedStore, named_qualifications
from poller.store.feed_state import Loss
from poller.store.keys import FeedKeys, MemberKeys, remembered_key
from poller.store.lease import member_name, nonce_of
from poller.store.members import every_member_reads
from poller.store.recovery import FeedMemory
from poller.store.snapshots import FORM
from poller.telemetry.metrics import RoundCosts, counted, process_metrics

_log = structlog.get_logger("poller.round")
_QUARTER: Final = Fraction(1, 4)  # of the descriptors for connections
_RESTLESS: Final = timedelta(seconds=10)  # the longest interval of a feed that keeps all it has between two rounds
_LOSSES: Final = {
    "lost": OperationType.FEED_LOST,
    "rolled back": OperationType.FEED_ROLLED_BACK,
    "replaced": OperationType.FEED_REPLACED,
}
_PAUSE_BACK: Final = (
    "the store holds a pause that had been ended, for it went back to an older copy: the feed is not polled, in any "
    "process, until `poller resume {}`"
)
_PLACES: Final = ("advice", "generation", "sequence", "former", "former_sequence")


class PolledFeed:
    """A feed with its store, client and timing."""

    def __init__(
        self,
        feed: Feed,
        store: FeedStore,
        api: ApiClient,
        *,
        timing: PollTiming,
        siblings: Sequence[FeedKeys],
        client: Redis,
        prefix: str,
        clock: Clock,
    ) -> None:
        """Join the parts.

        Args:
            feed: to be read.
            store: of the feed's state.
            api: the source's client, open.
            timing: of the feed.
            siblings: the keys of all feeds of the source; the others name qualifications.
            client: reads those keys.
            prefix: of the store's keys.
            clock: the store's.
        """
        self.feed = feed
        self.store = store
        self.timing = timing
        self.api = api
        self._rests = timing.interval is None or timing.interval > _RESTLESS
        self._listings = ConditionalReader(partial(api.ask, patience=feed.patience))
        self._siblings = siblings
        self._client = client
        self._prefix = prefix
        self._clock = clock

    async def round(
        self,
        *,
        whole: bool = False,
        due: Callable[[], datetime | None] = lambda: None,
        began: Callable[[], None] = lambda: None,
    ) -> RoundResult:
        """Run one round and log it as one event.

        Args:
            whole: read all substreams, without the limit ``max_round``.
            due: returns the turn of the next round; a pause of the source delays it.
            began: is called when the store has answered.
        """
        with round_span(self.feed.id) as span, counted() as costs:
            result = await run_round(
                msgspec.structs.replace(self.feed, slot=None) if whole else self.feed,
                self.store,
                self._listings.get,
                clock=self._clock,
                qualifications=self._qualifications,
                unchanged=self._listings,
                next_at=lambda: self._not_before(due()),
                began=began,
            )
            record_round(span, result)
            _report(result, costs, stream=self.store.keys.events)
        if result.held is not None:
            await self._announce(
                OperationalEvent(OperationType.FEED_HELD, self.feed.id, self._clock.now(), result.held)
            )
        if result.loss is not None:
            await self._announce(_announced(result.loss, self.feed.id, self._clock.now()))
        await self._report_pause_back()
        with suppress(StoreError):  # rounds report a failing store; the next round saves the mark
            await self.store.memory.save()
        if self._rests:
            self.store.rest()
        return result

    async def _report_pause_back(self) -> None:
        pause = self.store.take_pause_back()
        if pause is None:
            return
        _log.warning("feed paused again", feed=self.feed.id, paused=pause.text, advice=_PAUSE_BACK.format(self.feed.id))
        reason = f"the store went back to when it was {pause.text}"
        at = self._clock.now()
        await self._announce(OperationalEvent(OperationType.FEED_PAUSED, self.feed.id, at, reason, {"by": pause.by}))

    def _not_before(self, due: datetime | None) -> datetime | None:
        opens_at = self.api.opens_at
        return max(due, opens_at) if due and opens_at else due

    async def _announce(self, announcement: OperationalEvent) -> None:
        try:
            await announce(self._client, self._prefix, announcement)
        except StoreError as error:  # the log and the status report it as well
            _log.warning("not announced", feed=self.feed.id, error=str(error))

    async def _qualifications(self, since: int) -> Mapping[str, int]:
        others = [keys for keys in self._siblings if keys != self.store.keys]
        return await named_qualifications(self._client, others, since)


def _report(result: RoundResult, costs: RoundCosts, *, stream: str) -> None:
    learnt = result.learnt
    if learnt is not None:
        _log.info(
            "learnt",
            feed=result.feed,
            paging=learnt.paging,
            delta_token=learnt.delta_token,
            refused=learnt.refused,
            expired=learnt.expired,
        )
    loss = result.loss
    if loss is not None:
        place = {"generation": loss.generation, "former": loss.former}
        _log.error(f"feed {loss.kind}", feed=result.feed, lost=loss.text, advice=loss.advice, **place)
    fields = {**result.public, "unidentified": result.unidentified, "backwards": result.backwards, **costs.public}
    fields |= {
        "late": result.late,
        "held_versions": result.held_versions,
        "delta_token": result.token,
        "stream": stream,
    }
    if result.away or (
        result.ok and result.mode is RoundMode.SKIPPED
    ):  # an unavailable store is logged once for all feeds
        _log.debug("round", **fields)
    elif not result.ok:
        _log.warning("round", **fields)
    else:
        _log.info("round", **fields)


def _announced(loss: Loss, feed_id: str, at: datetime) -> OperationalEvent:
    place: dict[str, str | int | None] = {name: getattr(loss, name) for name in _PLACES}
    return OperationalEvent(_LOSSES[loss.kind], feed_id, at, loss.text, place)


@asynccontextmanager
async def polled_feeds(
    settings: Settings,
    environ: Mapping[str, str],
    client: Redis,
    *,
    shebang: str,
    clock: Clock,
    only: frozenset[str] | None = None,
    member: str | None = None,
) -> AsyncIterator[tuple[PolledFeed, ...]]:
    """All configured feeds (or those in ``only``), with open clients.

    ``member``: the process's name in the leases; default: a new name.

    Raises:
        ConfigurationError: a source cannot be set up.
    """
    scripts = FeedScripts(client, shebang=shebang)
    store_of = _stores(settings, scripts, client, member=member or member_name(clock), clock=clock)
    async with AsyncExitStack() as stack:
        feeds: list[PolledFeed] = []
        connections = ConnectionBudget(connections_for(_QUARTER), "sources")
        shared = await stack.enter_async_context(aclosing(SharedConnections()))
        for source in settings.sources:
            api = await stack.enter_async_context(client_of(source, environ, clock, shared))
            siblings = tuple(keys_of(settings, source.feed_id(feed)) for feed in source.feeds)
            for feed in source.feeds:
                feed_id = source.feed_id(feed)
                if only is not None and feed_id not in only:
                    continue
                feeds.append(
                    PolledFeed(
                        feed_of(source, feed),
                        store_of(feed_id),
                        api,
                        timing=timing_of(feed),
                        siblings=siblings,
                        client=client,
                        prefix=settings.redis.prefix,
                        clock=clock,
                    )
                )
        with connections.shared_by(*dict.fromkeys(polled.api for polled in feeds)):
            yield tuple(feeds)


def _stores(
    settings: Settings, scripts: FeedScripts, client: Redis, *, member: str, clock: Clock
) -> Callable[[str], FeedStore]:
    """Makes the store of a feed, by its id; what is the same for thousands of them is made once."""
    remembered = remembered_key(settings.redis.prefix)
    may_convert = partial(every_member_reads, client, MemberKeys.of(settings.redis.prefix), FORM)
    keeps_removed = bool(settings.retention.removed)

    def store(feed_id: str) -> FeedStore:
        return FeedStore(
            client,
            scripts,
            keys_of(settings, feed_id),
            nonce=nonce_of(member, clock),
            lease=settings.lease.ttl,
            clock=clock,
            memory=FeedMemory(client, remembered, feed_id, clock=clock),
            may_convert=may_convert,
            keeps_removed=keeps_removed,
        )

    return store


# Reports of rounds in this process. A round that failed because the store was unavailable is repeated as soon as the
# store is available again, however long the interval is.

LONGEST: Final = timedelta(seconds=10)
"""Between two attempts of a feed while the store is unavailable."""

_FIRST: Final = timedelta(seconds=1)


class RoundObserver:
    """Observer of each round of this process."""

    def __init__(self, watch: StoreMonitor, readiness: Readiness) -> None:
        """Report failures of the store to ``watch`` and of feeds to ``readiness``."""
        self.watch = watch
        self._readiness = readiness
        self._in_vain: dict[str, int] = defaultdict(int)

    def polling(self, refused: Callable[[], Mapping[str, str]]) -> None:
        """Report the feeds whose leases the store refuses, with the errors."""
        self._readiness.polling(refused)

    def began(self, feed: str) -> None:
        """Report that a round of the feed has begun, so the store has answered."""
        self.watch.worked(feed)

    def __call__(self, result: RoundResult) -> timedelta | None:
        """Report a result. Returns the wait before the next round if that is to come before its turn."""
        _count(result)
        if result.away:
            self.watch.failed(result.feed, result.error or "no answer")
            self._in_vain[result.feed] += 1
            pause: timedelta = _FIRST * 2 ** min(self._in_vain[result.feed] - 1, 8)
            return min(pause, LONGEST)
        self._in_vain.pop(result.feed, None)
        self.watch.worked(result.feed)
        self._readiness.round(result.feed, result.error)
        return result.wait

    def gone(self, feed: str) -> None:
        """Another process polls the feed now: discard the reports of this one."""
        process_metrics().rounds.gone(feed)
        self._in_vain.pop(feed, None)
        self.watch.worked(feed)
        self._readiness.round(feed, None)


def _count(result: RoundResult) -> None:
    skipped = result.ok and result.mode is RoundMode.SKIPPED
    process_metrics().rounds.ended(
        result.feed,
        result,
        mode=result.mode.value,
        result="skipped" if skipped else "ok" if result.ok else "failed",
    )
