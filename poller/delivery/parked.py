"""The deliveries of a pair that have been tried, or stand behind one that was: how, and when each is due by our clock.

The law: a wall clock that was set back makes nothing wait longer than it was to wait when it was parked. Refuses to
know what is written of them, and when. Pure: moments are arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from poller.delivery.attempts import Patience
from poller.delivery.kept import Delivery
from poller.delivery.lanes import Waiting
from poller.delivery.subscription import Event


class Parked:
    """Those of one subscription from one feed, by entry id."""

    def __init__(self, patience: Patience) -> None:
        """None is known; take how often an event is tried, and with which waits."""
        self._patience = patience
        self._deliveries: dict[str, Delivery] = {}
        self._due: dict[str, float] = {}

    def __contains__(self, entry: str | None) -> bool:
        return entry in self._deliveries

    def __iter__(self) -> Iterator[str]:
        return iter(self._deliveries)

    def join(self, deliveries: Mapping[str, Delivery], *, now: datetime, clock: float) -> Iterator[Waiting[Event]]:
        """Know these too, which the store holds; as they stand in their lanes, in the same order.

        Args:
            deliveries: by entry id.
            now: the wall clock, UTC.
            clock: seconds that only go forward.
        """
        self._deliveries |= deliveries
        for entry, one in deliveries.items():
            if one.due:
                longest = self._patience.longest(one.tries).total_seconds()
                self._due[entry] = clock + min(max(one.due / 1000 - now.timestamp(), 0.0), longest)
        return (
            Waiting(entry, one.key, None, fresh=False, size=one.size, alone=alone(one))
            for entry, one in deliveries.items()
        )

    def of(self, waiting: Waiting[Event]) -> Delivery:
        """How this one was tried until now."""
        return self._deliveries.get(waiting.id) or Delivery(waiting.key)

    def event_of(self, entry: str) -> bytes:
        """The event that a delivery holds itself; empty where it stands in the stream."""
        one = self._deliveries.get(entry)
        return bytes(one.event) if one else b""

    def due(self, entry: str | None) -> float | None:
        """When this one may be tried, by our clock; None where it has no wait of its own."""
        return self._due.get(entry) if entry else None

    def resumed(self, upto: int) -> list[str]:
        """Those that wait for the end of a pause that began until then, in milliseconds of the store's clock."""
        return [entry for entry, one in self._deliveries.items() if 0 < one.paused <= upto and entry in self._due]

    def put(self, entry: str, delivery: Delivery) -> None:
        """It is parked like this from now on."""
        self._deliveries[entry] = delivery

    def wait(self, entry: str, until: float) -> None:
        """It is due then, if it has a wait of its own."""
        if self._deliveries[entry].due:
            self._due[entry] = until

    def drop(self, entry: str) -> None:
        """It is settled."""
        self._deliveries.pop(entry, None)
        self._due.pop(entry, None)


def alone(delivery: Delivery) -> bool:
    """Whether it is sent by itself. A refusal that is about the sink's load says nothing against the event."""
    return delivery.tries.counted > 1
