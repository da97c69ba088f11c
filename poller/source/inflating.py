"""Bodies as they are sent into bodies as they are meant, never more than a bound at a time.

A few kilobytes may stand for gigabytes, all the more where encodings are stacked. So one encoding is asked for and
understood, and what it unpacks to is bounded before it exists, not counted afterwards.
"""

from __future__ import annotations

import zlib
from typing import Final

import httpx

from poller.errors import SourceNonsense

_GZIP: Final = 16 + zlib.MAX_WBITS


class Inflater:
    """Decodes the pieces of one body, in their order."""

    def __init__(self, encoding: str, *, most: int) -> None:
        """Begin.

        Args:
            encoding: the answer's Content-Encoding.
            most: so many bytes are of interest; a piece that unpacks to more gives one byte more and no further.

        Raises:
            SourceNonsense: an encoding that was not asked for.
        """
        name = encoding.strip().lower()
        if name not in ("", "identity", "gzip", "x-gzip"):
            raise SourceNonsense(f"the answer is encoded as {encoding[:40]!r}; only gzip was asked for")
        self._most = most
        self._zlib = zlib.decompressobj(_GZIP) if name.endswith("gzip") else None

    def take(self, piece: bytes) -> bytes:
        """What a piece stands for.

        Raises:
            httpx.DecodingError: it is not gzip.
        """
        if self._zlib is None:
            return piece
        try:
            return self._zlib.decompress(piece, self._most + 1)
        except zlib.error as error:
            raise httpx.DecodingError(f"the answer is not gzip: {error}") from None

    def finish(self) -> None:
        """Say that there are no more pieces.

        Raises:
            httpx.DecodingError: the body is cut off.
        """
        if self._zlib is not None and not self._zlib.eof:
            raise httpx.DecodingError("the answer is cut off within its gzip encoding")
