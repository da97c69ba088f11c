"""The list envelope: ``results``, ``deltaToken``, ``pageToken``, with each record left as the bytes it came in."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from poller.errors import SourceNonsense
from poller.source.splitting import split_results

MAX_TOKEN_LENGTH: Final = 64 * 1024

Ending = Literal["no pageToken", "pageToken null", "pageToken empty", "an empty page", "the last page again"]
"""How a listing shows that it ends; all but the last two are seen on its last page alone."""


class Page(msgspec.Struct, frozen=True, gc=False):
    """One answer of a list endpoint. Tokens are opaque; empty ones count as absent.

    Attributes:
        records: each record's bytes, in the order received.
        delta_token: for a later delta.
        page_token: for a further page; None on the last one.
        ending: in what way there is no page token, where there is none.
    """

    records: list[bytes]
    delta_token: str | None
    page_token: str | None
    ending: Ending = "no pageToken"


class _Envelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    results: list[msgspec.Raw]
    delta_token: str | None = None
    page_token: str | msgspec.UnsetType | None = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Envelope).decode


def decode_page(body: bytes) -> Page:
    """Read an answer. Records that are no JSON stay in it as they are, for whoever reads them to refuse.

    Raises:
        SourceNonsense: the body is not JSON, not the envelope, or holds a token that cannot be sent back.
    """
    try:
        envelope = _read(body)
    except SourceNonsense as whole:
        parts = split_results(body)
        if parts is None:
            raise
        records, around = parts
        try:
            envelope = _read(around)
        except SourceNonsense:
            raise whole from None
    else:
        records = [bytes(record) for record in envelope.results]
    further = envelope.page_token
    return Page(
        records,
        _token(envelope.delta_token, "deltaToken"),
        _token(further or None, "pageToken"),
        "pageToken null" if further is None else "pageToken empty" if further == "" else "no pageToken",
    )


def _read(body: bytes) -> _Envelope:
    try:
        return _decode(body)
    except msgspec.ValidationError as error:
        raise SourceNonsense(f"the answer is not a list envelope: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # None of the body is shown: what is not ours to read may echo what we sent, the credential too.
        raise SourceNonsense(f"the answer is not JSON ({_looks(body)}): {error}") from None
    except RecursionError:
        raise SourceNonsense("the answer is nested too deep") from None


def _looks(body: bytes) -> str:
    return f"{len(body)} bytes" + (" of markup" if body.lstrip().startswith(b"<") else "")


def _token(token: str | None, name: str) -> str | None:
    if not token:
        return None
    if len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
        raise SourceNonsense(f"the answer's {name} cannot be sent back: {len(token)} characters, {token[:20]!r}…")
    return token
