"""Encodes a change as a CloudEvent in structured JSON (CloudEvents 1.0.2).

**Invariants**

- The same change has the same ``id`` on every path, for ever: a hash of feed, generation, record key, revision and
  canonical content. It does not depend on when, by whom or in which mode the change was found. Content alone would
  repeat when a value goes A, B, A; the revision alone would repeat after a failover that rolled it back.
- The record is embedded as the bytes that were received: large integers, floats and key order are unchanged.
- JSON is written by hand here, on the hot path; the tests read every event back with the ``cloudevents`` SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec

from poller.changes.diff import Change, ChangeKind

# Receivers must accept events of 64 KiB; beyond that the previous version is left out, and the event says so.
MAX_EVENT_BYTES: Final = 64 * 1024

_quoted: Final = msgspec.json.Encoder().encode


class Cause(StrEnum):
    """The kind of reading that found a change."""

    BASELINE = "baseline"
    DELTA = "delta"
    FULL = "full"
    RECONCILE = "reconcile"
    RESYNC = "resync"


class EventFrame:
    """What all events of one listing have in common. Made once per listing."""

    def __init__(
        self,
        *,
        feed: str,
        generation: str,
        source: str,
        type_stem: str,
        cause: Cause,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Encode the constants of a listing.

        Args:
            feed: ``SOURCE/NAME``.
            generation: drawn once when the feed's state was created.
            source: the CloudEvents source, a URI reference.
            type_stem: the type without the kind of change, e.g. ``org.example.api.contractType``.
            cause: the kind of reading.
            extensions: further attributes of each event, which say how it came about and not what it is.
        """
        self._origin = f"{feed}\0{generation}\0".encode()
        self._source = b'","source":' + _quoted(source) + b',"type":"'
        self._types = {kind: _quoted(f"{type_stem}.{kind}.v1")[1:-1] + b'","subject":' for kind in ChangeKind}
        self._cause = b',"cause":"' + cause.encode() + b'"}}'
        self._extensions = b"".join(b',"%b":%b' % (name.encode(), _quoted(text)) for name, text in extensions.items())

    def event_id(self, change: Change) -> str:
        """32 lower-case hex digits; see the invariants of this module."""
        # No part holds a NUL (keys have none), so the parts cannot run into each other.
        identity = self._origin + f"{change.key}\0{change.revision}\0".encode() + change.canonical
        return blake2b(identity, digest_size=16).hexdigest()

    def encode(self, change: Change, *, event_id: str, sequence: int, recorded: str) -> bytes:
        """The event as UTF-8 JSON.

        Args:
            change: what happened.
            event_id: from :meth:`event_id`.
            sequence: the feed's running number of this event, from 1.
            recorded: when the daemon saw it, from :func:`recorded_time`.
        """
        subject = _quoted(change.subject)
        head = (
            b'{"specversion":"1.0","id":"%b%b%b%b,"time":"%b","recordedtime":"%b","sequence":"%020d",'
            b'"partitionkey":%b%b,"datacontenttype":"application/json","data":'
        ) % (
            event_id.encode(),
            self._source,
            self._types[change.kind],
            subject,
            (change.modified or recorded).encode(),
            recorded.encode(),
            sequence,
            subject,
            self._extensions,
        )
        return head + self._content(change, room=MAX_EVENT_BYTES - len(head))

    def _content(self, change: Change, *, room: int) -> bytes:
        end = b',"revision":%d' % change.revision + self._cause
        if change.changed:
            end = b',"changed":' + _quoted(change.changed) + end
        record = b'"record":' + change.raw if change.raw is not None else b""
        if change.previous is None and change.kind is ChangeKind.CREATED:
            return b"{" + record + end
        previous = (b"," if record else b"") + b'"previous":' + (change.previous or b"")
        if change.previous is None or len(record) + len(previous) + len(end) + 1 > room:
            previous = (b"," if record else b"") + b'"omitted":["previous"]'
        return b"{" + record + previous + end


def recorded_time(moment: datetime) -> str:
    """A UTC moment as RFC 3339 with milliseconds, e.g. ``2026-01-31T09:30:00.125Z``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
