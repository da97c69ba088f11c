"""The two sides of a round: an API with scripted answers, and a store in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Container, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from poller.changes.diff import Snapshot
from poller.changes.full_readings import DeltaMemory, HeldVersion
from poller.changes.layouts import Layout
from poller.changes.plan import Commit, SubstreamSnapshot
from poller.changes.records import subject_of, text_key
from poller.clock import Clock
from poller.errors import PollerError, SourceRefused, SourceUnavailable, Stale, StoreError
from poller.resources import RESOURCES
from poller.source.feed import Feed, RoundResult
from poller.source.paging import ListQuery, Params
from poller.source.round import run_round
from poller.store.feed import LISTED, MissingRecords, PackedCommit, PublishedVersion
from poller.store.feed_state import FeedState, IdleStart, state_of
from poller.store.lease import HeldElsewhere
from poller.store.snapshots import SnapshotCodec

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
GONE = SourceRefused("GET /contractTypes: the API answered 410", status=410)
DOWN = SourceUnavailable("GET /contractTypes: the API answered 503 (3 attempts)")
FEED = Feed(
    id="acme/contractTypes",
    resource=RESOURCES["contractTypes"],
    query=ListQuery(),
    event_source="https://api.example.org/v1",
    type_prefix="org.example.api",
    reconcile=DAY,
    apart=timedelta(0),  # tests of removals set the time between confirmations
    lag=timedelta(0),
)
ACHIEVEMENTS = msgspec.structs.replace(
    FEED, id="acme/achievements", resource=RESOURCES["achievements"], delta=False, qualifications=("q1", "q2")
)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < 4300 else Decimal(digits)  # Python refuses longer integers


class _OfWall(Clock):
    """A clock whose moments are those of another one's wall clock, which a test moves."""

    def __init__(self, clock: Clock) -> None:
        self._wall = clock

    def monotonic(self) -> float:
        return self._wall.now().timestamp()


class _PublishedData(msgspec.Struct):
    record: msgspec.Raw = msgspec.Raw(b"")


class _Published(msgspec.Struct):
    subject: str
    sequence: str
    data: _PublishedData


class MemoryStore:
    """A feed's store in memory: a commit is written whole, on the state it was planned on, or not at all."""

    turns = 20
    """Of the event loop that a commit takes: the round goes on to the next page meanwhile."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock
        self.fields = {b"generation": b"g", b"sequence": b"0"}
        self.snapshots: dict[str, Snapshot] = {}
        self.kept_listings: dict[str, SubstreamSnapshot] = {}
        self.held: dict[str, HeldVersion] = {}
        self.digests: bytes | None = None
        self.counted: list[int | None] = []  # how many records each reading listed, if it says that all are known
        self.keeps_removed = False
        self.layout: Layout | None = None
        self.deltas = DeltaMemory(_OfWall(clock or Clock()))
        self.events: list[dict[str, Any]] = []
        self.texts: list[bytes] = []  # of these
        self.quarantine: list[tuple[bytes, str]] = []
        self.commits: list[Commit] = []
        self.held_elsewhere: HeldElsewhere | None = None
        self.failing: Callable[[Commit], StoreError | None] = lambda _: None
        self.unreachable: StoreError | None = None
        self.unreadable: StoreError | None = None
        self.now_ms = 1_000_000_000_000  # the server's clock; only the test moves it
        self.before_commit: Callable[[Commit], Any] | None = None
        self.permits_idle = True
        self.idle_start: IdleStart | None = None
        self.idle_rounds = 0

    @property
    def state(self) -> FeedState:
        return msgspec.structs.replace(state_of(self.fields), now_ms=self.now_ms)

    def mark(self, name: str, value: str) -> None:
        """Set a field of the state, as an earlier round may have done."""
        self.fields[name.encode()] = value.encode()

    def unmark(self, name: str) -> None:
        """Remove a field of the state."""
        self.fields.pop(name.encode(), None)

    async def open_round(self) -> FeedState | HeldElsewhere:
        self.idle_start = None
        if self.unreachable:
            raise self.unreachable
        return self.held_elsewhere or self.state

    @property
    def state_digest(self) -> bytes:
        return repr(sorted(self.fields.items())).encode() if self.permits_idle else b""

    async def end_idle_round(self, start: IdleStart, commit: Commit) -> bool:
        self.idle_start = None
        if self.unreachable:
            raise self.unreachable
        if self.held_elsewhere or self.state_digest != start.digest:
            return False
        await self.commit(commit)
        self.idle_start = msgspec.structs.replace(start, digest=self.state_digest)
        self.idle_rounds += 1
        return True

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        if self.unreadable:
            raise self.unreadable
        assert all(key.encode() for key in record_keys), "a store is asked for bytes"
        return {key: self.snapshots[key] for key in record_keys if key in self.snapshots}

    async def are_stored(self, record_keys: list[str], raws: Sequence[bytes]) -> list[bool]:
        known = [self.snapshots.get(key) for key in record_keys]
        return [
            one is not None and one.raw == raw and not (one.removed or one.missing or one.unreadable)
            for one, raw in zip(known, raws, strict=True)
        ]

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        live = {key: snapshot for key, snapshot in self.snapshots.items() if not snapshot.removed}
        missing = [key for key in live if key not in seen]
        listed = {key: snapshot for key, snapshot in live.items() if key in seen}
        assert known in (None, len(listed)), "a key that was listed is of no live record"
        self.counted.append(known)
        drawn = dict(list(listed.items())[:LISTED])
        return MissingRecords(len(live), len(missing), {key: live[key] for key in missing[:most]}, drawn)

    async def subjects_since(self, age: timedelta, *, cause: str | None = None) -> set[str]:
        assert self._clock is not None
        since = self._clock.now() - age
        recent = (event for event in self.events if datetime.fromisoformat(event["recordedtime"]) >= since)
        brought = set(map(subject_of, self.deltas.since(age, first=cause is not None)))
        return brought.union(text_key(one["subject"]) for one in recent if cause in (None, one["data"]["cause"]))

    async def published_since(self, sequence: int) -> AsyncGenerator[PublishedVersion]:
        for text in reversed(self.texts):
            event = msgspec.json.decode(text, type=_Published)
            if int(event.sequence) <= sequence:
                return
            yield PublishedVersion(event.subject, bytes(event.data.record) or None)

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        return dict(self.kept_listings)

    async def page_digests(self) -> bytes | None:
        return self.digests

    async def held_versions(self) -> dict[str, HeldVersion]:
        return dict(self.held)

    def pack(self, commit: Commit) -> PackedCommit:
        return PackedCommit(SnapshotCodec(), list(map(str.encode, commit.snapshots)), "3")

    async def write(self, commit: Commit, packed: PackedCommit | None) -> None:
        assert packed is not None
        assert packed.stored == list(map(str.encode, commit.snapshots))
        await self.commit(commit)

    async def commit(self, commit: Commit) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        if self.before_commit:
            await self.before_commit(commit)
        failure = self.failing(commit)
        if failure:
            raise failure
        if (commit.generation, commit.sequence) != (self.state.generation, self.state.sequence):
            raise Stale("planned on another state")
        self.commits.append(commit)
        self.snapshots |= commit.snapshots
        self.digests = commit.page_digests or (None if commit.snapshots else self.digests)
        self.kept_listings |= commit.listings
        for key, held in commit.held.items():
            self.held.pop(key, None)
            if held is not None:
                self.held[key] = held
        self.events += [json.loads(event, parse_int=_integer) for event in commit.events]
        self.texts += commit.events
        self.quarantine += [(rejected.raw, rejected.reason) for rejected in commit.rejected]
        for name, value in commit.marks.items():
            if value is None:
                self.unmark(name)
            else:
                self.mark(name, value)
        self.mark("sequence", str(commit.next_sequence))


class Script:
    """An API that answers by path, page token and delta token, and records the requests in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.more = asyncio.Event()
        self._answers: dict[tuple[str, str | None, str | None], bytes | PollerError] = {}

    def on(
        self,
        answer: PollerError | list[Any],
        *,
        path: str = "/contractTypes",
        page: str | None = None,
        since: str | None = None,
        further: str | None = None,
        delta: str | None = None,
    ) -> Script:
        """Answer this request with these records and tokens, or with this error, each time."""
        body = {"results": answer, "pageToken": further, "deltaToken": delta}
        self._answers[path, page, since] = answer if isinstance(answer, PollerError) else json.dumps(body).encode()
        return self

    def answer(self, body: bytes, *, path: str = "/contractTypes", since: str | None = None) -> Script:
        """Answer a listing's first request with this body, byte for byte."""
        self._answers[path, None, since] = body
        return self

    def whole(self, path: str, record: dict[str, Any]) -> Script:
        """Answer this path with a single record."""
        self._answers[path, None, None] = json.dumps(record).encode()
        return self

    def page(self, *raw: bytes, path: str = "/contractTypes") -> Script:
        """Answer this path with a page of these records, byte for byte."""
        self._answers[path, None, None] = b'{"results":[%b]}' % b",".join(raw)
        return self

    async def get(self, path: str, params: Params) -> bytes:
        asked = dict(params)
        self.asked.append((path, asked))
        self.more.set()
        request = path, asked.get("pageToken"), asked.get("sinceDeltaToken")
        answer = self._answers[request] if request in self._answers else self._listed(path, request[2])
        if isinstance(answer, PollerError):
            raise answer
        return answer

    def _listed(self, path: str, since: str | None) -> bytes:
        """The record of a path that a listing's page has; of a delta that was not scripted, nothing, and its token."""
        if since is not None:
            return json.dumps({"results": [], "deltaToken": since}).encode()
        listing, _, subject = path.rpartition("/")
        pages = (answer for (at, _, _), answer in self._answers.items() if at == listing and isinstance(answer, bytes))
        found = (record for page in pages for record in json.loads(page)["results"])
        return json.dumps(next(record for record in found if str(record["id"]) == subject)).encode()

    async def until(self, count: int) -> None:
        """Wait until this number of requests was made."""
        while len(self.asked) < count:
            self.more.clear()
            await self.more.wait()


class WallClock(Clock):
    """A wall clock that stands still until it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.time = NOON
        self.seconds: Callable[[], float] | None = None

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.seconds() if self.seconds else super().monotonic()

    def pass_by(self, span: timedelta) -> None:
        self.time += span

    def drive_monotonic(self) -> None:
        """Let the monotonic clock follow this one."""
        self.seconds = self._moment

    def _moment(self) -> float:
        return self.time.timestamp()


def records(*subjects: str, value: int = 1) -> list[dict[str, Any]]:
    return [{"id": subject, "n": value} for subject in subjects]


class Round:
    """A feed with its store, API and clock; a call runs one round."""

    def __init__(self, feed: Feed = FEED) -> None:
        self.feed = feed
        self.clock = WallClock()
        self.store = MemoryStore(self.clock)
        self.seen: Sequence[str] = ()

    async def __call__(self, script: Script, feed: Feed | None = None) -> RoundResult:
        async def qualifications(since: int) -> dict[str, int]:
            assert since >= 0
            return dict.fromkeys(self.seen, 0)

        feed = feed or self.feed
        result = await run_round(feed, self.store, script.get, clock=self.clock, qualifications=qualifications)
        assert result.feed == feed.id
        assert result.records == result.created + result.modified + result.unchanged + result.quarantined
        assert result.ok == (result.error is None)
        return result

    @property
    def causes(self) -> list[tuple[str, str, str]]:
        return [(event["subject"], event["type"].split(".")[-2], event["data"]["cause"]) for event in self.store.events]

    @property
    def kept(self) -> str | None:
        return self.store.state.delta_token
