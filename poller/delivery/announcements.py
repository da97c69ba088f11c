"""CloudEvents about the daemon itself: what an operator or a program beside it would want to be told.

The law: an announcement is a CloudEvent like all others, so whoever reads those can read these. The same announcement,
of the same thing at the same moment, has the same ``id``; its text is one line and holds no credential.

========================================  =======================  ===============================================
type                                      subject                  when
========================================  =======================  ===============================================
``poller.subscription.disabled.v1``       subscription             nothing but failures for ``disable_after``
``poller.subscription.recovered.v1``      subscription             its first success after that
``poller.subscription.paused.v1``         subscription             the sink answered 410 or 415, or an operator did it
``poller.subscription.resumed.v1``        subscription             an operator lets it go on
``poller.subscription.overrun.v1``        subscription, or feed    events went that it, or the group of somebody else
                                                                   that is named, still needed (``retention``)
``poller.subscription.lost.v1``           subscription             the store has lost one that was added at run time
``poller.feed.held.v1``                   feed                     a reading would remove too much
``poller.feed.paused.v1``                 feed                     an operator has paused it
``poller.feed.resumed.v1``                feed                     an operator lets it be polled again
``poller.feed.lost.v1``                   feed                     the store has lost what it kept of it, or its stream
``poller.feed.rolledback.v1``             feed                     the store holds what it held before
``poller.feed.replaced.v1``               feed                     the store holds another installation's data of it
========================================  =======================  ===============================================

Pure. Where they are written is the store's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Final

import msgspec

from poller.changes.events import recorded_time
from poller.hiding import one_line, without_credentials

SOURCE: Final = "poller"

_json: Final = msgspec.json.Encoder(order="deterministic").encode


class Kind(StrEnum):
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


class Announcement(msgspec.Struct, frozen=True):
    """What is announced.

    Attributes:
        kind: the type.
        subject: the subscription's id, or the feed as ``SOURCE/NAME``.
        at: when it happened, UTC.
        reason: why, in words; foreign text in it is cut and cleaned when it is written.
        details: further members of ``data``, with names of their own; none is called ``reason``.
    """

    kind: Kind
    subject: str
    at: datetime
    reason: str
    details: Mapping[str, str | int | float | bool | None] = {}


class _Written(msgspec.Struct, frozen=True):
    specversion: str
    id: str
    source: str
    type: str
    subject: str
    time: str
    partitionkey: str
    datacontenttype: str
    data: msgspec.Raw


def announcement_bytes(announcement: Announcement) -> bytes:
    """The event in structured JSON, UTF-8; what goes into the field ``data`` of an entry."""
    reason = one_line(without_credentials(announcement.reason))
    content = _json(dict(announcement.details) | {"reason": reason})
    time = recorded_time(announcement.at)
    # A NUL stands in none of the parts, so they cannot run into each other.
    identity = f"{announcement.kind}\0{announcement.subject}\0{time}\0".encode() + content
    written = _Written(
        specversion="1.0",
        id=blake2b(identity, digest_size=16).hexdigest(),
        source=SOURCE,
        type=announcement.kind,
        subject=announcement.subject,
        time=time,
        partitionkey=announcement.subject,
        datacontenttype="application/json",
        data=msgspec.Raw(content),
    )
    return _json(written)
