"""The list envelope: ``results``, ``deltaToken``, ``pageToken``, with each record left as the bytes it came in."""

from __future__ import annotations

from typing import Final

import msgspec

from poller.errors import SourceNonsense

MAX_TOKEN_LENGTH: Final = 64 * 1024


class Page(msgspec.Struct, frozen=True, gc=False):
    """One answer of a list endpoint. Tokens are opaque; empty ones count as absent.

    Attributes:
        records: each record's bytes, in the order received.
        delta_token: for a later delta.
        page_token: for a further page; None on the last one.
    """

    records: list[bytes]
    delta_token: str | None
    page_token: str | None


class _Envelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    results: list[msgspec.Raw]
    delta_token: str | None = None
    page_token: str | None = None


_decode: Final = msgspec.json.Decoder(_Envelope).decode


def decode_page(body: bytes) -> Page:
    """Read an answer.

    Raises:
        SourceNonsense: the body is not JSON, not the envelope, or holds a token that cannot be sent back.
    """
    try:
        envelope = _decode(body)
    except msgspec.ValidationError as error:
        raise SourceNonsense(f"the answer is not a list envelope: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # None of the body is shown: what is not ours to read may echo what we sent, the credential too.
        raise SourceNonsense(f"the answer is not JSON ({_looks(body)}): {error}") from None
    except RecursionError:
        raise SourceNonsense("the answer is nested too deep") from None
    return Page(
        [bytes(record) for record in envelope.results],
        _token(envelope.delta_token, "deltaToken"),
        _token(envelope.page_token, "pageToken"),
    )


def _looks(body: bytes) -> str:
    return f"{len(body)} bytes" + (" of markup" if body.lstrip().startswith(b"<") else "")


def _token(token: str | None, name: str) -> str | None:
    if not token:
        return None
    if len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
        raise SourceNonsense(f"the answer's {name} cannot be sent back: {len(token)} characters, {token[:20]!r}…")
    return token
