"""A feed of which the store has lost some or all data: on the simulated store, Valkey and Redis."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from poller.changes.plan import Commit
from poller.clock import moment_of
from poller.errors import Stale
from poller.store.commands import RoundRequest, request_round
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import DELTA_TOKEN, READ_AT, FeedState, Loss
from poller.store.keys import FEED_KEYS, remembered_key
from poller.store.lease import HeldElsewhere
from poller.store.recovery import NOTE_EVERY, FeedMemory, high_water_marks
from poller.store.snapshots import SAMPLES
from poller.store.stream import EntryId
from tests.harness.clock import StubClock
from tests.harness.waiting import turns
from tests.store.records import unavailability
from tests.store.test_feed import KEYS, begun, events, opened_by, write
from tests.stores import flushed

NOTES = remembered_key("poller")
FEED = "acme/employmentUnavailabilities"


class Process:
    """A process that polls the feed: its store, its memory and its clock."""

    def __init__(self, client: Redis, nonce: str, *, now_ms: int = 1_000) -> None:
        self.seconds = 0.0
        clock = StubClock(
            now=lambda: moment_of(now_ms),
            monotonic=lambda: self.seconds,
            draws=(f"{nonce}{number:x}" for number in range(16)),
        )
        self.store: FeedStore = opened_by(client, clock)(nonce)
        self.store.memory = FeedMemory(client, NOTES, FEED, clock=clock)

    async def round(self, *numbers: int, reason: str = "holiday") -> Loss | None:
        """Poll these records; returns the loss that was found."""
        state = await begun(self.store)
        await write(self.store, [unavailability(number, reason=reason) for number in numbers], state)
        await self.store.memory.save()
        return state.loss


async def sequences(client: Redis) -> list[int]:
    return [int(str(event["sequence"])) for event in await events(client)]


async def test_a_first_start_is_no_loss(store_client: Redis) -> None:
    """Law: a first start, an unchanged store and a change of owner are no losses."""
    one = Process(store_client, "a")
    assert [await one.round(1, 2), await one.round(3)] == [None, None]
    await one.store.release()
    assert await Process(store_client, "b").round(4) is None


async def test_all_of_it_gone_while_it_runs(store_client: Redis) -> None:
    """Law: FLUSHALL is noticed once, the feed is reset, and its sequence continues."""
    one = Process(store_client, "a")
    await one.round(1, 2, 3)
    await flushed(store_client)
    loss = await one.round(1, 2, 3)
    assert loss is not None
    assert (loss.kind, loss.text, loss.former, loss.former_sequence) == ("lost", "all that was kept of it", "a0", 3)
    assert await sequences(store_client) == [4, 5, 6]
    assert [event["data"]["revision"] for event in await events(store_client)] == [1, 1, 1]  # type: ignore[index] # as it is
    assert await one.round(4) is None
    state = await begun(one.store)
    assert (state.formers, state.lost) == (("a0",), "all that was kept of it")
    assert state.anew_at is not None
    assert state.lost_at is not None


@pytest.mark.parametrize("published", [False, True])
async def test_what_an_operator_has_begin_again_repeats_only_what_was_published(
    store_client: Redis, published: bool
) -> None:
    """Law: a feed of which nothing was published is no reset one: subscriptions would not get its first events."""
    one = Process(store_client, "a")
    await one.round(*[1] * published)
    assert await request_round(store_client, KEYS, RoundRequest.ANEW)
    assert await one.round(1, 2) is None
    state = await begun(one.store)
    assert (state.formers, state.anew_at is not None) == (("a0",), published)
    assert await one.round(3) is None


async def test_one_shard_gone_while_nobody_ran(store_client: Redis) -> None:
    """Law: the loss of a shard while no process ran is found by the note in another slot."""
    await Process(store_client, "a").round(1, 2)
    await gone(store_client, *every_key())
    loss = await Process(store_client, "b").round(1)
    assert loss is not None
    assert (loss.kind, loss.former, loss.former_sequence) == ("lost", "a0", 2)
    assert await sequences(store_client) == [3]


@pytest.mark.parametrize("part", ["state", "snapshots", "dictionaries", "qualifications"])
async def test_a_part_of_what_is_known_is_all_of_it(store_client: Redis, part: str) -> None:
    """Law: if one part is lost, the other parts are dropped; the stream stays and its sequence has no gap."""
    one = Process(store_client, "a")
    await one.round(*range(SAMPLES))
    state = await begun(one.store)
    await store_client.zadd(KEYS.qualifications, {"q": 1})
    await store_client.hset(KEYS.state, "kept", f"{SAMPLES} 1 1")
    await gone(store_client, getattr(KEYS, part))
    loss = await one.round(*range(SAMPLES))
    assert loss is not None
    assert (loss.kind, loss.former) == ("lost", state.generation)
    assert await sequences(store_client) == list(range(1, 2 * SAMPLES + 1))
    ids = [event["id"] for event in await events(store_client)]
    assert len(set(ids)) == SAMPLES  # the tests' frame has one generation for all
    assert await one.round(*range(SAMPLES)) is None


async def test_the_stream_gone_is_told_and_costs_nothing_else(store_client: Redis) -> None:
    """Law: a lost stream is reported and nothing is published again, even if a group re-created the stream."""
    for made_again in (False, True):
        await flushed(store_client)
        one = Process(store_client, "a")
        await one.round(1, 2)
        await gone(store_client, KEYS.events)
        if made_again:
            await store_client.xgroup_create(KEYS.events, "sub:x", id="5-0", mkstream=True)
        loss = await one.round(1, 2, 3)
        assert loss is not None
        assert (loss.kind, loss.text) == ("lost", "events that its stream held")
        assert await sequences(store_client) == [3]
        assert await one.round(4) is None


async def test_the_stream_gone_in_the_middle_of_a_round_is_told_by_the_next(store_client: Redis) -> None:
    """Law: if the stream is lost during a round, the commit is written and the next round reports it."""
    one = Process(store_client, "a")
    await one.round(1)
    state = await begun(one.store)
    await gone(store_client, KEYS.events)
    await write(one.store, [unavailability(2)], state)
    loss = await one.round()
    assert loss is not None
    assert loss.text == "events that its stream held"
    assert await one.round() is None


@pytest.mark.parametrize("found", ["by a round", "in a round", "after its group was made again"])
async def test_after_a_lost_stream_ids_are_later_though_the_clock_was_set_back(store_client: Redis, found: str) -> None:
    """Law: what is published after a loss of the stream alone reaches readers that are past what was in it."""
    one, ahead = Process(store_client, "a"), f"{2**42}-7"  # in the year 2109
    await one.round(1)
    await store_client.xadd(KEYS.events, {"data": "{}"}, id=ahead)
    await store_client.hset(KEYS.state, "entry", ahead)
    state = await begun(one.store)
    await gone(store_client, KEYS.events)
    if found == "in a round":
        await write(one.store, [unavailability(2), unavailability(3)], state)
    if found == "after its group was made again":
        await store_client.xgroup_create(KEYS.events, "sub:x", id=ahead, mkstream=True)
    loss = await one.round(2, 3)
    assert loss is not None
    assert loss.text == "events that its stream held"
    if found != "after its group was made again":
        await store_client.xgroup_create(KEYS.events, "sub:x", id=ahead)
    read: Any = await store_client.xreadgroup("sub:x", "c", {KEYS.events: ">"})
    (some,) = dict(read).values()
    assert [json.loads(fields[b"data"])["sequence"][-1] for _, fields in some] == ["2", "3"]
    assert [entry for entry, _ in some] == [f"{2**42}-{number}".encode() for number in (8, 9)]
    assert await one.round(4) is None
    assert await sequences(store_client) == [2, 3, 4]


_AHEAD = 2**42  # milliseconds: the year 2109


@pytest.mark.parametrize("by", ["the process that wrote them", "another process"])
@pytest.mark.parametrize("lost", ["everything", "the last events", "the state"])
async def test_after_any_loss_ids_are_later_though_the_clock_was_set_back(
    store_client: Redis, lost: str, by: str
) -> None:
    """Law: what comes after a loss has later ids than what any reader may have got, if a process knows of that."""
    one = Process(store_client, "a", now_ms=_AHEAD)
    await one.round(1)
    dump = await dumped(store_client)
    one.seconds += NOTE_EVERY
    await one.round(2, 3)  # while the server's clock was ahead, as far as the process knows
    if by == "another process":
        noted = await high_water_marks(store_client, NOTES)
        await one.store.release()
        one = Process(store_client, "b")
        one.store.memory.overheard(noted[FEED])
    if lost == "the state":
        await gone(store_client, KEYS.state)
    else:
        await flushed(store_client)
        if lost == "the last events":
            await restored(store_client, dump)
    assert await one.round(2, 3, 4) is not None
    ids = [EntryId.parse(entry) for entry, _ in await entries_of(store_client)]
    assert len(ids) == {"everything": 3, "the last events": 4, "the state": 6}[lost]
    assert ids[-3] > EntryId(_AHEAD)
    assert ids == sorted(ids)
    assert await one.round(5) is None
    assert len(await entries_of(store_client)) == len(ids) + 1


@pytest.mark.parametrize("lost", ["everything", "the last events"])
async def test_after_two_losses_ids_are_later_than_after_the_first(store_client: Redis, lost: str) -> None:
    """Law: what comes after a second loss has later ids, too, though another process found the first one."""
    one, two = Process(store_client, "a", now_ms=_AHEAD), Process(store_client, "b", now_ms=_AHEAD)
    await one.round(1)
    dump = await dumped(store_client)
    one.seconds += NOTE_EVERY
    await one.round(2)
    two.store.memory.overheard((await high_water_marks(store_client, NOTES))[FEED])  # so both know the same
    await one.store.release()
    published = list[bytes]()
    for process in (one, two):
        await flushed(store_client)
        if lost == "the last events":
            await restored(store_client, dump)
            await store_client.delete(KEYS.lease)
        assert await process.round(2, 3, 4) is not None
        published += [entry for entry, _ in (await entries_of(store_client))[-3:]]
    ids = [EntryId.parse(entry) for entry in published]
    assert ids == sorted(set(ids))


async def test_ids_are_not_raised_without_a_loss(store_client: Redis) -> None:
    """Law: as long as nothing is lost, and in the data of another installation, entries have the server's time."""
    other = Process(store_client, "e")
    await other.round(1)
    await other.store.release()
    foreign = await dumped(store_client)
    await flushed(store_client)
    one = Process(store_client, "a", now_ms=_AHEAD)
    assert [await one.round(1), await one.round(2)] == [None, None]
    await flushed(store_client)
    await restored(store_client, foreign)
    assert await one.round(2) is not None
    assert all(EntryId.parse(entry).ms < _AHEAD for entry, _ in await entries_of(store_client))


async def entries_of(client: Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
    return cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(KEYS.events))


async def test_a_stream_that_was_trimmed_is_not_lost(store_client: Redis) -> None:
    """Law: a stream that was trimmed to nothing is no loss."""
    one = Process(store_client, "a")
    await one.round(1, 2)
    await store_client.xtrim(KEYS.events, maxlen=0, approximate=False)
    assert await one.round(3) is None


@pytest.mark.parametrize("part", ["snapshots", "dictionaries"])
async def test_a_part_gone_in_the_middle_of_a_round_stops_it(store_client: Redis, part: str) -> None:
    """Law: a loss during a round stops it, and the next round resets the feed."""
    one = Process(store_client, "a")
    await one.round(*range(SAMPLES))
    state = await begun(one.store)
    before = await sequences(store_client)
    await gone(store_client, getattr(KEYS, part))
    one.store._codec = None  # as in a process that has not read the dictionaries yet
    with pytest.raises(Stale):
        await write(one.store, [unavailability(SAMPLES)], state)
    assert await sequences(store_client) == before
    loss = await one.round(*range(SAMPLES))
    assert loss is not None
    assert loss.kind == "lost"


async def test_an_older_state_of_the_store_is_noticed(store_client: Redis) -> None:
    """Law: a restored backup is reported once as rolled back, by a process that knew the later state."""
    one, two = Process(store_client, "a"), Process(store_client, "b")
    await one.round(1, 2)
    dump = await dumped(store_client)
    await one.round(3)
    await one.store.release()
    await two.round(4)
    await two.store.release()
    await restored(store_client, dump)
    loss = await two.round(3, 4)
    assert loss is not None
    assert (loss.kind, loss.sequence, loss.former_sequence) == ("rolled back", 2, 4)
    assert await sequences(store_client) == [1, 2, 3, 4]
    await two.store.release()
    await restored(store_client, dump)  # a second time, and the other process finds it first
    assert await one.round(3) is not None


async def test_of_two_processes_one_tells(store_client: Redis) -> None:
    """Law: a loss that one process has reported is not reported by the next owner."""
    one, two = Process(store_client, "a"), Process(store_client, "b")
    for process in (one, two):
        await process.round(1, 2)
        await process.store.release()
    await flushed(store_client)
    assert await one.round(1) is not None
    await one.store.release()
    assert await two.round(2) is None


async def test_a_loss_whose_answer_was_lost_is_told_the_next_time(store_client: Redis) -> None:
    """Law: a reset whose reply was lost is reported by the next round."""
    one = Process(store_client, "a")
    await one.round(1)
    await flushed(store_client)
    names, arguments = one.store._beginning()
    await FeedScripts(store_client).begin(names, arguments)
    state = await begun(one.store)
    assert state.loss is not None
    assert (state.loss.kind, state.formers) == ("lost", ("a0",))


async def test_another_installation_is_not_wiped(store_client: Redis) -> None:
    """Law: another installation's data is kept and reported; the next round is a baseline without its token."""
    other = Process(store_client, "e")
    await other.round(1, 2)
    await other.store.commit(_marks(await begun(other.store)))
    await other.store.release()
    foreign = await dumped(store_client)
    await flushed(store_client)
    one = Process(store_client, "a")
    await one.round(1, 2, 3)
    await flushed(store_client)
    await restored(store_client, foreign)
    state = await begun(one.store)
    assert state.loss is not None
    assert (state.loss.kind, state.generation, state.sequence) == ("replaced", "e0", 2)
    assert (state.read_at, state.delta_token) == (None, None)
    assert state.anew_at is not None
    assert await one.round(1, 2, 3) is None
    assert await sequences(store_client) == [1, 2, 3]


async def test_what_was_overheard_while_it_was_asked_for_is_kept(store_client: Redis) -> None:
    """Law: a mark heard while the note is read is kept, even if the note is gone by then."""
    one = Process(store_client, "a")
    await one.round(1)
    heard = (await high_water_marks(store_client, NOTES))[FEED]
    await flushed(store_client)
    two = Process(store_client, "b")
    asking = asyncio.create_task(two.store.memory.recall())
    await turns()
    two.store.memory.overheard(heard)
    await asking
    assert two.store.memory.known == heard


async def test_a_feed_is_begun_anew_on_order(store_client: Redis) -> None:
    """Law: a reset that an operator requested is a loss for no process."""
    one, two = Process(store_client, "a"), Process(store_client, "b")
    await two.round(1)
    await two.store.release()
    await one.round(2)
    assert await request_round(store_client, KEYS, RoundRequest.ANEW)
    assert await one.round(1, 2) is None
    assert await sequences(store_client) == [1, 2, 3, 4]
    await one.store.release()
    assert await two.round(3) is None


async def test_a_process_that_ends_before_it_notes_an_order_leaves_no_loss(store_client: Redis) -> None:
    """Law: a reset that an operator requested is no loss for the next process, if the one that made it ended in it."""
    one, ending, two = (Process(store_client, name) for name in "abc")
    await one.round(1)
    await one.store.release()
    await two.store.memory.recall()
    assert await request_round(store_client, KEYS, RoundRequest.ANEW)
    await begun(ending.store)
    await ending.store.release()
    assert await noted(store_client) == ("a0", 1)
    assert await two.round(1, 2) is None
    assert two.store.memory.known is not None
    assert two.store.memory.known.losses == 1  # a later reset, though no loss: others must not keep the older mark
    assert await sequences(store_client) == [1, 2, 3]


async def test_it_is_noted_now_and_then(store_client: Redis) -> None:
    """Law: the note is written at once if more than the sequence changed, else after a while; it is never ahead."""
    one = Process(store_client, "a")
    await one.round(1)
    assert await noted(store_client) == ("a0", 1)
    await one.round(2)
    assert await noted(store_client) == ("a0", 1)
    one.seconds = NOTE_EVERY
    await one.round(3)
    assert await noted(store_client) == ("a0", 3)
    await one.round(4)
    assert await noted(store_client) == ("a0", 3)


async def test_a_note_that_cannot_be_read_is_none(store_client: Redis) -> None:
    """Law: an unreadable note is replaced."""
    await store_client.hset(NOTES, FEED, "[]")
    assert await Process(store_client, "a").round(1) is None
    assert await noted(store_client) == ("a0", 1)


async def test_a_feed_that_an_older_version_kept_goes_on(store_client: Redis) -> None:
    """Law: a state without counts is no loss, unless events were published and no snapshot is left."""
    one = Process(store_client, "a")
    await one.round(1, 2)
    await store_client.hdel(KEYS.state, "kept", "entry")
    assert await one.round(3) is None
    await store_client.hdel(KEYS.state, "kept", "entry")
    await gone(store_client, KEYS.snapshots)
    assert await one.round(1) is not None


async def test_a_state_without_its_sequence_is_lost(store_client: Redis) -> None:
    """Law: without its sequence the state is lost, and the feed goes on after its last event."""
    one = Process(store_client, "a")
    await one.round(1, 2)
    await store_client.hdel(KEYS.state, "sequence")
    loss = await one.round(1, 2, 3)
    assert loss is not None
    assert (loss.kind, loss.text) == ("lost", "its state")
    assert await sequences(store_client) == [1, 2, 3, 4, 5]


async def test_a_lease_without_an_end_gets_one(store_client: Redis) -> None:
    """Law: the lease of a process that is gone ends, also if its key lost its time to live."""
    one, other = Process(store_client, "a"), Process(store_client, "b")
    await one.round(1)
    await store_client.persist(KEYS.lease)
    held = await other.store.open_round()
    assert isinstance(held, HeldElsewhere)
    assert 0 < await store_client.pttl(KEYS.lease) <= 600_000


async def test_who_does_not_have_the_lease_finds_nothing(store_client: Redis) -> None:
    """Law: a process without the lease resets nothing."""
    one, two = Process(store_client, "a"), Process(store_client, "b")
    await one.round(1)
    await gone(store_client, KEYS.snapshots)
    assert isinstance(await two.store.open_round(), HeldElsewhere)
    assert await store_client.hget(KEYS.state, "generation") == b"a0"


def every_key() -> list[str]:
    return [str(getattr(KEYS, name)) for name in FEED_KEYS]


async def gone(client: Redis, *keys: str) -> None:
    await client.delete(*keys)


async def noted(client: Redis) -> tuple[str, int]:
    kept = json.loads(cast("bytes", await client.hget(NOTES, FEED)))
    return kept["generation"], kept["sequence"]


async def dumped(client: Redis) -> dict[str, bytes]:
    """The contents of a backup: the keys of the feed and the notes."""
    values = {key: await client.dump(key) for key in [*every_key(), NOTES]}
    return {key: value for key, value in values.items() if value is not None}


async def restored(client: Redis, dump: dict[str, bytes]) -> None:
    """Restore a backup, without leases."""
    await flushed(client)
    for key, value in dump.items():
        if key != KEYS.lease:
            await client.restore(key, 0, value)


def _marks(state: FeedState) -> Commit:
    return Commit(state.generation, state.sequence, marks={DELTA_TOKEN: "t", READ_AT: "2026-01-02T03:04:05.678Z"})
