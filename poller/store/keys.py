"""The names and types of all keys in Redis.

All keys of a feed share the hash tag ``{SOURCE/NAME}``: one script may touch them together, on a cluster too. Public
is ``…:events`` alone; the rest is the daemon's own and may change with its version:

=================  ======  ==========================================================================================
key ends in        type    holds
=================  ======  ==========================================================================================
``events``         STREAM  one field ``data`` an entry: the CloudEvent in structured JSON
``state``          HASH    generation, sequence, digest of the last commit, and the marks of
:mod:`poller.store.feed_state`
``snapshots``      HASH    record, by its key or a name for that, to snapshot (:mod:`poller.store.snapshots`)
``dictionaries``   HASH    number to the compression dictionary that snapshots name
``lease``          STRING  who may write: the process's name, ``/`` and a nonce; expires
``quarantine``     STREAM  records that could not be used: ``raw`` (cut), ``reason``, ``digest`` (of all of it); bounded
``rejected``       ZSET    digests of what the quarantine was given, by time, so that it is given each thing once
``qualifications``  ZSET   ids seen in the feed's records, by the time of the last change (milliseconds)
``listings``       HASH    qualification to what is kept of its listing (:mod:`poller.store.feed`)
``held_versions``  HASH    record key to what is noted of an older version (:mod:`poller.store.snapshots`)
``page_digests``   STRING  digests of the pages of the last full reading (:mod:`poller.changes.full_readings`)
``erased``         HASH    ``number``: of the last erasure; ``record:KEY``: the place in the stream and the time
                           (milliseconds) of a record's erasure (:mod:`poller.store.erasure`); ``unannounced:KEY``: what
                           it has found, until its operational event is published; ``erasing:KEY``: the nonce of the
                           erasure under way that may change this, and when it began (milliseconds)
``erased_events``  ZSET    sequence numbers that were erased, by themselves
``overruns``       HASH    consumer group to what went before it was read (:mod:`poller.store.retention`)
``pause``          STRING  who paused the feed, why and when (:mod:`poller.store.commands`); absent while it is polled
``unlisted``       HASH    subscription that lists the feed no more to how long what waits was kept so far, or that
                           nothing waits any more (:mod:`poller.store.consumer_state`)
=================  ======  ==========================================================================================

A subscription to a feed has keys of its own there, ``sub:ID:…``:

=================  ======  ==========================================================================================
key ends in        type    holds
=================  ======  ==========================================================================================
``lease``          STRING  who delivers: the process's name, ``/`` and a nonce; expires
``state``          HASH    ``place``: the last entry up to which each is settled or parked; ``since``: when it was
                           first delivered (milliseconds); ``settled``: who wrote last, and the serial number of that;
                           the replay (:mod:`poller.store.replay`) and the backfill (:mod:`poller.store.backfill`);
                           ``erasures``: the number of the last erasure that its process knows of; and how many events
                           went before they were delivered (``lost``), in how many ``overruns``
``parked``         HASH    entry id to the delivery that waits for its next attempt (:mod:`poller.store.consumer_state`)
                           or that of a backfilled event: the entry that it stands behind, ``+`` and hex digits
``letters``        HASH    entry id to a dead letter; ``0-N`` to that of the Nth overrun
``letter_times``   ZSET    entry id by when it was given up (milliseconds)
=================  ======  ==========================================================================================

A consumer group of the client library has keys of its own there, too, which the library alone reads and writes
(:mod:`poller.client.group_store`); ``poller feeds forget`` deletes them with the feed:

========================  ====  =====================================================================================
key                       type  holds
========================  ====  =====================================================================================
``group:state:NAME``      HASH  who reads, and how far the group has come
``group:revisions:NAME``  HASH  digests of records that a bootstrap under way has handed out
========================  ====  =====================================================================================

The subscriptions themselves lie together under the hash tag ``{subscriptions}``; no feed has that name, for a feed's
holds a ``/``. Each of the hashes is by the subscription's id (:mod:`poller.store.subscriptions`):

=================  ======  ==========================================================================================
key ends in        type    holds
=================  ======  ==========================================================================================
``version``        STRING  a number that rises with each change of ``registry``, ``secrets``, ``credentials`` or
                           ``paused``
``changes``        STRING  digests of the last of these changes, newest first: they tell apart two changes that have
                           the same number, as after a failover that has lost the first
``registry``       HASH    where it comes from, its settings as in the file, since when it is there
``secrets``        HASH    the signing secrets that were made for it here; nowhere else are they shown or kept
``credentials``    HASH    the credential that a request has brought for its sink, likewise
``paused``         HASH    who paused it, why and when; absent while it is active
``health``         HASH    its health, written by the process that delivers: by id, a space, and the feed; by its id
                           alone what holds for the whole subscription
``until``          HASH    until when its sink wants nothing, milliseconds of the store's clock; by id, a space and
                           ``since``: since when; likewise ``resumed``: when an operator last ended that
``handshakes``     HASH    whether its sink has granted events, written by the process that asks it
``parked``         STRING  a number, of no subscription, that rises when a command parks deliveries or asks for a replay
=================  ======  ==========================================================================================

The processes that share the work lie under the hash tag ``{members}`` (:mod:`poller.store.members`):

=================  ======  ==========================================================================================
key ends in        type    holds
=================  ======  ==========================================================================================
``version``        STRING  a number that rises when one comes, goes, or lets go of leases that others may take;
                           no less than the time of that, in milliseconds of the server's clock
``roles``          HASH    a process's name to what it does, separated by commas
``beats``          ZSET    a process's name by when it counts as gone, milliseconds of the server's clock; one that
                           has not left in order stays for two lifetimes of a lease more
``configurations``  HASH   a process's name to the feeds that it has, and digests of what must be equal everywhere; for
                           as long as it has a beat
=================  ======  ==========================================================================================

Under the hash tag ``{operations}`` lies what is about the daemon itself: the public stream ``events``, and ``feeds``, a
HASH of each feed to what is remembered of it apart from its own keys (:mod:`poller.store.recovery`). ``orders`` is a
HASH of what was asked of a feed and is not answered yet, by the order's id; ``answer:ID`` the answer, a STRING that
expires (:mod:`poller.store.commands`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

KEY_TYPES: Final = {
    **dict.fromkeys(("events", "quarantine"), "stream"),
    **dict.fromkeys(("rejected", "qualifications", "letter_times", "beats", "erased_events"), "zset"),
    **dict.fromkeys(("lease", "pause", "version", "changes", "page_digests"), "string"),
    **dict.fromkeys(("state", "snapshots", "dictionaries", "listings", "overruns", "letters", "unlisted"), "hash"),
    **dict.fromkeys(("registry", "secrets", "credentials", "paused", "health", "until", "handshakes"), "hash"),
    **dict.fromkeys(("roles", "feeds", "orders", "erased"), "hash"),
}
"""The type of a key, by what it ends in; ``parked`` is of two types."""


class _KeyOfFeed:
    """A key of a feed, by its name."""

    __slots__ = ("_end",)

    def __set_name__(self, owner: type, name: str) -> None:
        self._end = f"}}:{name}"

    def __get__(self, keys: FeedKeys | None, owner: type) -> str:
        return f"{keys.beginning}{self._end}" if keys is not None else ""


@dataclass(frozen=True, slots=True)
class FeedKeys:
    """The keys of one feed. They are made when they are needed: sixteen texts would be a kilobyte and a half.

    Attributes:
        beginning: of each: the prefix, and the feed in a brace.
    """

    beginning: str

    events = _KeyOfFeed()
    state = _KeyOfFeed()
    snapshots = _KeyOfFeed()
    dictionaries = _KeyOfFeed()
    lease = _KeyOfFeed()
    quarantine = _KeyOfFeed()
    rejected = _KeyOfFeed()
    qualifications = _KeyOfFeed()
    listings = _KeyOfFeed()
    held_versions = _KeyOfFeed()
    overruns = _KeyOfFeed()
    pause = _KeyOfFeed()
    page_digests = _KeyOfFeed()
    unlisted = _KeyOfFeed()
    erased = _KeyOfFeed()
    erased_events = _KeyOfFeed()

    @staticmethod
    def of(prefix: str, feed: str) -> FeedKeys:
        """The keys of the feed ``SOURCE/NAME`` under a prefix; the same value for all parts of a process."""
        return _keys_of_feed(prefix, feed)

    @property
    def all(self) -> list[str]:
        """Each of them."""
        return [f"{self.beginning}}}:{name}" for name in FEED_KEYS]

    @property
    def feed(self) -> str:
        """``SOURCE/NAME``."""
        return sys.intern(self.beginning.rpartition("{")[2])  # a dozen parts of a daemon have it


FEED_KEYS: Final = tuple(name for name, one in vars(FeedKeys).items() if isinstance(one, _KeyOfFeed))
"""The names of a feed's keys."""


@lru_cache(maxsize=16_384)
def _keys_of_feed(prefix: str, feed: str) -> FeedKeys:
    return FeedKeys(f"{prefix}:{{{feed}")


class ConsumerKeys(msgspec.Struct, frozen=True):
    """The keys of one subscription to one feed."""

    lease: str
    state: str
    parked: str
    letters: str
    letter_times: str

    @classmethod
    def of(cls, prefix: str, feed: str, subscription: str) -> ConsumerKeys:
        """The keys of a subscription to the feed ``SOURCE/NAME`` under a prefix."""
        return cls(*(f"{prefix}:{{{feed}}}:sub:{subscription}:{name}" for name in cls.__struct_fields__))


class GroupKeys(msgspec.Struct, frozen=True):
    """The keys of one consumer group of the client library at one feed."""

    state: str
    revisions: str

    @classmethod
    def of(cls, prefix: str, feed: str, group: str) -> GroupKeys:
        """The keys of a group at the feed ``SOURCE/NAME`` under a prefix."""
        return cls(*(f"{prefix}:{{{feed}}}:group:{name}:{group}" for name in cls.__struct_fields__))


def group_of(subscription: str) -> str:
    """The consumer group of a subscription, on the stream of each of its feeds."""
    return f"sub:{subscription}"


class SubscriptionKeys(msgspec.Struct, frozen=True):
    """The keys of all subscriptions."""

    version: str
    changes: str
    registry: str
    secrets: str
    credentials: str
    paused: str
    health: str
    until: str
    handshakes: str
    parked: str

    @classmethod
    def of(cls, prefix: str) -> SubscriptionKeys:
        """The keys of the subscriptions under a prefix."""
        return cls(*(f"{prefix}:{{subscriptions}}:{name}" for name in cls.__struct_fields__))


class MemberKeys(msgspec.Struct, frozen=True):
    """The keys of the processes that share the work."""

    version: str
    roles: str
    beats: str
    configurations: str

    @classmethod
    def of(cls, prefix: str) -> MemberKeys:
        """The keys of the members under a prefix."""
        return cls(*(f"{prefix}:{{members}}:{name}" for name in cls.__struct_fields__))


def operations_key(prefix: str) -> str:
    """The stream of CloudEvents about the daemon itself."""
    return f"{prefix}:{{operations}}:events"


def remembered_key(prefix: str) -> str:
    """The hash of high-water marks, which is kept apart from the feeds' own keys."""
    return f"{prefix}:{{operations}}:feeds"


def orders_key(prefix: str) -> str:
    """The hash of commands without a final reply."""
    return f"{prefix}:{{operations}}:orders"


def answer_key(prefix: str, order: str) -> str:
    """The answer to the order of this id."""
    return f"{prefix}:{{operations}}:answer:{order}"


def sample_keys(prefix: str, feed: str) -> dict[str, str]:
    """A key of each kind, by the names under which :func:`poller.redis.health.refused` asks for permissions."""
    keys, members = FeedKeys.of(prefix, feed), MemberKeys.of(prefix)
    return {
        "lease": keys.lease,
        "state": keys.state,
        "events": keys.events,
        "rejected": keys.rejected,
        "version": members.version,
        "pair": ConsumerKeys.of(prefix, feed, "x").state,
        "registry": SubscriptionKeys.of(prefix).registry,
        "roles": members.roles,
        "remembered": remembered_key(prefix),
        "operations": operations_key(prefix),
    }
