"""The simulated store against the real server: whatever is said to both in the same order, both answer the same."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any, cast

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import HiredisRespSerializer

from tests.servers import running
from tests.simulation.store import SimulatedStore
from tests.simulation.store_session import Session

Words = tuple[str, ...]

KEYS = st.sampled_from(["a", "b", "s"])  # each may hold anything, but mostly what comes up most
FIELDS = st.sampled_from(["f", "g", "h"])
TEXTS = st.sampled_from(["", "0", "1", "-7", "x", "1.5", "two words", "10"])
NUMBERS = st.sampled_from(["0", "1", "2", "-1", "-2", "5"])
SCORES = st.sampled_from(["0", "1", "2", "1767225600123", "1.5"])
BOUNDS = st.sampled_from(["-inf", "+inf", "0", "1", "(1", "2", "(1767225600123"])
IDS = st.sampled_from(["0-0", "1-1", "1-2", "2-1", "2", "3-0", "5-5"])
NEW_IDS = st.sampled_from(["0-0", "1-1", "1-2", "2-1", "2", "3-0", "5-5", "5-*", "9-9"])
RANGES = st.sampled_from(["-", "+", "1-1", "(1-1", "2", "(2-1", "3", "0"])
GROUPS = st.sampled_from(["g", "k"])
COUNTS = st.sampled_from(["1", "2", "10"])


def said(*parts: str | st.SearchStrategy[str] | st.SearchStrategy[Words]) -> st.SearchStrategy[Words]:
    """A command of words, of strategies for a word, and of strategies for several."""
    made = [st.just(part) if isinstance(part, str) else part for part in parts]

    def joined(words: tuple[object, ...]) -> Words:
        flat: list[str] = []
        for word in words:
            flat.extend([word] if isinstance(word, str) else cast("Words", word))
        return tuple(flat)

    return st.tuples(*made).map(joined)


def some(*parts: str | st.SearchStrategy[str], most: int = 2, least: int = 0) -> st.SearchStrategy[Words]:
    """These words several times."""
    return st.lists(said(*parts), max_size=most, min_size=least).map(lambda found: sum(found, ()))


COMMANDS = st.one_of(
    said("GET", KEYS),
    said("SET", KEYS, TEXTS, some("NX", most=1), some("PX", "9000000", most=1)),
    said("MGET", KEYS, some(KEYS)),
    said("INCR", KEYS),
    said("INCRBY", KEYS, NUMBERS),
    said("DEL", KEYS, some(KEYS)),
    said("UNLINK", KEYS, some(KEYS)),
    said("EXISTS", KEYS, some(KEYS)),
    said("TYPE", KEYS),
    said("PEXPIRE", KEYS, st.sampled_from(["9000000", "0", "-1"])),
    said("HSET", KEYS, some(FIELDS, TEXTS, least=1)),
    said("HSETNX", KEYS, FIELDS, TEXTS),
    said("HGET", KEYS, FIELDS),
    said("HMGET", KEYS, some(FIELDS, least=1)),
    said("HGETALL", KEYS),
    said("HKEYS", KEYS),
    said("HLEN", KEYS),
    said("HEXISTS", KEYS, FIELDS),
    said("HDEL", KEYS, some(FIELDS, least=1)),
    said("HINCRBY", KEYS, FIELDS, NUMBERS),
    said("ZADD", KEYS, some("NX", most=1), some(SCORES, FIELDS, least=1)),
    said("ZREM", KEYS, some(FIELDS, least=1)),
    said("ZCARD", KEYS),
    said("ZRANGE", KEYS, NUMBERS, NUMBERS, some("WITHSCORES", most=1)),
    said("ZREVRANGE", KEYS, NUMBERS, NUMBERS),
    said("ZRANGEBYSCORE", KEYS, BOUNDS, BOUNDS, some("WITHSCORES", most=1)),
    said("ZREMRANGEBYRANK", KEYS, NUMBERS, NUMBERS),
    said("XADD", KEYS, some("MAXLEN", COUNTS, most=1), NEW_IDS, some(FIELDS, TEXTS, least=1)),
    said("XADD", "s", NEW_IDS, "f", TEXTS),
    said("XADD", "s", NEW_IDS, "f", TEXTS),
    said("XDEL", KEYS, some(IDS, least=1)),
    said("XLEN", KEYS),
    said("XRANGE", KEYS, RANGES, RANGES, some("COUNT", COUNTS, most=1)),
    said("XREVRANGE", KEYS, RANGES, RANGES, some("COUNT", COUNTS, most=1)),
    said("XTRIM", KEYS, "MAXLEN", st.sampled_from(["=", "~"]), COUNTS),
    said("XTRIM", KEYS, "MINID", "=", IDS),
    said("XREAD", some("COUNT", COUNTS, most=1), "STREAMS", KEYS, IDS),
    said("XREAD", "STREAMS", "s", "a", IDS, IDS),
    said("XGROUP", "CREATE", "s", GROUPS, IDS | st.just("$"), some("MKSTREAM", most=1)),
    said("XGROUP", "CREATE", KEYS, GROUPS, "0", "MKSTREAM"),
    said("XGROUP", "DESTROY", KEYS, GROUPS),
    said("XREADGROUP", "GROUP", GROUPS, FIELDS, some("COUNT", COUNTS, most=1), "STREAMS", "s", st.just(">") | IDS),
    said("XREADGROUP", "GROUP", GROUPS, FIELDS, "COUNT", "1", "STREAMS", KEYS, ">"),
    said("XACK", KEYS, GROUPS, some(IDS, least=1)),
    said("XPENDING", KEYS, GROUPS),
    said("XPENDING", KEYS, GROUPS, RANGES, RANGES, COUNTS, some(FIELDS, most=1)),
    said("XINFO", "GROUPS", KEYS),
    said("XINFO", "STREAM", KEYS),
    said("XINFO", "CONSUMERS", KEYS, GROUPS),
)
_SCRIPT = "return redis.{}(unpack(ARGV))"


def scripted(words: Words) -> st.SearchStrategy[Words]:
    """The command by itself, or said by a script."""
    by_script = [("EVAL", _SCRIPT.format(how), "0", *words) for how in ("call", "pcall")]
    return st.sampled_from([words, words, *by_script])


class Real:
    """A connection to the real server."""

    def __init__(self, connection: socket.socket) -> None:
        """Take the connected socket."""
        self._socket = connection
        self._pack = HiredisRespSerializer().pack

    def replies(self, commands: Sequence[Words]) -> list[Any]:
        """The replies to all of them, from an empty store on."""
        all_words: list[Words] = [("FLUSHALL",), *commands]
        self._socket.sendall(b"".join(part for words in all_words for part in self._pack(*words)))  # type: ignore[arg-type] # as it takes them
        reader, found = hiredis.Reader(), list[Any]()
        while len(found) <= len(commands):
            reader.feed(self._socket.recv(1 << 16))
            while (reply := reader.gets()) is not False:
                found.append(reply)
        return found[1:]


class Simulated:
    """The same on the simulated one."""

    def __init__(self) -> None:
        """Begin."""
        self._store = SimulatedStore(lambda: datetime.now(UTC), Random(1))
        self._session = Session(self._store)

    def replies(self, commands: Sequence[Words]) -> list[Any]:
        """As there."""
        self._store.flush_all()
        return [self._reply(words) for words in commands]

    def _reply(self, words: Words) -> Any:
        reader = hiredis.Reader()
        reader.feed(self._store.reply(self._session, [word.encode() for word in words]))
        return reader.gets()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    server = running("valkey", tmp_path_factory.mktemp("v"), appendfsync="no")
    with server as started, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(started.url.removeprefix("unix://"))
        yield Real(connection)


def comparable(words: Words, reply: Any) -> Any:  # noqa: PLR0911 -- a return for each kind of reply
    """The reply without what depends on how long something took, and with errors as text."""
    if isinstance(reply, Exception):
        return re.sub(r"user_script:\d+\.$", "user_script", f"-{reply}")  # Lua forgets the line of a tail call
    if words[0] == "EVAL" and words[2] == "0" and len(words) > 3:
        return comparable(words[3:], reply)
    if words[:2] == ("XINFO", "CONSUMERS"):
        return [{name: value for name, value in _pairs(one) if name not in {b"idle", b"inactive"}} for one in reply]
    if words[:2] == ("XINFO", "STREAM"):
        return {name: value for name, value in _pairs(reply) if name != b"radix-tree-nodes"}  # of its index
    if words[0] == "XPENDING" and len(words) > 3:
        return [[entry, consumer, count] for entry, consumer, _, count in reply]
    if words[0] == "ROLE":
        return reply[0]
    if isinstance(reply, list):
        return [comparable(("",), one) for one in reply]
    return reply


def _pairs(reply: Any) -> list[tuple[Any, Any]]:
    return list(reply.items()) if isinstance(reply, dict) else list(zip(reply[::2], reply[1::2], strict=True))


@given(commands=st.lists(COMMANDS.flatmap(scripted), min_size=1, max_size=30))
def test_both_answer_the_same(real: Real, commands: list[Words]) -> None:
    """Law: commands that the program says, in any order, right or wrong, by scripts or not: the same replies."""
    expected, found = real.replies(commands), Simulated().replies(commands)
    for words, theirs, ours in zip(commands, expected, found, strict=True):
        assert comparable(words, ours) == comparable(words, theirs), words


def _script(text: str, *keys: str) -> Words:
    return ("EVAL", text, str(len(keys)), *keys)


_ENTRY: Words = ("XADD", "s", "1-1", "f", "v")
_GROUP: Words = ("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
_READ: Words = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
_AGAIN: Words = (*_READ[:-1], "0")
_PENDING: Words = ("XPENDING", "s", "g")

KNOWN: dict[str, list[Words]] = {
    "a group that is there": [_GROUP, _GROUP, _script("return redis.call('XGROUP', 'CREATE', 's', 'g', '0')")],
    "groups in order": [_GROUP, ("XGROUP", "CREATE", "s", "f", "0"), ("XINFO", "GROUPS", "s")],
    "consumers in order": [
        _ENTRY,
        ("XADD", "s", "1-2", "f", "v"),
        _GROUP,
        ("XREADGROUP", "GROUP", "g", "z", "COUNT", "1", "STREAMS", "s", ">"),
        ("XREADGROUP", "GROUP", "g", "a", "COUNT", "1", "STREAMS", "s", ">"),
        _PENDING,
        ("XINFO", "CONSUMERS", "s", "g"),
        ("XACK", "s", "g", "1-1", "1-2"),
        _PENDING,
    ],
    "nothing to read": [("XREAD", "STREAMS", "s", "0"), _GROUP, _READ, _script("return redis.call('XLEN', 's')")],
    "no such stream": [_READ, _PENDING, ("XINFO", "GROUPS", "s"), ("XGROUP", "DESTROY", "s", "g")],
    "no such group": [
        _ENTRY,
        _READ,
        ("XPENDING", "s", "g"),
        ("XGROUP", "DESTROY", "s", "g"),
        ("XACK", "s", "g", "1-1"),
    ],
    "no stream at all": [("SET", "s", "x"), _READ, ("XREAD", "STREAMS", "s", "0"), _GROUP, ("XLEN", "s")],
    "an entry that is gone": [
        _ENTRY,
        _GROUP,
        _READ,
        ("XDEL", "s", "1-1"),
        (*_READ[:-1], "0"),
        ("XINFO", "STREAM", "s"),
    ],
    "over at once": [("SET", "a", "x"), ("PEXPIRE", "a", "0"), ("EXISTS", "a"), ("HSET", "a", "f", "v")],
    "errors in scripts": [
        ("SET", "a", "x"),
        _script("return redis.call('HGET', 'a', 'f')"),
        _script("\n\nreturn redis.call('HGET', 'a', 'f')"),
        _script("return redis.pcall('HGET', 'a', 'f')"),
        _script("return redis.call('HGET')"),
        _script("return redis.call('NOPE')"),
        _script("return redis.call('EVAL', 'return 1', '0')"),
        _script("return redis.call('SET', 'a', {})"),
        _script("return nope"),
        _script("nope = 1"),
        _script("return 1 + nil"),
        _script("error('x')"),
        _script("error({err = 'MINE x'})"),
        _script("return redis.error_reply('x')"),
        _script("return redis.error_reply('MINE x')"),
        _script("not Lua"),
        _script("#!lua flags=nope\nreturn 1"),
        _script("return redis.acl_check_cmd('nope')"),
        _script("return redis.acl_check_cmd('get', 'a')"),
        ("EVALSHA", "0" * 40, "0"),
        ("EVAL", "return 1", "2", "a"),
        ("EVAL", "return 1", "-1"),
    ],
    "values of scripts": [
        _script("return {1, 2.7, -3.9, 'x', false, true, {}, {1, {2}}, redis.status_reply('FINE'), nil, 3}"),
        _script("return redis.call('SET', KEYS[1], 1767225600123)", "a"),
        _script("return redis.call('SET', KEYS[1], 0.5)", "b"),
        ("MGET", "a", "b"),
        _script("return {redis.call('TYPE', 'a'), redis.call('TYPE', 'a')['ok'], redis.call('GET', 'nope')}"),
        _script("return redis.sha1hex('x')"),
        _script("return tostring(redis.call('EXISTS', 'a') == 1)"),
    ],
    "out of memory": [
        ("CONFIG", "SET", "maxmemory", "1"),
        ("SET", "a", "x"),
        ("DEL", "a"),
        ("GET", "a"),
        _script("#!lua\nreturn 1"),
        _script("#!lua flags=allow-oom\nreturn redis.call('SET', 'a', 'x')"),
        _script("#!lua flags=no-writes,allow-oom\nreturn redis.call('SET', 'a', 'x')"),
        _script("return redis.call('GET', 'a')"),
        _script("return redis.call('SET', 'a', 'y')"),
        _script("redis.call('DEL', 'a') return redis.call('SET', 'a', 'y')"),
        ("MULTI",),
        ("GET", "a"),
        ("EXEC",),
        ("MULTI",),
        ("SET", "a", "z"),
        ("EXEC",),
        ("CONFIG", "SET", "maxmemory", "0"),
        ("GET", "a"),
    ],
    "a replica": [
        ("SET", "a", "x"),
        ("REPLICAOF", "127.0.0.1", "1"),
        ("SET", "a", "y"),
        ("GET", "a"),
        _script("#!lua\nreturn 1"),
        _script("return redis.call('GET', 'a')"),
        _script("return redis.call('SET', 'a', 'y')"),
        ("REPLICAOF", "NO", "ONE"),
        ("SET", "a", "y"),
    ],
    "a transaction": [("MULTI",), ("INCR", "a"), ("HGET", "a", "f"), ("EXEC",), ("EXEC",), ("DISCARD",)],
    "what is wrong": [("NOPE", "a"), ("GET",), ("XGROUP", "NOPE", "a"), ("CONFIG", "GET", "nope"), ("HELLO", "9")],
    "the server": [("ROLE",), ("WAIT", "0", "0"), ("ACL", "WHOAMI"), ("MEMORY", "USAGE", "nope"), ("PING", "x")],
    "settings": [("CONFIG", "GET", "stream-node*"), ("CONFIG", "GET", "maxmemory"), ("CONFIG", "SET", "nope", "1")],
}
"""What fakeredis, or the scripts of this front, once did otherwise, and what the program relies on."""


@pytest.mark.parametrize("resp", ["2", "3"])
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_to_matter(real: Real, name: str, resp: str) -> None:
    """Law: each of these conversations is the same on both, by both versions of RESP."""
    commands: list[Words] = [("HELLO", resp), *KNOWN[name], ("HELLO", "2")]
    expected, found = real.replies(commands), Simulated().replies(commands)
    for words, theirs, ours in list(zip(commands, expected, found, strict=True))[1:-1]:
        assert comparable(words, ours) == comparable(words, theirs), words
