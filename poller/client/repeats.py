"""Repeats of events: stores of what was handled, and claims on what is being handled.

A sender that got no answer sends an event again, also while the first delivery is still being worked on.

**Invariants**

- A key is of an event's ``source`` and ``id``, 32 hex digits whatever these hold.
- A store is asked before the work and marked after it, so work that died is done again. What a store has forgotten is
  done again, too.
- In one process an event is worked on once at a time: :class:`Claims`.
- Stores are used by several threads at the same time.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from hashlib import blake2b
from inspect import iscoroutinefunction
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from cloudevents.core.base import BaseCloudEvent

if TYPE_CHECKING:
    from redis import Redis
    from redis.cluster import RedisCluster

KEPT: Final = timedelta(days=3)
"""How long a store knows an event: the standard schedule of retries takes two days, and a fifth more by its jitter."""

_REDIS_SECONDS: Final = 5.0  # for one command; senders wait for 15 s


def key_of(event: BaseCloudEvent) -> str:
    """What two deliveries of one event have in common, and two events have not."""
    return blake2b(json.dumps([event.get_source(), event.get_id()]).encode(), digest_size=16).hexdigest()


class SeenStore(Protocol):
    """Remembers which events were handled. The best one is the store of the work itself, in its transaction.

    Both methods may block, and may raise any exception: then the event is not handled, or is handled and perhaps once
    more.
    """

    def contains(self, key: str) -> bool:
        """Whether the event with this key was handled."""

    def add(self, key: str) -> None:
        """Remember that the event with this key was handled."""


class MemoryStore:
    """Remembers events in this process, until it ends.

    An event takes about 150 bytes. When there are too many, those that were handled first are forgotten.
    """

    def __init__(
        self, most: int = 100_000, age: timedelta = KEPT, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Remember at most this many events, each for this long; ``monotonic`` gives seconds.

        Raises:
            ValueError: that is nothing.
        """
        if most < 1 or age <= timedelta():
            raise ValueError("expected at least one event, and an age above zero")
        self._most = most
        self._seconds = age.total_seconds()
        self._monotonic = monotonic
        self._handled: OrderedDict[str, float] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._handled)

    def contains(self, key: str) -> bool:
        """Whether the event with this key was handled, as far as that is remembered."""
        with self._lock:
            self._forget()
            return key in self._handled

    def add(self, key: str) -> None:
        """Remember an event."""
        with self._lock:
            self._handled[key] = self._monotonic()
            self._handled.move_to_end(key)
            self._forget()

    def _forget(self) -> None:
        oldest = self._monotonic() - self._seconds
        while self._handled:
            key = next(iter(self._handled))
            if len(self._handled) <= self._most and self._handled[key] > oldest:
                return
            del self._handled[key]


class RedisStore:
    """Remembers events in Redis, for all processes of a receiver and beyond their restarts.

    Each event is a key that expires. The user needs the commands ``EXISTS`` and ``SET`` on keys that begin with the
    prefix.
    """

    def __init__(
        self, server: str | Redis | RedisCluster, prefix: str = "webhooks:seen:", ttl: timedelta = KEPT
    ) -> None:
        """Use a server.

        Args:
            server: a URL (redis://, rediss://, unix://), or a client of redis-py that does not belong to a loop.
            prefix: of the keys. Receivers that do different work with the same events need different ones.
            ttl: how long an event is remembered.

        Raises:
            ValueError: the URL or the ttl cannot be used.
            TypeError: it is a client of asyncio.
        """
        if iscoroutinefunction(getattr(server, "execute_command", None)):
            raise TypeError("expected redis.Redis or a URL: a client of redis.asyncio belongs to one loop")
        self._milliseconds = int(ttl.total_seconds() * 1000)
        if self._milliseconds < 1:
            raise ValueError("expected a ttl above zero")
        self._prefix = prefix
        self._client = _client(server) if isinstance(server, str) else server

    def contains(self, key: str) -> bool:
        """Whether the event with this key was handled.

        Raises:
            redis.RedisError: the server cannot be asked.
        """
        return bool(self._client.exists(self._prefix + key))

    def add(self, key: str) -> None:
        """Remember an event.

        Raises:
            redis.RedisError: the server cannot be asked.
        """
        self._client.set(self._prefix + key, "1", px=self._milliseconds)


def _client(url: str) -> Redis:
    from redis import Redis  # noqa: PLC0415 -- only this store needs it
    from redis.backoff import NoBackoff  # noqa: PLC0415 -- as above
    from redis.retry import Retry  # noqa: PLC0415 -- as above

    seconds = _REDIS_SECONDS
    # One more attempt, for a connection that the server closed while it was idle; the sender repeats the rest.
    return Redis.from_url(url, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 1))


class Claims:
    """The events that this process is working on, whatever thread or loop does it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: dict[str, Future[None]] = {}

    def claim(self, key: str) -> Future[None] | None:
        """Claim an event; None: the caller has it until :meth:`release`. Else it is done when another one releases it.

        After that the caller has to claim again.
        """
        with self._lock:
            running = self._running.get(key)
            if running is None:
                claimed: Future[None] = Future()
                self._running[key] = claimed
                claimed.set_running_or_notify_cancel()  # so that no one who waits can cancel it for the others
            return running

    def release(self, key: str) -> None:
        """Release an event; those that wait for it go on."""
        with self._lock:
            claimed = self._running.pop(key)
        claimed.set_result(None)
