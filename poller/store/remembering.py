"""What is remembered of a feed apart from its own keys: enough to notice that they are not what they were.

A process remembers what it saw last. For those that come after it the same stands in a hash of another slot, so that
what takes a feed's keys away need not take this too. It is written when something of it is new, and otherwise now and
then; so the sequence in it is never higher than the true one was, and may be a little lower.

Refuses to know what a loss is: :mod:`poller.store.losses`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.losses import ORDER, Remembered, further, loss_of, told_already
from poller.store.state import FeedState, Loss

NOTE_EVERY: Final = 10.0  # seconds between notes that only the sequence has moved

_decode: Final = msgspec.json.Decoder(Remembered).decode
_encode: Final = msgspec.json.Encoder().encode


class Memory:
    """One process' memory of one feed; without a client, it is all there is."""

    def __init__(
        self,
        client: Redis | None = None,
        key: str = "",
        feed: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is remembered yet.

        Args:
            client: of the store.
            key: of the hash.
            feed: its field.
            clock: seconds that only go forward.
        """
        self.known: Remembered | None = None
        self._client = client
        self._key = key
        self._feed = feed
        self._clock = clock
        self._recalled = False
        self._noted: Remembered | None = None
        self._noted_at = clock()

    async def recall(self) -> None:
        """Learn what is noted, where that was not done yet.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        if self._recalled:
            return
        noted = await self._read()
        if not self._recalled:  # else more was overheard meanwhile
            self.known, self._noted, self._recalled = noted, noted, True

    def overheard(self, noted: Remembered | None) -> None:
        """Another process has noted this of a feed that is not ours; what goes further than what is known counts."""
        known = self.known
        if noted is None or (known is not None and not further(noted, known)):
            return
        self.known = self._noted = noted
        self._recalled = True

    async def remind(self) -> None:
        """Write down what is known where nothing is: a process that starts may need it.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        if self._client is not None and self.known is not None:
            with translated(self._client):
                await self._client.hsetnx(self._key, self._feed, _encode(self.known))

    async def loss(self, state: FeedState, found: str) -> Loss | None:
        """What was lost and not told yet; None where nothing was.

        Args:
            state: as it is now.
            found: the word on what was missing.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        loss = loss_of(self.known, state, found)
        if loss is None or self.known is None:
            return loss
        noted = await self._read()
        if noted is not None and told_already(self.known, noted):
            self.known = self._noted = noted
            return loss_of(noted, state, found)
        return loss

    def begun(self, state: FeedState, found: str) -> None:
        """The feed is where this state says, and what was to be found is found."""
        before = self.known.told if self.known else 0
        turned = state.loss is not None or found == ORDER
        self.known = Remembered(state.generation, state.sequence, state.formers, before + turned)

    def moved(self, sequence: int) -> None:
        """The last event of the feed has this number now."""
        if self.known is not None:
            self.known = msgspec.structs.replace(self.known, sequence=sequence)

    async def note(self) -> None:
        """Write down what is known, where it is new or was not written for long.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        known, noted = self.known, self._noted
        if self._client is None or known is None or known == noted:
            return
        moved = noted is not None and (noted.lineage, noted.told) == (known.lineage, known.told)
        if moved and self._clock() < self._noted_at + NOTE_EVERY:
            return
        with translated(self._client):
            await self._client.hset(self._key, self._feed, _encode(known))
        self._noted, self._noted_at = known, self._clock()

    async def _read(self) -> Remembered | None:
        """What is noted; what another version wrote in another form is nothing."""
        if self._client is None:
            return None
        with translated(self._client):
            noted: bytes | None = await self._client.hget(self._key, self._feed)  # type: ignore[assignment] # bytes, as the client is set up
        return None if noted is None else _decoded(noted)


async def notes(client: Redis, key: str) -> dict[str, Remembered]:
    """All that is noted, by feed.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(key))
    read = {feed.decode(): _decoded(noted) for feed, noted in found.items()}
    return {feed: noted for feed, noted in read.items() if noted is not None}


async def known_feeds(client: Redis, key: str) -> list[str]:
    """Every feed of which something is noted, ``SOURCE/NAME``.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        found = cast("list[bytes]", await client.hkeys(key))
    return sorted(name.decode() for name in found)


async def note_unread(client: Redis, key: str, feed: str) -> None:
    """Let a feed be known of which nothing is noted, for another version has kept it.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        await client.hsetnx(key, feed, b"{}")


def _decoded(noted: bytes) -> Remembered | None:
    try:
        return _decode(noted)
    except msgspec.MsgspecError:
        return None
