"""What Redis keeps of a consumer group at one feed, and the scripts that change it.

Two keys beside the stream, under the feed's hash tag, hold no content of records:

* ``group:state:NAME``: who has the lease (``token``, ``name``, ``until``), the last entry that was read (``read``), the
  last one up to which all are acknowledged (``place``) with its ``sequence``, and how far the bootstrap has come
  (``bootstrap``, ``page``), of which ``generation`` of the feed, and by which process of the server (``run_id``).
* ``group:revisions:NAME``: while a bootstrap is under way, digests of the records of its page that were handled, with
  the ids of their events. An id names one version of a record, which its revision does not do after a reset, or in a
  store that went back.

**Invariants**

- A script that reads or acknowledges checks the lease in the same step, by its random token: a member that was paused
  past its lease changes nothing.
- Reading is checked against the last entry that the reader knows of. So entries whose reply was lost, and a store that
  went back, are noticed before anything newer is read.
- Every script may be sent again, but for reading, which the check above covers.
- The scripts use no command that could change a stream's entries; the ACL user ``reader`` may do the same and no more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from typing import Any, Final, NamedTuple, cast

from redis.exceptions import NoScriptError

from poller.client.gaps import ErasedNumbers

LONGEST_LEASE: Final = timedelta(minutes=10)
"""A lease that lasts longer was taken before the server's clock was set back, and counts as expired."""

_HEAD: Final = re.compile(r"(?:--.*\n)*")
_INCLUDED: Final = re.compile(r"^-- include (\w+)$", re.MULTILINE)

StreamEntry = tuple[str, bytes | None]
"""An entry's id and its event; None where its content is gone."""


class LeaseLost(Exception):
    """Another member reads the feed; what this one has not acknowledged goes to that member."""


class GroupMissing(Exception):
    """The group does not exist, or not any more."""


class ReadBehind(Exception):
    """The group has read other entries than this member knows of."""


class Script(NamedTuple):
    """A Lua script and the digest by which the server knows it."""

    text: str
    digest: str

    @classmethod
    def load(cls, name: str) -> Script:
        """The script of ``lua/NAME.lua``, with what it includes."""
        text = _text(name)
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _text(name: str) -> str:
    text = files("poller.client").joinpath("lua", f"{name}.lua").read_text("utf-8")
    head = cast("re.Match[str]", _HEAD.match(text))[0]
    return "\n".join([*map(_text, _INCLUDED.findall(head)), text[len(head) :]])


_ACQUIRE: Final = Script.load("acquire")
_RENEW: Final = Script.load("renew")
_RELEASE: Final = Script.load("release")
_READ: Final = Script.load("read")
_CLAIM: Final = Script.load("claim")
_ACKNOWLEDGE: Final = Script.load("acknowledge")
_NOTE_RECORDS: Final = Script.load("note_records")
_KEEP_CLAIMED: Final = Script.load("keep_claimed")
_FORGET: Final = Script.load("forget")


@dataclass(frozen=True, slots=True)
class GroupState:
    """What is known of a group once its lease is acquired.

    Attributes:
        was_held: whether this member had the lease before, without a break.
        exists: whether the stream has the group.
        read: the last entry that was read; empty: unknown.
        sequence: of the last event that was acknowledged; None: unknown.
        bootstrap: empty, ``running`` or ``done``.
        page: the link of the page of records that is under way; empty: it is the first one, or none is.
        generation: of the feed that the bootstrap is of; empty: unknown.
        run_id: of the server's process when its first page was read; empty: unknown.
    """

    was_held: bool
    exists: bool
    read: str = ""
    sequence: int | None = None
    bootstrap: str = ""
    page: str = ""
    generation: str = ""
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Another member that has the lease: its name, and for how long unless it renews."""

    name: str
    left: timedelta


@dataclass(frozen=True, slots=True)
class ClaimedEntries:
    """Entries that were read before and are this member's now.

    Attributes:
        following: the id to go on at; ``0-0``: there are no more.
        entries: the oldest first.
        gone: entries whose content is gone.
    """

    following: str
    entries: Sequence[StreamEntry]
    gone: Sequence[str]


@dataclass(frozen=True, slots=True)
class NewEntries:
    """Entries that were read now, and the last id of the stream at that moment."""

    last: str
    entries: Sequence[StreamEntry]


class GroupStore:
    """A group at one feed, as one of its members changes it."""

    def __init__(
        self, client: Any, *, prefix: str, feed: str, group: str, name: str, token: str, lease: timedelta
    ) -> None:
        """Take what it works with; nothing is sent.

        Args:
            client: a redis-py client that returns bytes.
            prefix: of all keys.
            feed: ``SOURCE/NAME``.
            group: the name of the consumer group.
            name: of this member.
            token: proves that this member has the lease; empty: the members share the feed.
            lease: how long a lease lasts unless it is renewed.
        """
        self.events = f"{prefix}:{{{feed}}}:events"
        self._state = f"{prefix}:{{{feed}}}:group:state:{group}"
        self._revisions = f"{prefix}:{{{feed}}}:group:revisions:{group}"
        self.erased = ErasedNumbers(client, self.events)
        self._client = client
        self._group = group
        self.member = name
        self._token = token
        self._lease_ms = _milliseconds(lease)

    async def acquire(self, *, start: str, known: str) -> GroupState | LeaseHolder:
        """Acquire the lease, or renew it, and create the group if it does not exist.

        Args:
            start: the id after which a new group begins; empty: none is created.
            known: the last entry that this member knows to be acknowledged; empty: none.
        """
        given = [self._token, self._lease_ms, self.member, self._group, _milliseconds(LONGEST_LEASE), start, known]
        answer = await self._run(_ACQUIRE, [self._state, self.events], given)
        if answer[0] == b"HELD":
            return LeaseHolder((answer[2] or b"").decode("utf-8", "replace"), timedelta(milliseconds=int(answer[1])))
        _, was_held, exists, flat = answer
        found = {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}
        sequence = int(found["sequence"]) if "sequence" in found else None
        bootstrap = [found.get(name, "") for name in ("bootstrap", "page", "generation", "run_id")]
        return GroupState(bool(was_held), bool(exists), found.get("read", ""), sequence, *bootstrap)

    async def renew(self) -> bool:
        """Keep the lease for another term; False: it is lost."""
        return bool(await self._run(_RENEW, [self._state], [self._token, self._lease_ms]))

    async def release(self) -> None:
        """Let another member have the lease."""
        await self._run(_RELEASE, [self._state], [self._token])

    async def read(self, *, after: str = ">", most: int, known: str = "") -> NewEntries:
        """Read entries that no member has read, or, with an id, those of this member after it.

        Raises:
            LeaseLost: nothing was read.
            GroupMissing: likewise.
            ReadBehind: likewise; the group has not read ``known`` last.
        """
        given = [self._token, self._group, self.member, after, most, known]
        answer = await self._checked(_READ, given)
        return NewEntries(answer[1].decode(), _entries(answer[2]))

    async def claim(self, *, begin: str, idle: timedelta, most: int) -> ClaimedEntries:
        """Claim entries that were read and not acknowledged, and that nothing has happened to for ``idle``.

        Raises:
            LeaseLost: nothing was claimed.
            GroupMissing: likewise.
        """
        given = [self._token, self._group, self.member, _milliseconds(idle), begin, most]
        answer = await self._checked(_CLAIM, given)
        entries = _entries(answer[2])
        gone = [entry for entry, event in entries if event is None]  # of servers before 7.0; later ones list them
        return ClaimedEntries(
            answer[1].decode(),
            [(entry, event) for entry, event in entries if event is not None],
            [*gone, *(one.decode() for one in answer[3])],
        )

    async def acknowledge(self, entries: Iterable[str], *, place: str = "", sequence: int | None = None) -> None:
        """Acknowledge entries, and note how far the group has come.

        Raises:
            LeaseLost: nothing was acknowledged.
        """
        given = [self._token, self._group, place, "" if sequence is None else sequence, *entries]
        if not await self._run(_ACKNOWLEDGE, [self._state, self.events], given):
            raise LeaseLost

    async def note_records(
        self, handled: Mapping[str, str], *, state: Mapping[str, str] | None = None, begins_page: bool = False
    ) -> None:
        """Note records of a bootstrap that were handled, with the ids of their events, and what changes of the state.

        Raises:
            LeaseLost: nothing was noted.
        """
        fields = [part for pair in (state or {}).items() for part in pair]
        given = [self._token, int(begins_page), len(fields) // 2, *fields]
        given += [part for pair in handled.items() for part in pair]
        if not await self._run(_NOTE_RECORDS, [self._state, self._revisions], given):
            raise LeaseLost

    async def handled_records(self) -> dict[str, str]:
        """The records of the page under way that were handled, with the ids of their events."""
        found = await self._client.hgetall(self._revisions)
        return {name.decode(): event_id.decode() for name, event_id in found.items()}

    async def keep_claimed(self, most: int) -> None:
        """Keep the entries that this member works on from being claimed by others."""
        await self._run(_KEEP_CLAIMED, [self.events], [self._group, self.member, most])

    async def first_entry(self) -> str:
        """The id of the stream's oldest entry; empty: it has none."""
        found = await self._client.xrange(self.events, count=1)
        return found[0][0].decode() if found else ""

    async def forget(self) -> None:
        """Destroy the group, and delete what is kept of it.

        Raises:
            LeaseLost: another member reads; nothing was deleted.
        """
        given = [self._token, self._group, _milliseconds(LONGEST_LEASE)]
        if not await self._run(_FORGET, [self._state, self._revisions, self.events], given):
            raise LeaseLost

    async def _checked(self, script: Script, given: Sequence[Any]) -> Sequence[Any]:
        answer: Sequence[Any] = await self._run(script, [self._state, self.events], given)
        refusal = {b"LOST": LeaseLost, b"NOGROUP": GroupMissing, b"BEHIND": ReadBehind}.get(answer[0])
        if refusal is not None:
            raise refusal
        return answer

    async def _run(self, script: Script, keys: Sequence[str], given: Sequence[Any]) -> Any:
        rest = [len(keys), *keys, *given]
        try:
            return await self._client.execute_command("EVALSHA", script.digest, *rest)
        except NoScriptError:  # a new server, or one whose scripts were flushed
            return await self._client.execute_command("EVAL", script.text, *rest)


def _entries(found: Sequence[Any]) -> list[StreamEntry]:
    """From a script's answer; servers before 7.0 have nothing in place of an entry that is gone."""
    return [(one[0].decode(), None if one[1] is None else _event(one[1])) for one in found if one is not None]


def _event(fields: Sequence[bytes]) -> bytes:
    return dict(zip(fields[::2], fields[1::2], strict=True)).get(b"data", b"")


def _milliseconds(span: timedelta) -> int:
    return int(span / timedelta(milliseconds=1))
