"""The stored form of snapshots, compressed because each record of the API has one.

Records of one feed look alike, so a snapshot leaves out what a dictionary of the feed says of all. The dictionary holds
no value of a record: it has the layouts of the records, and for those without one a dictionary of zstd that is trained
on skeletons (:mod:`poller.store.structure`). Of a record of 265 bytes 50 are stored. The dictionary is kept in Redis
beside the snapshots and written in the same commit as the first snapshots that need it; snapshots written before it
existed stay readable. It is made as soon as :data:`SAMPLES` records went by, and again when the records of the API have
changed so much that a new one saves a fifth (:mod:`poller.store.upkeep`).

A dictionary is known by its number. Those of earlier versions have no layouts; number 1 is trained on records and holds
values of theirs, all others hold structure alone (:data:`STRUCTURAL`). Empty bytes stand for a dictionary that is used
no more: the count of dictionaries never falls, so a process that knows only that one can write nothing.

There are three forms; the flags of a snapshot say which one it has.

======  ============================================================================================================
first   one byte of flags, two varints (revision, sequence), one byte with the number of the compression dictionary
        where the flags name one, then the record; the field's name is the record's key
second  the same with four bytes more before the number (the time of the last change, seconds), one varint behind it
        where the record is stored without its id (its place), and a seal of 12 bytes at the end; the field's name is
        :func:`name_of` the record's key, which gives the id back
third   the same, or in place of the record one byte with the number of its layout and its values
======  ============================================================================================================

The seal is a digest of the record as it was received and of all that stands before the seal. So it tells whether a
received record is the stored one, and whether the stored bytes are whole, before anything is decompressed.

What a feed holds is in its state (:data:`poller.store.feed_state.FORMS`). It gets a later form once each process says
that it reads that, also those that have fallen silent a short time ago (:mod:`poller.store.members`), and keeps it.
Earlier versions refuse a feed that holds it.

**Invariants**

- A record stands in the hash once: a snapshot that is written in a later form deletes that of the first form.
- No snapshot is written in an earlier form than the feed has.
- Each write checks that the forms are those that its process knows: a store may go back to before a conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, repeat, zip_longest
from typing import Any, Final, cast

import msgspec
import zstandard
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.full_readings import HeldVersion
from poller.changes.layouts import AlikeRecords, Layout
from poller.changes.records import are_uuids, uuid_text, uuid_values
from poller.redis.errors import translated
from poller.store.structure import MOST_LAYOUTS, Structure, layouts, share_with_layout, skeletons

SAMPLES: Final = 64
FIRST_LOOK: Final = 16
"""Snapshots that tell whether more have to be looked at."""
STRUCTURAL: Final = 2
"""The lowest number of a dictionary that holds no value of a record."""

_SAMPLE_BYTES: Final = 4096  # of one record; longer ones are represented by their beginning
_DICTIONARY_BYTES: Final = 2048
_VARIANTS: Final = 2  # skeletons of each sample: a training wants many
_LEVEL: Final = 2  # in four fifths of the time of the third, with records of an API as small
_WARM: Final = 64
_TOGETHER: Final = 8  # snapshots; for fewer it does not pay
_WORTHWHILE: Final = 0.8  # of its bytes: what a snapshot may take with a new dictionary, on average
_SAMPLED: Final = 80  # snapshots: more than a training needs, for some may be unreadable
_SCANNED: Final = 100  # times as many: those of removed records may be more than the others
_HIGHEST: Final = 255  # number of a dictionary: it takes one byte

FORM: Final = 3
"""The latest form of snapshots that this version reads."""
SEALED: Final = 2
"""The first one with seals."""
_LAID_OUT: Final = 3  # the first one with layouts

_REMOVED: Final = 1
_COMPRESSED: Final = 2
_DICTIONARY: Final = 4
_MISSING: Final = 8
_SEAL: Final = 16  # the second and the third form
_WITHOUT_ID: Final = 32
_VALUES: Final = 64  # the third form
_KNOWN_FLAGS: Final = _REMOVED | _COMPRESSED | _DICTIONARY | _MISSING | _SEAL | _WITHOUT_ID | _VALUES
_LIVE: Final = frozenset(
    bytes((flags,)) for flags in range(_KNOWN_FLAGS + 1) if flags & (_REMOVED | _MISSING | _SEAL) == _SEAL
)
_SEAL_BYTES: Final = 12
_DIGEST: Final = blake2b(digest_size=_SEAL_BYTES)
_TIME_BYTES: Final = 4

_ONE_BYTE: Final = range(0x80)
_SMALL: Final = tuple(bytes((number,)) for number in _ONE_BYTE)
_CONTINUED: Final = tuple(bytes((number | 0x80,)) for number in _ONE_BYTE)  # the first byte of a longer number

_UUID_BYTES: Final = 16
_UUID_CHARACTERS: Final = 36
_UUID_NAME: Final = b"\x02"  # before the bytes of a UUID; no key begins with it, for an id has no control characters

_FRAME: Final = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=1, write_dict_id=0, write_checksum=0
)


class UnknownDictionary(LookupError):
    """A snapshot names a compression dictionary that this codec has not been given. ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"compression dictionary {number} is unknown")
        self.number = number


class SnapshotHead(msgspec.Struct, frozen=True):
    """What stands before the record in a snapshot, read without a dictionary.

    Attributes:
        revision: of the record.
        removed: whether it is a tombstone.
        is_empty: whether nothing of the record follows.
        is_sealed: whether it has a seal: it is not of the first form.
        sequence: of the last event, or of the erasure that has written it; 0: it cannot be read.
    """

    revision: int
    removed: bool
    is_empty: bool
    is_sealed: bool
    sequence: int = 0

    @classmethod
    def of(cls, stored: bytes, *, sequence: int) -> SnapshotHead:
        """The head of a snapshot. One that cannot be read has the feed's ``sequence`` as its revision."""
        try:
            flags = stored[0]
            revision, at = _read_varint(stored, 1)
            changed, at = _read_varint(stored, at)
        except IndexError:
            return cls(sequence, removed=False, is_empty=False, is_sealed=True)
        is_sealed = bool(flags & _SEAL)
        rest = len(stored) - at - (_TIME_BYTES + _SEAL_BYTES if is_sealed else 0)
        return cls(min(revision, sequence), bool(flags & _REMOVED), rest <= 0, is_sealed, changed)


class SnapshotCodec:
    """Snapshots to bytes and back, with the dictionaries of one feed. All codecs are one thread's: they share much."""

    def __init__(self, dictionaries: Mapping[int, bytes] | None = None, *, form: int = FORM) -> None:
        """Take the dictionaries kept so far, by number; the highest is used for writing, in this form.

        Raises:
            ValueError: one of them is damaged, or a later version has written it.
        """
        self._form = form
        self._contents: dict[int, bytes] = {}
        self._dictionaries: dict[int, Structure] = {}
        self._newest: int | None = None
        self._samples: list[_Sample] = []
        self._trainable = True
        for number, dictionary in sorted((dictionaries or {}).items()):
            self.add(number, dictionary)

    @property
    def dictionaries(self) -> int:
        """How many dictionaries are known, those included that are used no more."""
        return len(self._contents)

    @property
    def outdated(self) -> tuple[int, ...]:
        """The dictionaries whose snapshots are to be packed again.

        There is a newer one, they hold values of records, or a version without layouts made them.
        """
        return tuple(
            number
            for number, content in self._contents.items()
            if content and (number != self._newest or self._is_outdated(number))
        )

    @property
    def is_current(self) -> bool:
        """Whether it writes with a dictionary of the latest kind, or with none."""
        return self._newest is None or not self._is_outdated(self._newest)

    def _is_outdated(self, number: int) -> bool:
        return number < STRUCTURAL or (self._form >= _LAID_OUT and not Structure.has_layouts(self._contents[number]))

    def add(self, number: int, dictionary: bytes) -> None:
        """Know one more dictionary, and write with it from now on if it is the newest. Empty: it is used no more.

        Raises:
            ValueError: it is damaged, or a later version has written it.
        """
        self._contents[number], self._dictionaries[number] = dictionary, Structure.of(dictionary)
        newest = max(self._contents)
        self._newest = newest if self._contents[newest] else None

    @property
    def layout(self) -> Layout | None:
        """The layout that it tries first; None: it has none."""
        return next(iter(self._structure.layouts), None) if self._form >= _LAID_OUT else None

    @property
    def is_settled(self) -> bool:
        """Whether it will write with the dictionary that it has, or with none, from now on."""
        return self._newest is not None or not self._trainable

    def train(self, records: Iterable[bytes], keys: Iterable[str] = ()) -> tuple[int, bytes] | None:
        """A dictionary (number, bytes) once enough records went by and none exists; it is not added yet.

        Args:
            records: as received.
            keys: of each; none at all: they are stored with their ids.
        """
        if self.is_settled:
            return None
        for raw, key in zip_longest(records, keys, fillvalue=""):
            if len(self._samples) >= SAMPLES:
                break
            self._samples.append(_sample(key, cast("bytes", raw)))
        if len(self._samples) < SAMPLES:
            return None
        samples, self._samples, self._trainable = self._samples, [], False
        dictionary = self._trained(samples)
        return None if dictionary is None else (self._next, dictionary)

    @property
    def _next(self) -> int:
        """The number of the next dictionary."""
        return max((*self._contents, STRUCTURAL - 1)) + 1

    def successor(self, snapshots: Mapping[str, Snapshot]) -> tuple[int, bytes]:
        """A dictionary (number, bytes) in place of an outdated one, trained on these; it is not added yet.

        Its bytes are empty where the records are too few, or too small: then snapshots are written without one, until
        enough records went by.
        """
        samples = [_sample(key, one.raw) for key, one in snapshots.items() if one.raw][:SAMPLES]
        return self._next, (self._trained(samples) if len(samples) == SAMPLES else None) or b""

    def improvement(self, snapshots: Mapping[str, Snapshot]) -> tuple[int, bytes] | None:
        """A dictionary (number, bytes) with which these snapshots take a fifth less on average; it is not added yet.

        It has the layouts of the present one as well, so that an API may go back to what it sent before. None: no
        dictionary saves as much, or there are too few records to train one.
        """
        if self._newest is None or self._form < _LAID_OUT or self._next > _HIGHEST:
            return None
        usual = {key: one for key, one in snapshots.items() if len(one.raw) <= _SAMPLE_BYTES}
        first = [(one.raw, former_name(key)) for key, one in usual.items()][:FIRST_LOOK]
        if 2 * len(usual) < SAMPLES or self._lays_out_most(first) or 2 * share_with_layout(first) < 1:
            return None
        number, dictionary = self.successor(snapshots)
        if not dictionary:
            return None
        other = SnapshotCodec({number: dictionary}, form=self._form)
        sizes = zip(map(len, other.encode_all(usual)), map(len, self.encode_all(usual)), strict=True)
        share = sum(later / present for later, present in sizes) / len(usual)
        return (number, dictionary) if share <= _WORTHWHILE else None

    def _lays_out_most(self, records: Sequence[tuple[bytes, bytes | None]]) -> bool:
        """Whether the present dictionary has a layout for most of these, however they are stored now.

        Those written before there was a dictionary are stored without a layout, but the records have not changed.
        """
        packed = self._structure.pack([raw for raw, _ in records], [name for _, name in records])
        return 2 * sum(one is not None for one in packed) >= len(records)

    def train_with(self, snapshots: Mapping[str, Snapshot]) -> tuple[int, bytes] | None:
        """As :meth:`train`, with the records of these."""
        return self.train((one.raw for one in snapshots.values()), snapshots)

    def _trained(self, samples: Sequence[_Sample]) -> bytes | None:
        """A dictionary for the form that it writes; None: these records are too small, or too much alike, to need one.

        A layout is kept only where it is smaller than compression of its samples.
        """
        bodies = [one.body if self._form >= SEALED else one.raw for one in samples]
        dictionary = _trained(bodies)
        if self._form < _LAID_OUT:
            return dictionary
        found, packed = layouts([(one.raw, one.name) for one in samples]), [len(body) for body in bodies]
        if dictionary is not None:
            packed = [len(_compressor(dictionary).compress(body)) for body in bodies]
        saved = [0] * len(found)
        for one, size in zip(
            Structure(tuple(found)).pack([one.raw for one in samples], [one.name for one in samples]),
            packed,
            strict=True,
        ):
            if one is not None:
                saved[one[0]] += size - (len(one) - 1)
        kept = [layout for layout, bytes_saved in zip(found, saved, strict=True) if bytes_saved >= 0]
        kept += [layout for layout in self._structure.layouts if layout not in kept][: MOST_LAYOUTS - len(kept)]
        return Structure(tuple(kept), dictionary or b"").encode() if kept or dictionary else None

    def encode(self, key: str, snapshot: Snapshot) -> bytes:
        """The stored form of a record's snapshot."""
        return self.encode_all({key: snapshot})[0]

    def encode_all(self, snapshots: Mapping[str, Snapshot], alike: AlikeRecords | None = None) -> list[bytes]:
        """The stored forms of snapshots, by their records' keys, in this order; they are packed together.

        Args:
            snapshots: what is stored.
            alike: their records by columns, if that is known.
        """
        raws, has_layouts = [one.raw for one in snapshots.values()], self.layout is not None
        values: Sequence[bytes | None] | None = self._structure.pack_alike(alike) if alike and has_layouts else None
        names = _uuids(snapshots) if values is None else ()
        if not has_layouts:
            return list(self._joined(snapshots.values(), self._compressed(names, raws)))
        if values is None:
            values = self._structure.pack(raws, names)
        contents: Iterable[Any] = zip(repeat(_VALUES | _DICTIONARY), repeat(bytes((self._newest or 0,))), values)
        if None in values:
            others = [place for place, one in enumerate(values) if one is None]
            compressed = self._compressed([names[place] for place in others], [raws[place] for place in others])
            contents = list(contents)
            for place, one in zip(others, compressed, strict=True):
                contents[place] = one
        return list(self._joined(snapshots.values(), contents))

    def _compressed(self, names: Sequence[bytes | None], raws: Sequence[bytes]) -> Iterator[_Content]:
        """What is stored of records without a layout, compressed where that is smaller."""
        places, bodies = self._bodies(names, raws)
        compressor: Any = _compressor(self._structure.dictionary)  # whose types leave out lists
        if len(bodies) < _TOGETHER or not any(bodies):  # zstandard refuses to compress nothing
            packed = [compressor.compress(body) for body in bodies]
        else:
            packed = [one.tobytes() for one in compressor.multi_compress_to_buffer(bodies, threads=1)]
        number = bytes((self._newest or 0,)) if self._structure.dictionary else b""
        small = _COMPRESSED | (_DICTIONARY if number else 0)
        at, placed = -1, b""  # in the records of a page the id is mostly at the same place
        for place, body, one in zip(places, bodies, packed, strict=True):
            if place != at and place >= 0:
                at, placed = place, _varint(place)
            flags, before, behind = (small, number, one) if len(one) < len(body) else (0, b"", body)
            yield (flags, before, behind) if place < 0 else (flags | _WITHOUT_ID, before + placed, behind)

    @property
    def _structure(self) -> Structure:
        """That of the dictionary to write with."""
        return _NONE if self._newest is None else self._dictionaries[self._newest]

    def _bodies(self, names: Sequence[bytes | None], raws: Sequence[bytes]) -> tuple[list[int], Sequence[bytes]]:
        """Where the id is missing in what is stored of each record (-1: nowhere), and what is stored of it."""
        if self._form < SEALED:
            return [-1] * len(raws), raws
        places: list[int] = []
        bodies: list[bytes] = []
        place = 0
        for raw, name in zip(raws, names, strict=True):
            if name is None:
                place = -1
            elif not raw.startswith(name, place):  # in the records of a page the id is mostly at the same place
                place = raw.find(name)
            places.append(place)
            if place < 0:
                bodies.append(raw)
                place = 0
            else:
                bodies.append(raw[:place] + raw[place + _UUID_CHARACTERS :])
        return places, bodies

    def _joined(self, snapshots: Iterable[Snapshot], contents: Iterable[_Content]) -> Iterator[bytes]:
        """The stored forms, with these contents."""
        is_sealing, new = self._form >= SEALED, _DIGEST.copy
        high, higher = 0, b""  # of the sequence number: that of the next snapshot is mostly the next number
        moment, kind, above, before, behind = -1, -1, b"", b"", b""  # it is mostly the same as of the one before
        for snapshot, (flags, infix, content) in zip(snapshots, contents, strict=True):
            if snapshot.removed or snapshot.missing:
                flags |= (_REMOVED if snapshot.removed else 0) | (_MISSING if snapshot.missing else 0)  # noqa: PLW2901
            if infix != above or snapshot.changed_at != moment or snapshot.revision << 8 | flags != kind:
                above, moment, kind = infix, snapshot.changed_at, snapshot.revision << 8 | flags
                before, behind = self._around(snapshot, flags, infix)
            sequence = snapshot.sequence
            if sequence >> 7 != high:
                high, higher = sequence >> 7, _varint(sequence >> 7)
            number = _CONTINUED[sequence & 0x7F] + higher if high else _SMALL[sequence]
            stored = before + number + behind + content
            if not is_sealing:
                yield stored
                continue
            digest = new()  # cheaper than a new one
            digest.update(snapshot.raw + stored)
            yield stored + digest.digest()

    def _around(self, snapshot: Snapshot, flags: int, infix: bytes) -> tuple[bytes, bytes]:
        """What stands before and behind the sequence number of a snapshot with these flags, up to its content."""
        if self._form < SEALED:
            return _SMALL[flags] + _varint(snapshot.revision), infix
        time = snapshot.changed_at.to_bytes(_TIME_BYTES, "big")
        return _SMALL[flags | _SEAL] + _varint(snapshot.revision), time + infix

    @staticmethod
    def removed(stored: bytes) -> bool:
        """Whether these bytes are a tombstone; much cheaper than reading them."""
        return bool(stored[:1]) and bool(stored[0] & _REMOVED)

    @staticmethod
    def has_layout(stored: bytes) -> bool:
        """Whether the values of the record alone are stored; much cheaper than reading them."""
        return bool(stored[:1]) and bool(stored[0] & _VALUES)

    @classmethod
    def share_laid_out(cls, stored: Mapping[str, bytes]) -> float:
        """The share of these snapshots of which the values alone are stored; 1 where there are none."""
        return sum(map(cls.has_layout, stored.values())) / len(stored) if stored else 1.0

    @staticmethod
    def dictionary_of(stored: bytes) -> int | None:
        """The number of the dictionary that a snapshot names; None: it names none, or is none."""
        with suppress(IndexError):
            if stored[0] & _DICTIONARY:
                at = _read_varint(stored, _read_varint(stored, 1)[1])[1]
                return stored[at + _TIME_BYTES if stored[0] & _SEAL else at]
        return None

    @staticmethod
    def unreadable(stored: bytes, reason: str, *, sequence: int) -> Snapshot:
        """What stands for bytes that are no snapshot; its revision and flags are read if they can be.

        Where they cannot, the revision is the feed's ``sequence``: no record has had a higher one, so the next event
        of this one has a revision that no event of it has had.
        """
        try:
            flags = stored[0]
            revision, at = _read_varint(stored, 1)
            last, _ = _read_varint(stored, at)
        except IndexError:
            flags = revision = last = sequence + 1
        if flags > _KNOWN_FLAGS or max(revision, last) > sequence:
            return Snapshot(sequence, 0, stored, unreadable=reason)
        return Snapshot(revision, last, stored, bool(flags & _REMOVED), unreadable=reason)

    def decode(self, key: str, stored: bytes) -> Snapshot:
        """The snapshot of a record from its stored form.

        Raises:
            UnknownDictionary: its dictionary must be added first.
            ValueError: these bytes are no snapshot of this version.
        """
        flags = stored[0]
        revision, at = _read_varint(stored, 1)
        sequence, at = _read_varint(stored, at)
        if not flags & _SEAL:
            raw = self._unpacked(stored[at:], flags)
            return Snapshot(revision, sequence, raw, bool(flags & _REMOVED), bool(flags & _MISSING))
        changed_at, at = int.from_bytes(stored[at : at + _TIME_BYTES], "big"), at + _TIME_BYTES
        packed = stored[at:-_SEAL_BYTES]
        if flags & _VALUES:
            raw = self._known(packed[0]).unpack(packed[1:], key)
        else:
            raw = self._with_id(key, packed, flags) if flags & _WITHOUT_ID else self._unpacked(packed, flags)
        if _seal(raw + stored[:-_SEAL_BYTES]) != stored[-_SEAL_BYTES:]:
            raise ValueError("not a snapshot: its seal is broken")
        return Snapshot(revision, sequence, raw, bool(flags & _REMOVED), bool(flags & _MISSING), changed_at=changed_at)

    def readable(self, stored: Mapping[str, bytes]) -> dict[str, Snapshot]:
        """The snapshots among these that can be read, as long as they need no more than :data:`UNPACKED`."""
        found, room = dict[str, Snapshot](), UNPACKED
        for key, one in stored.items():
            with suppress(UnknownDictionary, ValueError, IndexError):
                found[key] = self.decode(key, one)
                room -= len(found[key].raw)
            if room <= 0:
                break
        return found

    def _with_id(self, key: str, packed: bytes, flags: int) -> bytes:
        number = packed[:1] if flags & _DICTIONARY else b""
        place, at = _read_varint(packed, len(number))
        body = self._unpacked(number + packed[at:], flags)
        return b"%b%b%b" % (body[:place], key.encode(), body[place:])

    def _unpacked(self, packed: bytes, flags: int) -> bytes:
        return self._decompress(packed, dictionary=bool(flags & _DICTIONARY)) if flags & _COMPRESSED else packed

    def _decompress(self, packed: bytes, *, dictionary: bool) -> bytes:
        known, frame = b"", packed
        if dictionary:
            known, frame = self._known(packed[0]).dictionary, packed[1:]
        try:
            return _decompressor(known).decompress(frame)
        except (zstandard.ZstdError, MemoryError) as error:  # a damaged frame may ask for any size
            raise ValueError(f"not a snapshot: {error}") from None

    def _known(self, number: int) -> Structure:
        if number not in self._dictionaries:
            raise UnknownDictionary(number)
        return self._dictionaries[number]


_NONE: Final = Structure()
_Content = tuple[int, bytes, bytes]
"""Flags, what stands before the record (the number of a dictionary, and so on), what is stored of the record."""


class _Sample(msgspec.Struct, frozen=True):
    """A record to train on: itself, or the beginning of a long one, and its key where that is a UUID."""

    raw: bytes
    name: bytes | None

    @property
    def body(self) -> bytes:
        """What is left without the id."""
        return self.raw if self.name is None else self.raw.replace(self.name, b"", 1)


def _sample(key: str, raw: bytes) -> _Sample:
    return _Sample(bytes(raw[:_SAMPLE_BYTES]), former_name(key))


async def sampled(client: Redis, name: str, *, most: int = _SAMPLED) -> dict[str, bytes]:
    """Some live snapshots of a feed, as stored, by their records' keys; who asks again gets the same ones.

    Args:
        client: of the store.
        name: of the hash with the snapshots.
        most: how many, unless the feed has fewer.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    cursor, found = 0, dict[str, bytes]()
    for _ in range(_SCANNED):
        with translated(client):
            cursor, some = await client.hscan(name, cursor, count=min(most, SAMPLES))
        for field, stored in cast("dict[bytes, bytes]", some).items():
            if not SnapshotCodec.removed(stored) and len(found) < most:
                with suppress(UnicodeDecodeError):  # no process of this program has written it
                    found[key_of(field)] = stored
        if len(found) == most or not cursor:
            break
    return found


def name_of(key: str) -> bytes:
    """The field of a record in the later forms: a UUID takes 17 bytes instead of 36."""
    return _UUID_NAME + uuid_values(key)[0] if are_uuids(key) else key.encode()


def names_of(keys: Sequence[str]) -> list[bytes]:
    """As :func:`name_of` of each."""
    lines = "\n".join(keys)
    if not are_uuids(lines):
        return list(map(name_of, keys))
    return [_UUID_NAME + value for value in uuid_values(lines)]


def key_of(name: bytes) -> str:
    """The key of a record by its field, in both forms."""
    if name[:1] != _UUID_NAME or len(name) != _UUID_BYTES + 1:
        return name.decode()
    return uuid_text(name[1:])


def former_name(key: str) -> bytes | None:
    """The field of a record in the first form, where that is another one."""
    return key.encode() if are_uuids(key) else None


def is_former(name: bytes, stored: bytes) -> bool:
    """Whether a field is of the first form: its name or what it holds."""
    return not stored[:1] or not stored[0] & _SEAL or name_of(key_of(name)) != name


def are_stored(raws: Sequence[bytes], stored: Sequence[bytes | None]) -> list[bool]:
    """Whether each of these records is as it is stored, decided on seals; False also: only :meth:`decode` can tell.

    A record that is removed or marked as missing is not.
    """
    same: list[bool] = []
    for raw, one in zip(raws, stored, strict=True):
        if one is None or one[:1] not in _LIVE:
            same.append(False)
            continue
        digest = _DIGEST.copy()  # cheaper than a new one
        digest.update(raw + one[:-_SEAL_BYTES])
        same.append(digest.digest() == one[-_SEAL_BYTES:])
    return same


def _seal(sealed: bytes) -> bytes:
    """The seal of a snapshot: of the record as received, and of all that is stored before the seal."""
    digest = _DIGEST.copy()
    digest.update(sealed)
    return digest.digest()


def _uuids(keys: Iterable[str]) -> Sequence[bytes | None]:
    """Those of these keys that are UUIDs, as they stand in a record; None for the others."""
    lines = "\n".join(keys)
    return lines.encode().split(b"\n") if are_uuids(lines) else list(map(former_name, keys))


UNPACKED: Final = 32 * 1024 * 1024
"""Bytes of records that one reading of snapshots unpacks: 8 MB of a record may be packed into some hundred bytes."""


class PackedSnapshots(Mapping[str, Snapshot]):
    """Snapshots by key, of which some are unpacked whenever they are asked for."""

    def __init__(
        self, unpacked: Mapping[str, Snapshot], packed: Mapping[str, bytes], unpack: Callable[[str, bytes], Snapshot]
    ) -> None:
        """Join the two; ``unpack`` raises nothing."""
        self._unpacked = unpacked
        self._packed = packed
        self._unpack = unpack

    def __getitem__(self, key: str) -> Snapshot:
        """The snapshot of a key."""
        return self._unpacked[key] if key in self._unpacked else self._unpack(key, self._packed[key])

    def __contains__(self, key: object) -> bool:
        """Whether there is one; nothing is unpacked."""
        return key in self._unpacked or key in self._packed

    def __iter__(self) -> Iterator[str]:
        """Their keys."""
        return chain(self._unpacked, self._packed)

    def __len__(self) -> int:
        """Their number."""
        return len(self._unpacked) + len(self._packed)


def _trained(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary of the structure of these records; None: they are too small, or too much alike, to need one."""
    made_up = skeletons(samples, variants=_VARIANTS)
    try:
        return zstandard.train_dictionary(_DICTIONARY_BYTES, made_up, level=_LEVEL).as_bytes()  # type: ignore[arg-type]
    except zstandard.ZstdError:
        return None


# What zstd needs to work with a dictionary is some 250 KiB, and 100 KiB without one. A process may have thousands of
# feeds of which few change at any time: what is needed lately is kept, and made again (20 µs) where it is not there.
@lru_cache(maxsize=_WARM)
def _compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    if known is not None:
        known.precompute_compress(compression_params=_FRAME)  # or each list of records would do it
    return zstandard.ZstdCompressor(dict_data=known, compression_params=_FRAME)


@lru_cache(maxsize=_WARM)
def _decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdDecompressor(dict_data=known, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


def _varint(number: int) -> bytes:
    if number < 0x80:  # noqa: PLR2004 -- seven bits a byte, the eighth says that more follow
        return _SMALL[number]
    if number < 0x4000:  # noqa: PLR2004 -- two bytes, which most sequence numbers of a feed need
        return bytes((number & 0x7F | 0x80, number >> 7))
    return bytes((number & 0x7F | 0x80,)) + _varint(number >> 7)


def _read_varint(stored: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = stored[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:  # noqa: PLR2004 -- as above
            return number, at
        shift += 7


# Versions that are held back, as they are kept: one field of the feed's hash for each, by its record's key.

_decode: Final = msgspec.msgpack.Decoder(HeldVersion).decode
encode_held: Final = msgspec.msgpack.Encoder().encode


async def kept_versions(client: Redis, key: str) -> dict[str, HeldVersion]:
    """All that a feed holds back, by record key. What another version wrote is held back as if it were seen first.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(key))
    return {name.decode(): _held(value) for name, value in found.items()}


def _held(value: bytes) -> HeldVersion:
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return HeldVersion(b"")
