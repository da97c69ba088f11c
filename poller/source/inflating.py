"""Bodies as they are sent into bodies as they are meant, never more than a bound at a time.

A few kilobytes may stand for gigabytes, all the more where encodings are stacked. So one encoding is asked for and
understood, and what it unpacks to is bounded before it exists, not counted afterwards.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from poller.errors import SourceNonsense

_GZIP: Final = 16 + zlib.MAX_WBITS


def inflating(encoding: str, *, most: int) -> Callable[[bytes], bytes]:
    """A function that decodes one piece of a body after the other; a piece that would be larger is cut off beyond it.

    Args:
        encoding: the answer's Content-Encoding.
        most: so many bytes are of interest; a piece that unpacks to more gives one byte more and no further.

    Raises:
        SourceNonsense: an encoding that was not asked for; by the function: bytes that are not gzip.
    """
    if encoding.strip().lower() in ("", "identity"):
        return lambda piece: piece
    if encoding.strip().lower() not in ("gzip", "x-gzip"):
        raise SourceNonsense(f"the answer is encoded as {encoding[:40]!r}; only gzip was asked for")
    inflater = zlib.decompressobj(_GZIP)

    def inflate(piece: bytes) -> bytes:
        try:
            return inflater.decompress(piece, most + 1)
        except zlib.error as error:
            raise SourceNonsense(f"the answer is not gzip: {error}") from None

    return inflate
