"""Laws of the simulated store that the suite of ``tests/store`` does not state: its clock, its faults, who is told."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import hiredis
import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, NoScriptError, OutOfMemoryError, ReadOnlyError
from redis.exceptions import ConnectionError as Disconnected

from poller.redis.client import blocking, commands
from tests.harness.waiting import until
from tests.simulation.store import Executed, SimulatedStore
from tests.stores import clients_of

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = 1_767_225_600_000


class World:
    """A store whose clock is moved by hand."""

    def __init__(self, *, depth: int = 500) -> None:
        """Begin."""
        self.now = START
        self.store = SimulatedStore(lambda: self.now, Random(1), depth=depth)

    def move(self, milliseconds: float) -> None:
        """Let this much time pass."""
        self.now += timedelta(milliseconds=milliseconds)


@asynccontextmanager
async def clients(store: SimulatedStore, directory: Path) -> AsyncIterator[tuple[Redis, Redis]]:
    """A client for commands, and one for reads that wait."""
    nine = timedelta(seconds=9)
    async with served(store, directory) as url, commands(url) as client, blocking(url, block=nine) as reader:
        yield client, reader


@asynccontextmanager
async def served(store: SimulatedStore, directory: Path) -> AsyncIterator[str]:
    """The URL of a store on a real socket."""
    server = await asyncio.get_running_loop().create_unix_server(store.protocol, directory / "s")
    try:
        yield f"unix://{directory / 's'}"
    finally:
        server.close()
        for connection in list(store._connections):
            connection.close()
        await server.wait_closed()


def test_time_is_that_of_its_clock() -> None:
    """Law: TIME goes by the clock to the microsecond, entry ids and expiry to the millisecond."""
    world = World()
    store = world.store
    for number in range(1000):  # seconds that are no round number in binary
        assert store.read("XADD", "s", "*", "f", "v") == f"{START_MS + number}-0".encode()
        world.move(1)
    world.move(0.123)
    assert store.read("TIME") == [b"1767225601", b"123"]
    assert store.read("EVAL", "return redis.call('TIME')", "0") == [b"1767225601", b"123"]
    store.set_clock(timedelta(hours=-1))
    assert store.read("TIME") == [b"1767222001", b"123"]
    assert store.read("XADD", "s", "*", "f", "v") == f"{START_MS + 999}-1".encode()


def test_a_key_lasts_until_its_time_is_over() -> None:
    """Law: as on the real server it is there in the millisecond in which it expires, and gone in the next."""
    world = World()
    world.move(0.9)
    world.store.read("SET", "a", "x", "PX", "100")
    world.move(100.05)
    assert (world.store.read("PTTL", "a"), world.store.read("EXISTS", "a")) == (0, 1)
    world.move(0.1)
    assert (world.store.read("PTTL", "a"), world.store.read("EXISTS", "a")) == (-2, 0)


async def test_a_read_waits_until_something_is_written(tmp_path: Path) -> None:
    """Law: blocked readers are served after the write, whoever writes and however; what they sent since comes next."""
    world = World()
    async with clients(world.store, tmp_path) as (client, reader):
        await client.xgroup_create("s", "g", id="0", mkstream=True)
        reading = asyncio.ensure_future(reader.xread({"s": "$"}, block=9000))
        grouped = asyncio.ensure_future(reader.xreadgroup("g", "c", {"s": ">"}, block=9000))
        await until(lambda: _blocked(client, 2), "both to wait")
        await client.eval("redis.call('XADD', KEYS[1], '7-0', 'f', 'v')", 1, "s")
        found = [[b"s", [(b"7-0", {b"f": b"v"})]]]
        assert (await reading, await grouped) == (found, found)
        assert (await client.xpending("s", "g"))["pending"] == 1
        assert await reader.xread({"s": "$"}, block=1) == []
        assert await clients_of(client, "blocked") == 0


async def _blocked(client: Redis, count: int) -> bool:
    return await clients_of(client, "blocked") == count


async def test_a_restart_loses_the_last_writes(tmp_path: Path) -> None:
    """Law: exactly the last N are gone, reads do not count; connections are reset and scripts forgotten."""
    world = World()
    async with served(world.store, tmp_path) as url, commands(url) as client:
        sha = await client.script_load("return 1")
        for number in range(5):
            await client.xadd("s", {"f": number})
            await client.get("nothing")
            await client.delete("nothing")
        before = (await client.info("server"))["run_id"]
        assert world.store.lose_last(2) == 2
        with pytest.raises(Disconnected):
            await client.ping()
        with pytest.raises(NoScriptError):
            await client.evalsha(sha, 0)
        assert await client.xlen("s") == 3
        assert (await client.info("server"))["run_id"] != before


@pytest.mark.parametrize("lost", [1, 4, 5, 6, 10, 15])  # copies are made after 20 and 30
def test_what_is_left_after_a_loss_is_what_was_there(lost: int) -> None:
    """Law: whichever writes are lost, the rest is as it was after the last that is not, with its times and groups."""
    world = World(depth=10)
    states = [_dump(world)]
    for number in range(35):
        world.move(7)
        _write(world.store, number)
        if world.store.history.count == len(states):
            states.append(_dump(world))
    world.move(1)
    assert len(states) == 36
    assert world.store.lose_last(lost) == lost
    assert _dump(world) == states[35 - lost]
    _write(world.store, 99)
    assert world.store.lose_last(1) == 1
    assert _dump(world) == states[35 - lost]


def test_no_more_is_lost_than_is_kept() -> None:
    """Law: what is asked for beyond the kept history is not lost; what there is not cannot be."""
    world = World(depth=10)
    for number in range(5):
        _write(world.store, number)
    assert (world.store.lose_last(7), world.store.read("DBSIZE")) == (5, 0)
    for number in range(40):
        _write(world.store, number)
    assert 10 <= world.store.lose_last(100) < 40


@pytest.mark.parametrize("trouble", ["read_only", "loading"])
def test_a_restart_in_trouble_keeps_what_was_written(trouble: str) -> None:
    """Law: a server that refuses writes when it is restarted has all that it had written before."""
    store = World().store
    store.read("EVAL", "#!lua\nredis.call('SET', KEYS[1], ARGV[1])", "1", "a", "1")
    store.read("SET", "b", "2")
    getattr(store, trouble)(on=True)
    assert store.lose_last(0) == 0
    assert store.read("MGET", "a", "b") == [b"1", b"2"]


def test_a_transaction_is_lost_as_one() -> None:
    """Law: what was written together is there, or not there, together."""
    store = World().store
    for words in (["SET", "a", "1"], ["MULTI"], ["INCR", "a"], ["INCR", "b"], ["EXEC"], ["SET", "c", "1"]):
        store.read(*words)
    assert store.lose_last(1) == 1
    assert store.read("MGET", "a", "b", "c") == [b"2", b"1", None]
    assert store.lose_last(1) == 1
    assert store.read("MGET", "a", "b", "c") == [b"1", None, None]


def _write(store: SimulatedStore, number: int) -> None:
    """One write, of another kind for each number."""
    kinds = [
        ["XADD", "s", "*", "f", str(number)],
        ["HSET", "h", f"f{number}", "v"],
        ["EVAL", "redis.call('ZADD', KEYS[1], redis.call('TIME')[2], ARGV[1])", "1", "z", str(number)],
        ["SET", f"k{number}", "v", "PX", "30"],
        ["XGROUP", "CREATE", "s", f"g{number}", "0", "MKSTREAM"],
        ["XREADGROUP", "GROUP", f"g{number - 1}", "c", "STREAMS", "s", ">"],
        ["XACK", "s", f"g{number - 2}", store.read("XREVRANGE", "s", "+", "-", "COUNT", "1")[0][0].decode()]
        if number % 7 == 6
        else [],
    ]
    if number == 99:
        kinds = [["XADD", "s", "*", "f", "99"]] * 7
    store.read(*kinds[number % 7])


def _dump(world: World) -> object:
    store = world.store
    read = [["HGETALL", "h"], ["ZRANGE", "z", "0", "-1", "WITHSCORES"], ["XRANGE", "s", "-", "+"]]
    found: list[object] = [store.read(*words) for words in read]
    if store.read("EXISTS", "s"):
        found.append(store.read("XINFO", "GROUPS", "s"))
    return found


def test_a_copy_takes_over() -> None:
    """Law: it lacks the last writes, has no scripts and another name, and names the history that it came from."""
    world = World()
    sha = world.store.read("SCRIPT", "LOAD", "return 1")
    for number in range(5):
        world.store.read("SET", f"k{number}", "v")
    before = _replication(world.store)
    assert world.store.fail_over(3) == 3
    assert world.store.read("DBSIZE") == 2
    after = _replication(world.store)
    assert after["master_replid2"] == before["master_replid"]
    assert after["master_replid"] != before["master_replid"]
    assert after["run_id"] != before["run_id"]
    with pytest.raises(hiredis.ReplyError, match="NOSCRIPT"):
        world.store.read("EVALSHA", sha, "0")


def _replication(store: SimulatedStore) -> dict[str, str]:
    text: bytes = store.read("INFO")
    return dict(line.split(":", 1) for line in text.decode().split("\r\n") if ":" in line)


async def test_a_server_in_trouble_refuses(tmp_path: Path) -> None:
    """Law: OOM, READONLY and LOADING refuse what the real server refuses, before anything is written."""
    world = World()
    store = world.store
    writing = "#!lua\nredis.call('SET', KEYS[1], '1')"
    async with served(store, tmp_path) as url, commands(url) as client:
        for trouble, error in ((store.out_of_memory, OutOfMemoryError), (store.read_only, ReadOnlyError)):
            trouble(True)
            with pytest.raises(error):
                await client.set("a", "1")
            with pytest.raises(error):
                await client.eval(writing, 1, "a")
            assert await client.get("a") is None
            trouble(False)
            assert await client.set("a", "1")
            await client.delete("a")
        store.out_of_memory(True)
        await client.eval(writing.replace("#!lua", "#!lua flags=allow-oom"), 1, "a")
        assert await client.delete("a")
        store.out_of_memory(False)
        store.loading(True)
        with pytest.raises(BusyLoadingError):
            await client.get("a")
        assert (await client.info("persistence"))["loading"] == 1
        store.loading(False)
        assert await client.get("a") is None


async def test_who_waits_is_let_go_when_it_becomes_a_replica(tmp_path: Path) -> None:
    """Law: a blocked reader is told so, and has to connect again."""
    world = World()
    async with clients(world.store, tmp_path) as (client, reader):
        reading = asyncio.ensure_future(reader.xread({"s": "$"}, block=9000))
        await until(lambda: _blocked(client, 1), "it to wait")
        world.store.read_only(True)
        with pytest.raises(Exception, match="UNBLOCKED"):
            await reading
        world.store.read_only(False)


def test_keys_and_scripts_go() -> None:
    """Law: an evicted key and a flush are writes like any other; flushed scripts have to be sent again."""
    world = World()
    store = world.store
    sha = store.read("SCRIPT", "LOAD", "return 1")
    store.read("MSET", "a", "1", "b", "2")
    store.evict("a")
    assert store.read("EXISTS", "a", "b") == 1
    store.flush_all()
    assert store.read("DBSIZE") == 0
    assert store.read("EVALSHA", sha, "0") == 1
    store.flush_scripts()
    with pytest.raises(hiredis.ReplyError, match="NOSCRIPT"):
        store.read("EVALSHA", sha, "0")
    assert store.lose_last(2) == 2
    assert store.read("EXISTS", "a", "b") == 2


def talk() -> str:
    """A digest of what a store answers to whatever may come in some order."""
    world, answers = World(), hashlib.sha256()
    for number in range(200):
        for words in (
            ["SADD", "set", f"member{number * 7 % 200}"],
            ["HSET", "hash", f"field{number * 11 % 200}", "v"],
            ["ZADD", "zset", "1", f"member{number * 13 % 200}"],
            ["SET", f"key{number * 17 % 200}", "v"],
            ["XADD", "s", "*", "f", "v"],
            ["XGROUP", "CREATE", "s", f"group{number * 19 % 200}", "0"],
        ):
            world.store.read(*words)
        world.move(1)
    script = "local t = {} for k in pairs({a = 1, bb = 2, ccc = 3, dddd = 4, e5 = 5}) do t[#t + 1] = k end return t"
    for words in (
        ["SMEMBERS", "set"],
        ["HGETALL", "hash"],
        ["HSCAN", "hash", "0", "COUNT", "50"],
        ["SCAN", "0", "COUNT", "70"],
        ["KEYS", "*"],
        ["ZRANGE", "zset", "0", "-1"],
        ["XINFO", "GROUPS", "s"],
        ["EVAL", script, "0"],
        ["INFO"],
        ["CONFIG", "GET", "*"],
    ):
        answers.update(repr(world.store.read(*words)).encode())
    return answers.hexdigest()


def test_replies_do_not_depend_on_hashes() -> None:
    """Law: another process with another seed of hashes answers the same."""
    asked = [sys.executable, "-c", "from tests.simulation.test_store import talk; print(talk())"]
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    told = subprocess.run(asked, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == talk()


async def test_observers_are_told_what_each_command_has_written(tmp_path: Path) -> None:
    """Law: each command of a client once, scripts as a whole with all keys that they changed, refusals too."""
    world = World()
    seen: list[Executed] = []
    async with served(world.store, tmp_path) as url, commands(url) as client:
        await client.ping()
        world.store.observers.append(seen.append)
        await client.eval("redis.call('SET', KEYS[1], '1') redis.call('HDEL', KEYS[2], 'x') return 5", 2, "a", "b")
        await client.get("a")
        await client.xadd("s", {"f": "v"}, id="5-0")
        await client.xdel("s", "5-0")
        with pytest.raises(Exception, match="WRONGTYPE"):
            await client.xadd("a", {"f": "v"})
        world.store.read("SET", "c", "1")
    told = [(one.words[0], one.written) for one in seen if one.words[0] != b"TYPE"]
    assert told == [(b"EVAL", (b"a",)), (b"GET", ()), (b"XADD", (b"s",)), (b"XDEL", (b"s",)), (b"XADD", ())]
    assert [one.reply for one in seen[:2]] == [5, b"1"]
    assert (seen[0].client, seen[0].at) == ("poller", START)
