"""A subscription as its deliveries see it: what is wanted and how, the way to its sink, and where things are noted.

Values and protocols; nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

import msgspec

from poller.delivery.cloudevent import Envelope
from poller.delivery.endpoint_health import Health
from poller.delivery.filters import Predicate
from poller.delivery.formats import Request
from poller.delivery.outcome import Outcome
from poller.delivery.retry import Patience
from poller.store.consumer_state import Entry
from poller.store.entry_id import EntryId

Event = tuple[Envelope, bytes]


class Batching(msgspec.Struct, frozen=True):
    """How events are gathered; what is reached first sends them."""

    max_events: int = 1
    max_bytes: int | None = None
    linger: timedelta = timedelta(0)


class Subscription(msgspec.Struct, frozen=True):
    """What is wanted, and how.

    Attributes:
        id: its name.
        wanted: whether an event is delivered.
        start: where a new one begins; "now" gets no baselines.
        batching: how many events a request carries.
        patience: how often an event is tried.
        disable_after: of nothing but failures it is given up.
        concurrency: requests in flight.
        rate: requests a second; None for no limit.
        sink: the host that it goes to, and its port where that is named; for the log.
    """

    id: str
    wanted: Predicate
    patience: Patience
    disable_after: timedelta
    start: Literal["now", "earliest"] = "now"
    batching: Batching = Batching()
    concurrency: int = 8
    rate: float | None = None
    sink: str = ""


class Notes(Protocol):
    """Where it is written down what outlives this process."""

    async def until(self, subscription: str, moment: datetime) -> None:
        """The sink wants nothing before then."""
        ...

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        """How it is doing at a feed."""
        ...

    async def healths(self, subscription: str) -> Mapping[str, Health]:
        """How it is doing at each feed, whoever delivers it."""
        ...

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """It gets nothing more until somebody resumes it; announced."""
        ...

    async def recovered(self, subscription: str, at: datetime) -> None:
        """It took an event again; announced once, whoever says so."""
        ...


Form = Callable[[Sequence[Event], int], Request]
"""The request that carries these events at a time (seconds since 1970); ValueError: they cannot be sent like that."""


class Poster(Protocol):
    """The way to the sink; see :class:`poller.delivery.sinks.webhook.Sink`."""

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> Outcome:
        """Send this once."""
        ...


# Which events a subscription gets: those that it has asked for, and baselines only where they tell it something.
#
# A baseline lists what there is. Whoever starts with what is new has no use for it; nor has whoever was there before
# a
# feed was lost and begun anew, for he was told all of it.
#
# Pure.

_BASELINE: Final = b',"cause":"baseline"}}'


def meets_baseline(subscription: Subscription, entries: Sequence[Entry]) -> bool:
    """Whether some of these may have been told before, should the feed have been begun anew."""
    return subscription.start != "now" and any(event and event.endswith(_BASELINE) for _, event in entries)


def wants(subscription: Subscription, envelope: Envelope, entry: str, event: bytes, *, anew: str | None) -> bool:
    """Whether the subscription is to get an event.

    Args:
        subscription: whose.
        envelope: the event's.
        entry: its id in the stream.
        event: all of it.
        anew: baselines after this one tell again what was told before.
    """
    if event.endswith(_BASELINE):
        told = anew is not None and EntryId.parse(entry) > EntryId.parse(anew)
        return subscription.start != "now" and not told and subscription.wanted(envelope)
    return subscription.wanted(envelope)
