"""Page tokens and delta tokens: opaque to readers, self-contained for the API.

Law: a token that this module did not make is not read: a checksum is part of it, and so is what it is good for.

It does not know: whether the listing or the version that a token names exists.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from hashlib import blake2b
from typing import TypeVar

import msgspec

_CHECKSUM_BYTES = 6


class NonsenseToken(ValueError):
    """Not a token of this kind."""


class DeltaToken(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """What a reader has seen: everything of a listing up to a version.

    Attributes:
        resource: the resource's name.
        qualification: the listing's qualification in lower case, if it has one.
        version: the history's version when the round began.
    """

    resource: str
    qualification: str | None
    version: int


class PageToken(msgspec.Struct, frozen=True, array_like=True, tag="page"):
    """A place in a round.

    Attributes:
        resource: the resource's name.
        qualification: the listing's qualification in lower case, if it has one.
        since: the version of the delta token that the round began with; None for a full one.
        after: the number of the last version that the round has shown.
        delta: the version that the round's delta token names, fixed by the first request.
        limit: the most records a page may have.
        fields: the fields asked for, sorted; empty for all.
    """

    resource: str
    qualification: str | None
    since: int | None
    after: int
    delta: int
    limit: int
    fields: tuple[str, ...]


Token = TypeVar("Token", DeltaToken, PageToken)


def encode(token: DeltaToken | PageToken) -> str:
    """The token's text: letters, digits, ``-`` and ``_`` only."""
    content = msgspec.json.encode(token)
    return urlsafe_b64encode(_checksum(content) + content).rstrip(b"=").decode()


def decode(text: str, kind: type[Token]) -> Token:
    """Read a token's text.

    Raises:
        NonsenseToken: it was not made by :func:`encode`, or from another kind of token.
    """
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        checksum, content = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != _checksum(content):
            raise NonsenseToken("wrong checksum")
        return msgspec.json.decode(content, type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise NonsenseToken(str(error)) from error


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECKSUM_BYTES).digest()
