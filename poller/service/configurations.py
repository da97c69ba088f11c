"""The configurations of the processes that share a store, against each other and against what the store keeps.

**Invariants**

- A feed is orphaned where the store keeps it and no configuration of a live process has it. A process that does not say
  which feeds it has may have any, so no feed is orphaned while one of those is live.
- A difference in what must be equal everywhere (a source's ``base_url``, a subscription's ``sink``) is reported with
  the processes on either side. Only digests are compared; a sink's address may be a secret.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.config.settings import Settings
from poller.service.membership import Membership
from poller.store.keys import remembered_key
from poller.store.members import MemberConfiguration, Seen
from poller.store.remembering import known_feeds

LOOK_SECONDS: Final = 5.0
HERE: Final = "this configuration"

ADVICE: Final = (
    "it was renamed or dropped: what waits for subscriptions is delivered, and nothing new comes; "
    "`poller feeds forget {feed}` ends it. A feed that is to go on keeps its name"
)

_log = structlog.get_logger("poller.members")


class ConfigurationDifference(msgspec.Struct, frozen=True):
    """Something that must be equal everywhere, and is not.

    Attributes:
        what: in words, such as ``base_url of source acme``.
        processes: those that agree with each other, one tuple for each value.
    """

    what: str
    processes: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The difference as a sentence that names both sides."""
        sides = " than in ".join(", ".join(side) for side in self.processes)
        return f"{self.what} is another one in {sides}: give all processes of a store the same configuration"


def stated(settings: Settings) -> MemberConfiguration:
    """What a process with this configuration says of it."""
    return MemberConfiguration(
        settings.feed_ids,
        {source.name: _digest(source.base_url) for source in settings.sources},
        {one.id: _digest(str(one.sink)) for one in settings.subscriptions},
    )


def claimed(seen: Seen, own: Iterable[str] = (), *, role: str | None = None) -> frozenset[str] | None:
    """The feeds that a live process has, of those that do ``role``, and those in ``own``; None: it may be any."""
    listed = seen.listed(name for name, roles in seen.roles.items() if roles and (role is None or role in roles))
    return None if listed is None else listed.union(own)


def orphaned(known: Iterable[str], seen: Seen, own: Iterable[str] = ()) -> tuple[str, ...]:
    """Those of the known feeds that no live process has, and that are not in ``own``."""
    having = claimed(seen, own)
    return () if having is None else tuple(sorted(set(known) - having))


def differences(said: Mapping[str, MemberConfiguration]) -> list[ConfigurationDifference]:
    """What these processes do not agree in, by what each says."""
    values: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member, one in sorted(said.items()):
        for name, digest in one.sources.items():
            values[f"base_url of source {name}"][digest].append(member)
        for name, digest in one.sinks.items():
            values[f"sink of subscription {name}"][digest].append(member)
    return [
        ConfigurationDifference(what, tuple(tuple(members) for members in sides.values()))
        for what, sides in sorted(values.items())
        if len(sides) > 1
    ]


class Configurations:
    """The configurations as one process sees them. Used within one event loop.

    Attributes:
        orphans: the orphaned feeds.
        undelivered: feeds that a live process has, and none of those that deliver.
        claimed: the feeds that a live process has; None: it may be any.
    """

    def __init__(self, settings: Settings, client: Redis, membership: Membership) -> None:
        """Nothing is known yet."""
        self.orphans: tuple[str, ...] = ()
        self.undelivered: tuple[str, ...] = ()
        self.claimed: frozenset[str] | None = None
        self.version = 0
        self._own = settings.feed_ids
        self._client = client
        self._key = remembered_key(settings.redis.prefix)
        self._membership = membership
        self._seen: Seen | None = None
        self._look_at = 0.0
        self._reported: frozenset[str] = frozenset()
        self._differences: list[ConfigurationDifference] = []

    async def look(self) -> int:
        """Look again where that is due; a number that is another one after each look.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        clock, seen = asyncio.get_running_loop().time, self._membership.seen
        if self._membership.name not in seen.roles or (seen is self._seen and clock() < self._look_at):
            return self.version
        found = await known_feeds(self._client, self._key)
        self._seen, self._look_at, self.version = seen, clock() + LOOK_SECONDS, self.version + 1
        self.claimed = claimed(seen, self._own)
        self.orphans = orphaned(found, seen, self._own)
        delivered = claimed(seen, self._own if "deliver" in seen.roles[self._membership.name] else (), role="deliver")
        self.undelivered = (
            ()
            if None in (self.claimed, delivered)
            else tuple(sorted((self.claimed or frozenset()) - (delivered or frozenset())))
        )
        self._report(seen)
        return self.version

    def _report(self, seen: Seen) -> None:
        for feed in self.orphans:
            if feed not in self._reported:
                _log.warning("orphaned feed", feed=feed, advice=ADVICE.format(feed=feed))
        self._reported = frozenset(self.orphans)
        found = differences(seen.configurations)
        for one in found:
            if one not in self._differences:
                _log.warning("configurations differ", what=one.what, processes=one.processes, reason=one.text)
        self._differences = found


def _digest(value: str) -> str:
    return blake2b(value.encode(), digest_size=8).hexdigest()
