"""Webhooks that other libraries have signed are verified: npm's and PyPI's ``standardwebhooks`` and ``svix``, Node.

Without Node and its packages those tests are skipped, see :mod:`tests.node`.
"""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from standardwebhooks import Webhook
from svix.webhooks import Webhook as SvixWebhook

from poller.client import VerificationError, verify
from tests.client.webhooks import NOW, OTHER, SECRET, STRUCTURED, event
from tests.node import needs_node

BODY: Final = event("a1", data={"name": "café € 😀", "large": 2**70})
AT: Final = datetime.fromtimestamp(NOW, UTC)
SEED: Final = b"e" * 32
PUBLIC: Final = "whpk_" + b64encode(Ed25519PrivateKey.from_private_bytes(SEED).public_key().public_bytes_raw()).decode()

# Reads {package, secret, id, seconds, body}; prints the signature.
SIGNER: Final = """
const given = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const { Webhook } = require(given.package);
process.stdout.write(new Webhook(given.secret).sign(given.id, new Date(given.seconds * 1000), given.body));
"""

# Reads {d, x, signed}, a private key as of a JWK; prints the signature.
ED25519: Final = """
const crypto = require("node:crypto");
const { d, x, signed } = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const key = crypto.createPrivateKey({ key: { kty: "OKP", crv: "Ed25519", d, x }, format: "jwk" });
process.stdout.write("v1a," + crypto.sign(null, Buffer.from(signed), key).toString("base64"));
"""

Sign = Callable[[str, int, bytes], str]
"""The signature of a secret, a second and a body, with the id ``msg_1``."""


def node(script: str, **given: object) -> str:
    done = subprocess.run(
        ["node", "-e", script], input=json.dumps(given), capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_npm(package: str) -> Sign:
    return lambda secret, at, body: node(
        SIGNER, package=package, secret=secret, id="msg_1", seconds=at, body=body.decode()
    )


def by_pypi(library: type[Webhook | SvixWebhook]) -> Sign:
    return lambda secret, at, body: library(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body.decode())


SIGNERS: Final = [
    pytest.param("webhook", by_pypi(Webhook), id="pypi-standardwebhooks"),
    pytest.param("svix", by_pypi(SvixWebhook), id="pypi-svix"),
    pytest.param("webhook", by_pypi(SvixWebhook), id="pypi-svix-standard-names"),
    pytest.param(
        "webhook", by_npm("standardwebhooks"), id="npm-standardwebhooks", marks=needs_node("standardwebhooks")
    ),
    pytest.param("svix", by_npm("svix"), id="npm-svix", marks=needs_node("svix")),
    pytest.param("webhook", by_npm("svix"), id="npm-svix-standard-names", marks=needs_node("svix")),
]


def sent(family: str, signature: str, at: int = NOW) -> dict[str, str]:
    return {
        "content-type": STRUCTURED,
        f"{family}-id": "msg_1",
        f"{family}-timestamp": str(at),
        f"{family}-signature": signature,
    }


@pytest.mark.parametrize(("family", "sign"), SIGNERS)
def test_what_another_library_signs(family: str, sign: Sign) -> None:
    """What another library signs is verified; tampered, old and foreign requests are refused."""
    signature = sign(SECRET, NOW, BODY)
    (found,) = verify(sent(family, signature), BODY, [OTHER, SECRET], now=AT)
    assert found.get_data()["large"] == 2**70

    for headers, body, secret, now in (
        (sent(family, signature), BODY.replace(b"a1", b"a2"), SECRET, AT),
        (sent(family, signature) | {f"{family}-id": "msg_2"}, BODY, SECRET, AT),
        (sent(family, signature, NOW + 1), BODY, SECRET, AT),
        (sent(family, signature), BODY, SECRET, AT + timedelta(minutes=6)),
        (sent(family, signature), BODY, OTHER, AT),
        (sent(family, sign(OTHER, NOW, BODY)), BODY, SECRET, AT),
    ):
        with pytest.raises(VerificationError):
            verify(headers, body, secret, now=now)


@needs_node("standardwebhooks")
def test_what_node_signs_with_ed25519() -> None:
    """A signature v1a that Node has made is verified by the public key, and of no other body."""
    public = PUBLIC.removeprefix("whpk_").replace("+", "-").replace("/", "_").rstrip("=")
    private = urlsafe_b64encode(SEED).decode().rstrip("=")
    signature = node(ED25519, d=private, x=public, signed=f"msg_1.{NOW}.{BODY.decode()}")
    assert verify(sent("webhook", signature), BODY, PUBLIC, now=AT)
    with pytest.raises(VerificationError):
        verify(sent("webhook", signature), BODY + b" ", PUBLIC, now=AT)
