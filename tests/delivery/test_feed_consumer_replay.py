"""Laws of redelivery and replay in a feed consumer, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from poller.changes.events import MAX_EVENT_BYTES
from poller.clock import Clock
from poller.delivery.cloudevent import Envelope
from poller.delivery.delivery_codec import Delivery, deliveries_of, delivery_again, encode, letter_of
from poller.delivery.delivery_tracker import DeliveryTracker
from poller.delivery.feed_consumer import MOST_PARKED, WINDOW, RepeatReader
from poller.delivery.projection import Projection, projection_of
from poller.delivery.sinks.base import Outcome
from poller.redis.client import commands
from poller.store import dead_letters as given_up
from poller.store import replay as replays
from poller.store.consumer_state import CONSUMER
from poller.store.dead_letters import Moved
from poller.store.keys import group_of
from poller.store.replay import ReplaySpan
from poller.store.stream import EntryId
from tests.delivery.events import entry as event_of
from tests.delivery.pairs import EVENTS, FAILED, KEYS, NAME, TAKEN, Scripted, delivering, publish, subscription
from tests.harness.waiting import until

SOON = timedelta(milliseconds=1)


@pytest.fixture
def url(store_url: str) -> str:
    return store_url


@pytest.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    async with commands(url) as one:
        yield one


async def redeliver(client: Redis, entry: str) -> Moved:
    (raw,) = await given_up.letters(client, [(KEYS, entry)])
    if raw is None:
        return Moved.ABSENT
    delivery = encode(delivery_again(letter_of(raw)))
    return await given_up.redeliver(client, KEYS, entry, letter=raw, delivery=delivery)


async def settled(client: Redis) -> bool:
    groups = await client.xinfo_groups(EVENTS)
    return not await client.hlen(KEYS.parked) and not groups[0]["pending"]


async def replay_of_all(client: Redis, *keys: str) -> None:
    """Publish and deliver events of these records, then start a replay of them, called r."""
    await publish(client, *keys)
    sink = Scripted()
    async with delivering(client, sink):
        await sink.until_count(len(keys))
        await until(lambda: settled(client), "all events to be settled")
    assert await replays.start_replay(client, KEYS, ReplaySpan("r", "0-0", f"{len(keys)}-0"))


async def letters(client: Redis, count: int) -> None:
    async def there() -> bool:
        return bool(await client.hlen(KEYS.letters) == count)

    await until(there, f"{count} dead letters")


async def test_a_letter_is_delivered_from_its_own_copy(client: Redis) -> None:
    """Law: a dead letter is redelivered from its own copy of the event, even if the stream no longer has it."""
    sink = Scripted(lambda _: failing())
    await publish(client, "K", "L")
    async with delivering(client, sink, schedule=SOON) as pair:
        await letters(client, 2)
        await client.xtrim(EVENTS, maxlen=0, approximate=False)
        tried = len(sink.sent)
        sink.answer = lambda _: taking()
        assert await redeliver(client, "1-0") is Moved.MOVED
        pair.reload()
        assert (await sink.until_count(tried + 1))[tried:] == [1]
        await until(lambda: settled(client), "the redelivered event to be settled")
        assert await client.hkeys(KEYS.letters) == [b"2-0"]
        assert await redeliver(client, "1-0") is Moved.ABSENT
        pair.reload()
        assert await redeliver(client, "2-0") is Moved.MOVED
        pair.reload()
        assert (await sink.until_count(tried + 2))[tried:] == [1, 2]


async def test_a_letter_that_fails_again_is_a_letter_again(client: Redis) -> None:
    """Law: a redelivered event gets a whole retry schedule; if it fails again, the dead letter has all attempts."""
    sink = Scripted(lambda _: failing())
    await publish(client, "K")
    async with delivering(client, sink, schedule=SOON) as pair:
        await letters(client, 1)
        await client.xtrim(EVENTS, maxlen=0, approximate=False)
        (before,) = await given_up.letters(client, [(KEYS, "1-0")])
        assert await redeliver(client, "1-0") is Moved.MOVED
        pair.reload()
        await letters(client, 1)
    (after,) = await given_up.letters(client, [(KEYS, "1-0")])
    assert before is not None
    assert after is not None
    assert sink.sent == [1] * 6
    assert len(letter_of(after).attempts) == 6
    assert bytes(letter_of(after).event) == bytes(letter_of(before).event)


class Recording(Scripted):
    """A sink that also records the bodies; it fails until told otherwise."""

    def __init__(self) -> None:
        super().__init__(lambda _: failing())
        self.bodies: list[bytes] = []

    async def post(self, body: bytes) -> Outcome:
        self.bodies.append(body)
        return await super().post(body)

    def records(self) -> list[Any]:
        return [json.loads(body)["data"].get("record") for body in self.bodies]


WHOLE = {"id": "K", "a": 1, "b": 2, "c": 3}
RAW = json.dumps(WHOLE).encode()


async def publish_whole(client: Redis) -> None:
    """Publish one event of :data:`WHOLE`, with the entry id 1-0."""
    await client.xadd(EVENTS, {"data": event_of(RAW)}, id="1-0")


async def test_a_letter_holds_what_was_sent(client: Redis) -> None:
    """Law: each attempt sends what ``fields`` leave, and so the dead letter has it, and nothing else of the event."""
    await publish_whole(client)
    sink = Recording()
    async with delivering(client, sink, schedule=SOON, projection=projection_of(drop=["/b"])):
        await letters(client, 1)
    assert sink.records() == [{"id": "K", "a": 1, "c": 3}] * 3
    (raw,) = await given_up.letters(client, [(KEYS, "1-0")])
    assert raw
    assert bytes(letter_of(raw).event) == sink.bodies[0]


@pytest.mark.parametrize(
    ("now_sent", "in_stream", "after"),
    [
        (None, WHOLE, {"id": "K", "a": 1, "c": 3}),
        (projection_of(drop=["/b", "/c"]), {"id": "K", "a": 1}, {"id": "K", "a": 1}),
        (projection_of(drop=["/a"]), {"id": "K", "b": 2, "c": 3}, {"id": "K", "c": 3}),
        (projection_of(pick=["/b"]), {"id": "K", "b": 2}, {"id": "K"}),
        (projection_of(thin=True), None, None),
    ],
)
@pytest.mark.parametrize("is_in_stream", [True, False])
async def test_a_letter_is_redelivered_by_the_present_settings(
    client: Redis, now_sent: Projection | None, in_stream: object, after: object, *, is_in_stream: bool
) -> None:
    """Law: after a change of ``fields``, a redelivery sends what they leave of the event while the stream has it.

    Else it sends what they leave of what the dead letter holds. What they drop now is never sent.
    """
    await publish_whole(client)
    async with delivering(client, Recording(), schedule=SOON, projection=projection_of(drop=["/b"])):
        await letters(client, 1)
    if not is_in_stream:
        await client.xtrim(EVENTS, maxlen=0, approximate=False)
    assert await redeliver(client, "1-0") is Moved.MOVED
    sink = Recording()
    sink.answer = lambda _: taking()
    async with delivering(client, sink, projection=now_sent):
        await sink.until_count(1)
        await until(lambda: settled(client), "the redelivered event to be settled")
    assert sink.records() == [in_stream if is_in_stream else after]


async def test_another_event_in_the_place_of_a_letters_is_not_sent(client: Redis) -> None:
    """Law: an entry is used for a letter only if it holds the same event; a store that lost writes may hold another."""
    await publish_whole(client)
    async with delivering(client, Recording(), schedule=SOON, projection=projection_of(drop=["/b"])):
        await letters(client, 1)
    groups = await client.xinfo_groups(EVENTS)
    await client.delete(EVENTS)
    await client.xadd(EVENTS, {"data": event_of(b'{"id":"L","a":7}', key="L")}, id="1-0")
    await client.xgroup_create(EVENTS, groups[0]["name"], id="1-0")
    assert await redeliver(client, "1-0") is Moved.MOVED
    sink = Recording()
    sink.answer = lambda _: taking()
    async with delivering(client, sink):
        await sink.until_count(1)
    assert sink.records() == [{"id": "K", "a": 1, "c": 3}]


async def test_what_waits_is_sent_by_the_present_settings(client: Redis) -> None:
    """Law: an event that waits is cut by the settings of that attempt; if they hide it, it is settled."""
    await publish_whole(client)
    hidden = event_of(RAW).replace(b'"revision":1', b'"changed":["/c"],"revision":2').replace(b'"K"', b'"L"')
    await client.xadd(EVENTS, {"data": hidden}, id="2-0")
    async with delivering(client, Recording(), projection=projection_of(drop=["/b"])):
        await until(lambda: parked(client, 2), "both to wait")
    await make_due(client)
    sink = Recording()
    sink.answer = lambda _: taking()
    async with delivering(client, sink, projection=projection_of(drop=["/c"])):
        await until(lambda: settled(client), "all to be settled")
    assert sink.records() == [{"id": "K", "a": 1, "b": 2}]
    assert await client.hlen(KEYS.letters) == 0


async def test_a_replay_sends_what_the_settings_leave(client: Redis) -> None:
    """Law: the events of a replay are cut like all others, and one of which nothing is sent is passed over."""
    await publish_whole(client)
    hidden = event_of(RAW).replace(b'"revision":1', b'"changed":["/b"],"revision":2')
    await client.xadd(EVENTS, {"data": hidden}, id="2-0")
    sink = Recording()
    sink.answer = lambda _: taking()
    projection = projection_of(drop=["/b"])
    async with delivering(client, sink, projection=projection):
        await sink.until_count(1)
        await until(lambda: settled(client), "all events to be settled")
    assert await replays.start_replay(client, KEYS, ReplaySpan("r", "0-0", "2-0"))
    async with delivering(client, sink, projection=projection):
        await sink.until_count(2)
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")
    assert sink.records() == [{"id": "K", "a": 1, "c": 3}] * 2


async def parked(client: Redis, count: int) -> bool:
    return bool(await client.hlen(KEYS.parked) == count)


async def make_due(client: Redis) -> None:
    """Make all that waits due now, and not in an hour."""
    for entry, waits in (await client.hgetall(KEYS.parked)).items():
        due = msgspec.json.decode(waits) | {"due": 1}
        await client.hset(KEYS.parked, entry, msgspec.json.encode(due))


async def test_what_waits_and_is_not_wanted_any_more_is_not_sent(client: Redis) -> None:
    """Law: changed filters apply to events that wait for their next attempt, and not to redeliveries."""

    def wanted(envelope: Envelope) -> bool:
        return envelope.partitionkey != "K"

    await one_letter(client)
    await publish(client, "K", "K", "L", start=2)
    async with delivering(client, Scripted(lambda _: failing())):

        async def parked() -> bool:
            return bool(await client.hlen(KEYS.parked) == 3)

        await until(parked, "all to wait")
    assert await redeliver(client, "1-0") is Moved.MOVED
    for entry, waits in (await client.hgetall(KEYS.parked)).items():  # now due, and not in an hour
        due = msgspec.json.decode(waits) | {"due": 1}
        await client.hset(KEYS.parked, entry, msgspec.json.encode(due))
    sink = Scripted()
    async with delivering(client, sink, wanted=wanted):
        await until(lambda: settled(client), "all to be settled")
    assert sorted(sink.sent) == [1, 4]
    assert await client.hlen(KEYS.letters) == 0


async def test_a_letter_goes_before_what_waits_of_its_record(client: Redis) -> None:
    """Law: a redelivered event is sent before later events of its record that wait, and these keep their own wait."""
    first = Scripted(lambda _: failing())
    await publish(client, "K")
    async with delivering(client, first, schedule=SOON):
        await letters(client, 1)
    sink = Scripted(lambda number: failing() if number == 2 else taking())
    await publish(client, "K", "K", start=2)
    async with delivering(client, sink) as pair:

        async def parked() -> bool:
            return bool(await client.hlen(KEYS.parked) == 2)

        await until(parked, "event 2 to wait, and 3 behind it")
        assert await redeliver(client, "1-0") is Moved.MOVED
        pair.reload()
        assert await sink.until_count(2) == [2, 1]
        await until(parked, "event 1 to be settled")
        await publish(client, "M", start=4)
        pair.news()
        assert await sink.until_count(3) == [2, 1, 4]


async def one_letter(client: Redis) -> None:
    """Publish an event of record K that becomes a dead letter."""
    async with delivering(client, Scripted(lambda _: failing()), schedule=SOON):
        await publish(client, "K")
        await letters(client, 1)


async def test_a_letter_goes_behind_what_is_on_its_way(client: Redis) -> None:
    """Law: a redelivered event is sent after its record's request in flight has ended."""
    await one_letter(client)
    answered = asyncio.Event()

    async def held(_: int) -> Outcome:
        await answered.wait()
        return TAKEN

    sink = Scripted(held)
    await publish(client, "K", "K", "L", start=2)
    async with delivering(client, sink) as pair:
        assert await sink.until_count(2) == [2, 4]
        assert await redeliver(client, "1-0") is Moved.MOVED
        pair.reload()
        await publish(client, "M", start=5)
        pair.news()
        assert await sink.until_count(3) == [2, 4, 5]
        answered.set()
        assert await sink.until_count(5) == [2, 4, 5, 1, 3]


async def test_a_letter_before_what_waits_for_its_turn_loses_nothing(client: Redis) -> None:
    """Law: events that wait behind a redelivered one of their record arrive after a crash, whatever was read since."""
    await one_letter(client)
    never = asyncio.Event()

    async def held(_: int) -> Outcome:
        await never.wait()
        return TAKEN

    first, second = Scripted(held), Scripted()
    await publish(client, "L", "M", "N", "O", start=2)  # as many as are sent at once, so that the next ones wait
    await publish(client, "K", "K", start=6)
    async with delivering(client, first) as pair:
        await first.until_count(4)
        assert await redeliver(client, "1-0") is Moved.MOVED
        pair.reload()
        queues = pair._queues
        await until(lambda: queues.foremost("K") == "1-0", "the letter to be in its queue")
        for key, number in (("K", 8), ("P", 9)):  # with the second one, what the first one led to is written
            await publish(client, key, start=number)
            pair.news()
            await until(lambda: queues.last(key) == f"{number}-0", "it to be read")  # noqa: B023 -- awaited here
    async with delivering(client, second):
        await until(lambda: settled(client), "all to be settled")
    assert of_key_k(second.sent) == [1, 6, 7, 8]


async def test_a_replay_gives_everything_again_in_order(client: Redis) -> None:
    """Law: a replay sends each wanted event of its span once more, in order per record, and schedules no retry."""
    count = 5 * WINDOW
    await publish(client, *(f"K{number % 7}" for number in range(count)))
    most_parked = 0

    async def watched(_: int) -> Outcome:
        nonlocal most_parked
        most_parked = max(most_parked, await client.hlen(KEYS.parked))
        return TAKEN

    sink = Scripted(watched)
    async with delivering(client, sink, wanted=lambda one: one.subject != "K0") as pair:
        wanted = [number for number in range(1, count + 1) if (number - 1) % 7]
        await sink.until_count(len(wanted))
        await until(lambda: settled(client), "all events to be settled")
        place = await client.hget(KEYS.state, "place")
        assert await replays.start_replay(client, KEYS, ReplaySpan("r", "9-0", f"{count - 9}-0"))
        assert not await replays.start_replay(client, KEYS, ReplaySpan("s", "0-0", "9-0"))
        pair.reload()
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")
        again = sink.sent[len(wanted) :]
        assert sorted(again) == [number for number in wanted if 9 < number <= count - 9]
        assert all(of_record(again, key) == sorted(of_record(again, key)) for key in range(7))
        assert most_parked == 0
        assert await client.hget(KEYS.state, "place") == place
        assert await replays.replay_of(client, KEYS) is None


class Stored:
    """A replay of many large events, read without a store."""

    def __init__(self, count: int, size: int) -> None:
        raw = b'{"id":"K","x":"%s"}' % (b"x" * size)
        self.events = {f"{n}-0": event_of(key=f"K{n}", raw=raw, number=n) for n in range(1, count + 1)}
        self.span = ReplaySpan("r", "0-0", f"{count}-0")
        self.asked: list[int] = []

    async def parked(self) -> dict[str, bytes]:
        return {}

    async def parked_besides(self, _: object) -> dict[str, bytes]:
        return {}

    async def replay(self) -> ReplaySpan:
        return self.span

    async def past(self, span: ReplaySpan, *, most: int) -> list[tuple[str, bytes]]:
        self.asked.append(most)
        begin = EntryId.parse(span.after).ms
        return list(self.events.items())[begin : begin + most]


async def test_a_replay_of_large_events_is_read_in_parts() -> None:
    """Law: a replay is read by bytes, too: as many events as fit into them, by the largest of the last read.

    The first read is by the usual size of an event. Nothing is read while the bytes are taken, and in the end each
    event was read once.
    """
    count, size, window_bytes = 500, 100_000, 8 * 1024 * 1024
    stored, tracker = Stored(count, size), DeliveryTracker(subscription(SOON))
    reader = RepeatReader(tracker, stored, window=400, window_bytes=window_bytes, where={}, clock=Clock())
    await reader.load()
    done = 0
    while not (place := tracker.replay.place) or place.after:
        before = tracker.replay.open_bytes
        if await reader.read(has_read=lambda _: True):
            assert len(stored.asked) == 1 or tracker.replay.open_bytes <= window_bytes + 2 * size
        else:
            assert before >= window_bytes or tracker.replay.wants(1000) is None
        for one in list(tracker.replay.open)[:10]:
            tracker.replay.settled(one)
            done += 1
    assert stored.asked[0] == 1 + window_bytes // MAX_EVENT_BYTES
    assert done == count
    assert tracker.replay.open_bytes == 0


async def test_a_replay_of_which_nothing_is_wanted_ends(client: Redis) -> None:
    """Law: a replay is completed although the subscription wants none of its events, and nothing else is settled."""
    await replay_of_all(client, "K", "L")
    async with delivering(client, Scripted(), wanted=lambda _: False):
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")


async def test_a_replay_goes_on_after_a_crash(client: Redis) -> None:
    """Law: after a crash the replay continues, and repeats only what was not written yet."""
    count = 5 * WINDOW
    await replay_of_all(client, *(f"K{number % 7}" for number in range(count)))
    first, second = Scripted(), Scripted()
    async with delivering(client, first):
        await first.until_count(2 * WINDOW)
    async with delivering(client, second):
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")
    assert {*first.sent, *second.sent} == set(range(1, count + 1))
    assert len(first.sent) + len(second.sent) <= count + WINDOW
    assert all(of_record(second.sent, key) == sorted(of_record(second.sent, key)) for key in range(7))


async def test_a_replay_waits_for_what_a_predecessor_has_read(client: Redis) -> None:
    """Law: unsettled events of a previous process are delivered in order, even if later ones are to be replayed."""
    count = 3 * WINDOW
    await publish(client, *(f"K{number % 7}" for number in range(count)))
    await client.xgroup_create(EVENTS, group_of(NAME), "0")
    # A previous process with a larger window, as in batch mode, ended with all of these in flight.
    await client.xreadgroup(group_of(NAME), CONSUMER, {EVENTS: ">"}, count=count)
    assert await replays.start_replay(client, KEYS, ReplaySpan("r", f"{2 * WINDOW}-0", f"{count}-0"))
    sink = Scripted()
    async with delivering(client, sink):
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")
        await until(lambda: settled(client), "all events to be settled")
    assert {*sink.sent} == set(range(1, count + 1))
    for key in range(7):
        first = list(dict.fromkeys(of_record(sink.sent, key)))
        assert first == sorted(first)


async def test_a_replay_goes_past_a_record_that_fails(client: Redis) -> None:
    """Law: an event that fails in a replay holds back only its record; half of the retries are left to new events."""
    count = 2 * MOST_PARKED
    await replay_of_all(client, *("K" if number % 2 else "L" for number in range(count)))
    sink = Scripted(lambda number: taking() if number % 2 or number > count else failing())
    async with delivering(client, sink) as pair:

        async def full() -> bool:
            return bool(await client.hlen(KEYS.parked) >= MOST_PARKED // 2)

        await until(full, "half of the retries to be taken")
        for number in range(count + 1, count + 2 * MOST_PARKED // WINDOW):  # each is an occasion to read more
            await publish(client, "M", start=number)
            pair.news()
            await sink.until(partial(holds, number))
        waiting = deliveries_of(await kept(client))
        assert {delivery.key for delivery in waiting.values()} == {"K"}
        assert len(waiting) <= MOST_PARKED // 2 + WINDOW
        assert [number for number in sink.sent if not number % 2 and number <= count] == [2]


async def test_a_replay_leaves_alone_what_waits(client: Redis) -> None:
    """Law: a replay neither repeats nor hastens an event of its span that waits for a retry."""
    sink = Scripted(lambda number: failing() if number == 2 else taking())
    await publish(client, "K", "L", "M")
    async with delivering(client, sink) as pair:
        await sink.until_count(3)

        async def parked() -> bool:
            return bool(await client.hlen(KEYS.parked))

        await until(parked, "event 2 to wait")
        assert await replays.start_replay(client, KEYS, ReplaySpan("r", "0-0", "3-0"))
        pair.reload()
        await until(lambda: replays.is_completed(client, KEYS, "r"), "the replay to end")
        assert sorted(sink.sent) == [1, 1, 2, 3, 3]
        assert list(await kept(client)) == ["2-0"]


async def test_a_cancelled_replay_ends(client: Redis) -> None:
    """Law: a cancelled replay reads nothing more, and another replay can start."""
    count = 5 * WINDOW
    await replay_of_all(client, *(f"K{number}" for number in range(count)))
    answered = asyncio.Event()

    async def held(_: int) -> Outcome:
        await answered.wait()
        return TAKEN

    sink = Scripted(held)
    async with delivering(client, sink) as pair:
        await sink.until_count(1)
        assert await replays.cancel(client, KEYS)
        assert await replays.start_replay(client, KEYS, ReplaySpan("s", f"{count - 1}-0", f"{count}-0"))
        pair.reload()
        answered.set()
        await until(lambda: replays.is_completed(client, KEYS, "s"), "the other replay to end")
        assert not await replays.is_completed(client, KEYS, "r")
    assert count in sink.sent
    assert len(sink.sent) <= WINDOW + 1


def test_what_is_kept_with_its_event() -> None:
    """Law: a delivery with its own event keeps it when encoded; a delivery without one encodes none."""
    own = Delivery("K", event=letter_of(b'{"event":{"a": 1},"reason":"r","at":"t"}').event)
    (read,) = deliveries_of({"1-0": encode(own)}).values()
    assert bytes(read.event) == b'{"a": 1}'
    assert b"event" not in encode(Delivery("K"))
    assert bytes(deliveries_of({"1-0": encode(Delivery("K"))})["1-0"].event) == b""


async def kept(client: Redis) -> dict[str, bytes]:
    found = cast("dict[bytes, bytes]", await client.hgetall(KEYS.parked))
    return {entry.decode(): value for entry, value in found.items()}


async def failing() -> Outcome:
    return FAILED


async def taking() -> Outcome:
    return TAKEN


def of_key_k(numbers: list[int]) -> list[int]:
    return [number for number in numbers if number in {1, 6, 7, 8}]


def of_record(numbers: list[int], key: int) -> list[int]:
    return [number for number in numbers if (number - 1) % 7 == key]


def holds(number: int, numbers: list[int]) -> bool:
    return number in numbers
