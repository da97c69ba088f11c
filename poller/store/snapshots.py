"""The stored form of snapshots, compressed because each record of the API has one.

Records of one feed look alike, so a dictionary of their structure (zstd, 2 KiB) brings a record of 280 bytes to about
100. It is trained on skeletons (:mod:`poller.store.skeletons`) and holds no value of a record. The dictionary is kept
in Redis beside the snapshots and written in the same commit as the first snapshots that need it; snapshots written
before it existed stay readable. Training is deterministic and done once for a feed, as soon as :data:`SAMPLES` records
went by.

A dictionary is known by its number. Number 1 is an earlier version's, trained on records, and holds values of theirs;
all others hold structure alone (:data:`STRUCTURAL`). Empty bytes stand for a dictionary that is used no more: the count
of dictionaries never falls, so a process that knows only that one can write nothing.

There are two forms; the flags of a snapshot say which one it has.

======  ============================================================================================================
first   one byte of flags, two varints (revision, sequence), one byte with the number of the compression dictionary
        where the flags name one, then the record; the field's name is the record's key
second  the same with four bytes more before the number (the time of the last change, seconds), one varint behind it
        where the record is stored without its id (its place), and a seal of 12 bytes at the end; the field's name is
        :func:`name_of` the record's key, which gives the id back
======  ============================================================================================================

The seal is a digest of the record as it was received and of all that stands before the seal. So it tells whether a
received record is the stored one, and whether the stored bytes are whole, before anything is decompressed.

A feed holds the first form, both, or the second (:data:`poller.store.feed_state.FORMS`). It gets the second once each
live process says that it reads that, and keeps it. Earlier versions refuse a feed that holds it.

**Invariants**

- A record stands in the hash once: a snapshot that is written in the second form deletes that of the first form.
- No snapshot is written in the first form where the second one stands.
- Each write checks that the forms are those that its process knows: a store may go back to before a conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, cast

import msgspec
import zstandard
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.held_versions import HeldVersion
from poller.changes.records import are_uuids
from poller.redis.errors import translated
from poller.store.skeletons import skeletons

SAMPLES: Final = 64
STRUCTURAL: Final = 2
"""The lowest number of a dictionary that holds no value of a record."""

_SAMPLE_BYTES: Final = 4096  # of one record; longer ones are represented by their beginning
_DICTIONARY_BYTES: Final = 2048
_VARIANTS: Final = 2  # skeletons of each sample: a training wants many
_LEVEL: Final = 2  # in four fifths of the time of the third, with records of an API as small
_WARM: Final = 64
_TOGETHER: Final = 8  # snapshots; for fewer it does not pay

FORM: Final = 2
"""The latest form of snapshots that this version reads."""

_REMOVED: Final = 1
_COMPRESSED: Final = 2
_DICTIONARY: Final = 4
_MISSING: Final = 8
_SEALED: Final = 16  # the second form
_WITHOUT_ID: Final = 32
_KNOWN_FLAGS: Final = _REMOVED | _COMPRESSED | _DICTIONARY | _MISSING | _SEALED | _WITHOUT_ID
_LIVE: Final = frozenset(
    bytes((flags,)) for flags in range(_KNOWN_FLAGS + 1) if flags & (_REMOVED | _MISSING | _SEALED) == _SEALED
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
        is_sealed: whether it is of the second form.
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
        is_sealed = bool(flags & _SEALED)
        rest = len(stored) - at - (_TIME_BYTES + _SEAL_BYTES if is_sealed else 0)
        return cls(min(revision, sequence), bool(flags & _REMOVED), rest <= 0, is_sealed, changed)


class SnapshotCodec:
    """Snapshots to bytes and back, with the dictionaries of one feed. All codecs are one thread's: they share much."""

    def __init__(self, dictionaries: Mapping[int, bytes] | None = None, *, form: int = FORM) -> None:
        """Take the dictionaries kept so far, by number; the highest is used for writing, in this form."""
        self._is_sealing = form == FORM
        self._dictionaries: dict[int, bytes] = {}
        self._newest: int | None = None
        self._samples: list[bytes | bytearray | memoryview] = []
        self._trainable = True
        for number, dictionary in sorted((dictionaries or {}).items()):
            self.add(number, dictionary)

    @property
    def dictionaries(self) -> int:
        """How many dictionaries are known, those included that are used no more."""
        return len(self._dictionaries)

    @property
    def outdated(self) -> tuple[int, ...]:
        """The dictionaries that were trained on records and hold values of theirs, as long as they are in use."""
        return tuple(number for number, content in self._dictionaries.items() if number < STRUCTURAL and content)

    @property
    def is_structural(self) -> bool:
        """Whether it writes with a dictionary that holds no value of a record, or with none."""
        return self._newest is None or self._newest >= STRUCTURAL

    def add(self, number: int, dictionary: bytes) -> None:
        """Know one more dictionary, and write with it from now on if it is the newest. Empty: it is used no more."""
        self._dictionaries[number] = dictionary
        newest = max(self._dictionaries)
        self._newest = newest if self._dictionaries[newest] else None

    @property
    def is_settled(self) -> bool:
        """Whether it will write with the dictionary that it has, or with none, from now on."""
        return self._newest is not None or not self._trainable

    def train(self, records: Iterable[bytes]) -> tuple[int, bytes] | None:
        """A dictionary (number, bytes) once enough records went by and none exists; it is not added yet."""
        if self._newest is not None or not self._trainable:
            return None
        for raw in records:
            if len(self._samples) >= SAMPLES:
                break
            self._samples.append(raw[:_SAMPLE_BYTES])
        if len(self._samples) < SAMPLES:
            return None
        samples, self._samples, self._trainable = self._samples, [], False
        dictionary = _trained(samples)
        return None if dictionary is None else (self._next, dictionary)

    @property
    def _next(self) -> int:
        """The number of the next dictionary."""
        return max((*self._dictionaries, STRUCTURAL - 1)) + 1

    def successor(self, snapshots: Mapping[str, Snapshot]) -> tuple[int, bytes]:
        """A dictionary (number, bytes) in place of one that holds values, trained on these; it is not added yet.

        Its bytes are empty where the records are too few, or too small: then snapshots are written without one, until
        enough records went by.
        """
        bodies = self._bodies(snapshots, [one.raw for one in snapshots.values()])[1]
        samples = [body[:_SAMPLE_BYTES] for body in bodies if body][:SAMPLES]
        return self._next, (_trained(samples) if len(samples) == SAMPLES else None) or b""

    def train_with(self, snapshots: Mapping[str, Snapshot]) -> tuple[int, bytes] | None:
        """As :meth:`train`, with what is to be stored of these records."""
        if self.is_settled:
            return None
        return self.train(self._bodies(snapshots, [one.raw for one in snapshots.values()])[1])

    def encode(self, key: str, snapshot: Snapshot) -> bytes:
        """The stored form of a record's snapshot."""
        places, bodies = self._bodies([key], [snapshot.raw])
        packed = [_compressor(self._dictionary).compress(body) for body in bodies]
        return next(self._joined([snapshot], places, bodies, packed))

    def encode_all(self, snapshots: Mapping[str, Snapshot]) -> list[bytes]:
        """The stored forms of snapshots, by their records' keys, in this order; they are compressed together."""
        places, bodies = self._bodies(snapshots, [one.raw for one in snapshots.values()])
        if len(bodies) < _TOGETHER or not any(bodies):  # zstandard refuses to compress nothing
            return [self.encode(key, one) for key, one in snapshots.items()]
        compressor: Any = _compressor(self._dictionary)  # whose types leave out lists
        packed = [one.tobytes() for one in compressor.multi_compress_to_buffer(bodies, threads=1)]
        return list(self._joined(snapshots.values(), places, bodies, packed))

    @property
    def _dictionary(self) -> bytes | None:
        """The one to write with."""
        return None if self._newest is None else self._dictionaries[self._newest]

    def _bodies(self, keys: Iterable[str], raws: Sequence[bytes]) -> tuple[list[int], Sequence[bytes]]:
        """Where the id is missing in what is stored of each record (-1: nowhere), and what is stored of it."""
        if not self._is_sealing:
            return [-1] * len(raws), raws
        places: list[int] = []
        bodies: list[bytes] = []
        place = 0
        for raw, name in zip(raws, _uuids(keys), strict=True):
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

    def _joined(
        self, snapshots: Iterable[Snapshot], places: Iterable[int], bodies: Iterable[bytes], packed: Iterable[bytes]
    ) -> Iterator[bytes]:
        """The stored forms, of what is compressed where that is smaller."""
        small = _COMPRESSED | (0 if self._newest is None else _DICTIONARY)
        is_sealing, new = self._is_sealing, _DIGEST.copy
        high, higher = 0, b""  # of the sequence number: that of the next snapshot is mostly the next number
        at, moment, kind, before, behind = -1, -1, -1, b"", b""  # all around it is mostly the same as of the one before
        for snapshot, place, body, one in zip(snapshots, places, bodies, packed, strict=True):
            flags, shorter = (small, one) if len(one) < len(body) else (0, body)
            if snapshot.removed or snapshot.missing:
                flags |= (_REMOVED if snapshot.removed else 0) | (_MISSING if snapshot.missing else 0)
            if place != at or snapshot.changed_at != moment or snapshot.revision << 8 | flags != kind:
                at, moment, kind = place, snapshot.changed_at, snapshot.revision << 8 | flags
                before, behind = self._around(snapshot, place, flags)
            sequence = snapshot.sequence
            if sequence >> 7 != high:
                high, higher = sequence >> 7, _varint(sequence >> 7)
            number = _CONTINUED[sequence & 0x7F] + higher if high else _SMALL[sequence]
            stored = before + number + behind + shorter
            if not is_sealing:
                yield stored
                continue
            digest = new()  # cheaper than a new one
            digest.update(snapshot.raw + stored)
            yield stored + digest.digest()

    def _around(self, snapshot: Snapshot, place: int, flags: int) -> tuple[bytes, bytes]:
        """What stands before and behind the sequence number of a snapshot with these flags."""
        dictionary = bytes((self._newest or 0,)) if flags & _DICTIONARY else b""
        if not self._is_sealing:
            return _SMALL[flags] + _varint(snapshot.revision), dictionary
        time, placed = snapshot.changed_at.to_bytes(_TIME_BYTES, "big"), b""
        if place >= 0:
            flags, placed = flags | _WITHOUT_ID, _varint(place)
        return _SMALL[flags | _SEALED] + _varint(snapshot.revision), time + dictionary + placed

    @staticmethod
    def removed(stored: bytes) -> bool:
        """Whether these bytes are a tombstone; much cheaper than reading them."""
        return bool(stored[:1]) and bool(stored[0] & _REMOVED)

    @staticmethod
    def dictionary_of(stored: bytes) -> int | None:
        """The number of the dictionary that a snapshot names; None: it names none, or is none."""
        with suppress(IndexError):
            if stored[0] & _DICTIONARY:
                at = _read_varint(stored, _read_varint(stored, 1)[1])[1]
                return stored[at + _TIME_BYTES if stored[0] & _SEALED else at]
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
        if not flags & _SEALED:
            raw = self._unpacked(stored[at:], flags)
            return Snapshot(revision, sequence, raw, bool(flags & _REMOVED), bool(flags & _MISSING))
        changed_at, at = int.from_bytes(stored[at : at + _TIME_BYTES], "big"), at + _TIME_BYTES
        packed = stored[at:-_SEAL_BYTES]
        raw = self._with_id(key, packed, flags) if flags & _WITHOUT_ID else self._unpacked(packed, flags)
        if _seal(raw + stored[:-_SEAL_BYTES]) != stored[-_SEAL_BYTES:]:
            raise ValueError("not a snapshot: its seal is broken")
        return Snapshot(revision, sequence, raw, bool(flags & _REMOVED), bool(flags & _MISSING), changed_at=changed_at)

    def _with_id(self, key: str, packed: bytes, flags: int) -> bytes:
        number = packed[:1] if flags & _DICTIONARY else b""
        place, at = _read_varint(packed, len(number))
        body = self._unpacked(number + packed[at:], flags)
        return b"%b%b%b" % (body[:place], key.encode(), body[place:])

    def _unpacked(self, packed: bytes, flags: int) -> bytes:
        return self._decompress(packed, dictionary=bool(flags & _DICTIONARY)) if flags & _COMPRESSED else packed

    def _decompress(self, packed: bytes, *, dictionary: bool) -> bytes:
        known, frame = None, packed
        if dictionary:
            number, frame = packed[0], packed[1:]
            if number not in self._dictionaries:
                raise UnknownDictionary(number)
            known = self._dictionaries[number]
        try:
            return _decompressor(known).decompress(frame)
        except zstandard.ZstdError as error:
            raise ValueError(f"not a snapshot: {error}") from None


def name_of(key: str) -> bytes:
    """The field of a record in the second form: a UUID takes 17 bytes instead of 36."""
    return _UUID_NAME + bytes.fromhex(key.replace("-", "")) if are_uuids(key) else key.encode()


def names_of(keys: Sequence[str]) -> list[bytes]:
    """As :func:`name_of` of each."""
    lines = "\n".join(keys)
    if not are_uuids(lines):
        return list(map(name_of, keys))
    together = bytes.fromhex(lines.replace("-", ""))  # which passes over line breaks
    return [_UUID_NAME + together[at : at + _UUID_BYTES] for at in range(0, len(together), _UUID_BYTES)]


def key_of(name: bytes) -> str:
    """The key of a record by its field, in both forms."""
    if name[:1] != _UUID_NAME or len(name) != _UUID_BYTES + 1:
        return name.decode()
    text = name[1:].hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def former_name(key: str) -> bytes | None:
    """The field of a record in the first form, where that is another one."""
    return key.encode() if are_uuids(key) else None


def is_former(name: bytes, stored: bytes) -> bool:
    """Whether a field is of the first form: its name or what it holds."""
    return not stored[:1] or not stored[0] & _SEALED or name_of(key_of(name)) != name


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


def _trained(samples: Sequence[bytes | bytearray | memoryview]) -> bytes | None:
    """A dictionary of the structure of these records; None: they are too small, or too much alike, to need one."""
    made_up = skeletons([bytes(one) for one in samples], variants=_VARIANTS)
    try:
        return zstandard.train_dictionary(_DICTIONARY_BYTES, made_up, level=_LEVEL).as_bytes()  # type: ignore[arg-type]
    except zstandard.ZstdError:
        return None


# What zstd needs to work with a dictionary is some 250 KiB, and 100 KiB without one. A process may have thousands of
# feeds of which few change at any time: what is needed lately is kept, and made again (20 µs) where it is not there.
@lru_cache(maxsize=_WARM)
def _compressor(dictionary: bytes | None) -> zstandard.ZstdCompressor:
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    if known is not None:
        known.precompute_compress(compression_params=_FRAME)  # or each list of records would do it
    return zstandard.ZstdCompressor(dict_data=known, compression_params=_FRAME)


@lru_cache(maxsize=_WARM)
def _decompressor(dictionary: bytes | None) -> zstandard.ZstdDecompressor:
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
