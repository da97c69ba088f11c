"""What one process knows of the leases that it shares with others, and when each of them is to be looked at.

A lease is *ours*; *leaving*, while what was done under it comes to its end; *free*; or *theirs*. One of a process that
is in the list is looked at when the list changes, and otherwise hardly ever; any other one when it runs out.

Takes nothing and hands nothing back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, Protocol

from redis.asyncio import Redis

from poller.service.shares import Extra, offers_counted
from poller.store.feed import HeldElsewhere
from poller.store.lease_looks import Held, held_leases

LOOK_AGAIN: Final = 1.0
"""Seconds between looks at what the leases here have become."""

_AFTER: Final = 0.02  # seconds; a lease that runs out is looked at so much later
_SWEEP: Final = 3  # terms after which leases are looked at whatever is known of them
_ELSEWHERE: Final = frozenset({"free", "theirs"})


class Lot(Protocol):
    """A lease, and what is done under it."""

    name: str
    feed: str

    @property
    def lease(self) -> str:
        """Its key."""
        ...

    @property
    def nonce(self) -> bytes:
        """What stands in it while it is ours."""
        ...

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as is known."""
        ...

    @property
    def busy(self) -> bool:
        """Whether it can neither be handed back nor taken now."""
        ...

    async def take(self) -> HeldElsewhere | None:
        """Take it; None: it is ours."""
        ...

    def begin(self) -> None:
        """It is ours: begin."""
        ...

    def lost(self) -> None:
        """It is not ours any more: what was begun is not to go on."""
        ...

    async def end(self) -> None:
        """End what was begun, in order, and let the lease go. May be asked for again."""
        ...


class Place:
    """What is known of a lease."""

    def __init__(self, lot: Lot, now: float) -> None:
        """Nothing is; it is to be looked at."""
        self.lot = lot
        self.state: Literal["ours", "leaving", "free", "theirs"] = "theirs"
        self.free_since = now
        self.look_at = now
        self.extra_since: float | None = None
        self.offers = 0
        self.offered_at = -math.inf

    def elsewhere(self, look_at: float) -> None:
        """It is not ours, as far as is known until then."""
        self.state, self.look_at = "theirs", look_at
        self.extra_since = None


class Lots:
    """All leases of one kind of work. Used within one event loop."""

    def __init__(self, client: Redis, *, ttl: float, clock: Callable[[], float]) -> None:
        """Take the store's client, the seconds that a lease lives, and seconds that only go forward."""
        self._client = client
        self._ttl = ttl
        self._clock = clock
        self._places: dict[str, Place] = {}

    def __len__(self) -> int:
        """How many there are, whoever has them."""
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._places)

    def __getitem__(self, name: str) -> Place:
        """What is known of one."""
        return self._places[name]

    def add(self, lot: Lot) -> None:
        """There is this one, too."""
        self._places[lot.name] = Place(lot, self._clock())

    def drop(self, lot: Lot) -> bool:
        """There is not, any more; whether it was ours."""
        place = self._places.pop(lot.name, None)
        return place is not None and place.state == "ours"

    def knows(self, place: Place) -> bool:
        """Whether it was not dropped."""
        return self._places.get(place.lot.name) is place

    @property
    def ours(self) -> set[str]:
        """Those that this process has."""
        return {name for name, place in self._places.items() if place.state == "ours"}

    @property
    def busy(self) -> set[str]:
        """Those that can neither be taken nor handed back now."""
        return {name for name, place in self._places.items() if place.lot.busy}

    @property
    def free(self) -> dict[str, float]:
        """Those that may be taken, and for how many seconds that is known."""
        now = self._clock()
        return {
            name: now - place.free_since
            for name, place in self._places.items()
            if place.state == "free" and not place.lot.busy
        }

    @property
    def next_look(self) -> float:
        """When to look again."""
        now = self._clock()
        looks = (place.look_at for place in self._places.values() if place.state in _ELSEWHERE)
        return max(min((now + LOOK_AGAIN, *looks)), now + _AFTER)

    def look_at_all(self) -> None:
        """Something has changed: the next look is at all that are not ours."""
        for place in self._places.values():
            place.look_at = self._clock()

    def extras(self, listed: Collection[str] | None) -> dict[str, Extra]:
        """Those of ours that are extras. ``listed``: the feeds that other processes list; None: any."""
        now = self._clock()
        return {
            name: Extra(now - place.extra_since, place.offers, listed is None or place.lot.feed in listed)
            for name, place in self._places.items()
            if place.state == "ours" and place.extra_since is not None
        }

    def taken_beyond(self, place: Place) -> None:
        """This one is an extra from now on."""
        now = self._clock()
        place.extra_since = now
        place.offers = offers_counted(place.offers, now - place.offered_at, self._ttl)

    def handed(self, place: Place) -> None:
        """This one is being handed back."""
        if place.extra_since is not None:
            place.offers, place.offered_at = place.offers + 1, self._clock()
        place.state, place.extra_since = "leaving", None

    def members_changed(self) -> None:
        """There are other processes: they have as much time to take what is free, and nothing is an extra."""
        for place in self._places.values():
            place.free_since = self._clock()
            place.extra_since, place.offers = None, 0

    def notice_lost(self) -> int:
        """End what was begun under leases that are not ours any more; how many these are."""
        lost = 0
        for place in self._places.values():
            if place.state == "ours" and not place.lot.held and not place.lot.busy:
                place.lot.lost()
                place.elsewhere(self._clock())
                lost += 1
        return lost

    async def look(self, known: Collection[str]) -> None:
        """Look at those that are due. ``known``: the processes that are there.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        now = self._clock()
        due = [place for place in self._places.values() if place.state in _ELSEWHERE and place.look_at <= now]
        found = await held_leases(self._client, [place.lot.lease for place in due], known=known)
        for place, held in zip(due, found, strict=True):
            if place.state in _ELSEWHERE:
                self._seen(place, held, known)

    def _seen(self, place: Place, held: Held, known: Collection[str]) -> None:
        now = self._clock()
        if held.value in (None, place.lot.nonce) or held.is_overlong:  # ours, though the answer to our asking was lost
            place.free_since = place.free_since if place.state == "free" else now
            place.state = "free"
            patient_until = place.free_since + self._ttl
            place.look_at = patient_until if patient_until > now else now + self._ttl
            return
        lasts = _SWEEP * self._ttl if held.owner in known or held.seconds is None else held.seconds + _AFTER
        place.elsewhere(now + lasts)
