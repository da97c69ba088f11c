"""The demo's one machine: a sandbox that changes, the daemon that polls it, and somebody who reads what comes of it.

Nothing is simulated but the API: the daemon, its store and the reader of streams are those of ``run`` and ``tail``, and
whoever receives webhooks is another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from random import Random
from typing import Final

from poller import app as daemon
from poller.cli.demo_ledger import Ledger, Reckoning
from poller.cli.demo_lines import Line, stream_line, webhook_line
from poller.cli.demo_receiver import Report
from poller.cli.demo_webhooks import Webhooks
from poller.cli.lines import Unreadable, read_event, understood
from poller.cli.options import utc_now
from poller.cli.output import warn
from poller.config.settings import Settings
from poller.control.feeds import keys_of
from poller.errors import PollerError, StoreUnavailable
from poller.lifecycle import ended
from poller.sandbox.data import mutate
from poller.sandbox.history import History
from poller.sandbox.server import repeat
from poller.store.entry_id import EARLIEST
from poller.store.session import blocking_client
from poller.store.stream import Entry, followed

CHANGES_PER_SECOND: Final = 4.0
_BLOCK: Final = timedelta(milliseconds=250)
_STOP_PATIENCE: Final = 6.0  # seconds; a commit that is on its way has five
_PATIENCE: Final = 15.0  # seconds for the first reading, and for the last changes to arrive


class Stage:
    """One performance: :meth:`first_reading`, :meth:`changes`, :meth:`last_arrivals`, then :meth:`close`."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        history: History,
        rng: Random,
        *,
        reports: AsyncIterator[Report],
        show: Callable[[Line], None],
    ) -> None:
        """Begin to poll, to deliver and to read.

        Args:
            settings: of the daemon; its feeds are named like the sandbox's resources.
            url: of the store, which is open.
            history: the sandbox's.
            rng: chooses the changes.
            reports: of the receiver that the one subscription is delivered to.
            show: told a line for each event, twice: from the stream and by webhook; but those of first readings.
        """
        self.ledger = Ledger()
        self.webhooks = Webhooks()
        self._history = history
        self._rng = rng
        self._show = show
        self._seeded = history.version
        self._news = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stop = asyncio.Event()
        self._running = asyncio.create_task(daemon.run(settings, {}, stop=self._stop, now=utc_now), name="the daemon")
        self._reading = asyncio.create_task(self._read(settings, url), name="the reader")
        self._receiving = asyncio.create_task(self._receive(reports), name="the webhook receiver")

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
                {changing, ending, self._running, self._reading, self._receiving},
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
            await self._until_complete(None)
        return self.ledger.reckon(self._history.since(0), after=self._seeded)

    async def close(self) -> None:
        """Stop the daemon in order, and if it does not stop, out of order; then the readers."""
        self._stop.set()
        await asyncio.wait({self._running}, timeout=_STOP_PATIENCE)
        await ended(self._running, self._reading, self._receiving)

    async def _until_complete(self, told: asyncio.Event | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                while self._missing and not (told and told.is_set()):
                    self._look()
                    self._news.clear()
                    await self._news.wait()
                return True
        return False

    @property
    def _missing(self) -> bool:
        return bool(self.webhooks.missing or self.ledger.reckon(self._history.since(0)).missing)

    def _look(self) -> None:
        """Raise what ended the daemon or a reader, should one of them have ended."""
        for task in (self._running, self._reading, self._receiving):
            if task.done():
                task.result()
                raise PollerError(f"{task.get_name()} ended by itself")

    async def _read(self, settings: Settings, url: str) -> None:
        feeds = {keys_of(settings, feed_id).events: feed_id for feed_id in settings.feed_ids}
        async with blocking_client(url, block=_BLOCK) as client:
            async for entries in followed(client, dict.fromkeys(feeds, EARLIEST), block=_BLOCK, away=_ignore):
                for entry in entries:
                    self._take(entry, feeds[entry.key])
                self._news.set()
                if not entries:
                    self._quiet.set()

    def _take(self, entry: Entry, feed_id: str) -> None:
        resource, at = feed_id.partition("/")[2], utc_now()
        try:
            with understood(entry.event, feed=feed_id, entry_id=entry.id):
                event = read_event(entry.event)
                self.webhooks.publish(event, at=at)
                if self.ledger.take(resource, event, at=at):
                    self._show(stream_line(resource, event, at=at))
        except Unreadable as reason:
            warn(str(reason))

    async def _receive(self, reports: AsyncIterator[Report]) -> None:
        async for report in reports:
            event = report.event
            if event is None:
                self.webhooks.refuse()
                warn(f"a webhook was refused: {report.refused}")
            elif self.webhooks.take(event, at=report.at):
                self._show(webhook_line(event, at=report.at, after=self.webhooks.after(event.id)))
            self._news.set()


def _ignore(_: StoreUnavailable) -> None:
    """The daemon says it."""
