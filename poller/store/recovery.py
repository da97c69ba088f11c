"""Detection of lost or rolled back feeds, and where their consumers begin again.

Theory of operation
-------------------
A *generation* is drawn whenever a feed's state is created; the state keeps the earlier ones with it. A process
remembers the generation and the sequence that it saw last (its high-water mark), and notes them in a hash of another
slot, so that a loss of the feed's keys need not take the note, too. When a feed's lease is acquired, the state is
compared with that:

==============================================  =====================================================
the store holds                                 then
==============================================  =====================================================
the generation known, no lower a sequence       nothing is lost
its successor, drawn for an operator            nothing is lost, though no process may have noted the reset
the generation known, a lower sequence          rolled back: later changes come again, with the same ids
another successor of the one known              a part was lost, and the feed was reset
a predecessor of the one known                  rolled back, to before something was lost
another successor of the same predecessor       a part was lost twice, and another process has reset the feed
any other                                       replaced: it is another installation's
==============================================  =====================================================

A store that loses everything loses the leases and the list of processes, too, and any process may acquire a feed first.
It must already know that the feed existed; otherwise it would take the store for empty and its first reading for a new
feed. So each process reads the notes of the feeds of others (:func:`overhear`) while the store still has them.

**Invariants**

- The noted sequence is never higher than the true one, and may be a little lower: a note is written when anything but
  the sequence changes, and otherwise now and then.
- A feed of which a part is missing is reset as a whole, because snapshots, dictionaries and generation mean nothing
  without one another. Only the stream may be lost by itself.
- A loss that another process has reported is not reported again.
- A known mark is replaced only by a later one of the same feed. A note that is gone changes nothing and is written
  again, for processes that start after the loss.
- A subscription that was delivered before its feed was lost gets everything published since, except the baseline that
  the loss led to, which repeats what it got before. A new subscription begins like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, Protocol, cast

import msgspec
from redis.asyncio import Redis

from poller.clock import Clock, milliseconds_of, moment_of, rfc3339
from poller.errors import StoreError, StoreRefused
from poller.redis.errors import translated
from poller.store.feed_state import (
    ANEW_AT,
    BEGUN_AFTER,
    BEGUN_AT,
    DELTA_TOKEN,
    FORMERS,
    GENERATION,
    LOST,
    LOST_AT,
    ORDERED_AT,
    READ_AT,
    RESETS,
    ROTATION,
    TOKEN_SEQUENCE,
    FeedState,
    Loss,
)
from poller.store.keys import ConsumerKeys, FeedKeys, remembered_key
from poller.store.scripts import lua
from poller.store.stream import EARLIEST, EntryId, before, last_id, last_ids

ORDER: Final = "order"
STREAM: Final = "stream"
# The missing part, by the word of the script that begins a round.
_PARTS: Final = {
    "all": "all that was kept of it",
    "state": "its state",
    "snapshots": "what was known of its records",
    "dictionaries": "the dictionaries that its snapshots were packed with",
    "qualifications": "the qualifications that it had named",
}
_ANEW: Final = (
    "the feed is read again; webhooks do not get that reading, and events not yet delivered may be gone: "
    "`poller replay SUBSCRIPTION FEED --from earliest` sends a subscription the present state. Find out what took it "
    "from the store: FLUSHALL, eviction, a volume that is not there"
)
_STREAM: Final = (
    "the feed goes on; events that were in the stream and not yet read are gone. `poller resync FEED --anew` publishes "
    "all records again for readers of the stream"
)
_ROLLED_BACK: Final = (
    "what was lost is read and published again, with the same ids, but for a change that the API has taken back since: "
    "if receivers may hold one, `poller resync FEED --anew` publishes all records again. Find out whether a backup was "
    "restored, or a failover lost acknowledged writes"
)
_REPLACED: Final = (
    "are redis.url and redis.prefix right? If they are, nothing is to be done: the next reading publishes what differs "
    "as a baseline, which webhooks do not get"
)


class HighWaterMark(msgspec.Struct, frozen=True):
    """The generation and sequence of a feed that were seen last.

    Attributes:
        generation: of its state.
        sequence: of its last event, at least.
        formers: the generations before that one, the newest first.
        losses: how many losses of this feed were found so far, by any process.
        latest: no entry of its stream has a later moment in its id; milliseconds, 0: unknown.
    """

    generation: str
    sequence: int
    formers: tuple[str, ...] = ()
    losses: int = msgspec.field(default=0, name="told")
    latest: int = 0

    @property
    def highest_entry(self) -> str:
        """An id that no entry of the stream is after; empty: unknown."""
        return str(EntryId(self.latest + 1)) if self.latest else ""

    @property
    def lineage(self) -> tuple[str, ...]:
        """All generations of the feed that are known."""
        return (self.generation, *self.formers)


def loss_of(known: HighWaterMark | None, state: FeedState, found: str) -> Loss | None:
    """The loss that the state shows; None where nothing was lost.

    Args:
        known: before.
        state: now.
        found: the word of :data:`poller.store.scripts.BEGIN` on what was missing.
    """
    if found in _PARTS:
        return _loss(known, state, _PARTS[found])
    if found == STREAM:
        return _with(known, state, kind="lost", text="events that its stream held", advice=_STREAM)
    if known is None or found == ORDER or _is_ordered_after(known, state):
        return None
    if state.generation in known.lineage:
        before = state.generation != known.generation
        return _rolled_back(known, state) if before or state.sequence < known.sequence else None
    if not set(known.lineage).isdisjoint(state.formers):
        return _loss(known, state, "what was kept of it")
    return _with(
        known, state, kind="replaced", text="another installation's data stands in its place", advice=_REPLACED
    )


def _is_ordered_after(known: HighWaterMark, state: FeedState) -> bool:
    """Whether the known feed was reset because an operator wanted it, by a process that ended before it noted that."""
    is_ordered = state.ordered_at is not None and state.ordered_at == state.begun_at
    return is_ordered and state.formers[:1] == (known.generation,) and state.sequence >= known.sequence


def loss_marks(loss: Loss, *, now_ms: int) -> dict[str, str | None]:
    """The marks that record a loss in the feed's state, for status and diagnostics.

    A replaced feed keeps its contents, because the other installation may need them. Its next reading is a baseline, so
    that it is not delivered as changes.
    """
    marks: dict[str, str | None] = {LOST: loss.text, LOST_AT: rfc3339(moment_of(now_ms))}
    if loss.kind == "replaced":
        marks |= {READ_AT: None, DELTA_TOKEN: None, TOKEN_SEQUENCE: None, ROTATION: None, ANEW_AT: str(now_ms)}
    return marks


def is_announced(known: HighWaterMark, noted: HighWaterMark | None) -> bool:
    """Whether another process has noted a later loss of the same feed."""
    related = noted is not None and not set(noted.lineage).isdisjoint(known.lineage)
    return noted is not None and related and noted.losses > known.losses


def further(noted: HighWaterMark, known: HighWaterMark) -> bool:
    """Whether a note is of the known feed, at a later event or after another loss."""
    related = not set(noted.lineage).isdisjoint(known.lineage)
    return related and (noted.losses, noted.sequence) > (known.losses, known.sequence)


def _loss(known: HighWaterMark | None, state: FeedState, text: str) -> Loss:
    return _with(known, state, kind="lost", text=text, advice=_ANEW)


def _rolled_back(known: HighWaterMark, state: FeedState) -> Loss:
    text = f"the store went back from event {known.sequence} to event {state.sequence}"
    if state.generation != known.generation:
        text = "the store went back to before it lost a part of the feed"
    return _with(known, state, kind="rolled back", text=text, advice=_ROLLED_BACK)


def _with(known: HighWaterMark | None, state: FeedState, **said: str) -> Loss:
    place = {"generation": state.generation, "sequence": state.sequence}
    if known is not None:
        place |= {"former": known.generation, "former_sequence": known.sequence}
    return msgspec.convert(said | place, Loss)


_UNCERTAIN_MS: Final = 1000  # how far the store's clock may be from what is known of it here

NOTE_EVERY: Final = 10.0  # seconds between notes that only the sequence has moved

_decode: Final = msgspec.json.Decoder(HighWaterMark).decode
_encode: Final = msgspec.json.Encoder().encode


class FeedMemory:
    """One process' memory of one feed; without a client, nothing is noted in the store."""

    def __init__(
        self,
        client: Redis | None = None,
        key: str = "",
        feed: str = "",
        *,
        clock: Clock,
    ) -> None:
        """Begin without a memory.

        Args:
            client: of the store.
            key: of the hash.
            feed: its field.
            clock: of this process.
        """
        self.known: HighWaterMark | None = None
        self._client = client
        self._key = key
        self._feed = feed
        self._clock = clock
        self._recalled = False
        self._noted: HighWaterMark | None = None
        self._noted_at = clock.monotonic()

    async def recall(self) -> None:
        """Read the note, unless that was done before.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        if self._recalled:
            return
        noted = await self._read()
        if not self._recalled:  # else more was overheard meanwhile
            self.known, self._noted, self._recalled = noted, noted, True

    def overheard(self, noted: HighWaterMark | None) -> None:
        """Take over the note of the process that has the feed, if it is later than what is known."""
        known = self.known
        if noted is None or (known is not None and not further(noted, known)):
            return
        self.known = self._noted = noted
        self._recalled = True

    async def remind(self) -> None:
        """Write the note if there is none: a process that starts may need it.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        if self._client is not None and self.known is not None:
            with translated(self._client):
                await self._client.hsetnx(self._key, self._feed, _encode(self.known))

    async def loss(self, state: FeedState, found: str) -> Loss | None:
        """The loss that was not reported yet; None where there is none.

        Args:
            state: as it is now.
            found: the word on what was missing.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        loss = loss_of(self.known, state, found)
        if loss is None or self.known is None:
            return loss
        noted = await self._read()
        if noted is not None and is_announced(self.known, noted):
            self.known = self._noted = noted
            return loss_of(noted, state, found)
        return loss

    def begun(self, state: FeedState, found: str) -> None:
        """Remember this state, with which a round begins."""
        before = self.known.losses if self.known else 0
        is_new = self.known is not None and self.known.generation != state.generation
        turned = is_new or state.loss is not None or found == ORDER
        latest = max(self.known.latest if self.known else 0, _entry_ms(state.entry))
        self.known = HighWaterMark(state.generation, state.sequence, state.formers, before + turned, latest)

    def moved(self, sequence: int, *, at_ms: int) -> None:
        """Remember the number of the feed's last event, and the store's clock once it was written."""
        known = self.known
        if known is not None and sequence != known.sequence:
            latest = max(known.latest, at_ms + _UNCERTAIN_MS)
            self.known = msgspec.structs.replace(known, sequence=sequence, latest=latest)

    async def save(self) -> None:
        """Write the note, if it has changed or was not written for long.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        known, noted = self.known, self._noted
        if self._client is None or known is None or known == noted:
            return
        moved = noted is not None and (noted.lineage, noted.losses) == (known.lineage, known.losses)
        if moved and self._clock.monotonic() < self._noted_at + NOTE_EVERY:
            return
        with translated(self._client):
            await self._client.hset(self._key, self._feed, _encode(known))
        self._noted, self._noted_at = known, self._clock.monotonic()

    async def _read(self) -> HighWaterMark | None:
        """The note; None where there is none, or another version wrote it in another form."""
        if self._client is None:
            return None
        with translated(self._client):
            noted: bytes | None = await self._client.hget(self._key, self._feed)  # type: ignore[assignment] # bytes, as the client is set up
        return None if noted is None else _decoded(noted)


def _entry_ms(entry: str | None) -> int:
    try:
        return EntryId.checked(entry).ms if entry else 0
    except ValueError:
        return 0


async def high_water_marks(client: Redis, key: str) -> dict[str, HighWaterMark]:
    """All notes, by feed.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(key))
    read = {feed.decode("utf-8", "replace"): _decoded(noted) for feed, noted in found.items()}
    return {feed: noted for feed, noted in read.items() if noted is not None}


async def known_feeds(client: Redis, key: str) -> list[str]:
    """Every feed that has a note, ``SOURCE/NAME``.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("list[bytes]", await client.hkeys(key))
    return sorted(name.decode("utf-8", "replace") for name in found)


async def last_entries(client: Redis, prefix: str, feeds: Iterable[str]) -> dict[str, str]:
    """The last entry of the stream of each of these feeds, and of each that has a note, by ``SOURCE/NAME``.

    Empty where the stream cannot be read. Streams without entries are left out; under the empty name is the entry that
    counts for them, and for every feed that is not known yet: all that they will publish comes after it. It is empty
    where the notes cannot be read, for then other feeds may have entries.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`; a key of another type is no error.
    """
    others, noted = {"": EARLIEST}, list[str]()
    try:
        noted = await known_feeds(client, remembered_key(prefix))
    except StoreRefused:
        others = {"": ""}
    names = dict.fromkeys((*feeds, *noted))
    keys = {name: FeedKeys.of(prefix, name).events for name in names}
    try:
        ends = await last_ids(client, list(keys.values()))
    except StoreRefused:
        ends = {key: await _end(client, key) for key in keys.values()}
    return others | {name: ends[key] for name, key in keys.items() if ends[key] != others[""]}


async def _end(client: Redis, key: str) -> str:
    with suppress(StoreRefused):
        return (await last_ids(client, [key]))[key]
    return ""


async def store_unread(client: Redis, key: str, feed: str) -> None:
    """Write an empty note for a feed without one that another version has stored.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        await client.hsetnx(key, feed, b"{}")


def _decoded(noted: bytes) -> HighWaterMark | None:
    try:
        return _decode(noted)
    except ValueError:
        return None


FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 60.0
SECONDS_UNKNOWN: Final = 5.0
"""While nothing is known of a feed of another process."""
_LATER: Final = 1.25
"""Factor by which the interval grows: most feeds are first read when the processes start."""


class MemorizedFeed(Protocol):
    """A feed's store; see :class:`poller.store.feed.FeedStore`."""

    memory: FeedMemory

    @property
    def held(self) -> bool:
        """Whether this process has its lease, as far as it knows."""
        ...


async def overhear(
    stop: asyncio.Event,
    client: Redis,
    key: str,
    stores: Iterable[tuple[str, MemorizedFeed]],
    *,
    clock: Clock,
) -> None:
    """Read the notes repeatedly, often at first, then at growing intervals up to a minute; see the constants.

    Args:
        stop: ends it.
        client: of the store.
        key: of the notes.
        stores: of all feeds, by name; those whose lease is held here ignore the notes.
        clock: of this process.
    """
    feeds, seconds = list(stores), FIRST_SECONDS
    while not stop.is_set():
        await clock.wait(stop, clock.aligned(seconds))
        with suppress(StoreError):  # rounds and deliveries report it
            await _exchange(feeds, await high_water_marks(client, key))
        unknown = any(store.memory.known is None and not store.held for _, store in feeds)
        seconds = min(_LATER * seconds, SECONDS_UNKNOWN if unknown else LONGEST_SECONDS)


async def _exchange(feeds: Sequence[tuple[str, MemorizedFeed]], noted: Mapping[str, HighWaterMark]) -> None:
    """Take over the notes of others, and write those that are missing."""
    for feed, store in feeds:
        if not store.held:
            store.memory.overheard(noted.get(feed))
    for feed, store in feeds:
        if feed not in noted and store.memory.known is not None:
            await store.memory.remind()


# A feed consumer was lost if its feed was lost and reset lately, and its subscription is older than the reset. A reset
# that an operator wanted takes no consumer with it: one without a position has not begun there, and all that waits for
# it is new to it. A consumer that has a stored position also stores the name of the reset that it began with; under
# another name, it is older. Clocks may be set back, and much may happen within a millisecond; so entry ids say what
# came before and after a reset.

BEGINNING: Final = "beginning"
_OLDER: Final = ""  # than any beginning
_RESET_MARKS: Final = [GENERATION, ANEW_AT, BEGUN_AT, BEGUN_AFTER, ORDERED_AT, FORMERS, RESETS]
_LATELY: Final = 24 * 3600 * 1000  # milliseconds; after that, a subscription may have got a feed that it never had

_NOW: Final = lua("read_clock")


class _FeedStart(msgspec.Struct, frozen=True):
    """The latest reset of a feed, from its state; see :class:`poller.store.feed_state.FeedState`."""

    generation: str
    anew_at: int | None
    begun_at: int | None
    begun_after: str | None
    ordered_at: int | None
    formers: tuple[str, ...] = ()
    resets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the reset. Taking over another installation's feed counts as one."""
        return self.generation if self.anew_at in (None, self.begun_at) else f"{self.generation}@{self.anew_at}"

    @property
    def is_loss(self) -> bool:
        """Whether it took the feed's consumers with it; one that an operator wanted does not."""
        return self.anew_at not in (None, self.ordered_at)

    @property
    def after(self) -> str | None:
        """The entry that everything published since follows; None where the feed was not reset."""
        if self.anew_at is None:
            return None
        return (self.begun_after if self.anew_at == self.begun_at else None) or before(f"{self.anew_at}-0")

    def first_after(self, beginning: str) -> str | None:
        """As :attr:`after`, of the first reset since that of this name, as far as it is known."""
        generation, found = beginning.partition("@")[0], self.after
        if found is None or generation not in (_OLDER, *self.formers):
            return found
        for name, _, mark in (one.partition("=") for one in self.resets):
            if name == generation:
                break
            found = min(found, _entry_in(mark) or found, key=EntryId.parse)
        return found


class StartPosition(msgspec.Struct):
    """Start position of a consumer that has no stored position.

    Attributes:
        client: of the store.
        keys: of the feed consumer.
        events: the key of the feed's stream.
        feed_state: the key of the feed's state; empty where resets do not matter.
        since: when the subscription was first known, UTC; None: that does not matter.
        asked: since when it wants this feed, in milliseconds of the store's clock; 0: since it is known.
        new_after: the entry after which all is new to it, see
            :meth:`~poller.store.subscriptions.Registered.new_after`; empty: not known, so what comes from now on.
    """

    client: Redis
    keys: ConsumerKeys
    events: str
    feed_state: str = ""
    since: datetime | None = None
    asked: int = 0
    new_after: str = ""
    _seen: _FeedStart | None = None
    _opened_with: str | None = None

    def opened(self) -> None:
        """Note that the consumer has begun: it is older than any reset that follows, whatever the clock."""
        self._opened_with = self._seen.name if self._seen else None

    async def place(self, start: Literal["now", "earliest", "snapshot"]) -> tuple[str, str]:
        """The entry after which the consumer begins, and the name of the reset that it begins with.

        What was published before a backfill begins is in the snapshots: so a consumer that begins with one begins now.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        last = await last_id(self.client, self.events)  # first: whatever is published meanwhile comes after it
        feed = await self.read_reset()
        if feed is not None and await self._was_lost_with(feed):
            return min(feed.after or last, last, key=EntryId.parse), _OLDER
        begins = {"earliest": EARLIEST, "snapshot": last}.get(start) or self._new(last)
        return begins, _OLDER if feed is None else feed.name

    async def read_reset(self) -> _FeedStart | None:
        """The latest reset of the stored feed; None where there is no feed.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        if not self.feed_state:
            return None
        with translated(self.client):
            found = await self.client.hmget(self.feed_state, _RESET_MARKS)
        generation, anew, begun, after, ordered, formers, resets = (
            None if value is None else value.decode() for value in _bytes(found)
        )
        if generation is None:
            return None
        marks = _moment_in(anew), _moment_in(begun), _entry_in(after), _moment_in(ordered)
        self._seen = _FeedStart(generation, *marks, tuple((formers or "").split()), tuple((resets or "").split()))
        return self._seen

    async def reset_entry(self) -> str | None:
        """The entry after which the feed was reset first since the consumer has begun; None: it was not.

        For a feed that was lost again and is not reset yet, the reset seen last counts.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        feed = await self.read_reset() or self._seen
        if feed is None or feed.anew_at is None:
            return None
        with translated(self.client):
            began = cast("bytes | None", await self.client.hget(self.keys.state, BEGINNING))
        if began is None:
            return feed.after if self._older(feed.anew_at) else None
        return feed.first_after(began.decode()) if began.decode() != feed.name else None

    def _new(self, last: str) -> str:
        """The last entry before the subscription wanted the feed, however late delivery begins."""
        # A stream that went back ends before that entry: what comes next may have lower ids.
        return min(self.new_after or last, last, key=EntryId.parse)

    async def _was_lost_with(self, feed: _FeedStart) -> bool:
        """Whether the consumer was lost when its feed was reset."""
        if feed.anew_at is None:
            return False
        if self._began_before(feed):
            return True
        if not (feed.is_loss and self._older(feed.anew_at)):
            return False
        with translated(self.client):
            return int(await self.client.eval(_NOW, 1, self.keys.state)) - feed.anew_at < _LATELY

    def _began_before(self, feed: _FeedStart) -> bool:
        """Whether the consumer has begun in this process with another reset: then it is older, whatever the clock."""
        return self._opened_with not in (None, feed.name)

    def _older(self, moment: int) -> bool:
        """Whether the subscription wanted the feed before this moment, by the store's clock where known."""
        wanted = self.asked or (milliseconds_of(self.since) if self.since else None)
        return wanted is not None and wanted < moment


# What another program wrote into a mark counts as unknown: no delivery stops because of it.


def _entry_in(mark: str | None) -> str | None:
    with suppress(ValueError):
        return str(EntryId.checked(mark)) if mark else None
    return None


def _moment_in(mark: str | None) -> int | None:
    entry = None if mark is None or "-" in mark else _entry_in(mark)
    return None if entry is None else EntryId.parse(entry).ms


def _bytes(found: object) -> list[bytes | None]:
    """The answer of HMGET, typed as the client is set up."""
    return cast("list[bytes | None]", found)
