"""All that is kept of the subscriptions, and the changes that are planned on it. Pure.

Processes with different files may share a store. Each publishes which subscriptions its file lists
(:class:`~poller.store.members.MemberConfiguration`), and a file subscription rests if and only if no live process lists
it (:func:`plan_file_pauses`). Any process that delivers may write that; all of them come to the same result.
:class:`poller.store.registry.Registry` reads and writes.

**Invariants**

- Every id in any part is registered.
- What is as it should be is not written.
- A subscription that leaves the files is paused, never dropped: its events wait. Only an operator deletes one.
- A process that does not say what it lists may list any: while it lives, nothing is paused because no file lists it.
- Marks that the sink has caused, a pause by Retry-After and its handshake, end when the subscription gets another sink.
- A pause by an operator, a sink or failures is no concern of any file. A pause stays the first one's, but an operator's
  takes the place of ``removed``, which ends by itself.
- What cannot be read is named and not repeated: it may be a secret. It stops its own subscription alone: without
  settings or secrets that is not delivered, and an unreadable pause is one. A sink's pause that cannot be read is none.
- A subscription whose secret is gone is not delivered, for no request goes out unsigned; nor one whose pause is gone.
- Of settings, only the :class:`SubscriptionOutline` is read here. The meaning of credentials, health and handshakes is
  unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, Literal, TypeVar

import msgspec

from poller.clock import milliseconds_of, moment_of
from poller.errors import ConfigurationError, SubscriptionResumed, SubscriptionTaken, SubscriptionUnknown
from poller.store.members import ListedSubscriptions
from poller.store.stream import EARLIEST, before_moment

T = TypeVar("T")

Origin = Literal["file", "run"]
Pauser = Literal["operator", "sink", "failures", "removed"]

WHOLE: Final = ""
"""In place of a feed: the whole subscription."""

LONGEST_PAUSE: Final = timedelta(hours=24)
"""A sink may ask for no longer pause; a moment further away was written by a wrong clock, and means nothing."""

_RESUMED: Final = " resumed"
_NEAR_MS: Final = 1000  # of two primaries of one store
_DIGEST_SIZE: Final = 16  # characters, of a change
_CHANGES: Final = 64  # of which the store keeps a digest; both as in change_subscriptions.lua


class SubscriptionOutline(msgspec.Struct, frozen=True):
    """The part of a subscription's stored settings that is read without checking all of them.

    Attributes:
        sink: the URL; "?": not readable.
        feeds: those that it names, ``SOURCE/NAME``; None: all.
        start: where it begins, as configured.
        handshake: whether its sink has to permit events first.
    """

    sink: str = "?"
    feeds: tuple[str, ...] | None = None
    start: str = "now"
    handshake: bool = msgspec.field(default=False, name="validate")

    @property
    def is_from_earliest(self) -> bool:
        """Whether a new one begins with what the streams hold; so does any start that only a later version knows."""
        return self.start not in {"now", "snapshot"}

    def wants(self, feed: str) -> bool:
        """Whether the feed is one of its feeds."""
        return self.feeds is None or feed in self.feeds


UNREADABLE: Final = SubscriptionOutline(start="earliest")
"""Of settings that another version wrote and this one cannot read: it may want everything, so everything is kept."""


def outline_of(settings: bytes) -> SubscriptionOutline:
    """The outline of settings in JSON, as they are stored; :data:`UNREADABLE` where they cannot be read."""
    try:
        return msgspec.json.decode(settings, type=SubscriptionOutline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNREADABLE


class Registered(msgspec.Struct, frozen=True, dict=True):
    """A subscription that is known.

    Attributes:
        origin: ``file``: the configuration's; ``run``: it was added while the program ran.
        settings: a JSON object with the keys that a ``[[subscriptions]]`` table has.
        since: when it was first known, UTC.
        asked: since when it wants the feeds that it does, in milliseconds of the store's clock; 0: not known.
        asked_before: the same for each feed that it wanted before its feeds were changed last, whether or not they list
            it now; under :data:`WHOLE` for every other one, where it wanted all.
        asked_after: the last entry that each feed's stream had when it was asked for; under :data:`WHOLE` that of every
            other one. Absent or empty where that is not known: an earlier version has written it.
        unlisted: since when each feed that it has listed is not listed any more, likewise; under :data:`WHOLE` for
            every other one. None: not known, an earlier version has written it.
        signed: whether a signing secret was made for it here, which the store has to have.
        rests: whether it was paused by anything but the files, so that the store has to have its pause.
    """

    origin: Origin
    settings: msgspec.Raw
    since: datetime
    asked: int = 0
    asked_before: Mapping[str, int] = {}
    asked_after: Mapping[str, str] = {}
    unlisted: Mapping[str, int] | None = None
    signed: bool = False
    rests: bool = False

    @cached_property
    def outline(self) -> SubscriptionOutline:
        """The outline of its settings."""
        return outline_of(self.settings)

    def asked_for(self, feed: str) -> int:
        """Since when it wants a feed that it lists or listed before, in ms of the store's clock; 0: not known."""
        return self.asked_before.get(feed, self.asked_before.get(WHOLE, self.asked))

    def unlisted_at(self, feed: str) -> int:
        """Since when it does not list a feed any more, in milliseconds of the store's clock as that was then.

        The clock may have been wrong: the moment only tells apart two times in which the feed was not listed.
        """
        known = self.unlisted or {}
        return known.get(feed, known.get(WHOLE, self.asked))

    def has_left(self, feed: str) -> bool:
        """Whether it has listed the feed before and does not list it now."""
        if self.outline.wants(feed):
            return False
        known = self.asked_before if self.unlisted is None else self.unlisted
        return feed in known or WHOLE in known

    def new_after(self, feed: str) -> str:
        """The entry after which all of a feed is new to it, however late its delivery begins; empty: unknown.

        The feed is one that it lists or has listed. The entry is the last one of the stream, read right before the
        subscription was written, whose entries get higher ids whatever the store's clock. What comes between that
        reading and that writing is delivered, too: registry and streams may be on different servers. Only where no
        entry is known the moment counts, and then a clock that is set back makes the subscription miss what is
        published until it is past that moment again.
        """
        known = self.asked_after.get(feed, self.asked_after.get(WHOLE, ""))
        return known or before_moment(self.asked_for(feed))

    def start(self, feed: str) -> str:
        """The entry after which it begins at one of its feeds, where it has not; empty: with what comes then.

        One that was lost with its feed begins where that does, see :class:`poller.store.recovery.StartPosition`.
        """
        if self.outline.start == "snapshot":
            return ""
        return EARLIEST if self.outline.is_from_earliest else self.new_after(feed)


class Paused(msgspec.Struct, frozen=True):
    """The pause of a subscription: by whom, why and since when.

    Attributes:
        by: ``operator``; ``sink``: it answered that it wants no more; ``failures``: it has failed for too long;
            ``removed``: no live process lists it in its file.
        reason: in words.
        at: when it was paused, UTC.
    """

    by: Pauser
    reason: str
    at: datetime


class SinkPauses(msgspec.Struct, frozen=True):
    """The pauses that sinks have asked for, by subscription; moments are those of the store's clock.

    Attributes:
        until: until when the sink wants nothing, UTC; may have passed.
        since: since when that is known, UTC; absent where another version has written it.
        resumed: when an operator or another sink last ended one, in milliseconds: what began before that is over.
        at: when this was so, in milliseconds; 0: not known.
    """

    until: Mapping[str, datetime] = {}
    since: Mapping[str, datetime] = {}
    resumed: Mapping[str, int] = {}
    at: int = 0

    def is_resumed_since(self, subscription: str, before: int) -> bool:
        """Whether a pause of the subscription has been ended since a reading that had this as ``resumed``.

        A store that has gone back to an older copy has an earlier moment, or none, and nothing was ended. But if the
        moment before is still to come, the store's clock was set back, and any other one is later.
        """
        resumed = self.resumed.get(subscription, 0)
        is_set_back = 0 < self.at < before - _NEAR_MS
        return resumed > before or (is_set_back and 0 < resumed < before)


class Subscriptions(msgspec.Struct, frozen=True):
    """All that is kept of the subscriptions, each part by their ids.

    Attributes:
        version: rises with each change of the first four parts.
        changes: digests of the last of these changes, newest first (:func:`change_of`); an earlier version of the
            program writes none.
        registered: every subscription there is; the other parts hold no id that is not here.
        secrets: the signing secrets that were made for a subscription here; never to be shown.
        credentials: what a request has brought for its sink to be sent, opaque; never to be shown.
        paused: the pauses of those that are paused.
        health: how they do at each feed, opaque; under :data:`WHOLE` what holds for all of one.
        pauses: those that sinks have asked for.
        handshakes: whether the sink has granted events, opaque.
        at: when this was so, in milliseconds of the store's clock; 0: not known.
        unusable: why a subscription cannot be delivered with what the store holds of it, in words.
    """

    version: int = 0
    changes: tuple[str, ...] = ()
    registered: Mapping[str, Registered] = {}
    secrets: Mapping[str, tuple[str, ...]] = {}
    credentials: Mapping[str, bytes] = {}
    paused: Mapping[str, Paused] = {}
    health: Mapping[str, Mapping[str, bytes]] = {}
    pauses: SinkPauses = SinkPauses()
    handshakes: Mapping[str, bytes] = {}
    at: int = 0
    unusable: Mapping[str, str] = {}

    @property
    def change(self) -> str:
        """The digest of the last change; empty: none."""
        return self.changes[0] if self.changes else ""

    def continues(self, before: Subscriptions) -> bool:
        """Whether only changes have come since an earlier reading; if not, the store has lost some of those before.

        Version and digests show that; the version alone, where no digest was known or more changes have come than have
        a digest.
        """
        since = self.version - before.version
        if since <= 0:
            return since == 0 and self.change == before.change
        return not before.changes or since >= _CHANGES or before.change in self.changes

    @property
    def until(self) -> Mapping[str, datetime]:
        """Until when sinks want nothing, UTC; may have passed."""
        return self.pauses.until

    def __repr__(self) -> str:
        """Without anything that may be secret."""
        return f"Subscriptions(version={self.version}, ids={sorted(self.registered)})"


def require_registered(kept: Subscriptions, subscription: str, since: datetime | None = None) -> Registered:
    """The subscription of this id; ``since``: the one that is known since then.

    Raises:
        SubscriptionUnknown: there is none.
    """
    found = kept.registered.get(subscription)
    if found is None or since not in {None, found.since}:
        there = f"; there are {', '.join(sorted(kept.registered))}" if kept.registered else "; there are none"
        raise SubscriptionUnknown(f'there is no subscription "{subscription}"{there}')
    return found


def require_paused(kept: Subscriptions, subscription: str, since: datetime) -> None:
    """Raise an error unless the subscription that is known since then is still paused, as it is while being removed.

    Raises:
        SubscriptionUnknown: there is none.
        SubscriptionResumed: it is active.
    """
    require_registered(kept, subscription, since)
    if subscription not in kept.paused:
        raise SubscriptionResumed(f'subscription "{subscription}" was resumed meanwhile: remove it again')


def subscriptions_of(
    version: bytes | None, hashes: Sequence[Mapping[bytes, bytes]], at: int = 0, changes: bytes = b""
) -> Subscriptions:
    """The value from what the store answers.

    Args:
        version: absent where nothing was ever written.
        hashes: registry, secrets, credentials, paused, health, until and handshakes, each by id; health by that and
                the feed.
        at: when that was, in milliseconds of the store's clock.
        changes: the digests of the last changes, as they are stored.
    """
    registry, secrets, credentials, paused, health, until, handshakes = map(_by_name, hashes)
    registered = {name: _read(value, Registered) or _UNREADABLE for name, value in registry.items()}
    made = {name: _read(value, tuple[str, ...]) for name, value in secrets.items()}
    pauses = {name: _read(value, Paused) or _unreadable_pause(registered.get(name)) for name, value in paused.items()}
    unusable = {name: _SECRET_LOST for name, one in registered.items() if one.signed and name not in made}
    unusable |= {name: _PAUSE_LOST for name, one in registered.items() if one.rests and name not in pauses}
    unusable |= {name: _SECRET_UNREADABLE for name, found in made.items() if found is None}
    unusable |= {name: _SETTINGS_UNREADABLE for name, one in registered.items() if one is _UNREADABLE}
    digests = changes.decode("ascii", "replace")
    return Subscriptions(
        int(version or 0),
        tuple(digests[first : first + _DIGEST_SIZE] for first in range(0, len(digests), _DIGEST_SIZE)),
        registered,
        {name: found for name, found in made.items() if found is not None},
        credentials,
        pauses,
        by_feed(health),
        sink_pauses(until, at),
        handshakes,
        at,
        unusable,
    )


_UNREADABLE: Final = Registered("run", msgspec.Raw(b"null"), moment_of(0))
"""In place of a registration that cannot be read: it may want everything, so everything is kept for it."""

_HOW_ON: Final = "remove the subscription and add it again, or restore the field"
_SETTINGS_UNREADABLE: Final = f"its field in {{subscriptions}}:registry cannot be read; {_HOW_ON}"
_SECRET_UNREADABLE: Final = f"its field in {{subscriptions}}:secrets cannot be read; {_HOW_ON}"
_SECRET_LOST: Final = f"the store has lost its signing secret; {_HOW_ON}"
_PAUSE_LOST: Final = "the store has lost its pause: resume it, or pause it again"
_PAUSE_UNREADABLE: Final = "its field in {subscriptions}:paused cannot be read: resume it, unless it is to stay paused"


def _unreadable_pause(one: Registered | None) -> Paused:
    return Paused("operator", _PAUSE_UNREADABLE, one.since if one else moment_of(0))


def _by_name(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """The fields of a hash by name; a name that is no UTF-8 is of no subscription."""
    return {name.decode("utf-8", "replace"): value for name, value in fields.items()}


def sink_pauses(kept: Mapping[str, bytes], at: int) -> SinkPauses:
    """The pauses from their hash.

    One that cannot be is none: it would last longer than any, or began in what is still to come, or cannot be read. So
    says a clock that was wrong when it was written, or that was set back since, or another program.

    Args:
        kept: by :func:`since_field`, :func:`resumed_field`, and the subscription's id for until when.
        at: when it was read, in milliseconds of the store's clock; 0: not known.
    """
    read = {field: moment for field, value in kept.items() if (moment := _moment(value)) is not None}
    until = {name: moment for name, moment in read.items() if " " not in name}
    since = {name: read[field] for name in until if (field := since_field(name)) in read}
    latest = at + LONGEST_PAUSE // timedelta(milliseconds=1)
    valid = {
        name: moment_of(moment)
        for name, moment in until.items()
        if not at or (moment <= latest and since.get(name, 0) <= at + _NEAR_MS)
    }
    resumed = {field.partition(" ")[0]: moment for field, moment in read.items() if field.endswith(_RESUMED)}
    return SinkPauses(valid, {name: moment_of(since[name]) for name in valid if name in since}, resumed, at)


def since_field(subscription: str) -> str:
    """The field with the beginning of a sink's pause. An id holds no space."""
    return f"{subscription} since"


def resumed_field(subscription: str) -> str:
    """The field with the moment when a sink's pause was last ended."""
    return f"{subscription}{_RESUMED}"


def health_field(subscription: str, feed: str) -> str:
    """The field with a subscription's health at a feed. Neither name holds a space."""
    return f"{subscription} {feed}".rstrip()


def by_feed(health: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """The values of the fields of :func:`health_field`, by subscription and feed."""
    found: dict[str, dict[str, bytes]] = {}
    for field, value in health.items():
        subscription, _, feed = field.partition(" ")
        found.setdefault(subscription, {})[feed] = value
    return found


def _read(value: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _moment(value: bytes) -> int | None:
    """Milliseconds as they are stored; None where they are no moment."""
    with suppress(OverflowError, ValueError):
        return None if (found := _read(value, int)) is None else milliseconds_of(moment_of(found))
    return None


Part = Literal["registry", "secrets", "credentials", "paused", "health", "until", "handshakes"]
PARTS: Final[tuple[Part, ...]] = ("registry", "secrets", "credentials", "paused", "health", "until", "handshakes")

Write = tuple[Part, str, bytes | None]
"""Which hash, which field of it, and what that holds from now on; None deletes it."""

Following = Callable[[bytes, bytes | None], bytes | None]
"""Makes of a subscription's settings and credential, as they are kept, the credential that is kept from now on."""

NO_SUBSCRIPTIONS: Final = Subscriptions()
NO_ENDS: Final[Mapping[str, str]] = MappingProxyType({})
_json: Final = msgspec.json.Encoder().encode


def paused_by(writes: Sequence[Write]) -> tuple[str, ...]:
    """The subscriptions that a change pauses."""
    return tuple(name for part, name, value in writes if part == "paused" and value is not None)


def change_of(kept: Subscriptions, writes: Sequence[Write]) -> str:
    """The digest of a change: another one for other writes, on another registry, or planned at another time."""
    planned = msgspec.msgpack.encode((kept.version, kept.changes, kept.at, writes))
    return blake2b(planned, digest_size=_DIGEST_SIZE // 2).hexdigest()


def plan_file(
    kept: Subscriptions,
    file: Mapping[str, bytes],
    now: datetime,
    before: Subscriptions | None = None,
    ends: Mapping[str, str] = NO_ENDS,
) -> list[Write]:
    """The writes that register the subscriptions of a file with its settings. None is paused.

    Args:
        kept: what is there.
        file: the settings of each subscription of the file, in JSON, by id; equal settings are equal bytes.
        now: UTC.
        before: what was there before the store lost it: file subscriptions are as they were, whatever the file says of
            them, for another process may have a newer one; the file counts for those that were not there, and what
            :func:`file_differences` calls a conflict is left out. None: nothing was lost.
        ends: the last entries of the streams, see :func:`poller.store.recovery.last_entries`.

    Raises:
        ConfigurationError: nothing was lost, and one of them has the id of a subscription that was added at run time.
    """
    conflicts = _conflicts(kept, file)
    if conflicts and before is None:
        raise ConfigurationError(next(iter(conflicts.values())))
    before = before or NO_SUBSCRIPTIONS
    file = {name: settings for name, settings in file.items() if name not in conflicts}
    there = {name: one for name, one in kept.registered.items() if one is not _UNREADABLE}
    had = {name: one for name, one in before.registered.items() if name in file and _is_filed(one)}
    added = {
        name: had.get(name) or _new("file", settings, now, kept.at, ends)
        for name, settings in file.items()
        if name not in there
    }
    writes = _file_additions(kept, added, before)
    for name in (name for name in file if name not in added):
        if name not in had:
            one = _with_settings(there[name], file[name], kept.at, ends)
        elif kept.continues(before):  # then whatever differs was changed since
            continue
        else:
            one = _as_before(there[name], had[name])
        if _json(one) != _json(there[name]):
            writes += [_registration(name, one), *_sink_changes(kept, name, bytes(one.settings))]
    return writes


def plan_missing(
    kept: Subscriptions,
    file: Mapping[str, bytes],
    now: datetime,
    before: Subscriptions,
    ends: Mapping[str, str] = NO_ENDS,
) -> list[Write]:
    """The writes that register those subscriptions of a file that are not registered; see :func:`plan_file`."""
    return plan_file(kept, {name: file[name] for name in file if name not in kept.registered}, now, before, ends)


class FileDifferences(msgspec.Struct, frozen=True):
    """What keeps a restored registry from being what a file says and what there was.

    Attributes:
        conflicts: why a subscription of the file is not registered, and what to do, by id: one of that id was added at
            run time. It was removed later, so only an older copy of the registry has it.
        differing: ids of the file that are registered with other settings than it has, in order: a newer file's maybe.
        missing: ids that other files had and that are not registered, in order.
    """

    conflicts: Mapping[str, str] = {}
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def file_differences(kept: Subscriptions, file: Mapping[str, bytes], before: Subscriptions) -> FileDifferences:
    """What a restoration of a file's subscriptions has left different.

    Args:
        kept: what is there now.
        file: as of :func:`plan_file`.
        before: what was there before the store lost it.
    """
    conflicts, there = _conflicts(kept, file), kept.registered
    differing = (
        name
        for name, settings in file.items()
        if name in there and name not in conflicts and bytes(there[name].settings) != settings
    )
    missing = (name for name, one in before.registered.items() if one.origin == "file" and name not in there)
    return FileDifferences(conflicts, tuple(sorted(differing)), tuple(sorted(missing)))


UNLISTED: Final = "no running process has it in its configuration file any more"
"""The reason of a pause by ``removed``."""


class FilePauses(msgspec.Struct, frozen=True):
    """The subscriptions that change because of who lists them, ids in order.

    Attributes:
        paused: those that no live process lists.
        resumed: those that a live process lists again.
    """

    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


def plan_file_pauses(kept: Subscriptions, listed: ListedSubscriptions, now: datetime) -> tuple[list[Write], FilePauses]:
    """The writes after which a file subscription rests for its file's sake if and only if no live process lists it.

    Args:
        kept: what is there.
        listed: by the live processes, read after ``kept``: a process can be seen before it changes anything.
        now: UTC.
    """
    filed = sorted(name for name, one in kept.registered.items() if one.origin == "file")
    rests = {name for name in filed if name in kept.paused and kept.paused[name].by == "removed"}
    resumed = [name for name in filed if name in rests and name in listed.ids]
    paused = [name for name in filed if name not in kept.paused and name not in listed.ids and listed.is_complete]
    writes: list[Write] = [("paused", name, _json(Paused("removed", UNLISTED, now))) for name in paused]
    writes += [("paused", name, None) for name in resumed]
    # An earlier version notes here whose file has brought it back, and pauses it when that process is gone.
    writes += [_registration(name, kept.registered[name]) for name in resumed]
    return writes, FilePauses(tuple(paused), tuple(resumed))


class RestoredPauses(msgspec.Struct, frozen=True):
    """The subscriptions whose pause was lost or came back with an older copy of the registry.

    Attributes:
        paused: those that are paused again.
        resumed: those that are resumed again.
    """

    paused: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


def plan_restoration(
    kept: Subscriptions, before: Subscriptions, renewed: Callable[[bytes], bytes] = lambda health: health
) -> tuple[list[Write], RestoredPauses]:
    """The writes that bring back pauses, resumptions, secrets and credentials that the store has lost.

    Args:
        kept: what is there; where anything was changed since, nothing is brought back. A registry that does not
            continue what was there, as after a failover, gets the pauses of the subscriptions that it has, but for
            those that were resumed there since; and pauses that had been ended are ended again.
        before: what was there.
        renewed: makes of the health of one that is resumed again that of one that starts again.
    """
    again = [name for name in before.paused if not _is_resumed_since(kept, before, name)]
    if not kept.continues(before):
        resumed = tuple(name for name in kept.paused if _is_resumption_lost(kept, before, name))
        writes = [write for name in again for write in _pause_again(kept, before, name)]
        paused = paused_by(writes)
        for name in resumed:
            mark = _resumption_mark(name, before.pauses.resumed[name])  # the same one: it ends no later pause
            writes += [*_pause_ended(kept, name, renewed), mark]
        return writes, RestoredPauses(paused, resumed)
    if kept.version != before.version:
        return [], RestoredPauses()
    parts: tuple[tuple[Part, Mapping[str, bytes], Mapping[str, object]], ...] = (
        ("secrets", {name: _json(one) for name, one in before.secrets.items()}, kept.secrets),
        ("credentials", before.credentials, kept.credentials),
        ("paused", {name: _json(before.paused[name]) for name in again}, kept.paused),
    )
    writes = [
        (part, name, value)
        for part, had, has in parts
        for name, value in had.items()
        if name in kept.registered and name not in has
    ]
    return writes, RestoredPauses(paused_by(writes))


class OlderSubscriptions(msgspec.Struct, frozen=True):
    """The subscriptions that an older copy of the registry has otherwise, ids in order.

    Attributes:
        changed: those with other settings than before; those of files are registered as they were.
        returned: those that had been removed.
    """

    changed: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


def older_subscriptions(kept: Subscriptions, before: Subscriptions) -> OlderSubscriptions:
    """The differences of a registry that went back which only an operator can undo.

    Args:
        kept: what is there. What was registered there since is new, and no difference.
        before: what was there.
    """
    was = before.registered
    same = {name for name, one in kept.registered.items() if name in was and was[name].since == one.since}
    others = {name: one for name, one in kept.registered.items() if name not in same}
    run = {name: one for name, one in kept.registered.items() if name in same and one.origin == "run"}
    changed = (name for name, one in run.items() if bytes(one.settings) != bytes(was[name].settings))
    returned = (name for name, one in others.items() if milliseconds_of(one.since) <= before.at)
    return OlderSubscriptions(tuple(sorted(changed)), tuple(sorted(returned)))


def plan_addition(
    kept: Subscriptions,
    subscription: str,
    settings: bytes,
    secrets: Sequence[str],
    now: datetime,
    *,
    credential: bytes | None = None,
    ends: Mapping[str, str] = NO_ENDS,
) -> list[Write]:
    """The writes that add a subscription at run time.

    Args:
        kept: what is there.
        subscription: its id.
        settings: in JSON.
        secrets: those that were made for it.
        now: UTC.
        credential: that was brought for it.
        ends: as of :func:`plan_file`.

    Raises:
        SubscriptionTaken: there is one of this id.
    """
    if subscription in kept.registered:
        raise SubscriptionTaken(f'there is a subscription "{subscription}" already')
    one = msgspec.structs.replace(_new("run", settings, now, kept.at, ends), signed=bool(secrets))
    writes = [_registration(subscription, one)]
    writes += [("secrets", subscription, _json(tuple(secrets)))] if secrets else []
    return writes + _credential_change(kept, subscription, credential)


def plan_change(
    kept: Subscriptions,
    subscription: str,
    settings: bytes,
    following: Following = lambda _, credential: credential,
    ends: Mapping[str, str] = NO_ENDS,
) -> list[Write]:
    """The writes that change the settings of a subscription and nothing else.

    Args:
        kept: what is there.
        subscription: its id.
        settings: in JSON.
        following: says what becomes of its credential.
        ends: as of :func:`plan_file`.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    before = require_registered(kept, subscription)
    has = following(bytes(before.settings), kept.credentials.get(subscription))
    same = bytes(before.settings) == settings
    writes = [] if same else [_registration(subscription, _with_settings(before, settings, kept.at, ends))]
    writes += _sink_changes(kept, subscription, settings)
    return writes + _credential_change(kept, subscription, has)


def plan_removal(kept: Subscriptions, subscription: str, since: datetime | None = None) -> list[Write]:
    """The writes that delete a subscription.

    Args:
        kept: what is there.
        subscription: its id.
        since: when it was first known; one of this id that was added later is another one. With it: only while paused.

    Raises:
        SubscriptionUnknown: there is none of this id.
        SubscriptionResumed: it is not paused any more.
    """
    require_registered(kept, subscription)
    if since is not None:
        require_paused(kept, subscription, since)
    writes: list[Write] = [(part, subscription, None) for part in PARTS if part != "health"]
    writes += [("until", since_field(subscription), None), ("until", resumed_field(subscription), None)]
    return writes + [("health", health_field(subscription, feed), None) for feed in kept.health.get(subscription, {})]


def plan_pause(
    kept: Subscriptions, subscription: str, pause: Paused, since: datetime | None = None
) -> tuple[list[Write], Paused | None]:
    """The writes that pause a subscription, and the pause that it had before.

    Args:
        kept: what is there.
        subscription: its id.
        pause: by whom and why.
        since: as of :func:`plan_removal`.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    require_registered(kept, subscription, since)
    before = kept.paused.get(subscription)
    stays = before is not None and not (before.by == "removed" and pause.by == "operator")
    if stays:
        return [], before
    return _pause_begin(kept, subscription, pause), before


def plan_rest(
    kept: Subscriptions, subscription: str, pause: Paused, *, sink: str, renewed: Callable[[bytes], bytes]
) -> tuple[list[Write], bool]:
    """The writes that pause a subscription because of what its sink did, and whether it is paused by them.

    Args:
        kept: what is there.
        subscription: its id.
        pause: why it rests.
        sink: the URL of that sink; where the subscription has another one now, or is removed, nothing is written.
        renewed: makes of what is kept of the whole one's health, which may be nothing, that of one that rests.
    """
    one = kept.registered.get(subscription)
    if one is None or one.outline.sink != sink or subscription in kept.paused:
        return [], False
    return [*_pause_begin(kept, subscription, pause), *plan_health(kept, subscription, renewed)], True


def plan_health(kept: Subscriptions, subscription: str, renewed: Callable[[bytes], bytes]) -> list[Write]:
    """The writes that replace the health of the whole subscription."""
    health = kept.health.get(subscription, {}).get(WHOLE, b"")
    fresh = renewed(health)
    return [("health", health_field(subscription, WHOLE), fresh)] if fresh != health else []


def plan_resumption(
    kept: Subscriptions, subscription: str, renewed: Callable[[bytes], bytes]
) -> tuple[list[Write], Paused | None]:
    """The writes that resume a subscription, and the pause that they end, a sink's included; None: none.

    Args:
        kept: what is there.
        subscription: its id.
        renewed: makes of its health at a feed, where there is some, that of one that starts again.

    Raises:
        SubscriptionUnknown: there is none of this id.
    """
    one = require_registered(kept, subscription)
    before, until = kept.paused.get(subscription), kept.until.get(subscription)
    writes = _pause_ended(kept, subscription, renewed)
    if one.rests:
        before = before or Paused("operator", _PAUSE_LOST, moment_of(kept.at))
    if until is not None and milliseconds_of(until) > kept.at:
        since = kept.pauses.since.get(subscription) or moment_of(kept.at)
        before = before or Paused("sink", f"its sink wanted nothing before {until:%Y-%m-%dT%H:%M:%SZ}", since)
        writes += _pause_end(subscription)
    # Processes that deliver forget the failures, too, and a pause that the store has lost or never had.
    return [*writes, _resumption_mark(subscription, kept.at)], before


def _file_additions(kept: Subscriptions, added: Mapping[str, Registered], before: Subscriptions) -> list[Write]:
    writes = [_registration(name, one) for name, one in added.items()]
    paused = {name: before.paused[name] for name in added if name in before.registered and name in before.paused}
    writes += [("paused", name, _json(pause)) for name, pause in paused.items() if pause.by != "removed"]
    return writes + [write for name in added for write in _credential_change(kept, name, None)]  # of one that was lost


def _conflicts(kept: Subscriptions, file: Mapping[str, bytes]) -> dict[str, str]:
    """Why a subscription of a file cannot be registered, for each id that one of run time has."""
    taken = {name: one for name, one in kept.registered.items() if one.origin == "run" and one is not _UNREADABLE}
    return {name: _id_conflict(name, taken[name]) for name in sorted(file) if name in taken}


def _is_filed(one: Registered) -> bool:
    return one.origin == "file" and one is not _UNREADABLE


def _as_before(one: Registered, before: Registered) -> Registered:
    """A file subscription of a registry that went back, as it was; its pause is that of the registry.

    Feeds that it wants since later than before come from a process that has registered its file since.
    """
    is_later = one.asked > before.asked
    settings = one.settings if is_later else before.settings
    again = _with_settings(before, bytes(settings), one.asked, one.asked_after)
    # Which feeds had entries when it was written is not known; where it wanted all before, any may have had some.
    unlisted = None if is_later and before.outline.feeds is None else again.unlisted
    return msgspec.structs.replace(again, rests=one.rests, unlisted=unlisted)


def _new(origin: Origin, settings: bytes, now: datetime, at: int, ends: Mapping[str, str]) -> Registered:
    outline = outline_of(settings)
    after = {feed: entry for feed, entry in ends.items() if feed == WHOLE or outline.wants(feed)}
    return Registered(origin, msgspec.Raw(settings), now, at, asked_after=after)


def _with_settings(one: Registered, settings: bytes, at: int, ends: Mapping[str, str]) -> Registered:
    if bytes(one.settings) == settings:
        return one
    before, after = one.outline, outline_of(settings)
    changed = msgspec.structs.replace(one, settings=msgspec.Raw(settings))
    if before.feeds == after.feeds:
        return changed
    # What was published since a feed was wanted is as new to it as before, if its delivery has not begun, although the
    # feed is not listed for a while. What the stream still holds then is for retention to say.
    asked = dict(one.asked_before)
    for feed in (WHOLE,) if before.feeds is None else before.feeds:
        if moment := one.asked_for(feed):
            asked.setdefault(feed, moment)
    if WHOLE in asked:
        asked = dict.fromkeys(after.feeds or (), asked[WHOLE]) | asked
    return msgspec.structs.replace(
        changed,
        asked=at,
        asked_before=asked,
        asked_after=_asked_after(one, after, ends),
        unlisted=_unlisted(one, after, at, ends),
    )


def _asked_after(one: Registered, now: SubscriptionOutline, ends: Mapping[str, str]) -> Mapping[str, str]:
    """The last entries before each feed was asked for, of a subscription that lists other feeds now."""
    if one.outline.feeds is None or WHOLE in one.asked_before:
        return one.asked_after  # it has wanted all
    before = {feed: one.new_after(feed) for feed in (*one.outline.feeds, *one.asked_before)}
    return {feed: entry for feed, entry in ends.items() if feed == WHOLE or now.wants(feed)} | before


def _unlisted(one: Registered, now: SubscriptionOutline, at: int, ends: Mapping[str, str]) -> dict[str, int]:
    """Since when each feed is not listed any more, of a subscription that lists other feeds now.

    Of one that wanted all, these are the feeds with entries: in the others, and in those that are not known yet,
    nothing waits for it.
    """
    before, known = one.outline.feeds, one.unlisted
    if known is None:
        known = dict.fromkeys(one.asked_before, one.asked)
    others = () if ends.get(WHOLE) else (WHOLE,)
    left = before if before is not None else (*(feed for feed in ends if feed != WHOLE), *others)
    return {feed: moment for feed, moment in (dict(known) | dict.fromkeys(left, at)).items() if not now.wants(feed)}


def _sink_changes(kept: Subscriptions, name: str, settings: bytes) -> list[Write]:
    """The writes that delete what the sink has said, if it is another one now, or need not permit events any more."""
    before, now = kept.registered[name].outline, outline_of(settings)
    is_same = before.sink == now.sink
    is_over = not is_same or (before.handshake and not now.handshake)
    writes: list[Write] = [("handshakes", name, None)] if is_over and name in kept.handshakes else []
    if name in kept.until and not is_same:
        writes += [*_pause_end(name), _resumption_mark(name, kept.at)]
    return writes


def _pause_begin(kept: Subscriptions, name: str, pause: Paused) -> list[Write]:
    one = kept.registered[name]
    writes: list[Write] = [("paused", name, _json(pause))]
    if one is _UNREADABLE or one.rests or pause.by == "removed":
        return writes
    return [_registration(name, msgspec.structs.replace(one, rests=True)), *writes]


def _pause_ended(kept: Subscriptions, name: str, renewed: Callable[[bytes], bytes]) -> list[Write]:
    """The writes that end the pause of a subscription, if it has one, and make its health that of one that starts."""
    one, writes = kept.registered[name], list[Write]()
    if name in kept.paused:
        writes.append(("paused", name, None))
    if one.rests:
        writes.append(_registration(name, msgspec.structs.replace(one, rests=False)))
    for feed, health in kept.health.get(name, {}).items():
        if (fresh := renewed(health)) != health:
            writes.append(("health", health_field(name, feed), fresh))
    return writes


def _is_resumed_since(kept: Subscriptions, before: Subscriptions, name: str) -> bool:
    return kept.pauses.is_resumed_since(name, before.pauses.resumed.get(name, 0))


def _is_resumption_lost(kept: Subscriptions, before: Subscriptions, name: str) -> bool:
    """Whether a pause is there that had been ended: it is older than a resumption that only was there before.

    A pause for the files' sake ends by itself.
    """
    pause, resumed = kept.paused[name], before.pauses.resumed.get(name, 0)
    if pause.by == "removed" or name in before.paused or not _is_same(kept, before, name):
        return False
    return milliseconds_of(pause.at) <= resumed and kept.pauses.resumed.get(name, 0) < resumed


def _is_same(kept: Subscriptions, before: Subscriptions, name: str) -> bool:
    """Whether both have a subscription of this id, and none that was added later under the same one."""
    one, was = kept.registered.get(name), before.registered.get(name)
    return one is not None and was is not None and one.since == was.since


def _pause_again(kept: Subscriptions, before: Subscriptions, name: str) -> list[Write]:
    """The writes that pause a subscription as it was paused before, if it is the same one and is not paused."""
    pause = before.paused[name]
    is_lost = _is_same(kept, before, name) and name not in kept.paused and pause.by != "removed"
    return _pause_begin(kept, name, pause) if is_lost else []


def _pause_end(name: str) -> list[Write]:
    return [("until", name, None), ("until", since_field(name), None)]


def _resumption_mark(name: str, at: int) -> Write:
    return "until", resumed_field(name), _json(at)  # for what waits for its end


def _credential_change(kept: Subscriptions, name: str, credential: bytes | None) -> list[Write]:
    return [] if credential == kept.credentials.get(name) else [("credentials", name, credential)]


def _registration(name: str, one: Registered) -> Write:
    return "registry", name, _json(one)


def _id_conflict(name: str, one: Registered) -> str:
    return (
        f'subscription "{name}" is in the configuration file, and one of that id was added at run time '
        f"({one.since:%Y-%m-%d %H:%M} UTC): give the one in the file another id, or end the other with "
        f"`poller subscriptions remove {name}`"
    )
