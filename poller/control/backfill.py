"""Requests for backfills: every live record of some feeds to one subscription, as events.

**Invariants**

* A request is checked for every feed before a backfill begins on any of them.
* A backfill is refused where the subscription would get nothing of it, with the reason.
* One that is under way is left alone, and answered as such; its consumer goes on with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec
from redis.asyncio import Redis

from poller.changes.diff import ChangeKind
from poller.changes.events import Cause
from poller.clock import Clock
from poller.config.event_types import type_test
from poller.config.settings import Settings
from poller.config.subscriptions import FilterSettings, SubscriptionSettings
from poller.config.validation import decode_subscription
from poller.control.factories import configured_feed
from poller.control.subscriptions import registered, registry_of
from poller.errors import ConfigurationError, PollerError
from poller.store import backfill as stored
from poller.store.backfill import BackfillStart
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys
from poller.store.members import members_now
from poller.store.replay import last_read, parked
from poller.store.subscriptions import Paused
from poller.text import one_line

_LOOK_AGAIN: Final = 0.5  # seconds between two reads of the progress


class RequestedBackfill(msgspec.Struct, frozen=True):
    """The backfill of one feed: a line of ``poller backfill --json``, and an element of the answer over HTTP.

    Attributes:
        feed: ``SOURCE/NAME``.
        state: ``begun``: by this request; ``under way``: it was before, and goes on; ``completed``: while the command
            waited; ``not read yet``: the feed has no records yet, so there is none.
        id: of the backfill; None: there is none.
        done: how many records are delivered, parked or given up.
        total: how many records there were when it began.
    """

    feed: str
    state: Literal["begun", "under way", "completed", "not read yet"]
    id: str | None = None
    done: int = 0
    total: int = 0


class CancelledBackfills(msgspec.Struct, frozen=True):
    """The answer to a request that cancels backfills.

    Attributes:
        cancelled: the feeds that had one.
    """

    cancelled: tuple[str, ...]


class BackfillScope(msgspec.Struct, frozen=True):
    """A subscription and the feeds of a request.

    Attributes:
        subscription: its id.
        feeds: which.
        pause: of the subscription; None: it is active.
    """

    subscription: str
    feeds: tuple[str, ...]
    pause: Paused | None


async def backfill_scope(
    client: Redis, settings: Settings, subscription: str, named: Sequence[str] = (), *, is_begun: bool = True
) -> BackfillScope:
    """The feeds of a request, checked.

    Args:
        client: of the store.
        settings: the configuration.
        subscription: its id.
        named: feeds, ``SOURCE/NAME``; none: all of the subscription's that this configuration has and that it would get
            records of.
        is_begun: whether backfills are to begin there.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        ConfigurationError: its stored settings cannot be used, a feed is not its own or not in the configuration, or it
            would get nothing.
        StoreError: the store is unavailable.
    """
    kept = await registry_of(settings, client).all()
    one = decode_subscription(bytes(registered(kept, settings, subscription).settings))
    own = one.feeds or settings.feed_ids
    for feed in named:
        if feed not in own:
            raise ConfigurationError(f"{subscription} does not subscribe to {feed}")
    chosen = tuple(dict.fromkeys(named or own))
    if is_begun:
        chosen = _wanted(settings, one, chosen, is_named=bool(named))
    return BackfillScope(subscription, chosen, kept.paused.get(subscription))


def _wanted(
    settings: Settings, subscription: SubscriptionSettings, feeds: Iterable[str], *, is_named: bool
) -> tuple[str, ...]:
    """Those of these feeds of which the subscription would get backfilled events; each, if they were named."""
    reasons = {feed: unwanted_reason(settings, subscription, feed) for feed in feeds}
    wanted = tuple(feed for feed, reason in reasons.items() if reason is None)
    reason = next((reason for reason in reasons.values() if reason), None)
    if reason and (is_named or not wanted):
        raise ConfigurationError(reason)
    return wanted


def unwanted_reason(settings: Settings, subscription: SubscriptionSettings, feed: str) -> str | None:
    """Why a subscription would get nothing of a backfill of a feed, in words; None: it may get something."""
    configured = configured_feed(settings, feed)
    if configured is None:
        return f"{feed} is not in this configuration: the events of its records cannot be made"
    event_type = f"{configured.type_prefix}.{configured.resource.type_name}.{ChangeKind.CREATED}.v1"
    if subscription.types is not None and not type_test(subscription.types)(event_type):
        return f"types of {subscription.id} do not choose {event_type}, the type of backfilled events of {feed}"
    when = subscription.when
    if (when.cause and Cause.BACKFILL not in when.cause) or Cause.BACKFILL in when.not_cause:
        return f"when of {subscription.id} leaves out events with the cause {Cause.BACKFILL}"
    known = {"specversion": "1.0", "type": event_type, "datacontenttype": "application/json"}
    known["cause"] = Cause.BACKFILL
    if any(_holds(single, known) is False for single in subscription.filters):
        return f"filters of {subscription.id} let no backfilled event of {feed} through: their type is {event_type}"
    return None


def _holds(single: FilterSettings, known: Mapping[str, str]) -> bool | None:
    """Whether a filter holds for events with these attributes; None: that depends on others."""
    if single.all is not None:
        return _all(_holds(inner, known) for inner in single.all)
    if single.any is not None:
        return _opposite(_all(_opposite(_holds(inner, known)) for inner in single.any))
    if single.not_ is not None:
        return _opposite(_holds(single.not_, known))
    dialects: Sequence[tuple[Callable[[str, str], bool], Mapping[str, str] | None]] = (
        (str.__eq__, single.exact),
        (str.startswith, single.prefix),
        (str.endswith, single.suffix),
    )
    return _all(
        compare(known[name], text) if name in known else None
        for compare, attributes in dialects
        for name, text in (attributes or {}).items()
    )


def _all(parts: Iterable[bool | None]) -> bool | None:
    found = list(parts)
    if False in found:
        return False
    return None if None in found else True


def _opposite(part: bool | None) -> bool | None:  # noqa: FBT001 -- a value of three, and no switch
    return None if part is None else not part


class NotBegun(PollerError):
    """A subscription was not delivered from a feed yet, so that nothing can be put in order with what comes."""


class BackfillControl:
    """The backfills of one subscription. Each method may raise StoreError."""

    def __init__(self, client: Redis, settings: Settings, scope: BackfillScope) -> None:
        """Read and change backfills of a checked request through this client."""
        self._client = client
        self._prefix = settings.redis.prefix
        self._registry = registry_of(settings, client)
        self._subscription = scope.subscription
        self._feeds = scope.feeds

    async def start(self, *, name: str) -> list[RequestedBackfill]:
        """Begin the backfills, under this id.

        Raises:
            NotBegun: the subscription has not begun at one of the feeds; no backfill was begun.
        """
        for feed in self._feeds:
            if await last_read(self._client, self._keys(feed).events, self._subscription) is None:
                raise self._not_begun(feed)
        try:
            return [await self._start(feed, name) for feed in self._feeds]
        finally:
            await self._registry.tell_parked()

    async def _start(self, feed: str, name: str) -> RequestedBackfill:
        keys, pair = self._keys(feed), self._pair(feed)
        result, total = await stored.start_backfill(self._client, keys, pair, self._subscription, name=name)
        if result is BackfillStart.NO_GROUP:
            raise self._not_begun(feed)
        if result is BackfillStart.NEVER_READ:
            return RequestedBackfill(feed, "not read yet")
        if result is BackfillStart.BEGUN:
            return RequestedBackfill(feed, "begun", name, 0, total)
        found = await self._under_way(feed)
        return found or await self._start(feed, name)  # it ended just now

    async def under_way(self) -> list[RequestedBackfill]:
        """The backfills under way."""
        found = [await self._under_way(feed) for feed in self._feeds]
        return [one for one in found if one is not None]

    async def _under_way(self, feed: str) -> RequestedBackfill | None:
        found = await stored.backfill_of(self._client, self._pair(feed))
        return None if found is None else RequestedBackfill(feed, "under way", found.id, found.done, found.total)

    async def cancel(self) -> CancelledBackfills:
        """Cancel the backfills under way. What was read of them is still delivered."""
        ended = [feed for feed in self._feeds if await stored.cancel_backfill(self._client, self._pair(feed))]
        await self._registry.tell_parked()
        return CancelledBackfills(tuple(ended))

    async def progress(self, one: RequestedBackfill, clock: Clock) -> AsyncIterator[int]:
        """Yield the number of records that are done, regularly until the backfill is complete.

        Args:
            one: of a feed that has one.
            clock: of this process.

        Raises:
            PollerError: the backfill was cancelled, or waits because the subscription is paused.
        """
        keys, last = self._pair(one.feed), one.done
        while (found := await stored.backfill_of(self._client, keys)) and found.id == one.id:
            last = found.done
            yield last
            await self._refuse_paused()
            await clock.sleep(_LOOK_AGAIN)
        if not await stored.is_backfilled_with(self._client, keys, one.id or ""):
            raise PollerError(f"{one.feed}: the backfill was cancelled after {last} records")

    async def is_delivered(self) -> bool:
        """Whether a process is there that delivers."""
        members = await members_now(self._client, MemberKeys.of(self._prefix))
        return any("deliver" in roles for roles in members.values())

    async def parked(self, feed: str) -> int:
        """The number of scheduled retries of a feed."""
        return await parked(self._client, self._pair(feed))

    async def _refuse_paused(self) -> None:
        pause = (await self._registry.all()).paused.get(self._subscription)
        if pause is not None:
            raise PollerError(
                f"{self._subscription} is paused ({pause.by}: {one_line(pause.reason)}): the backfill stays, and goes "
                f"on after `poller subscriptions resume {self._subscription}`"
            )

    def _not_begun(self, feed: str) -> NotBegun:
        return NotBegun(f"{feed} has not begun for {self._subscription} yet: a daemon does that soon; try again")

    def _keys(self, feed: str) -> FeedKeys:
        return FeedKeys.of(self._prefix, feed)

    def _pair(self, feed: str) -> ConsumerKeys:
        return ConsumerKeys.of(self._prefix, feed, self._subscription)
