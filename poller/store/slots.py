"""Which server of a cluster a command belongs to: the slot of a command, and who has which slots.

Law: a command goes where its first key lies; that all its keys lie there, the server checks. One without keys may go
to any primary.

Pure; knows nothing of connections.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from redis.crc import key_slot

_KEYLESS: Final = frozenset(
    ["ACL", "AUTH", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG", "ECHO",
     "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO", "KEYS", "LASTSAVE", "LATENCY", "MODULE", "PING", "ROLE",
     "SAVE", "SCAN", "SCRIPT", "SLOWLOG", "TIME", "WAIT", "WAITAOF"]
)  # fmt: skip
_NUMBERED: Final = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"})
_STREAMS: Final = {"XREAD": 1, "XREADGROUP": 4}
"""Where the options begin, of which STREAMS is the last: before that a group may have any name."""
_COUNT: Final = 2  # where those of _NUMBERED say how many keys follow


class Address(NamedTuple):
    """Where a server is."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Shard(NamedTuple):
    """Slots from ``first`` to ``last``, their primary, and all who have them, the primary included."""

    first: int
    last: int
    primary: Address
    known: tuple[Address, ...]


class Slots:
    """Who has which slots, as one server told."""

    def __init__(self, shards: Iterable[Shard]) -> None:
        """Take them in any order."""
        self._shards = sorted(shards, key=itemgetter(0))
        self._firsts = [shard.first for shard in self._shards]

    def primary_of(self, slot: int) -> Address | None:
        """The primary that has a slot; None where nobody has it."""
        place = bisect_right(self._firsts, slot) - 1
        if place < 0 or self._shards[place].last < slot:
            return None
        return self._shards[place].primary

    @property
    def primaries(self) -> list[Address]:
        """All of them, each once."""
        return list(dict.fromkeys(shard.primary for shard in self._shards))

    @property
    def known(self) -> list[Address]:
        """Primaries and replicas, each once, the primaries first."""
        return list(dict.fromkeys([*self.primaries, *(one for shard in self._shards for one in shard.known)]))


def slots_of(answer: Sequence[Any], told_by: Address) -> Slots:
    """The answer to CLUSTER SLOTS.

    Args:
        answer: as it comes over the wire.
        told_by: who answered; a server that does not know its own host leaves it out.

    Raises:
        ValueError: it is no such answer.
    """
    try:
        return Slots(
            Shard(int(first), int(last), *_addressed(nodes, told_by)) for first, last, *nodes in answer if nodes
        )
    except (TypeError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no answer to CLUSTER SLOTS: {error}") from None


def _addressed(nodes: Sequence[Any], told_by: Address) -> tuple[Address, tuple[Address, ...]]:
    known = tuple(Address((node[0] or b"").decode() or told_by.host, int(node[1])) for node in nodes)
    return known[0], known


def slot_of(command: Sequence[Any]) -> int | None:
    """The slot of a command, as redis-py gives it: its name, maybe with a second word, then the arguments.

    None: it has no key.
    """
    name, key = _word(command[0]), _key(command)
    return None if key is None or name.partition(" ")[0] in _KEYLESS else int(key_slot(_bytes(key)))


def _key(command: Sequence[Any]) -> Any:
    name = _word(command[0])
    if name in _NUMBERED:
        return command[_COUNT + 1] if int(command[_COUNT]) else None
    if name in _STREAMS:
        options = command[_STREAMS[name] :]
        return next((key for word, key in pairwise(options) if _word(word) == "STREAMS"), None)
    place = 2 if name == "OBJECT" else 1
    return command[place] if len(command) > place else None


def _word(part: Any) -> str:
    """In capitals; what is no word of a command is none."""
    if isinstance(part, bytes):
        part = part.decode("ascii", "replace")
    return part.upper() if isinstance(part, str) else ""


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
