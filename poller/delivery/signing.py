"""Signatures of Standard Webhooks 1.0.0: they prove the sender and the unchanged body.

**Invariants**

* The signed bytes are exactly those that are sent, ``id.timestamp.body``.
* Every secret of a subscription signs, so a sink can change from one to the next while both are valid.
* A secret is either well-formed or refused when it is read, and no message, ``repr`` or traceback of this module shows
  it.
* Where secrets are kept and what time it is are not known here.

=========  ==========================================  ==============================
secret     what follows the prefix, in base64          signature
=========  ==========================================  ==============================
whsec_     24 to 64 bytes                              ``v1,``: HMAC-SHA256
whsk_      ed25519: seed, or seed and public key       ``v1a,``: ed25519
=========  ==========================================  ==============================

Refuses to know where secrets are kept, and what time it is.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from poller.errors import ConfigurationError

HMAC_PREFIX: Final = "whsec_"
PRIVATE_PREFIX: Final = "whsk_"
PUBLIC_PREFIX: Final = "whpk_"

_HMAC_BYTES: Final = range(24, 64 + 1)
_SEED_BYTES: Final = 32

_Sign = Callable[[bytes], str]


class SecretUnusable(ConfigurationError, ValueError):
    """Text that is no signing secret. The message says what is expected and repeats nothing of it."""


class Signer:
    """Signs with every secret that it was given."""

    __slots__ = ("_signs",)

    def __init__(self, secrets: Iterable[str]) -> None:
        """Take the secrets, as their files hold them: white space around one does not count.

        Raises:
            SecretUnusable: one of them is no secret, or there are none.
        """
        self._signs: tuple[_Sign, ...] = tuple(map(_signing_with, secrets))
        if not self._signs:
            raise SecretUnusable("expected at least one signing secret")

    def sign(self, webhook_id: str, timestamp: int, body: bytes) -> str:
        """The value of ``webhook-signature``: one signature for each secret, in their order, separated by spaces.

        Args:
            webhook_id: the value of ``webhook-id``.
            timestamp: the value of ``webhook-timestamp``, seconds since 1970.
            body: what is sent.
        """
        signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
        return " ".join([sign(signed) for sign in self._signs])


def check_secret(text: str, origin: str) -> None:
    """Refuse what is no signing secret.

    Raises:
        SecretUnusable: says where it stands, and repeats nothing of it.
    """
    try:
        Signer((text,))
    except SecretUnusable as error:
        raise SecretUnusable(f"{origin} holds no signing secret: {error}") from None


def new_secret(random_bytes: bytes) -> str:
    """A ``whsec_`` secret of 24 to 64 bytes that the caller has drawn.

    Raises:
        ValueError: another number of bytes.
    """
    if len(random_bytes) not in _HMAC_BYTES:
        raise ValueError("expected 24 to 64 random bytes")
    return HMAC_PREFIX + b64encode(random_bytes).decode()


def new_private_secret(seed: bytes) -> str:
    """A ``whsk_`` secret, seed and public key, of 32 bytes that the caller has drawn.

    Raises:
        ValueError: another number of bytes.
    """
    if len(seed) != _SEED_BYTES:
        raise ValueError("expected 32 random bytes")
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return PRIVATE_PREFIX + b64encode(seed + public).decode()


def public_keys(secrets: Iterable[str]) -> tuple[str, ...]:
    """The public keys of those secrets that have one; malformed secrets are skipped."""
    found = []
    for secret in secrets:
        with suppress(SecretUnusable):
            found.append(public_key(secret))
    return tuple(found)


def public_key(secret: str) -> str:
    """The public ``whpk_`` key that verifies the signatures of a ``whsk_`` secret.

    Raises:
        SecretUnusable: it is no ``whsk_`` secret.
    """
    prefix, key = _parsed(secret)
    if prefix != PRIVATE_PREFIX:
        raise SecretUnusable(
            f"expected a signing secret that begins with {PRIVATE_PREFIX}: only those have a public key"
        )
    return PUBLIC_PREFIX + b64encode(_private(key).public_key().public_bytes_raw()).decode()


def _signing_with(secret: str) -> _Sign:
    prefix, key = _parsed(secret)
    if prefix == HMAC_PREFIX:
        return lambda signed: "v1," + b64encode(hmac.digest(key, signed, "sha256")).decode()
    private = _private(key)
    return lambda signed: "v1a," + b64encode(private.sign(signed)).decode()


def _parsed(secret: str) -> tuple[str, bytes]:
    """The prefix and the bytes after it."""
    text = secret.strip()
    for prefix, sizes in ((HMAC_PREFIX, _HMAC_BYTES), (PRIVATE_PREFIX, (_SEED_BYTES, 2 * _SEED_BYTES))):
        if not text.startswith(prefix):
            continue
        key = _decoded(text.removeprefix(prefix))
        if key is None:
            raise SecretUnusable(f"expected base64 after {prefix}, in one line and with its padding")
        if len(key) not in sizes:
            spelled = "24 to 64 bytes" if prefix == HMAC_PREFIX else "32 or 64 bytes"
            raise SecretUnusable(f"expected {spelled} in base64 after {prefix}")
        return prefix, key
    if text.startswith(PUBLIC_PREFIX):
        raise SecretUnusable(f"expected a signing secret, not the public key of one ({PUBLIC_PREFIX})")
    raise SecretUnusable(
        f"expected a signing secret alone, which begins with {HMAC_PREFIX} or {PRIVATE_PREFIX}; "
        "`poller keys new` makes one"
    )


def _decoded(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None  # and not raised from here, for the cause would go along


def _private(key: bytes) -> Ed25519PrivateKey:
    private = Ed25519PrivateKey.from_private_bytes(key[:_SEED_BYTES])
    public = key[_SEED_BYTES:]
    if public and not hmac.compare_digest(public, private.public_key().public_bytes_raw()):
        raise SecretUnusable(f"expected the seed and its own public key after {PRIVATE_PREFIX}: these are of two keys")
    return private
