"""Laws of :mod:`poller.store.scripts`: the head of each script, sending until answered, and batches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import ResponseError

from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import commands, servers, until_answered
from poller.store import scripts
from poller.store.scripts import LATER, MOST_FIRST, CallGathering, ScriptBatch, ScriptCall, ScriptQuestion, lua
from tests.acl import running_with_acl
from tests.harness.clock import StubClock
from tests.harness.waiting import turns

SCRIPTS = sorted(Path(scripts.__file__).parent.glob("lua/*.lua"))


class Sent:
    """A request that breaks this number of times before it is answered; notes each pause."""

    def __init__(self, breaks: int) -> None:
        self.times = 0
        self.pauses: list[float] = []
        self._breaks = breaks

    async def send(self) -> str:
        self.times += 1
        if self.times <= self._breaks:
            raise Broken("the reply was lost")
        return "OK"

    @property
    def clock(self) -> StubClock:
        return StubClock(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_it_is_sent_until_it_is_answered() -> None:
    """A request is repeated until it is answered, with pauses that double up to a second."""
    sent = Sent(breaks=7)
    answer = await until_answered(FakeAsyncRedis(), sent.send, within=timedelta(minutes=1), clock=sent.clock)
    assert (answer, sent.times) == ("OK", 8)
    assert sent.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_it_is_not_sent_when_the_lease_may_be_over() -> None:
    """A request is not repeated once the lease may have ended, since another process may hold it."""
    sent = Sent(breaks=9)
    with pytest.raises(StoreUnavailable):
        await until_answered(FakeAsyncRedis(), sent.send, within=timedelta(milliseconds=40), clock=sent.clock)
    assert sent.times == 1


async def test_what_is_refused_is_not_sent_again() -> None:
    """A refused request is not repeated."""
    times = 0

    async def send() -> None:
        nonlocal times
        times += 1
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    with pytest.raises(StoreRefused):
        await until_answered(FakeAsyncRedis(), send, within=timedelta(minutes=1), clock=StubClock())
    assert times == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_says_what_it_takes_and_answers(path: Path) -> None:
    """Each script opens with a sentence, the KEYS and ARGV that it uses, and its answer; a part says of what."""
    text = path.read_text("utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("--"))
    assert re.match(r"-- [A-Z].*\.\n", head)
    if head.startswith("-- Part of"):
        return
    body = text.removeprefix(head)
    assert not [name for name in ("KEYS", "ARGV") if f"{name}[" in body and name not in head]
    assert "return" not in body or "Answers" in head
    assert "include" not in lua(path.stem)


# Batches, on all stores: together, scripts do what each does by itself.

ECHO = "return {KEYS, ARGV}"
COUNT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
READ = "return redis.call('GET', KEYS[1])"
ONE, TWO, THREE = "poller:{one}:n", "poller:{two}:n", "poller:{three}:n"  # on a cluster each is on another server


async def test_each_call_has_its_own_keys_arguments_and_answer(store_client: Redis) -> None:
    """Answers come in the order of the calls; a call sees no keys or arguments of another."""
    calls = [
        ScriptCall(COUNT, (ONE,), (5,)),
        ScriptCall(ECHO, (TWO, "poller:{two}:m"), ("a", b"\xff", "")),
        ScriptCall(COUNT, (ONE,), (2,)),
        ScriptCall(READ, (THREE,)),
        ScriptCall(ECHO, (ONE,)),
        ScriptCall(COUNT, (THREE,), (1,)),
    ]
    answers = await ScriptBatch(store_client).send(calls)
    assert answers[1] == [[TWO.encode(), b"poller:{two}:m"], [b"a", b"\xff", b""]]
    assert (answers[3] in {None, b"1"}, answers[4:]) == (True, [[[ONE.encode()], []], 1])
    assert sorted([answers[0], answers[2]]) in ([5, 7], [2, 7])


@pytest.mark.parametrize("value", ["nil", "false", "0", "''", "'x'", "{}", "{0, false, 'x', {1}}", "{ok = 'FINE'}"])
async def test_an_answer_is_that_of_the_script_alone(store_client: Redis, value: str) -> None:
    """A script's answer is the same in a batch as alone, also if it answers nothing."""
    batch, call = ScriptBatch(store_client), ScriptCall(f"return {value}", (ONE,))
    alone = await batch.run(call)
    assert await batch.send([call, ScriptCall(COUNT, (ONE,), (1,))]) == [alone, 1]
    assert await batch.send([call]) == [alone]


async def test_a_call_that_fails_ends_no_other(store_client: Redis) -> None:
    """A failed call leaves the others' answers; its own answer is the error that it raises alone."""
    batch = ScriptBatch(store_client)
    await store_client.hset(TWO, "a", "b")
    wrong = ScriptCall(COUNT, (TWO,), (1,))
    with pytest.raises(StoreRefused) as alone:
        await batch.run(wrong)
    first, error, last = await batch.send([ScriptCall(COUNT, (ONE,), (3,)), wrong, ScriptCall(COUNT, (THREE,), (4,))])
    assert (first, last) == (3, 4)
    assert isinstance(error, StoreRefused)
    assert str(error) == str(alone.value)


class _Counted(Redis):
    """Counts the requests with scripts.

    Attributes:
        requests: the number so far.
        away: whether the store does not answer.
    """

    requests = 0
    away = False

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.requests += str(args[0]).startswith("EVAL")
        if self.away:
            raise Broken("away")
        return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py's


async def test_all_calls_are_one_request(server: str) -> None:
    """On one server, once the script is loaded, any batch is one request."""
    async with _Counted.from_url(server) as client:
        assert isinstance(client, _Counted)
        batch = ScriptBatch(client, shebang="#!lua\n")
        calls = [ScriptCall(source, (key,), (1,)) for source in (COUNT, ECHO) for key in (ONE, TWO, THREE)]
        await batch.send(calls)
        client.requests = 0
        await batch.send(calls)
        await batch.send(calls[::-1])
        assert client.requests == 2


async def test_no_request_has_keys_of_several_servers(any_store: str) -> None:
    """On a cluster each call is sent by itself, and no server refuses a request for keys of several slots."""
    async with commands(any_store) as client:
        calls = [ScriptCall(COUNT, (key,), (1,)) for key in (ONE, TWO, THREE)]
        before = await _refusals(client)
        assert await ScriptBatch(client).send(calls) == [1, 1, 1]
        assert await _refusals(client) == before


async def _refusals(client: Redis) -> int:
    """How many requests all servers have refused for keys of several slots."""
    counted = [await one.info("errorstats") for one in await servers(client)]
    return sum(one.get("errorstat_CROSSSLOT", {}).get("count", 0) for one in counted)


async def test_a_store_that_is_away_fails_each(server: str) -> None:
    """An unavailable store raises nothing; each call gets the error, and the next batch may be answered."""
    async with _Counted.from_url(server) as client:
        assert isinstance(client, _Counted)
        batch = ScriptBatch(client)
        calls = [ScriptCall(COUNT, (ONE,), (1,)), ScriptCall(READ, (TWO,))]
        client.away = True
        assert [type(answer) for answer in await batch.send(calls)] == [StoreUnavailable] * 2
        assert client.requests == 1
        client.away = False
        assert await batch.send(calls) == [1, None]


async def test_a_key_that_is_refused_is_refused_for_its_call_alone(tmp_path: Path) -> None:
    """If a server refuses one key of a batch, only that call fails and the others run."""
    with running_with_acl("valkey", tmp_path / "a") as guarded:
        async with commands(guarded.url) as client:
            calls = [ScriptCall(COUNT, (ONE,), (1,)), ScriptCall(READ, ("another:{two}:n",))]
            found, error = await ScriptBatch(client, shebang="#!lua\n").send(calls)
    assert found == 1
    assert isinstance(error, StoreRefused)


async def test_a_question_that_nobody_asks_any_more_takes_its_answer_silently() -> None:
    """An answer for a cancelled or answered question is ignored."""
    asked = ScriptQuestion(ScriptCall(READ, (ONE,)), asyncio.get_running_loop().create_future())
    asked.answer.cancel()
    asked.settle(StoreUnavailable("away"))
    asked.settle(1)
    assert asked.answer.cancelled()
    other = ScriptQuestion(ScriptCall(READ, (ONE,)), asyncio.get_running_loop().create_future())
    other.settle(StoreRefused("no"))
    with pytest.raises(StoreError, match="no"):
        await other.answer


# Gathering: calls that come at nearly the same time are one request.


class Requests:
    """Requests that are answered when the test says so; each answer is the call in capitals."""

    def __init__(self, *, following: CallGathering[str] | None = None) -> None:
        self.seen: list[list[str]] = []
        self.given_up = 0
        self.free = asyncio.Event()
        self.answers: dict[str, list[Any]] = {}  # in place of the usual one, the first time
        self.calls = CallGathering(self._send, weight=len, most=6, following=following)

    async def _send(self, calls: Sequence[str]) -> Sequence[Any]:
        self.seen.append(list(calls))
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if "broken" in calls:
            raise StoreUnavailable("it is broken")
        return [self.answers[call].pop() if self.answers.get(call) else call.upper() for call in calls]

    def ask(self, *calls: str) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.calls.ask(call)) for call in calls]


async def test_what_comes_while_a_request_is_under_way_is_the_next_request() -> None:
    """Calls of one turn are one request; those that come during it are the next one, in order, up to the weight."""
    requests = Requests()
    first = requests.ask("a", "b")
    await turns(9)
    later = requests.ask("cc", "dd", "ee", "f", "too heavy", "g")
    await turns(9)
    assert requests.seen == [["a", "b"]]
    requests.free.set()
    assert await asyncio.gather(*first, *later) == ["A", "B", "CC", "DD", "EE", "F", "TOO HEAVY", "G"]
    assert requests.seen == [["a", "b"], ["cc", "dd", "ee"], ["f"], ["too heavy"], ["g"]]
    assert await requests.calls.ask("h") == "H"


async def test_a_failure_is_that_of_its_calls_alone() -> None:
    """A request that fails fails all of its calls; an error in place of an answer fails that call; the next goes on."""
    requests = Requests()
    requests.answers["b"] = [StoreRefused("not b")]
    asked = requests.ask("a", "b", "c")
    await turns(9)
    broken = requests.ask("broken")
    await turns(9)
    after = requests.ask("d")
    requests.free.set()
    answers = await asyncio.gather(*asked, *broken, *after, return_exceptions=True)
    assert [str(one) for one in answers] == ["A", "not b", "C", "it is broken", "D"]


async def test_a_call_that_was_put_off_goes_first_with_the_next_request() -> None:
    """A call that was not carried out is sent again, before those that came later."""
    requests = Requests()
    requests.answers = {"b": [LATER], "c": [LATER]}
    asked = requests.ask("a", "b", "c")
    await turns(9)
    asked += requests.ask("d")
    requests.free.set()
    assert await asyncio.gather(*asked) == ["A", "B", "C", "D"]
    assert requests.seen == [["a", "b", "c"], ["b", "c", "d"]]


async def test_calls_that_follow_others_wait_while_some_of_those_wait() -> None:
    """Calls go alone where nothing goes first; else after the last of those that have come before them."""
    first = Requests()
    then = Requests(following=first.calls)
    then.free.set()
    assert await asyncio.gather(*then.ask("a")) == ["A"]
    asked = first.ask("heavy", "heavy", "heavy")
    await turns(9)
    followed = then.ask("b")
    await turns(9)
    assert (first.seen, then.seen) == ([["heavy"]], [["a"]])
    first.free.set()
    assert await asyncio.gather(*asked, *followed) == ["HEAVY", "HEAVY", "HEAVY", "B"]
    first.free.clear()
    asked = first.ask("c")
    await turns(9)
    assert await asyncio.gather(*then.ask("d")) == ["D"], "one that is under way keeps nothing waiting"
    first.free.set()
    await asyncio.gather(*asked)


async def test_what_goes_first_without_end_keeps_nothing_waiting_for_ever() -> None:
    """After so many requests that went first, those that follow are sent, whatever waits there."""
    first = Requests()
    then = Requests(following=first.calls)
    first.free.set()
    then.free.set()
    asked = first.ask(*["heavy"] * (MOST_FIRST + 9))
    assert await asyncio.gather(*then.ask("a")) == ["A"]
    assert MOST_FIRST <= len(first.seen) < len(asked)
    await asyncio.gather(*asked)


async def test_what_is_not_awaited_any_more_is_not_sent() -> None:
    """A cancelled call is not sent. A request goes on as long as one of its calls is awaited, else it is given up.

    The next request is sent only when that has ended: a later call must not overtake an earlier one.
    """
    requests = Requests()
    one, two = requests.ask("a", "b")
    await turns(9)
    three, four = requests.ask("c", "d")
    await turns(9)
    one.cancel()
    three.cancel()
    await turns(9)
    assert (requests.given_up, requests.seen) == (0, [["a", "b"]])
    two.cancel()
    await turns(9)
    assert (requests.given_up, requests.seen) == (1, [["a", "b"], ["d"]])
    requests.free.set()
    assert await four == "D"
    assert all(
        isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(one, two, three, return_exceptions=True)
    )
