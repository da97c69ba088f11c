"""Laws of :mod:`poller.client.repeats`: what stores remember, for how long, and who may work on an event."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st

from poller.client import MemoryStore, RedisStore, SeenStore, verify
from poller.client.repeats import Claims, key_of
from tests.client.webhooks import STRUCTURED, event
from tests.harness.waiting import blocking_until


class Seconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "redis"])
def made(request: pytest.FixtureRequest) -> Callable[[], SeenStore]:
    """Makes stores of one kind that start with nothing."""
    if request.param == "memory":
        return MemoryStore
    request.getfixturevalue("one_server")
    url = request.getfixturevalue("store_url")
    return lambda: RedisStore(url)


def test_it_knows_what_was_added(made: Callable[[], SeenStore]) -> None:
    """A store contains what was added, however often, and nothing else."""
    store = made()
    assert not store.contains("a")
    store.add("a")
    store.add("a")
    assert store.contains("a")
    assert not store.contains("b")


def test_the_key_is_of_source_and_id() -> None:
    """Events with one id of two sources have different keys, whatever the texts hold; repeats have the same one."""
    spellings = [("1", "s"), ("1", "t"), ("1s", ""), ('1","s', "x"), ("1", 's","1'), ("é", "s")]
    keys = []
    for event_id, source in spellings:
        for _ in range(2):
            (found,) = verify({"content-type": STRUCTURED}, event(event_id, source=source or "x"), None)
            keys.append(key_of(found))
    assert len(set(keys)) == len(spellings)
    assert {len(key) for key in keys} == {32}


def test_memory_is_bounded_by_number() -> None:
    """The events that were handled first are forgotten when there are too many; handling one again renews it."""
    store = MemoryStore(most=3)
    for key in ("a", "b", "c", "a", "d"):
        store.add(key)
    assert len(store) == 3
    assert [key for key in "abcd" if store.contains(key)] == ["a", "c", "d"]


def test_memory_is_bounded_by_age() -> None:
    """An event is forgotten when its time is over, and not before; then it takes no memory."""
    seconds = Seconds()
    store = MemoryStore(age=timedelta(minutes=1), monotonic=seconds)
    store.add("a")
    seconds.now += 59
    store.add("b")
    assert store.contains("a")
    seconds.now += 1
    assert not store.contains("a")
    assert store.contains("b")
    assert len(store) == 1


@pytest.mark.parametrize("arguments", [(0, timedelta(1)), (1, timedelta(0))])
def test_a_memory_of_nothing_is_refused(arguments: tuple[int, timedelta]) -> None:
    """A store that would remember nothing is refused."""
    with pytest.raises(ValueError, match="expected"):
        MemoryStore(*arguments)


def test_redis_remembers_for_all_processes(server: str) -> None:
    """Two stores of one prefix know the same events, those of another prefix know none of them."""
    RedisStore(server).add("a")
    assert RedisStore(server).contains("a")
    assert not RedisStore(server, "other:").contains("a")
    with redis.Redis.from_url(server) as client:
        assert RedisStore(client).contains("a")


def test_redis_forgets(server: str) -> None:
    """A key in Redis expires after the store's time, and its name is prefix and key."""
    RedisStore(server, ttl=timedelta(milliseconds=1)).add("short")
    RedisStore(server, "p:", ttl=timedelta(days=3)).add("long")
    with redis.Redis.from_url(server) as client:
        assert 0 < client.pttl("p:long") <= 3 * 86_400_000
    blocking_until(lambda: not RedisStore(server).contains("short"), "the key to expire")


def test_what_is_no_store_is_refused(server: str) -> None:
    """A client of asyncio would say that every event was handled; it is refused, like a URL or a time that is none."""
    with pytest.raises(TypeError, match="one loop"):
        RedisStore(redis.asyncio.Redis.from_url(server))  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(ValueError, match="scheme"):
        RedisStore("http://127.0.0.1")
    with pytest.raises(ValueError, match="ttl"):
        RedisStore(server, ttl=timedelta())


def test_a_server_that_is_away_is_an_error() -> None:
    """A store whose server is away raises an error, and says neither yes nor no."""
    away = RedisStore("redis://127.0.0.1:1")
    with pytest.raises(redis.RedisError):
        away.contains("a")
    with pytest.raises(redis.RedisError):
        away.add("a")


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_a_claim_is_of_one(keys: list[str]) -> None:
    """Of all who claim an event one has it; the others learn when it was released, and may claim again."""
    claims, held = Claims(), set()
    for key in keys:
        running = claims.claim(key)
        assert (running is None) is (key not in held)
        if running is None:
            held.add(key)
            continue
        assert not running.done()
        assert not running.cancel()
        claims.release(key)
        assert running.done()
        held.discard(key)


def test_threads_work_on_an_event_one_by_one() -> None:
    """Many threads that claim one event have it one after the other, and each has its turn."""
    claims, working, most, turns = Claims(), 0, 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal working, most, turns
        while (running := claims.claim("a")) is not None:
            running.result()
        with lock:
            working += 1
            most = max(most, working)
        with lock:
            working -= 1
            turns += 1
        claims.release("a")

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, turns) == (1, 16)
