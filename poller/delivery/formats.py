"""The HTTP request that carries events: CloudEvents over HTTP 1.0.2, Standard Webhooks headers.

=============  ========================================  ===================================  ========================
mode           ``Content-Type``                          body                                 ``webhook-id``
=============  ========================================  ===================================  ========================
structured     ``application/cloudevents+json``          the very bytes of the entry          the event's id
batch          ``application/cloudevents-batch+json``    an array of the entries' very bytes  a hash of the events' ids
binary         the data's own type                       the bytes of the data                the event's id
=============  ========================================  ===================================  ========================

**Invariants**

* The same events give the same ``webhook-id`` and the same body on every attempt; timestamp and signature belong to the
  attempt.
* Nothing is encoded again: a sink gets the bytes that stand in the stream.
* No text from an event can end its header or begin another one.
* The sink, its credential and the current time are not known here; ``Authorization`` is added where the request is
  sent.

A structured or batched request has no ``ce-`` header, for some receivers would take it for a binary one. In binary mode
the signature covers the body alone and so not the attributes: Standard Webhooks knows no other headers than its own.

Refuses to know the sink, its credential (``Authorization`` is put on where the request is sent) and what time it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from poller.delivery.cloudevent import Envelope
from poller.delivery.signing import Signer

STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
JSON_TYPE: Final = "application/json"

Mode = Literal["structured", "binary", "batch"]

# What CloudEvents lets stand in a header as it is: U+0021 to U+007E without the quotation mark and the percent sign.
_PLAIN: Final = re.compile(r"[!#$&-~]*")
_SAFE: Final = "".join(character for character in map(chr, range(0x21, 0x7F)) if character not in '"%')
_HEADER_TEXT: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_JSON: Final = re.compile(r"(?i)[^;]*[/+]json\s*(;.*)?")
# Standard Webhooks forbids the dot; the rest is what every header and every receiver's log can bear.
_WEBHOOK_ID: Final = re.compile(r"[\w-]{1,128}", re.ASCII)
_quoted: Final = msgspec.json.Encoder().encode
_text: Final = msgspec.json.Decoder(str).decode


class Request(msgspec.Struct, frozen=True):
    """What is sent by POST.

    Attributes:
        headers: each name once, whatever its case; ``Content-Length`` and ``Host`` are the client's.
        body: as it is signed.
    """

    headers: Mapping[str, str]
    body: bytes


class RequestForm:
    """How the requests of one subscription look; made once, filled in for each attempt."""

    __slots__ = ("_mode", "_same", "_signer")

    def __init__(
        self,
        mode: Mode,
        *,
        signer: Signer | None,
        user_agent: str,
        headers: Mapping[str, str] | None = None,
        origin: str | None = None,
    ) -> None:
        """Take what is the same in each request.

        Args:
            mode: the subscription's mode.
            signer: signs the body; None leaves it unsigned.
            user_agent: of this program; one among ``headers`` takes its place.
            headers: the subscription's own; checked when they were configured.
            origin: the DNS name for ``WebHook-Request-Origin``, where the sink has granted it.
        """
        self._mode = mode
        self._signer = signer
        own = {"User-Agent": user_agent} | ({"WebHook-Request-Origin": origin} if origin else {})
        given = dict(headers or {})
        replaced = {name.lower() for name in given}
        self._same = {name: text for name, text in own.items() if name.lower() not in replaced} | given

    def request(self, events: Sequence[tuple[Envelope, bytes]], *, timestamp: int) -> Request:
        """The request for one attempt.

        Args:
            events: what it carries, with the bytes of their entries: one, or in batch mode any number from one.
            timestamp: of the attempt, seconds since 1970.

        Raises:
            ValueError: the number of events does not fit the mode, or the event cannot be sent in binary mode because
                its ``datacontenttype`` cannot stand as ``Content-Type``. Trying again would not change that.
        """
        if not events or (len(events) > 1 and self._mode != "batch"):
            raise ValueError(f"{len(events)} events in one request of mode {self._mode}")
        carried, body, webhook_id = _carried(self._mode, events)
        headers = self._same | carried | {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
        if self._signer:
            headers |= self._signer.headers(webhook_id, timestamp, body)
        return Request(headers, body)


def header_text(value: str) -> str:
    """An attribute's value as CloudEvents writes it into a header: percent-encoded UTF-8, upper-case hex."""
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


def _carried(mode: Mode, events: Sequence[tuple[Envelope, bytes]]) -> tuple[dict[str, str], bytes, str]:
    """The headers that tell the mode, the body, and the ``webhook-id``."""
    if mode == "batch":
        body = b"[" + b",".join([entry for _, entry in events]) + b"]"
        return {"Content-Type": BATCH_TYPE}, body, _hash(*[envelope.id for envelope, _ in events])
    envelope, entry = events[0]
    if mode == "binary":
        return _attribute_headers(envelope), _content(envelope), _own_id(envelope)
    return {"Content-Type": STRUCTURED_TYPE}, entry, _own_id(envelope)


def _attribute_headers(envelope: Envelope) -> dict[str, str]:
    headers = {f"ce-{name}": header_text(value) for name, value in envelope.attributes() if name != "datacontenttype"}
    content_type = envelope.datacontenttype or (JSON_TYPE if envelope.data and not envelope.opaque else None)
    if content_type is not None:
        if not _HEADER_TEXT.fullmatch(content_type):
            raise ValueError("the event's datacontenttype is no text that a header can hold")
        if content_type.lower().startswith("application/cloudevents"):
            raise ValueError("in binary mode the event's datacontenttype would make the request a structured one")
        headers["Content-Type"] = content_type
    return headers


def _content(envelope: Envelope) -> bytes:
    """The data in its own type.

    JSON stays as it is; other text stands in the event as a JSON string.
    """
    raw = bytes(envelope.data)
    if envelope.opaque or not raw.startswith(b'"') or _JSON.fullmatch(envelope.datacontenttype or JSON_TYPE):
        return raw
    return _text(raw).encode()


def _own_id(envelope: Envelope) -> str:
    return envelope.id if _WEBHOOK_ID.fullmatch(envelope.id) else _hash(envelope.id)


def _hash(*ids: str) -> str:
    """Hash of a list, 32 lower-case hex digits.

    It is taken of a JSON array, so that two lists cannot run together into the same bytes.
    """
    return blake2b(_quoted(ids), digest_size=16).hexdigest()
