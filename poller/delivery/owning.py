"""Owning pairs: one process at a time delivers a feed's events to a subscription, and another takes over when it goes.

Who is to own a pair is settled elsewhere (:mod:`poller.service.sharing`); here it is delivered from when its lease was
taken until it is to be handed back, which waits for what is in flight. A store that fails, or a lease that was lost,
ends a run; after a moment the pair may be taken up again, from what is written. So does anything that was not foreseen:
it costs a pause, no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import structlog

from poller.errors import Fenced, StoreError, StoreUnavailable
from poller.service.membership import Watch
from poller.stopping import unless
from poller.store.feed import HeldElsewhere
from poller.store.keys import PairKeys
from poller.store.lease import RELEASE_SECONDS, Lease

_log = structlog.get_logger("poller.delivery")
_AFTER_FAILURE: Final = 1.0
# Whoever removes a subscription takes its leases away. Who delivers it learns of that at his next look at the registry,
# and must not have begun anew by then.
_AFTER_LOSS: Final = 2.0
_AFTER_FAULT: Final = 5.0


class Leased(Lease, Protocol):
    """The pair's lease; see :class:`poller.store.deliveries.PairStore`."""

    keys: PairKeys
    nonce: str
    claimed: bool

    async def take(self) -> HeldElsewhere | None:
        """Take it; None: it is ours."""
        ...


class Runs(Protocol):
    """What is done while the lease is held; see :class:`poller.delivery.pair.Pair`."""

    feed: str

    def ready(self) -> None:
        """It is to be done anew, though it was told to stop before."""
        ...

    async def run(self) -> None:
        """Do it until told to stop."""
        ...

    def stop(self) -> None:
        """Come to an end, soon."""
        ...


class Owned:
    """A pair and its lease; see :class:`poller.service.lots.Lot`. :meth:`run` it until it is told to stop."""

    def __init__(
        self,
        pair: Runs,
        store: Leased,
        *,
        subscription: str,
        watch: Watch,
        changed: Callable[[], None],
        let_go: Callable[[], None],
        pause: Callable[[asyncio.Event, float], Awaitable[object]] = unless,
    ) -> None:
        """Nothing is delivered yet.

        Args:
            pair: what is run.
            store: its lease.
            subscription: its id.
            watch: told when the store is away.
            changed: is called when the pair is begun or at rest, and may be taken or handed back.
            let_go: is called when the lease was let go at the end.
            pause: waits for so many seconds, or for the stop.
        """
        self.name, self.feed = f"{subscription} {pair.feed}", pair.feed
        self.lease = store.keys.lease
        self.nonce = store.nonce.encode()
        self._pair = pair
        self._store = store
        self._watch = watch
        self._changed = changed
        self._let_go = let_go
        self._pause = pause
        self._stop = asyncio.Event()
        self._turn = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._pausing = self._again = False
        self._failing: str | None = None
        self._log = _log.bind(feed=pair.feed, subscription=subscription)

    @property
    def held(self) -> bool:
        """Whether the lease is ours, as far as is known."""
        return self._store.held

    @property
    def ours(self) -> bool:
        """Whether it is delivered here, or about to be, or about to end."""
        return self._turn.is_set() or not self._idle.is_set()

    @property
    def busy(self) -> bool:
        """Whether it can neither be taken nor handed back now: something went wrong a moment ago."""
        return self._pausing or not (self._idle.is_set() or self._store.held)

    async def take(self) -> HeldElsewhere | None:
        """Take the lease; None: it is ours."""
        held = await self._store.take()
        self._watch.worked(self.name)
        return held

    def begin(self) -> None:
        """Deliver, from now on."""
        self._again = False
        self._turn.set()
        self._changed()

    def lost(self) -> None:
        """Deliver no more; what is in flight may end."""
        if not self._stop.is_set():
            self._turn.clear()
        self._pair.stop()

    async def end(self) -> None:
        """Deliver no more; when what is in flight has ended, or soon, let the lease go."""
        self.lost()
        await self._idle.wait()
        await self._store.release()

    def stop(self) -> None:
        """Have :meth:`run` return, once what is in flight has ended, or soon."""
        self._stop.set()
        self._turn.set()
        self._pair.stop()

    async def run(self) -> None:
        """Deliver whenever the lease is ours, until told to stop; then let it go."""
        try:
            while True:
                await self._turn.wait()
                if self._stop.is_set():
                    return
                if self._turn.is_set():
                    await self._run()
        finally:
            self._watch.worked(self.name)
            if self._store.claimed:
                with suppress(StoreError, TimeoutError):  # it runs out by itself
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await self._store.release()
                self._let_go()

    async def _run(self) -> None:
        self._pair.ready()
        self._idle.clear()
        try:
            wait = await self._ended()
        finally:
            self._idle.set()
        if wait:
            self._pausing = True
            await self._pause(self._stop, wait)
            self._pausing = False
            if not self._store.held and not self._stop.is_set():
                self._turn.clear()
        self._changed()

    async def _ended(self) -> float:
        """Run it; for how many seconds it is to be left alone then."""
        try:
            if self._again and await self.take() is not None:  # the lease was not lost to the failure, but meanwhile
                return _AFTER_FAILURE
            self._again = True
            await self._pair.run()
        except Fenced as error:
            (self._log.debug if self._watch.away else self._log.warning)("lease lost", error=str(error))
            return _AFTER_LOSS
        except StoreUnavailable as error:
            self._watch.failed(self.name, str(error))
            return _AFTER_FAILURE
        except StoreError as error:
            if str(error) != self._failing:
                self._failing = str(error)
                self._log.warning("not delivering", error=self._failing)
            return _AFTER_FAILURE
        except Exception:  # noqa: BLE001 -- a task ends here: a fault of ours costs a pause, and the others nothing
            self._log.exception("not delivering")
            return _AFTER_FAULT
        self._failing, self._again = None, False
        return 0.0
