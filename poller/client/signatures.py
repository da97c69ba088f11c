"""Verifies signatures of Standard Webhooks: they prove the sender and the unchanged body.

=========  ==========================================  ==============================
secret     after the prefix, in base64                 verifies
=========  ==========================================  ==============================
whsec_     24 to 64 bytes                              ``v1,``: HMAC-SHA256
whpk_      an ed25519 public key                       ``v1a,``: ed25519
whsk_      ed25519: seed, or seed and public key       ``v1a,``, by its public key
=========  ==========================================  ==============================

**Invariants**

- The signed bytes are ``id.timestamp.body`` with the body as received, and a timestamp is valid for a limited time in
  both directions. An id with a dot is refused: the same bytes could be read as another id and another body.
- One matching signature of one secret is enough, so both sides can change secrets one after the other.
- The headers are those named ``webhook-…``, or those named ``svix-…``, never some of each.
- Digests are compared in constant time. ``cryptography`` is imported only where a secret needs it.
- No message, ``repr`` or traceback shows a secret, a signature or a body.
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

TOLERANCE: Final = timedelta(minutes=5)
"""How old or how early a signature may be."""

_PARTS: Final = ("id", "timestamp", "signature")
_FAMILIES: Final = ("webhook", "svix")  # Svix, who wrote the specification, signs under its older names as well
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}")
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")  # printable ASCII without the dot
_MOST_SIGNATURES: Final = 32  # each costs a verification for each public key
_HMAC_BYTES: Final = range(24, 64 + 1)
_SEED_BYTES: Final = 32


class HeaderItems(Protocol):
    """The headers of any framework: a dict, or an object with ``items()`` that may give a name several times."""

    def items(self) -> Iterable[tuple[str, str]]:
        """The names and values."""


Headers = HeaderItems | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]
"""Headers as a framework has them, or as pairs of text or bytes (ASGI)."""

Secrets = str | Iterable[str]
"""One secret, or several of which each is accepted."""


class WebhookRefused(ValueError):
    """A request is refused. The text says why, and repeats nothing of the request.

    Attributes:
        status: of the HTTP answer.
    """

    def __init__(self, reason: str, *, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


class VerificationError(WebhookRefused):
    """The signature is missing, too old, or not of one of the secrets. HTTP status 401."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=401)


class MalformedSecret(ValueError):
    """A text is no secret for verification: the configuration is wrong, and no request is."""


def header_pairs(headers: Headers) -> list[tuple[str, str]]:
    """Names in lower case and values, in their order."""
    pairs: Any = headers.items() if hasattr(headers, "items") else headers
    return [(_text(name).lower(), _text(value).strip(" \t")) for name, value in pairs]


def _text(given: str | bytes) -> str:
    return given if isinstance(given, str) else given.decode("latin-1")


class SignatureVerifier:
    """Verifies requests by several secrets."""

    __slots__ = ("_hmacs", "_public_keys", "_tolerance")

    def __init__(self, secrets: Secrets, *, tolerance: timedelta = TOLERANCE) -> None:
        """Accept the signatures of these secrets; white space around a secret is ignored.

        Raises:
            MalformedSecret: one of them is no secret, or there are none.
        """
        self._hmacs: list[Callable[[bytes], bytes]] = []
        self._public_keys: list[Callable[[bytes, bytes], bool]] = []
        self._tolerance = tolerance
        for secret in [secrets] if isinstance(secrets, str) else secrets:
            self._add(secret)
        if not self._hmacs and not self._public_keys:
            raise MalformedSecret("expected at least one secret; None instead of a list verifies nothing")

    def _add(self, secret: str) -> None:
        text = f"{secret or ''}".strip()  # a variable of the environment that is not set gives None
        prefix, _, encoded = text.partition("_")
        key = _decoded(encoded)
        if prefix not in {"whsec", "whpk", "whsk"}:
            raise MalformedSecret("expected a secret that begins with whsec_, or a public key that begins with whpk_")
        if key is None:
            raise MalformedSecret(f"expected base64 after {prefix}_, in one line and with its padding")
        if prefix == "whsec":
            if len(key) not in _HMAC_BYTES:
                raise MalformedSecret("expected 24 to 64 bytes in base64 after whsec_")
            self._hmacs.append(_hmac(key))
        else:
            self._public_keys.append(_ed25519(prefix, key))

    def verify(self, headers: Sequence[tuple[str, str]], body: bytes, now: datetime) -> None:
        """Verify a request.

        Args:
            headers: names in lower case, as of :func:`header_pairs`.
            body: as received.
            now: with its time zone.

        Raises:
            VerificationError: it is not signed by one of the secrets, or not now.
        """
        webhook_id, timestamp, signatures = _signed_parts(headers)
        age = now.timestamp() - int(timestamp)
        if abs(age) > self._tolerance.total_seconds():
            direction = "too long ago" if age > 0 else "in the future"
            raise VerificationError(f"the signature was made {direction}; compare the clocks of both sides")
        signed = b"%b.%b.%b" % (webhook_id.encode(), timestamp.encode(), body)
        if not self._matches(signed, signatures):
            raise VerificationError(self._mismatch(signatures))

    def _matches(self, signed: bytes, signatures: Sequence[str]) -> bool:
        shared = [given.partition(",")[2].encode() for given in signatures if given.startswith("v1,")]
        public = [_canonical(given.partition(",")[2]) for given in signatures if given.startswith("v1a,")]
        matches = False
        for digest in self._hmacs if shared else ():
            expected = b64encode(digest(signed))
            for given in shared:
                matches |= hmac.compare_digest(expected, given)
        for is_signed_by in self._public_keys:
            matches = matches or any(one is not None and is_signed_by(one, signed) for one in public)
        return matches

    def _mismatch(self, signatures: Sequence[str]) -> str:
        usable = [name for name, keys in (("v1,", self._hmacs), ("v1a,", self._public_keys)) if keys]
        if any(given.startswith(version) for given in signatures for version in usable):
            return "no signature matches: another secret has signed, or the request was changed on its way"
        versions = " or ".join(name.rstrip(",") for name in usable)
        return f"expected a signature of version {versions}, for which the receiver has a key"


def _signed_parts(headers: Sequence[tuple[str, str]]) -> tuple[str, str, list[str]]:
    """The id, the timestamp and the signatures."""
    for family in _FAMILIES:
        found = {part: [text for name, text in headers if name == f"{family}-{part}"] for part in _PARTS}
        if not all(found.values()):
            continue
        if len(found["id"]) > 1 or len(found["timestamp"]) > 1:
            raise VerificationError(f"the header {family}-id or {family}-timestamp occurs twice")
        webhook_id, timestamp = found["id"][0], found["timestamp"][0]
        if not _ID.fullmatch(webhook_id):
            raise VerificationError(f"the header {family}-id is no id")
        if not _TIMESTAMP.fullmatch(timestamp):
            raise VerificationError(f"the header {family}-timestamp is no number of seconds")
        # A proxy may fold several headers into one, with commas between the values.
        signatures = [one.rstrip(",") for one in " ".join(found["signature"]).split()]
        if len(signatures) > _MOST_SIGNATURES:
            raise VerificationError(f"the header {family}-signature has more than {_MOST_SIGNATURES} signatures")
        return webhook_id, timestamp, signatures
    raise VerificationError("it is not signed: webhook-id, webhook-timestamp and webhook-signature are expected")


def _decoded(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None  # not raised here, because the cause would contain the text


def _canonical(text: str) -> bytes | None:
    """The bytes of a text that is their only base64, so that no other spelling of a signature is accepted."""
    found = _decoded(text)
    return found if found is not None and b64encode(found).decode() == text else None


def _hmac(key: bytes) -> Callable[[bytes], bytes]:
    keyed = hmac.new(key, digestmod="sha256")

    def digest(signed: bytes) -> bytes:
        mac = keyed.copy()
        mac.update(signed)
        return mac.digest()

    return digest


def _ed25519(prefix: str, key: bytes) -> Callable[[bytes, bytes], bool]:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 -- 60 ms, which most receivers never need
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 -- as above
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

    if prefix == "whpk":
        if len(key) != _SEED_BYTES:
            raise MalformedSecret("expected 32 bytes in base64 after whpk_")
        public = Ed25519PublicKey.from_public_bytes(key)
    else:
        if len(key) not in {_SEED_BYTES, 2 * _SEED_BYTES}:
            raise MalformedSecret("expected 32 or 64 bytes in base64 after whsk_")
        public = Ed25519PrivateKey.from_private_bytes(key[:_SEED_BYTES]).public_key()
        if key[_SEED_BYTES:] not in {b"", public.public_bytes_raw()}:
            raise MalformedSecret("expected the seed and its own public key after whsk_: these are of two keys")

    def is_signed_by(signature: bytes, signed: bytes) -> bool:
        try:
            public.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return is_signed_by
