"""Laws of a consumer's bootstrap: the present state first, then the changes, exactly, and once for a group."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Final

import pytest
from cloudevents.core.v1.event import CloudEvent
from redis.asyncio import Redis

from poller.client import BootstrapRefused, Consumer
from poller.lifecycle import ended
from poller.redis.client import commands
from tests.client.published import FEED, STATE, STEM, STREAM, event_of
from tests.client.records_api import RECORDS, SEQUENCE, RecordsApi, serving
from tests.client.test_consumer import lease, waiting
from tests.harness.waiting import turns, until, within

REVISIONS: Final = STATE.replace(":state:", ":revisions:")


class Source:
    """Records and their events, each change in one transaction, as a commit of the daemon."""

    def __init__(self, store: Redis, chance: Random) -> None:
        self.store = store
        self.chance = chance
        self.sequence = 0
        self.revisions: dict[str, int] = {}
        self.removed: set[str] = set()

    async def change(self, subject: str, *, removes: bool = False) -> None:
        """The next version of a record; at times its removal."""
        self.sequence += 1
        revision = self.revisions[subject] = self.revisions.get(subject, 0) + 1
        event = json.loads(event_of(self.sequence, subject=subject, revision=revision))
        async with self.store.pipeline(transaction=True) as both:
            if removes or (subject not in self.removed and revision > 1 and self.chance.random() < 0.1):
                self.removed.add(subject)
                event["type"] = f"{STEM}.removed.v1"
                both.hdel(RECORDS, subject)
            else:
                self.removed.discard(subject)
                both.hset(RECORDS, subject, str(revision))
            both.xadd(STREAM, {"data": json.dumps(event)})
            both.set(SEQUENCE, self.sequence)
            await both.execute()

    async def remove(self, subject: str) -> None:
        """Remove a record."""
        await self.change(subject, removes=True)

    async def fill(self, count: int) -> None:
        """Records that exist before, of which the stream has lost all events."""
        for number in range(count):
            await self.change(f"K{number:03}")
        await self.store.xtrim(STREAM, maxlen=0, approximate=False)


@pytest.fixture
async def source(server: str) -> AsyncIterator[Source]:
    async with commands(server) as store:
        yield Source(store, Random(11))


def seen(event: CloudEvent) -> tuple[str, int, bool]:
    """Subject, revision, and whether it is a removal."""
    data = event.get_data()
    assert isinstance(data, dict)
    return str(event.get_subject()), int(data["revision"]), event.get_type().endswith(".removed.v1")


def fallen(handled: list[tuple[str, int, bool]]) -> list[tuple[str, int, bool]]:
    highest: defaultdict[str, int] = defaultdict(int)
    found = []
    for subject, revision, removed in handled:
        if revision < highest[subject]:
            found.append((subject, revision, removed))
        highest[subject] = max(highest[subject], revision)
    return found


def state_of(handled: list[tuple[str, int, bool]]) -> Mapping[str, int]:
    last = {subject: (revision, removed) for subject, revision, removed in handled}
    return {subject: revision for subject, (revision, removed) in last.items() if not removed}


class Died(Exception):
    """What ends a body."""


@pytest.mark.parametrize("dies", [0.0, 0.02])
async def test_the_state_is_exact_under_load(server: str, source: Source, *, dies: float) -> None:
    """While records change, are removed and come back: no revision falls, and the result is the present state.

    So it is if the body fails again and again.
    """
    await source.fill(150)
    over = asyncio.Event()

    async def change() -> None:
        for _ in range(600):
            await source.change(f"K{source.chance.randrange(180):03}")
        over.set()

    handled: list[tuple[str, int, bool]] = []
    async with serving(RecordsApi(source.store)) as api:
        changing = asyncio.create_task(change())
        try:
            while not over.is_set() or len(state_of(handled)) == 0 or await _left(source.store):
                try:
                    consumer = Consumer(server, FEED, "g", "a", bootstrap=True, api=api, batch=7)
                    await _handle(consumer, handled, source, dies, over)
                except Died:
                    continue
        finally:
            await ended(changing)
    assert fallen(handled) == []
    assert state_of(handled) == {
        name: source.revisions[name] for name in source.revisions if name not in source.removed
    }
    assert await source.store.hget(STATE, "bootstrap") == b"done"
    assert not await source.store.exists(REVISIONS)


async def _left(store: Redis) -> bool:
    """Whether the group has not handled everything."""
    if not await store.exists(STREAM):
        return True
    groups: Any = await store.xinfo_groups(STREAM)
    return (
        not groups
        or groups[0]["lag"] != 0
        or groups[0]["pending"] > 0
        or await store.hget(STATE, "bootstrap") != b"done"
    )


async def _handle(
    consumer: Consumer, handled: list[tuple[str, int, bool]], source: Source, dies: float, over: asyncio.Event
) -> None:
    async with consumer:
        while not over.is_set() or await _left(source.store):
            async with waiting(consumer) as event:
                done, _ = await asyncio.wait([event], timeout=0.5)
                if not done:
                    continue
                handled.append(seen(event.result()))
                if source.chance.random() < dies:
                    raise Died


async def test_a_removal_between_two_pages_loses_no_record(server: str, source: Source) -> None:
    """A record whose events the stream has lost is in a page, also if one of the page before is removed meanwhile."""
    await source.fill(25)
    async with (
        serving(RecordsApi(source.store)) as url,
        Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer,
    ):
        found = [seen(await within(anext(consumer))) for _ in range(5)]
        await source.remove("K000")
        found += [seen(await within(anext(consumer))) for _ in range(21)]
    assert found[0] == ("K000", 1, False)
    assert sorted(found) == sorted([(f"K{number:03}", 1, False) for number in range(25)] + [("K000", 2, True)])


async def test_it_is_done_once_and_goes_on_where_it_was(server: str, source: Source) -> None:
    """An interrupted bootstrap goes on with its page, without what was handled; later starts repeat nothing."""
    await source.fill(35)
    api = RecordsApi(source.store)
    handled: list[tuple[str, int, bool]] = []
    async with serving(api) as url:
        for most in (4, 11, 3, 17):  # each leaves its last one unacknowledged
            async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
                handled += [seen(await within(anext(consumer))) for _ in range(most)]
                handled.pop()
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
            handled += [seen(await within(anext(consumer))) for _ in range(4)]
            async with waiting(consumer) as changed:
                await until(lambda: _is_done(source.store), "the end")
                await source.change("K001")
                handled.append(seen(await within(changed)))
        asked = len(api.pages)
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
            assert seen(await within(anext(consumer))) == handled[-1]
        assert len(api.pages) == asked
    live = [subject for subject, _, _ in handled[:-1]]
    assert sorted(live) == [f"K{number:03}" for number in range(35)]


async def _is_done(store: Redis) -> bool:
    return await store.hget(STATE, "bootstrap") == b"done"


async def test_acknowledgements_of_batches_may_span_pages(server: str, source: Source) -> None:
    """With ``ack=False`` pages follow each other unacknowledged, and one call acknowledges all of them."""
    await source.fill(35)
    async with serving(RecordsApi(source.store)) as url:
        for acknowledges in (False, True):
            async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url, ack=False) as consumer:
                events = [await within(anext(consumer)) for _ in range(35)]
                assert len({event.get_id() for event in events}) == 35
                if acknowledges:
                    await consumer.ack(events[-1])
                    assert await _is_done(source.store)


async def test_an_event_of_a_record(server: str, source: Source) -> None:
    """A record is a created event with the cause backfill and its revision; the same revision has the same id."""
    await source.fill(1)
    await source.change("K000")
    ids = set()
    async with serving(RecordsApi(source.store)) as url:
        for group in ("g", "h"):
            async with Consumer(server, FEED, group, "a", bootstrap=True, api=url) as consumer:
                event = await within(anext(consumer))
                ids.add(event.get_id())
                assert event.get_type() == f"{STEM}.created.v1"
                assert event.get_source() == "https://api.example.org/v1/contractTypes"
                assert event.get_subject() == "K000"
                assert event.get_extension("cause") == "backfill"
                assert event.get_data() == {"record": {"id": "K000"}, "revision": 2, "cause": "backfill"}
    assert len(ids) == 1


async def test_answers_that_pass_are_waited_for_and_a_lost_page_begins_again(server: str, source: Source) -> None:
    """A daemon that is busy is asked again; a page that has expired leads to the first one; no record is missed."""
    await source.fill(25)
    api = RecordsApi(source.store, answers=[503])
    async with serving(api) as url, Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
        found = [seen(await within(anext(consumer)))[0] for _ in range(10)]
        api.answers = [410]
        found += [seen(await within(anext(consumer)))[0] for _ in range(15)]
        await until(lambda: len(api.asked) > 4 or None, "the first page")
        async with waiting(consumer):
            await until(lambda: _is_done(source.store), "the end")
    assert set(found) == {f"K{number:03}" for number in range(25)}
    assert [path for path in api.asked if path.startswith("/feeds") and "cursor" not in path] == [api.asked[0]] * 3


async def test_a_page_arrives_although_its_caller_is_cancelled(server: str, source: Source) -> None:
    """A caller that is cancelled sooner than a page takes gets it, asked for once; none outlives the block."""
    await source.fill(3)
    api = RecordsApi(source.store)
    async with serving(api) as url:
        api.may_answer.clear()
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
            for number in range(3):
                async with waiting(consumer):
                    await until(lambda: api.asked or None, f"the page, attempt {number}")
            api.may_answer.set()
            await until(lambda: _is_fetched() or None, "the page")
            found = [seen(await within(anext(consumer)))[0] for _ in range(3)]
        assert sorted(found) == ["K000", "K001", "K002"]
        assert len(api.asked) == 1
        api.may_answer.clear()
        async with Consumer(server, FEED, "h", "a", bootstrap=True, api=url) as consumer, waiting(consumer):
            await until(lambda: len(api.asked) > 1 or None, "a page that does not come")
        assert not _fetches()
        api.may_answer.set()


@pytest.mark.parametrize("handled", [0, 10], ids=["first page", "second page"])
@pytest.mark.parametrize("is_taken", [False, True], ids=["token gone", "another member"])
async def test_a_lease_lost_during_a_page_cancels_no_caller(
    server: str, source: Source, caplog: pytest.LogCaptureFixture, handled: int, *, is_taken: bool
) -> None:
    """A member whose lease is lost while it waits for a page stands by, and goes on once it has the lease again."""
    caplog.set_level(logging.INFO)
    await source.fill(25)
    api, short = RecordsApi(source.store), lease(0.5)
    async with serving(api) as url, Consumer(server, FEED, "g", "a", bootstrap=True, api=url, lease=short) as consumer:
        found = [seen(await within(anext(consumer)))[0] for _ in range(handled)]
        api.may_answer.clear()
        asked = len(api.pages)
        async with waiting(consumer) as event:
            await until(lambda: len(api.pages) > asked or None, "the page")
            async with AsyncExitStack() as others:
                await source.store.hdel(STATE, "token")
                if is_taken:
                    other = Consumer(server, FEED, "g", "b", bootstrap=True, api=url, lease=short)
                    await others.enter_async_context(waiting(await others.enter_async_context(other)))
                await until(lambda: "the lease was lost" in caplog.text or None, "the loss")
                if is_taken:
                    await until(lambda: event.done() or "this member stands by" in caplog.text, "the standby")
                assert not event.done()
            api.may_answer.set()
            found.append(seen(await within(event))[0])
        while len(set(found)) < 25:
            found.append(seen(await within(anext(consumer)))[0])
    assert set(found) == {f"K{number:03}" for number in range(25)}
    assert not _fetches()


async def test_a_page_gives_no_more_than_may_be_unacknowledged(server: str, source: Source) -> None:
    """With ``ack=False`` the limit holds within a page, which may have more records, and over the end of one."""
    await source.fill(25)
    async with (
        serving(RecordsApi(source.store)) as url,
        Consumer(server, FEED, "g", "a", bootstrap=True, api=url, ack=False, most_unacknowledged=4) as consumer,
    ):
        found = [await within(anext(consumer)) for _ in range(4)]
        while len(found) < 25:
            async with waiting(consumer) as event:
                await turns(20)
                assert not event.done()
                await consumer.ack(found[-3])
                found.append(await within(event))
            found += [await within(anext(consumer)) for _ in range(len(found) < 25)]
        await consumer.ack(found[-1])
        assert await _is_done(source.store)
    assert sorted(seen(event)[0] for event in found) == [f"K{number:03}" for number in range(25)]


def _fetches() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == f"a page of {FEED}"]


def _is_fetched() -> bool:
    return not _fetches()


async def test_a_page_that_waited_too_long_is_asked_for_again(server: str, source: Source) -> None:
    """A page is not handed out after what was read while nothing waited for it, as by a read whose answer was lost."""
    await source.fill(25)
    api = RecordsApi(source.store)
    async with serving(api) as url, Consumer(server, FEED, "g", "a", bootstrap=True, api=url) as consumer:
        found = [seen(await within(anext(consumer))) for _ in range(10)]
        api.may_answer.clear()
        async with waiting(consumer):
            await until(lambda: len(api.read) > 1 or None, "the second page")
        await source.change("K015")
        read: Any = await source.store.xreadgroup("g", "a", {STREAM: ">"})
        await source.store.hset(STATE, "read", read[0][1][0][0])
        api.may_answer.set()
        found += [seen(await within(anext(consumer))) for _ in range(16)]
    assert fallen(found) == []
    assert [one for one in found if one[0] == "K015"] == [("K015", 2, False)] * 2
    assert len(api.asked) == 4


async def test_a_refusal_says_what_to_do(server: str, source: Source) -> None:
    """A missing token, and an unknown feed, are errors that name the remedy and no secret."""
    await source.fill(3)
    right = "right"
    cases = ((FEED, "wr0ng", "pass token="), ("acme/other", right, "check the name of the feed"))
    async with serving(RecordsApi(source.store, token=right)) as url:
        for feed, token, words in cases:
            with pytest.raises(BootstrapRefused, match=words) as refused:
                async with Consumer(server, feed, "g", "a", bootstrap=True, api=url, token=token) as consumer:
                    await within(anext(consumer))
            assert "wr0ng" not in str(refused.value)
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=url, token=right) as consumer:
            assert seen(await within(anext(consumer)))[1] == 1
