"""The events of one record that its feed's stream still holds, the latest first.

**Invariants**

- An event is decoded only if it holds the bytes of the record's id: a stream of 1 GiB has a million other events.
- A bounded part of the stream is in memory, and every place between two events can be the end.
- Values are shown as they were received. An entry that cannot be read is passed over and counted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final, Literal, cast

import msgspec
from redis.asyncio import Redis

from poller.changes.records import text_key
from poller.control.records import ValueChange, on_one_line, value_changes
from poller.redis.errors import translated
from poller.store.stream import FIRST_ID, EntryId

_FEW: Final = 50  # entries of the first request
_MOST: Final = 2000
_BYTES: Final = 1024 * 1024  # of one request, about
_GROWTH: Final = 4  # from one request to the next, should small entries be followed by large ones

_quoted: Final = msgspec.json.Encoder().encode


class _ChangeData(msgspec.Struct, frozen=True):
    revision: int
    cause: str
    record: msgspec.Raw = msgspec.Raw()
    previous: msgspec.Raw = msgspec.Raw()
    changed: tuple[str, ...] = ()


class _ChangeEvent(msgspec.Struct, frozen=True):
    id: str
    type: Annotated[str, msgspec.Meta(pattern=r"\.(created|modified|removed)\.v[0-9]+$")]
    subject: str
    time: str
    recordedtime: str
    sequence: str
    data: _ChangeData


_decode: Final = msgspec.json.Decoder(_ChangeEvent).decode


class RecordEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a record.

    Attributes:
        entry: id of its entry in the stream.
        id: of the event.
        sequence: of the event within its feed.
        revision: of the record with it.
        change: ``created``, ``modified`` or ``removed``.
        cause: the kind of reading that found it.
        time: of the change, as the event has it.
        recordedtime: when the record was read.
        changes: the values that differ; empty unless modified. Without its former values an event was too large.
        record: the record, of one that was created.
        previous: the record as it was last, of one that was removed; absent also where the event was too large.
    """

    entry: str
    id: str
    sequence: int
    revision: int
    change: Literal["created", "modified", "removed"]
    cause: str
    time: str
    recordedtime: str
    changes: tuple[ValueChange, ...] = ()
    record: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    previous: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class RecordHistory:
    """Looks for the events of one record in a stream.

    Attributes:
        looked_at: how many entries were looked at.
        unreadable: how many of them could not be read.
        place: the id of the last of them; empty: none was.
        is_over: whether all of the stream was looked at.
    """

    def __init__(self, client: Redis, events: str, subject: str, *, before: str = "") -> None:
        """Take the store's client, the stream's key, the record's id, and where to begin: before an entry."""
        self.looked_at = 0
        self.unreadable = 0
        self.place = before
        self.is_over = (
            bool(before) and EntryId.parse(before) == FIRST_ID
        )  # nothing comes before it, and the store refuses to look there
        self._client = client
        self._events = events
        self._key = text_key(subject)
        self._needle = b'"subject":' + _quoted(subject).lower()

    async def entries(self) -> int:
        """How many entries the stream holds.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        with translated(self._client):
            return await self._client.xlen(self._events)

    async def found(self) -> AsyncGenerator[RecordEvent | None]:
        """The events, the latest first, and None after each part of the stream that was looked at.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        most = _FEW
        while not self.is_over:
            with translated(self._client):
                end = f"({self.place}" if self.place else "+"
                answer: Any = await self._client.xrevrange(self._events, end, "-", count=most)
            entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer)
            size = 0
            for name, fields in entries:
                content = fields.get(b"data", b"")
                size += len(content)
                self.looked_at += 1
                self.place = name.decode()
                if self._needle in content.lower() and (event := self._event(content)) is not None:
                    yield event
            self.is_over = len(entries) < most
            most = max(1, min(_MOST, _GROWTH * most, _BYTES * len(entries) // max(size, 1)))
            yield None

    def _event(self, content: bytes) -> RecordEvent | None:
        """The event, if it is one of the record."""
        try:
            event = _decode(content)
            if text_key(event.subject) != self._key:
                return None
            data, sequence = event.data, int(event.sequence)
            changes = value_changes(data.changed, bytes(data.previous), bytes(data.record))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.unreadable += 1
            return None
        change = cast("Literal['created', 'modified', 'removed']", event.type.split(".")[-2])
        return RecordEvent(
            entry=self.place,
            id=event.id,
            sequence=sequence,
            revision=data.revision,
            change=change,
            cause=data.cause,
            time=event.time,
            recordedtime=event.recordedtime,
            changes=changes,
            record=on_one_line(bytes(data.record)) if change == "created" else msgspec.UNSET,
            previous=on_one_line(bytes(data.previous)) if change == "removed" and data.previous else msgspec.UNSET,
        )
