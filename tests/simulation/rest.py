"""What must be true when everything is well and nothing is due: status, keys and members.

**Invariants**

- Status says of each feed and subscription what is so, by the source's own history and the store's own keys.
- No key is there that a table of :mod:`poller.store.keys` does not name, or that belongs to what is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from poller.store.keys import FEED_KEYS, ConsumerKeys, MemberKeys, SubscriptionKeys
from tests.harness.json_values import read as read_json
from tests.harness.scene import stream

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from poller.control.status import FeedStatus, SubscriptionStatus

_OF_FEEDS: Final = frozenset(FEED_KEYS)
_OF_CONSUMERS: Final = frozenset(ConsumerKeys.__struct_fields__)
_OTHERS: Final = {
    "subscriptions": frozenset(SubscriptionKeys.__struct_fields__),
    "members": frozenset(MemberKeys.__struct_fields__),
    "operations": frozenset({"events", "feeds", "orders"}),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is seen of a world at rest.

    Attributes:
        feeds: their status.
        subscriptions: their status.
        records: how many records the source has for each feed.
        subscribed: the ids of the subscriptions that there are.
        daemons: the hosts of those that run.
        retired: the feeds that were in the configuration once.
        kept: those of them of which something is stored; the others were deleted.
        lossy: whether the store has forgotten writes: then there may be nothing left to send after an attempt that
            failed, that could succeed; and a dead letter whose event is lost stays one.
        read: a command of the store.
    """

    feeds: Sequence[FeedStatus]
    subscriptions: Sequence[SubscriptionStatus]
    records: Mapping[str, int]
    subscribed: Sequence[str]
    daemons: Sequence[str]
    retired: Collection[str]
    kept: Collection[str]
    lossy: bool
    read: Callable[..., Any]


def untrue(seen: Seen) -> list[str]:
    """What is not as it must be, one line each."""
    return [*_feeds(seen), *_subscriptions(seen), *_members(seen), *_keys(seen)]


def _feeds(seen: Seen) -> Iterator[str]:
    for one in seen.feeds:
        name = one.feed.rpartition("/")[2]
        length = int(seen.read("XLEN", stream(name)))
        owner = (one.owner or "").rsplit("-", 2)[0]
        expected = {
            "state": (one.state, "ok"),
            "records": (one.records, seen.records[name]),
            "stream_length": (one.stream_length, length),
            "lease": (one.lease, "held"),
            "quarantined": (one.quarantined, 0),
            "owner": (owner in seen.daemons, True),
            "error": (one.error, None),
            "held_reason": (one.held_reason, None),
            "paused_by": (one.paused_by, None),
        }
        yield from _differing(one.feed, expected)


def _subscriptions(seen: Seen) -> Iterator[str]:
    if sorted(one.subscription for one in seen.subscriptions) != sorted(seen.subscribed):
        yield f"status shows {[one.subscription for one in seen.subscriptions]}, there are {list(seen.subscribed)}"
    for one in seen.subscriptions:
        expected = {
            "state": (one.state, "active"),
            "lag_entries": (one.lag_entries, 0),
            "lag_seconds": (one.lag_seconds or None, None),
            "parked": (one.parked, 0),
            "dead_letters": (one.dead_letters, 0),
            "lost": (one.lost, 0),
            "until": (one.until, None),
            "error": (one.error, None),
        }
        if seen.lossy:
            for name in ("state", "error", "dead_letters"):
                del expected[name]
        yield from _differing(one.subscription, expected)


def _differing(of: str, expected: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    for name, (found, wanted) in expected.items():
        if found != wanted:
            yield f"status of {of}: {name} is {found!r}, and not {wanted!r}"


def _members(seen: Seen) -> Iterator[str]:
    names = [_text(name) for name in seen.read("ZRANGE", "poller:{members}:beats", "0", "-1")]
    if sorted(name.rsplit("-", 2)[0] for name in names) != list(seen.daemons):
        yield f"members are {sorted(names)}, and {list(seen.daemons)} run"
    for key in ("roles", "configurations"):
        known = sorted(_text(name) for name in seen.read("HKEYS", f"poller:{{members}}:{key}"))
        if known != sorted(names):
            yield f"{key} are known of {known}, members are {sorted(names)}"
    # A command to a feed that is no more in the configuration waits an hour for a process that has it.
    commands = [read_json(_text(value)) for value in seen.read("HVALS", "poller:{operations}:orders")]
    if left := [one["feed"] for one in commands if one["feed"].rpartition("/")[2] not in seen.retired]:
        yield f"commands are left to {left}"


def _keys(seen: Seen) -> Iterator[str]:
    feeds = {one.feed for one in seen.feeds} | {f"acme/{name}" for name in seen.kept}
    for key in sorted(map(_text, seen.read("KEYS", "*"))):
        prefix, _, rest = key.partition(":{")
        tag, _, ending = rest.partition("}:")
        parts = ending.split(":")
        if prefix != "poller":
            yield f"{key} is no key of the program"
        elif tag in _OTHERS:
            if parts[0] not in _OTHERS[tag] and not (tag == "operations" and parts[0] == "answer"):
                yield f"{key} is in no table"
        elif tag not in feeds:
            yield f"{key} belongs to no feed"
        elif parts[0] == "sub":
            if len(parts) != 3 or parts[1] not in seen.subscribed or parts[2] not in _OF_CONSUMERS:
                yield f"{key} belongs to no subscription, or is in no table"
        elif ending not in _OF_FEEDS:
            yield f"{key} is in no table, or should be gone"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()
