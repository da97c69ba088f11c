"""Operational events: CloudEvents about the daemon itself, for operators and their programs.

**Invariants**

* An operational event is a CloudEvent like all others, so the same reader can read both.
* The same occurrence, of the same thing at the same moment, has the same ``id``.
* Its text is one line and holds no credential.
* Pure: the store decides where it is written.

========================================  =======================  ===============================================
type                                      subject                  when
========================================  =======================  ===============================================
``poller.subscription.disabled.v1``       subscription             nothing but failures for ``disable_after``
``poller.subscription.recovered.v1``      subscription             its first success after that
``poller.subscription.paused.v1``         subscription             the sink answered 410 or 415, or an operator did it
``poller.subscription.resumed.v1``        subscription             an operator has resumed it; again, where the store
                                                                   went back to a pause from before that
``poller.subscription.overrun.v1``        subscription, or feed    events went that it, or another consumer group
                                                                   that is named, still needed (``retention``)
``poller.subscription.lost.v1``           subscription             the store has lost one that was added at run time
``poller.feed.held.v1``                   feed                     a reading would remove too much, or is of another API
``poller.feed.paused.v1``                 feed                     an operator has paused it, or the store went back
                                                                   to a pause that had been ended
``poller.feed.resumed.v1``                feed                     an operator lets it be polled again
``poller.feed.lost.v1``                   feed                     the store has lost what it kept of it, or its stream
``poller.feed.rolledback.v1``             feed                     the store holds what it held before
``poller.feed.replaced.v1``               feed                     the store holds another installation's data of it
``poller.record.erased.v1``               the record's id          an operator has erased it; ``sequences`` are those of
                                                                   the events that are gone from the feed's stream
========================================  =======================  ===============================================
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from poller.clock import rfc3339
from poller.store.keys import operations_key
from poller.store.stream import append
from poller.text import one_line, without_credentials

SOURCE: Final = "poller"

_json: Final = msgspec.json.Encoder(order="deterministic").encode


class OperationType(StrEnum):
    """The types; see the table above."""

    SUBSCRIPTION_DISABLED = "poller.subscription.disabled.v1"
    SUBSCRIPTION_RECOVERED = "poller.subscription.recovered.v1"
    SUBSCRIPTION_PAUSED = "poller.subscription.paused.v1"
    SUBSCRIPTION_RESUMED = "poller.subscription.resumed.v1"
    SUBSCRIPTION_OVERRUN = "poller.subscription.overrun.v1"
    SUBSCRIPTION_LOST = "poller.subscription.lost.v1"
    FEED_HELD = "poller.feed.held.v1"
    FEED_PAUSED = "poller.feed.paused.v1"
    FEED_RESUMED = "poller.feed.resumed.v1"
    FEED_LOST = "poller.feed.lost.v1"
    FEED_ROLLED_BACK = "poller.feed.rolledback.v1"
    FEED_REPLACED = "poller.feed.replaced.v1"
    RECORD_ERASED = "poller.record.erased.v1"


def schema_of(kind: OperationType) -> dict[str, Any]:
    """The JSON Schema of the events of one type, as structured CloudEvents JSON."""
    text, moment = {"type": "string", "minLength": 1}, {"type": "string", "format": "date-time"}
    attributes = {
        "specversion": {"const": "1.0"},
        "id": text | {"description": "The same event has the same id."},
        "source": {"const": SOURCE},
        "type": {"const": str(kind)},
        "subject": text | {"description": "The subscription's id, the feed as SOURCE/NAME, or the record's id."},
        "time": moment,
        "recordedtime": moment,
        "partitionkey": text | {"description": "As subject."},
        "datacontenttype": {"const": "application/json"},
    }
    data = {"type": "object", "required": ["reason"], "properties": {"reason": {"type": "string"}}}
    return {
        "title": str(kind),
        "description": f"{kind.name.replace('_', ' ').capitalize()}; data.reason says why.",
        "type": "object",
        "required": [*attributes, "data"],
        "properties": attributes | {"data": data},
    }


class OperationalEvent(msgspec.Struct, frozen=True):
    """An operational event.

    Attributes:
        kind: the type.
        subject: the subscription's id, the feed as ``SOURCE/NAME``, or the record's id.
        at: the time of the occurrence, UTC.
        reason: in words; foreign text in it is shortened and cleaned when it is written.
        details: further members of ``data``; none is called ``reason``.
        occurrence: replaces the time in the event's id. Several processes that report the same occurrence, each at
            another moment, write the same id so, and readers drop the repeats. Empty: the time is used.
    """

    kind: OperationType
    subject: str
    at: datetime
    reason: str
    details: Mapping[str, str | int | float | bool | None] = {}
    occurrence: str = ""


def announcement_bytes(announcement: OperationalEvent) -> bytes:
    """The event in structured JSON, UTF-8, for the field ``data`` of an entry."""
    reason = one_line(without_credentials(announcement.reason))
    content = dict(announcement.details) | {"reason": reason}
    # A NUL stands in none of the parts, so they cannot run into each other.
    occurrence = announcement.occurrence or rfc3339(announcement.at)
    identity = f"{announcement.kind}\0{announcement.subject}\0{occurrence}\0".encode()
    return operational_event(
        type_=announcement.kind,
        subject=announcement.subject,
        event_id=blake2b(identity + _json(content), digest_size=16).hexdigest(),
        at=announcement.at,
        data=dict(sorted(content.items())),
    )


def operational_event(
    *,
    type_: str,
    subject: str,
    event_id: str,
    at: datetime,
    data: Mapping[str, object],
    extensions: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """An event about the daemon itself in structured JSON, UTF-8, written by the ``cloudevents`` SDK.

    Such events are rare, so the SDK's own speed does not count here; events of records are written by
    :mod:`poller.changes.events`.

    Args:
        type_: the event's type.
        subject: the subscription's id, or the feed as ``SOURCE/NAME``.
        event_id: the event's id.
        at: the time of the occurrence, UTC, to milliseconds.
        data: of the event, as JSON.
        extensions: further attributes.
    """
    from cloudevents.core.formats.json import JSONFormat  # noqa: PLC0415 -- 80 ms, which most commands never need
    from cloudevents.core.v1.event import CloudEvent  # noqa: PLC0415 -- as above

    moment = at.astimezone(UTC)
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    attributes = {
        "specversion": "1.0",
        "id": event_id,
        "source": SOURCE,
        "type": str(type_),
        "subject": subject,
        "time": moment,
        "recordedtime": moment,
        "partitionkey": subject,
        **extensions,
        "datacontenttype": "application/json",
    }
    return JSONFormat().write(CloudEvent(attributes=attributes, data=dict(data)))


_KEPT: Final = 10_000  # announcements


async def announce(client: Redis, prefix: str, announcement: OperationalEvent) -> None:
    """Add an event to the stream ``{prefix}:{operations}:events``, which holds the latest ten thousand.

    Raises:
        StoreError: the event may be missing.
    """
    await append(client, operations_key(prefix), announcement_bytes(announcement), most=_KEPT)
