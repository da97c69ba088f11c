"""The real scripts against the plain model: two processes, a source that changes, and any failure in between.

A process takes the lease, plans a commit with the program's own planner on what it reads from the store, and sends it.
In between, leases expire, processes crash and are replaced, commits are sent twice or late, and the store is trimmed,
restored from an older dump, or loses some or all of its data. After each step the store has to equal the model, and
each id has to stand for one change for ever.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from poller.changes.plan import Commit
from poller.errors import Fenced, Stale
from poller.store.commands import RoundRequest, request_round
from poller.store.feed_state import DELTA_TOKEN, FeedState
from tests.store.commit_model import Known, Model, Planned, Published, planned, removing
from tests.store.commit_world import ALL, KEYS, NOTES, Process, Sent, World

if TYPE_CHECKING:
    from poller.store.recovery import HighWaterMark

A_UUID = "0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11"
PAGES = st.dictionaries(st.sampled_from(["a", "b", A_UUID]), st.integers(0, 2), min_size=1)  # few, so contents repeat
WORK = ("page", "wait", "send", "again", "remove", "finish")
FAULTS = ("begin", "crash", "late", "expire", "dump", "roll_back", "trim", "order", "convert")
LOSSES = ("everything", "feed", "state", "snapshots", "events")
STEPS = (*WORK * 3, *("page", "again") * 6, *FAULTS, "late", "roll_back", *LOSSES)


class CommitMachine(RuleBasedStateMachine):
    """The state machine. Subclasses set the server, and may break the commit script."""

    url: ClassVar[str]
    runner: ClassVar[asyncio.Runner]
    broken: ClassVar[tuple[str, str]] = ("", "")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.meaning: dict[str, tuple[object, ...]] = {}
        self.ids: dict[tuple[object, ...], str] = {}
        self.generations: set[str] = set()
        self.dumped: tuple[dict[str, bytes], Model] | None = None
        self.went_back = False
        self.world = World(self.url, self.runner, self.broken)

        self.processes = [self.world.process(), self.world.process()]
        self.gone: list[tuple[Process, Sent]] = []

    def teardown(self) -> None:
        self.world.close()

    @rule(name=st.sampled_from(STEPS), which=st.sampled_from((0, 0, 0, 1)), values=PAGES, back=st.integers(0, 2))
    def step(self, name: str, which: int, values: dict[str, int], back: int) -> None:
        """Run one of :data:`STEPS` for this process, with these records, so far back in the history."""
        process = self.processes[which]
        match name:
            case "page" | "wait":
                self.read(process, values)
                if name == "page":
                    self.send(process)
            case "remove":
                self.remove(process, values)
                self.send(process)
            case "crash":
                self.crash(which)
            case "begin" | "finish" | "send" | "again":
                getattr(self, name)(process, *([back] if name == "again" else []))
            case "late" | "roll_back" | "trim":
                getattr(self, name)(back)
            case "expire" | "dump" | "order" | "convert":
                getattr(self, name)()
            case part:
                self.lose(part)

    # Rounds.

    def begin(self, process: Process) -> None:
        """Take the lease; the state found has to equal the model's, or be a new one if a reset is due."""
        model, before, whole = self.model, process.store.memory.known, self.world.whole(ordered=False)
        process.round = process.pending = None
        process.sent.clear()
        state = self.world.run(process.store.open_round())
        if model.lease not in (None, process.nonce):
            assert not isinstance(state, FeedState), state
            return
        assert isinstance(state, FeedState), state
        model.lease = process.nonce
        if state.generation != model.generation:
            assert not whole, "reset without need"
            self._begun_anew(state, before)
        elif self.went_back and before is not None and before.generation == model.generation:
            assert state.loss is not None or before.sequence <= model.sequence or before.losses < self.world.told()
        self.went_back = False
        if state.loss is not None:
            model.digest = ""  # the loss is written in a commit of its own
            if state.loss.kind == "replaced":
                model.token = None
        process.round = {}
        self.world.run(process.store.memory.save())

    def _begun_anew(self, state: FeedState, before: HighWaterMark | None) -> None:
        assert state.generation not in self.generations
        if self.model.stream:
            assert state.sequence == self.model.stream[-1].sequence
        else:
            assert state.sequence >= (before.sequence if before else 0)
        self.model.begin_anew(state.generation, state.sequence)
        self.generations.add(state.generation)

    def read(self, process: Process, values: dict[str, int]) -> None:
        """The source lists these records; plan the commit that follows."""
        if process.round is None:
            self.begin(process)
        if process.round is None or process.pending is not None:
            return
        commit = self.world.page(process, values)
        process.round |= values
        if not commit.empty:
            process.pending = _as_planned(commit, planned(self.model, values)), commit

    def remove(self, process: Process, values: dict[str, int]) -> None:
        """The source no longer has these records; plan their removal."""
        if process.round is None or process.pending is not None:
            return
        gone = [key for key, known in self.model.snapshots.items() if key in values and not known.removed]
        commit = self.world.removal(process, gone)
        if commit is None or process.place.generation != self.model.generation:
            return
        for key in gone:
            process.round.pop(key, None)
        process.pending = _as_planned(commit, removing(self.model, gone)), commit

    def finish(self, process: Process) -> None:
        """Commit the token, the last commit of a round."""
        if process.round is None or process.pending is not None:
            return
        place, token = process.place, f"t{next(self.world.numbers)}"
        commit = Commit(place.generation, place.sequence, marks={DELTA_TOKEN: token})
        returned = process.round
        if self._send(process, Planned(place.generation, place.sequence, (), {}, "", token), commit):
            published = {key: known.value for key, known in self.model.snapshots.items() if not known.removed}
            assert returned.items() <= published.items(), "the token moved before what its round returned"
        process.round = None

    def send(self, process: Process) -> None:
        """Commit what is planned."""
        if process.pending is not None:
            sent, process.pending = process.pending, None
            process.sent.append(sent)
            self._send(process, *sent)

    def again(self, process: Process, back: int) -> None:
        """Send a commit again: its reply was lost, or an earlier attempt arrives after later commits."""
        if back < len(process.sent):
            self._send(process, *process.sent[-1 - back])

    # Failures.

    def crash(self, which: int) -> None:
        """Replace the process; its commits may still arrive."""
        process = self.processes[which]
        self.gone += [(process, sent) for sent in filter(None, (process.pending, *process.sent[-2:]))]
        self.processes[which] = self.world.process()

    def late(self, back: int) -> None:
        """A commit of a process that has ended arrives."""
        if back < len(self.gone):
            process, sent = self.gone[-1 - back]
            self._send(process, *sent)

    def expire(self) -> None:
        self.world.delete(KEYS.lease)
        self.model.lease = None

    def dump(self) -> None:
        self.dumped = self.world.dump(), self.model.copy()

    def roll_back(self, back: int) -> None:
        """Restore the dump, with or without the keys of the other slot."""
        if self.dumped is not None:
            dump, model = self.dumped
            self.world.restore(dump, [*ALL, *([NOTES] if back else [])])
            self.model, self.went_back = model.copy(), True

    def lose(self, part: str) -> None:
        every = {"everything": [*ALL, NOTES, KEYS.lease], "feed": [*ALL, KEYS.lease]}
        self.world.delete(*every.get(part, [getattr(KEYS, part, "")]))
        if part in every:
            self.model.lease = None
        if part in every or part == "state":
            self.model.generation = ""
        if part in every or part == "snapshots":
            self.model.snapshots = {}
        if part in every or part == "events":
            self.model.stream = []

    def trim(self, most: int) -> None:
        self.world.run(self.world.client.xtrim(KEYS.events, maxlen=most, approximate=False))
        self.model.stream = self.model.stream[-most:] if most else []

    def order(self) -> None:
        """An operator requests a reset of the feed."""
        self.world.run(request_round(self.world.client, KEYS, RoundRequest.ANEW))

    def convert(self) -> None:
        """From now on all processes read the second form of snapshots, or one comes that does not."""
        self.world.converts = not self.world.converts

    # Invariants.

    @invariant()
    def the_store_is_what_the_model_says(self) -> None:
        model = self.model
        state, snapshots, events = self.world.stored()
        assert [_told(event) for event in events] == model.stream
        if model.generation:
            assert (state.generation, state.sequence, state.delta_token) == (
                model.generation,
                model.sequence,
                model.token,
            )
            known = {
                key: Known(one.revision, 0 if one.removed else json.loads(one.raw)["n"], one.removed)
                for key, one in snapshots.items()
            }
            assert known == model.snapshots

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        numbers = [event.sequence for event in self.model.stream]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True

    def _check_ids(self, commit: Commit) -> None:
        """Each change has one id and each id stands for one change, even after a loss."""
        for event in map(json.loads, commit.events):
            told = _told(event)
            change = (commit.generation, told.key, told.kind, told.revision, told.value)
            assert self.ids.setdefault(change, event["id"]) == event["id"]
            assert self.meaning.setdefault(event["id"], change) == change

    def _send(self, process: Process, wanted: Planned, commit: Commit) -> bool:
        """Send the commit, check its outcome against the model, and return whether it was written now."""
        expected = self.model.expected(process.nonce, wanted)
        if expected == "OK" and not self.world.whole():
            expected = "STALE"
        try:
            self.world.run(process.store.commit(commit))
        except Fenced:
            found = "FENCED"
        except Stale:
            found = "STALE"
        else:
            found = "OK"
        assert found == expected.replace("ALREADY", "OK"), (found, expected)
        if expected == "OK":
            self.model.write(wanted)
            self._check_ids(commit)
        elif expected != "ALREADY":
            process.round = process.pending = None
        return expected == "OK"


def _as_planned(commit: Commit, wanted: tuple[list[Published], dict[str, Known]]) -> Planned:
    events, snapshots = wanted
    return Planned(commit.generation, commit.sequence, tuple(events), snapshots, commit.digest)


def _told(event: dict[str, Any]) -> Published:
    content = event["data"]
    record = content.get("record")
    kind = event["type"].split(".")[-2]
    value = record["n"] if record is not None else None
    return Published(int(event["sequence"]), event["subject"], kind, content["revision"], value)
