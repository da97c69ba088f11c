"""The stored form of scheduled retries and dead letters.

JSON, because operators and other versions of the program read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from poller.clock import rfc3339
from poller.delivery.cloudevent import envelope_of, record_of
from poller.delivery.retry import Tries
from poller.delivery.sinks.base import Outcome
from poller.store.backfill import DeliveryId

_EXCERPT: Final = 256  # bytes of a response
_COUNTED: Final = 6  # digits of a redelivery's number; the id of a replay or a backfill has more
_ATTEMPTS: Final = 24  # stored attempts: the first, and the latest


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A past attempt.

    Attributes:
        at: its end, RFC 3339.
        seconds: its duration.
        status: of the response; None: there was none, and ``failure`` says why.
        text: one line.
        excerpt: the beginning of the response's body, with undecodable bytes replaced.
    """

    at: str
    seconds: float
    text: str
    status: int | None = None
    failure: str | None = None
    excerpt: str = ""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A scheduled retry.

    Attributes:
        key: of the record, whose events are delivered in order.
        due: when it may be sent again, milliseconds of the store's clock; 0: as soon as it is the first of its record.
        size: of the event, in bytes.
        tries: the counts of the next attempt.
        attempts: the past attempts.
        event: its bytes, if the stream may have lost it or never had it; else empty.
        again: whether it belongs to a replay.
        repeat: the name of the redelivery, replay or backfill; empty: the first delivery.
        paused: since when it waits for a pause of its sink, milliseconds of the store's clock; 0: it waits by the
            schedule.
    """

    key: str
    due: int = 0
    size: int = 0
    tries: Tries = Tries()
    attempts: tuple[Attempt, ...] = ()
    event: msgspec.Raw = msgspec.Raw()
    again: bool = False
    paused: int = 0
    repeat: str = ""

    @property
    def is_redelivery(self) -> bool:
        """Whether it is a redelivered dead letter, also one of a replay or a backfill."""
        return bool(self.event) and _number_of(self.repeat) > 0

    def after(self, outcome: Outcome, at: datetime) -> Delivery:
        """The delivery with one more attempt."""
        known = self.attempts if len(self.attempts) < _ATTEMPTS else (self.attempts[0], *self.attempts[2:])
        return msgspec.structs.replace(self, attempts=(*known, _attempt(outcome, at)))


class Overrun(msgspec.Struct, frozen=True):
    """Undelivered events that were trimmed, because their stream exceeded ``retention.max_bytes``.

    Attributes:
        first: the first trimmed entry.
        left: the first entry after the trimmed ones; None: none was left.
        events: the number of trimmed events.
        sequence: of the first one; None: not an event of this program.
        last_sequence: of the last one; None: not an event of this program.
    """

    first: str
    left: str | None
    events: int
    sequence: int | None
    last_sequence: int | None


class StoredDeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dead letter of one event, or of all events of an overrun.

    Attributes:
        event: its bytes; null: the stream had lost it.
        reason: one line.
        at: when it became a dead letter, RFC 3339.
        attempts: the past attempts.
        overrun: the trimmed events; None: this is the dead letter of one event.
        repeat: the name of the redelivery, replay or backfill; empty: the first delivery.
    """

    event: msgspec.Raw
    reason: str
    at: str
    attempts: tuple[Attempt, ...] = ()
    overrun: Overrun | None = None
    repeat: str = ""


encode: Final = msgspec.json.Encoder().encode
letter_of: Final = msgspec.json.Decoder(StoredDeadLetter).decode
_delivery_of: Final = msgspec.json.Decoder(Delivery).decode


def deliveries_of(kept: Mapping[str, bytes]) -> dict[str, Delivery]:
    """Deliveries by entry id, in stream order.

    Raises:
        msgspec.MsgspecError: another version wrote them in a form that this one does not know.
    """
    return {entry: _delivery_of(kept[entry]) for entry in sorted(kept, key=DeliveryId.parse)}


def delivery_again(letter: StoredDeadLetter) -> Delivery:
    """A new delivery of a dead letter, due immediately.

    Its schedule begins with the first attempt; past attempts are kept.

    Raises:
        ValueError: the dead letter holds no event.
    """
    key = record_of(envelope_of(bytes(letter.event)))
    repeat = next_repeat(letter.repeat)
    return Delivery(key, size=len(letter.event) + 1, attempts=letter.attempts, event=letter.event, repeat=repeat)


def next_repeat(repeat: str) -> str:
    """The name of the next redelivery: its number, after the name of its replay or backfill."""
    number = _number_of(repeat)
    if number:
        replay = repeat.rpartition("/")[0]
        return f"{replay}/{number + 1}" if replay else str(number + 1)
    return f"{repeat}/1" if repeat else "1"


def _number_of(repeat: str) -> int:
    """Of a redelivery; 0: it is none."""
    number = repeat.rpartition("/")[2]
    return int(number) if number.isdecimal() and len(number) <= _COUNTED else 0


def _attempt(outcome: Outcome, at: datetime) -> Attempt:
    return Attempt(
        rfc3339(at),
        round(outcome.seconds, 3),
        outcome.error,
        outcome.status,
        outcome.failure,
        outcome.excerpt[:_EXCERPT].decode("utf-8", "replace"),
    )
