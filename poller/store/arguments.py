"""A commit as the arguments of its script; the order is that of :data:`poller.store.scripts.COMMIT`."""

from __future__ import annotations

from hashlib import blake2b
from itertools import chain
from typing import Final

from poller.changes.commit import Commit
from poller.changes.records import Rejected
from poller.store import held_versions, listings
from poller.store.snapshots import SnapshotCodec

QUARANTINE_ENTRIES: Final = 1000
QUARANTINE_BYTES: Final = 64 * 1024
"""How much of one record is kept; enough to see what it is."""

Argument = bytes | str | int


def commit_arguments(
    commit: Commit, codec: SnapshotCodec, dictionary: tuple[int, bytes] | None, *, nonce: str, now_ms: int
) -> list[Argument]:
    """Everything that the script is to check and to write.

    Args:
        commit: what was planned.
        codec: packs its snapshots; is given the new dictionary.
        dictionary: a new one (number, bytes) to be written along, if there is one.
        nonce: of our lease.
        now_ms: the store's clock in milliseconds: when qualifications and rejected records were seen.
    """
    known = codec.dictionaries
    if dictionary:
        codec.add(*dictionary)
    encode = codec.encode
    sections: list[list[Argument]] = [
        list(chain.from_iterable((key, encode(snapshot)) for key, snapshot in commit.snapshots.items())),
        list(commit.events),
        list(chain.from_iterable(map(_quarantined, commit.rejected))),
        list(commit.qualifications),
        list(dictionary or ()),
        list(chain.from_iterable((name, value or "") for name, value in commit.marks.items())),
        list(chain.from_iterable((name, listings.encode_listing(one)) for name, one in commit.listings.items())),
        list(chain.from_iterable((name, held_versions.encode_held(one)) for name, one in commit.held.items() if one)),
        [name for name, one in commit.held.items() if one is None],
    ]
    checks: list[Argument] = [
        nonce,
        commit.generation,
        commit.sequence,
        commit.next_sequence,
        commit.digest,
        known,
        now_ms,
        QUARANTINE_ENTRIES,
    ]
    return [*checks, *map(len, sections), *chain.from_iterable(sections)]


def _quarantined(rejected: Rejected) -> tuple[bytes, str, bytes]:
    return rejected.raw[:QUARANTINE_BYTES], rejected.reason, rejected_digest(rejected.raw)


def rejected_digest(raw: bytes) -> bytes:
    """What the feed remembers of a record that it has quarantined: 16 bytes, of the whole record."""
    return blake2b(raw, digest_size=16).digest()
