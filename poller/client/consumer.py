"""An async iterator over the events of feeds, for one member of a consumer group.

::

    async with Consumer("redis://127.0.0.1:6379/0", ["acme/contractTypes"], "rostering", "consumer-1") as consumer:
        async for event in consumer:
            ...

**Invariants**

- An event is acknowledged when the next one is asked for, which is after the loop's body; or by :meth:`Consumer.ack`.
  One whose body raises, or is left by ``break`` or ``return``, is not acknowledged and comes again.
- At least once: what is not acknowledged comes again, to this member or, after its lease, to another one.
- One batch of one feed is in memory at a time, and one page of records during a bootstrap.
- A cancelled ``anext`` loses nothing and may be followed by another. The page that it waited for goes on being fetched.
- The store may be away, fail over, or lose its scripts or the group: the iterator waits, logs it once, and goes on.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal, Self
from weakref import WeakKeyDictionary

from cloudevents.core.v1.event import CloudEvent
from redis.exceptions import RedisError

from poller.client.connection import REPLY_TIMEOUT, connect, embedded_url, is_cluster
from poller.client.feed_reader import (
    LINGER_SECONDS,
    WATCH_LEASES,
    ExclusiveReader,
    FeedReader,
    HandedEvent,
    ReaderSettings,
    SharedReader,
    clock,
)
from poller.client.gaps import Gap, is_passing
from poller.client.group_store import LONGEST_LEASE, GroupStore, LeaseLost
from poller.client.record_pages import RecordPages, ResetWatch

_SHORTEST_LEASE: Final = timedelta(milliseconds=200)
_RESERVED: Final = "sub:"
_BETWEEN_QUESTIONS: Final = 0.1  # seconds, where the feeds are on different servers and none can wait for all
_FULL_SECONDS: Final = 0.2  # for which new entries are waited for while acknowledgements are, too
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_GOODBYE_SECONDS: Final = 2.0
_CANCEL_AGAIN_SECONDS: Final = 0.1

_log = logging.getLogger("poller.client")


class Consumer:
    """A member of a consumer group; see the module. Use it with ``async with``, from one task."""

    def __init__(
        self,
        url: str | None,
        feeds: str | Iterable[str],
        group: str,
        name: str,
        *,
        bootstrap: bool = False,
        exclusive: bool = True,
        ack: bool = True,
        on_gap: Callable[[Gap], Awaitable[None] | None] | None = None,
        start: Literal["earliest", "now"] = "earliest",
        api: str = "http://127.0.0.1:8080",
        token: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        prefix: str = "poller",
        lease: timedelta = timedelta(seconds=10),
        claim_after: timedelta = timedelta(minutes=1),
        batch: int = 100,
        most_unacknowledged: int = 1000,
        block: timedelta = timedelta(seconds=5),
    ) -> None:
        """Describe the member; nothing is sent.

        Args:
            url: of Redis, as ``redis.url`` of the daemon; None: the embedded server of this machine.
            feeds: ``SOURCE/NAME``, one or several.
            group: the consumer group: all members of a group share its position, other groups are independent.
            name: of this member: another one for each member of the group, the same at every start.
            bootstrap: begin a new group with each record that exists, then go on with the changes; and likewise after a
                reset of the feed. Needs ``exclusive`` and the daemon's HTTP service.
            exclusive: one member reads each feed, in order, and others stand by to take over. False: the events are
                spread over the members, without order.
            ack: False: events are acknowledged by :meth:`ack` alone.
            on_gap: called for events that can no longer be read; None: :class:`Gap` is raised, once for each, but for
                those that erasures of records alone have made, which are logged.
            start: where a new group begins without ``bootstrap``.
            api: the daemon's HTTP service, for ``bootstrap``.
            token: its read token.
            data_dir: ``embedded.data_dir`` of the daemon, with ``url`` None; default: ``$POLLER_DATA_DIR``, else the
                platform's state directory.
            prefix: ``redis.prefix`` of the daemon.
            lease: after how long another member takes over from one that is gone. It is renewed while the loop's body
                runs, but not while that blocks the event loop.
            claim_after: not ``exclusive``: after how long the others get what a member that is gone has not
                acknowledged.
            batch: how many events are read at a time.
            most_unacknowledged: with ``ack=False``: how many events of a feed are given before one is acknowledged.
            block: how long a command waits for new events.

        Raises:
            ValueError: an argument cannot be used; the message says why.
        """
        self._feeds = _checked_feeds(feeds)
        _check_names(group, name)
        if bootstrap and not exclusive:
            raise ValueError("bootstrap: needs exclusive=True, for it promises an order")
        for what, span in (("lease", lease), ("claim_after", claim_after)):
            if span < _SHORTEST_LEASE:
                raise ValueError(f"{what}: expected {_SHORTEST_LEASE.total_seconds():g} s or more")
        if lease > LONGEST_LEASE:
            raise ValueError(f"lease: expected {LONGEST_LEASE.total_seconds():g} s or less")
        if batch < 1 or most_unacknowledged < 1:
            raise ValueError("batch, most_unacknowledged: expected 1 or more")
        self._url = embedded_url(data_dir) if url is None else url
        self._group, self._name, self._prefix = group, name, prefix
        self._api, self._token = (api, token) if bootstrap else ("", None)
        self._exclusive, self._acknowledges, self._on_gap = exclusive, ack, on_gap
        self._block = block
        self._settings = ReaderSettings(
            lease=lease if exclusive else claim_after,
            batch=batch,
            most_unsettled=max(most_unacknowledged, 1) if not ack else max(batch, most_unacknowledged),
            start="0-0" if start == "earliest" else "$",
        )
        self._client: Any = None
        self._waiting: Any = None
        self._readers: list[FeedReader] = []
        self._current: FeedReader | None = None
        self._at_hand: HandedEvent | None = None
        self._handed: WeakKeyDictionary[CloudEvent, HandedEvent] = WeakKeyDictionary()
        self._keeping: asyncio.Task[None] | None = None
        self._lingering = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._pause = 0.0
        connect(self._url)  # refuses a URL that cannot be used; connects nothing

    async def __aenter__(self) -> Self:
        """Open the connections, with the first command."""
        self._client = connect(self._url)
        self._waiting = connect(self._url, reply_timeout=REPLY_TIMEOUT + self._block)
        self._readers = [self._reader(feed) for feed in self._feeds]
        self._keeping = asyncio.create_task(self._keep(), name=f"leases of {self._name}")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Acknowledge what was handled, let other members go on, and close the connections.

        The event at hand, whose body was left by an exception, ``break`` or ``return``, is not acknowledged.
        """
        keeping, self._keeping = self._keeping, None
        try:
            while keeping is not None and not keeping.done():  # Python 3.11 may lose a cancellation in `wait_for`
                keeping.cancel()
                await asyncio.wait([keeping], timeout=_CANCEL_AGAIN_SECONDS)  # a cancellation of the caller passes
            with suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    for reader in self._readers:
                        await reader.settle()
                        await reader.release()
        finally:
            for reader in self._readers:
                await reader.aclose()
            self._readers, self._current, self._at_hand = [], None, None
            await self._close_clients()

    async def _close_clients(self) -> None:
        await self._client.aclose()
        await self._waiting.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CloudEvent:
        """The next event, as soon as there is one. What was handed out before counts as handled.

        Raises:
            Gap: events can no longer be read, and there is no ``on_gap``. The next call goes on after them.
            BootstrapRefused: the daemon does not give out its records.
            redis.exceptions.RedisError: the server refuses access.
        """
        self._check_open()
        handed, self._at_hand = self._at_hand, None
        if handed is not None and self._acknowledges:
            handed.reader.finish(handed)
        while True:
            if self._keeping is None:  # another task has left the block, before this one has connected again
                await self._close_clients()
            self._check_open()
            try:
                event = await self._next()
            except (RedisError, OSError) as error:
                await self._away(error)
                continue
            except TypeError:  # what asyncio raises for a connection that is closed while it is made
                if self._keeping is not None:
                    raise
                continue
            if event is not None:
                self._pause = 0.0
                return event

    async def ack(self, event: CloudEvent) -> None:
        """Acknowledge an event now; with ``exclusive``, also all events that came before it from its feed.

        Raises:
            LeaseLost: another member has the feed; it gets the event again.
            ValueError: it is no event of this consumer.
            redis.exceptions.RedisError: the store does not answer for the time of a lease, or refuses access.
        """
        self._check_open()
        handed = self._handed.get(event)
        if handed is None:
            raise ValueError("ack: expected an event that this consumer has given")
        if handed is self._at_hand:
            self._at_hand = None
        reader, until = handed.reader, clock() + self._settings.lease.total_seconds()
        if not reader.finish_up_to(handed):
            raise LeaseLost(f"{reader.feed}: another member reads it; the event comes again there")
        while True:
            try:
                if not await reader.settle():
                    raise LeaseLost(f"{reader.feed}: another member reads it; the event comes again there")
            except (RedisError, OSError) as error:
                if clock() > until:
                    raise
                await self._away(error)
            else:
                self._acknowledged.set()
                return

    async def forget(self) -> None:
        """Destroy the group at its feeds, and delete what is kept of it in Redis.

        A group that is not used any more holds back the trimming of the streams.

        Raises:
            LeaseLost: another member reads a feed; that one is left as it is.
            redis.exceptions.RedisError: the store does not answer, or refuses access.
        """
        self._check_open()
        for reader in self._readers:
            try:
                await reader.store.forget()
            except LeaseLost:
                raise LeaseLost(f"{reader.feed}: another member of {self._group} reads it; stop it first") from None
            reader.lose()

    # How the next event is found.

    async def _next(self) -> CloudEvent | None:
        """An event, if there is one with the next step."""
        reader = self._current
        if reader is None:
            await self._choose()
            return None
        if not reader.batch or reader.is_full:
            self._current = None
            await reader.settle()
        elif not reader.is_held:
            reader.doubt()
        elif reader.is_settling_due:
            await reader.settle()
        elif isinstance(gap := reader.batch[0], Gap):
            await self._report(reader, gap)
        else:
            return self._given(reader)
        return None

    def _given(self, reader: FeedReader) -> CloudEvent | None:
        handed = reader.hand_out()
        if handed.is_repeat:
            reader.finish(handed)
            return None
        self._handed[handed.event] = self._at_hand = handed
        if reader.done:
            self._lingering.set()
        return handed.event

    async def _choose(self) -> None:
        """Read from the feeds in turn, or wait for something to read."""
        for _ in range(len(self._readers)):
            reader = self._readers.pop(0)
            self._readers.append(reader)
            await reader.fill()
            if reader.batch and not reader.is_full:
                self._current = reader
                return
        await self._wait()

    async def _wait(self) -> None:
        is_full = any(reader.is_full for reader in self._readers)
        tails = {reader.store.events: reader.tail for reader in self._readers if reader.tail}
        due = min((reader.due for reader in self._readers if not reader.is_full), default=clock() + _FULL_SECONDS)
        seconds = min(max(due - clock(), 0.0), self._block.total_seconds(), _FULL_SECONDS if is_full else 3600)
        if not tails:
            self._acknowledged.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, 0.001)):
                    await self._acknowledged.wait()
        elif is_cluster(self._url):
            await self._ask(tails, clock() + seconds)
        else:
            await self._waiting.xread(tails, count=1, block=max(int(seconds * 1000), 1))

    async def _ask(self, tails: dict[str, str], until: float) -> None:
        """Wait for new entries on several servers."""
        while True:
            for key, tail in tails.items():
                if await self._waiting.xread({key: tail}, count=1):
                    return
            left = until - clock()
            if left <= 0:
                return
            await asyncio.sleep(min(_BETWEEN_QUESTIONS, left))

    async def _report(self, reader: FeedReader, gap: Gap) -> None:
        is_raised = self._on_gap is None and gap.reason != "erased"
        _log.log(logging.INFO if gap.reason == "erased" else logging.WARNING, "%s", gap)
        if self._on_gap is not None:
            answer = self._on_gap(gap)
            if inspect.isawaitable(answer):
                await answer
        elif is_raised:
            await reader.settle()
        await reader.mark_reported(gap, lasting=is_raised)
        if reader.batch and reader.batch[0] is gap:
            reader.batch.popleft()
            if is_raised:
                raise gap

    # What goes on beside the loop's body.

    async def _keep(self) -> None:
        """Renew leases, and acknowledge what waits for more while the body takes long."""
        period = self._settings.lease.total_seconds() / 3
        renewal = clock() + period
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(renewal - clock(), 0.0)):
                    await self._lingering.wait()
            if self._lingering.is_set():
                self._lingering.clear()
                await asyncio.sleep(LINGER_SECONDS)
                await self._each(FeedReader.settle)
            if clock() >= renewal:
                renewal = clock() + period
                await self._each(lambda reader: reader.renew())

    async def _each(self, work: Callable[[FeedReader], Awaitable[object]]) -> None:
        """Do this for all feeds; an error is the iterator's to report, with its own next command."""
        await asyncio.gather(*(work(reader) for reader in self._readers), return_exceptions=True)

    async def _away(self, error: RedisError | OSError) -> None:
        """Wait before the store is asked again.

        Raises:
            redis.exceptions.RedisError: it would answer the same.
        """
        if not is_passing(error):
            raise error
        if not self._pause:
            _log.warning("redis unavailable; nothing is lost, retrying (%s)", _reason(error))
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        await asyncio.sleep(self._pause)

    def _check_open(self) -> None:
        if self._keeping is None:
            raise RuntimeError("use the consumer in `async with Consumer(…) as consumer:`")

    def _reader(self, feed: str) -> FeedReader:
        store = GroupStore(
            self._client,
            prefix=self._prefix,
            feed=feed,
            group=self._group,
            name=self._name,
            token=f"{secrets.token_hex(16)}" if self._exclusive else "",
            lease=self._settings.lease,
        )
        if not self._exclusive:
            return SharedReader(feed, store, self._settings)
        if not self._api:
            return ExclusiveReader(feed, store, self._settings)
        pages = RecordPages(self._api, feed, self._token)
        watch = ResetWatch(pages, WATCH_LEASES * self._settings.lease.total_seconds())
        return ExclusiveReader(feed, store, self._settings, pages=pages, watch=watch)


def _reason(error: RedisError | OSError) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _checked_feeds(feeds: str | Iterable[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys([feeds] if isinstance(feeds, str) else feeds))
    if not found or any(not re.fullmatch(r"[^\s{}/]+/[^\s{}/]+", feed) for feed in found):
        raise ValueError('feeds: expected one or more of "SOURCE/NAME"')
    return found


def _check_names(group: str, name: str) -> None:
    if not group or group.startswith(_RESERVED):
        raise ValueError(f'group: expected a name that does not begin with "{_RESERVED}": those are the daemon\'s')
    if not name:
        raise ValueError("name: expected a name that no other member of the group has")
