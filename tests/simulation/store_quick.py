"""Quick ways for what daemons at rest ask again and again, where fakeredis spends most of their time on arguments.

**Invariants**

- A quick way reads and never writes.
- What is unusual, and whatever is an error, is left to fakeredis: the answer is :data:`SLOW` then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from fakeredis.model import Hash, ZSet

if TYPE_CHECKING:
    from tests.simulation.store_session import Session

SLOW: Final = object()
"""The command is to be carried out in the usual way."""

_BOUND: Final = re.compile(rb"(\()?(\d{1,15}|[+-]inf)")
_FEW: Final = 50  # members that are gone through one by one


def _time(session: Session, arguments: Sequence[bytes]) -> Any:
    if arguments:
        return SLOW
    seconds, microseconds = divmod(session.store.moment, 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


def _mget(session: Session, arguments: Sequence[bytes]) -> Any:
    if not arguments:
        return SLOW
    items = map(session._db.get, arguments)
    return [None if item is None or type(item.value) is not bytes else item.value for item in items]


def _zrangebyscore(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) != 3:
        return SLOW
    key, least, most = arguments
    low, high = _BOUND.fullmatch(least), _BOUND.fullmatch(most)
    if low is None or high is None:
        return SLOW
    item = session._db.get(key)
    if item is None:
        return []
    if type(item.value) is not ZSet or len(item.value) > _FEW:
        return SLOW
    first, last = float(low[2]), float(high[2])
    return [
        member
        for score, member in item.value._byscore
        if (score > first if low[1] else score >= first) and (score < last if high[1] else score <= last)
    ]


def _get(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) != 1:
        return SLOW
    item = session._db.get(arguments[0])
    if item is None:
        return None
    return item.value if type(item.value) is bytes else SLOW


def _hash(session: Session, key: bytes) -> Any:
    """The fields of a hash; SLOW: it is none, or one whose fields may expire."""
    item = session._db.get(key)
    if item is None:
        return {}
    found = item.value
    return found._values if type(found) is Hash and not found._expiry_heap else SLOW


def _hget(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) != 2 or (fields := _hash(session, arguments[0])) is SLOW:
        return SLOW
    return fields.get(arguments[1])


def _hmget(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) < 2 or (fields := _hash(session, arguments[0])) is SLOW:
        return SLOW
    return [fields.get(name) for name in arguments[1:]]


def _hgetall(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) != 1 or (fields := _hash(session, arguments[0])) is SLOW:
        return SLOW
    return dict(fields)


def _hlen(session: Session, arguments: Sequence[bytes]) -> Any:
    if len(arguments) != 1 or (fields := _hash(session, arguments[0])) is SLOW:
        return SLOW
    return len(fields)


QUICK: Final[dict[str, Callable[[Session, Sequence[bytes]], Any]]] = {
    "time": _time,
    "mget": _mget,
    "zrangebyscore": _zrangebyscore,
    "get": _get,
    "hget": _hget,
    "hmget": _hmget,
    "hgetall": _hgetall,
    "hlen": _hlen,
}
