"""Laws of :func:`poller.daemon.poll_role.handle_commands`: the holder of a feed's lease handles its commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis

from poller.daemon.poll_role import CommandedFeed, handle_commands
from poller.lifecycle import ended
from poller.source.feed import RoundMode, RoundResult
from poller.store.commands import KEPT, Command, CommandQueue, CommandReply
from poller.store.keys import FeedKeys, answer_key
from poller.store.scripts import ScriptBatch, ScriptCall, ScriptSender
from tests.harness.clock import StubClock
from tests.harness.waiting import turns, until

STATE = FeedKeys.of("p", "s/one").state
NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
RESULT = RoundResult(feed="s/one", mode=RoundMode.RESYNC, ok=True, pages=2)


@dataclass
class Lot:
    """A feed whose rounds end when the test says so."""

    name: str = "s/one"
    has_lease: bool = True
    busy: bool = False
    hastened: int = 0
    confirms: bool = True
    coming: list[asyncio.Future[RoundResult]] = field(default_factory=list)
    full: RoundResult | None = None

    async def confirmed(self) -> bool:
        return self.confirms

    async def broken_off(self) -> bool:
        was, self.busy = self.busy, False
        return was

    def poll_soon(self) -> None:
        self.hastened += 1

    def round_ended(self) -> asyncio.Future[RoundResult]:
        self.coming.append(asyncio.get_running_loop().create_future())
        return self.coming[-1]

    def full_round_since(self, moment: datetime) -> RoundResult | None:
        return self.full if moment <= NOW else None


def order(what: str, *, at: datetime = NOW, feed: str = "s/one") -> Command:
    return Command(what, feed, what, at)


async def left(client: FakeAsyncRedis) -> None:
    """Request a resync in the feed's state."""
    await client.hset(STATE, "resync", "1")


async def carried_out(client: FakeAsyncRedis) -> None:
    await client.hdel(STATE, "resync")


def again_and_again(client: FakeAsyncRedis) -> ScriptSender:
    """A sender that runs each script a moment later, as a membership does with its next reading of the member list."""
    batch = ScriptBatch(client)

    async def send(call: ScriptCall) -> Any:
        await turns()
        return await batch.run(call)

    return send


@asynccontextmanager
async def obeyed(client: FakeAsyncRedis, *lots: CommandedFeed, member: str = "me") -> AsyncIterator[CommandQueue]:
    """Handle commands for these feeds while the block runs."""
    queue = CommandQueue(client, "p")
    task = asyncio.create_task(
        handle_commands(queue, lots, send=again_and_again(client), member=member, clock=StubClock(now=lambda: NOW))
    )
    try:
        yield queue
        assert not task.done()
    finally:
        await ended(task)


async def said(queue: CommandQueue, asked: Command, *, done: bool = True) -> CommandReply:
    async def look() -> CommandReply | None:
        answer = await queue.last_reply(asked)
        return answer if answer is not None and answer.done is done else None

    found = await until(look, f"a reply to {asked}")
    assert found is not None
    return found


async def test_a_pause_is_answered_when_no_round_is_under_way_any_more(client: FakeAsyncRedis) -> None:
    """Law: a pause is answered after the running round has ended."""
    lot = Lot(busy=True)
    await client.set(FeedKeys.of("p", "s/one").pause, "{}")
    async with obeyed(client, lot) as queue:
        await queue.submit(order("pause"))
        assert (await said(queue, order("pause"))).text == "the round under way was ended"
    assert not lot.busy


async def test_a_pause_that_is_over_ends_no_round(client: FakeAsyncRedis) -> None:
    """Law: commands may be handled in any order; a pause command whose pause is gone from the store ends no round."""
    lot = Lot(busy=True)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("pause"))
        assert (await said(queue, order("pause"))).text == "it was resumed meanwhile"
    assert lot.busy


async def test_resumed_it_is_polled_at_once(client: FakeAsyncRedis) -> None:
    """Law: a resume is answered as soon as a round is scheduled, before that round has ended."""
    lot = Lot()
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resume"))
        assert (await said(queue, order("resume"))).member == "me"
    assert lot.hastened == 1


async def test_a_resync_is_answered_when_it_begins_and_when_it_has_ended(client: FakeAsyncRedis) -> None:
    """Law: a resync starts one round, however often the command is read; the last reply holds the round's result."""
    lot = Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        assert (await said(queue, order("resync"), done=False)).text == "its next round begins now"
        await carried_out(client)
        lot.coming[0].set_result(RESULT)
        answer = await said(queue, order("resync"))
    assert answer.round == RESULT.public
    assert lot.hastened == 1


async def test_a_round_that_began_before_the_order_is_not_it(client: FakeAsyncRedis) -> None:
    """Law: while the store requests the resync, another round follows; the reply has the round that cleared it."""
    lot = Lot(busy=True)
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        begins = (await said(queue, order("resync"), done=False)).text
        assert begins == "its next round begins when the one under way has ended"
        lot.busy = False
        lot.coming[0].set_result(RoundResult(feed="s/one", mode=RoundMode.DELTA, ok=True))
        await until(lambda: len(lot.coming) == 2, "another round")
        await carried_out(client)
        lot.coming[1].set_result(RESULT)
        assert (await said(queue, order("resync"))).round == RESULT.public
    assert lot.hastened == 1


async def test_a_round_that_fails_is_told(client: FakeAsyncRedis) -> None:
    """Law: a failed round is the reply to the command; the resync stays requested in the store."""
    lot = Lot()
    await left(client)
    failed = RoundResult(feed="s/one", mode=RoundMode.RESYNC, ok=False, error="no answer")
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.coming[0].set_result(failed)
        assert (await said(queue, order("resync"))).round == failed.public
        assert await queue.is_outstanding(order("resync"))


@pytest.mark.parametrize("full", [None, RESULT])
async def test_what_a_round_has_done_already_is_answered(client: FakeAsyncRedis, full: RoundResult | None) -> None:
    """Law: a resync that a round completed before the command was read is answered by that round, without another."""
    lot = Lot(full=full)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        answer = await said(queue, order("resync"))
        assert (answer.text, answer.round) == ("its round has ended", full and full.public)
    assert not lot.coming


async def test_what_is_not_done_here_waits_for_whoever_does_it(client: FakeAsyncRedis) -> None:
    """Law: a cancelled round answers nothing; the next process that holds the feed's lease handles the command."""
    lot, theirs = Lot(), Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.has_lease = False
        lot.coming[0].cancel()
        async with obeyed(client, theirs, member="other"):
            await until(lambda: theirs.coming, "the other process to start a round")
            await carried_out(client)
            theirs.coming[0].set_result(RESULT)
            assert (await said(queue, order("resync"))).member == "other"


async def test_what_is_asked_of_a_paused_feed_waits_for_its_end(client: FakeAsyncRedis) -> None:
    """Law: a resync of a paused feed is put off until the feed resumes; the reply says so and who paused the feed."""
    lot = Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.coming[0].set_result(RoundResult(feed="s/one", mode=RoundMode.SKIPPED, ok=True, paused="paused by me"))
        answer = await said(queue, order("resync"))
    text = "paused by me; it is carried out when the feed is resumed"
    assert answer == CommandReply("me", done=True, text=text, put_off=True)


async def test_a_resync_of_a_feed_that_is_paused_is_put_off(client: FakeAsyncRedis) -> None:
    """Law: a resync of a feed that is paused in the store starts no round, and the reply names none."""
    lot = Lot()
    await left(client)
    await client.set(FeedKeys.of("p", "s/one").pause, "{}")
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        answer = await said(queue, order("resync"))
    assert (answer.put_off, answer.round, lot.hastened) == (True, None, 0)


async def test_who_was_asleep_answers_nothing_in_another_s_place(client: FakeAsyncRedis) -> None:
    """Law: a process whose lease expired while it was stopped leaves the command to the new owner."""
    stale, theirs = Lot(confirms=False), Lot()
    async with obeyed(client, stale) as queue:
        await client.set(FeedKeys.of("p", "s/one").pause, "{}")
        await queue.submit(order("pause"))
        await turns(50)
        assert await queue.last_reply(order("pause")) is None
    async with obeyed(client, theirs, member="other") as queue:
        assert (await said(queue, order("pause"))).member == "other"


async def test_a_word_of_a_newer_version_waits_for_it(client: FakeAsyncRedis) -> None:
    """Law: a command that this version does not know is not answered."""
    async with obeyed(client, Lot()) as queue:
        await queue.submit(order("polish"))
        await turns(50)
        assert await queue.last_reply(order("polish")) is None


async def test_what_a_round_leaves_standing_is_asked_of_one_round(client: FakeAsyncRedis) -> None:
    """Law: a resync that a round completes without clearing the request starts no further rounds."""
    lot = Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.coming[0].set_result(RESULT)
        assert (await said(queue, order("resync"))).round == RESULT.public
        assert await queue.is_outstanding(order("resync"))
    assert (lot.hastened, len(lot.coming)) == (1, 1)


async def test_a_lease_that_is_anothers_answers_nothing(client: FakeAsyncRedis) -> None:
    """Law: a round that was skipped because another process holds the lease does not answer the command."""
    lot = Lot()
    await left(client)
    held = RoundResult(feed="s/one", mode=RoundMode.SKIPPED, ok=True, wait=timedelta(seconds=5))
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.coming[0].set_result(held)
        lot.has_lease = False
        await turns(20)
        found = await queue.last_reply(order("resync"))
        assert found is not None
        assert not found.done
        assert await queue.pending() == [order("resync")]


async def test_a_round_may_take_longer_than_an_order_waits(client: FakeAsyncRedis) -> None:
    """Law: the reply has the round's result even when the round outlasts the time for which a command is kept."""
    lot, late = Lot(), order("resync", at=NOW - KEPT + timedelta(seconds=1))
    await left(client)
    moment = NOW
    queue = CommandQueue(client, "p")
    clock = StubClock(now=lambda: moment)
    looking = handle_commands(queue, [lot], send=again_and_again(client), member="me", clock=clock)
    task = asyncio.create_task(looking)
    await queue.submit(late)
    await said(queue, late, done=False)
    moment += 2 * KEPT
    await turns(20)
    await carried_out(client)
    lot.coming[0].set_result(RESULT)
    assert (await said(queue, late)).round == RESULT.public
    await ended(task)


async def test_an_order_that_is_carried_out_keeps_its_answer(client: FakeAsyncRedis) -> None:
    """Law: the first reply to a command does not expire while the command's round is running."""
    lot = Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        key = answer_key("p", "resync")
        await client.pexpire(key, 60_000)
        await until(lambda: _kept_longer(client, key, 60_000), "the reply's expiry to be put off")


async def _kept_longer(client: FakeAsyncRedis, key: str, milliseconds: int) -> bool:
    return bool(await client.pttl(key) > milliseconds)


async def test_a_process_that_stops_waits_for_no_round(client: FakeAsyncRedis) -> None:
    """Law: a process that has stopped answers nothing more; the command waits for the next owner of the feed."""
    lot = Lot()
    await left(client)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("command ")] == []
    if not lot.coming[0].done():
        lot.coming[0].set_result(RESULT)
    await turns(20)
    assert await queue.pending() == [order("resync")]


async def test_what_was_asked_before_the_clock_was_set_back(client: FakeAsyncRedis) -> None:
    """Law: a command dated in the future is handled by the process that polls its feed, and dropped if none does."""
    lot = Lot()
    here, there = order("pause", at=NOW + timedelta(days=30)), order("resync", at=NOW + 2 * KEPT, feed="s/two")
    await client.set(FeedKeys.of("p", "s/one").pause, "{}")
    async with obeyed(client, lot) as queue:
        await queue.submit(here)
        await queue.submit(there)
        assert (await said(queue, here)).done
        await until(lambda: _none(queue), "the other command to be dropped")
    assert await queue.last_reply(there) is None


async def _none(queue: CommandQueue) -> bool:
    return await queue.pending() == []


async def test_what_nobody_has_is_forgotten_in_the_end(client: FakeAsyncRedis) -> None:
    """Law: a command for a feed that no process polls is dropped once it is too old; other feeds' owners ignore it."""
    lot, theirs = Lot(), Lot(name="s/two", has_lease=False)
    old, fresh = order("resync", at=NOW - KEPT - timedelta(seconds=1), feed="s/two"), order("release", feed="s/two")
    async with obeyed(client, lot, theirs) as queue:
        await queue.submit(fresh)
        await queue.submit(old)
        await until(lambda: _only(queue, fresh), "the old command to be dropped")
        await turns(20)
    assert (lot.coming, theirs.coming) == ([], [])
    assert await queue.last_reply(fresh) is None


async def _only(queue: CommandQueue, order: Command) -> bool:
    return await queue.pending() == [order]


async def test_an_order_that_the_round_under_way_has_carried_out_has_its_result(client: FakeAsyncRedis) -> None:
    """Law: a resync that the running round's last commit clears is answered with that round's result."""
    lot = Lot(busy=True)
    async with obeyed(client, lot) as queue:
        await queue.submit(order("resync"))
        await said(queue, order("resync"), done=False)
        lot.busy = False
        lot.coming[0].set_result(RESULT)
        assert (await said(queue, order("resync"))).round == RESULT.public
    assert lot.hastened == 0
