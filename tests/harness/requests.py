"""Parses a request at a sink by the specifications alone: CloudEvents over HTTP and Standard Webhooks.

Pure; imports nothing of the program, so that an encoding mistake is not matched by the same decoding mistake.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from tests.harness.json_values import equal, read

if TYPE_CHECKING:
    from collections.abc import Mapping


class Arrived(msgspec.Struct, frozen=True, tag="arrived"):
    """A complete request has arrived; ``at`` is CLOCK_MONOTONIC in seconds, headers are by lower-case name.

    ``connection`` is the number of its connection.
    """

    number: int
    sink: str
    at: float
    headers: dict[str, str]
    body: bytes
    connection: int = 1


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A request was answered, or ended without an answer: then ``status`` is None.

    ``pause`` is what ``Retry-After`` asks for, in seconds.
    """

    number: int
    sink: str
    at: float
    status: int | None
    pause: float | None = None


Line = Arrived | Ended


def ids_of(request: Arrived) -> list[str]:
    """The ids of the events in a request, in order."""
    return [str(event["id"]) for event in events_of(request)]


def events_of(request: Arrived) -> list[dict[str, Any]]:
    """The events in a request, in order; a binary request has one, made of its headers and body."""
    if _binary(request):
        attributes = {name[3:]: unquote(text) for name, text in request.headers.items() if name.startswith("ce-")}
        return [attributes | {"data": read(request.body)}]
    found: Any = read(request.body)
    return found if _batched(request) else [found]


def is_backfilled(event: Mapping[str, Any]) -> bool:
    """Whether an event tells what is known of a record: it is in no stream."""
    data = event.get("data")
    return isinstance(data, dict) and data.get("cause") == "backfill"


def told_wrongly(request: Arrived, entries: Mapping[str, bytes]) -> str | None:
    """How the request differs from the stream's events; None if it does not. Backfilled events are in no stream.

    Args:
        request: of any content mode.
        entries: the events in the stream, by id.
    """
    events = [event for event in events_of(request) if not is_backfilled(event)]
    if not events:
        return None
    known = [read(entries[event["id"]]) for event in events if event["id"] in entries]
    if len(known) < len(events):
        return "an event that is not in the stream"
    if len(events) == 1 and not _batched(request) and request.headers.get("webhook-id") != events[0]["id"]:
        return "webhook-id is not the event's id"
    if _binary(request):
        return None if all(_same_attributes(*pair) for pair in zip(events, known, strict=True)) else "other attributes"
    return None if equal(events, known) else "another content"


def forged(request: Arrived, secret: str | None) -> bool:
    """Whether the signature is wrong; without a secret there must be none."""
    signature = request.headers.get("webhook-signature")
    if secret is None or signature is None:
        return secret is not signature
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    digest = hmac.digest(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}" not in signature.split(" ")


def _binary(request: Arrived) -> bool:
    return not request.headers["content-type"].startswith("application/cloudevents")


def _batched(request: Arrived) -> bool:
    return request.headers["content-type"].startswith("application/cloudevents-batch")


def _same_attributes(told: dict[str, Any], known: dict[str, Any]) -> bool:
    return equal(told | {"datacontenttype": "application/json"}, known)
