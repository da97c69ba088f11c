"""Laws of :mod:`poller.store.script_batch`, on all stores: together, scripts do what each does by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken

from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import commands, servers
from poller.store.script_batch import ScriptBatch, ScriptCall, ScriptQuestion
from tests.acl import running_with_acl

ECHO = "return {KEYS, ARGV}"
COUNT = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
READ = "return redis.call('GET', KEYS[1])"
ONE, TWO, THREE = "poller:{one}:n", "poller:{two}:n", "poller:{three}:n"  # on a cluster each is on another server


async def test_each_call_has_its_own_keys_arguments_and_answer(store_client: Redis) -> None:
    """Law: the answers come in the order of the calls; a call sees nothing of the others' keys and arguments."""
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
    """Law: whatever a script answers, in a batch it is the same; also where it answers nothing."""
    batch, call = ScriptBatch(store_client), ScriptCall(f"return {value}", (ONE,))
    alone = await batch.run(call)
    assert await batch.send([call, ScriptCall(COUNT, (ONE,), (1,))]) == [alone, 1]
    assert await batch.send([call]) == [alone]


async def test_a_call_that_fails_ends_no_other(store_client: Redis) -> None:
    """Law: its error stands in its place and is the one that it raises alone, which names the key."""
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
        requests: so far.
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
    """Law: on one server, once its script is loaded, a batch of any scripts is one request."""
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
    """Law: a cluster, which would refuse it, gets each call by itself; no server of any store refuses anything."""
    async with commands(any_store) as client:
        calls = [ScriptCall(COUNT, (key,), (1,)) for key in (ONE, TWO, THREE)]
        before = await _refusals(client)
        assert await ScriptBatch(client).send(calls) == [1, 1, 1]
        assert await _refusals(client) == before


async def _refusals(client: Redis) -> int:
    """Of requests with keys of several servers, by all servers."""
    counted = [await one.info("errorstats") for one in await servers(client)]
    return sum(one.get("errorstat_CROSSSLOT", {}).get("count", 0) for one in counted)


async def test_a_store_that_is_away_fails_each(server: str) -> None:
    """Law: nothing is raised; each call has the error, and the next batch may be answered."""
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
    """Law: a server that refuses a whole batch because of one key carries out the other calls."""
    with running_with_acl("valkey", tmp_path / "a") as guarded:
        async with commands(guarded.url) as client:
            calls = [ScriptCall(COUNT, (ONE,), (1,)), ScriptCall(READ, ("another:{two}:n",))]
            found, error = await ScriptBatch(client, shebang="#!lua\n").send(calls)
    assert found == 1
    assert isinstance(error, StoreRefused)


async def test_a_question_that_nobody_asks_any_more_takes_its_answer_silently() -> None:
    """Law: an asker that was cancelled, or has its answer already, is no reason for an error."""
    asked = ScriptQuestion(ScriptCall(READ, (ONE,)), asyncio.get_running_loop().create_future())
    asked.answer.cancel()
    asked.settle(StoreUnavailable("away"))
    asked.settle(1)
    assert asked.answer.cancelled()
    other = ScriptQuestion(ScriptCall(READ, (ONE,)), asyncio.get_running_loop().create_future())
    other.settle(StoreRefused("no"))
    with pytest.raises(StoreError, match="no"):
        await other.answer
