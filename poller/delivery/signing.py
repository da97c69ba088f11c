"""Signatures of Standard Webhooks 1.0.0: they prove the sender and the unchanged body.

**Invariants**

* The signed bytes are exactly those that are sent, ``id.timestamp.body``.
* Every secret of a subscription signs, so a sink can change from one to the next while both are valid.
* A malformed secret is refused when it is read. No message, ``repr`` or traceback of this module shows a secret.
* Pure: this module does not know where secrets are stored, nor the time.

=========  ==========================================  ==============================
secret     after the prefix, in base64                 signature
=========  ==========================================  ==============================
whsec_     24 to 64 bytes                              ``v1,``: HMAC-SHA256
whsk_      ed25519: seed, or seed and public key       ``v1a,``: ed25519
=========  ==========================================  ==============================

:data:`SCHEMES` is this table in code. Everything that signs, shows or makes secrets reads it.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from poller.errors import ConfigurationError
from poller.text import SIGNING_SECRETS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLIC_PREFIX: Final = "whpk_"
SIGNATURE: Final = "webhook-signature"
"""The header of Standard Webhooks."""

DRAWN: Final = 32
"""Random bytes for a new secret."""

_HMAC_BYTES: Final = range(24, 64 + 1)
_SEED_BYTES: Final = 32

_Sign = Callable[[bytes], str]


class SecretUnusable(ConfigurationError, ValueError):
    """A text is no signing secret. The message says what is expected, without the text."""


class SignatureScheme(NamedTuple):
    """A signature scheme and its secrets.

    Attributes:
        prefix: of its secrets.
        sizes: the permitted numbers of bytes after the prefix.
        size_text: the sizes in words.
        version: the prefix of signatures.
        signing: makes a signing function from a secret's bytes.
        header: of its signatures.
        made: makes a secret's bytes from random bytes.
        public_key: of a secret's bytes; None: a receiver verifies with the secret itself.
    """

    prefix: str
    sizes: Container[int]
    size_text: str
    version: str
    signing: Callable[[bytes], Callable[[bytes], bytes]]
    header: str = SIGNATURE
    made: Callable[[bytes], bytes] = bytes
    public_key: Callable[[bytes], bytes] | None = None

    @property
    def name(self) -> str:
        """The scheme's name for operators."""
        return SIGNING_SECRETS[self.prefix]

    def signer(self, key: bytes) -> _Sign:
        """The function that makes whole signatures with a secret."""
        sign, begins = self.signing(key), f"{self.version},"
        return lambda signed: begins + b64encode(sign(signed)).decode()


class Signer:
    """Signs requests with several secrets."""

    __slots__ = ("_signs",)

    def __init__(self, secrets: Iterable[str]) -> None:
        """Sign with these secrets; white space around a secret is ignored.

        Raises:
            SecretUnusable: one of them is no secret, or there are none.
        """
        self._signs: dict[str, list[_Sign]] = {}
        for scheme, key in map(_parsed, secrets):
            self._signs.setdefault(scheme.header, []).append(scheme.signer(key))
        if not self._signs:
            raise SecretUnusable("expected at least one signing secret")

    def headers(self, webhook_id: str, timestamp: int, body: bytes) -> dict[str, str]:
        """The signatures by header: one for each secret that signs there, in their order, separated by spaces.

        Args:
            webhook_id: the value of ``webhook-id``.
            timestamp: the value of ``webhook-timestamp``, seconds since 1970.
            body: what is sent.
        """
        signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
        return {header: " ".join([sign(signed) for sign in signs]) for header, signs in self._signs.items()}


def check_secret(text: str, origin: str) -> None:
    """Check a signing secret.

    Raises:
        SecretUnusable: names its place, without the text.
    """
    try:
        Signer((text,))
    except SecretUnusable as error:
        raise SecretUnusable(f"{origin} holds no signing secret: {error}") from None


def new_secret(random_bytes: bytes, scheme: str = "HMAC") -> str:
    """A new secret from random bytes, :data:`DRAWN` for any scheme.

    Raises:
        KeyError: no scheme has this name.
        ValueError: wrong number of bytes.
    """
    found = scheme_of(scheme)
    return found.prefix + b64encode(found.made(random_bytes)).decode()


def scheme_of(name: str) -> SignatureScheme:
    """The scheme with this name.

    Raises:
        KeyError: no scheme has this name.
    """
    return {scheme.name: scheme for scheme in SCHEMES}[name]


def public_keys(secrets: Iterable[str]) -> tuple[str, ...]:
    """The public keys of all secrets that have one; malformed secrets are skipped."""
    found = []
    for secret in secrets:
        with suppress(SecretUnusable):
            found.append(public_key(secret))
    return tuple(found)


def public_key(secret: str) -> str:
    """The public ``whpk_`` key that verifies the signatures of a ``whsk_`` secret.

    Raises:
        SecretUnusable: the secret has none.
    """
    scheme, key = _parsed(secret)
    if scheme.public_key is None:
        having = " or ".join(one.prefix for one in SCHEMES if one.public_key)
        raise SecretUnusable(f"expected a signing secret that begins with {having}: only those have a public key")
    return PUBLIC_PREFIX + b64encode(scheme.public_key(key)).decode()


def _parsed(secret: str) -> tuple[SignatureScheme, bytes]:
    """The scheme, and the bytes after its prefix."""
    text = secret.strip()
    for scheme in SCHEMES:
        if not text.startswith(scheme.prefix):
            continue
        key = _decoded(text.removeprefix(scheme.prefix))
        if key is None:
            raise SecretUnusable(f"expected base64 after {scheme.prefix}, in one line and with its padding")
        if len(key) not in scheme.sizes:
            raise SecretUnusable(f"expected {scheme.size_text} in base64 after {scheme.prefix}")
        return scheme, key
    if text.startswith(PUBLIC_PREFIX):
        raise SecretUnusable(f"expected a signing secret, not the public key of one ({PUBLIC_PREFIX})")
    *others, last = (scheme.prefix for scheme in SCHEMES)
    raise SecretUnusable(
        f"expected a signing secret alone, which begins with {', '.join(others)} or {last}; `poller keys new` makes one"
    )


def _decoded(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None  # not raised here, because the cause would contain the secret


def _hmac_secret(drawn: bytes) -> bytes:
    if len(drawn) not in _HMAC_BYTES:
        raise ValueError("expected 24 to 64 random bytes")
    return drawn


def _hmac(key: bytes) -> Callable[[bytes], bytes]:
    keyed = hmac.new(key, digestmod="sha256")  # for each signature, OpenSSL would look SHA-256 up and hash the key

    def sign(signed: bytes) -> bytes:
        mac = keyed.copy()
        mac.update(signed)
        return mac.digest()

    return sign


def _ed25519_secret(seed: bytes) -> bytes:
    """Seed and public key."""
    if len(seed) != _SEED_BYTES:
        raise ValueError("expected 32 random bytes")
    return seed + _ed25519_public(seed)


def _ed25519(key: bytes) -> Callable[[bytes], bytes]:
    return _private(key).sign


def _ed25519_public(key: bytes) -> bytes:
    return _private(key).public_key().public_bytes_raw()


def _private(key: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 -- one kind of secret needs it
        Ed25519PrivateKey,
    )

    private = Ed25519PrivateKey.from_private_bytes(key[:_SEED_BYTES])
    public = key[_SEED_BYTES:]
    if public and not hmac.compare_digest(public, private.public_key().public_bytes_raw()):
        raise SecretUnusable("expected the seed and its own public key after whsk_: these are of two keys")
    return private


SCHEMES: Final = (
    SignatureScheme("whsec_", _HMAC_BYTES, "24 to 64 bytes", "v1", _hmac, made=_hmac_secret),
    SignatureScheme(
        "whsk_",
        (_SEED_BYTES, 2 * _SEED_BYTES),
        "32 or 64 bytes",
        "v1a",
        _ed25519,
        made=_ed25519_secret,
        public_key=_ed25519_public,
    ),
)
"""All schemes; their prefixes and names are those of :data:`poller.text.SIGNING_SECRETS`."""

SIGNATURE_HEADERS: Final = frozenset(scheme.header for scheme in SCHEMES)
"""The headers that hold signatures, in lower case."""
