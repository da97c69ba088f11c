"""Reads CloudEvents from the body and the headers of an HTTP request.

=============  ==========================================  =================================
mode           ``Content-Type``                            where the attributes are
=============  ==========================================  =================================
structured     ``application/cloudevents+json``            in the body, with the data
batch          ``application/cloudevents-batch+json``      in the body, an array of the above
binary         the data's own type                         in the headers ``ce-…``
=============  ==========================================  =================================

**Invariants**

- What is no CloudEvent 1.0 is refused. Nothing is invented: an event without ``id`` is refused, and one without
  ``time`` has none.
- :attr:`ReceivedEvent.raw_data` is the data byte for byte. Decoded JSON keeps integers exactly; other numbers become
  Python's floats, so of ``0.10`` or of more than 17 digits only the raw data has all.
- A refusal repeats nothing of the request but the name of an attribute.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.v1.event import CloudEvent

from poller.client.signatures import WebhookRefused

MAX_EVENTS: Final = 1000
"""The most events that a batch may have."""

STRUCTURED_TYPE: Final = "application/cloudevents+json"
BATCH_TYPE: Final = "application/cloudevents-batch+json"

_TOO_LARGE: Final = 413
_UNSUPPORTED: Final = 415
_PREFIX: Final = "ce-"
_NAME: Final = re.compile(r"[a-z0-9]+")
_REQUIRED: Final = ("id", "source", "type")
_TEXTS: Final = frozenset({*_REQUIRED, "specversion", "subject", "time", "datacontenttype", "dataschema"})
_JSON: Final = re.compile(r"[^;]*[/+]json\s*(;.*)?", re.IGNORECASE | re.DOTALL)
_CHARSET: Final = re.compile(r""";\s*charset\s*=\s*"?([^\s";]+)""", re.IGNORECASE)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class ContentRefused(WebhookRefused):
    """The content is no CloudEvent, or too much of it. HTTP status 400, 413 or 415."""


class ReceivedEvent(CloudEvent):
    """An event of the ``cloudevents`` SDK, with its data as received.

    Attributes:
        raw_data: the bytes of the data in its own type: JSON text, other text, or what was in base64; None: no data.
    """

    def __init__(
        self, attributes: dict[str, Any], data: Any = None, *, raw_data: bytes | None = None, raw: bytes | None = None
    ) -> None:
        """An event.

        Args:
            attributes: see the SDK; ``time`` may be missing.
            data: decoded.
            raw_data: see above.
            raw: the whole event in CloudEvents JSON as received; None: it was not received so.

        Raises:
            CloudEventValidationError: it is no event.
        """
        has_time = "time" in attributes
        super().__init__(attributes, data)
        if not has_time:
            del self.get_attributes()["time"]  # the SDK has invented one
        self.raw_data = raw_data
        self._raw = raw

    def get_data(self) -> Any:
        """The decoded data: a JSON value, text, bytes, or None."""
        return super().get_data()

    def to_json(self) -> bytes:
        """The event in CloudEvents JSON, as received unless it came in binary mode."""
        if self._raw is not None:
            return self._raw
        attributes = {name: _written(value) for name, value in self.get_attributes().items()}
        members = [f"{json.dumps(name)}:{json.dumps(value)}".encode() for name, value in attributes.items()]
        if self.raw_data is not None:
            members.append(self._data_member(self.raw_data))
        return b"{" + b",".join(members) + b"}"

    def _data_member(self, raw: bytes) -> bytes:
        data = self.get_data()
        if isinstance(data, bytes):
            return b'"data_base64":' + json.dumps(b64encode(raw).decode()).encode()
        is_json = _JSON.fullmatch(self.get_datacontenttype() or "application/json")
        return b'"data":' + (raw if is_json else json.dumps(data).encode())


def _written(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    precision = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.isoformat(timespec=precision).replace("+00:00", "Z")


def events_of(headers: Sequence[tuple[str, str]], body: bytes, *, max_events: int = MAX_EVENTS) -> list[ReceivedEvent]:
    """The events of a request, in their order; an empty batch has none.

    Args:
        headers: names in lower case, as of :func:`poller.client.signatures.header_pairs`.
        body: as received.
        max_events: the most that a batch may have.

    Raises:
        ContentRefused: there is no event, or something that is none.
    """
    types = [text for name, text in headers if name == "content-type"]
    if len(types) > 1:
        raise ContentRefused("the header Content-Type occurs twice")
    content_type = types[0] if types else ""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in {STRUCTURED_TYPE, BATCH_TYPE}:
        text = _utf8(body, _charset(content_type))
        return _batch(text, max_events) if media_type == BATCH_TYPE else [_structured(text)]
    if media_type.startswith("application/cloudevents"):
        raise ContentRefused(f"expected {STRUCTURED_TYPE} or {BATCH_TYPE}", status=_UNSUPPORTED)
    if not any(name.startswith(_PREFIX) for name, _ in headers):
        expected = f"expected {STRUCTURED_TYPE}, {BATCH_TYPE}, or headers ce-id, ce-source, ce-type and ce-specversion"
        raise ContentRefused(expected, status=_UNSUPPORTED)
    return [_binary(headers, content_type, body)]


def _charset(content_type: str) -> str:
    found = _CHARSET.search(content_type)
    return found[1].lower() if found else "utf-8"


def _utf8(body: bytes, charset: str) -> str:
    if charset not in {"utf-8", "utf8", "us-ascii"}:
        raise ContentRefused("expected the charset UTF-8", status=_UNSUPPORTED)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        raise ContentRefused("the body is no UTF-8") from None


# Structured and batch mode: JSON, with the place of each member in the text.


def _refuse_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


_decode: Final = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode

_Members = dict[str, tuple[Any, int, int]]
"""The members of an object: decoded value, and where its text begins and ends."""


def _structured(text: str) -> ReceivedEvent:
    try:
        begin = _after_space(text, 0)
        members, end = _object(text, begin)
        _check_end(text, end)
    except (ValueError, RecursionError):
        raise ContentRefused("the body is no JSON object, has a member twice, or is nested too deep") from None
    return _event(members, text, begin, end)


def _batch(text: str, most: int) -> list[ReceivedEvent]:
    try:
        found = list(islice(_objects(text), most + 1))
    except (ValueError, RecursionError):
        raise ContentRefused("the body is no JSON array of objects, or an object has a member twice") from None
    if len(found) > most:
        raise ContentRefused(f"the batch has more than {most} events", status=_TOO_LARGE)
    return [_event(members, text, begin, end) for members, begin, end in found]


def _objects(text: str) -> Iterator[tuple[_Members, int, int]]:
    """The objects of a JSON array: members, and where each begins and ends."""
    at = _after(text, _after_space(text, 0), "[")
    if text[at : at + 1] == "]":
        at += 1
    else:
        more = True
        while more:
            members, end = _object(text, at)
            yield members, at, end
            at = _after_space(text, end)
            more = text[at : at + 1] != "]"
            at = _after(text, at, ",") if more else at + 1
    _check_end(text, at)


def _object(text: str, at: int) -> tuple[_Members, int]:
    """The members of the JSON object at this place, and where it ends."""
    found: _Members = {}
    at = _after(text, at, "{")
    if text[at : at + 1] == "}":
        return found, at + 1
    while True:
        name, at = _value(text, at)
        if not isinstance(name, str) or name in found:
            raise ValueError("a name is no text, or occurs twice")
        begin = _after(text, _after_space(text, at), ":")
        value, end = _value(text, begin)
        found[name] = value, begin, end
        at = _after_space(text, end)
        if text[at : at + 1] == "}":
            return found, at + 1
        at = _after(text, at, ",")


def _value(text: str, at: int) -> tuple[Any, int]:
    value, end = _decode(text, at)
    return value, end


def _check_end(text: str, at: int) -> None:
    if _after_space(text, at) != len(text):
        raise ValueError("there is more than one value")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _after(text: str, at: int, sign: str) -> int:
    """The place after this sign and the white space that follows it."""
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign}")
    return _after_space(text, at + 1)


def _event(members: _Members, text: str, begin: int, end: int) -> ReceivedEvent:
    data, raw_data = None, None
    value, first, last = members.pop("data", (None, 0, 0))
    encoded, _, _ = members.pop("data_base64", (None, 0, 0))
    attributes = {name: found for name, (found, _, _) in members.items() if found is not None}
    if encoded is not None:
        if value is not None:
            raise ContentRefused("the event has data twice, as data and as data_base64")
        data = raw_data = _from_base64(encoded)
    elif last:
        data = value
        is_text = isinstance(value, str) and not _JSON.fullmatch(str(attributes.get("datacontenttype", "a/json")))
        raw_data = _bytes(value if is_text else text[first:last])
    return _made(attributes, data, raw_data=raw_data, raw=text[begin:end].encode())


def _from_base64(encoded: object) -> bytes:
    try:
        return b64decode(str(encoded), validate=True)
    except ValueError:
        pass
    raise ContentRefused("data_base64 is no base64")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


# Binary mode: attributes in headers.


def _binary(headers: Sequence[tuple[str, str]], content_type: str, body: bytes) -> ReceivedEvent:
    attributes: dict[str, Any] = {}
    for header, text in headers:
        if not header.startswith(_PREFIX):
            continue
        name = header.removeprefix(_PREFIX)
        if name in attributes or name in {"data", "datacontenttype"}:
            raise ContentRefused("a header ce- occurs twice, or is none of an attribute")
        attributes[name] = _from_header(text)
    if content_type:
        attributes["datacontenttype"] = content_type
    return _made(attributes, _content(content_type, body), raw_data=body or None)


def _from_header(text: str) -> str:
    """An attribute: quoted strings of earlier versions of the specification are unquoted, then escapes resolved."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode("utf-8")
    except UnicodeError:
        raise ContentRefused("a header ce- is no UTF-8 once its escapes are resolved") from None


def _content(content_type: str, body: bytes) -> Any:
    """The data by its type: a JSON value, text, or bytes."""
    if not body:
        return None
    if _JSON.fullmatch(content_type):
        try:
            text = _utf8(body, _charset(content_type))
            value, end = _value(text, _after_space(text, 0))
            if _after_space(text, end) == len(text):
                return value
        except (ValueError, RecursionError):
            pass
        raise ContentRefused("the body is no JSON, which Content-Type says it is")
    if content_type.lower().startswith("text/"):
        try:
            return body.decode(_charset(content_type))
        except (LookupError, UnicodeError):
            return body
    return body


# All modes.


def _made(
    attributes: dict[str, Any], data: object, *, raw_data: bytes | None, raw: bytes | None = None
) -> ReceivedEvent:
    if attributes.get("specversion") != "1.0":
        raise ContentRefused("it is no CloudEvent of specversion 1.0")
    for name in _REQUIRED:
        if not attributes.get(name):
            raise ContentRefused(f"the event has no {name}")
    for name, value in attributes.items():
        _check(name, value)
    if "time" in attributes:
        attributes["time"] = _moment(attributes["time"])
    try:
        return ReceivedEvent(attributes, data, raw_data=raw_data, raw=raw)
    except CloudEventValidationError as refused:
        names = ", ".join(sorted(refused.errors))
    raise ContentRefused(f"the event has an empty or wrong attribute: {names}")


def _check(name: str, value: object) -> None:
    if not _NAME.fullmatch(name):
        raise ContentRefused("the name of an attribute is not of lower-case letters and digits")
    if not isinstance(value, str if name in _TEXTS else str | int):
        raise ContentRefused(f"the attribute {name} is no text, integer or boolean")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ContentRefused(f"the attribute {name} has half of a surrogate pair") from None


def _moment(text: str) -> datetime:
    """A moment of RFC 3339. Python has no leap seconds, so one becomes the second before it."""
    found = _MOMENT.fullmatch(text)
    if found:
        day, hour, second, fraction, zone = found.groups()
        second = "59" if second == "60" else second
        with suppress(ValueError):
            return datetime.fromisoformat(f"{day}T{hour}{second}.{(fraction or '')[:6]:0<6}{zone.upper()}")
    raise ContentRefused("the attribute time is no moment of RFC 3339")
