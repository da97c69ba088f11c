"""Laws of :mod:`poller.control.commands`: a command is stored first, and its caller gets its true outcome."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest
from fakeredis import FakeAsyncRedis

from poller.config.load import load
from poller.config.settings import Settings
from poller.control.commands import CommandKind, CommandResult, run_command
from poller.store.commands import CommandQueue, CommandReply
from poller.store.keys import FeedKeys, MemberKeys, operations_key
from poller.store.members import MemberList, Members
from tests.harness.clock import FakeClock, StubClock, store_clock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


FEED = "default/contractTypes"
KEYS = FeedKeys.of("poller", FEED)
AT = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


@pytest.fixture
def settings() -> Settings:
    return load(None, {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"})


async def polling(client: FakeAsyncRedis, role: str = "poll") -> None:
    """A live process with this role."""
    there = Members(client, MemberKeys.of("poller"), name="m", ttl=timedelta(minutes=5), clock=store_clock())
    await there.beat({role}, MemberList())


async def ask(
    client: FakeAsyncRedis,
    settings: Settings,
    order: CommandKind,
    *,
    wait: bool = False,
    patience: timedelta = timedelta(seconds=5),
    meanwhile: Callable[[float], Awaitable[None]] | None = None,
    monotonic: Callable[[], float] | None = None,
) -> CommandResult:
    async def nothing(_: float) -> None: ...

    return await run_command(
        client,
        settings,
        FEED,
        order,
        clock=StubClock(now=lambda: AT, sleep=meanwhile or nothing, monotonic=monotonic),
        by="anna",
        reason="moving",
        patience=patience,
        wait=wait,
    )


async def announced(client: FakeAsyncRedis) -> list[dict[str, object]]:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(operations_key("poller")))
    return [json.loads(fields[b"data"]) for _, fields in entries]


async def test_without_a_daemon_it_holds_for_the_next_one(client: FakeAsyncRedis, settings: Settings) -> None:
    """Law: without a daemon a pause or resume is stored and announced; repeating it announces nothing."""
    await polling(client, "deliver")  # who does not poll answers nothing
    first = await ask(client, settings, CommandKind.PAUSE)
    assert (first.outcome, first.before) == ("no daemon", None)
    assert await client.exists(KEYS.pause)
    again = await ask(client, settings, CommandKind.PAUSE)
    assert again.outcome == "senseless"
    assert again.before is not None
    assert again.before.text == "paused by anna since 2026-03-02 08:15 UTC: moving"
    over = await ask(client, settings, CommandKind.RESUME)
    assert (over.outcome, over.before) == ("no daemon", again.before)
    assert (await ask(client, settings, CommandKind.RESUME)).outcome == "senseless"
    told = await announced(client)
    assert [one["type"] for one in told] == ["poller.feed.paused.v1", "poller.feed.resumed.v1"]
    assert [(one["subject"], one["data"]) for one in told] == [(FEED, {"by": "anna", "reason": "moving"})] * 2


@pytest.mark.parametrize("order", [CommandKind.RELEASE, CommandKind.RESYNC, CommandKind.ANEW])
async def test_what_makes_no_sense_is_asked_of_nobody(
    client: FakeAsyncRedis, settings: Settings, order: CommandKind
) -> None:
    """Law: a resync, reset or release of a feed that was never read is not submitted."""
    await polling(client)
    assert (await ask(client, settings, order)).outcome == "senseless"
    assert await CommandQueue(client, "poller").pending() == []


async def test_a_daemon_that_says_nothing_is_waited_for_so_long(client: FakeAsyncRedis, settings: Settings) -> None:
    """Law: without a reply the outcome is "unanswered", and the command stays for the feed's next owner."""
    await polling(client)
    answer = await ask(client, settings, CommandKind.PAUSE, patience=timedelta())
    assert (answer.outcome, answer.member) == ("unanswered", None)
    assert await client.exists(KEYS.pause)
    assert [one.order for one in await CommandQueue(client, "poller").pending()] == ["pause"]


@pytest.mark.parametrize(("wait", "outcome"), [(False, "begun"), (True, "done")])
async def test_it_is_waited_for_as_long_as_was_asked(
    client: FakeAsyncRedis, settings: Settings, *, wait: bool, outcome: str
) -> None:
    """Law: a caller waits until a daemon has begun, or with ``wait`` until it has finished."""
    await polling(client)
    await client.hset(KEYS.state, "generation", "g")
    queue, looks = CommandQueue(client, "poller"), 0

    async def daemon(_: float) -> None:
        nonlocal looks
        looks += 1
        order = (await queue.pending())[0]
        last = CommandReply("m", done=True, text="ended", round={"ok": True})
        await queue.reply(order, CommandReply("m", done=False, text="begins") if looks < 3 else last)

    answer = await ask(client, settings, CommandKind.RESYNC, wait=wait, meanwhile=daemon)
    assert (answer.outcome, answer.member) == (outcome, "m")
    assert answer.round == ({"ok": True} if wait else None)


async def test_one_that_has_begun_is_waited_for_beyond_the_patience(client: FakeAsyncRedis, settings: Settings) -> None:
    """Law: the patience limits the wait for a first reply; a begun round may take longer."""
    await polling(client)
    await client.hset(KEYS.state, "generation", "g")
    queue, looks, clock = CommandQueue(client, "poller"), 0, FakeClock()

    async def daemon(_: float) -> None:
        nonlocal looks
        looks += 1
        order = (await queue.pending())[0]
        if looks == 1:
            await queue.reply(order, CommandReply("m", done=False, text="begins"))
        elif looks == 2:
            clock.move(6)
        else:
            await queue.reply(order, CommandReply("m", done=True, text="ended"))

    answer = await ask(client, settings, CommandKind.RESYNC, wait=True, meanwhile=daemon, monotonic=clock.monotonic)
    assert (answer.outcome, looks) == ("done", 3)
