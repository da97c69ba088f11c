"""Searches for histories of an API that make rounds lose, forge or repeat something.

Theory of operation
-------------------
A seed gives an API its habits, and its records a history. The API's listing and single records lag behind its deltas
by up to ten seconds, caches keep its answers, its tokens repeat the last changes, its deltas list records whole or in
part, once or in all versions; requests fail, tokens expire, processes are killed between any two requests or commits.
Rounds read that, one after the other, with a clock that only requests and waits move. Some time after the last change
all must be known as it is, and nothing may have been published that was never true.

Usage: ``python -m tests.source.lagging FIRST LAST`` plays these seeds and prints what was wrong; with ``--log`` also
what happened in the first one that went wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from random import Random
from typing import Any, Final

import msgspec

from poller.changes.full_readings import DeltaMemory
from poller.changes.plan import Commit, RemovalGuard
from poller.errors import SourceRefused, SourceUnavailable
from poller.resources import RESOURCES, Resource
from poller.source.client import ConditionalReader, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import Params
from poller.source.round import run_round
from tests.source.round_sides import FEED, NOON, MemoryStore
from tests.source.test_absence import LAG, Moving

_PATH: Final = "/contractTypes"
_FIRST_CHANGE: Final = 20.0  # seconds after the start
_CALM: Final = 420.0  # seconds after the last change, all that deltas tell is known
_REMOVED: Final = 400.0  # seconds after a second regular reading from then on, removals are, too
_FAILING: Final = 180.0  # seconds
_SHORT_OF: Final = 14  # readings that may follow a regular one

Version = dict[str, Any]


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """What an API does, and how it is read. Times are seconds, rates are per request.

    Attributes:
        partial: whether deltas have only what has changed.
        style: of deltas: the last version of a record, or all versions: oldest or newest first, by their modification
            times, or by their ids and these.
        times: the precision of modification times; ``none``: there are none.
        detail: whether there is an endpoint for single records.
        list_lag, single_lag: by how much listings and single records lag behind deltas.
        jitter: whether they lag by less now and then.
        cache: for how long a cache keeps answers; 0: there is none.
        cache_deltas: whether it keeps those of deltas.
        etag: whether listings can be requested on condition.
        overlap: for how long a token repeats changes.
        page, delta_page: the number of records of a page; None: all.
        views: whether page tokens show the listing as it was at the first request.
        faults, kills, expiry, forgets: how often requests fail, processes end, tokens expire, and are forgotten without
            a word.
        newest: whether older versions are held back.
        interval, reconcile: of rounds, and of full readings.
        changes: how many there are in a second.
        records: how many there are at most.
        lasts: for how long something changes.
        reverts: whether records go back to older versions.
        deletes: whether records are deleted and restored.
        slow: how long a request takes at most.
        bare: whether an empty listing has no token.
        once: whether each round is one of another process.
    """

    partial: bool
    style: str
    times: str
    detail: bool
    list_lag: int
    single_lag: int
    jitter: bool
    cache: int
    cache_deltas: bool
    etag: bool
    overlap: int
    page: int | None
    delta_page: int | None
    views: bool
    faults: float
    kills: float
    expiry: float
    forgets: float
    newest: bool
    interval: int
    reconcile: int
    changes: float
    records: int
    lasts: int
    reverts: bool
    deletes: bool
    slow: float
    bare: bool
    once: bool

    @property
    def feed(self) -> Feed:
        """The feed that reads it."""
        resource = RESOURCES["contractTypes"] if self.detail else Resource("contractTypes", "contractType", _PATH)
        return msgspec.structs.replace(
            FEED,
            resource=resource,
            lag=LAG,
            apart=timedelta(seconds=2),
            partial=self.partial,
            newest=self.newest,
            breaker=RemovalGuard(percent=None),
            reconcile=timedelta(seconds=self.reconcile),
            slot=timedelta(seconds=self.interval),
        )


def habits_of(seed: int) -> Habits:
    """The habits that a seed gives."""
    random = Random(f"habits {seed}")
    style = random.choice(["last", "last", "last", "rising", "falling", "dated", "named"])
    list_lag = random.choice([0, 0, 3, 9])
    return Habits(
        partial=random.random() < 0.3,
        style=style,
        # An order of versions that nothing tells cannot be found out.
        times="ms" if style in ("falling", "dated", "named") else random.choice(["ms", "ms", "s", "none"]),
        detail=random.random() < 0.6,
        list_lag=list_lag,
        single_lag=random.choice([0, 0, list_lag, 9]),
        jitter=random.random() < 0.6,
        cache=random.choice([0, 0, 0, 5, 20, 40]),
        cache_deltas=random.random() < 0.2,
        etag=random.random() < 0.4,
        overlap=random.choice([0, 0, 1, 5, 30, 100_000] if style == "last" else [0, 1, 5]),
        page=random.choice([None, None, 2, 3, 5]),
        # A history may show the same page twice, which ends a reading as a circle does; larger pages hardly repeat.
        delta_page=random.choice([None, None, None, 1, 2] if style == "last" else [None, None, 5]),
        views=random.random() < 0.5,
        faults=random.choice([0, 0, 0.02, 0.1]),
        kills=random.choice([0, 0, 0.01, 0.04]),
        expiry=random.choice([0, 0, 0, 0.005]),
        forgets=random.choice([0, 0, 0, 0.003]),
        newest=random.random() < 0.4,
        interval=random.choice([5, 10, 15]),
        reconcile=random.choice([30, 120, 1800]),
        changes=random.choice([0.02, 0.1, 0.3, 1]),
        records=random.choice([2, 4, 8]),
        lasts=random.choice([60, 200]),
        reverts=random.random() < 0.5,
        deletes=random.random() < 0.7,
        slow=random.choice([0.4, 0.4, 0.4, 4]),
        bare=random.random() < 0.3,
        once=random.random() < 0.2,
    )


class History:
    """What is true, and when.

    Attributes:
        start: of the run, seconds.
        end: the last change comes before this.
        versions: of each record, in order: since when, and what; None: it does not exist.
    """

    def __init__(self, seed: int, habits: Habits) -> None:
        self._habits = habits
        self._random = Random(f"history {seed}")
        self._numbers = 0
        self.start = NOON.timestamp()
        self.end = self.start + _FIRST_CHANGE + habits.lasts
        self.versions: defaultdict[str, list[tuple[float, Version | None]]] = defaultdict(list)
        names = [f"r{number}" for number in range(habits.records)]
        share = 0.1 if habits.bare else 0.6
        for name in names:
            if self._random.random() < share:
                self.versions[name].append((self.start - 3600, self._new(name, self.start - 3600)))
        moment = self.start + _FIRST_CHANGE
        while (moment := moment + self._random.expovariate(habits.changes)) < self.end:
            name = self._random.choice(names)
            now = self.at(name, moment)
            changed = self._made(name, moment) if now is None else self._changed(name, now, moment)
            if changed != now:
                self.versions[name].append((moment, changed))

    def at(self, name: str, moment: float) -> Version | None:
        """A record at a moment."""
        found = None
        for since, version in self.versions.get(name, ()):
            if since > moment:
                break
            found = version
        return found

    def live(self, moment: float) -> dict[str, Version]:
        """All that exist at a moment, by name and in its order."""
        return {name: found for name in sorted(self.versions) if (found := self.at(name, moment)) is not None}

    def was_absent(self, name: str, since: float, until: float) -> bool:
        """Whether a record did not exist at some moment of this time."""
        changes = (version for at, version in self.versions[name] if since <= at <= until)
        return self.at(name, since) is None or any(version is None for version in changes)

    def _made(self, name: str, moment: float) -> Version:
        """A record that is new, or restored."""
        before = [version for _, version in self.versions[name] if version]
        if not before or self._random.random() < 0.4:
            return self._new(name, moment)
        restored = dict(before[-1] if self._random.random() < 0.7 else self._random.choice(before))
        return restored if self._keeps_times else self._dated(restored, moment)

    def _changed(self, name: str, now: Version, moment: float) -> Version | None:
        habits, random = self._habits, self._random
        if habits.deletes and random.random() < 0.3:
            return None
        before = [version for _, version in self.versions[name] if version]
        if habits.reverts and len(before) > 1 and random.random() < 0.2:
            reverted = dict(random.choice(before))
            return reverted if self._keeps_times and random.random() < 0.5 else self._dated(reverted, moment)
        self._numbers += 1
        return self._dated(now | {random.choice("ab"): self._numbers}, moment)

    @property
    def _keeps_times(self) -> bool:
        """Whether a version that is restored has its old time; parts, and versions of one second, would not tell."""
        return self._habits.style == "last" or (self._habits.times == "ms" and not self._habits.partial)

    def _new(self, name: str, moment: float) -> Version:
        self._numbers += 1
        new: Version = {"id": name, "a": self._numbers, "b": self._numbers}
        return new if self._habits.times == "none" else self._dated(new | {"lastModifiedAt": ""}, moment)

    def _dated(self, version: Version, moment: float) -> Version:
        if "lastModifiedAt" not in version:
            return version
        precision = "milliseconds" if self._habits.times == "ms" else "seconds"
        at = datetime.fromtimestamp(moment, UTC).isoformat(timespec=precision)
        return version | {"lastModifiedAt": at.replace("+00:00", "Z")}


class _Refusal(msgspec.Struct, frozen=True):
    """An answer without a body."""

    status: int


class LaggingApi:
    """An API with habits.

    Attributes:
        log: what happened, one line each.
        calm: whether nothing fails any more.
        killed: set when the process that asks has ended.
        has_forgotten: whether a token was forgotten without a word.
    """

    def __init__(self, seed: int, habits: Habits, history: History, clock: Moving) -> None:
        self.log: list[str] = []
        self.calm = self.has_forgotten = False
        self.killed = asyncio.Event()
        self._habits, self._history, self._clock = habits, history, clock
        self._random = Random(f"api {seed}")
        self._kept: dict[tuple[str, Params], tuple[float, str | _Refusal]] = {}
        self._expired = self._forgotten = 0.0  # tokens from before these moments

    def note(self, what: str) -> None:
        """Add to the log."""
        self.log.append(f"{self._now - self._history.start:9.3f} {what}")

    @property
    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def ask(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        """One exchange."""
        self._clock.pass_by(timedelta(seconds=self._random.uniform(0.02, self._habits.slow)))
        await asyncio.sleep(0)
        if not self.calm:
            await self._strike(path)
        asked = dict(params)
        is_delta = "sinceDeltaToken" in asked
        age, answer = self._answer(path, params, asked, is_delta=is_delta)
        self.note(f"{path} {asked} age {age}: {answer}")
        if isinstance(answer, _Refusal):
            raise SourceRefused(f"GET {path}: {answer.status}", status=answer.status, age=age)
        validators = Validators()
        if self._habits.etag and not is_delta:
            content = json.dumps(json.loads(answer).get("results", answer)).encode()
            validators = Validators(f'"{blake2b(content, digest_size=6).hexdigest()}"')
            if unless.headers and unless == validators:
                self.note("is unchanged")
                return ConditionalResponse(None, unless, age)
        return ConditionalResponse(answer.encode(), validators, age)

    async def kill(self, what: str) -> None:
        """End the process that asks; does not return."""
        self.note(f"killed {what}")
        self.killed.set()
        await asyncio.Event().wait()

    async def _strike(self, path: str) -> None:
        habits, random = self._habits, self._random
        if random.random() < habits.kills:
            await self.kill(f"at {path}")
        if random.random() < habits.faults:
            self.note(f"fails {path}")
            if random.random() < 0.7:
                raise SourceUnavailable(f"GET {path}: 503")
            raise SourceRefused(f"GET {path}: 403", status=403)
        if random.random() < habits.expiry:
            self._expired = self._now
        if random.random() < habits.forgets:
            self._forgotten, self.has_forgotten = self._now, True

    def _answer(
        self, path: str, params: Params, asked: dict[str, str], *, is_delta: bool
    ) -> tuple[int, str | _Refusal]:
        """The answer, and how long a cache had kept it."""
        cache = self._habits.cache if self._habits.cache_deltas or not is_delta else 0
        kept = self._kept.get((path, params))
        if kept is not None and self._now - kept[0] < cache:
            return int(self._now - kept[0]), kept[1]
        answer = self._delta(asked) if is_delta else self._listing(asked) if path == _PATH else self._single(path)
        self._kept[path, params] = self._now, answer
        return 0, answer

    def _view(self, lag: int) -> float:
        return self._now - (lag * self._random.random() if self._habits.jitter else lag)

    def _single(self, path: str) -> str | _Refusal:
        found = self._history.at(path.rpartition("/")[2], self._view(self._habits.single_lag))
        return _Refusal(404) if found is None else json.dumps(found)

    def _listing(self, asked: dict[str, str]) -> str:
        habits, view = self._habits, self._view(self._habits.list_lag)
        start, first = 0, self._now
        if "pageToken" in asked:
            place, then, begun = asked["pageToken"].split(":")
            start, first, view = int(place), float(begun), float(then) if habits.views else view
        found = list(self._history.live(view).values())
        token = None if habits.bare and not found else f"{first if habits.views else self._now:.6f}"
        return self._page(found, start, habits.page, f"{view}:{first}", token)

    def _delta(self, asked: dict[str, str]) -> str | _Refusal:
        habits, since, start, until = self._habits, float(asked["sinceDeltaToken"]), 0, self._now
        if "pageToken" in asked:
            place, then = asked["pageToken"].split(":")
            start, until = int(place), float(then) if habits.views else until
        if since < self._expired:
            return _Refusal(410)
        if since < self._forgotten:
            return self._page([], 0, None, "", asked["sinceDeltaToken"])
        found = sorted(self._changes(since - habits.overlap, until), key=lambda one: one[0])
        ordered = [version for _, version in (found[::-1] if habits.style == "falling" else found)]
        if habits.style in ("dated", "named"):
            ordered.sort(key=lambda one: (one["id"] if habits.style == "named" else "", one["lastModifiedAt"]))
        return self._page(ordered, start, habits.delta_page, f"{until}", f"{until:.6f}")

    @staticmethod
    def _page(found: list[Version], start: int, size: int | None, further: str, token: str | None) -> str:
        end = start + (size or len(found) or 1)
        page_token = f"{end}:{further}" if end < len(found) else None
        return json.dumps({"results": found[start:end], "pageToken": page_token, "deltaToken": token})

    def _changes(self, since: float, until: float) -> Iterator[tuple[float, Version]]:
        """What a delta has of the records that exist: since when, and what."""
        for name, versions in self._history.versions.items():
            if self._history.at(name, until) is None:
                continue
            before = self._history.at(name, since)
            found: list[tuple[float, Version]] = []
            for at, version in versions:
                if since < at <= until:
                    if version is not None:
                        found.append((at, self._part(before, version)))
                    before = version
            if self._habits.style != "last":
                yield from found
            elif found:
                touched = {key for _, part in found for key in part}
                yield found[-1][0], {key: value for key, value in (before or {}).items() if key in touched}

    def _part(self, before: Version | None, version: Version) -> Version:
        if not self._habits.partial:
            return version
        if before is None:  # a new record may be known by some of its fields only
            is_new = self._history.versions[version["id"]][0][1] is version
            without = "a" if is_new and version["a"] % 2 else ""
            return {key: value for key, value in version.items() if key != without}
        always = ("id", "lastModifiedAt")
        return {key: value for key, value in version.items() if key in always or before.get(key) != value}


class _Run:
    """One run, and what was wrong."""

    def __init__(self, seed: int) -> None:
        self.habits = habits = habits_of(seed)
        self.problems: list[str] = []
        self._history = History(seed, habits)
        self._clock = Moving()
        self._store = MemoryStore(self._clock)
        self._store.before_commit = self._before_commit
        self.api = LaggingApi(seed, habits, self._history, self._clock)
        self._random = Random(f"run {seed}")
        self._reader = ConditionalReader(self.api.ask)
        self._published = 0
        self._failing_since: float | None = None
        self._is_checked = False
        self._full_readings = 0  # after all is known

    @property
    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def play(self) -> None:
        """All of it."""
        due, over = self._history.start, self._history.end + _CALM + 2 * self.habits.reconcile + _REMOVED
        while self._now < over:
            self._clock.pass_by(timedelta(seconds=max(due - self._now, 0)))
            self.api.calm = self._now > self._history.end
            await self._round()
            due = max(due + self.habits.interval, self._now)
        self._compare("in the end", removals=True)
        regular = (2 * self.habits.reconcile + _REMOVED) // self.habits.reconcile + 1
        if self._store.state.delta_token and self._full_readings > regular * _SHORT_OF:
            self.problems.append(f"{self._full_readings} full readings of an unchanged listing")
        if self.habits.newest and self.habits.times == "ms" and not self.habits.partial:
            self._judge_order()

    async def _before_commit(self, _: Commit) -> None:
        if not self.api.calm and self._random.random() < self.habits.kills / 2:
            await self.api.kill("before a commit")

    async def _round(self) -> None:
        began = self._now
        self._store.now_ms = int(began * 1000)
        if self.habits.once or self.api.killed.is_set():
            self._reader = ConditionalReader(self.api.ask)
            self._store.deltas = DeltaMemory(self._clock)
        self.api.killed.clear()
        running = asyncio.create_task(
            run_round(
                self.habits.feed,
                self._store,
                self._reader.get,
                clock=self._clock,
                qualifications=_none,
                unchanged=self._reader,
            )
        )
        killed = asyncio.create_task(self.api.killed.wait())
        await asyncio.wait({running, killed}, return_when=asyncio.FIRST_COMPLETED)
        for task in (running, killed):
            task.cancel()
        await asyncio.wait({running, killed})
        result = None if running.cancelled() else running.result()
        self.api.note(f"round {result and (result.mode.value, result.ok, result.changes, result.error)}")
        self._judge_removals(began)
        if result is not None and self.api.calm:
            self._judge(result, began)

    def _judge(self, result: RoundResult, began: float) -> None:
        self._failing_since = None if result.ok else (self._failing_since or began)
        if self._failing_since and self._now - self._failing_since > _FAILING:
            self.problems.append(f"rounds fail: {result.error}")
            self._failing_since = None
        if self._is_checked:
            self._full_readings += result.mode is not RoundMode.DELTA
        elif self._now > self._history.end + _CALM:
            self._is_checked = True
            if not self.api.has_forgotten:
                self._compare("some time after the last change", removals=False)

    def _judge_removals(self, began: float) -> None:
        """A record that is removed did not exist at some moment that the reading may have seen."""
        for event in self._store.events[self._published :]:
            kind, name = event["type"].split(".")[-2], event["subject"]
            self.api.note(f"event {name} {kind} {event['data']['cause']} {event['data'].get('record')}")
            since = began - 3 * LAG.total_seconds() - self.habits.cache
            if kind == "removed" and not self._history.was_absent(name, since, self._now):
                self.problems.append(f"{name} was removed and exists")
        self._published = len(self._store.events)

    def _compare(self, when: str, *, removals: bool) -> None:
        truth = self._history.live(self._now)
        known = {key: json.loads(one.raw) for key, one in self._store.snapshots.items() if not one.removed}
        for name, version in truth.items():
            if known.get(name) != version:
                self.problems.append(f"{when} {name} is {version}, and known as {known.get(name)}")
        if removals:
            self.problems += [f"{when} {name} is known and does not exist" for name in known if name not in truth]

    def _judge_order(self) -> None:
        """No version is published after a later one, unless the record has gone back to it."""
        places: dict[str, int] = {}
        for event in self._store.events:
            if not (record := event["data"].get("record")) or event["type"].split(".")[-2] == "removed":
                continue
            name = event["subject"]
            later = enumerate(self._history.versions[name][places.get(name, 0) :], start=places.get(name, 0))
            place = next((number for number, (_, version) in later if version == record), None)
            if place is None:
                self.problems.append(f"{record} was published after a later version")
            else:
                places[name] = place


async def _none(_: int) -> dict[str, int]:
    return {}


def play(seed: int) -> tuple[Habits, list[str], list[str]]:
    """Play a seed: its habits, what was wrong, and what happened."""
    run = _Run(seed)
    asyncio.run(run.play())
    return run.habits, run.problems, run.api.log


def _main() -> int:
    parser = argparse.ArgumentParser(description="Play histories of an API that lags, caches and repeats.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--log", action="store_true", help="print what happened in the first that goes wrong, and end")
    asked = parser.parse_args()
    wrong = 0
    for seed in range(asked.first, asked.last):
        habits, problems, log = play(seed)
        if problems:
            wrong += 1
            print(f"{seed}: {problems}\n  {habits}", flush=True)  # noqa: T201
            if asked.log:
                print("\n".join(log))  # noqa: T201
                break
    print(f"{wrong} of {asked.last - asked.first} went wrong")  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(_main())
