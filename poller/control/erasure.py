"""Erasure of a record: everything that the store holds of it, but for a tombstone without content.

**Invariants**

- The API is asked first: a record that is still there comes back with the next full reading, so that needs ``force``.
- An erasure that was broken off is completed by another one: :mod:`poller.store.erasure`.
- Processes that deliver are informed before anything is looked for, and at the end each of them has confirmed that it
  sends nothing of the record any more, or is named in the result.
- Of two erasures of a record at a time, the one that began last goes on with what the other one has found.
- An erasure is announced when it is complete, by an operational event without content. If its process dies before
  that, the next erasure of the record announces it, or a daemon does (:func:`announce_completed`); a repeated event has
  the same id. One that finds nothing any more takes no number and announces nothing.
- An empty id is refused first: records without one are quarantined, and are no record's.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from poller.changes.records import Record, record_reader, text_key, twin_of
from poller.clock import Clock, milliseconds_of, moment_of, rfc3339
from poller.config.settings import Settings
from poller.control.records import FeedRecords, NoSingleRecord, RecordUnknown
from poller.delivery.cloudevent import delivery_key
from poller.delivery.delivery_codec import deliveries_of, letter_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import PollerError, SourceError
from poller.failpoints import reach
from poller.redis.errors import translated
from poller.store.erasure import ErasedEvents, ErasureTally, FeedErasure, complete_tallies, forget_tally
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys, group_of
from poller.store.registry import Registry
from poller.store.stream import EntryId, consumer_groups
from poller.text import one_line

PATIENCE: Final = timedelta(seconds=10)
"""How long to wait until processes that deliver have confirmed."""

_ABANDONED: Final = timedelta(minutes=10)  # after that, the process of a complete erasure will not announce it
_CONFIRMED_SECONDS: Final = 0.1
_REWRITTEN: Final = timedelta(minutes=1)  # how long to wait for the end of a rewrite that began before
_DAMAGED: Final = b"snapshot of revision "  # the reason of a quarantined snapshot, which names no record
_SHORT: Final = 6  # characters: shorter ids stand by chance in other records
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
_VALUE: Final = _STRING + rb'|[^\s,}\]"]++'  # a string, also one that is cut off, or another value
_NESTED: Final = re.compile(rb'([\[{])|([\]}])|(%b)\s*+(:)?|([^\s,:"\[\]{}]++)' % _STRING, re.DOTALL)
_ESCAPED: Final = re.compile(r'(?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt]')
_HEXADECIMAL: Final = re.compile("[0-9a-f]{32}").fullmatch
_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,4})?", re.ASCII).fullmatch
_RANGES: Final = 500  # of sequence numbers in an operational event


class _Outline(msgspec.Struct, frozen=True):
    subject: str = ""
    sequence: str = ""


_outline_of: Final = msgspec.json.Decoder(_Outline).decode


class RecordStillThere(PollerError):
    """The API still has the record, or was not able to say that it has not."""


class ErasureResult(msgspec.Struct, frozen=True):
    """What was erased of a record.

    Counts are those of this erasure and of those before that died before they were announced.

    Attributes:
        feed: ``SOURCE/NAME``.
        id: of the record.
        revision: of its last event; a record that comes back has the next one.
        snapshots: snapshots that have lost their content.
        events: events deleted from the stream.
        acknowledged: deliveries of them that consumer groups had read and not acknowledged.
        retries: scheduled retries.
        dead_letters: events that were given up.
        quarantined: records that could not be used.
        held_versions: older versions that were held back.
        sequences: of the deleted events, as ranges: ``17,19-22``.
        at: when it was complete, RFC 3339.
        gone_from_stream_by: when the memory of the deleted events is freed at the latest, unless a reader holds the
            stream: RFC 3339.
        is_rewriting: whether the embedded server writes its file again without them; None: it is not the embedded one.
        unaware: subscriptions whose process has not confirmed in time.
    """

    feed: str
    id: str
    revision: int
    snapshots: int
    events: int
    acknowledged: int
    retries: int
    dead_letters: int
    quarantined: int
    held_versions: int
    sequences: str
    at: str
    gone_from_stream_by: str
    is_rewriting: bool | None
    unaware: tuple[str, ...] = ()


class RecordErasure:
    """Erases one record of a configured feed."""

    def __init__(self, client: Redis, settings: Settings, feed: str, record: str, *, clock: Clock) -> None:
        """Take the store's client, the configuration, the feed, the record's id and the store's clock.

        Raises:
            ConfigurationError: there is no such feed.
            RecordUnknown: the id is empty.
        """
        self.records = FeedRecords(client, settings, feed, clock=clock)
        if not record:
            raise RecordUnknown(
                f"the id is empty, and no record of {self.records.feed.id} has an empty id; give one of those that "
                f"`poller records list {self.records.feed.id}` shows"
            )
        self.record = record
        self._client = client
        self._settings = settings
        self._prefix = settings.redis.prefix
        self._keys: FeedKeys = self.records.reader.keys
        self._clock = clock
        self._registry = Registry(client, SubscriptionKeys.of(self._prefix))
        self._is_of = RecordMatch(record, self.records.feed.id_field)

    async def require_gone(self, environ: Mapping[str, str]) -> None:
        """Ask the API whether the record is gone.

        Raises:
            RecordStillThere: it is not, or the API was not able to say so.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        name, force = (
            f'record "{one_line(self.record)}" of {self.records.feed.id}',
            "to erase it all the same, force it",
        )
        try:
            answer = await self.records.ask(self.record, environ)
        except NoSingleRecord as error:
            raise RecordStillThere(
                f"{name}: {error}. If it is not gone there, the next full reading publishes it again; {force}"
            ) from None
        except SourceError as error:
            raise RecordStillThere(f"{name}: the API did not say whether it is gone: {error}; {force}") from None
        if answer.answer == "there":
            raise RecordStillThere(
                f"{name} is still there, and the next full reading publishes it again as created; delete it in the API "
                f"first, or, {force}"
            )

    async def erase(
        self,
        *,
        by: str,
        reason: str = "",
        report: Callable[[ErasedEvents], None] = lambda _: None,
        patience: timedelta = PATIENCE,
    ) -> ErasureResult:
        """Erase the record.

        Args:
            by: who wants it.
            reason: why; empty: not said.
            report: is called with each part of the stream that was looked at.
            patience: how long to wait until processes that deliver have confirmed.

        Raises:
            RecordUnknown: nothing was found of it.
            ErasureSuperseded: another erasure of it has begun; it announces what this one has deleted, too.
            StoreError: see :func:`~poller.redis.client.translated`. Some of it may be erased; do it again.
        """
        store = FeedErasure(self._client, self._keys, clock=self._clock)
        known, found = await self.records.find(self.record)
        pairs = await self._pairs()
        former = await store.open_tally(self._is_of.delivery_key, record=self.record, by=one_line(by), reason=reason)
        if former is not None:
            await announce(self._client, self._prefix, _announcement(self._keys.feed, former))
        if known is None:  # what is left of it in the stream, or was quarantined: nothing changes if there is nothing
            await self._delete(store, pairs, str(EntryId.parse(found.as_of.entry).following), report)
            if not store.found.total:
                await store.complete_tally()
                raise RecordUnknown(
                    f'{self.records.feed.id} holds nothing of a record with the id "{one_line(self.record)}"; ids are '
                    f"compared as received, and `poller records list {self.records.feed.id}` shows them; a quarantined "
                    "copy that is cut off before its id is found by `poller dead-letters list` alone"
                )
        begun = await store.place_tombstone(self._is_of.keys, self._is_of.delivery_key)
        reach("erasure.begun")
        await self._registry.tell_parked()
        await self._delete(store, pairs, begun.place, report)
        unaware = await self._unaware(store, pairs, begun.number, patience)
        at, tally = self._clock.now(), store.found
        result = ErasureResult(
            feed=self.records.feed.id,
            id=self.record,
            revision=begun.revision,
            snapshots=tally.snapshots,
            events=tally.events,
            acknowledged=tally.acknowledged,
            retries=tally.retries,
            dead_letters=tally.dead_letters,
            quarantined=tally.quarantined,
            held_versions=tally.held_versions,
            sequences=ranges_of(tally.sequences),
            at=rfc3339(at),
            gone_from_stream_by=rfc3339(at + self._settings.retention.age),
            is_rewriting=await self._rewrite(),
            unaware=unaware,
        )
        if await store.complete_tally():
            reach("erasure.complete")
            await announce(self._client, self._prefix, _announcement(self._keys.feed, store.tally))
            reach("erasure.announced")
            await store.close_tally()
        return result

    async def _delete(
        self,
        store: FeedErasure,
        pairs: Mapping[str, ConsumerKeys],
        place: str,
        report: Callable[[ErasedEvents], None],
    ) -> None:
        """Delete what was written before this place."""
        for pair in pairs.values():
            await store.erase_letters(pair, self._is_of.letter)
        reach("erasure.letters")
        for pair in pairs.values():
            await store.erase_retries(pair, place, self._is_of.delivery)
        await store.erase_quarantined(self._is_of.quarantined)
        reach("erasure.quarantine")
        async with aclosing(store.erase_events(place, self._is_of.sequence)) as parts:
            async for part in parts:
                report(part)
                reach("erasure.events")

    async def _pairs(self) -> dict[str, ConsumerKeys]:
        """The feed consumers that may hold something of it, by subscription: registered, or with a group."""
        kept = await self._registry.all()
        groups = await consumer_groups(self._client, self._keys.events)
        named = {name.removeprefix(group_of("")) for name in groups if name.startswith(group_of(""))}
        names = sorted({*kept.registered, *named})
        return {name: ConsumerKeys.of(self._prefix, self.records.feed.id, name) for name in names}

    async def _unaware(
        self, store: FeedErasure, pairs: Mapping[str, ConsumerKeys], number: int, patience: timedelta
    ) -> tuple[str, ...]:
        until = self._clock.monotonic() + patience.total_seconds()
        while left := await store.unaware(pairs.values(), number):
            if self._clock.monotonic() >= until:
                break
            await self._registry.tell_parked()
            await self._clock.sleep(_CONFIRMED_SECONDS)
        return tuple(name for name, pair in pairs.items() if pair in left)

    async def _rewrite(self) -> bool | None:
        """Have the embedded server write its file again, without what was deleted; other servers are left alone."""
        if self._settings.redis.url is not None:
            return None
        until = self._clock.monotonic() + _REWRITTEN.total_seconds()
        while True:
            with translated(self._client):
                info: Any = await self._client.info("persistence")
                if not int(info.get("aof_enabled", 0)):
                    return False
                if not int(info.get("aof_rewrite_in_progress", 0)):  # that one may have begun before
                    with suppress(ResponseError):  # another process has begun one this very moment
                        await self._client.bgrewriteaof()
                        return True
            if self._clock.monotonic() >= until:
                return False
            await self._clock.sleep(_CONFIRMED_SECONDS)


class RecordMatch:
    """Whether stored bytes are of one record.

    Attributes:
        keys: those that the record may have: of its id as text, and of the integer of the same digits.
        delivery_key: its key in the queues of deliveries.
    """

    def __init__(self, record: str, id_field: str) -> None:
        """Take the record's id and the field of a record that holds it."""
        key = text_key(record)
        self.keys = [one for one in (key, twin_of(key)) if one is not None]
        quoted = msgspec.json.encode(record)
        self._key = key
        self._needle = b'"subject":' + quoted.lower()
        self.delivery_key = delivery_key(record)
        self._read = record_reader(id_field)
        written = {_folded(text) for text in (quoted[1:-1].decode(), json.dumps(record)[1:-1], record)}
        anywhere = "|".join(rf"(?<![\w-]){re.escape(text)}(?![\w-])" for text in sorted(written))
        self._anywhere = re.compile(anywhere, re.ASCII) if len(record) >= _SHORT else None
        field = re.escape(msgspec.json.encode(id_field))
        self._values = re.compile(rb"%b\s*+:\s*+(%b)" % (field, _VALUE), re.IGNORECASE | re.DOTALL)
        self._opens = re.compile(rb"%b\s*+:\s*+(?=[\[{])" % field, re.IGNORECASE)
        self._plain, self._number = _plain(record), _number(record)

    def sequence(self, event: bytes) -> str | None:
        """The sequence number of one of its events, empty where it has none; None: it is another record's."""
        if self._needle not in event.lower():
            return None
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            outline = _outline_of(event)
            if text_key(outline.subject) == self._key:
                return outline.sequence if outline.sequence.isdecimal() else ""
        return None

    def letter(self, stored: bytes) -> bool:
        """Whether a dead letter is of one of its events."""
        try:
            return self.sequence(bytes(letter_of(stored).event)) is not None
        except msgspec.MsgspecError:  # another version's
            return self._needle in stored.lower()

    def delivery(self, stored: bytes) -> bool:
        """Whether a scheduled retry is of one of its events."""
        try:
            return deliveries_of({"0-0": stored})["0-0"].key == self.delivery_key
        except msgspec.MsgspecError:  # another version's
            return self._needle in stored.lower()

    def quarantined(self, raw: bytes, reason: bytes) -> bool:
        """Whether a quarantined record is, or may be, this one.

        It is, if one of these holds; the bytes need not be JSON, and the id need not be usable:

        - a round would find the id in it;
        - the id field has the same value anywhere in it, also in an array or an object: but for case, white space
          around it, the form of its Unicode characters, escapes, braces, hyphens and ``urn:uuid:`` of a UUID, and how a
          number is written;
        - the id's text stands anywhere in it, in any case, with or without escapes, and has six characters or more;
        - it is a damaged snapshot, which names no record.
        """
        if reason.startswith(_DAMAGED):
            return True
        found = self._read(raw)
        if isinstance(found, Record) and found.key in self.keys:
            return True
        if any(self._is_value(match[1]) for match in self._values.finditer(raw)):
            return True
        if any(map(self._is_value, self._nested(raw))):
            return True
        return self._anywhere is not None and any(map(self._anywhere.search, _readings(raw)))

    def _nested(self, raw: bytes) -> Iterator[bytes]:
        """The strings, numbers and words in arrays and objects that are values of the id field; no keys."""
        end = 0
        while opened := self._opens.search(raw, end):
            depth, end = 0, opened.end()
            for match in _NESTED.finditer(raw, end):
                end, (opens, closes, text, is_key, word) = match.end(), match.groups()
                depth += bool(opens) - bool(closes)
                if word or (text and not is_key):
                    yield word or text
                if depth <= 0:
                    break

    def _is_value(self, token: bytes) -> bool:
        """Whether a value of the id field is this id."""
        text = _text(token)
        if token.startswith(b'"'):
            with suppress(ValueError):
                text = str(json.loads(text, strict=False))
            return _plain(text.strip('"')) == self._plain
        return _plain(text) == self._plain or (self._number is not None and _number(text) == self._number)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _readings(raw: bytes) -> Iterator[str]:
    """Bytes as the texts that they may be: in UTF-8 or Latin-1, with escapes and without; case is folded."""
    texts = [raw.decode("utf-8", "replace")]
    if "\ufffd" in texts[0]:
        texts.append(raw.decode("latin-1"))
    for text in texts:
        yield _folded(text)
        if "\\" in text:
            yield _folded(_ESCAPED.sub(lambda match: str(json.loads(f'"{match[0]}"')), text))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def _plain(text: str) -> str:
    """An id without what only its spelling has: case, white space around it, and the punctuation of a UUID."""
    folded = _folded(text.strip())
    bare = folded.removeprefix("urn:uuid:").strip("{}").replace("-", "")
    return bare if _HEXADECIMAL(bare) else folded


def _number(text: str) -> Decimal | None:
    """The number that this text is, however it is written; None: it is none."""
    return Decimal(text) if _NUMBER(text) else None


def ranges_of(numbers: list[int]) -> str:
    """Numbers as ranges: ``17,19-22``; cut off with ``…`` after many."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges]
    return ",".join([*texts[:_RANGES], *(["…"] if len(texts) > _RANGES else [])])


async def announce_completed(client: Redis, prefix: str, keys: FeedKeys, *, clock: Clock) -> None:
    """Announce the erasures of a feed's records that are complete and whose process has died before it did.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    before_ms = milliseconds_of(clock.now() - _ABANDONED)
    for complete in await complete_tallies(client, keys, before_ms=before_ms):
        await announce(client, prefix, _announcement(keys.feed, complete.tally))
        await forget_tally(client, keys, complete)


def _announcement(feed: str, tally: ErasureTally) -> OperationalEvent:
    """The event of a tally, which is all that its id depends on."""
    names = ("revision", "snapshots", "events", "acknowledged", "retries", "dead_letters", "quarantined")
    details: dict[str, str | int | float | bool | None] = {name: getattr(tally, name) for name in names}
    details |= {"feed": feed, "held_versions": tally.held_versions}
    details |= {"sequences": ranges_of(tally.sequences), "by": tally.by}
    at = moment_of(tally.at_ms)
    return OperationalEvent(OperationType.RECORD_ERASED, tally.id, at, tally.reason or "not said", details)
