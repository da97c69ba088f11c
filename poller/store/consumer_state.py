"""The state of one feed consumer: its group, settlements, scheduled retries, replay and backfill.

Theory of operation
-------------------
A consumer group reads the stream, always as the one consumer :data:`CONSUMER`, because a lease lets only one process
read at a time. The process that takes over finds in the group the entries that its predecessor had read and not
settled, and reads them again from the start.

A delivery that waits for its next attempt is *parked*, in the same script that takes it out of the group, so that the
group does not hold entries for days. A *replay* is a span of the stream that is delivered again. A *backfill* delivers
the records that the feed has (:mod:`poller.store.backfill`).

**Invariants**

- Nothing is lost when a process dies, and an entry that is delivered twice had not been recorded as delivered.
- Reading is fenced like writing: entries read without the lease would be held for a consumer that never sees them.
- Creating the group is fenced, too: a process that was replaced would bring the group of a removed subscription back.
- What many subscriptions of one process ask of one feed goes in one request (:class:`ConsumerScripts`). An entry that
  several groups get is sent and decoded once, and nothing of it is remembered after the answer.
- The lease is not checked before each request; :attr:`ConsumerStore.held` turns false as soon as the lease may have
  expired by this process' clock, which is before it expires at the server.
- A parked delivery is in exactly one place at any instant.
- Dead letters keep the event itself, because the stream may be trimmed. Parked deliveries keep the id, because trimming
  spares their entries; a backfilled event has no entry, and keeps itself.
- The position of a replay or a backfill is written with settlements, and only while it is the one requested last.
- The backfill of a consumer that begins with ``start = "snapshot"`` is noted in the script that notes its place.
- ``place`` is written with each settlement. A group that is gone (destroyed, or lost with a part of the store) is made
  again there. Some of the entries read again may be settled or parked; a process that has read them knows.
- A settlement whose reply is lost is sent again. Each has a serial number, and one that arrives after later ones writes
  nothing.
- A settlement names the one that was answered before it. If the store has lost that one (a restart, a failover), what
  it settled is pending or parked again: nothing is written, the lease counts as lost, and its next owner reads
  everything again, in order. Written, a later event of a record would be settled while an earlier one comes again.
  Renewals of the lease notice the loss, too; what was settled last is forgotten only when the lease is requested again.
- A settlement names the last erasure that its process knows of. If a record was erased since, nothing is written: an
  event of it may be among what is to be kept. So nothing of an erased record is parked or given up after its erasure.
"""

from __future__ import annotations

from asyncio import CancelledError, Future
from collections.abc import Container, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, cast
from weakref import WeakValueDictionary

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from poller.clock import Clock, milliseconds_of
from poller.errors import ErasureUnknown, Fenced, GroupGone
from poller.redis.client import until_answered
from poller.redis.errors import translated
from poller.store.backfill import Backfill, BackfillPosition, backfill_of
from poller.store.feed_state import GENERATION, READ_AT
from poller.store.keys import ConsumerKeys, FeedKeys, GroupKeys, group_of
from poller.store.lease import Lease, LeaseScripts
from poller.store.recovery import StartPosition
from poller.store.replay import ReplayPosition, ReplaySpan, last_read, replay_of
from poller.store.scripts import LATER, CallGathering, ScriptBatch, ScriptCall, in_any_case, lua
from poller.store.stream import EARLIEST, EntryId

CONSUMER: Final = "deliverer"
_PLACE: Final = "place"
_NOT_HELD: Final = 0
_NOT_READ: Final = 1
_WRITTEN: Final = 1  # the answer to a settlement, not to a reading
_BEHIND: Final = 2
_UNKNOWN_ERASURE: Final = 3
_NO_GROUP: Final = "NOGROUP"
_DATA: Final = b"data"
_ERASED_RECORD: Final = "record:"
_ONE_FIELD: Final = 2  # its name and its value
_MILLISECOND: Final = timedelta(milliseconds=1)

Start = Literal["now", "earliest", "snapshot"]
"""Where a new consumer begins: with what comes, with all that the stream holds, or with a backfill and what comes."""

Entry = tuple[str, bytes | None]
"""An entry's id and its event: empty where the entry has none, None where the stream does not hold it any more."""


class Settlement(msgspec.Struct, frozen=True):
    """The result of some deliveries, written in one script.

    Attributes:
        acked: entries that the group no longer needs to hold.
        parked: deliveries that wait for their next attempt, by entry id: encoded, opaque here.
        unparked: entries that no longer wait.
        letters: dead letters by entry id, encoded.
        place: every entry up to this one is settled or parked; empty where that is as it was.
        replay: how far the replay has come; None where that is as it was.
        backfill: how far the backfill has come; likewise.
    """

    acked: Sequence[str] = ()
    parked: Mapping[str, bytes] = {}
    unparked: Sequence[str] = ()
    letters: Mapping[str, bytes] = {}
    place: str = ""
    replay: ReplayPosition | None = None
    backfill: BackfillPosition | None = None


_NO_REPLAY: Final = ReplayPosition("", "")
_NO_BACKFILL: Final = BackfillPosition("", "", 0)


class SentSettlement(NamedTuple):
    """A settlement that was sent: its number, the call, and the future of the first answer."""

    serial: int
    call: ScriptCall
    answer: Future[Any]


class FirstReading(msgspec.Struct, frozen=True):
    """The first reading of a feed, as one of its consumers sees it.

    Attributes:
        has_begun: whether the feed has a state.
        has_ended: whether it was read completely once.
        is_repeated: whether its baselines repeat what the consumer got before, because the feed was reset since.
    """

    has_begun: bool
    has_ended: bool
    is_repeated: bool


class ErasedRecords(msgspec.Struct, frozen=True):
    """The erasures of records of one feed.

    Attributes:
        number: of the last one.
        places: by record key, the entry before which all deliveries of it are erased.
    """

    number: str = "0"
    places: Mapping[str, EntryId] = {}


NO_ERASURES: Final = ErasedRecords()


async def erasure_marks(client: Redis, key: str) -> ErasedRecords:
    """The erasures that a feed's hash ``erased`` holds.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(key))
    number = found.pop(b"number", b"0").decode()
    places: dict[str, EntryId] = {}
    for name, value in found.items():
        if not name.startswith(_ERASED_RECORD.encode()):
            continue
        with suppress(ValueError):
            places[name.decode().removeprefix(_ERASED_RECORD)] = EntryId.parse(value.partition(b" ")[0])
    return ErasedRecords(number, places)


class ConsumerStore:
    """The store of one subscription to one feed, as its dispatcher sees it.

    Attributes:
        lease: of the feed consumer.
    """

    def __init__(
        self,
        client: Redis,
        scripts: ConsumerScripts,
        keys: ConsumerKeys,
        *,
        events: str,
        subscription: str,
        nonce: str,
        lease: timedelta,
        feed_state: str = "",
        snapshots: str = "",
        since: datetime | None = None,
        asked: int = 0,
        new_after: str = "",
        clock: Clock,
    ) -> None:
        """Take what the store works with.

        Args:
            client: without retries of its own.
            scripts: of that client.
            keys: of the pair.
            events: the key of the feed's stream.
            subscription: its id.
            nonce: the token of the lease, see :func:`poller.store.lease.nonce_of`; drawn for this object, because its
                settlements are numbered from 1.
            lease: how long it lives without being renewed.
            feed_state: the key of the feed's state, where a reset of the feed matters.
            snapshots: the key of the feed's snapshots, where it may begin with a backfill.
            since: when the subscription was first known, UTC; None: it is new.
            asked: since when it wants this feed, in milliseconds of the store's clock; 0: since now.
            new_after: the entry after which all of this feed is new to it; empty: what comes from now on.
            clock: of this process; its seconds go forward while the process is stopped, too.
        """
        self.keys = keys
        self._client = client
        self._scripts = scripts
        self._events = events
        self._erased = f"{events.rpartition(':')[0]}:erased"
        # The keys of the script that settles.
        self._names = (keys.lease, events, keys.state, keys.parked, keys.letters, keys.letter_times, self._erased)
        self._erasures = NO_ERASURES
        self._requests = scripts.of_stream(events)
        self._subscription = subscription
        self._group = group_of(subscription)
        self.lease = Lease(client, scripts, keys.lease, token=nonce, ttl=lease, witness=keys.state, clock=clock)
        self._feed_state = feed_state
        self._snapshots = snapshots
        self._beginning = StartPosition(client, keys, events, feed_state, since, asked, new_after)
        self._serial = 0
        self._clock = clock

    @property
    def held(self) -> bool:
        """Whether this process certainly has the lease."""
        return self.lease.held

    async def open(self, start: Start) -> None:
        """Create the group if it does not exist: at its stored position, or, for a new one, at ``start``.

        A new one that begins with the snapshots begins now, with a backfill.

        A group that was lost with its feed begins at the feed's reset.

        Raises:
            Fenced: the lease is another's, or gone with a removed subscription; no group was created.
        """
        await self._beginning.read_reset()  # so it is known, should the feed be lost before its entries are looked at
        with translated(self._client):
            place = await self._place()
            if place is None:  # written before the group exists, so that a group lost early has a position, too
                backfill = self._clock.random.randbytes(8).hex() if start == "snapshot" else ""
                place = await self._note_place(*await self._beginning.place(start), backfill)
            try:
                arguments = [self.lease.token, self._group, place or EARLIEST]
                created = await self._scripts.create([self.keys.lease, self._events], arguments)
            except OutOfMemoryError:  # the server says so even if the group exists
                if await last_read(self._client, self._events, self._subscription) is None:
                    raise
                created = True
        if not created:
            raise await self.lease.fenced("no group created")
        self._beginning.opened()

    async def reset_entry(self) -> str | None:
        """The entry after which the feed was reset because it was lost, if this consumer is older.

        The baseline published at the reset repeats only what this consumer got before.
        """
        return await self._beginning.reset_entry()

    async def parked(self) -> dict[str, bytes]:
        """The deliveries that wait for their next attempt, by entry id, in no order."""
        with translated(self._client):
            found = cast("dict[bytes, bytes]", await self._client.hgetall(self.keys.parked))
        return {entry.decode(): value for entry, value in found.items()}

    async def parked_besides(self, known: Container[str]) -> dict[str, bytes]:
        """Those of :meth:`parked` that are not known yet."""
        with translated(self._client):
            kept = cast("list[bytes]", await self._client.hkeys(self.keys.parked))
            wanted = [entry for entry in map(bytes.decode, kept) if entry not in known]
            if not wanted:
                return {}
            values = cast("list[bytes | None]", await self._client.hmget(self.keys.parked, wanted))
        return {entry: value for entry, value in zip(wanted, values, strict=True) if value is not None}

    async def replay(self) -> ReplaySpan | None:
        """The replay under way, if any."""
        return await replay_of(self._client, self.keys)

    async def past(self, span: ReplaySpan, *, most: int) -> list[tuple[str, bytes]]:
        """The first entries of a replay, from where it stands."""
        with translated(self._client):
            found: Any = await self._client.xrange(self._events, f"({span.after}", span.to, count=most)
        return [(number.decode(), fields.get(b"data", b"")) for number, fields in found]

    async def backfill(self) -> Backfill | None:
        """The backfill under way, if any."""
        return await backfill_of(self._client, self.keys)

    async def first_reading(self) -> FirstReading:
        """Whether the feed was read completely, and whether its baselines repeat what this consumer got before."""
        with translated(self._client):
            found = cast("list[bytes | None]", await self._client.hmget(self._feed_state, [GENERATION, READ_AT]))
        reset = await self.reset_entry()
        return FirstReading(found[0] is not None, found[1] is not None, reset is not None)

    def pending(self, after: str, *, most: int) -> Coroutine[Any, Any, list[Entry]]:
        """Entries that the group holds and that come after this one.

        Raises:
            GroupGone: there is no such group.
            Fenced: the lease is another's.
        """
        return self._read(after, most)

    def read(self, *, most: int) -> Coroutine[Any, Any, list[Entry]]:
        """Entries that the group has not read yet; the group holds them from now on.

        If another error is raised than those below, the group may hold them, too: see :meth:`pending`.

        Raises:
            GroupGone: there is no such group.
            Fenced: another process has the lease; nothing was read.
        """
        return self._read(">", most)

    def begin_read(self, *, most: int) -> Future[Any]:
        """Begin what :meth:`read` does. Entries that were read are the future's result, as a list.

        Where they are not, :meth:`entries_of` raises what :meth:`read` would.
        """
        return self._requests.reads.add(self._request_of(">", most))

    def give_up(self, reading: Future[Any] | None, sent: SentSettlement | None) -> None:
        """Await no answer to what was begun. The group may hold what was read, and forget what was settled."""
        if reading is not None:
            self._requests.reads.give_up(reading)
        if sent is not None:
            self._requests.settlements.give_up(sent.answer)

    async def entries_of(self, answer: Future[Any]) -> list[Entry]:
        """What :meth:`begin_read` has begun: wait for its end, then return or raise what :meth:`read` does."""
        with translated(self._client):
            try:
                found = await answer
            except ResponseError as error:
                if str(error).startswith(_NO_GROUP):
                    if not await self.lease.renew():  # a failover that lost the group may have lost settlements, too
                        raise Fenced(f"the store lost {self._group} and its settlements; all is read again") from None
                    raise GroupGone(f"{self._events} has no group {self._group}") from None
                raise
        if found == _NOT_HELD:
            raise await self.lease.fenced("nothing read")
        return cast("list[Entry]", found)

    async def fetch(self, entries: Sequence[str]) -> dict[str, bytes]:
        """The events of these entries, those that the stream still has."""
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            for entry in entries:
                asking.xrange(self._events, entry, entry)
            answers = await asking.execute()
        return {entry.decode(): fields.get(b"data", b"") for entry, fields in chain.from_iterable(answers)}

    async def erasures(self) -> ErasedRecords:
        """The erasures of records of this feed; :meth:`settle` knows of them from now on."""
        self._erasures = await erasure_marks(self._client, self._erased)
        return self._erasures

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write it, all or nothing.

        Raises:
            ErasureUnknown: a record was erased since :meth:`erasures`; nothing was written.
            Fenced: the lease is another's, or the store has lost the settlement before; nothing was written.
            StoreError: it may or may not be written.
        """
        await self.settled(self.begin_settle(settlement, now_ms=now_ms))

    def begin_settle(self, settlement: Settlement, *, now_ms: int) -> SentSettlement:
        """Begin to write it, for :meth:`note_answer` or :meth:`settled`; the next one is begun after that."""
        self._serial += 1
        serial, before = self._serial, self.lease.answered
        acked, unparked = settlement.acked, settlement.unparked
        parked: list[str | bytes] = list(chain.from_iterable(settlement.parked.items()))
        letters: list[str | bytes] = list(chain.from_iterable(settlement.letters.items()))
        replay, backfill = settlement.replay or _NO_REPLAY, settlement.backfill or _NO_BACKFILL
        checks = (self.lease.token, serial, self._group, settlement.place, now_ms, replay.id, replay.after)
        sizes = (len(acked), len(parked), len(unparked), len(letters))
        rest = (backfill.id, backfill.at, backfill.done, self._erasures.number, before)
        # In the order in which the script reads them.
        arguments = (*checks, *sizes, *acked, *parked, *unparked, *letters, *rest)
        call = ScriptCall(SETTLE, self._names, arguments)
        return SentSettlement(serial, call, self._requests.settlements.add(call))

    def note_answer(self, sent: SentSettlement) -> bool:
        """Take note that it was written. False: it was not, or is not known to be; :meth:`settled` says why."""
        answer = sent.answer
        if answer.cancelled() or answer.exception() is not None or answer.result() != _WRITTEN:
            return False
        self._written(sent.serial)
        return True

    async def settled(self, sent: SentSettlement) -> None:
        """Wait until it was written, all or nothing; it is sent until it is answered.

        Raises:
            StoreError: see :meth:`settle`.
        """
        first = [sent.answer]

        async def send() -> Any:  # not sent again, all of it would be delivered again
            return await (first.pop() if first else self._requests.settlements.ask(sent.call))

        try:
            answer = await until_answered(self._client, send, within=self.lease.ttl, clock=self._clock)
        except CancelledError:
            self._requests.settlements.give_up(sent.answer)
            raise
        if not answer:
            raise await self.lease.fenced("nothing settled")
        if answer == _UNKNOWN_ERASURE:
            raise ErasureUnknown(f"a record was erased from {self._events}; nothing settled")
        if answer == _BEHIND:
            self.lease.lose()
            raise Fenced(f"the store lost settlements of {self._group}; all that it holds is read again")
        self._written(sent.serial)

    def _written(self, serial: int) -> None:
        self.lease.answered = serial

    async def _read(self, after: str, most: int) -> list[Entry]:
        answer = self._requests.reads.add(self._request_of(after, most))
        try:
            return await self.entries_of(answer)
        except CancelledError:
            self._requests.reads.give_up(answer)
            raise

    def _request_of(self, after: str, most: int) -> EntryRequest:
        return EntryRequest(self.keys.lease, (self.lease.token, self._group, after, most))

    async def _note_place(self, place: str, beginning: str, backfill: str) -> bytes:
        """Store where the consumer begins, unless that is stored already; returns what is stored then.

        The script also notes the backfill of this id; empty: none.
        """
        keys = [
            self.keys.lease,
            self.keys.state,
            self._feed_state or self.keys.state,
            self._snapshots or self.keys.state,
        ]
        noted = await self._scripts.note_place(keys, [self.lease.token, beginning, place, backfill])
        if not noted:
            raise await self.lease.fenced("no place noted")
        return cast("bytes", noted)

    async def _place(self) -> bytes | None:
        return cast("bytes | None", await self._client.hget(self.keys.state, _PLACE))


def _entry(number: bytes, fields: Sequence[bytes] | None) -> Entry:
    """From the server's answer: names and values of fields in turn, none of an entry that is gone."""
    if fields is None:
        return number.decode(), None
    if len(fields) == _ONE_FIELD and fields[0] == _DATA:
        return number.decode(), fields[1]
    return number.decode(), dict(zip(fields[::2], fields[1::2], strict=True)).get(_DATA, b"")


NOTE_PLACE: Final = lua("note_place")

CREATE: Final = lua("create_group")

READ: Final = lua("read_entries")

SETTLE: Final = lua("settle_deliveries")


class EntryRequest(NamedTuple):
    """What one group is to read: the key of its lease; its nonce, the group, the id to read after, how many at most."""

    lease: str
    arguments: tuple[str, str, str, int]


_READ_BYTES: Final = 4 * 1024 * 1024  # of different entries in one answer, and one group's more at most
_READS: Final = 100  # groups; a script that reads for more would keep others waiting for milliseconds
_SETTLED: Final = 4000  # keys and arguments: of some 150 settlements of one entry


class StreamRequests:
    """The requests of one process's feed consumers at one stream, each for many of them.

    An event is on its way to all subscriptions before much is settled: settlements follow reads. A crash meanwhile
    repeats the deliveries of some tenths of a second. Otherwise the last of a thousand sinks would get each event that
    much later.

    Attributes:
        reads: of entries. Answers the entries, or :data:`_NOT_HELD`.
        settlements: calls of the script :data:`SETTLE`.
    """

    def __init__(self, events: str, read: AsyncScript, batch: ScriptBatch) -> None:
        """Take the key of the stream, the script that reads, and what sends other scripts."""
        self.reads: CallGathering[EntryRequest] = CallGathering(self._read, weight=lambda _: 1, most=_READS)
        self.settlements: CallGathering[ScriptCall] = CallGathering(
            self._settle, weight=_size_of, most=_SETTLED, following=self.reads
        )
        self._events = events
        self._script = read
        self._batch = batch

    async def _read(self, requests: Sequence[EntryRequest]) -> Sequence[Any]:
        keys = [self._events, *[one.lease for one in requests]]
        asked: list[str | int] = []
        for one in requests:
            asked += one.arguments
        read, answers = await self._script(keys, [CONSUMER, _READ_BYTES, *asked])
        entries = [_entry(*found) for found in read]
        return [await self._answer(*one, entries) for one in zip(requests, answers, strict=True)]

    async def _answer(self, request: EntryRequest, answer: Any, entries: Sequence[Entry]) -> Any:
        """What one group is answered: its entries, :data:`_NOT_HELD`, :data:`LATER`, or an error."""
        if isinstance(answer, list):
            return [entries[place - 1] for place in answer]
        if isinstance(answer, RedisError) and not str(answer).startswith(_NO_GROUP):
            try:
                return (await self._read([request]))[0]  # alone, so that the error names the key
            except RedisError as error:
                return error
        return LATER if answer == _NOT_READ else answer

    async def _settle(self, calls: Sequence[ScriptCall]) -> Sequence[Any]:
        return await self._batch.send(calls, one_tag=True)


def _size_of(call: ScriptCall) -> int:
    return len(call.keys) + len(call.arguments)


class ConsumerScripts(LeaseScripts):
    """The scripts of deliveries, registered once for a client and shared by its feed consumers."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        super().__init__(client, shebang=shebang)
        first = in_any_case(shebang)  # what is delivered may be trimmed
        # Without a shebang they are run without memory, too, and what they must not write is refused by its command.
        self.note_place: AsyncScript = client.register_script(NOTE_PLACE)
        self.create: AsyncScript = client.register_script(CREATE)
        self._read: AsyncScript = client.register_script(first + READ)
        self._streams: WeakValueDictionary[str, StreamRequests] = WeakValueDictionary()

    def of_stream(self, events: str) -> StreamRequests:
        """The requests at the stream with this key, the same ones for all that hold them at a time."""
        found = self._streams.get(events)
        if found is None:
            found = self._streams[events] = StreamRequests(events, self._read, self.batch)
        return found


FORGET: Final = lua("forget_consumer")

FORGET_UNBEGUN: Final = lua("forget_unbegun")

FORGET_FEED: Final = lua("forget_feed")

END_UNLISTED: Final = lua("end_unlisted")

Remainder = Literal["none", "busy", "waits", "ended"]
"""What is left of a subscription at a feed that it lists no more: no group; a process that delivers still; events that
wait; nothing any more."""


async def forget_feed(client: Redis, feed: FeedKeys, pairs: Iterable[ConsumerKeys | GroupKeys], *, nonce: str) -> bool:
    """Delete everything that is stored of a feed, its lease too; False: the lease is lost, nothing was deleted.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    others = [key for key in feed.all if key != feed.lease]
    keys = [feed.lease, *others, *chain.from_iterable(map(msgspec.structs.astuple, pairs))]
    with translated(client):
        return bool(await client.eval(FORGET_FEED, len(keys), *keys, nonce))


async def forget(client: Redis, feed: FeedKeys, pair: ConsumerKeys, subscription: str) -> None:
    """Delete a removed subscription's state at one feed: its group, parked deliveries and dead letters.

    A process that still delivers for it is fenced, for its lease goes too.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    keys = [feed.events, feed.unlisted, *msgspec.structs.astuple(pair)]
    with translated(client):
        await client.eval(FORGET, len(keys), *keys, group_of(subscription), subscription)


async def forget_unbegun(
    client: Redis, feed: FeedKeys, pair: ConsumerKeys, subscription: str, *, nonce: str | None = None
) -> None:
    """Delete the dead letters that a trim wrote for a subscription while it was being removed.

    What has begun at the feed stays: it is another subscription's, added later under the same id.

    Args:
        client: of the store.
        feed: the keys of the feed.
        pair: the keys of the feed consumer.
        subscription: its id.
        nonce: the token of the feed's lease, without which nothing is deleted; None: that is not checked.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    keys = [feed.events, pair.lease, pair.state, pair.parked, pair.letters, pair.letter_times]
    keys += [] if nonce is None else [feed.lease]
    with translated(client):
        await client.eval(FORGET_UNBEGUN, len(keys), *keys, group_of(subscription), nonce or "")


class GracePeriod(msgspec.Struct, frozen=True):
    """How long what waits is kept for a consumer whose subscription lists the feed no more.

    Attributes:
        since: since when; see :meth:`~poller.store.subscriptions.Registered.unlisted_at`.
        is_ended: whether nothing waits there any more; else something did when it was looked at last.
    """

    since: int
    is_ended: bool


GracePeriods = Mapping[str, GracePeriod]
"""Those of one feed, by subscription."""


async def grace_periods(client: Redis, prefix: str, feeds: Iterable[str]) -> dict[str, GracePeriods]:
    """The grace periods at each of these feeds; none where they cannot be read.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    names = list(dict.fromkeys(feeds))
    if not names:
        return {}
    with translated(client):
        asking = client.pipeline(transaction=False)
        for name in names:
            asking.hgetall(FeedKeys.of(prefix, name).unlisted)
        answers = await asking.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                raise answer
    found = (answer if isinstance(answer, dict) else {} for answer in answers)
    periods = ({one.decode("utf-8", "replace"): _grace_period(text) for one, text in kept.items()} for kept in found)
    return dict(zip(names, periods, strict=True))


def has_ended(period: GracePeriod | None, since: int) -> bool:
    """Whether nothing waits any more at a feed that is not listed since then; False: not known."""
    return period is not None and period.is_ended and period.since == since


def _grace_period(text: bytes) -> GracePeriod:
    """From what the script has written; one that another program has written is of no time."""
    since, _, rest = text.partition(b" ")
    return GracePeriod(int(since) if since.isdigit() else -1, rest == b"ended")


async def forget_grace_periods(client: Redis, feed: FeedKeys, subscriptions: Sequence[str]) -> None:
    """Delete the grace periods of subscriptions that list the feed again, or are removed.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        await client.hdel(feed.unlisted, *subscriptions)


async def end_unlisted(
    client: Redis,
    feed: FeedKeys,
    pair: ConsumerKeys,
    subscription: str,
    *,
    since: int,
    start: str,
    now: datetime,
    counts: timedelta,
    grace: timedelta,
) -> tuple[Remainder, int]:
    """End a consumer whose subscription lists the feed no more, unless events wait there and the grace has not passed.

    The first look notes the stream's last entry: what comes later does not wait for the subscription, whatever the
    clock. Each further look, of any process, counts the time since the one before, and the grace has passed when it was
    counted. A clock that was set back counts nothing; one that was set forward counts ``counts``.

    The position of a consumer that has begun is kept, should the feed be listed again.

    Args:
        client: of the store.
        feed: the keys of the feed.
        pair: the keys of the feed consumer.
        subscription: its id.
        since: since when it does not list the feed, as stored; a look with another one is a first look.
        start: the entry after which it begins, where it has not begun; empty: nothing waits then.
        now: the store's clock, UTC.
        counts: how much may count since the last look, by a clock that is not set.
        grace: how long what waits is kept.

    Returns:
        What is left, and how many events wait or were dropped.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    keys = [feed.events, feed.unlisted, pair.lease, pair.state, pair.parked]
    moments = [milliseconds_of(now), counts // _MILLISECOND, grace // _MILLISECOND]
    with translated(client):
        answer = await client.eval(
            END_UNLISTED, len(keys), *keys, group_of(subscription), subscription, since, start, *moments
        )
    left, count = cast("tuple[bytes, int]", answer)
    return cast("Remainder", left.decode()), count
