"""Laws of :class:`poller.client.Consumer`: what it hands out, in which order, and when it acknowledges that."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from cloudevents.core.v1.event import CloudEvent

from poller.client import Consumer, Gap, LeaseLost
from poller.client.connection import embedded_url, state_directory
from poller.client.feed_reader import clock
from poller.clock import Clock
from poller.config.settings import EmbeddedSettings
from poller.control.erasure import RecordMatch
from poller.control.orphans import forget
from poller.lifecycle import ended
from poller.redis.client import commands
from poller.store.erasure import FeedErasure
from poller.store.keys import FeedKeys, GroupKeys
from tests.client.published import FEED, STATE, STREAM, event_of, number_of, publish
from tests.control.subscribed import configured
from tests.harness.waiting import blocking_until, lasting, turns, until, within
from tests.programs import bare_environ
from tests.stores import looking

OTHER: Final = "acme/evidenceVariants"


def lease(seconds: float) -> timedelta:
    """A short lease that a busy machine can renew."""
    return timedelta(milliseconds=int(lasting(seconds).removesuffix("ms")))


@pytest.fixture
def store(server: str) -> Iterator[Any]:
    with looking(server) as client:
        yield client


def _is_acknowledged(store: Any, sequence: bytes) -> bool:
    return (store.hget(STATE, "sequence") or b"") == sequence


def pending(store: Any, group: str = "g", stream: str = STREAM) -> int:
    return int(store.xpending(stream, group)["pending"])


async def read(consumer: Consumer, most: int) -> list[int]:
    """The sequences of the next events."""
    return [number_of(await within(anext(consumer))) for _ in range(most)]


@asynccontextmanager
async def waiting(consumer: Consumer) -> AsyncIterator[asyncio.Task[CloudEvent]]:
    """A task that waits for the next event."""
    task = asyncio.create_task(anext(consumer), name="waits for an event")
    try:
        yield task
    finally:
        await ended(task)


def test_importing_it_loads_nothing_of_the_daemon() -> None:
    """Importing the client library loads redis and cloudevents, and no module of the daemon or of its libraries."""
    script = "import sys, poller.client; print(*sys.modules)"
    run, root = [sys.executable, "-c", script], Path(__file__).parents[2]
    said = subprocess.run(run, capture_output=True, text=True, check=True, env=bare_environ(), cwd=root)
    loaded = set(said.stdout.split())
    heavy = {"httpx", "aiohttp", "structlog", "apscheduler", "pydantic", "starlette", "uvicorn", "typer", "msgspec"}
    assert {name for name in loaded if name.partition(".")[0] in heavy} == set()
    assert {name for name in loaded if name.startswith("poller.") and not name.startswith("poller.client")} == set()
    assert "redis" in loaded


async def test_events_come_in_order_on_each_kind_of_store(any_store: str) -> None:
    """On each kind of store, the events of all feeds come in order, and all are acknowledged in the end."""
    streams = {FEED: STREAM, OTHER: f"poller:{{{OTHER}}}:events"}
    with looking(any_store) as store:
        for stream in streams.values():
            publish(store, 1, 2, 3, stream=stream)
        found: dict[str, list[int]] = {FEED: [], OTHER: []}
        async with Consumer(any_store, streams, "g", "a", block=timedelta(seconds=1)) as consumer:
            for more in (3, 1):
                for _ in range(2 * more):
                    event = await within(anext(consumer))
                    found[FEED if len(found[FEED]) < len(found[OTHER]) or not found[OTHER] else OTHER].append(
                        number_of(event)
                    )
                    await consumer.ack(event)
                for stream in streams.values():
                    if more == 3:
                        publish(store, 4, stream=stream)
        assert sorted(found[FEED] + found[OTHER]) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert [pending(store, stream=stream) for stream in streams.values()] == [0, 0]


async def test_an_event_is_acknowledged_after_the_body(server: str, store: Any) -> None:
    """While the body runs its event is pending, and those before it are acknowledged; so it is at the end."""
    publish(store, *range(1, 6))
    async with Consumer(server, FEED, "g", "a") as consumer:
        seen = 0
        async for event in consumer:
            assert isinstance(event, CloudEvent)
            seen += 1
            assert number_of(event) == seen
            before = f"{seen - 1 or ''}".encode()
            await until(partial(_is_acknowledged, store, before), "those before it acknowledged")
            assert store.xpending(STREAM, "g")["min"] is not None
            if seen == 5:
                break
    assert pending(store) == 1


async def test_what_raises_is_not_acknowledged(server: str, store: Any) -> None:
    """An event whose body raises comes again, first; those before it do not."""
    publish(store, 1, 2, 3)
    with pytest.raises(ZeroDivisionError):
        async with Consumer(server, FEED, "g", "a") as consumer:
            async for event in consumer:
                _ = 1 // (2 - number_of(event))
    async with Consumer(server, FEED, "g", "b") as consumer:
        assert await read(consumer, 2) == [2, 3]


async def test_break_does_not_acknowledge(server: str, store: Any) -> None:
    """An event whose body is left by ``break`` comes again, unless ``ack`` was called."""
    publish(store, 1, 2)
    for acknowledges, following in ((False, 1), (True, 2)):
        async with Consumer(server, FEED, "g", "a") as consumer:
            async for event in consumer:
                assert number_of(event) == 1
                if acknowledges:
                    await consumer.ack(event)
                break
        async with Consumer(server, FEED, "g", "a") as consumer:
            assert await read(consumer, 1) == [following]


async def test_explicit_acknowledgement_includes_what_came_before(server: str, store: Any) -> None:
    """With ``ack=False`` nothing is acknowledged but by ``ack``, which includes the earlier events of the feed."""
    publish(store, *range(1, 8))
    async with Consumer(server, FEED, "g", "a", ack=False, most_unacknowledged=5) as consumer:
        events = [await within(anext(consumer)) for _ in range(5)]
        async with waiting(consumer) as sixth:
            assert pending(store) == 5
            assert not sixth.done()  # as many as permitted are not acknowledged
            await consumer.ack(events[2])
            assert pending(store) in {2, 4}
            assert number_of(await within(sixth)) == 6
        await consumer.ack(events[1])  # it is acknowledged already
    async with Consumer(server, FEED, "g", "b") as consumer:
        assert await read(consumer, 4) == [4, 5, 6, 7]


async def test_what_others_left_comes_first_in_the_order_of_the_stream(server: str, store: Any) -> None:
    """Pending entries come before new ones, the oldest first, whoever had read them."""
    publish(store, *range(1, 7))
    store.xgroup_create(STREAM, "g", id="0")
    for name in ("b", "a", "b", "c"):
        store.xreadgroup("g", name, {STREAM: ">"}, count=1)
    async with Consumer(server, FEED, "g", "a", batch=3) as consumer:
        assert await read(consumer, 1) == [1]
        assert await read(consumer, 5) == [2, 3, 4, 5, 6]
    assert pending(store) == 1


@pytest.mark.parametrize(
    ("names", "said"), [("ba", "a reads; this member stands by"), ("aa", "an earlier a has the lease")]
)
async def test_one_member_reads_and_others_stand_by(
    server: str, store: Any, caplog: pytest.LogCaptureFixture, names: str, said: str
) -> None:
    """A second member gets nothing while the first one reads, and goes on where that has left."""
    caplog.set_level(logging.INFO)
    publish(store, 1, 2, 3)
    second, first = (Consumer(server, FEED, "g", name, lease=lease(0.5)) for name in names)
    async with second, first:
        assert await read(first, 2) == [1, 2]
        async with waiting(second) as other:
            began = clock()
            await until(lambda: clock() > began + lease(0.5).total_seconds() * 1.5, "more than a lease", seconds=60)
            assert not other.done()
            assert said in caplog.text
            assert await read(first, 1) == [3]
            assert "this member reads now" not in caplog.text
            await first.__aexit__()
            assert number_of(await within(other)) == 3
            assert caplog.text.count("this member reads now") == 1
            await first.__aenter__()


@pytest.mark.parametrize("acknowledges", [True, False])
async def test_a_member_that_was_blocked_past_its_lease_changes_nothing(
    server: str, store: Any, caplog: pytest.LogCaptureFixture, *, acknowledges: bool
) -> None:
    """A member whose body blocks the event loop past the lease acknowledges and hands out nothing that is another's."""
    caplog.set_level(logging.INFO)
    publish(store, *range(1, 5))
    script = (
        "import asyncio, sys, datetime\n"
        "from poller.client import Consumer\n"
        "async def main():\n"
        "    async with Consumer(sys.argv[1], sys.argv[2], 'g', 'b') as consumer:\n"
        "        async for event in consumer:\n"
        "            print(int(event.get_extension('sequence')), flush=True)\n"
        "            if event.get_extension('sequence').endswith('2'): sys.stdin.readline()\n"
        "asyncio.run(main())\n"
    )
    run = [sys.executable, "-c", script, server, FEED]
    root, pipe = Path(__file__).parents[2], subprocess.PIPE
    async with Consumer(server, FEED, "g", "a", lease=timedelta(milliseconds=500), ack=acknowledges) as consumer:
        first = await within(anext(consumer))
        assert number_of(first) == 1
        with subprocess.Popen(run, cwd=root, stdin=pipe, stdout=pipe, text=True) as other:  # noqa: ASYNC220 -- it is to block
            try:
                assert other.stdout is not None
                assert [other.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]  # this blocks the event loop
                blocking_until(lambda: store.hget(STATE, "sequence") == b"1", "the other member's acknowledgement")
                if acknowledges:
                    with pytest.raises(LeaseLost):
                        await consumer.ack(first)
                async with waiting(consumer) as following:
                    await until(lambda: "this member stands by" in caplog.text or None, "the standby")
                    assert not following.done()
                    assert store.hget(STATE, "sequence") == b"1"
            finally:
                other.kill()


async def test_the_lease_is_renewed_while_the_body_waits(server: str, store: Any) -> None:
    """A body that takes several leases keeps the feed, as long as it does not block the event loop."""
    publish(store, 1, 2)
    short = lease(0.5)
    async with Consumer(server, FEED, "g", "b", lease=short) as second, waiting(second) as other:
        await until(lambda: store.hget(STATE, "name") == b"b", "a lease")
        await within(other)
        async with Consumer(server, FEED, "g", "a", lease=short) as standby, waiting(standby) as third:
            began = clock()
            await until(lambda: clock() > began + 2 * short.total_seconds(), "two leases", seconds=60)
            assert not third.done()
            assert await read(second, 1) == [2]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_cancelled_at_any_point_nothing_is_lost(server: str, store: Any, *, exclusive: bool) -> None:
    """``anext`` cancelled at any step loses no event, and no order where that is promised."""
    publish(store, *range(1, 61))
    found: list[int] = []
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, batch=4) as consumer:
        for turns in count(1):
            task: asyncio.Task[CloudEvent] = asyncio.create_task(anext(consumer))
            for _ in range(turns % 40):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                found.append(number_of(await task))
                if len(set(found)) == 60:
                    await consumer.ack(task.result())
                    break
    assert found == list(range(1, 61)) if exclusive else sorted(set(found)) == list(range(1, 61))
    assert pending(store) == 0


async def test_a_cancellation_while_the_block_is_left_is_not_lost(server: str) -> None:
    """A task that is cancelled while a consumer ends its own task ends as cancelled, with the connections closed."""
    consumer = Consumer(server, FEED, "g", "a")
    await consumer.__aenter__()
    leaving = asyncio.create_task(consumer.__aexit__())
    await turns()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(leaving)
    with pytest.raises(RuntimeError, match="async with"):
        await anext(consumer)


async def test_a_consumer_closed_during_a_wait_says_so(server: str) -> None:
    """An iterator that waits while another task leaves the block ends with an error, and does not wait for ever."""
    consumer = Consumer(server, FEED, "g", "a", block=timedelta(milliseconds=200))
    await consumer.__aenter__()
    async with waiting(consumer) as event:
        await turns(3)
        await consumer.__aexit__()
        with pytest.raises(RuntimeError, match="async with"):
            await within(event)


async def test_a_gap_is_raised_once(server: str, store: Any) -> None:
    """Trimmed events are reported by an exception, before the event that follows them, and not again."""
    entries = publish(store, 1, 2, 3, 4)
    async with Consumer(server, FEED, "g", "a") as consumer:
        await consumer.ack(await within(anext(consumer)))
    store.xtrim(STREAM, minid=entries[3], approximate=False)
    for _ in range(2):
        async with Consumer(server, FEED, "g", "a") as consumer:
            if _ == 0:
                with pytest.raises(Gap, match="2 events after sequence 1 were trimmed") as raised:
                    await within(anext(consumer))
                gap = raised.value
                assert (gap.feed, gap.after, gap.before, gap.missing, gap.reason) == (FEED, 1, 4, 2, "trimmed")
            assert await read(consumer, 1) == [4]


async def test_gaps_are_reported_to_a_callback(server: str, store: Any) -> None:
    """Events that were deleted before they were read, or while they were pending, are reported in order."""
    entries = publish(store, *range(1, 10))
    store.xdel(STREAM, entries[4])
    gaps: list[tuple[int | None, int | None, str]] = []

    async def note(gap: Gap) -> None:
        gaps.append((gap.after, gap.before, gap.reason))

    async with Consumer(server, FEED, "g", "a") as consumer:
        assert await read(consumer, 2) == [1, 2]
        await until(lambda: store.hget(STATE, "sequence") == b"1", "the acknowledgement of the first")
    store.xdel(STREAM, entries[2], entries[3], entries[7], entries[8])
    async with Consumer(server, FEED, "g", "a", on_gap=note) as consumer:
        assert await read(consumer, 3) == [2, 6, 7]
        async with waiting(consumer):
            await until(lambda: len(gaps) == 2 or None, "the gap at the end")
        publish(store, 10)
        assert await read(consumer, 1) == [10]
    assert gaps == [(2, 6, "deleted"), (7, 10, "deleted")]
    assert pending(store) == 1


async def erase(server: str, record: str) -> None:
    """Erase a record of the feed as the daemon's commands do."""
    async with commands(server) as client:
        keys, match = FeedKeys.of("poller", FEED), RecordMatch(record, "id")
        erasure = FeedErasure(client, keys, clock=Clock())
        begun = await erasure.place_tombstone(match.keys, match.delivery_key)
        assert sum([part.events async for part in erasure.erase_events(begun.place, match.sequence)])


def of_three_records(store: Any) -> list[str]:
    """Publish six events of K1, K2, K0, K1, K2, K0, as a feed that goes on with the number 7."""
    store.hset(FeedKeys.of("poller", FEED).state, mapping={"generation": "g", "sequence": "6"})
    return publish(store, *range(1, 7), subjects=3)


def told(gap: Gap) -> tuple[int | None, int | None, int, int, str]:
    return gap.after, gap.before, gap.missing, gap.erased, gap.reason


@pytest.mark.parametrize("exclusive", [True, False])
async def test_an_erasure_stops_no_consumer(
    server: str, store: Any, caplog: pytest.LogCaptureFixture, *, exclusive: bool
) -> None:
    """Neither a live consumer nor a new group is stopped by erased events, or by the numbers of the erasures."""
    caplog.set_level(logging.INFO, "poller.client")
    of_three_records(store)
    gaps: list[Gap] = []
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, batch=1) as live:
        assert await read(live, 1) == [1]
        for record in ("K1", "K2"):
            await erase(server, record)
        assert await read(live, 2) == [3, 6]
        publish(store, 9)
        assert await read(live, 1) == [9]
    async with Consumer(server, FEED, "new", "a", exclusive=exclusive) as consumer:
        assert await read(consumer, 3) == [3, 6, 9]
    async with Consumer(server, FEED, "told", "a", exclusive=exclusive, on_gap=gaps.append) as consumer:
        assert await read(consumer, 3) == [3, 6, 9]
    assert [told(gap) for gap in gaps] == ([(3, 6, 2, 2, "erased"), (6, 9, 2, 2, "erased")] if exclusive else [])
    said = [line for line in caplog.records if "because records were erased" in line.getMessage()]
    assert len(said) == (7 if exclusive else 0)
    assert {line.levelno for line in said} <= {logging.INFO}


async def test_a_gap_tells_how_much_of_it_was_erased(server: str, store: Any) -> None:
    """A gap of which only a part was erased is raised, and says how many numbers that was."""
    entries = of_three_records(store)
    await erase(server, "K1")
    store.xdel(STREAM, entries[4])
    async with Consumer(server, FEED, "g", "a") as consumer:
        assert await read(consumer, 2) == [2, 3]
        said = (
            "2 sequence numbers after sequence 3 are missing: 1 because records were erased, and 1 events were deleted"
        )
        with pytest.raises(Gap, match=said) as raised:
            await read(consumer, 1)
        assert told(raised.value) == (3, 6, 2, 1, "deleted")
        assert await read(consumer, 1) == [6]


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize(
    ("gone", "noted", "erased"),
    [((4,), (4,), 1), ((4, 5), (4,), 1), ((4,), (), 0), ((6,), (6, 7), 1), ((6,), (7,), 0), ((1, 2, 3), (1, 2, 3), 3)],
)
async def test_pending_entries_without_content_count_as_erased_only_if_that_is_certain(
    server: str, store: Any, gone: Sequence[int], noted: Sequence[int], erased: int, *, exclusive: bool
) -> None:
    """What the group has pending and was erased is no loss; what else was deleted is one, also at the stream's end."""
    entries = of_three_records(store)
    store.xgroup_create(STREAM, "g", "0")
    store.xreadgroup("g", "a", {STREAM: ">"})
    store.xdel(STREAM, *(entries[number - 1] for number in gone))
    if noted:
        store.zadd(FeedKeys.of("poller", FEED).erased_events, {f"{number}": number for number in noted})
    gaps: list[Gap] = []
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, on_gap=gaps.append) as consumer:
        assert len(await read(consumer, 6 - len(gone))) == 6 - len(gone)
        async with waiting(consumer):
            await until(lambda: pending(store) == 0 and gaps, "every acknowledgement and the gap")
    assert sum(gap.missing for gap in gaps) == len(gone)
    assert sum(gap.erased for gap in gaps) == erased
    assert {gap.reason for gap in gaps} <= ({"erased"} if erased == len(gone) else {"deleted", "trimmed"})


async def test_a_repeat_is_dropped(server: str, store: Any) -> None:
    """What is published once more with the same id, as after a failover, is not handed out again, but acknowledged."""
    for sequence, revision, event_id in ((1, 1, "a"), (2, 2, "b"), (2, 2, "b"), (2, 2, "other"), (3, 1, "new")):
        store.xadd(STREAM, {"data": event_of(sequence, revision=revision, event_id=event_id)})
    async with Consumer(server, FEED, "g", "a") as consumer:
        found = [(await within(anext(consumer))).get_id() for _ in range(4)]
        assert found == ["a", "b", "other", "new"]  # a lower revision of another generation is no repeat
    assert pending(store) == 1


async def test_an_entry_that_holds_no_event_is_passed_over(
    server: str, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What another program has written is logged without its content, acknowledged, and followed by the next event."""
    for content in (b"secret words", b'{"specversion":"1.0"}'):
        store.xadd(STREAM, {"data": content})
    publish(store, 1)
    for exclusive in (True, False):
        async with Consumer(server, FEED, f"g{exclusive}", "a", exclusive=exclusive) as consumer:
            event = await within(anext(consumer))
            assert number_of(event) == 1
            await consumer.ack(event)
        assert pending(store, f"g{exclusive}") == 0
    assert caplog.text.count("holds no CloudEvent") == 4
    assert "secret" not in caplog.text


async def test_members_share_a_feed(server: str, store: Any) -> None:
    """Without ``exclusive`` members get different entries, first what they left unacknowledged themselves."""
    publish(store, *range(1, 9))
    first, second = (Consumer(server, FEED, "g", name, exclusive=False, batch=4) for name in "ab")
    async with first, second:
        assert await read(first, 2) == [1, 2]
        assert await read(second, 3) == [5, 6, 7]
    async with first, second:
        assert await read(second, 2) == [7, 8]
        assert await read(first, 3) == [2, 3, 4]


async def test_a_shared_feed_claims_what_a_dead_member_left(server: str, store: Any) -> None:
    """Without ``exclusive`` entries of a member that is gone come to the others after ``claim_after``."""
    entries = publish(store, 1, 2, 3)
    store.xgroup_create(STREAM, "g", id="0")
    store.xreadgroup("g", "dead", {STREAM: ">"}, count=2)
    store.xdel(STREAM, entries[0])
    gaps: list[Gap] = []
    short = timedelta(milliseconds=300)
    async with Consumer(server, FEED, "g", "a", exclusive=False, claim_after=short, on_gap=gaps.append) as consumer:
        assert sorted(await read(consumer, 2)) == [2, 3]
        async with waiting(consumer):
            await until(lambda: pending(store) == 0, "every acknowledgement")
    assert [(gap.missing, gap.after, gap.reason) for gap in gaps] == [(1, None, "deleted")]


async def test_a_slow_body_keeps_its_entries_from_being_claimed(server: str, store: Any) -> None:
    """Without ``exclusive``, what a live member works on for longer than ``claim_after`` is not given to others."""
    publish(store, 1, 2)
    short = lease(0.5)
    async with (
        Consumer(server, FEED, "g", "a", exclusive=False, claim_after=short) as first,
        Consumer(server, FEED, "g", "b", exclusive=False, claim_after=short) as second,
    ):
        assert await read(first, 1) == [1]  # the second is in its batch
        async with waiting(second) as other:
            began = clock()
            await until(lambda: clock() > began + 2 * short.total_seconds(), "twice that", seconds=60)
            assert not other.done()
            assert await read(first, 1) == [2]


async def test_forgetting_deletes_everything_of_the_group(server: str, store: Any) -> None:
    """``forget`` destroys the group and deletes its keys, unless another member reads."""
    publish(store, 1)
    async with Consumer(server, FEED, "g", "a") as consumer:
        assert await read(consumer, 1) == [1]
        async with Consumer(server, FEED, "g", "b") as other:
            with pytest.raises(LeaseLost, match="another member of g reads it"):
                await other.forget()
        await consumer.forget()
        assert store.keys() == [STREAM.encode()]
        assert store.xinfo_groups(STREAM) == []


async def test_arguments_that_cannot_be_used_are_refused() -> None:
    """A refusal names the argument and what is expected, and holds no password."""
    url = "redis://127.0.0.1"
    bad: list[tuple[dict[str, Any], str]] = [
        ({"group": "sub:x"}, "group"),
        ({"group": ""}, "group"),
        ({"name": ""}, "name"),
        ({"feeds": []}, "feeds"),
        ({"feeds": "acme"}, "feeds"),
        ({"feeds": ["a/b", "{a}/b"]}, "feeds"),
        ({"bootstrap": True, "exclusive": False}, "bootstrap"),
        ({"lease": timedelta(milliseconds=10)}, "lease"),
        ({"lease": timedelta(hours=1)}, "lease"),
        ({"claim_after": timedelta(0)}, "claim_after"),
        ({"batch": 0}, "batch"),
        ({"url": "http://user:hidden@x"}, "url"),
        ({"url": "redis://user:hidden@x:port"}, "url"),
        ({"url": "redis+sentinel://user:hidden@x"}, "service"),
        ({"url": "redis+cluster://user:hidden@x:1:2"}, "url"),
    ]
    for changed, word in bad:
        given: dict[str, Any] = {"url": url, "feeds": FEED, "group": "g", "name": "a"} | changed
        with pytest.raises(ValueError, match=word) as refused:
            Consumer(**given)
        assert "hidden" not in str(refused.value)
    closed = Consumer(url, FEED, "g", "a")
    for use in (lambda: anext(closed), closed.forget):
        with pytest.raises(RuntimeError, match="async with"):
            await use()


def test_the_embedded_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket is found in the data directory, in ``private`` there, and by default where the daemon has it."""
    assert embedded_url(tmp_path) == f"unix://{tmp_path}/valkey.sock"
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "valkey.sock").touch()
    assert embedded_url(tmp_path) == f"unix://{tmp_path}/private/valkey.sock"
    monkeypatch.setenv("POLLER_DATA_DIR", str(tmp_path / "x y"))
    assert embedded_url() == f"unix://{tmp_path}/x%20y/valkey.sock"
    monkeypatch.delenv("POLLER_DATA_DIR")
    for home in (str(tmp_path), ""):
        monkeypatch.setenv("XDG_STATE_HOME", home)
        assert state_directory() == EmbeddedSettings().data_dir


async def test_logs_hold_no_content(server: str, store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of a record is logged, at any level."""
    caplog.set_level(logging.DEBUG)
    entries = publish(store, 1, 2, 3)
    store.xdel(STREAM, entries[1])
    gaps: list[Gap] = []
    async with Consumer(server, FEED, "g", "a", on_gap=gaps.append) as consumer:
        assert await read(consumer, 2) == [1, 3]
    said = "\n".join(line.getMessage() for line in caplog.records if line.name.startswith("poller"))
    assert "1 events after sequence 1 were deleted" in said
    assert "K0" not in said


async def test_a_feed_that_is_forgotten_leaves_nothing_of_its_groups(server: str, store: Any, tmp_path: Path) -> None:
    """``poller feeds forget`` deletes what the library keeps of a group at the feed."""
    publish(store, 1, stream="poller:{acme/old}:events")
    async with Consumer(server, "acme/old", "g:1", "a") as consumer, commands(server) as client:
        await consumer.ack(await within(anext(consumer)))
        kept = GroupKeys.of("poller", "acme/old", "g:1")
        store.hset(kept.revisions, "x", "1")
        assert store.exists(kept.state) == 1
        await forget(client, configured(tmp_path), "acme/old", clock=Clock())
        assert store.keys("*acme/old*") == []
