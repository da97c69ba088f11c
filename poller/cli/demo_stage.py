"""The demo's one machine: a sandbox that changes, the daemon that polls it, and somebody who reads the streams.

Nothing is simulated but the API: the daemon, its store and the reader are those of ``run`` and ``tail``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Final

from poller.cli.demo_ledger import Ledger, Reckoning
from poller.cli.lines import Event, Unreadable, read_event, understood
from poller.cli.options import utc_now
from poller.cli.output import warn
from poller.config.settings import Settings
from poller.errors import PollerError, StoreUnavailable
from poller.sandbox.model import History
from poller.sandbox.mutate import mutate
from poller.sandbox.rate import repeat
from poller.service import daemon
from poller.service.assembly import keys_of
from poller.service.following import followed
from poller.stopping import ended
from poller.store.connection import blocking
from poller.store.stream import EARLIEST, Entry

CHANGES_PER_SECOND: Final = 4.0
_BLOCK: Final = timedelta(milliseconds=250)
_STOP_PATIENCE: Final = 6.0  # seconds; a commit that is on its way has five
_PATIENCE: Final = 15.0  # seconds for the first reading, and for the last changes to arrive


class Stage:
    """One performance: :meth:`first_reading`, :meth:`changes`, :meth:`last_arrivals`, then :meth:`close`."""

    def __init__(
        self, settings: Settings, url: str, history: History, rng: Random, show: Callable[[str, Event], None]
    ) -> None:
        """Begin to poll and to read.

        Args:
            settings: of the daemon; its feeds are named like the sandbox's resources.
            url: of the store, which is open.
            history: the sandbox's.
            rng: chooses the changes.
            show: told each event but those of first readings, with its feed.
        """
        self.ledger = Ledger()
        self._history = history
        self._rng = rng
        self._show = show
        self._seeded = history.version
        self._news = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stop = asyncio.Event()
        self._polling = asyncio.create_task(daemon.run(settings, {}, stop=self._stop, now=utc_now), name="demo daemon")
        self._reading = asyncio.create_task(self._read(settings, url), name="demo reader")

    async def first_reading(self, told: asyncio.Event) -> None:
        """Return when every record has arrived, or the demo was told to stop."""
        if not await self._until_complete(told):
            raise PollerError(f"the first reading did not end within {_PATIENCE:g} s")

    async def changes(self, told: asyncio.Event, seconds: float | None) -> None:
        """Change records for so long, or until told to stop."""
        changing = asyncio.create_task(
            repeat(lambda: mutate(self._history, self._rng, utc_now()), per_second=CHANGES_PER_SECOND)
        )
        ending = asyncio.create_task(told.wait())
        try:
            await asyncio.wait(
                {changing, ending, self._polling, self._reading},
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            self._look()
        finally:
            await ended(changing, ending)

    async def last_arrivals(self) -> Reckoning:
        """Wait for what is still on its way, and for the rounds that brought it to end; the reckoning."""
        if await self._until_complete(None):
            self._quiet.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._quiet.wait()
        return self.ledger.reckon(self._history.since(0), after=self._seeded)

    async def close(self) -> None:
        """Stop the daemon in order, and if it does not stop, out of order; then the reader."""
        self._stop.set()
        await asyncio.wait({self._polling}, timeout=_STOP_PATIENCE)
        await ended(self._polling, self._reading)

    async def _until_complete(self, told: asyncio.Event | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self.ledger.reckon(self._history.since(0)).missing and not (told and told.is_set()):
                    self._look()
                    self._news.clear()
                    await self._news.wait()
                return True
        return False

    def _look(self) -> None:
        """Raise what ended the daemon or the reader, should one of them have ended."""
        for task in (self._polling, self._reading):
            if task.done():
                task.result()
                raise PollerError("the daemon ended by itself")

    async def _read(self, settings: Settings, url: str) -> None:
        feeds = {keys_of(settings, feed_id).events: feed_id for feed_id in settings.feed_ids}
        async with blocking(url, block=_BLOCK) as client:
            async for entries in followed(client, dict.fromkeys(feeds, EARLIEST), block=_BLOCK, away=_ignore):
                for entry in entries:
                    self._take(entry, feeds[entry.key])
                self._news.set()
                if not entries:
                    self._quiet.set()

    def _take(self, entry: Entry, feed_id: str) -> None:
        try:
            with understood(entry.event, feed=feed_id, entry_id=entry.id):
                event = read_event(entry.event)
                if self.ledger.take(feed_id.partition("/")[2], event, at=utc_now()):
                    self._show(feed_id, event)
        except Unreadable as reason:
            warn(str(reason))


def _ignore(_: StoreUnavailable) -> None:
    """The daemon says it."""
