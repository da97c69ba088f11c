"""Records that come in part: what is known, overlaid by what was received.

Law: a key that was not received keeps its value, a key that was received has the received one, null included. Each
value is carried over as the bytes in which it came; only between the top-level members is anything written anew. The
known keys keep their order, new ones follow. So parts merged one after the other give the record that they are of, and
a part merged twice is merged once.

What is merged is an object's own members and no deeper: a value is received whole or not at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from poller.changes.canonical import parse_received
from poller.changes.records import Record, with_bytes

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


def merged(part: Record, known: bytes) -> Record:
    """The whole record: its known bytes overlaid by the part that was received.

    Args:
        part: as received.
        known: the bytes of a record that was used before.

    Raises:
        ValueError: the part is not usable; the text says why, as :func:`~poller.changes.canonical.parse_received` does.
    """
    parse_received(part.raw)  # a key that stands in it twice would be lost in what follows
    return with_bytes(part, overlaid(known, part.raw))


def overlaid(known: bytes, received: bytes) -> bytes:
    """One JSON object with the members of both; where both have a key, the received value."""
    return _encode({**_members(known), **_members(received)})
