"""Stored form of deliveries that are not settled, and of dead letters.

It says how a delivery was tried, when it is due, and how it was given up.

JSON, for operators look at it, and other versions of the program read it.
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
from poller.store.stream import EntryId

_EXCERPT: Final = 256  # bytes of an answer
_COUNTED: Final = 6  # digits of the number of a redelivery; the id of a replay has more
_ATTEMPTS: Final = 24  # that are kept: the first, and the latest


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one attempt ended.

    Attributes:
        at: when it ended, RFC 3339.
        seconds: how long it took.
        status: of the answer; None where none came, then ``failure`` says why.
        text: one line.
        excerpt: the beginning of the answer's body; what is no text in it is replaced.
    """

    at: str
    seconds: float
    text: str
    status: int | None = None
    failure: str | None = None
    excerpt: str = ""


class Delivery(msgspec.Struct, frozen=True, omit_defaults=True):
    """A delivery that waits.

    Attributes:
        key: of the record; its events wait for one another.
        due: when it may be tried again, milliseconds of the store's clock; 0: as soon as it is the foremost of its
            record.
        size: of the event, in bytes.
        tries: the attempt that comes next.
        attempts: how those before it ended.
        event: as it stands in the stream, where that may have lost it; else empty.
        again: whether it is delivered once more, by a replay.
        repeat: which redelivery or replay this is; empty for the first delivery.
        paused: since when it waits for the end of a pause of its sink, milliseconds of the store's clock; 0: it does
            not, and waits by the schedule.
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

    def after(self, outcome: Outcome, at: datetime) -> Delivery:
        """The same, and one more attempt."""
        known = self.attempts if len(self.attempts) < _ATTEMPTS else (self.attempts[0], *self.attempts[2:])
        return msgspec.structs.replace(self, attempts=(*known, _attempt(outcome, at)))


class Overrun(msgspec.Struct, frozen=True):
    """Events that went before they were delivered, for their stream outgrew ``retention.max_bytes``.

    Attributes:
        first: the first entry that went.
        left: the first one after it that did not; None where none was left.
        events: how many went.
        sequence: of the first of them; None where it was not an event of this program.
        last_sequence: of the last; None likewise.
    """

    first: str
    left: str | None
    events: int
    sequence: int | None
    last_sequence: int | None


class StoredDeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dead letter: an event that was given up, or one for all that went in an overrun.

    Attributes:
        event: as it stands in the stream; null where the stream had lost it.
        reason: one line.
        at: when it was given up, RFC 3339.
        attempts: how they ended.
        overrun: what went, where that is what it tells.
        repeat: of the delivery that was given up.
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
    """Deliveries by entry id, in the order of the stream.

    Raises:
        msgspec.MsgspecError: another version wrote them in a form that this one does not know.
    """
    return {entry: _delivery_of(kept[entry]) for entry in sorted(kept, key=EntryId.parse)}


def delivery_again(letter: StoredDeadLetter) -> Delivery:
    """A new delivery of a dead letter, due immediately.

    Its attempts begin again at the first; what was tried before is kept.

    Raises:
        ValueError: there is no event in it.
    """
    key = record_of(envelope_of(bytes(letter.event)))
    repeat = next_repeat(letter.repeat)
    return Delivery(key, size=len(letter.event) + 1, attempts=letter.attempts, event=letter.event, repeat=repeat)


def next_repeat(repeat: str) -> str:
    """What tells a redelivery from the delivery before it: its number, after the replay that it belongs to."""
    replay, _, number = repeat.rpartition("/")
    if number.isdecimal() and len(number) <= _COUNTED:
        return f"{replay}/{int(number) + 1}" if replay else str(int(number) + 1)
    return f"{repeat}/1" if repeat else "1"


def _attempt(outcome: Outcome, at: datetime) -> Attempt:
    return Attempt(
        rfc3339(at),
        round(outcome.seconds, 3),
        outcome.error,
        outcome.status,
        outcome.failure,
        outcome.excerpt[:_EXCERPT].decode("utf-8", "replace"),
    )
