"""Digests of the pages of a full reading, by which the next reading knows pages that are unchanged.

Theory of operation
-------------------
A full reading leaves the digest of each page whose records are all as the store has them. The next reading compares no
record of a page that has one of these digests. If it finds all of these pages and no other one, no record is missing.

**Invariants**

- Digests are valid for exactly the state that their reading left: generation, sequence number, time of the reading, and
  the rules by which records were compared. Any write of a snapshot deletes them (``commit.lua``).
- They are kept only if the reading has settled which records are gone: all known records are on its pages.
- A page with a record that was rejected or held back has no digest. If a record was read twice, on two pages or on one,
  no page has one: what is stored of it may be the other version.
- Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

_DIGEST_BYTES: Final = 16


def page_digest(records: Sequence[bytes]) -> bytes:
    """The digest of the records of a page, in their order: 16 bytes."""
    return sha256(b",".join(records)).digest()[:_DIGEST_BYTES]  # processors have instructions for it


class DigestBasis(msgspec.Struct, frozen=True, array_like=True):
    """What digests are valid for.

    Attributes:
        generation: of the feed's state.
        sequence: the number of the feed's last event.
        read_at: when the reading began, RFC 3339.
        missing_at: when records were last marked as missing, milliseconds of the store's clock; None: never.
        rules: a hash of everything that decides what of a record is requested and compared.
    """

    generation: str
    sequence: int
    read_at: str
    missing_at: int | None
    rules: str


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    basis: DigestBasis
    digests: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Stored).decode


class PageDigests:
    """The digests of one reading, beside those of the reading before."""

    def __init__(self, known: frozenset[bytes] = frozenset()) -> None:
        """Start a reading; ``known`` are the digests of the one before, as far as they are valid."""
        self._known = known
        self._kept: dict[bytes, None] = {}
        self._differs = False

    def __contains__(self, digest: object) -> bool:
        """Whether a page with this digest is unchanged."""
        return digest in self._known

    def add(self, digest: bytes, *, is_stored: bool) -> None:
        """Add a page; ``is_stored``: all of its records are as the store has them now."""
        if is_stored:
            self._kept[digest] = None
        self._differs = self._differs or digest not in self._known

    @property
    def is_unchanged(self) -> bool:
        """Whether the reading had exactly the pages of the one before."""
        return bool(self._known) and not self._differs and len(self._kept) == len(self._known)

    def encode(self, basis: DigestBasis) -> bytes:
        """The stored form of the digests of this reading."""
        return _encode(_Stored(basis, b"".join(self._kept)))


def decode_digests(stored: bytes | None, basis: DigestBasis) -> frozenset[bytes]:
    """The stored digests; none if they are not valid on this basis, or of an unknown version."""
    try:
        found = _decode(stored or b"")
    except msgspec.MsgspecError:
        return frozenset()
    return frozenset(_digests(found.digests)) if found.basis == basis else frozenset()


def _digests(joined: bytes) -> Iterator[bytes]:
    for start in range(0, len(joined), _DIGEST_BYTES):
        yield joined[start : start + _DIGEST_BYTES]
