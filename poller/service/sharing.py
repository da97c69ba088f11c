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
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.errors import StoreError, StoreUnavailable
from poller.service.lots import LOOK_AGAIN, Lot, Lots, Place
from poller.service.membership import Among, Membership, Watch
from poller.service.shares import Moves, moves
from poller.stopping import ended
from poller.store.lease import RELEASE_SECONDS
from poller.telemetry.commits import LeaseKind, lease_changed, leases_held

_SIDE_BY_SIDE: Final = 100
_REFUSED: Final = 5.0  # seconds before a lease is tried again that the store does not let us take

_log = structlog.get_logger("poller.members")


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
        self._kind: LeaseKind = "feed" if role == "poll" else "delivery"
        self._membership = membership
        self._ttl = ttl.total_seconds()
        self._watch = watch
        self._clock = clock
        self._lots = Lots(client, ttl=self._ttl, clock=clock)
        self._wake = asyncio.Event()
        self._version = ""
        self._names: tuple[str, ...] = ()
        self._over = False
        self._handing: set[asyncio.Task[None]] = set()
        self._failing: str | None = None
        self._reported: tuple[int, int, int] | None = None
        membership.listen(self.wake)

    def add(self, lot: Lot) -> None:
        """Share this one, too."""
        self._lots.add(lot)
        self.wake()

    def drop(self, lot: Lot) -> None:
        """Share it no more; ending it is the caller's business."""
        if self._lots.drop(lot):
            lease_changed(self._kind, "released")
        self.wake()

    def wake(self) -> None:
        """Look what has changed."""
        self._wake.set()

    def rested(self, lot: Lot) -> None:
        """This one is not busy any more, which changes something only where it is lost, or is to be handed back."""
        if self._over or not lot.held:
            self.wake()

    def tell(self) -> None:
        """A lease was let go of: others may take it."""
        self._membership.tell()

    async def run(self) -> None:
        """Take and hand back until cancelled; what is being handed back then is finished, or given up soon."""
        try:
            while True:
                self._wake.clear()
                await self._tried()
                await _until(self._wake, self._lots.next_look)
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
            await asyncio.sleep(LOOK_AGAIN)
        except StoreError as error:
            if str(error) != self._failing:
                self._failing = str(error)
                _log.warning("leases cannot be shared", role=self._role, error=self._failing)
            await asyncio.sleep(LOOK_AGAIN)

    async def _turn(self) -> None:
        lots, seen = self._lots, self._membership.seen
        for _ in range(lots.notice_lost()):
            lease_changed(self._kind, "lost")
        among = self._membership.among(self._role)
        if among is None:
            return
        if among.names != self._names:
            self._names = among.names
            lots.members_changed()
        if seen.version != self._version:
            self._version = seen.version
            lots.look_at_all()
        await lots.look(seen.roles.keys())
        while True:
            now = self._moves(among)
            self._over = now.over
            if not (now.take or now.beyond or now.hand):
                break
            hand, take, beyond = ([lots[name] for name in names] for names in (now.hand, now.take, now.beyond))
            for place in hand:
                self._hand(place)
            await self._taken(take)
            await self._taken(beyond, beyond=True)
        self._report(among)

    def _moves(self, among: Among) -> Moves:
        lots = self._lots
        return moves(
            tuple(lots),
            ours=lots.ours,
            busy=lots.busy,
            free=lots.free,
            place=among.place,
            members=len(among.names),
            patience=self._ttl,
            extras=lots.extras(self._membership.listed(self._role)),
        )

    async def _taken(self, wanted: Sequence[Place], *, beyond: bool = False) -> None:
        """Take those of these that are to be had.

        Raises:
            StoreUnavailable: the store is away.
        """
        for first in range(0, len(wanted), _SIDE_BY_SIDE):
            some = wanted[first : first + _SIDE_BY_SIDE]
            results = await asyncio.gather(*map(self._take, some), return_exceptions=True)
            for place, result in zip(some, results, strict=True):
                if result is True:
                    self._begin(place, beyond=beyond)
            for failed in (one for one in results if isinstance(one, BaseException)):
                raise failed

    async def _take(self, place: Place) -> bool:
        try:
            held = await place.lot.take()
        except StoreUnavailable:
            raise
        except StoreError as error:
            _log.warning("lease cannot be taken", lease=place.lot.lease, error=str(error))
            place.elsewhere(self._clock() + _REFUSED)
            return False
        if held is not None:  # by whom, the next look tells
            place.elsewhere(self._clock())
            return False
        return True

    def _begin(self, place: Place, *, beyond: bool) -> None:
        """Begin with a lease that was taken. All of a turn in one breath, for they may wait for one another."""
        if not self._lots.knows(place):  # it was dropped meanwhile
            self._hand(place)
            return
        place.state = "ours"
        if beyond:
            self._lots.taken_beyond(place)
        lease_changed(self._kind, "taken")
        place.lot.begin()

    def _hand(self, place: Place) -> None:
        if place.state == "ours":
            lease_changed(self._kind, "released")
        self._lots.handed(place)
        task = asyncio.create_task(self._handed(place), name=f"handing back {place.lot.name}")
        self._handing.add(task)
        task.add_done_callback(self._handing.discard)

    async def _handed(self, place: Place) -> None:
        """A store that is away is asked again for as long as the lease may last."""
        until = self._clock() + self._ttl
        while True:
            try:
                await place.lot.end()
            except StoreUnavailable:
                if self._clock() < until:
                    await asyncio.sleep(LOOK_AGAIN)
                    continue
            except StoreError as error:
                _log.warning("lease cannot be handed back", lease=place.lot.lease, error=str(error))
            break
        place.elsewhere(self._clock() + self._ttl)
        self.tell()

    def _report(self, among: Among) -> None:
        now = len(self._lots.ours), len(self._lots), len(among.names)
        leases_held(self._kind, now[0])
        if now != self._reported and (now[1] or self._reported):
            self._reported = now
            _log.info("share", role=self._role, ours=now[0], of=now[1], processes=now[2])


async def _until(event: asyncio.Event, moment: float) -> None:
    try:
        async with asyncio.timeout_at(moment):
            await event.wait()
    except TimeoutError:
        pass
