"""The store of one feed: its lease, state, snapshots and commits.

**Invariants**

- A commit happens once or not at all. If its reply is lost, the same commit is sent again, and the script answers
  ``ALREADY`` if the first one was written.
- A commit is sent again only while the lease lasts. After that the round fails, and the next one starts from the stored
  state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import chain
from math import exp, log, log1p
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.changes.diff import Snapshot, checked
from poller.changes.full_readings import DeltaMemory, HeldVersion
from poller.changes.layouts import Layout
from poller.changes.plan import Commit, SubstreamSnapshot
from poller.changes.records import Rejected, subject_of, text_key
from poller.clock import Clock, milliseconds_of
from poller.errors import Stale, StoreError
from poller.failpoints import reach
from poller.lifecycle import finished
from poller.redis.client import until_answered
from poller.redis.errors import translated
from poller.redis.single import KeyNamingClient, PackedArguments, packed_arguments
from poller.store import snapshots as held_versions
from poller.store.commands import FeedPause, pause_of
from poller.store.feed_state import (
    FORMS,
    TOMBSTONES,
    FeedState,
    Forms,
    IdleStart,
    is_latest,
    later_forms,
    marked,
    state_of,
    written_form,
)
from poller.store.keys import FeedKeys
from poller.store.lease import RELEASE_SECONDS, HeldElsewhere, Lease, LeaseScripts
from poller.store.recovery import FeedMemory, loss_marks
from poller.store.scripts import COMMIT, END_IDLE_ROUND, lua
from poller.store.snapshots import (
    FORM,
    UNPACKED,
    PackedSnapshots,
    SnapshotCodec,
    UnknownDictionary,
    are_stored,
    former_name,
    is_former,
    kept_versions,
    key_of,
    name_of,
    names_of,
    sampled,
)
from poller.store.stream import EntryId
from poller.telemetry import metrics as costs
from poller.telemetry import tracing
from poller.telemetry.metrics import CommitResult, committed
from poller.telemetry.tracing import SpanScope, Value

LAST_WAIT: Final = 3.0  # seconds that a commit may still take once its round is asked to stop
MANY: Final = 50
"""Unreadable snapshots of one read: more than this number and more than half of them are an error of the store."""

_SHOWN: Final = 10
_BELOW_ONE: Final = 1 - 1e-12
_GENERATION_BYTES: Final = 8
_SUBMITTED_MS: Final = 10_000  # how long a pause may take from its moment until the store has it
_READ_AT_ONCE: Final = 1000  # snapshots; more would keep the store busy for others
_LATEST_AT_ONCE: Final = 100  # events
_CONVERTED_AT_ONCE: Final = 500  # snapshots
_CONVERTED_BYTES: Final = 1024 * 1024  # of their records
_CONVERTING: Final = (
    "an earlier version has written them; the round goes on when all of them are in the form of this version, and "
    "nothing is published for it"
)

_log = structlog.get_logger("poller.store")


class FeedScripts(LeaseScripts):
    """The scripts of feeds, registered once for a client."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        super().__init__(client, shebang=shebang)
        self.begin: AsyncScript = client.register_script(shebang + lua("begin_round"))
        self.commit: AsyncScript = client.register_script(shebang + COMMIT)
        self.convert: AsyncScript = client.register_script(shebang + lua("convert_snapshots"))
        self.end_idle: AsyncScript = client.register_script(shebang + END_IDLE_ROUND)


LISTED: Final = 8
"""Listed records that :attr:`MissingRecords.listed` has at most."""


T = TypeVar("T")


class MissingRecords(msgspec.Struct, frozen=True):
    """The known records that a full reading did not contain.

    Attributes:
        live: how many records are known and not removed.
        missing: how many of them were not seen.
        some: some of these, by key.
        listed: some of the others, by key, drawn at random.
    """

    live: int
    missing: int
    some: Mapping[str, Snapshot]
    listed: Mapping[str, Snapshot] = {}


class PublishedVersion(msgspec.Struct, frozen=True):
    """A version of a record that was published, or its removal.

    Attributes:
        subject: the record's id.
        raw: as received; None: it was removed.
    """

    subject: str
    raw: bytes | None


class PackedCommit(msgspec.Struct, frozen=True):
    """What is prepared of a commit while others are written.

    Attributes:
        codec: that the snapshots are stored with; none of this can be used with another one.
        stored: the stored forms of the snapshots.
        forms: of the feed's snapshots with these.
        arguments: the snapshots with their names, and the events; None: this client sends no packed arguments.
    """

    codec: SnapshotCodec
    stored: list[bytes]
    forms: Forms
    arguments: PackedArguments | None = None


async def _always() -> bool:
    return True


class RandomSample(Generic[T]):
    """A few of any number of values, each drawn with the same probability (Li's algorithm L: most are passed over).

    Attributes:
        drawn: those.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        """``most``: the number of values that are drawn, by the random numbers of this clock."""
        self.drawn: list[T] = []
        self._most = most
        self._random = clock.random
        self._offered = self._next = 0
        self._weight = 1.0

    def offer(self, value: T) -> None:
        """One value more."""
        place = self._offered
        self._offered += 1
        if place < self._most:
            self.drawn.append(value)
        elif place == self._next:
            self.drawn[self._random.randrange(self._most)] = value
        else:
            return
        if self._offered >= self._most:
            self._weight *= exp(log(1 - self._random.random()) / self._most)
            passed = log(1 - self._random.random()) / log1p(-min(self._weight, _BELOW_ONE))
            self._next = self._offered + int(passed)


class FeedStore:
    """The store of one feed, as its round sees it. One round at a time.

    Attributes:
        keys: of the feed.
        lease: of the feed.
        appended: bytes of events that were committed here.
        keeps_removed: whether the content of removed records is kept for a while.
        wants_dictionary: whether the next round is to add a dictionary in place of the present one.
        deltas: what they have brought here; another process does not know of it.
        state_digest: of the state as the round found it; empty: something was wrong, or was written since.
    """

    def __init__(  # noqa: D417 -- see below
        self,
        client: Redis,
        scripts: FeedScripts,
        keys: FeedKeys,
        *,
        nonce: str,
        lease: timedelta,
        clock: Clock,
        memory: FeedMemory | None = None,
        may_convert: Callable[[], Awaitable[bool]] = _always,
        keeps_removed: bool = False,
    ) -> None:
        """Take what the store works with.

        Args:
            client: without retries of its own.
            nonce: proves that the lease is this process', see :func:`poller.store.lease.nonce_of`.
            lease: how long it lives without being renewed.
            clock: the store's.
            memory: what is remembered of the feed; by default what this value sees.
            may_convert: whether snapshots of the first form may be replaced, for all others read the second one, too.
            keeps_removed: see the attribute.
        """
        self.keys = keys
        self.memory = memory or FeedMemory(clock=clock)
        self.lease = Lease(client, scripts, keys.lease, token=nonce, ttl=lease, certain=False, clock=clock)
        self.appended = 0
        self.keeps_removed = keeps_removed
        self.wants_dictionary = False
        self.state_digest = b""
        self._idle_start: IdleStart | None = None
        self._pause_back: FeedPause | None = None
        self._pause: FeedPause | None = None  # the last one that was found here
        self._polled_ms = 0  # when a round last began here since, by the server's clock
        self._client = client
        self._scripts = scripts
        self._clock = clock
        self.deltas = DeltaMemory(clock)
        self._generation = ""
        self._sequence = 0
        self._asked = 0
        self._codec: SnapshotCodec | None = None
        self._dictionaries: int | None = None  # how many the codec had that was dropped at rest; None: unknown
        self._commits = 0  # how many have come to an end
        self._may_convert = may_convert
        self._forms: Forms = "1 2"  # of the snapshots that are there once something was written
        self._stored_forms: Forms = "1 2"  # as the store has it
        self._tombstones_counted: int | None = None
        self._counts_fit = False  # whether the number of tombstones was the counted one when all were read last

    async def open_round(self) -> FeedState | HeldElsewhere | FeedPause:
        """Acquire or renew the lease and read the feed's state; create the state where a part of it is missing.

        Does nothing for a paused feed.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`. What was lost is found again the next time.
        """
        self.state_digest, self._idle_start = b"", None
        await self.memory.recall()
        before = self.lease.claimed
        if not before or self._asked != self.lease.asked:
            # Without the lease, another process may have added a dictionary, or counted otherwise.
            self._forget_codec()
            self._counts_fit = False
        until = self.lease.claim()
        self._asked = self.lease.asked
        with translated(self._client):
            answer = await self._begun()
        if isinstance(answer, bytes):
            self.lease.claimed = before
            return self._paused(pause_of(answer))
        if isinstance(answer, int):
            self.lease.lose()
            return HeldElsewhere(timedelta(milliseconds=max(answer, 0)))
        state, found = self._state(answer[0], now_ms=int(answer[2])), answer[1].decode()
        self.state_digest = b"" if found else answer[3]
        if state.generation != self._generation:
            self._forget_codec()  # the dictionaries are gone with their state
            self._counts_fit = False
        self.lease.grant(until)
        self._generation, self._sequence = state.generation, state.sequence
        self._tombstones_counted = state.tombstones
        await self._take_forms(state)
        state = await self._without_loss(state, found)
        if state.tombstones is None and state.kept_records and state.loss is None:
            marks = {TOMBSTONES: str(await self._tombstones())}
            await self.commit(Commit(state.generation, state.sequence, marks=marks))
            state = marked(state, marks)
        if self.wants_dictionary:
            await self._replace_dictionary(state)
        if self._forms == "1 2":
            await self._convert(state.kept_records)
        self.memory.begun(state, found)
        self._polled_ms = state.now_ms
        return state

    @property
    def idle_start(self) -> IdleStart | None:
        """Where the next delta starts if the round before has brought nothing new and the lease was kept since.

        None also where this process has overheard that another one knows more of the feed, and where the beginning of a
        round replaces snapshots or a dictionary, or looks whether all processes read a later form.
        """
        start, known = self._idle_start, self.memory.known
        if start is None or known is None or not self.lease.claimed or self._asked != self.lease.asked:
            return None
        if self.wants_dictionary or not is_latest(self._stored_forms):
            return None
        return start if (known.generation, known.sequence) == (start.generation, start.sequence) else None

    def forget_idle_start(self) -> None:
        """Let the next round begin with a look at the store: an operator has changed something."""
        self._idle_start = None

    async def end_idle_round(self, start: IdleStart, commit: Commit) -> bool:
        """Write the marks of a round that has brought nothing new, if the feed is as this process knows it.

        Args:
            start: of the round; its token is that for the next one.
            commit: the marks.

        Returns:
            False: the feed may be another's, paused, ordered to be read, or may have lost something. Nothing was
            written, and :meth:`open_round` says what it is.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`; the marks may or may not be written.
        """
        self.state_digest, self._idle_start = b"", None
        keys = self.keys
        names = [keys.lease, keys.state, keys.snapshots, keys.dictionaries, keys.qualifications]
        names += [keys.events, keys.pause]
        marks = chain.from_iterable((name, value or "") for name, value in commit.marks.items())
        arguments: list[Argument] = [self.lease.token, self.lease.milliseconds, start.digest, *marks]
        reach("commit.planned")
        answer = list[bytes]()

        async def send() -> bytes:
            answer[:] = await self._scripts.end_idle(names, arguments)
            return answer[0]

        sent = until_answered(self._client, send, within=self.lease.ttl, clock=self._clock)
        outcome = await span_of_commit(commit, counted(sent, self._clock))
        reach("commit.sent")
        if outcome == b"STALE":
            return False
        self._polled_ms = int(answer[2])
        self._idle_start = msgspec.structs.replace(start, digest=answer[1])
        reach("commit.done")
        return True

    async def _take_forms(self, state: FeedState) -> None:
        """Decide on the form to write in: the one that stands in this feed, or a later one if all others read it."""
        forms = self._stored_forms = state.forms
        later = later_forms(forms, is_empty=state.kept_records == 0)
        if later != forms and await self._may_convert():
            forms = later
        if forms != self._forms:
            self._forms = forms
            self._forget_codec()

    async def _convert(self, records: int | None = None) -> None:
        """Replace all snapshots of the first form; what cannot be read goes to its new name as it is.

        Raises:
            Fenced: the lease is another's.
            Stale: the feed was reset since.
            StoreError: see :func:`~poller.redis.client.translated`. The next round goes on.
        """
        cursor, began = 0, self._clock.monotonic()
        _log.info("converting snapshots", feed=self.keys.feed, records=records, advice=_CONVERTING)
        while True:
            with translated(self._client):
                cursor, found = await self._client.hscan(self.keys.snapshots, cursor, count=_CONVERTED_AT_ONCE)
            await self._replace(cast("dict[bytes, bytes]", found))
            if not cursor:
                await self._write_converted("2 after 1", [])
                break
        seconds = round(self._clock.monotonic() - began, 3)
        _log.info("snapshots converted", feed=self.keys.feed, records=records, seconds=seconds)

    async def _replace(self, found: Mapping[bytes, bytes]) -> None:
        """Replace those of the first form, in scripts of a size that does not keep the store busy for others."""
        codec, size, some = await self._loaded(), 0, list[bytes]()
        for name, stored in found.items():
            with suppress(UnicodeDecodeError):  # no process of this program has written it
                if is_former(name, stored):
                    key, converted = key_of(name), stored
                    with suppress(UnknownDictionary, ValueError, IndexError):
                        before = codec.decode(key, stored)
                        converted, size = codec.encode(key, before), size + len(before.raw)
                    some += (name, stored, name_of(key), converted)
            if size >= _CONVERTED_BYTES:
                await self._write_converted("1 2", some)
                size, some = 0, []
        if some:
            await self._write_converted("1 2", some)

    async def _write_converted(self, forms: Forms, conversions: Sequence[bytes]) -> None:
        keys = [self.keys.lease, self.keys.state, self.keys.snapshots, self.keys.dictionaries]
        known = (await self._loaded()).dictionaries
        checks: list[Argument] = [self.lease.token, self._generation, self._sequence, known, FORMS, self._stored_forms]
        with translated(self._client):
            answer = await self._scripts.convert(keys, [*checks, forms, *conversions])
        if answer == b"FENCED":
            raise await self.lease.fenced("snapshots not converted")
        if answer == b"STALE":
            raise Stale(f"{self.keys.state} is not what it was when this round began; no snapshot was converted")
        self._forms = self._stored_forms = forms

    async def _replace_dictionary(self, state: FeedState) -> None:
        """Add a dictionary after one that holds values of records, or no layouts of the records as they are now."""
        codec = await self._loaded()
        sample = codec.readable(await sampled(self._client, self.keys.snapshots))
        dictionary = codec.improvement(sample) if codec.is_current else codec.successor(sample)
        if dictionary is not None:
            await self._write(Commit(state.generation, state.sequence), None, codec, dictionary)
            _log.info("dictionary replaced", feed=self.keys.feed, records=len(sample))
        self.wants_dictionary = False

    def _paused(self, pause: FeedPause) -> FeedPause:
        """The pause, noted if the feed was polled since it: then the store went back. One is noted once."""
        is_known = self._polled_ms and milliseconds_of(pause.at)  # no moment: another version's
        if is_known and (pause == self._pause or self._is_older(pause)):
            self._pause_back = pause
        self._pause, self._polled_ms = pause, 0
        return pause

    def take_pause_back(self) -> FeedPause | None:
        """The pause that a round has found although the feed had been resumed after it, once; None: no round has."""
        found, self._pause_back = self._pause_back, None
        return found

    def _is_older(self, pause: FeedPause) -> bool:
        """Whether the pause is older than the last round, by the store's clock unless that was set back since."""
        is_set_back = self._polled_ms > milliseconds_of(self._clock.now()) + _SUBMITTED_MS
        return milliseconds_of(pause.at) < self._polled_ms - _SUBMITTED_MS and not is_set_back

    async def _begun(self) -> Any:
        """What the script answers. A cancelled call waits for that, for a release sent before might arrive first."""
        beginning = asyncio.ensure_future(self._scripts.begin(*self._beginning()))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await finished(beginning, within=RELEASE_SECONDS)
            raise

    def _beginning(self) -> tuple[list[str], list[str | int]]:
        keys, known = self.keys, self.memory.known
        names = [keys.lease, keys.state, keys.snapshots, keys.dictionaries, keys.qualifications, keys.listings]
        before = (" ".join(known.lineage), known.sequence, known.highest_entry) if known else ("", 0, "")
        return [*names, keys.events, keys.pause, keys.held_versions], [
            self.lease.token,
            self.lease.milliseconds,
            self._clock.random.randbytes(_GENERATION_BYTES).hex(),  # used where the feed has no state yet
            *before,
        ]

    async def _without_loss(self, state: FeedState, found: str) -> FeedState:
        """The state after a loss, if any, was recorded in it. A replaced feed is read from nothing."""
        loss = await self.memory.loss(state, found)
        if loss is None:
            return state
        marks = loss_marks(loss, now_ms=milliseconds_of(self._clock.now()))
        await self.commit(Commit(state.generation, state.sequence, marks=marks))
        return msgspec.structs.replace(marked(state, marks), loss=loss)

    def _state(self, answer: list[bytes], *, now_ms: int) -> FeedState:
        try:
            state = state_of(dict(zip(answer[::2], answer[1::2], strict=True)))
            return msgspec.structs.replace(state, now_ms=now_ms)
        except ValueError as error:
            raise StoreError(f"{self.keys.state} holds what this version cannot read: {error}") from None

    @property
    def held(self) -> bool:
        """Whether this process has the lease, as far as it knows."""
        return self.lease.held

    @property
    def nonce(self) -> str:
        """The lease's token, for other parts of this process that write for the feed."""
        return self.lease.token

    async def release(self) -> None:
        """Release the lease, if this process has it."""
        await self.lease.release()
        reach("lease.released")

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        """The snapshots of these keys, where there are any."""
        known, packed = dict[str, Snapshot](), dict[str, bytes]()
        room = UNPACKED
        await self._loaded()  # before they are read: a pass of the upkeep may empty a dictionary that they name
        for start in range(0, len(record_keys), _READ_AT_ONCE):
            found = await self._found(record_keys[start : start + _READ_AT_ONCE])
            read = await self._decoded(found, room=room)
            known |= read
            room -= sum(len(one.raw) for one in read.values())
            if len(read) < len(found):
                packed |= {key: value for key, value in found.items() if key not in read}
        reach("known.read")
        return PackedSnapshots(known, packed, await self._unpack()) if packed else known

    async def _found(self, record_keys: list[str]) -> dict[str, bytes]:
        """What is stored of these records, in either form."""
        if self._forms == "1":
            return await self._read(record_keys, record_keys)
        found = await self._read(record_keys, names_of(record_keys))
        if has_former(self._forms) and len(found) < len(record_keys):
            former = {key: name for key in record_keys if key not in found and (name := former_name(key))}
            found |= await self._read(list(former), list(former.values()))
        return found

    async def _read(self, record_keys: Sequence[str], names: Sequence[str | bytes]) -> dict[str, bytes]:
        if not names:
            return {}
        with translated(self._client):
            stored = cast("list[bytes | None]", await self._client.hmget(self.keys.snapshots, names))
        return {key: value for key, value in zip(record_keys, stored, strict=True) if value is not None}

    async def are_stored(self, record_keys: list[str], raws: Sequence[bytes]) -> list[bool] | None:
        """Whether each of these records is as it is stored, and not removed or marked as missing. Nothing is unpacked.

        Args:
            record_keys: of at most a thousand records.
            raws: their bytes as received.

        Returns:
            False also where that is not known; None: of none it is.
        """
        if self._forms == "1":
            return None
        with translated(self._client):
            stored = await self._client.hmget(self.keys.snapshots, names_of(record_keys))
        return are_stored(raws, cast("list[bytes | None]", stored))

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        """The live snapshots whose keys are not among those seen: how many, and ``most`` of them.

        With them come a few that are among those seen.

        Args:
            seen: the keys that were listed.
            most: how many are returned.
            known: how many were seen, if each of them is of a live record: where no more are live, none is missing.
        """
        if known is not None and self._counts_fit and known == await self._live():
            return MissingRecords(known, 0, {})
        codec = await self._loaded()
        live = missing = cursor = 0
        some, listed = dict[str, bytes](), RandomSample[tuple[str, bytes]](LISTED, self._clock)
        while True:
            with translated(self._client):
                cursor, found = await self._client.hscan(self.keys.snapshots, cursor, count=_READ_AT_ONCE)
            for field, stored in cast("dict[bytes, bytes]", found).items():
                if codec.removed(stored):
                    continue
                live += 1
                key = key_of(field)
                if key not in seen:
                    if key not in some:
                        missing += 1
                        if len(some) < most:
                            some[key] = stored
                else:
                    listed.offer((key, stored))
            if not cursor:
                self._counts_fit = live == await self._live()
                drawn = await self._checked(dict(listed.drawn))
                return MissingRecords(live, missing, await self._checked(some), drawn)

    def _count_tombstones(self, commit: Commit) -> None:
        """Note their number, which has to be found right once more before it is used."""
        number = commit.marks.get(TOMBSTONES)
        if number is not None:
            self._tombstones_counted, self._counts_fit = int(number), False

    async def _live(self) -> int | None:
        """How many snapshots are not of removed records, by what was counted; None: it was not."""
        if self._tombstones_counted is None:
            return None
        with translated(self._client):
            return await self._client.hlen(self.keys.snapshots) - self._tombstones_counted

    async def subjects_since(self, age: timedelta, *, cause: str | None = None) -> frozenset[str]:
        """The subjects, those that are UUIDs in lower case, of the events of this age at most.

        With them come those that a delta has brought here within this time without an event: with a cause only those
        that not each delta before has brought as well, so that a version of them may be new.

        Args:
            age: by the store's clock.
            cause: of these events; None: any.
        """
        subjects, now = set(map(subject_of, self.deltas.since(age, first=cause is not None))), self._clock.now()
        first, last = milliseconds_of(now - age), milliseconds_of(now + age)
        async with aclosing(self._latest_events()) as events:
            async for entry, event in events:
                moment = entry.ms if entry.ms <= last else event.recorded_ms
                if not first <= moment <= last:
                    break  # one from before the clock was set back is as old as that at least
                if cause in (None, event.data.cause):
                    subjects.add(text_key(event.subject))
        return frozenset(subjects)

    async def published_since(self, sequence: int) -> AsyncGenerator[PublishedVersion]:
        """What was published after this event; the latest first.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        async with aclosing(self._latest_events()) as events:
            async for _, event in events:
                if event.number <= sequence:
                    return
                yield PublishedVersion(event.subject, bytes(event.data.record) or None)

    async def _latest_events(self) -> AsyncGenerator[tuple[EntryId, _Event]]:
        """The events in the stream, the latest first; entries of foreign clients are left out.

        Where the server's clock was set back, entries have ids of the future, and so has all that follows them until
        the clock has reached them. When their records were read, events themselves say.
        """
        end = "+"
        while True:
            with translated(self._client):
                found = await self._client.xrevrange(self.keys.events, end, "-", count=_LATEST_AT_ONCE)
            entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", found)
            for name, fields in entries:
                with suppress(msgspec.MsgspecError, ValueError):
                    yield EntryId.parse(name), _decode_event(fields.get(b"data", b""))
            if len(entries) < _LATEST_AT_ONCE:
                return
            end = f"({entries[-1][0].decode()}"

    async def _checked(self, stored: Mapping[str, bytes]) -> Mapping[str, Snapshot]:
        """The snapshots, also those marked as unreadable whose records are no JSON."""
        read = {key: checked(snapshot) for key, snapshot in (await self._decoded(stored, room=UNPACKED)).items()}
        if len(read) == len(stored):
            return read
        packed = {key: value for key, value in stored.items() if key not in read}
        unpack = await self._unpack()
        return PackedSnapshots(read, packed, lambda key, value: checked(unpack(key, value)))

    async def _tombstones(self) -> int:
        """How many snapshots are of removed records: counted once, where an earlier version has not counted them."""
        count = cursor = 0
        while True:
            with translated(self._client):
                cursor, found = await self._client.hscan(self.keys.snapshots, cursor, count=_READ_AT_ONCE)
            count += sum(map(SnapshotCodec.removed, cast("dict[bytes, bytes]", found).values()))
            if not cursor:
                return count

    async def page_digests(self) -> bytes | None:
        """The digests of the pages of the last full reading, as stored; None: there are none."""
        with translated(self._client):
            return cast("bytes | None", await self._client.get(self.keys.page_digests))

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        """The snapshot of each listing, by qualification."""
        return await kept_listings(self._client, self.keys.listings)

    async def held_versions(self) -> dict[str, HeldVersion]:
        """The versions held back, by record key."""
        return await kept_versions(self._client, self.keys.held_versions)

    async def _unpack(self) -> Callable[[str, bytes], Snapshot]:
        """What unpacks one snapshot, and marks one that cannot be read as such."""
        codec, sequence = await self._loaded(), self._sequence

        def unpack(key: str, stored: bytes) -> Snapshot:
            try:
                return codec.decode(key, stored)
            except (UnknownDictionary, ValueError, IndexError) as error:
                return SnapshotCodec.unreadable(stored, str(error), sequence=sequence)

        return unpack

    async def _decoded(self, stored: Mapping[str, bytes], *, room: int) -> dict[str, Snapshot]:
        """The first snapshots whose records take this many bytes, those that cannot be read marked as such.

        Raises:
            StoreError: most of many cannot be read: it is not a few bytes that are lost, and an operator has to look.
        """
        codec = await self._loaded()
        with suppress(UnknownDictionary, ValueError, IndexError):
            return _unpacked(stored, codec.decode, room=room)
        self._forget_codec()  # another process may have added a dictionary
        failures: dict[str, str] = {}
        snapshots = _unpacked(stored, (await self._loaded()).decode, room=room, failures=failures)
        if len(failures) > MANY and len(failures) > (len(snapshots) + len(failures)) / 2:
            raise StoreError(
                f"{self.keys.snapshots} holds snapshots that cannot be read: {next(iter(failures.values()))}. The "
                f"store has lost a part of this feed, or another version wrote it; `poller resync {self.keys.feed} "
                "--anew` reads it again from nothing"
            )
        for key, reason in failures.items():
            snapshots[key] = SnapshotCodec.unreadable(stored[key], reason, sequence=self._sequence)
        if failures:
            _log.warning(
                "snapshots unreadable",
                feed=self.keys.feed,
                count=len(failures),
                records=list(failures)[:_SHOWN],
                error=next(iter(failures.values())),
                advice="each is quarantined when its record is read the next time, and published as modified",
            )
        return snapshots

    @property
    def layout(self) -> Layout | None:
        """The layout that most of the feed's records are likely to have; None: none is known."""
        return None if self._codec is None else self._codec.layout

    def pack(self, commit: Commit) -> PackedCommit | None:
        """Prepare a commit while another one is written; None: :meth:`write` does it."""
        codec = self._codec
        if codec is None or not codec.is_settled:
            return None
        stored, forms, arguments = codec.encode_all(commit.snapshots, commit.alike), self._forms, None
        if commit.snapshots and forms != "1" and isinstance(self._client, KeyNamingClient):
            arguments = packed_arguments(_bulk(commit, names_of(list(commit.snapshots)), stored))
        return PackedCommit(codec, stored, forms, arguments)

    async def commit(self, commit: Commit) -> None:
        """Write it, once. Cancelled, it finishes first (for so long as :data:`LAST_WAIT`) and then stops.

        Raises:
            Fenced: the lease is another's; nothing was written.
            Stale: the feed is not where this was planned; nothing was written.
            StoreUnavailable: no answer for as long as the lease lasts; it may or may not be written.
        """
        writing = asyncio.create_task(self.write(commit, None))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await finished(writing, within=LAST_WAIT)
            raise

    async def write(self, commit: Commit, packed: PackedCommit | None) -> None:
        """As :meth:`commit`, for a task that is not cancelled.

        Args:
            commit: what is written.
            packed: what :meth:`pack` has made of it.

        Raises:
            StoreError: as there.
        """
        codec, dictionary = self._codec, None
        if commit.snapshots or (codec is None and self._dictionaries is None):
            codec = await self._loaded()
            dictionary = codec.train_with(commit.snapshots)
        await self._write(commit, packed, codec, dictionary)

    async def _write(
        self,
        commit: Commit,
        packed: PackedCommit | None,
        codec: SnapshotCodec | None,
        dictionary: tuple[int, bytes] | None,
    ) -> None:
        known = codec.dictionaries if codec is not None else self._dictionaries or 0
        now_ms = milliseconds_of(self._clock.now())
        try:
            arguments = commit_arguments(
                commit,
                _stored(commit, packed, codec, dictionary),
                dictionary,
                digest=commit.digest or self._digest_of_changes(dictionary),
                known=known,
                nonce=self.lease.token,
                now_ms=now_ms,
                forms=self._forms,
                stored_forms=self._stored_forms,
                packed=_arguments(packed, codec, self._forms),
            )
            await self._send(commit, arguments)
        except BaseException:
            self._forget_codec()  # whatever has happened, only a commit that is known to be written leaves it in use
            raise
        finally:
            self._commits += 1
        self._codec = codec
        self._stored_forms = self._forms
        self._count_tombstones(commit)
        self.appended += sum(map(len, commit.events))
        self._sequence = commit.next_sequence
        self.memory.moved(commit.next_sequence, at_ms=milliseconds_of(self._clock.now()))
        reach("commit.done")

    def _digest_of_changes(self, dictionary: tuple[int, bytes] | None) -> str:
        """What names a commit without events that changes what the script checks: else it could not be sent again."""
        changes = dictionary is not None or self._forms != self._stored_forms
        return f"{self._clock.random.getrandbits(128):032x}" if changes else ""

    async def _send(self, commit: Commit, arguments: list[Any]) -> None:
        keys = self.keys
        names = [keys.lease, keys.state, keys.snapshots, keys.events, keys.quarantine, keys.rejected]
        names += [keys.qualifications, keys.dictionaries, keys.listings, keys.held_versions, keys.page_digests]
        reach("commit.planned")
        self.state_digest = b""
        answer = until_answered(
            self._client, lambda: self._scripts.commit(names, arguments), within=self.lease.ttl, clock=self._clock
        )
        outcome = await span_of_commit(commit, counted(answer, self._clock))
        reach("commit.sent")
        if outcome == b"FENCED":
            raise await self.lease.fenced("commit rejected, nothing written")
        if outcome == b"STALE":
            raise Stale(f"{keys.state} is not what this round was planned on; nothing was written")

    async def _loaded(self) -> SnapshotCodec:
        """The codec with all dictionaries, but for one that a commit on its way may write."""
        if self._codec is None:
            commits = self._commits
            with translated(self._client):
                kept = cast("dict[bytes, bytes]", await self._client.hgetall(self.keys.dictionaries))
            try:
                numbered = {int(number): dictionary for number, dictionary in kept.items()}
                codec = SnapshotCodec(numbered, form=written_form(self._forms) or FORM)
            except ValueError as error:
                raise StoreError(f"{self.keys.dictionaries} holds what this version cannot read: {error}") from None
            if commits != self._commits:  # what was read may be from before the end of a commit
                return codec
            self._codec, self._dictionaries = codec, None
        return self._codec

    def _forget_codec(self) -> None:
        """The dictionaries may be others now."""
        self._codec = self._dictionaries = None

    def rest(self) -> None:
        """Drop the dictionaries until a round needs them: 4 KiB of each of thousands of feeds.

        How many there are is remembered, for a commit says it, and as long as the codec would be.
        """
        if self._codec is not None and self._codec.dictionaries:  # without one, it may hold samples of the first one
            known = self._codec.dictionaries
            self._codec, self._dictionaries = None, known


def _stored(
    commit: Commit, packed: PackedCommit | None, codec: SnapshotCodec | None, dictionary: tuple[int, bytes] | None
) -> list[bytes]:
    """The stored forms of a commit's snapshots. The codec, with a new dictionary; None: there are no snapshots."""
    if codec is None:
        return []
    if dictionary is not None:
        codec.add(*dictionary)
    if packed is not None and packed.codec is codec:
        return packed.stored
    return codec.encode_all(commit.snapshots, commit.alike)


def _arguments(packed: PackedCommit | None, codec: SnapshotCodec | None, forms: Forms) -> PackedArguments | None:
    """The arguments that were packed for this codec and these forms."""
    return packed.arguments if packed is not None and packed.codec is codec and packed.forms == forms else None


def has_former(forms: Forms) -> bool:
    """Whether records may stand in the first form."""
    return "1" in forms


class _EventData(msgspec.Struct):
    cause: str
    record: msgspec.Raw = msgspec.Raw(b"")


class _Event(msgspec.Struct):
    subject: str
    data: _EventData
    sequence: str
    recordedtime: datetime

    @property
    def number(self) -> int:
        """Of the event within its feed."""
        return int(self.sequence)

    @property
    def recorded_ms(self) -> int:
        """When its record was read, milliseconds of the server's clock."""
        return milliseconds_of(self.recordedtime)


_decode_event: Final = msgspec.json.Decoder(_Event).decode


def _unpacked(
    stored: Mapping[str, bytes],
    decode: Callable[[str, bytes], Snapshot],
    *,
    room: int,
    failures: dict[str, str] | None = None,
) -> dict[str, Snapshot]:
    """The first snapshots whose records take this many bytes; ``failures`` receives why others cannot be read."""
    snapshots: dict[str, Snapshot] = {}
    for key, value in stored.items():
        if room <= 0:
            break
        try:
            snapshots[key] = snapshot = decode(key, value)
        except (UnknownDictionary, ValueError, IndexError) as error:
            if failures is None:
                raise
            failures[key] = str(error)
        else:
            room -= len(snapshot.raw)
    return snapshots


# The span of a commit: how much it writes, and what the store answered.

_PARTS: Final = ("events", "snapshots", "rejected", "listings", "marks")
_REFUSALS: Final = frozenset({b"FENCED", b"STALE"})


async def span_of_commit(commit: Commit, written: Awaitable[Any]) -> Any:
    """What the commit's script answers, once it does."""
    if not tracing.on():
        return await written
    words: dict[str, Value] = {"db.system.name": "redis"}
    words |= {f"poller.commit.{part}": len(getattr(commit, part)) for part in _PARTS}
    with tracing.child("commit", kind=SpanScope.CLIENT, attributes=words) as span:
        answer = await written
        span.set_attributes({"poller.commit.result": answer.decode().lower()})
        if answer in _REFUSALS:
            span.fail(answer.decode().lower())
        return answer


# Listings as they are kept: one field of the feed's hash for each, by its qualification.
#
# What cannot be read counts as never read: that costs a reading, not a record.

_LISTED_AT_ONCE: Final = 500

_decode: Final = msgspec.msgpack.Decoder(SubstreamSnapshot).decode
encode_listing: Final = msgspec.msgpack.Encoder().encode


async def kept_listings(client: Redis, key: str) -> dict[str, SubstreamSnapshot]:
    """All listings of a feed, by qualification.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    listings: dict[str, SubstreamSnapshot] = {}
    cursor = 0
    while True:
        with translated(client):
            cursor, found = await client.hscan(key, cursor, count=_LISTED_AT_ONCE)
        for name, value in cast("dict[bytes, bytes]", found).items():
            listings[name.decode()] = _listing(value)
        if not cursor:
            return listings


def _listing(value: bytes) -> SubstreamSnapshot:
    try:
        return _decode(value)
    except ValueError:
        return SubstreamSnapshot()


# The qualifications that a source's feeds have named, for the feeds that read one listing for each.


async def named_qualifications(client: Redis, feeds: Iterable[FeedKeys], since: int = 0) -> dict[str, int]:
    """Those that a change has named since then, and when each was last named: milliseconds of the store's clock.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    latest: dict[str, int] = {}
    with translated(client):
        asking = client.pipeline(transaction=False)
        for keys in feeds:
            asking.zrangebyscore(keys.qualifications, since, "+inf", withscores=True)
        answers = await asking.execute() if len(asking) else []
    for member, score in cast("Iterable[tuple[bytes, float]]", chain.from_iterable(answers)):
        name = member.decode()
        latest[name] = max(int(score), latest.get(name, 0))
    return latest


# A commit as the arguments of its script; the order is that of :data:`poller.store.scripts.COMMIT`.

QUARANTINE_ENTRIES: Final = 1000
QUARANTINE_BYTES: Final = 64 * 1024
"""How much of one record is kept; enough to see what it is."""

Argument = bytes | str | int


def commit_arguments(
    commit: Commit,
    stored: Sequence[bytes],
    dictionary: tuple[int, bytes] | None,
    *,
    digest: str,
    known: int,
    nonce: str,
    now_ms: int,
    forms: Forms = "1",
    stored_forms: Forms = "1",
    packed: PackedArguments | None = None,
) -> list[Any]:
    """Everything that the script is to check and to write.

    Args:
        commit: what was planned.
        stored: the stored forms of its snapshots.
        dictionary: a new one (number, bytes) to be written along, if there is one.
        digest: names this commit among all others of the feed; empty: it changes nothing that the script checks.
        known: how many dictionaries there were before it.
        nonce: of this process' lease.
        now_ms: the store's clock in milliseconds: when qualifications and rejected records were seen.
        forms: of the feed's snapshots with these.
        stored_forms: of those before.
        packed: the snapshots and the events, from :meth:`FeedStore.pack`.
    """
    keys = list(commit.snapshots)
    may_be_former = forms != "1" and has_former(stored_forms)
    forms_mark: list[Argument] = [] if forms == stored_forms else [FORMS, forms]
    sections: list[list[Argument]] = [
        list(chain.from_iterable(map(_quarantined, commit.rejected))),
        [name.encode() for name in commit.qualifications],
        list(dictionary or ()),
        [
            *forms_mark,
            *chain.from_iterable((name.encode(), (value or "").encode()) for name, value in commit.marks.items()),
        ],
        list(chain.from_iterable((name.encode(), encode_listing(one)) for name, one in commit.listings.items())),
        list(chain.from_iterable((name, held_versions.encode_held(one)) for name, one in commit.held.items() if one)),
        [name for name, one in commit.held.items() if one is None],
        [name for key in keys if (name := former_name(key))] if may_be_former else [],
    ]
    checks: list[Argument] = [
        nonce,
        commit.generation,
        commit.sequence,
        commit.next_sequence,
        digest,
        known,
        now_ms,
        QUARANTINE_ENTRIES,
        commit.page_digests or b"",
    ]
    counts = [2 * len(keys), len(commit.events), *map(len, sections)]
    bulk = [packed] if packed is not None else _bulk(commit, keys if forms == "1" else names_of(keys), stored)
    return [*checks, *counts, stored_forms, *bulk, *chain.from_iterable(sections)]


def _bulk(commit: Commit, names: Sequence[Argument], stored: Sequence[Argument]) -> list[Any]:
    """Nearly all of a large commit: the snapshots with their names, and the events."""
    return [*chain.from_iterable(zip(names, stored, strict=True)), *commit.events]


def _quarantined(rejected: Rejected) -> tuple[bytes, str, bytes]:
    return rejected.raw[:QUARANTINE_BYTES], rejected.reason, rejected_digest(rejected.raw)


def rejected_digest(raw: bytes) -> bytes:
    """What the feed remembers of a record that it has quarantined: 16 bytes, of the whole record."""
    return blake2b(raw, digest_size=16).digest()


# The metrics of commits: results and seconds.

_RESULTS: Final[dict[bytes, CommitResult]] = {
    b"OK": "written",
    b"ALREADY": "repeated",
    b"FENCED": "fenced",
    b"STALE": "stale",
}


async def counted(written: Awaitable[Any], clock: Clock) -> Any:
    """What the commit's script answers, once it does; whatever it is, or raises, is counted."""
    begun, result = clock.monotonic(), b""
    try:
        result = await written
        return result
    finally:
        seconds = clock.monotonic() - begun
        committed(_RESULTS.get(result, "failed"), seconds)
        costs.commit_timed(seconds)
