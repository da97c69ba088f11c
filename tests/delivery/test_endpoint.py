"""Laws of :mod:`poller.delivery.endpoint`: pauses, rates, health and credentials of one sink."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from poller.delivery.endpoint import (
    FIRST_BREATH,
    LONGEST_BREATH,
    MANY_FAILURES,
    REST_AGAIN,
    TELL_AGAIN,
    CredentialOutage,
    EndpointState,
)
from poller.delivery.endpoint_health import Health
from poller.delivery.retry import CREDENTIAL_WAIT
from poller.delivery.signing import SecretUnusable
from poller.delivery.sinks.base import Failure, Outcome, SinkEvent
from poller.errors import CredentialUnusable, StoreUnavailable
from poller.limits import FIRST_PAUSE, ConnectionBudget
from tests.delivery.events import pair, spelled
from tests.delivery.outcomes import answered, unanswered
from tests.delivery.scene import OK, Noted, Posted, subscriber
from tests.delivery.sinks import PythonSink
from tests.harness.clock import FakeClock
from tests.harness.waiting import turns

EVENT = SinkEvent(*pair(spelled()))
BROKEN = answered(500)


def made(clock: FakeClock, noted: Noted | None = None, posted: Posted | None = None, **changes: Any) -> EndpointState:
    return subscriber(posted or Posted(), noted, clock=clock, **changes)


async def learn(sink: EndpointState, clock: FakeClock, outcome: Outcome) -> None:
    """What a dispatcher does with an outcome."""
    storing = sink.learn("acme/a", outcome, clock.now())
    if storing is not None:
        await storing


def yes() -> bool:
    return True


def state(sink: EndpointState) -> set[str]:
    """The properties that are true now."""
    return {name for name in ("free", "breathing", "resting") if getattr(sink, name)}


async def test_a_pause_lasts_as_long_as_the_longest_that_was_asked_for() -> None:
    """A later, shorter pause or a jump of a clock does not shorten a pause; a clock that was set lengthens none."""
    clock = FakeClock(monotonic=1000.0)
    sink = made(clock)
    assert "free" in state(sink)
    sink.pause(timedelta(seconds=60))
    sink.pause(timedelta(seconds=5))
    sink.paused_elsewhere(clock.now() + timedelta(seconds=30))
    sink.paused_elsewhere(clock.now() + timedelta(days=1), clock.now() + timedelta(days=1, seconds=-3))
    clock.turn(timedelta(hours=1))
    clock.move(59.9)
    assert "free" not in state(sink)
    assert sink.next_moment(clock.monotonic()) == pytest.approx(1060)
    clock.move(0.2)
    assert "free" in state(sink)
    assert sink.next_moment(clock.monotonic()) is None


async def test_a_requested_pause_is_stored_until_the_store_has_it() -> None:
    """Law: a pause that the store could not take, or has lost, is stored; one that is over is not."""
    clock, notes = FakeClock(monotonic=1000.0), Noted(away=1)
    sink = made(clock, notes)
    sink.pause(timedelta(seconds=60))
    with pytest.raises(StoreUnavailable):
        await sink.store_pause()
    for _ in range(2):
        await sink.store_pause()
        assert len(notes.names()) == 1
    sink.pause_is_lost()
    await sink.store_pause()
    assert len(notes.names()) == 2
    sink.resume()
    sink.pause_is_lost()
    await sink.store_pause()
    sink.pause(timedelta(seconds=60))
    clock.move(60.0)
    await sink.store_pause()
    sink.pause_is_lost()
    await sink.store_pause()
    assert len(notes.names()) == 2


async def test_a_pause_outlives_the_process() -> None:
    """A pause that one process has stored holds for all others."""
    clock = FakeClock(monotonic=1000.0)
    sink = made(clock, paused_until=clock.now() + timedelta(seconds=10))
    assert "free" not in state(sink)
    clock.move(10)
    assert "free" in state(sink)
    sink.paused_elsewhere(clock.now() + timedelta(seconds=3))
    assert "free" not in state(sink)


async def test_what_waited_for_its_turn_is_not_sent_into_a_pause() -> None:
    """A waiting event is not sent into a pause, without the lease, or to a paused subscription."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    sink = made(clock, posted=posted)
    assert not await sink.turn(allowed=lambda: False)
    sink.pause(timedelta(seconds=1))
    assert not await sink.turn(allowed=yes)
    clock.move(1)
    assert await sink.turn(allowed=yes)
    assert await sink.send([EVENT]) == OK
    await sink.rest("sink", "gone")
    assert not await sink.turn(allowed=yes)
    assert "free" not in state(sink)
    assert len(posted.bodies) == 1


async def test_an_ailing_sink_is_sent_one_new_event_in_a_breath() -> None:
    """A failing sink gets one new event at a time, at growing intervals, until an attempt succeeds."""
    clock = FakeClock(monotonic=1000.0)
    sink = made(clock)
    for _ in range(MANY_FAILURES - 1):
        await learn(sink, clock, BROKEN)
    assert "breathing" not in state(sink)
    await learn(sink, clock, BROKEN)
    assert sink.next_moment(clock.monotonic()) == pytest.approx(1000 + FIRST_BREATH)
    clock.move(FIRST_BREATH)
    assert "breathing" not in state(sink)
    sink.acquire(fresh=False)
    assert "breathing" not in state(sink)
    sink.acquire(fresh=True)
    ends = sink.next_moment(clock.monotonic())
    assert ends == pytest.approx(clock.monotonic() + FIRST_BREATH)
    for _ in range(30):
        await learn(sink, clock, BROKEN)
    assert sink.next_moment(clock.monotonic()) == ends
    clock.move(FIRST_BREATH)
    await learn(sink, clock, BROKEN)
    assert sink.next_moment(clock.monotonic()) == pytest.approx(clock.monotonic() + LONGEST_BREATH)
    await learn(sink, clock, OK)
    assert "breathing" not in state(sink)
    sink.acquire(fresh=True)
    assert "breathing" not in state(sink)


async def test_the_next_moment_is_the_first_of_those_to_come() -> None:
    """Law: of the ends of a pause and of a breath the earlier one counts, and one that has passed does not."""
    clock = FakeClock(monotonic=1000.0)
    sink = made(clock)
    for _ in range(MANY_FAILURES):
        await learn(sink, clock, BROKEN)
    sink.pause(timedelta(seconds=2 * FIRST_BREATH))
    assert sink.next_moment(1000.0) == pytest.approx(1000 + FIRST_BREATH)
    assert sink.next_moment(1000.0 + FIRST_BREATH) == pytest.approx(1000 + 2 * FIRST_BREATH)
    assert sink.next_moment(1000.0 + 2 * FIRST_BREATH) is None


BUSY = answered(429)


async def test_a_burst_of_429_pauses_once_and_halves_the_rate() -> None:
    """429s to concurrent requests cause one pause and a lower rate; waiting events are not sent into the pause."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    sink = made(clock, posted=posted)
    held: list[asyncio.Future[Outcome]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    posted.answer = lambda _: held[len(posted.bodies) - 1]
    sending = []
    for _ in held:
        assert await sink.turn(allowed=yes)
        sending.append(asyncio.create_task(sink.send([EVENT])))
    await posted.until(lambda: len(posted.bodies) == 3)
    clock.move(0.01)
    held[0].set_result(BUSY)
    await sending[0]
    assert (sink.pause_left, "free" in state(sink)) == (timedelta(seconds=FIRST_PAUSE), False)
    assert not await sink.turn(allowed=yes)
    clock.move(0.75)
    held[1].set_result(BUSY)
    held[2].set_result(answered(429, retry_after="soon"))
    await asyncio.gather(*sending)
    assert sink.pause_left.total_seconds() == pytest.approx(FIRST_PAUSE - 0.75)
    clock.move(0.75)
    assert "free" in state(sink)
    assert await sink.turn(allowed=yes)
    waiting = asyncio.create_task(sink.turn(allowed=yes))
    await turns(5)
    assert not waiting.done()  # the rate is at most one a second now
    clock.move(60)
    assert await waiting


async def test_retry_after_is_heeded_as_it_was_said() -> None:
    """A 429 with Retry-After does not reduce the rate."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    sink = made(clock, posted=posted)
    posted.answer = lambda _: answered(429, retry_after="7")
    assert await sink.turn(allowed=yes)
    await sink.send([EVENT])
    assert sink.pause_left == timedelta(0)  # the dispatcher reads the outcome's wait and pauses
    for _ in range(20):
        assert await sink.turn(allowed=yes)


async def test_429_makes_no_sink_ailing() -> None:
    """A sink that answers only 429 counts as failing, but is not slowed as a broken sink is."""
    clock, noted = FakeClock(monotonic=1000.0), Noted()
    sink = made(clock, noted)
    for _ in range(3 * MANY_FAILURES):
        await learn(sink, clock, BUSY)
    assert "breathing" not in state(sink)
    assert noted.kept["acme/a"].failing_since == clock.now()


async def test_a_place_that_becomes_free_is_offered_in_turns() -> None:
    """A slot that becomes free is offered to the feeds in turns, so that a long backlog does not delay the others."""
    sink, first = made(FakeClock(monotonic=1000.0), concurrency=1), []
    for name in "abc":
        sink.listen(lambda name=name: first.append(name))  # type: ignore[misc] # mypy cannot infer it
    for _ in range(3):
        sink.acquire(fresh=True)
        sink.release()
    assert {"".join(first[at : at + 3]) for at in (0, 3, 6)} == {"bca", "cab", "abc"}


async def test_feeds_are_woken_when_they_may_have_waited() -> None:
    """A slot that becomes free wakes the feeds if there was none; so does the first success after failures."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    sink, woken = made(clock, posted=posted, concurrency=2), []
    sink.listen(lambda: woken.append(clock.monotonic()))
    sink.acquire(fresh=True)
    sink.release()
    assert not woken
    sink.acquire(fresh=True)
    sink.acquire(fresh=True)
    sink.release()
    sink.release()
    assert len(woken) == 1
    await learn(sink, clock, BROKEN)
    woken.clear()
    storing = sink.learn("acme/a", OK, clock.now())
    assert woken  # before that is stored
    assert storing is not None
    await storing


async def test_nothing_but_failures_is_told_once() -> None:
    """Health is stored when it changes; after ``disable_after`` of failures the subscription is paused, once."""
    clock, noted = FakeClock(monotonic=1000.0), Noted()
    sink = made(clock, noted, disable_after=timedelta(seconds=10))
    await learn(sink, clock, BROKEN)
    await learn(sink, clock, BROKEN)
    assert noted.names() == ["health"]
    clock.move(10)
    await learn(sink, clock, BROKEN)
    await learn(sink, clock, BROKEN)
    assert noted.names() == ["health", "rest", "health"]
    assert "resting" in state(sink)
    await learn(sink, clock, OK)  # a request in flight
    assert noted.names()[3:] == ["recovered", "health"]


@pytest.mark.parametrize("days", [-30, 30])
async def test_a_clock_that_jumps_disables_nothing(days: int) -> None:
    """A jump of the wall clock disables no subscription, since failing time is measured monotonically."""
    clock, noted = FakeClock(monotonic=1000.0), Noted()
    sink = made(clock, noted, disable_after=timedelta(days=5))
    for _ in range(20):
        await learn(sink, clock, BROKEN)
        clock.move(1)
        clock.turn(timedelta(days=days))
    assert "resting" not in state(sink)
    for _ in range(5):
        clock.move(24 * 3600)
        clock.turn(timedelta(days=days))
        await learn(sink, clock, BROKEN)
    assert "resting" in state(sink)


async def test_a_process_that_begins_after_a_jump_disables_nothing() -> None:
    """Of the time between two processes at most a fifth of disable_after counts as failing."""
    clock, noted = FakeClock(monotonic=1000.0), Noted()
    for attempt in range(6):
        sink = made(clock, noted, disable_after=timedelta(hours=1))
        sink.took("acme/a", noted.kept.get("acme/a", Health()))
        await learn(sink, clock, BROKEN)
        await sink.store_health("acme/a")
        assert ("resting" in state(sink)) is (attempt == 5)
        clock.turn(timedelta(days=30))


async def test_what_could_not_be_noted_is_brought_up_again() -> None:
    """A pause that could not be stored is stored after the next failure."""
    clock, noted = FakeClock(monotonic=1000.0), Noted(away=1)
    sink = made(clock, noted, disable_after=timedelta(0))
    with pytest.raises(StoreUnavailable):
        await learn(sink, clock, BROKEN)
    assert "resting" not in state(sink)
    await learn(sink, clock, BROKEN)
    assert "resting" in state(sink)
    assert noted.names() == ["rest", "health"]


class Reordering(Noted):
    """A store that carries the first write out last: writes on two connections keep no order."""

    first = True

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        late, self.first = self.first, False
        if late:
            await turns(20)
        await super().health(subscription, feed, health)


async def test_of_two_outcomes_the_later_one_stays_stored() -> None:
    """What is stored of the health is never older than what was stored before, and at the end it is the latest."""
    clock, noted = FakeClock(monotonic=1000.0), Reordering()
    sink = made(clock, noted)
    await asyncio.gather(*[learn(sink, clock, outcome) for outcome in (OK, OK, BROKEN, OK)])
    assert noted.kept["acme/a"].failing_since is None
    await asyncio.gather(learn(sink, clock, BROKEN), sink.store_health("acme/a"))
    counted = noted.kept["acme/a"]
    assert (counted.delivered, counted.failed) == (3, 2)
    assert counted.failing_since is not None
    stored = [health.delivered + health.failed for name, health in noted.told if name == "health"]
    assert stored == sorted(stored)


async def test_while_a_sink_is_well_its_health_is_stored_now_and_then() -> None:
    """Successes while a write is under way are not stored one by one."""
    clock, noted = FakeClock(monotonic=1000.0), Reordering()
    sink = made(clock, noted)
    first = asyncio.create_task(learn(sink, clock, OK))
    await turns(2)
    for _ in range(50):
        await learn(sink, clock, OK)
    await first
    assert noted.names() == ["health"]


async def test_a_sink_that_is_gone_is_not_asked_in_a_loop() -> None:
    """While the pause of a gone sink cannot be stored, the sink is free for an attempt once a second only."""
    clock, noted = FakeClock(monotonic=1000.0), Noted(away=1)
    sink = made(clock, noted)
    with pytest.raises(StoreUnavailable):
        await sink.rest("sink", "gone")
    assert state(sink) == set()
    clock.move(REST_AGAIN)
    assert state(sink) == {"free"}
    await sink.rest("sink", "gone")
    assert state(sink) == {"resting"}


class Missing(PythonSink):
    """A sink whose signing secret may not be there."""

    def __init__(self, sink: EndpointState) -> None:
        self.error: Exception | None = CredentialUnusable("no such file")
        self.asked = 0
        self._sink = sink._sink
        sink._sink = self

    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = yes) -> Outcome:
        self.asked += 1
        if self.error:
            return unanswered(Failure.CREDENTIAL, str(self.error))
        return await self._sink.send(batch, allowed=allowed)


async def attempt(sink: EndpointState, clock: FakeClock) -> Outcome | None:
    """One attempt as :mod:`poller.delivery.dispatcher` makes it; None if the endpoint allows none."""
    if "free" not in state(sink):
        return None
    sink.acquire(fresh=True)
    try:
        if not await sink.turn(allowed=yes):
            return None
        outcome = await sink.send([EVENT])
        await learn(sink, clock, outcome)
        return outcome
    finally:
        sink.release()


@pytest.mark.parametrize("error", [CredentialUnusable("no such file"), SecretUnusable("expected whsec_")])
async def test_a_secret_that_cannot_be_read_fails_the_attempt_and_not_the_event(error: Exception) -> None:
    """With an unreadable secret nothing is posted; the subscription is failing with that reason but not paused."""
    clock, noted, posted = FakeClock(monotonic=1000.0), Noted(), Posted()
    sink = made(clock, noted, posted, disable_after=timedelta(seconds=10))
    missing = Missing(sink)
    missing.error = error
    outcome = await attempt(sink, clock)
    assert outcome == unanswered(Failure.CREDENTIAL, error=str(error))
    began = clock.now()
    for _ in range(100):
        clock.move(CREDENTIAL_WAIT.total_seconds())
        assert await attempt(sink, clock) == outcome
    assert (noted.names(), noted.kept["acme/a"].failing_since, sink.error) == (["health"], began, str(error))
    assert (state(sink), posted.bodies) == (set(), [])
    missing.error = None
    clock.move(CREDENTIAL_WAIT.total_seconds())
    posted.answer = lambda _: BROKEN
    assert await attempt(sink, clock) == BROKEN
    assert "resting" not in state(sink)  # the sink itself has failed only once
    clock.move(10)
    assert await attempt(sink, clock) == BROKEN
    assert "resting" in state(sink)


async def test_what_is_missing_is_asked_for_by_one_attempt_now_and_then() -> None:
    """While a secret is missing, one attempt per interval reads it; the first success lets all attempts continue."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    sink = made(clock, posted=posted)
    missing = Missing(sink)
    for _ in range(8):
        sink.acquire(fresh=True)
    for number in range(8):
        assert await sink.turn(allowed=yes) is (number == 0)
        if not number:
            assert (await sink.send([EVENT])).failure is Failure.CREDENTIAL
        sink.release()
    wait = CREDENTIAL_WAIT.total_seconds()
    for number in range(1, 60):
        clock.move(wait / 5)
        await attempt(sink, clock)
        assert missing.asked == 1 + number // 5
        assert sink.next_moment(clock.monotonic()) == 1000 + wait * (1 + number // 5)
    missing.error = None
    clock.move(wait)
    woken: list[float] = []
    sink.listen(lambda: woken.append(clock.monotonic()))
    sink.acquire(fresh=True)
    assert await sink.turn(allowed=yes)
    assert await sink.send([EVENT]) == OK
    assert woken  # feeds that wait for the next check go on
    sink.release()
    assert await attempt(sink, clock) == OK
    assert len(posted.bodies) == 2


async def test_what_is_missing_is_told_when_it_begins_each_minute_and_when_it_is_there() -> None:
    """A missing secret is logged at its beginning, each minute, and at its end, not at each attempt."""
    clock = FakeClock(monotonic=1000.0)
    sink = made(clock)
    missing = Missing(sink)
    with capture_logs() as logs:
        for _ in range(25):
            assert await attempt(sink, clock) is not None
            clock.move(CREDENTIAL_WAIT.total_seconds())
        missing.error = None
        for _ in range(3):
            assert await attempt(sink, clock) == OK
    told = [(line["log_level"], line["event"], line["seconds"]) for line in logs]
    warnings = [("warning", "credential fails", seconds) for seconds in (0, 60, 120)]
    assert told == [*warnings, ("info", "credential works again", 125)]
    assert {line["subscription"] for line in logs} == {"s"}
    assert {line.get("error") for line in logs} == {"no such file", None}


async def test_what_was_on_its_way_does_not_bring_a_secret_back() -> None:
    """The success of an attempt that started before a secret went missing does not end the outage."""
    clock, posted = FakeClock(monotonic=1000.0), Posted()
    hold: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    sink = made(clock, posted=posted)
    posted.answer = lambda _: hold
    before = asyncio.create_task(attempt(sink, clock))
    await posted.until(lambda: bool(posted.bodies))
    Missing(sink)
    assert await attempt(sink, clock) is not None
    hold.set_result(OK)
    assert await before == OK
    assert "free" not in state(sink)


# Laws of :class:`poller.delivery.endpoint.CredentialOutage`.

WAIT = CREDENTIAL_WAIT.total_seconds()


def test_while_nothing_is_missing_nothing_is_held_up() -> None:
    """While all credentials can be read, every attempt may start, and no end of an outage is reported."""
    withholding = CredentialOutage()
    for now in range(3):
        assert withholding.admits(now)
        withholding.attempt_started(now)
        assert withholding.turn()
        assert withholding.passed(now, asked=False) is None
    assert (withholding.since, withholding.next_try) == (None, None)


def test_one_attempt_at_a_time_finds_out() -> None:
    """During a credential outage one attempt may start per interval."""
    withholding = CredentialOutage()
    assert withholding.failed(100)
    assert [withholding.turn() for _ in range(8)] == [False] * 8  # attempts that had already started
    assert not withholding.admits(100 + WAIT - 0.1)
    assert withholding.admits(100 + WAIT)
    withholding.attempt_started(100 + WAIT)
    assert not withholding.admits(100 + WAIT)
    assert [withholding.turn() for _ in range(3)] == [True, False, False]
    assert not withholding.failed(101 + WAIT)
    assert withholding.next_try == 101 + 2 * WAIT


def test_what_came_to_nothing_holds_up_nobody_for_good() -> None:
    """A probe that ends without a result is followed by another one."""
    withholding = CredentialOutage()
    withholding.failed(0)
    for number in range(1, 4):
        assert withholding.admits(number * WAIT)
        withholding.attempt_started(number * WAIT)  # and the probe ends without a turn


@pytest.mark.parametrize("asked", [True, False])
def test_over_when_one_that_was_to_find_out_got_through(asked: bool) -> None:
    """Only the success of a probe ends a credential outage, not that of an attempt from before."""
    withholding = CredentialOutage()
    withholding.failed(10)
    assert withholding.passed(12.5, asked=asked) == (2.5 if asked else None)
    assert withholding.admits(12.5) is asked
    assert withholding.passed(13, asked=True) == (None if asked else 3)
    assert withholding.failed(14)  # a new outage, which is reported


@given(st.lists(st.floats(0.1, 30), max_size=60))
def test_told_now_and_then(apart: list[float]) -> None:
    """An outage is reported at its beginning, and then once a minute at most."""
    withholding, now, told = CredentialOutage(), 0.0, []
    for seconds in apart:
        now += seconds
        if withholding.failed(now):
            told.append(now)
    assert told[:1] == [sum(apart[:1])] * len(told[:1])
    assert all(later - earlier >= TELL_AGAIN for earlier, later in pairwise(told))
    assert not apart or now - told[-1] < TELL_AGAIN


def slots(sink: EndpointState) -> int:
    """How many requests may start now; they are started."""
    count = 0
    while sink.free:
        sink.acquire(fresh=False)
        count += 1
    return count


def let_go(sink: EndpointState, count: int) -> int:
    for _ in range(count):
        sink.release()
    return count


def test_endpoints_share_the_connections_of_a_process() -> None:
    """Each has an even share, at least one, its own concurrency and its part among processes at most."""
    clock, budget = FakeClock(), ConnectionBudget(10, "subscriptions")
    sinks = [made(clock, concurrency=most) for most in (50, 4, 50)]
    with capture_logs() as said, ExitStack() as running:
        running.enter_context(budget.shared_by(sinks[0]))
        assert let_go(sinks[0], slots(sinks[0])) == 10
        leaving = [running.enter_context(ExitStack()) for _ in sinks[1:]]
        for sink, one in zip(sinks[1:], leaving, strict=True):
            one.enter_context(budget.shared_by(sink))
        assert [let_go(sink, slots(sink)) for sink in sinks] == [3, 3, 3]
        sinks[2].share(Fraction(1, 25))
        assert [let_go(sink, slots(sink)) for sink in sinks] == [3, 3, 2]
        many = [made(clock) for _ in range(20)]
        with ExitStack() as more:
            for sink in many:
                more.enter_context(budget.shared_by(sink))
            assert [let_go(sink, slots(sink)) for sink in (*sinks, *many)] == [1] * 23
        leaving[1].close()
        assert [let_go(sink, slots(sink)) for sink in sinks[:2]] == [5, 4]
    assert [(line["event"], line["connections_each"]) for line in said] == [("few descriptors", 10)]


def test_a_smaller_share_waits_for_requests_in_flight() -> None:
    """Requests in flight go on; the next one starts when fewer than the new share are left."""
    clock, budget = FakeClock(), ConnectionBudget(8, "subscriptions")
    one, other, heard = made(clock, concurrency=8), made(clock, concurrency=8), []
    one.listen(lambda: heard.append(one.free))
    with budget.shared_by(one):
        assert slots(one) == 8
        with budget.shared_by(other):
            assert slots(other) == 4
            let_go(one, 4)
            assert not one.free
            let_go(one, 1)
            assert slots(one) == 1
        assert (heard[-1], slots(one)) == (True, 4)
