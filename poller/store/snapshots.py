"""The stored form of snapshots, compressed because each record of the API has one.

Layout: one byte of flags, two varints (revision, sequence), one byte with the number of the compression dictionary
where the flags name one, then the record. Records of one feed look alike, so a dictionary trained on a few of them
(zstd, 4 KiB) brings a record of 280 bytes to about 80. The dictionary is kept in Redis beside the snapshots and written
in the same commit as the first snapshots that need it; snapshots written before it existed stay readable.

Training is deterministic and done once for a feed, as soon as :data:`SAMPLES` records went by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Final, cast

import msgspec
import zstandard
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.held_versions import HeldVersion
from poller.redis.errors import translated

SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096  # of one record; longer ones are represented by their beginning
_DICTIONARY_BYTES: Final = 4096
_LEVEL: Final = 3
_WARM: Final = 64
_TOGETHER: Final = 8  # snapshots; for fewer it does not pay

_REMOVED: Final = 1
_COMPRESSED: Final = 2
_DICTIONARY: Final = 4
_MISSING: Final = 8

_FRAME: Final = zstandard.ZstdCompressionParameters.from_level(
    _LEVEL, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=1, write_dict_id=0, write_checksum=0
)


class UnknownDictionary(LookupError):
    """A snapshot names a compression dictionary that this codec has not been given. ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(f"compression dictionary {number} is unknown")
        self.number = number


class SnapshotCodec:
    """Snapshots to bytes and back, with the dictionaries of one feed. All codecs are one thread's: they share much."""

    def __init__(self, dictionaries: Mapping[int, bytes] | None = None) -> None:
        """Take the dictionaries kept so far, by number; the highest is used for writing."""
        self._dictionaries: dict[int, bytes] = {}
        self._newest: int | None = None
        self._samples: list[bytes | bytearray | memoryview] = []
        self._trainable = True
        for number, dictionary in sorted((dictionaries or {}).items()):
            self.add(number, dictionary)

    @property
    def dictionaries(self) -> int:
        """How many dictionaries are known."""
        return len(self._dictionaries)

    def add(self, number: int, dictionary: bytes) -> None:
        """Know one more dictionary, and write with it from now on if it is the newest."""
        self._dictionaries[number] = dictionary
        self._newest = max(self._dictionaries)

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
        try:
            return 1, zstandard.train_dictionary(_DICTIONARY_BYTES, samples, level=_LEVEL).as_bytes()
        except zstandard.ZstdError:
            return None  # samples too small or too much alike: compression without a dictionary does as well

    def encode(self, snapshot: Snapshot) -> bytes:
        """The stored form of a snapshot."""
        return self._stored(snapshot, _compressor(self._dictionary).compress(snapshot.raw))

    def encode_all(self, snapshots: Collection[Snapshot]) -> list[bytes]:
        """The stored forms of snapshots, which are compressed together."""
        raws = [snapshot.raw for snapshot in snapshots]
        if len(raws) < _TOGETHER or not any(raws):  # zstandard refuses to compress nothing
            return [self.encode(snapshot) for snapshot in snapshots]
        compressor: Any = _compressor(self._dictionary)  # whose types leave out lists
        packed = compressor.multi_compress_to_buffer(raws, threads=1)
        return [self._stored(snapshot, one.tobytes()) for snapshot, one in zip(snapshots, packed, strict=True)]

    @property
    def _dictionary(self) -> bytes | None:
        """The one to write with."""
        return None if self._newest is None else self._dictionaries[self._newest]

    def _stored(self, snapshot: Snapshot, packed: bytes) -> bytes:
        flags = (_REMOVED if snapshot.removed else 0) | (_MISSING if snapshot.missing else 0)
        head = _varint(snapshot.revision) + _varint(snapshot.sequence)
        if len(packed) >= len(snapshot.raw):
            return b"%c%b%b" % (flags, head, snapshot.raw)
        if self._newest is None:
            return b"%c%b%b" % (flags | _COMPRESSED, head, packed)
        return b"%c%b%c%b" % (flags | _COMPRESSED | _DICTIONARY, head, self._newest, packed)

    @staticmethod
    def removed(stored: bytes) -> bool:
        """Whether these bytes are a tombstone; much cheaper than reading them."""
        return bool(stored[:1]) and bool(stored[0] & _REMOVED)

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
        if flags > _REMOVED | _COMPRESSED | _DICTIONARY | _MISSING or max(revision, last) > sequence:
            return Snapshot(sequence, 0, stored, unreadable=reason)
        return Snapshot(revision, last, stored, bool(flags & _REMOVED), unreadable=reason)

    def decode(self, stored: bytes) -> Snapshot:
        """A snapshot from its stored form.

        Raises:
            UnknownDictionary: its dictionary must be added first.
            ValueError: these bytes are no snapshot of this version.
        """
        flags = stored[0]
        revision, at = _read_varint(stored, 1)
        sequence, at = _read_varint(stored, at)
        raw = stored[at:]
        if flags & _COMPRESSED:
            raw = self._decompress(raw, dictionary=bool(flags & _DICTIONARY))
        return Snapshot(revision, sequence, raw, bool(flags & _REMOVED), bool(flags & _MISSING))

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


UNPACKED: Final = 32 * 1024 * 1024
"""Bytes of records that one reading of snapshots unpacks: 8 MB of a record may be packed into some hundred bytes."""


class PackedSnapshots(Mapping[str, Snapshot]):
    """Snapshots by key, of which some are unpacked whenever they are asked for."""

    def __init__(
        self, unpacked: Mapping[str, Snapshot], packed: Mapping[str, bytes], unpack: Callable[[bytes], Snapshot]
    ) -> None:
        """Join the two; ``unpack`` raises nothing."""
        self._unpacked = unpacked
        self._packed = packed
        self._unpack = unpack

    def __getitem__(self, key: str) -> Snapshot:
        """The snapshot of a key."""
        return self._unpacked[key] if key in self._unpacked else self._unpack(self._packed[key])

    def __contains__(self, key: object) -> bool:
        """Whether there is one; nothing is unpacked."""
        return key in self._unpacked or key in self._packed

    def __iter__(self) -> Iterator[str]:
        """Their keys."""
        return chain(self._unpacked, self._packed)

    def __len__(self) -> int:
        """Their number."""
        return len(self._unpacked) + len(self._packed)


# What zstd needs to work with a dictionary is some 250 KiB, and 100 KiB without one. A process may have thousands of
# feeds of which few change at any time: what is needed lately is kept, and made again (20 µs) where it is not there.
@lru_cache(maxsize=_WARM)
def _compressor(dictionary: bytes | None) -> zstandard.ZstdCompressor:
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary is not None else None
    return zstandard.ZstdCompressor(dict_data=known, compression_params=_FRAME)


@lru_cache(maxsize=_WARM)
def _decompressor(dictionary: bytes | None) -> zstandard.ZstdDecompressor:
    known = zstandard.ZstdCompressionDict(dictionary) if dictionary is not None else None
    return zstandard.ZstdDecompressor(dict_data=known, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


def _varint(number: int) -> bytes:
    if number < 0x80:  # noqa: PLR2004 -- seven bits a byte, the eighth says that more follow
        return bytes((number,))
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
