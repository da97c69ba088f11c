"""Sharing leases with the other processes that do the same work: taking, handing back, noticing what was lost.

:mod:`poller.service.shares` says what is to be done; this looks at the leases and does it. A lease is looked at when
the list of processes changes, when one that nobody in the list has runs out, and once in a while; so a quiet second
costs nothing, whatever there is to share.

The law: what is done under a lease begins after it was taken, and has ended before it is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, Literal, Protocol

import structlog
from redis.asyncio import Redis

from poller.delivery.owning import Watch
from poller.errors import StoreError, StoreUnavailable
from poller.service.membership import Among, Membership
from poller.service.shares import Moves, moves
from poller.stopping import ended
from poller.store.feed import HeldElsewhere
from poller.store.lease import RELEASE_SECONDS
from poller.store.lease_looks import Held, held_leases

_SIDE_BY_SIDE: Final = 100
_AFTER: Final = 0.02  # seconds; a lease that runs out is looked at so much later
_LOOK_AGAIN: Final = 1.0  # seconds between looks at what the leases here have become, and after a store that failed
_REFUSED: Final = 5.0  # seconds before a lease is tried again that the store does not let us take
_SWEEP: Final = 3  # terms after which leases are looked at whatever is known of them

_ELSEWHERE: Final = frozenset({"free", "theirs"})

_log = structlog.get_logger("poller.members")


class Lot(Protocol):
    """A lease, and what is done under it."""

    name: str

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


class _Place:
    """What is known of a lease."""

    def __init__(self, lot: Lot, now: float) -> None:
        self.lot = lot
        self.state: Literal["ours", "leaving", "free", "theirs"] = "theirs"
        self.free_since = now
        self.look_at = now


class Sharing:
    """The leases of one kind of work in one process. Used within one event loop."""

    def __init__(
        self,
        role: str,
        membership: Membership,
        client: Redis,
        *,
        ttl: timedelta,
        watch: Watch,
        clock: Callable[[], float],
    ) -> None:
        """Take what it works with.

        Args:
            role: the work.
            membership: this process among the others.
            client: of the store.
            ttl: how long leases live.
            watch: told when the store is away.
            clock: seconds that only go forward; the loop's.
        """
        self._role = role
        self._membership = membership
        self._client = client
        self._ttl = ttl.total_seconds()
        self._watch = watch
        self._clock = clock
        self._places: dict[str, _Place] = {}
        self._wake = asyncio.Event()
        self._version = ""
        self._names: tuple[str, ...] = ()
        self._extra = 0
        self._handing: set[asyncio.Task[None]] = set()
        self._failing: str | None = None
        self._reported: tuple[int, int, int] | None = None
        membership.listen(self.wake)

    def add(self, lot: Lot) -> None:
        """Share this one, too."""
        self._places[lot.name] = _Place(lot, self._clock())
        self.wake()

    def drop(self, lot: Lot) -> None:
        """Share it no more; ending it is the caller's business."""
        self._places.pop(lot.name, None)
        self.wake()

    def wake(self) -> None:
        """Look what has changed."""
        self._wake.set()

    def tell(self) -> None:
        """A lease was let go of: others may take it."""
        self._membership.tell()

    async def run(self) -> None:
        """Take and hand back until cancelled; what is being handed back then is finished, or given up soon."""
        try:
            while True:
                self._wake.clear()
                await self._tried()
                await _until(self._wake, self._next_moment())
        finally:
            if self._handing:
                await asyncio.wait(self._handing, timeout=RELEASE_SECONDS)
            await ended(*self._handing)

    async def _tried(self) -> None:
        try:
            await self._turn()
            self._watch.worked(f"leases to {self._role}")
            self._failing = None
        except StoreUnavailable as error:
            self._watch.failed(f"leases to {self._role}", str(error))
            await asyncio.sleep(_LOOK_AGAIN)
        except StoreError as error:
            if str(error) != self._failing:
                self._failing = str(error)
                _log.warning("leases cannot be shared", role=self._role, error=self._failing)
            await asyncio.sleep(_LOOK_AGAIN)

    async def _turn(self) -> None:
        self._notice_lost()
        among = self._membership.among(self._role)
        if among is None:
            return
        if among.names != self._names:
            self._names, self._extra = among.names, 0
            for place in self._places.values():
                place.free_since = self._clock()  # whoever is new has as much time to take it
        if self._membership.seen.version != self._version:
            self._version = self._membership.seen.version
            for place in self._places.values():
                place.look_at = self._clock()
        await self._look()
        while (now := self._moves(among)).take or now.beyond or now.hand:
            for name in now.hand:
                self._hand(self._places[name])
            for wanted, beyond in ((now.take, 0), (now.beyond, 1)):
                self._extra += beyond * await self._taken([self._places[name] for name in wanted])
        self._report(among)

    def _next_moment(self) -> float:
        now = self._clock()
        looks = (place.look_at for place in self._places.values() if place.state in _ELSEWHERE)
        return max(min((now + _LOOK_AGAIN, *looks)), now + _AFTER)

    def _notice_lost(self) -> None:
        for place in self._places.values():
            if place.state == "ours" and not place.lot.held and not place.lot.busy:
                place.lot.lost()
                place.state, place.look_at = "theirs", self._clock()

    def _moves(self, among: Among) -> Moves:
        now = self._clock()
        return moves(
            self._places,
            ours={name for name, place in self._places.items() if place.state == "ours"},
            busy={name for name, place in self._places.items() if place.lot.busy},
            free={name: now - place.free_since for name, place in self._places.items() if self._takeable(place)},
            place=among.place,
            members=len(among.names),
            patience=self._ttl,
            extra=self._extra,
        )

    def _takeable(self, place: _Place) -> bool:
        return place.state == "free" and not place.lot.busy

    async def _look(self) -> None:
        now = self._clock()
        due = [place for place in self._places.values() if place.state in _ELSEWHERE and place.look_at <= now]
        known = self._membership.seen.roles.keys()
        found = await held_leases(self._client, [place.lot.lease for place in due], known=known)
        for place, held in zip(due, found, strict=True):
            if place.state in _ELSEWHERE:
                self._seen(place, held)

    def _seen(self, place: _Place, held: Held) -> None:
        now = self._clock()
        if held.value in (None, place.lot.nonce):
            place.free_since = place.free_since if place.state == "free" else now
            place.state = "free"
            patient_until = place.free_since + self._ttl
            place.look_at = patient_until if patient_until > now else now + self._ttl
            return
        known = held.owner in self._membership.seen.roles
        place.state = "theirs"
        place.look_at = now + (_SWEEP * self._ttl if known or held.seconds is None else held.seconds + _AFTER)

    async def _taken(self, wanted: Sequence[_Place]) -> int:
        """Take these; how many were to be had.

        Raises:
            StoreUnavailable: the store is away.
        """
        taken = 0
        for first in range(0, len(wanted), _SIDE_BY_SIDE):
            some = wanted[first : first + _SIDE_BY_SIDE]
            results = await asyncio.gather(*map(self._take, some), return_exceptions=True)
            for place, result in zip(some, results, strict=True):
                if result is True:
                    taken += self._begin(place)
            for failed in (one for one in results if isinstance(one, BaseException)):
                raise failed
        return taken

    async def _take(self, place: _Place) -> bool:
        try:
            held = await place.lot.take()
        except StoreUnavailable:
            raise
        except StoreError as error:
            _log.warning("lease cannot be taken", lease=place.lot.lease, error=str(error))
            place.state, place.look_at = "theirs", self._clock() + _REFUSED
            return False
        if held is not None:  # by whom, the next look tells
            place.state, place.look_at = "theirs", self._clock()
            return False
        return True

    def _begin(self, place: _Place) -> int:
        """Begin with a lease that was taken. All of a turn in one breath, for they may wait for one another."""
        if self._places.get(place.lot.name) is not place:  # it was dropped meanwhile
            self._hand(place)
            return 0
        place.state = "ours"
        place.lot.begin()
        return 1

    def _hand(self, place: _Place) -> None:
        place.state = "leaving"
        task = asyncio.create_task(self._handed(place), name=f"handing back {place.lot.name}")
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _handed(self, place: _Place) -> None:
        """A store that is away is asked again for as long as the lease may last."""
        until = self._clock() + self._ttl
        while True:
            try:
                await place.lot.end()
            except StoreUnavailable:
                if self._clock() < until:
                    await asyncio.sleep(_LOOK_AGAIN)
                    continue
            except StoreError as error:
                _log.warning("lease cannot be handed back", lease=place.lot.lease, error=str(error))
            break
        place.state, place.look_at = "theirs", self._clock() + self._ttl
        self.tell()

    def _report(self, among: Among) -> None:
        ours = sum(place.state == "ours" for place in self._places.values())
        now = ours, len(self._places), len(among.names)
        if now != self._reported and (self._places or self._reported):
            self._reported = now
            _log.info("share", role=self._role, ours=ours, of=len(self._places), processes=len(among.names))


async def _until(event: asyncio.Event, moment: float) -> None:
    try:
        async with asyncio.timeout_at(moment):
            await event.wait()
    except TimeoutError:
        pass
