"""The list envelope (``results``, ``deltaToken``, ``pageToken``), with records as received.

**Invariants**

- A single bad record (nested too deep, ``NaN``, half a surrogate) does not cost its page. A page is read as one JSON
  text; if that fails, it is cut along its brackets, commas and strings, and each record is judged later. The envelope
  around the records has to be JSON; a page that was cut off is none.
- An unescaped quotation mark shifts where strings end, so that one element may hold several records; see
  :func:`poller.changes.records.is_single`.
- No part of an unknown answer is repeated in an error, because it may echo what was sent, even the credential. Of its
  keys only those are named that lists are commonly wrapped in; all others are counted.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Generator
from typing import Final, Literal

import msgspec

from poller.changes.canonical import MAX_DEPTH, TOO_DEEP, deeper_than, own_members
from poller.errors import SourceNonsense

MAX_TOKEN_LENGTH: Final = 64 * 1024
MAX_RECORDS: Final = 1_000_000
"""In one page. An answer of zeros or of empty objects holds millions, and each takes more memory than it has bytes."""

Ending = Literal["no pageToken", "pageToken null", "pageToken empty", "an empty page", "the last page again"]
"""How a listing shows that it ends; all but the last two are seen on its last page alone."""

_RESULTS: Final = "results"
_OTHER_MARKS: Final = (BOM_UTF16_BE, BOM_UTF16_LE)


class Page(msgspec.Struct, frozen=True, gc=False):
    """One answer of a list endpoint. Tokens are opaque; empty ones count as absent.

    Attributes:
        records: each record's bytes, in the order received.
        delta_token: for a later delta.
        page_token: for the next page; None: it is the last one.
        ending: in what way the page token is missing, if it is.
    """

    records: list[bytes]
    delta_token: str | None
    page_token: str | None
    ending: Ending = "no pageToken"


class _Envelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    results: list[msgspec.Raw]
    delta_token: str | None = None
    page_token: str | msgspec.UnsetType | None = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Envelope).decode


def decode_page(body: bytes, *, most: int = MAX_RECORDS) -> Generator[None, None, Page]:
    """Read an answer. Records that are no JSON stay in it and are rejected later.

    For :func:`~poller.lifecycle.in_turns`: yields where the answer has to be cut piece by piece.

    Raises:
        SourceNonsense: the body is not JSON, not the envelope, has one of its keys twice, is nested too deep around
            the records, has more than ``most``, or holds a token that cannot be sent back.
    """
    if body.startswith(_OTHER_MARKS):
        raise SourceNonsense("the answer begins with the byte order mark of UTF-16; JSON is UTF-8")
    body = body.removeprefix(BOM_UTF8)  # RFC 8259, section 8.1: who reads may ignore it
    if len(body) >= 2 * most and body.count(b",") >= most:
        envelope, records = yield from _counted(body, most)
    else:
        try:
            envelope = _read(body)
            records = [bytes(record) for record in envelope.results]
        except SourceNonsense as whole:
            parts = (yield from split_results(body, most)) if len(body) <= LONGEST else None
            if parts is None:
                raise
            records, around = parts
            try:
                envelope = _read(around)
            except SourceNonsense:
                raise whole from None
    further = envelope.page_token
    return Page(
        records,
        _token(envelope.delta_token, "deltaToken"),
        _token(further or None, "pageToken"),
        "pageToken null" if further is None else "pageToken empty" if further == "" else "no pageToken",
    )


def _counted(body: bytes, most: int) -> Generator[None, None, tuple[_Envelope, list[bytes]]]:
    """The parts of an answer that may have too many records.

    Made in one piece, each zero of them would take 100 bytes.
    """
    parts = yield from split_results(body, most)
    if parts is None:
        raise SourceNonsense(f"the answer is not a list envelope, or not whole ({_kind_of(body)})")
    records, around = parts
    if around.count(b",") >= most:
        raise SourceNonsense(f"the answer is not a list envelope: it has {len(around)} bytes around its records")
    return _read(around), records


def _read(body: bytes) -> _Envelope:
    try:
        envelope = _decode(body)
        _refuse_ambiguous(body)
        return envelope
    except msgspec.ValidationError as error:
        found = keys_instead(body, _RESULTS)
        what = str(error) if found is None else f"expected the key {_RESULTS}, found {found}"
        raise SourceNonsense(f"the answer is not a list envelope: {what}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # None of the body is shown: an unknown answer may echo the request, even the credential.
        raise SourceNonsense(f"the answer is not JSON ({_kind_of(body)}): {error}") from None
    except RecursionError:
        raise SourceNonsense(f"the answer is {TOO_DEEP}") from None


def _refuse_ambiguous(body: bytes) -> None:
    """Refuse an ambiguous envelope; the records are judged one by one, later."""
    members, repeated = own_members(body)
    if twice := repeated.intersection(_Envelope.__struct_encode_fields__):
        raise SourceNonsense(f"the answer is not a list envelope: {', '.join(sorted(twice))} stands in it twice")
    if any(deeper_than(value, MAX_DEPTH - 1) for name, value in members.items() if name != _RESULTS):
        raise SourceNonsense(f"the answer is {TOO_DEEP}")


def _kind_of(body: bytes) -> str:
    return f"{len(body)} bytes" + (" of markup" if body.lstrip().startswith(b"<") else "")


def _token(token: str | None, name: str) -> str | None:
    if not token:
        return None
    if len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
        raise SourceNonsense(f"the answer's {name} cannot be sent back: {len(token)} characters, {token[:20]!r}…")
    return token


_COMMON: Final = re.compile(
    "data|items?|records?|results?|values?|entries|elements|contents?|list|rows|objects|hits|documents|resources|"
    "response|payload|body|embedded|pages?|paging|pagination|meta|metadata|links?|previous|cursor|"
    "next(?:cursor|page|link|(?:page|delta)?token)?|pagetoken|delta(?:token|link)|(?:total)?count|total|limit|offset|"
    "size|errors?|message|status|code|title|detail|type"
)
_JOINING_MARKS: Final = str.maketrans("", "", "_-@$.")  # what these words are joined or begun with, here and there
_LONGEST: Final = 24  # characters
_SHOWN: Final = 6
_keys: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def keys_instead(body: bytes, wanted: str) -> str | None:
    """The keys of another envelope, such as ``data, next and 2 others``, or ``none``.

    None: the body is no JSON object, or has the key ``wanted``.
    """
    try:
        found = list(_keys(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if wanted in found:
        return None
    known = [key for key in found if _COMMON.fullmatch(_plain(key))][:_SHOWN]
    others = len(found) - len(known)
    more = [f"{others} other{'s' if others > 1 else ''}"] if others else []
    named = [", ".join(known)] if known else []
    return " and ".join((*named, *more)) or "none"


def _plain(key: str) -> str:
    return key.lower().translate(_JOINING_MARKS) if len(key) <= _LONGEST else ""


LONGEST: Final = 8 * 1024 * 1024  # bytes; cutting is slow, and a page like that is no accident
_AT_ONCE: Final = 10_000  # brackets and the like; some milliseconds
# An array or object without others in it is one mark. The last alternative is a string that does not end. What follows
# it is not looked at: trying each later quotation mark in the same way would take a time that grows with the square of
# the length.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRUCTURE: Final = re.compile(
    rb'[\[{](?:[^"\[\]{}]++|%b)*+[\]}]|%b|[\[\]{},]|"' % (_STRING, _STRING),
    re.DOTALL,
)
_UNENDED: Final = b'"'
_OPENING: Final = re.compile(rb"\s*+:\s*+\[")
_OPEN, _CLOSE = (b"[", b"{"), (b"]", b"}")
_LONGEST_KEY: Final = 6 * len(_RESULTS) + 2  # as written: each of its letters may be an escape


def split_results(body: bytes, most: int = MAX_RECORDS) -> Generator[None, None, tuple[list[bytes], bytes] | None]:
    """The elements of the envelope's ``results`` as bytes, and the envelope without them.

    None: there is no such array, or it does not end.

    Raises:
        SourceNonsense: they are more than ``most``.
    """
    start = yield from _start(body)
    if start is None:
        return None
    elements: list[bytes] = []
    depth, begun = 0, start
    for count, mark in enumerate(_STRUCTURE.finditer(body, start), start=1):
        if not count % _AT_ONCE:
            yield
        found = mark[0]
        if found == _UNENDED:
            return None
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE and depth:
            depth -= 1
        elif not depth and found in (b",", b"]"):
            elements.append(body[begun : mark.start()].strip())
            begun = mark.end()
            if found == b"]":
                return ([] if elements == [b""] else elements), body[:start] + body[mark.start() :]
            if len(elements) >= most:
                raise SourceNonsense(f"the answer has more than {most} records in a page; set limit, or a smaller one")
    return None


def _start(body: bytes) -> Generator[None, None, int | None]:
    """Where the first element of ``results`` begins.

    The key is that of the envelope itself, not of a record.
    """
    depth = 0
    for count, mark in enumerate(_STRUCTURE.finditer(body), start=1):
        if not count % _AT_ONCE:
            yield
        found = mark[0]
        if found == _UNENDED:
            return None
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE:
            depth -= 1
        elif depth == 1 and len(found) <= _LONGEST_KEY and _is_results(found):
            opening = _OPENING.match(body, mark.end())
            if opening:
                return opening.end()
    return None


def _is_results(found: bytes) -> bool:
    if b"\\" not in found:
        return found == b'"results"'
    try:
        return found.startswith(b'"') and msgspec.json.decode(found) == _RESULTS
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
