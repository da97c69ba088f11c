"""CloudEvents: reads events from stream entries, and makes the HTTP requests that carry them.

Attributes are read as text; data stays undecoded bytes. Requests follow CloudEvents over HTTP 1.0.2 and the Standard
Webhooks headers:

=============  ========================================  ===================================  ========================
mode           ``Content-Type``                          body                                 ``webhook-id``
=============  ========================================  ===================================  ========================
structured     ``application/cloudevents+json``          the very bytes of the entry          the event's id
batch          ``application/cloudevents-batch+json``    an array of the entries' very bytes  a hash of the events' ids
binary         the data's own type                       the bytes of the data                the event's id
=============  ========================================  ===================================  ========================

Structured and batched requests have no ``ce-`` headers, because some receivers would take them for binary ones. In
binary mode the signature covers only the body and not the attributes: Standard Webhooks signs no other headers.

**Invariants**

* Every attribute of the event is kept, under its name and in its CloudEvents string form. The data is kept byte for
  byte.
* An entry that is no CloudEvent 1.0 in JSON is refused when it is read, never later.
* The meaning of attributes is not interpreted.
* The same events give the same ``webhook-id`` and the same body on every attempt; timestamp and signature belong to the
  attempt.
* Nothing is encoded again: a sink gets the bytes in the stream.
* No text from an event can end its header or begin another one.
* The sink, its credential and the current time are not known here; the sink adds ``Authorization``.

An entry is read in one pass, which is fast; only an event with an attribute that :class:`Envelope` does not have takes
a second, slower pass. The data is not decoded, so its errors are not noticed: bytes that are no UTF-8 pass.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Meta, Raw, Struct

from poller.delivery.signing import Signer

K = TypeVar("K")
V = TypeVar("V")

_Text = Annotated[str, Meta(min_length=1)]

_NO_EXTENSIONS: Final[Mapping[str, str]] = MappingProxyType({})
_NAME: Final = re.compile(r"[a-z0-9]+")
_INTEGER: Final = re.compile(r"-?[0-9]+")
_BOOLEANS: Final = ("true", "false")
_UUID_LENGTH: Final = 36
_CAUSE: Final = re.compile(rb',"cause":"([a-z]{1,32})"\}\}\Z')
_CAUSE_BYTES: Final = 64  # at the end of an event of an earlier version


class Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The CloudEvents attributes of an event; None: absent.

    Attributes:
        cause: of an event without this attribute, as earlier versions have written it, that of its data.
        data: the JSON text of ``data``, or the decoded bytes of ``data_base64``; empty: no data. It is a view into the
            entry; ``bytes(envelope.data)`` copies it.
    """

    specversion: Literal["1.0"]
    id: _Text
    source: _Text
    type: _Text
    subject: str | None = None
    time: str | None = None
    recordedtime: str | None = None
    sequence: str | None = None
    partitionkey: str | None = None
    cause: str | None = None
    datacontenttype: str | None = None
    dataschema: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    data: Raw = Raw()

    @property
    def extensions(self) -> Mapping[str, str]:
        """The attributes without a field of this class."""
        return _NO_EXTENSIONS

    @property
    def opaque(self) -> bool:
        """Whether the data comes from ``data_base64``, and is no JSON value."""
        return False

    def attribute(self, name: str) -> str | None:
        """An attribute by its name; None: absent."""
        value: str | None = getattr(self, name) if name in ATTRIBUTES else self.extensions.get(name)
        return value

    def attributes(self) -> Iterator[tuple[str, str]]:
        """All attributes of the event."""
        for name in ATTRIBUTES:
            value: str | None = getattr(self, name)
            if value is not None:
                yield name, value
        yield from self.extensions.items()


class _Extended(Envelope, frozen=True, kw_only=True):
    """An event with extension attributes, or with binary data."""

    others: Mapping[str, str]
    from_base64: bool

    @property
    def extensions(self) -> Mapping[str, str]:
        return self.others

    @property
    def opaque(self) -> bool:
        return self.from_base64


ATTRIBUTES: Final = tuple(name for name in Envelope.__struct_fields__ if name != "data")
_FIELDS: Final = frozenset(Envelope.__struct_fields__)

_read: Final = msgspec.json.Decoder(Envelope).decode
_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_value: Final = msgspec.json.Decoder().decode


Event = tuple[Envelope, bytes]
"""An event's envelope and its bytes in the stream."""


def record_of(envelope: Envelope) -> str:
    """The key of an event's record within its feed.

    The case of a UUID's letters does not count.
    """
    return delivery_key(envelope.partitionkey or envelope.subject or "")


def delivery_key(subject: str) -> str:
    """The key of a record in queues of deliveries, by its id."""
    if len(subject) == _UUID_LENGTH and subject[8:24:5] == "----":  # the dashes of a UUID
        return subject.lower()
    return subject


_REMEMBERED: Final = 128
_REMEMBERED_BYTES: Final = 256 * 1024


class LatestResults(Generic[K, V]):
    """What was made of the latest events, so that subscriptions of one feed share it.

    At most :data:`_REMEMBERED` results of :data:`_REMEMBERED_BYTES` in all. When they would be more, all are dropped:
    events come in order, and subscriptions that are not behind ask for the same ones at nearly the same time.
    """

    def __init__(self) -> None:
        self._results: dict[K, V] = {}
        self._bytes = 0
        self.get: Callable[[K], V | None] = self._results.get

    def put(self, key: K, result: V, size: int) -> None:
        """Remember a result, which holds this many bytes; a large one is not remembered."""
        if size > _REMEMBERED_BYTES:
            return
        if len(self._results) >= _REMEMBERED or self._bytes + size > _REMEMBERED_BYTES:
            self._results.clear()
            self._bytes = 0
        self._results[key] = result
        self._bytes += size


_envelopes: Final[LatestResults[bytes, Envelope]] = LatestResults()


def envelope_of(entry: bytes) -> Envelope:
    """Read the field ``data`` of an entry.

    The envelopes of the latest entries are remembered by their bytes, whatever place these have in the store.

    Args:
        entry: an event in CloudEvents JSON.

    Raises:
        ValueError: the entry is no CloudEvent. The message repeats nothing of it but a name.
    """
    envelope = _envelopes.get(entry)
    if envelope is None:
        envelope = _envelope_of(entry)
        if envelope.cause is None and (caused := _CAUSE.search(entry, max(0, len(entry) - _CAUSE_BYTES))):
            envelope = msgspec.structs.replace(envelope, cause=caused[1].decode())
        _envelopes.put(entry, envelope, len(entry))
    return envelope


def _envelope_of(entry: bytes) -> Envelope:
    try:
        return _read(entry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # no event, or one with extensions: the slower pass decides
    try:
        return _read_members(entry)
    except (ValueError, RecursionError) as refused:
        raise ValueError(f"no CloudEvent 1.0 in JSON: {refused}") from None


def _read_members(entry: bytes) -> Envelope:
    members = _members(entry)
    encoded = members.pop("data_base64", None)
    if encoded is not None and "data" in members:
        raise ValueError("it has data twice, as data and as data_base64")
    others = {name: members.pop(name) for name in [name for name in members if name not in _FIELDS]}
    # The data is not converted: it may be nested deeper than anything else, and it is not needed here.
    data = members.pop("data", Raw())
    known: Any = {name: _value(raw) for name, raw in members.items()}
    envelope = msgspec.convert(known, Envelope)
    return _Extended(
        **{name: getattr(envelope, name) for name in ATTRIBUTES},
        data=data if encoded is None else Raw(_bytes_of(encoded)),
        others={name: text for name, raw in others.items() if (text := _string_form(name, raw)) is not None},
        from_base64=encoded is not None,
    )


def _bytes_of(encoded: Raw) -> bytes:
    text = _value(encoded)
    if not isinstance(text, str):
        raise ValueError("data_base64 is no text")  # noqa: TRY004 -- it is the entry that is wrong
    return b64decode(text, validate=True)


def _string_form(name: str, raw: Raw) -> str | None:
    """An extension's value in CloudEvents string form; None: null, which means absent."""
    if not _NAME.fullmatch(name):
        raise ValueError("an attribute's name is not of lower-case letters and digits")
    value = _value(raw)
    if value is None or isinstance(value, str):
        return value
    text = bytes(raw).decode().strip()
    if text in _BOOLEANS or _INTEGER.fullmatch(text):
        return text
    raise ValueError(f"the attribute {name} is no text, integer or boolean")


# The HTTP request that carries events.

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
    """A POST request.

    Attributes:
        headers: each name once, in any case; not to be changed; the client adds ``Content-Length`` and ``Host``.
        body: as signed.
    """

    headers: Mapping[str, str]
    body: bytes


_requests: Final[LatestResults[tuple[object, ...], Request]] = LatestResults()


class RequestForm:
    """Makes the requests of one subscription, or of several whose requests have the same constant parts and secrets.

    The latest requests are remembered: one of the same entries in the same second is not made and signed again.
    """

    __slots__ = ("__weakref__", "_id", "_mode", "_same", "_signer")

    def __init__(
        self,
        mode: Mode,
        *,
        signer: Signer | None,
        user_agent: str,
        headers: Mapping[str, str] | None = None,
        origin: str | None = None,
    ) -> None:
        """Begin with the constant parts of all requests.

        Args:
            mode: the subscription's mode.
            signer: signs the body; None: unsigned.
            user_agent: of this program; one in ``headers`` replaces it.
            headers: of the subscription; checked when they were configured.
            origin: for ``WebHook-Request-Origin``, if the sink has granted it.
        """
        self._mode = mode
        self._signer = signer
        own = {"User-Agent": user_agent} | ({"WebHook-Request-Origin": origin} if origin else {})
        given = dict(headers or {})
        replaced = {name.lower() for name in given}
        self._same = {name: text for name, text in own.items() if name.lower() not in replaced} | given
        self._id = object()  # and not the form itself, which holds secrets and may be gone before what it has made

    def request(self, events: Sequence[tuple[Envelope, bytes]], *, timestamp: int) -> Request:
        """The request for one attempt.

        Args:
            events: with the bytes of their entries: one, or in batch mode one or more.
            timestamp: of the attempt, seconds since 1970.

        Raises:
            ValueError: the number of events does not fit the mode, or the event cannot be sent in binary mode because
                its ``datacontenttype`` cannot stand as ``Content-Type``. Trying again would not change that.
        """
        if not events or (len(events) > 1 and self._mode != "batch"):
            raise ValueError(f"{len(events)} events in one request of mode {self._mode}")
        key = self._id, timestamp, *[entry for _, entry in events]
        request = _requests.get(key)
        if request is None:
            carried, body, webhook_id = _carried(self._mode, events)
            headers = self._same | carried | {"webhook-id": webhook_id, "webhook-timestamp": str(timestamp)}
            if self._signer:
                headers |= self._signer.headers(webhook_id, timestamp, body)
            request = Request(headers, body)
            _requests.put(key, request, len(body) + sum([len(entry) for _, entry in events]))
        return request


def header_text(value: str) -> str:
    """An attribute's value in a header: percent-encoded UTF-8, upper-case hex."""
    return value if _PLAIN.fullmatch(value) else quote(value, safe=_SAFE)


def _carried(mode: Mode, events: Sequence[tuple[Envelope, bytes]]) -> tuple[dict[str, str], bytes, str]:
    """The headers of the mode, the body, and the ``webhook-id``."""
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
    """The data in its own type. JSON stays as it is; other text is a JSON string in the event."""
    raw = bytes(envelope.data)
    if envelope.opaque or not raw.startswith(b'"') or _JSON.fullmatch(envelope.datacontenttype or JSON_TYPE):
        return raw
    return _text(raw).encode()


def _own_id(envelope: Envelope) -> str:
    return envelope.id if _WEBHOOK_ID.fullmatch(envelope.id) else _hash(envelope.id)


def _hash(*ids: str) -> str:
    """The hash of a list: 32 lower-case hex digits.

    A JSON array is hashed, so that different lists never give the same bytes.
    """
    return blake2b(_quoted(ids), digest_size=16).hexdigest()
