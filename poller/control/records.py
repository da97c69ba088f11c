"""The records of a feed as the store knows them, and one of them as the API has it now.

**Invariants**

- A record is found by its id as received: text, or the digits of an integer; of a UUID in any case.
- What is read is of one moment, see :mod:`poller.store.records`. Nothing is changed.
- A question to the API is one exchange with the feed's credential and limits, and repeats only what its client repeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from redis.asyncio import Redis

from poller.changes.canonical import parse, without
from poller.changes.diff import Snapshot, changed_pointers
from poller.changes.records import text_key, twin_of
from poller.clock import Clock, moment_of
from poller.config.settings import Settings
from poller.control.factories import client_of, feed_of, keys_of
from poller.errors import PollerError, SourceNonsense, SourceRefused
from poller.redis.errors import translated
from poller.source.writer import GONE, single_record
from poller.store.erasure import is_number_of_erasure
from poller.store.feed import kept_listings
from poller.store.feed_state import FeedState, state_of
from poller.store.records import AsOf, FoundRecords, RecordReader, StoredRecord
from poller.text import one_line

_FIRST_CHARACTER: Final = " "  # no id begins with a control character, but keys and their fields do
_BREAKS: Final = (b"\n", b"\r")
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class RecordLine(msgspec.Struct, frozen=True):
    """A record as it was last published.

    Attributes:
        id: as received.
        revision: of its last event; 0: a silent baseline published none.
        record: as received, on one line.
        changed_at: when its last change was noticed, RFC 3339; None: unknown.
    """

    id: str
    revision: int
    record: msgspec.Raw
    changed_at: str | None


class RecordDetails(msgspec.Struct, frozen=True):
    """One record, and what is known of its readings.

    Attributes:
        id: as received.
        revision: of its last event; 0: a silent baseline published none.
        record: as received, on one line; None: it is removed.
        changed_at: when its last change was noticed, or when it was erased, RFC 3339; None: unknown.
        feed: ``SOURCE/NAME``.
        sequence: of its last event; 0: it had none.
        removed: whether it is removed, or was erased.
        erased: whether it was erased; ``changed_at`` says when.
        missing: whether the last full reading did not hold it, and another one decides whether it is removed.
        seen_at: when a reading last showed that it is there, RFC 3339; None: unknown, or it is removed.
        next_round_at: when the feed is read the next time, RFC 3339; None: unknown.
        next_full_reading_at: when the feed is read in full the next time, at the latest, RFC 3339; None: unknown.
        as_of: when all this was read.
    """

    id: str
    revision: int
    record: msgspec.Raw | None
    changed_at: str | None
    feed: str
    sequence: int
    removed: bool
    erased: bool
    missing: bool
    seen_at: str | None
    next_round_at: str | None
    next_full_reading_at: str | None
    as_of: AsOf


class ValueChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value that differs.

    Attributes:
        pointer: to it, a JSON pointer; empty: the whole record.
        before: the value; absent: there was none.
        after: the value; absent: there is none.
    """

    pointer: str
    before: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    after: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SourceAnswer(msgspec.Struct, frozen=True):
    """What the API says of a record now, beside what is known of it.

    Attributes:
        id: as received, or as it was asked for.
        feed: ``SOURCE/NAME``.
        answer: ``there``: the API has it; ``gone``: it has answered that there is no such record.
        status: of the answer.
        known: ``live``, ``removed``, ``erased``, or ``unknown``, in the store.
        revision: of its last event; None: it is unknown.
        record: as the API has it now, on one line; None: it is gone.
        changes: from what is known to what the API has now; empty: nothing that counts differs, or nothing is known.
        as_of: when the store was read, before the API was asked.
    """

    id: str
    feed: str
    answer: Literal["there", "gone"]
    status: int
    known: Literal["live", "removed", "erased", "unknown"]
    revision: int | None
    record: msgspec.Raw | None
    changes: tuple[ValueChange, ...]
    as_of: AsOf


class RecordUnknown(PollerError):
    """The store knows no such record."""


class RecordUnreadable(PollerError):
    """The snapshot of a record cannot be read."""


class NoSingleRecord(PollerError):
    """The API cannot be asked for this record alone."""


class FeedRecords:
    """The records of one configured feed.

    Attributes:
        feed: as rounds use it.
        reader: of its snapshots.
    """

    def __init__(self, client: Redis, settings: Settings, name: str, *, clock: Clock) -> None:
        """Take the store's client, the configuration, the feed's id or its unique name, and the store's clock.

        Raises:
            ConfigurationError: there is no such feed.
        """
        self._source, found = settings.find_feed(name)
        self.feed = feed_of(self._source, found)
        self.reader = RecordReader(client, keys_of(settings, self.feed.id), id_field=self.feed.id_field)
        self._client = client
        self._clock = clock

    async def find(self, text: str) -> tuple[StoredRecord | None, FoundRecords]:
        """The record of this id, and all that was read; None: there is none.

        Where the text and the integer of these digits are two records, it is the live one, then the one changed last.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        key = text_key(text)
        twin = twin_of(key)
        keys = [key] if twin is None else [key, twin]
        found = await self.reader.get(keys if text[:1] >= _FIRST_CHARACTER else [])
        ranked = sorted(found.records.values(), key=lambda one: (not one.removed, one.sequence))
        return (ranked[-1] if ranked else None), found

    async def known(self, text: str) -> tuple[StoredRecord, FoundRecords]:
        """As :meth:`find`, of a record that there is and that can be read.

        Raises:
            RecordUnknown: there is none.
            RecordUnreadable: its snapshot cannot be read.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        record, found = await self.find(text)
        if record is None:
            raise RecordUnknown(
                f'{self.feed.id} has no record with the id "{one_line(text)}", live or removed; '
                f"ids are compared as received, and `poller records list {self.feed.id}` shows them"
            )
        if record.unreadable:
            raise RecordUnreadable(
                f'the snapshot of record "{one_line(record.subject)}" of {self.feed.id} cannot be read: '
                f"{record.unreadable}; the next round that reads the record quarantines the snapshot and publishes the "
                "record as modified"
            )
        return record, found

    async def is_erased(self, record: StoredRecord) -> bool:
        """Whether this record was erased, and has not come back.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        return record.removed and await is_number_of_erasure(self._client, self.reader.keys, record.sequence)

    async def details(self, text: str) -> RecordDetails:
        """One record, and what is known of its readings.

        Raises:
            RecordUnknown: there is none.
            RecordUnreadable: its snapshot cannot be read.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        record, found = await self.known(text)
        state = await self._state()
        seen_at = None if record.removed else await self._seen_at(record, state)
        return RecordDetails(
            id=record.subject,
            revision=record.revision,
            record=None if record.removed else on_one_line(record.raw),
            changed_at=rfc3339_seconds(record.changed_at),
            feed=self.feed.id,
            sequence=record.sequence,
            removed=record.removed,
            erased=await self.is_erased(record),
            missing=record.missing,
            seen_at=rfc3339_seconds(seen_at),
            next_round_at=rfc3339_seconds(state.next_at),
            next_full_reading_at=rfc3339_seconds(self._next_full_reading(state)),
            as_of=found.as_of,
        )

    def _next_full_reading(self, state: FeedState) -> datetime | None:
        """At the latest; None: unknown, as of one listing among many."""
        if self.feed.resource.per_qualification or state.read_at is None:
            return None
        if state.delta_token is None:
            return state.next_at
        return None if self.feed.reconcile is None else state.read_at + self.feed.reconcile

    async def _state(self) -> FeedState:
        with translated(self._client):
            fields: Any = await self._client.hgetall(self.reader.keys.state)
        return state_of(fields)

    async def _seen_at(self, record: StoredRecord, state: FeedState) -> datetime | None:
        """When a reading last showed it: that of its last change, or a later full one that did not miss it."""
        read_at = None if record.missing else state.read_at
        if self.feed.resource.per_qualification and not record.missing:
            read_at = await self._listing_read_at(record)
        moments = [moment for moment in (record.changed_at, read_at) if moment is not None]
        return max(moments, default=None)

    async def _listing_read_at(self, record: StoredRecord) -> datetime | None:
        listings = await kept_listings(self._client, self.reader.keys.listings)
        snapshot = Snapshot(record.revision, record.sequence, record.raw)
        qualification = self.feed.last_seen(record.key, snapshot).qualification
        listing = listings.get(qualification or "")
        return moment_of(listing.read) if listing and listing.read else None

    async def ask(self, text: str, environ: Mapping[str, str]) -> SourceAnswer:
        """Ask the API for a record, known or not, and compare its answer with what is known.

        Args:
            text: the id.
            environ: may hold the credential.

        Raises:
            NoSingleRecord: the API has no endpoint for a single record, or this id cannot stand in its path.
            SourceError: the API's answer says nothing of the record.
            CredentialUnusable: there is no token to send.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        record, found = await self.find(text)
        subject = record.subject if record else text
        path = self._path_of(subject)
        async with client_of(self._source, environ, self._clock) as client:
            try:
                body, status = await client.get(path), 200
            except SourceRefused as refused:
                if refused.status not in GONE:
                    raise
                body, status = None, refused.status
        answered = None
        if body is not None:
            answered = single_record(body, self.feed)
            if answered is None or text_key(answered.subject) != text_key(subject):
                raise SourceNonsense(
                    f"GET {path} was answered with something else than the record, so the answer says nothing of it"
                )
        known: Literal["live", "removed", "erased", "unknown"] = "unknown"
        if record is not None:
            is_erased = await self.is_erased(record)
            known = "erased" if is_erased else "removed" if record.removed else "live"
        before = record.raw if record is not None and known == "live" and not record.unreadable else None
        return SourceAnswer(
            id=answered.subject if answered else subject,
            feed=self.feed.id,
            answer="there" if answered else "gone",
            status=status,
            known=known,
            revision=record.revision if record else None,
            record=on_one_line(answered.raw) if answered else None,
            changes=self._differences(before, answered.raw) if answered and before is not None else (),
            as_of=found.as_of,
        )

    def _path_of(self, subject: str) -> str:
        resource = self.feed.resource
        if resource.detail_path is None:
            raise NoSingleRecord(
                f"the API has no endpoint for a single record of {self.feed.id} (only the list {resource.path}), so it "
                f"cannot be asked for one; `poller resync {self.feed.id} --wait` reads the list in full and publishes "
                "what differs. If the API has such an endpoint, set the feed's detail_path"
            )
        path = resource.record_path(subject)
        if path is None:
            raise NoSingleRecord(
                f'the id "{one_line(subject)}" would lead to another path of the API, so it is not asked for'
            )
        return path

    def _differences(self, before: bytes, after: bytes) -> tuple[ValueChange, ...]:
        """What counts of the differences: within the requested fields, without what is ignored."""
        strip, asked = without(self.feed.ignore), self.feed.query.fields

        def counted(raw: bytes) -> Any:
            value = strip(parse(raw))
            is_part = asked and isinstance(value, dict)
            return {name: one for name, one in value.items() if name in asked} if is_part else value

        try:
            old, new = counted(before), counted(after)
        except ValueError as error:
            raise SourceNonsense(f"the API's answer cannot be compared: {error}") from None
        return value_changes(changed_pointers(old, new), before, after)


def line_of(record: StoredRecord) -> RecordLine:
    """A live record as one line of a list."""
    return RecordLine(record.subject, record.revision, on_one_line(record.raw), rfc3339_seconds(record.changed_at))


def on_one_line(raw: bytes) -> msgspec.Raw:
    """A record as received, but for line breaks between its values."""
    if any(mark in raw for mark in _BREAKS):
        raw = msgspec.json.format(raw, indent=-1)
    return msgspec.Raw(raw)


def rfc3339_seconds(moment: datetime | None) -> str | None:
    """A UTC moment as RFC 3339 with seconds, for that is how exactly moments of changes are kept."""
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def value_changes(pointers: tuple[str, ...], before: bytes, after: bytes) -> tuple[ValueChange, ...]:
    """The values at these pointers in two records, as they were received."""
    return tuple(ValueChange(pointer, _at(before, pointer), _at(after, pointer)) for pointer in pointers)


def _at(raw: bytes, pointer: str) -> msgspec.Raw | msgspec.UnsetType:
    """The value at a pointer through objects; arrays are compared as a whole, so no pointer leads into one."""
    if not raw:  # it was left out of an event that would have been too large
        return msgspec.UNSET
    for token in pointer.split("/")[1:]:
        try:
            found = _members(raw).get(token.replace("~1", "/").replace("~0", "~"))
        except msgspec.ValidationError:  # no object
            return msgspec.UNSET
        if found is None:
            return msgspec.UNSET
        raw = bytes(found)
    return on_one_line(raw)
