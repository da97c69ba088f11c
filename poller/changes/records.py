"""Records: the objects of a page, with identity and bytes as received.

**Invariants**

- Identity is the id field alone. Ids of UUID shape are compared without regard to case (the reference allows both);
  all others as they are. The integer 1 and the text "1" are two records where both are listed; where one follows the
  other (:func:`twin_of`), an API has changed the type of its ids.
- A record without a usable identity becomes :class:`Rejected`, with the reason, and the rest of its page is used. It
  still counts as listed: :func:`identities` reads its id from the bytes alone.
- Of each usable record of a page one version is left, so that reading the page again finds nothing new: the one
  modified last, or if they do not say, the one that came last. A version that cannot be used is not chosen.
- Of partial records all versions count: each is merged with those before it. Merging concerns an object's own members
  and no deeper. A key that was received has the received value, null included; a key that was not received keeps its
  value. Values are copied as bytes; known keys keep their order, new ones follow.
- If the requested fields change, a known key that is not requested any more keeps its value and is not compared; a
  key that was not requested before and is not known is stored without an event. So a change of configuration is no
  storm of events, and no change of a record is lost.
- Pure.
"""

from __future__ import annotations

import json
import re
from binascii import unhexlify
from collections import Counter
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from datetime import datetime
from functools import cache
from itertools import repeat
from operator import attrgetter
from struct import iter_unpack
from typing import Any, Final

import msgspec

from poller.changes.canonical import TOO_DEEP, parse_received, unreadable
from poller.changes.layouts import AlikeRecords, Layout, form_of, matcher_of
from poller.resources import ID_IN_PATH

MAX_ID_LENGTH: Final = 1024
MAX_RECORD_BYTES: Final = 8 * 1024 * 1024
"""Of one record. Its values may take twenty times the memory of its bytes, and it is read without a pause."""

_SEARCHED: Final = 200_000  # brackets, commas and colons of an unusable record that are gone through, one by one
_MOST_IDS: Final = 16
_INTEGER: Final = "\x01"  # before the digits in the key of an integer id; no id that is text may hold it

_DIGITS: Final = re.compile(r"0|-?[1-9][0-9]*", re.ASCII).fullmatch
_UUID_TEXT: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(_UUID_TEXT).fullmatch
_UUID_LINE: Final = 37  # characters, with the line break
_UUID_BYTES: Final = 16
_HYPHENS: Final = (8, 13, 18, 23)
_HEXADECIMAL: Final = b"0123456789abcdef"
_IN_PATH: Final = re.compile(ID_IN_PATH).fullmatch
# CloudEvents attributes of type String: no control characters, no surrogates, no non-characters (two end each plane).
_PLANE_ENDS: Final = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_FORBIDDEN: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_PLANE_ENDS}]").search
_MARKS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_OPEN: Final = (b"[", b"{")
_MARKED: Final = (*_OPEN, b",", b":")
_TOKENS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},:]|"|[^\s\[\]{},:"]++', re.DOTALL)
_COLON: Final = re.compile(rb"\s*+:\s*+")
_VALUE: Final = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+"|-?[0-9]++)\s*+[,}]', re.DOTALL)
_HOUR_AND_MINUTE: Final = r"(?:[01]\d|2[0-3]):[0-5]\d"
_RFC3339_TEXT: Final = rf"\d{{4}}-\d\d-\d\dT{_HOUR_AND_MINUTE}:[0-5]\d(?:\.\d+)?(?:Z|[+-]{_HOUR_AND_MINUTE})"
# Other digits than those of ASCII count in fractions of a second for Python, but not in RFC 3339.
_RFC3339: Final = re.compile(_RFC3339_TEXT, re.ASCII).fullmatch
_ZEROS: Final = bytes.maketrans(b"123456789", b"0" * 9)
_MIDNIGHT: Final = "T24"  # at the end of a day: a time in ISO 8601, not in RFC 3339
_RFC3339S: Final = re.compile(rf"{_RFC3339_TEXT}(?:\n{_RFC3339_TEXT})*+", re.ASCII).fullmatch  # a line each


class _Beside(
    msgspec.Struct, frozen=True, gc=False, rename={"modified": "lastModifiedAt", "qualification": "qualificationID"}
):
    """What is read of a record beside its identity."""

    modified: Any = None
    qualification: Any = None


# msgspec alone refuses a number beyond the range of a float; to Python it is infinite, and no time, reference or id.
_decode_beside: Final = msgspec.json.Decoder(_Beside, float_hook=float).decode


class Record(msgspec.Struct, frozen=True, gc=False):
    """One object of a page.

    Attributes:
        key: its identity within the feed, the key of its snapshot.
        subject: its id as received.
        raw: its bytes as received.
        modified: ``lastModifiedAt`` if it is an RFC 3339 time, else None.
        qualification: ``qualificationID`` if it can stand in a path as it is, in lower case if it is a UUID; else None.
        layout: that it was read by; None: it was read as JSON.
        values: those that it has beside its layout.
    """

    key: str
    subject: str
    raw: bytes
    modified: str | None
    qualification: str | None
    layout: Layout | None = None
    values: tuple[bytes, ...] = ()


class Rejected(msgspec.Struct, frozen=True, gc=False):
    """Bytes of a page that cannot be used as a record, and the reason.

    Or an unreadable snapshot: what was stored of a record that is in the page, or that is gone.
    """

    raw: bytes
    reason: str
    is_snapshot: bool = False


@cache
def _head(id_field: str) -> tuple[type[msgspec.Struct], Callable[[Any], Any], Callable[[Any], Any]]:
    """A struct of what identifies a record; what gives its modification time, and what its qualification."""
    # A struct names each key once: an id field that is one of the others is read for both.
    wanted = {"id": id_field, "modified": "lastModifiedAt", "qualification": "qualificationID"}
    fields = {name: key for name, key in wanted.items() if name == "id" or key != id_field}
    head = msgspec.defstruct(
        "Head", [(name, Any, msgspec.UNSET) for name in fields], rename=fields, frozen=True, gc=False
    )
    modified_of = attrgetter("modified" if "modified" in fields else "id")
    qualification_of = attrgetter("qualification" if "qualification" in fields else "id")
    return head, modified_of, qualification_of


@cache
def record_reader(id_field: str) -> Callable[[bytes], Record | Rejected]:
    """A function that reads the identity out of one record's bytes."""
    head, modified_of, qualification_of = _head(id_field)
    decode = msgspec.json.Decoder(head, float_hook=float).decode

    def read(raw: bytes) -> Record | Rejected:
        if len(raw) > MAX_RECORD_BYTES:
            return Rejected(raw, f"a record of {len(raw)} bytes; at most {MAX_RECORD_BYTES} are usable")
        try:
            found: Any = decode(raw)
        except msgspec.ValidationError as error:  # not an object, or an id that is an integer beyond any range
            return Rejected(raw, f"not usable: {error}" if raw.lstrip().startswith(b"{") else "not an object")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Rejected(raw, unreadable(error))
        except RecursionError:
            return Rejected(raw, TOO_DEEP)
        subject = found.id if isinstance(found.id, str) else _identity(found.id)
        if _UUID(subject):
            key = subject.lower()
        elif reason := _unusable(subject, id_field):
            return Rejected(raw, reason)
        else:
            key = subject if isinstance(found.id, str) else _INTEGER + subject
        return Record(key, subject, raw, _moment(modified_of(found)), _reference(qualification_of(found)))

    return read


@cache
def records_reader(id_field: str) -> Callable[[Sequence[bytes]], Sequence[Record | Rejected]]:
    """A function that reads several records as :func:`record_reader` reads each, in less than half of the time.

    It reads them together: nearly all ids and references of an API are UUIDs, and nearly all records are usable.
    """
    head, modified_of, qualification_of = _head(id_field)
    decode: Callable[[bytes], list[Any]] = msgspec.json.Decoder(list[head], float_hook=float).decode  # type: ignore[valid-type]
    read = record_reader(id_field)

    def read_together(raws: Sequence[bytes]) -> Sequence[Record | Rejected]:
        if sum(map(len, raws)) > MAX_RECORD_BYTES:  # one of them may be too large
            return list(map(read, raws))
        try:
            heads = decode(b"[%b]" % b",".join(raws))
            subjects = [one.id for one in heads]
            ids = "\n".join(subjects)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError):
            return list(map(read, raws))
        lines = ids.lower()
        keys = lines.split("\n")
        if not (are_uuids(lines) and len(keys) == len(raws) == len(heads)):
            return list(map(read, raws))
        modified = _together(list(map(modified_of, heads)), _moments, _moment)
        qualifications = _together(list(map(qualification_of, heads)), _references, _reference)
        return list(map(Record, keys, subjects, raws, modified, qualifications))

    return read_together


@cache
def alike_reader(id_field: str) -> Callable[[Sequence[bytes], Layout], Sequence[Record] | None]:
    """A function that reads records as :func:`records_reader` does, by this layout; None: not all can be read so."""

    def read(raws: Sequence[bytes], layout: Layout) -> Sequence[Record] | None:
        try:
            form = form_of(layout)
        except ValueError:
            return None
        found = matcher_of(layout).rows(raws) if form.members.get(id_field) == form.key_at else None
        if found is None:
            return None
        rows, columns = found

        def read_member(
            name: str, together: Callable[[str], Sequence[str | None] | None], read_one: Callable[[Any], str | None]
        ) -> Iterable[str | None]:
            at = form.members.get(name)
            if at is None:
                return repeat(None)
            lines = b"\n".join(columns[at]).decode()
            return together(lines) or map(read_one, lines.split("\n"))

        ids = b"\n".join(columns[form.key_at]).decode().split("\n")
        modified = read_member("lastModifiedAt", _moments, _moment)
        qualifications = read_member("qualificationID", _references, _reference)
        return list(map(Record, ids, ids, raws, modified, qualifications, repeat(layout), rows))

    return read


def alike(records: Sequence[Record]) -> AlikeRecords | None:
    """These records by columns; None: they were not all read by the same layout."""
    layout = records[0].layout if records else None
    rows = [record.values for record in records if record.layout is layout]
    return None if layout is None or len(rows) < len(records) else AlikeRecords(layout, list(zip(*rows, strict=True)))


def _together(
    values: Sequence[Any], read: Callable[[str], Sequence[str | None] | None], read_one: Callable[[Any], str | None]
) -> Sequence[str | None]:
    """What is read of these values, together if they are all as most are: text, and usable.

    Args:
        values: one of each record.
        read: reads their lines; None: not all are usable.
        read_one: reads a single one.
    """
    if values.count(msgspec.UNSET) == len(values):  # records of other kinds have no such member
        return [None] * len(values)
    try:
        found = read("\n".join(values))
    except TypeError:
        found = None
    return found if found is not None and len(found) == len(values) else list(map(read_one, values))


def _moments(lines: str) -> Sequence[str] | None:
    moments = lines.split("\n")
    if not (_are_utc_alike(lines, len(moments)) or _RFC3339S(lines)):
        return None
    try:
        list(map(datetime.fromisoformat, moments))  # knows how many days a month has
    except ValueError:
        return None
    return moments


def _are_utc_alike(lines: str, count: int) -> bool:
    """Whether all lines have the form of one RFC 3339 time in UTC; whether its day and its seconds exist is left open.

    Most pages are so, and it takes less time than the pattern of all such times.
    """
    length = (len(lines) + 1) // count
    if not lines.isascii() or _MIDNIGHT in lines:
        return False
    digits = (lines + "\n").encode().translate(_ZEROS)
    first = digits[:length]
    return digits == first * count and first.endswith(b"Z\n") and _RFC3339(first[:-1].decode()) is not None


def _references(lines: str) -> Sequence[str] | None:
    names = lines.lower()
    return names.split("\n") if are_uuids(names) else None


def are_uuids(lines: str) -> bool:
    """Whether each of these lines is a UUID in lower case; much cheaper than to look at each."""
    count = (len(lines) + 1) // _UUID_LINE
    if not lines.isascii() or not count or len(lines) != count * _UUID_LINE - 1:
        return False
    text = lines.encode()
    return (
        all(text[at::_UUID_LINE] == b"-" * count for at in _HYPHENS)
        and text[_UUID_LINE - 1 :: _UUID_LINE] == b"\n" * (count - 1)
        and len(text.translate(None, _HEXADECIMAL)) == count * (len(_HYPHENS) + 1) - 1
    )


def uuid_values(lines: str) -> list[bytes]:
    """The 16 bytes of each of these lines, for which :func:`are_uuids` is true."""
    return [value for (value,) in iter_unpack(f"{_UUID_BYTES}s", unhexlify(lines.encode().translate(None, b"-\n")))]


def uuid_text(value: bytes) -> str:
    """The UUID with these 16 bytes, in lower case."""
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def identities(raw: bytes, id_field: str) -> frozenset[str] | None:
    """The keys that an unusable record may have; None: unknown.

    There are several if the id occurs in it several times. What is wrong elsewhere does not count: text that is no
    UTF-8, half a surrogate, raw control characters, too many levels. Bytes that may hold several records have none;
    nor have those with too many ids or brackets for a mistake.
    """
    if not is_single(raw):
        return None
    keys: set[str] = set()
    depth = 0
    for mark in _MARKS.finditer(raw):
        found = mark[0]
        if found in _OPEN:
            depth += 1
        elif found in (b"]", b"}"):
            depth -= 1
        elif depth == 1 and (colon := _COLON.match(raw, mark.end())) and _text(found) == id_field:
            value = _VALUE.match(raw, colon.end())
            key = _key_in(value[1]) if value else None
            if key is None:
                return None
            keys.add(key)
            if len(keys) > _MOST_IDS:
                return None
    return frozenset(keys) if keys and raw.lstrip().startswith(b"{") else None


def listed_keys(records: Iterable[bytes], id_field: str) -> Generator[None, None, frozenset[str] | None]:
    """The keys of all records of a page, usable or not; None: at least one of them is unknown."""
    read, keys = record_reader(id_field), set[str]()
    for count, raw in enumerate(records, 1):
        one = read(raw)
        found = frozenset((one.key,)) if isinstance(one, Record) else identities(raw, id_field)
        if found is None:
            return None
        keys |= found
        if not count % _CHECKED_AT_ONCE:
            yield
    return frozenset(keys)


def probable_keys(records: Sequence[bytes], id_field: str) -> list[str] | None:
    """The keys that these records have if all are usable, in their order; None: some have none."""
    found = usable_keys(b",".join(records), id_field)
    return found if found is not None and len(found) == len(records) else None


def usable_keys(results: bytes, id_field: str) -> list[str] | None:
    """The keys of records of which each is known to be usable; ``results`` is their array without its brackets.

    None: they cannot be read together, such as integers beyond 64 bits.
    """
    try:
        found: list[Any] = _ids_decoder(id_field)(b"[%b]" % results)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    try:
        ids = "\n".join([one.id for one in found])
    except TypeError:  # some are integers
        return [text_key(one.id) if isinstance(one.id, str) else _INTEGER + str(one.id) for one in found]
    # Together: by far most ids are UUIDs, and reading each would cost more than all the rest of an unchanged page.
    lines = ids.lower()
    return lines.split("\n") if are_uuids(lines) else [text_key(one.id) for one in found]


@cache
def _ids_decoder(id_field: str) -> Callable[[bytes], list[Any]]:
    head = msgspec.defstruct("Identity", [("id", str | int)], rename={"id": id_field}, frozen=True, gc=False)
    return msgspec.json.Decoder(list[head]).decode  # type: ignore[valid-type]  # a class made here


def is_single(raw: bytes) -> bool:
    """Whether unusable bytes are one value, judged by their strings and brackets.

    If not, they may hold several records: an unescaped quotation mark in one record makes the end of a string its
    start, up to the next such mark in another record. If it would take long to find out, they may.
    """
    if len(raw) > _SEARCHED and sum(map(raw.count, _MARKED)) > _SEARCHED:
        return False
    state, within = "value", bytearray()
    for match in _TOKENS.finditer(raw):
        token = match[0]
        if token in _OPEN and state in _BEFORE_VALUE:
            within += token
            state = "first key" if token == b"{" else "first value"
        elif (token == b"}" and within.endswith(b"{") and state in ("first key", "end")) or (
            token == b"]" and within.endswith(b"[") and state in ("first value", "end")
        ):
            within.pop()
            state = "end"
        elif token == b":" and state == "colon":
            state = "value"
        elif token == b"," and within and state == "end":
            state = "key" if within.endswith(b"{") else "value"
        elif token in _NO_SCALAR:
            return False
        elif state in _BEFORE_VALUE:
            state = "end"
        elif state in _BEFORE_KEY and token.startswith(b'"'):
            state = "colon"
        else:
            return False
    return state == "end" and not within


_BEFORE_VALUE: Final = frozenset({"value", "first value"})
_BEFORE_KEY: Final = frozenset({"key", "first key"})
_NO_SCALAR: Final = frozenset({*_OPEN, b"}", b"]", b":", b",", b'"'})


def _key_in(token: bytes) -> str | None:
    if not token.startswith(b'"'):
        return _INTEGER + ("0" if token == b"-0" else token.decode())
    subject = _text(token)
    return text_key(subject) if subject else None


def _text(token: bytes) -> str | None:
    try:
        text: str = json.loads(token.decode(), strict=False)
        text.encode()
    except ValueError:  # not UTF-8, an escape that is none, or half a surrogate: the store cannot be asked for that
        return None
    return text


def text_key(subject: str) -> str:
    """The key of an id that is text."""
    return subject.lower() if _UUID(subject) else subject


def subject_of(key: str) -> str:
    """The id of a key, except for the case of a UUID's letters."""
    return key.removeprefix(_INTEGER)


def twin_of(key: str) -> str | None:
    """The key of the same id in the other JSON type: text for an integer, an integer for its digits; None: no other."""
    if key.startswith(_INTEGER):
        return key.removeprefix(_INTEGER)
    return _INTEGER + key if _DIGITS(key) else None


def is_older(modified: str | None, than: str | None) -> bool:
    """Whether one RFC 3339 time is before another; False: one is unknown."""
    if modified is None or than is None:
        return False
    return datetime.fromisoformat(modified) < datetime.fromisoformat(than)


def modified_of(raw: bytes) -> str | None:
    """``lastModifiedAt`` of a record's bytes where it is an RFC 3339 time, else None."""
    try:
        return _moment(_decode_beside(raw).modified)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def with_bytes(record: Record, raw: bytes) -> Record:
    """The same record with other bytes, which are sound JSON."""
    beside = _decode_beside(raw)
    return Record(record.key, record.subject, raw, _moment(beside.modified), _reference(beside.qualification))


def _identity(value: Any) -> str:
    """The text of an id that is not text: integers are ids to some APIs, and nothing else can be one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return ""


def _unusable(subject: str, id_field: str) -> str | None:
    if not subject:
        return f"no id: {id_field!r} is absent, empty, or neither text nor an integer"
    if len(subject) > MAX_ID_LENGTH:
        return f"an id of {len(subject)} characters; at most {MAX_ID_LENGTH} are usable"
    if _FORBIDDEN(subject):
        return "an id with control characters"
    return None


def _moment(value: Any) -> str | None:
    if not isinstance(value, str) or not _RFC3339(value):
        return None
    try:
        datetime.fromisoformat(value)  # knows how many days a month has
    except ValueError:
        return None
    return value


def _reference(value: Any) -> str | None:
    name = value if isinstance(value, str) else _identity(value)
    if _UUID(name):
        return name.lower()
    return name if _IN_PATH(name) else None


_CHECKED_AT_ONCE: Final = 256  # records
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


def merged(part: Record, known: bytes) -> Record:
    """The whole record: its known bytes with the received part over them.

    Args:
        part: as received.
        known: the bytes of a record that was used before.

    Raises:
        ValueError: the part is not usable; the text says why, as :func:`~poller.changes.canonical.parse_received`
            does.
    """
    parse_received(part.raw)  # a key that stands in it twice would be lost in what follows
    return with_bytes(part, overlaid(known, part.raw))


def overlaid(known: bytes, received: bytes, *, without: Container[str] = ()) -> bytes:
    """One JSON object with the members of both; received values replace known ones.

    Args:
        known: the object beneath.
        received: the object above.
        without: keys whose known values do not count.
    """
    above = _members(received)
    kept = {key: value for key, value in _members(known).items() if key in above or key not in without}
    return _encode(kept | above)


def latest_versions(
    records: Sequence[Record | Rejected], *, partial: bool = False
) -> Generator[None, None, Sequence[Record | Rejected]]:
    """One version of each record of a page; runs in :func:`~poller.lifecycle.in_turns`.

    Args:
        records: in the order received.
        partial: whether they may carry only some of their keys.
    """
    keys = [record.key for record in records if isinstance(record, Record)]
    if len(set(keys)) == len(keys):
        return records
    times = Counter(keys)
    versions: dict[str, list[Record]] = {}
    rejected: list[Record | Rejected] = []
    for place, record in enumerate(records, start=1):
        checked = _checked(record) if isinstance(record, Record) and times[record.key] > 1 else record
        if isinstance(checked, Record):
            versions.setdefault(checked.key, []).append(checked)
        else:
            rejected.append(checked)
        if not place % _CHECKED_AT_ONCE:
            yield
    return [*(_settled(several, partial=partial) for several in versions.values()), *rejected]


def _checked(record: Record) -> Record | Rejected:
    try:
        parse_received(record.raw)
    except ValueError as error:
        return Rejected(record.raw, str(error))
    return record


def _settled(versions: list[Record], *, partial: bool) -> Record:
    if len(versions) == 1:
        return versions[0]
    ordered = _in_order(versions)
    if not partial:
        return ordered[-1]
    members: dict[str, Any] = {}  # of all of them, written once: after each it would be by their number, squared
    for part in ordered:
        members |= _members(part.raw)
    return with_bytes(ordered[-1], _encode(members))


def _in_order(versions: list[Record]) -> list[Record]:
    """The versions in order of modification; those without a time keep their places."""
    dated = iter(
        sorted((datetime.fromisoformat(one.modified), place) for place, one in enumerate(versions) if one.modified)
    )
    return [versions[next(dated)[1]] if one.modified else one for one in versions]


class RecordShape(msgspec.Struct, frozen=True):
    """The requested fields, now and before.

    Attributes:
        asked: the requested keys; None: all.
        before: the keys that were requested before, if others are requested now; None: all, or the same.
    """

    asked: frozenset[str] | None
    before: frozenset[str] | None

    def counted(self, known: Any, received: Any) -> tuple[Any, Any]:
        """The parts of a known and a received record that are compared; parsed values."""
        if not (isinstance(known, dict) and isinstance(received, dict)):
            return known, received
        asked, before = self.asked, self.before
        if asked is not None:
            known = {key: value for key, value in known.items() if key in received or key in asked}
        if before is not None:
            received = {key: value for key, value in received.items() if key in known or key in before}
        return known, received


def shape_of(before: tuple[str, ...] | None, now: tuple[str, ...]) -> RecordShape | None:
    """The shape for these requested fields; None: all fields count.

    Args:
        before: the fields requested before; empty: all, None: unknown.
        now: the fields requested now; empty: all.
    """
    differs = bool(before) and before is not None and set(before) != set(now)
    if not now and not differs:
        return None
    return RecordShape(frozenset(now) if now else None, frozenset(before) if differs and before else None)
