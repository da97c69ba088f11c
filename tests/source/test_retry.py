"""Laws of :mod:`poller.source.retry`: retries, pauses and the circuit of a source."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.errors import SourceRefused, SourceUnavailable
from poller.source.client import ApiClient, ClientLimits
from poller.source.retry import (
    ATTEMPTS,
    CAP,
    DOUBLINGS,
    FIRST_PAUSE,
    FLOOR,
    LONGEST,
    SHORTEST,
    THRESHOLD,
    Circuit,
    ExchangeOutcome,
    NoRetry,
    PauseSource,
    RetryLater,
    Step,
    is_affordable,
    pause_within_bounds,
    step_after,
)
from tests.harness.clock import FakeClock
from tests.source.api import Request, http, serving
from tests.source.clients import Time, client_of, failure_of

NONE = timedelta(0)
SECOND = timedelta(seconds=1)


def opened(jitter: float = 1.0) -> Circuit:
    """A circuit that opened at time 0."""
    circuit = Circuit()
    for _ in range(THRESHOLD):
        circuit = circuit.failed(NONE, probe=False, jitter=jitter)
    return circuit


def test_so_many_failures_in_a_row_open_it() -> None:
    """The circuit opens after the limit of failures in a row; an answer resets the count."""
    circuit = Circuit()
    for turn in range(2):
        for at in range(THRESHOLD - 1):
            circuit = circuit.failed(at * SECOND, probe=False, jitter=1.0)
            assert circuit.admits(at * SECOND)
        if turn == 0:
            circuit = circuit.answered()
    circuit = circuit.failed(9 * SECOND, probe=False, jitter=1.0)
    assert (circuit.admits(9 * SECOND), circuit.since, circuit.due) == (False, NONE, 10 * SECOND)


def test_a_probe_goes_alone_as_soon_as_it_is_due() -> None:
    """A probe is admitted exactly when it is due, and no other request while it is in flight."""
    circuit = opened()
    assert not circuit.admits(SECOND - timedelta(microseconds=1))
    assert circuit.admits(SECOND)
    circuit = circuit.started()
    assert not circuit.admits(100 * SECOND)
    assert circuit.abandoned().admits(100 * SECOND)
    assert circuit.answered() == Circuit()


@given(st.lists(st.floats(0.5, 1.5), min_size=1, max_size=20))
def test_pauses_double_up_to_the_longest(jitters: list[float]) -> None:
    """Each failed probe doubles the pause, from 1 to 60 seconds, times the jitter, never above the longest."""
    circuit, at = opened(), SECOND
    for count, jitter in enumerate(jitters, start=1):
        circuit = circuit.started().failed(at, probe=True, jitter=jitter)
        assert circuit.due is not None
        assert circuit.due - at == min(min(SHORTEST * 2**count, LONGEST) * jitter, LONGEST)
        assert circuit.since == NONE
        at = circuit.due


@given(st.integers(1, 30))
def test_stragglers_change_nothing(count: int) -> None:
    """Failures of requests sent before the circuit opened change neither the next probe nor its pause."""
    circuit = opened()
    for turn in range(count):
        circuit = circuit.failed(turn * SECOND, probe=False, jitter=1.0)
    assert (circuit.due, circuit.pause) == (SECOND, SHORTEST)
    assert not circuit.started().failed(NONE, probe=False, jitter=1.0).admits(100 * SECOND)


def test_an_answer_to_a_straggler_closes_it() -> None:
    """Any answer closes the circuit, also one to an earlier request."""
    circuit = opened().started().answered()
    assert circuit.admits(NONE)
    assert circuit.failed(SECOND, probe=True, jitter=1.0).admits(SECOND)
    assert circuit.abandoned() == Circuit()


# Laws of :mod:`poller.source.retry`, over real sockets: when a source is asked, and when it is left alone.

OK = http(200, b"ok")
BUSY = http(429, b"slow down", "Retry-After: 20")


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_pause_is_waited_for_where_there_is_patience(status: int) -> None:
    """A pause that the API asks for is waited for, and then the request is repeated."""
    time = Time()
    answers = [http(status, b"", "Retry-After: 20"), OK]
    async with serving(answers) as api, client_of(api.url, time) as client:
        assert await client.get("/x") == b"ok"
        assert (time.slept, len(api.requests)) == ([20.0], 2)


async def test_who_has_less_patience_fails_at_once_and_says_until_when() -> None:
    """During a pause requests without enough patience fail unsent; after it they are sent."""
    time = Time()
    async with serving([BUSY, OK]) as api, client_of(api.url, time) as client:
        until = "the API gets no request before 2025-03-01T12:00:20Z, for it has answered 429 or with Retry-After"
        told = await failure_of(client, "/one", patience=5 * SECOND)
        assert isinstance(told, SourceUnavailable)
        assert str(told) == f"GET /one: the API answered 429: slow down (1 attempt); {until}"
        time.pass_by(5)
        other = await failure_of(client, "/other", patience=5 * SECOND)
        assert isinstance(other, SourceUnavailable)
        assert str(other) == f"GET /other: not asked; {until}"
        assert (time.slept, len(api.requests)) == ([], 1)
        time.pass_by(15)
        assert await client.get("/other", patience=5 * SECOND) == b"ok"


@pytest.mark.parametrize("limits", [ClientLimits(concurrency=1), ClientLimits(rate=3)], ids=["place", "rate"])
async def test_nobody_who_was_waiting_for_a_turn_starts_inside_a_pause(limits: ClientLimits) -> None:
    """A pause also applies to requests that wait for a slot or the rate."""
    over, waiting, changed = asyncio.Event(), 0, asyncio.Event()

    class Held(Time):
        async def sleep(self, seconds: float) -> None:
            nonlocal waiting
            waiting += 1
            changed.set()
            await over.wait()
            await super().sleep(seconds)

    time = Held()

    async def feed(path: str) -> bytes:
        try:
            return await client.get(path)
        finally:
            changed.set()

    async with serving([BUSY, OK]) as api, client_of(api.url, time, limits=limits) as client:
        feeds = [asyncio.create_task(feed(f"/{index}")) for index in range(6)]
        while waiting + sum(task.done() for task in feeds) < 6:
            changed.clear()
            await changed.wait()
        assert (waiting, len(api.requests)) == (6, 1)
        over.set()
        assert await asyncio.gather(*feeds) == [b"ok"] * 6
        assert len(api.requests) == 7


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "back"])
async def test_a_wall_clock_that_jumps_changes_no_pause_and_no_circuit(jump: timedelta) -> None:
    """A pause that the API asks for, and that of the circuit, last as long when the wall clock jumps."""
    clock = FakeClock()
    answers = [BUSY, *[http(500)] * THRESHOLD, OK]
    async with serving(answers) as api, client_of(api.url, clock=clock) as client:
        await failure_of(client, patience=SECOND / 2)
        clock.turn(jump)
        clock.move(19)
        assert "not asked; the API gets no request" in str(await failure_of(client, patience=SECOND / 2))
        clock.move(1)
        await broken(client)
        clock.turn(jump)
        clock.move(SHORTEST.total_seconds() / 4)
        assert "next probe in" in str(await failure_of(client))
        assert len(api.requests) == 1 + THRESHOLD
        clock.move(SHORTEST.total_seconds() * 2)
        assert await client.get("/x") == b"ok"


async def test_a_pause_ends_the_attempts_as_failures_do() -> None:
    """A request answered 429 again and again counts as many attempts as a failing one."""
    time = Time()
    async with serving(http(429)) as api, client_of(api.url, time) as client:
        failed = await failure_of(client)
        assert f"({ATTEMPTS} attempts); the API gets no request before" in str(failed)
        assert (time.slept, len(api.requests)) == ([1.0] * (ATTEMPTS - 1), ATTEMPTS)


async def test_a_later_and_shorter_pause_does_not_shorten_an_earlier_one() -> None:
    """Of two concurrent pauses the longer one counts, even if it came first."""
    time, both, told = Time(), asyncio.Barrier(2), asyncio.Event()

    async def answer(request: Request, _: Any) -> bytes:
        await both.wait()
        if request.path == "/long":
            return BUSY
        await told.wait()
        return http(429)

    async def feed(path: str) -> None:
        await failure_of(client, path, patience=SECOND / 2)
        told.set()

    async with serving(answer) as api, client_of(api.url, time) as client:
        await asyncio.gather(feed("/long"), feed("/short"))
        time.pass_by(19)
        assert "not asked" in str(await failure_of(client, patience=SECOND / 2))
        assert len(api.requests) == 2


async def broken(client: ApiClient) -> None:
    """Let requests fail until the circuit of the source is open."""
    for feed in range(THRESHOLD):
        await failure_of(client, f"/{feed}", patience=SECOND / 10)


async def test_failures_of_any_feeds_open_the_circuit() -> None:
    """An open circuit sends nothing; the error says since and until when; the probe starts when it is due."""
    time = Time()
    async with serving(http(500)) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(0.75)
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        since = "the API has not answered since 2025-03-01T12:00:00Z"
        assert str(failed) == f"GET /x: not asked; {since}; next probe in 0.2 s"
        assert len(api.requests) == THRESHOLD
        for count, pause in enumerate((0.25, 2, 4, 8, 16, 32, 60, 60), start=1):
            time.pass_by(pause - 0.01)
            await failure_of(client)
            assert len(api.requests) == THRESHOLD + count - 1
            time.pass_by(0.01)
            assert "(1 attempt)" in str(await failure_of(client))
            assert len(api.requests) == THRESHOLD + count


@pytest.mark.parametrize("answer", [OK, http(404), http(429)], ids=["ok", "refused", "busy"])
async def test_any_answer_to_the_probe_closes_the_circuit(answer: bytes) -> None:
    """Any answer to the probe closes the circuit; later failures are retried again."""
    time = Time()
    async with serving([*[http(500)] * THRESHOLD, answer, http(500)]) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(1)
        await asyncio.gather(client.get("/x", patience=SECOND), return_exceptions=True)
        time.pass_by(1)
        await failure_of(client)
        assert len(api.requests) == THRESHOLD + 1 + ATTEMPTS


async def test_one_probe_at_a_time_goes_through() -> None:
    """One probe at a time is sent and the others fail; a cancelled probe leaves its place to another."""
    time, asked = Time(), asyncio.Event()

    async def answer(request: Request, _: Any) -> bytes:
        if request.path == "/probe":
            asked.set()
            await asyncio.Event().wait()
        return OK if request.path == "/x" else http(500)

    async with serving(answer) as api, client_of(api.url, time) as client:
        await broken(client)
        time.pass_by(1)
        probe = asyncio.create_task(client.get("/probe"))
        await asked.wait()
        time.pass_by(100)
        assert str(await failure_of(client)).endswith("a probe is on its way")
        assert len(api.requests) == THRESHOLD + 1
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert await client.get("/x") == b"ok"


async def test_listings_that_always_fail_do_not_keep_the_others_waiting() -> None:
    """A path that never answered does not open the circuit again once another path has answered."""
    time, well = Time(), ["/well"]

    async def answer(request: Request, _: Any) -> bytes:
        return OK if request.path in well else http(503)

    async with serving(answer) as api, client_of(api.url, time) as client:
        for _ in range(3):
            await failure_of(client, "/bad")
            time.pass_by(60)
        assert await client.get("/well") == b"ok"
        for _ in range(3 * THRESHOLD):
            await failure_of(client, "/bad", patience=SECOND / 10)
        assert await client.get("/well") == b"ok"

        well.append("/bad")  # once it has answered, it counts again
        assert await client.get("/bad") == b"ok"
        well.clear()
        for _ in range(THRESHOLD):
            await failure_of(client, "/bad", patience=SECOND / 10)
        sent = len(api.requests)
        assert "not asked" in str(await failure_of(client, "/well"))
        assert len(api.requests) == sent


async def test_an_api_that_refuses_or_is_busy_is_there() -> None:
    """Refusals and 429 never open the circuit."""
    time = Time()
    for answer in (http(403), http(429)):
        async with serving(answer) as api, client_of(api.url, time) as client:
            for _ in range(3 * THRESHOLD):
                assert isinstance(await failure_of(client, patience=SECOND), SourceRefused | SourceUnavailable)
                time.pass_by(1)
            assert len(api.requests) == 3 * THRESHOLD


# Laws of :mod:`poller.source.retry`.

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def at(seconds: float, start: datetime = NOON) -> str:
    """An HTTP date this number of seconds after the start."""
    return format_datetime(start + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("0", 1),
        ("0.2", 1),
        ("007", 7),
        ("3600", 3600),
        ("3601", 3600),
        (str(10**9), 3600),
        ("9" * 5000, 3600),
        ("-5", 1),
        ("+5", 1),
        ("1e3", 1),
        ("٣٠", 1),
        ("soon", 1),
        ("", 1),
        (None, 1),
        ("inf", 1),
        ("nan", 1),
        ("5, 10", 1),
        (at(30), 30),
        (at(0), 1),
        (at(-3600), 1),
        (at(10**8), 3600),
        ("Saturday, 01-Mar-25 12:00:30 GMT", 30),
        ("Sat Mar  1 12:00:30 2025", 30),
        ("Sat, 01 Mar 2025 12:00:30 -0000", 30),
        ("Sat, 99 Mar 2025 12:00:30 GMT", 1),
        ("Sat, 01 Mar 99999 12:00:30 GMT", 1),
    ],
)
def test_what_is_sent_is_read_between_floor_and_cap(value: str | None, seconds: float) -> None:
    """Retry-After as seconds or a date is kept within the bounds; nonsense and the past are the floor."""
    assert pause_within_bounds(value, date=None, now=NOON) == timedelta(seconds=seconds)


@pytest.mark.parametrize("wrong", [-7200, 0, 7200])
def test_a_date_counts_from_the_answers_own_date(wrong: int) -> None:
    """A date in Retry-After counts from the answer's own Date."""
    now = NOON + timedelta(seconds=wrong)
    assert pause_within_bounds(at(30), date=at(0), now=now) == timedelta(seconds=30)
    assert pause_within_bounds(at(30), date="yesterday", now=NOON) == timedelta(seconds=30)


@given(
    st.text() | st.integers().map(str) | st.floats().map(str),
    st.none() | st.text(),
    st.datetimes(timezones=st.just(UTC)),
)
def test_nothing_that_is_sent_breaks_the_bounds(value: str, date: str | None, now: datetime) -> None:
    """Any text at all is a pause between floor and cap."""
    assert FLOOR <= pause_within_bounds(value, date=date, now=now) <= CAP


def step(outcome: ExchangeOutcome, *, attempt: int = 1, jitter: float = 1.0) -> Step:
    return step_after(outcome, attempt=attempt, jitter=jitter, now=NOON)


@pytest.mark.parametrize(
    ("outcome", "expected", "answering"),
    [
        (ExchangeOutcome(200), NoRetry(), True),
        (ExchangeOutcome(304), NoRetry(), True),
        (ExchangeOutcome(401), NoRetry(), True),
        (ExchangeOutcome(404, retry_after="9"), NoRetry(), True),
        (ExchangeOutcome(429), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="0"), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="soon"), PauseSource(FLOOR), True),
        (ExchangeOutcome(429, retry_after="9"), PauseSource(9 * SECOND), True),
        (ExchangeOutcome(429, retry_after="999999999"), PauseSource(CAP), True),
        (ExchangeOutcome(503, retry_after="9"), PauseSource(9 * SECOND), False),
        (ExchangeOutcome(503, retry_after="soon"), PauseSource(FLOOR), False),
        (ExchangeOutcome(500, retry_after="9"), PauseSource(9 * SECOND), False),
        (ExchangeOutcome(503), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(599), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(408, retry_after="9"), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(425), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(), RetryLater(FIRST_PAUSE), False),
        (ExchangeOutcome(closed=True), RetryLater(timedelta(0)), False),
    ],
)
def test_the_table(outcome: ExchangeOutcome, expected: Step, answering: bool) -> None:
    """The step that follows each outcome, and whether the outcome shows that the API answers."""
    assert (step(outcome), outcome.answering) == (expected, answering)


@given(st.integers(100, 999), st.integers(1, 50), st.floats(0.5, 1.5))
def test_only_what_may_pass_is_tried_again(status: int, attempt: int, jitter: float) -> None:
    """Only 408, 425, 429 and 5xx are retried."""
    stands = isinstance(step(ExchangeOutcome(status), attempt=attempt, jitter=jitter), NoRetry)
    assert stands == (status not in {408, 425, 429} and status < 500)


@given(st.integers(1, 20), st.floats(0.5, 1.5))
def test_pauses_double_and_are_jittered(attempt: int, jitter: float) -> None:
    """Each pause is twice the one before, up to a limit, also after a second closed connection."""
    for outcome in (ExchangeOutcome(502), ExchangeOutcome()):
        expected = FIRST_PAUSE * 2 ** min(attempt - 1, DOUBLINGS) * jitter
        assert step(outcome, attempt=attempt, jitter=jitter) == RetryLater(expected)
    assert step(ExchangeOutcome(closed=True), attempt=attempt + 1) == RetryLater(
        FIRST_PAUSE * 2 ** min(attempt, DOUBLINGS)
    )


@given(st.sampled_from([429, 500, 503]), st.integers(1, 20), st.floats(0.0, 1.5))
def test_the_jitter_never_shortens_what_was_asked_for(status: int, attempt: int, jitter: float) -> None:
    """The jitter does not change a pause that the API asked for."""
    assert step(ExchangeOutcome(status, retry_after="10"), attempt=attempt, jitter=jitter) == PauseSource(10 * SECOND)


@given(
    st.integers(1, 10),
    st.timedeltas(timedelta(0), timedelta(hours=2)),
    st.timedeltas(timedelta(hours=-1), timedelta(hours=2)),
)
def test_attempts_and_waiting_stay_within_their_bounds(attempt: int, wait: timedelta, left: timedelta) -> None:
    """No attempt exceeds the limit, and none begins after the patience has ended."""
    assert is_affordable(wait, attempt=attempt, left=left) == (attempt < ATTEMPTS and wait < left)
