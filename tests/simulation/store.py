"""A simulated store: a server that speaks RESP, over fakeredis, with a clock and faults that come from outside.

:meth:`SimulatedStore.protocol` is an asyncio protocol, so the store is served by any loop: the simulated one, or a real
one with real sockets, where the tests of ``tests/store`` run on it as on Valkey (``pytest --store simulated``).

**Invariants**

- One command, script or transaction at a time, whole; blocked clients are served after it, the longest waiting first.
- Everything follows from the commands, the clock ``now`` and ``random``.
- A fault acts between commands. What was acknowledged and not yet read by the client may be among what is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import hiredis
from fakeredis._helpers import SimpleError

from tests.simulation.store_history import History, Write
from tests.simulation.store_scripts import Scripts
from tests.simulation.store_session import (
    TIME,
    VALKEY_VERSION,
    VERSION,
    Blocked,
    Engine,
    Session,
    encoded,
    size_of,
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OWN_MEMORY: Final = 1_000_000
_UNBLOCKED: Final = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"


@dataclass(slots=True, frozen=True)
class Executed:
    """A command that was carried out for a client, or refused.

    Attributes:
        at: by the store's clock.
        peer: the host that the client's connection came from.
        client: what the client calls itself.
        words: the command.
        written: the keys that it has changed, also by a script; b"" for a whole database.
        answer: the reply in RESP.
    """

    at: datetime
    peer: str
    client: str
    words: Sequence[bytes]
    written: tuple[bytes, ...]
    answer: bytes

    @property
    def reply(self) -> Any:
        """The reply, decoded; an error as hiredis.ReplyError."""
        return _decoded(self.answer)


class SimulatedStore:
    """The server.

    Attributes:
        engine: fakeredis' part of it.
        observers: called after each command of a client; those that are said by scripts are part of these.
        ahead: by how much its clock is ahead of ``now``.
        moment: of the command that is carried out, in microseconds since 1970.
    """

    def __init__(self, now: Callable[[], datetime], random: Random, *, depth: int = 500) -> None:
        """Start it, empty.

        Args:
            now: the true time.
            random: names its runs.
            depth: how many writes can be lost at least.
        """
        self.engine = Engine()
        self.observers: list[Callable[[Executed], None]] = []
        self.ahead = timedelta()
        self.scripts = Scripts()
        self.history = History(self.engine.dbs, depth)
        self.calls: dict[str, int] = {}
        self.written: dict[bytes, None] = {}
        self.spoken: Sequence[Sequence[bytes]] | None = None
        self.is_loading = self.is_replica = self.is_hampered = False
        self._now = now
        self._random = random
        self._limit = 0
        self._is_full: bool | None = None
        self.moment = 0
        self._connections: dict[StoreConnection, None] = {}
        self._waiting: dict[bytes, dict[StoreConnection, None]] = {}
        self._begun = self._turned()
        self._run_id, self._replication_id, self._former_id = self._name(), self._name(), "0" * 40
        self._own = Session(self)
        self._repeating = Session(self, repeats=True)
        for session in (self._own, self._repeating):
            self.engine.sockets.remove(session)

    def protocol(self) -> StoreConnection:
        """A connection to be made, for ``loop.create_server``."""
        return StoreConnection(self)

    def read(self, *words: str | bytes) -> Any:
        """The reply to a command from outside, whatever state the server is in; no observer is told.

        Raises:
            hiredis.ReplyError: the reply is an error.
        """
        given = [word.encode() if isinstance(word, str) else word for word in words]
        hampered, self.is_hampered = self.is_hampered, False
        try:
            reply = _decoded(self.reply(self._own, given))
        finally:
            self.is_hampered = hampered
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    # Faults.

    def lose_last(self, writes: int) -> int:
        """Restart without the latest writes; returns how many were lost.

        All connections are reset and all scripts are forgotten; it has another ``run_id``.
        """
        self.is_replica = self.is_loading = False  # or it would refuse what it has written, as it is repeated
        self.configured()
        lost = self.history.go_back(writes, self._repeat)
        self._restart()
        return lost

    def fail_over(self, lag: int) -> int:
        """Let a copy take over that is this many writes behind; returns how many were lost.

        The copy has its own ``run_id`` and no scripts, and begins a replication history of its own.
        """
        lost = self.lose_last(lag)
        self._former_id, self._replication_id = self._replication_id, self._name()
        return lost

    def out_of_memory(self, on: bool) -> None:
        """Refuse with ``OOM`` what may need memory, by a ``maxmemory`` below what is in use."""
        self.engine.config[b"maxmemory"] = b"1" if on else b"0"
        self.configured()

    def read_only(self, on: bool) -> None:
        """Be a replica: refuse writes with ``READONLY``, and let go whoever waits."""
        if on and not self.is_replica:
            for connection in list(self._connections):
                connection.unblock(SimpleError(_UNBLOCKED))
        if self.is_replica and not on:
            self._former_id, self._replication_id = self._replication_id, self._name()
        self.is_replica = on
        self.configured()

    def loading(self, on: bool) -> None:
        """Answer ``LOADING``, as after a restart with much to load."""
        self.is_loading = on
        self.configured()

    def flush_scripts(self) -> None:
        """Forget all scripts: ``NOSCRIPT`` until they are sent again."""
        self.engine.script_cache.clear()

    def flush_all(self) -> None:
        """Delete everything, as an operator may by mistake."""
        self.read("FLUSHALL")

    def evict(self, key: str | bytes) -> None:
        """Delete a key, as a server with another ``maxmemory-policy`` may."""
        self.read("DEL", key)

    def set_clock(self, ahead: timedelta) -> None:
        """Set its clock to be this much ahead of the true time, or behind."""
        self.ahead = ahead

    # What sessions and connections need of it.

    def reply(self, session: Session, words: Sequence[bytes], peer: str | None = None) -> bytes:
        """Carry out a command; the reply in RESP.

        Args:
            session: who says it.
            words: the command.
            peer: the client's host; None: nobody is told.

        Raises:
            Blocked: there is no reply yet.
        """
        self._begin()
        try:
            value = session.execute(words)
        except SimpleError as error:
            value = error
        finally:
            TIME.moment = None
        answer = encoded(value, session.is_resp3)
        self._finish(session, words, answer, peer)
        return answer

    def reply_late(self, session: Session, words: Sequence[bytes], ask: Callable[[], Any], peer: str) -> bytes | None:
        """The reply to a command that waits; None: there is none yet."""
        self._begin()
        try:
            value = ask()
        except SimpleError as error:
            value = error
        finally:
            TIME.moment = None
        if not value:
            return None
        if words[0].upper() == b"XREADGROUP":
            self.written.update(dict.fromkeys(_keys_of(value)))
        answer = encoded(value, session.is_resp3)
        self._finish(session, words, answer, peer)
        return answer

    def connected(self, connection: StoreConnection) -> None:
        """A connection is made."""
        self._connections[connection] = None

    def disconnected(self, connection: StoreConnection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)

    def disconnect(self, session: Session, *, after_reply: bool = False) -> None:
        """Close the connection of a session."""
        for connection in list(self._connections):
            if connection.session is session:
                connection.close(after_reply=after_reply)

    def wait(self, connection: StoreConnection, keys: Sequence[bytes]) -> None:
        """A write to one of these keys may end what this client waits for."""
        for key in keys:
            self._waiting.setdefault(key, {})[connection] = None

    def wait_no_more(self, connection: StoreConnection, keys: Sequence[bytes]) -> None:
        """The client has its reply, or is gone."""
        for key in keys:
            waiting = self._waiting.get(key, {})
            waiting.pop(connection, None)
            if not waiting:
                self._waiting.pop(key, None)

    def configured(self) -> None:
        """The configuration, or the state, has changed."""
        self._limit = int(self.engine.config[b"maxmemory"])
        self.is_hampered = bool(self._limit or self.is_loading or self.is_replica)

    @property
    def is_full(self) -> bool:
        """Whether there is no memory left, as it was when the present command began."""
        if self._is_full is None:
            self._is_full = bool(self._limit) and self.used_memory > self._limit
        return self._is_full

    @property
    def used_memory(self) -> int:
        """About how many bytes are in use."""
        values = [(key, item.value) for database in self.engine.dbs.values() for key, item in database._dict.items()]
        return _OWN_MEMORY + sum(64 + len(key) + size_of(value) for key, value in values)

    def information(self) -> dict[str, Mapping[str, object]]:
        """The sections of INFO."""
        config = {name.decode(): value.decode() for name, value in self.engine.config.items()}
        uptime = (self._turned() - self._begun) // timedelta(seconds=1)
        blocked = sum(connection.is_blocked for connection in self._connections)
        keys = {number: len(database) for number, database in self.engine.dbs.items() if len(database)}
        return {
            "server": {
                "redis_version": VERSION,
                "server_name": "valkey",
                "valkey_version": VALKEY_VERSION,
                "server_mode": "standalone",
                "process_id": 1,
                "run_id": self._run_id,
                "tcp_port": 6379,
                "server_time_usec": (self._turned() - _EPOCH) // _MICROSECOND,
                "uptime_in_seconds": max(uptime, 0),
            },
            "clients": {"connected_clients": len(self._connections), "blocked_clients": blocked},
            "memory": {
                "used_memory": self.used_memory,
                "maxmemory": config["maxmemory"],
                "maxmemory_policy": config["maxmemory-policy"],
                "mem_not_counted_for_evict": 0,
            },
            "persistence": {
                "loading": int(self.is_loading),
                "rdb_last_bgsave_status": "ok",
                "aof_enabled": int(config["appendonly"] == "yes"),
                "aof_last_bgrewrite_status": "ok",
                "aof_last_write_status": "ok",
            },
            "stats": {"total_commands_processed": sum(self.calls.values())},
            "replication": {
                "role": "slave" if self.is_replica else "master",
                "connected_slaves": 0,
                "master_replid": self._replication_id,
                "master_replid2": self._former_id,
                "master_repl_offset": self.history.count,
            },
            "commandstats": {
                f"cmdstat_{name.replace(' ', '|')}": f"calls={count},usec=0,usec_per_call=0.00"
                for name, count in sorted(self.calls.items())
            },
            "keyspace": {f"db{number}": f"keys={count},expires=0,avg_ttl=0" for number, count in keys.items()},
        }

    def _begin(self) -> None:
        self._set_time((self._turned() - _EPOCH) // _MICROSECOND)
        self._is_full = None
        self.spoken = None

    def _set_time(self, moment: int) -> None:
        self.moment = moment
        TIME.moment = moment / 1_000_000
        seconds = moment // 1000 / 1000
        for database in self.engine.dbs.values():
            database.time = seconds

    def _finish(self, session: Session, words: Sequence[bytes], answer: bytes, peer: str | None) -> None:
        written = self.written
        if written:
            self.written = {}
            commands = (words,) if self.spoken is None else self.spoken
            self.history.add(Write(self.moment, session.database, commands, bool(self._is_full)))
        if peer is not None and self.observers:
            done = Executed(self._turned(), peer, session.name, words, tuple(written), answer)
            for observer in self.observers:
                observer(done)
        if written and self._waiting:
            for key in written:
                for connection in list(self._waiting.get(key, ())):
                    connection.look()

    def _repeat(self, write: Write) -> None:
        session = self._repeating
        session.select(write.database)
        self._set_time(write.moment)
        self._is_full = write.full
        try:
            for words in write.commands:
                try:
                    session.execute(words)
                except SimpleError:
                    continue  # as the first time
        finally:
            TIME.moment = None
            self.written = {}

    def _restart(self) -> None:
        self.flush_scripts()
        self.engine.scan_cursors.clear()
        self._run_id, self._begun = self._name(), self._turned()
        for connection in list(self._connections):
            connection.close()

    def _turned(self) -> datetime:
        return self._now() + self.ahead

    def _name(self) -> str:
        return f"{self._random.getrandbits(160):040x}"


class StoreConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, store: SimulatedStore) -> None:
        """Wait to be made."""
        self.session = Session(store)
        self._store = store
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._reader = hiredis.Reader()
        self._blocked: tuple[Blocked, Sequence[bytes], asyncio.TimerHandle | None] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether the client waits."""
        return self._blocked is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count among the clients."""
        assert isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._transport = transport
        self._peer = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        self._store.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- asyncio's
        """Be forgotten."""
        self._stop_waiting()
        self._transport = None
        self._store.disconnected(self)
        self.session.end()

    def data_received(self, data: bytes) -> None:
        """Carry out what is complete."""
        self._reader.feed(data)
        if self._blocked is None:
            self._work()

    def look(self) -> None:
        """Something was written that the client may wait for."""
        if self._blocked is None:
            return
        blocked, words, _ = self._blocked
        answer = self._store.reply_late(self.session, words, blocked.ask, self._peer)
        if answer is not None:
            self._answer(answer)

    def unblock(self, error: SimpleError) -> None:
        """End the wait, if there is one, with this error, and the connection with it."""
        if self._blocked is not None:
            self._stop_waiting()
            self._write(encoded(error))
            self.close(after_reply=True)

    def close(self, *, after_reply: bool = False) -> None:
        """End the connection: reset it, or close it once all is sent that was answered."""
        transport, self._transport = self._transport, None
        self._stop_waiting()
        if transport is None:
            return
        if after_reply:
            asyncio.get_running_loop().call_soon(transport.close)
        else:
            self._store.disconnected(self)
            transport.abort()

    def _work(self) -> None:
        answers: list[bytes] = []
        while self._transport is not None and (words := self._reader.gets()) is not False:
            try:
                answers.append(self._store.reply(self.session, words, self._peer))
            except Blocked as blocked:
                self._wait(blocked, words)
                break
        self._write(b"".join(answers))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _wait(self, blocked: Blocked, words: Sequence[bytes]) -> None:
        timer = None
        if blocked.seconds is not None:
            timer = asyncio.get_running_loop().call_later(blocked.seconds, self._time_out)
        self._blocked = blocked, words, timer
        self._store.wait(self, blocked.keys)

    def _time_out(self) -> None:
        self._answer(b"_\r\n" if self.session.is_resp3 else b"*-1\r\n")

    def _answer(self, answer: bytes) -> None:
        """Answer what the client waits for, and go on with what it has sent since."""
        self._stop_waiting()
        self._write(answer)
        self._work()

    def _stop_waiting(self) -> None:
        if self._blocked is not None:
            blocked, _, timer = self._blocked
            self._blocked = None
            self._store.wait_no_more(self, blocked.keys)
            if timer is not None:
                timer.cancel()


def _keys_of(value: Any) -> list[bytes]:
    pairs = value.items() if isinstance(value, dict) else value
    return [key for key, entries in pairs if entries]


def _decoded(answer: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(answer)
    return reader.gets()
