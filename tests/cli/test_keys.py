"""Laws of ``poller keys``: a secret that signs, and exactly what a receiver needs to verify it."""

from __future__ import annotations

import time
from base64 import b64decode

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook

from poller.delivery.signing import Signer, new_private_secret, public_keys
from tests.cli.conftest import Called


def made(called: Called, *options: str) -> tuple[str, str]:
    ended = called("keys", "new", *options)
    assert (ended.code, ended.err) == (0, "")
    lines = [line.split() for line in ended.out.splitlines()]
    assert [line[0] for line in lines[:2]] == ["secret", "receiver"]
    return lines[0][1], lines[1][1]


def test_a_shared_secret(called: Called) -> None:
    """The receiver's library verifies with it; no two are the same."""
    secret, receiver = made(called)
    assert secret.startswith("whsec_")
    now = int(time.time())
    signature = Signer([secret]).sign("1", now, b"{}")
    headers = {"webhook-id": "1", "webhook-timestamp": str(now), "webhook-signature": signature}
    assert Webhook(receiver).verify(b"{}", headers) == {}
    assert made(called)[0] != secret


def test_a_key_pair(called: Called) -> None:
    """The receiver's line is the public key, which verifies and is no secret."""
    secret, receiver = made(called, "--ed25519")
    assert (secret[:5], receiver[:5]) == ("whsk_", "whpk_")
    version, _, signature = Signer([secret]).sign("1", 1772439303, b"{}").partition(",")
    assert version == "v1a"
    public = Ed25519PublicKey.from_public_bytes(b64decode(receiver.removeprefix("whpk_")))
    public.verify(b64decode(signature), b"1.1772439303.{}")
    assert b64decode(secret.removeprefix("whsk_"))[32:] == b64decode(receiver.removeprefix("whpk_"))
    assert public_keys([secret, "whsec_" + "A" * 32, "nonsense"]) == (receiver,)


def test_a_seed_has_its_size() -> None:
    """Law: nothing shorter is stretched."""
    with pytest.raises(ValueError, match="32"):
        new_private_secret(b"short")
