"""Laws of :mod:`poller.delivery.signing`, compared with ``standardwebhooks`` and published vectors."""

from __future__ import annotations

import time
import traceback
from base64 import b64decode, b64encode

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from poller.delivery.signing import (
    DRAWN,
    SCHEMES,
    SIGNATURE_HEADERS,
    SecretUnusable,
    SignatureScheme,
    Signer,
    new_secret,
    public_key,
    public_keys,
)
from poller.errors import ConfigurationError
from poller.text import SIGNING_SECRETS
from tests.changes.samples import FEW

KEYS = st.binary(min_size=24, max_size=64)
SEEDS = st.binary(min_size=32, max_size=32)
IDS = st.text(alphabet="abcdef0123456789_-", min_size=1, max_size=40)

# The vector that the servers and libraries of Svix, who wrote the specification, are tested with.
SVIX_SECRET = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="  # noqa: S105 -- published
SVIX_PUBLIC = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4="
SVIX_SIGNED = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="


def private(seed: bytes, public: bytes = b"") -> str:
    return "whsk_" + b64encode(seed + public).decode()


def proves(public: str, signature: str, signed: bytes) -> bool:
    key = Ed25519PublicKey.from_public_bytes(b64decode(public.removeprefix("whpk_")))
    try:
        key.verify(b64decode(signature.removeprefix("v1a,")), signed)
    except InvalidSignature:
        return False
    return True


@FEW
@given(KEYS, IDS, st.text())
def test_the_library_verifies_what_is_signed(key: bytes, webhook_id: str, text: str) -> None:
    """The library verifies the signature of any secret, id and body, and of no other body."""
    now = int(time.time())
    secret = new_secret(key)
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(now),
        "webhook-signature": Signer([secret]).headers(webhook_id, now, text.encode())["webhook-signature"],
    }
    Webhook(secret).verify(text, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(text + ".", headers, json_parse=False)


def test_the_vector_of_the_specifications_libraries() -> None:
    """A signature matches the test vector of the Standard Webhooks libraries byte for byte."""
    signer = Signer(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    signed = signer.headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')["webhook-signature"]
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("secret", [SVIX_SECRET, private(b64decode(SVIX_SECRET[5:])[:32])])
def test_the_published_vector_of_v1a(secret: str) -> None:
    """The published vector of v1a is matched byte for byte."""
    signed = Signer([secret]).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')[
        "webhook-signature"
    ]
    assert signed == SVIX_SIGNED
    assert public_key(secret) == SVIX_PUBLIC


@pytest.mark.parametrize(
    ("seed", "public"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ),
    ],
)
def test_the_keys_of_rfc_8032(seed: str, public: str) -> None:
    """The keys of RFC 8032 are derived from its seeds, and verify its signatures."""
    secret = private(bytes.fromhex(seed))
    assert public_key(secret) == "whpk_" + b64encode(bytes.fromhex(public)).decode()
    assert proves(public_key(secret), Signer([secret]).headers("a", 7, b"body")["webhook-signature"], b"a.7.body")


@FEW
@given(SEEDS, IDS, st.binary())
def test_the_public_key_proves_what_is_signed(seed: bytes, webhook_id: str, body: bytes) -> None:
    """The public key verifies the signature of any body, and not with another timestamp."""
    secret = private(seed)
    signed = Signer([secret]).headers(webhook_id, 7, body)["webhook-signature"]
    assert proves(public_key(secret), signed, webhook_id.encode() + b".7." + body)
    assert not proves(public_key(secret), signed, webhook_id.encode() + b".8." + body)


def test_every_secret_signs_while_they_are_changed() -> None:
    """All secrets sign, in order, and a receiver with any one of them accepts."""
    old, new, now = new_secret(b"o" * 24), new_secret(b"n" * 64), int(time.time())
    signature = Signer([old, SVIX_SECRET, new]).headers("a", now, b"{}")["webhook-signature"]
    assert [part.split(",")[0] for part in signature.split(" ")] == ["v1", "v1a", "v1"]
    headers = {"webhook-id": "a", "webhook-timestamp": str(now), "webhook-signature": signature}
    for secret in (old, new):
        assert Webhook(secret).verify(b"{}", headers) == {}
    assert proves(SVIX_PUBLIC, signature.split(" ")[1], b"a.%d.{}" % now)


@given(KEYS, st.sampled_from(["", "\n", "\r\n", " \n\n", "\t"]))
def test_white_space_around_a_secret_does_not_count(key: bytes, space: str) -> None:
    """White space around a secret is ignored."""
    secret = new_secret(key)
    assert (
        Signer([space + secret + space]).headers("a", 1, b"")["webhook-signature"]
        == Signer([secret]).headers("a", 1, b"")["webhook-signature"]
    )


TELLTALE = "Zm9vYmFy"


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "\n",
        TELLTALE,
        b64encode(b"k" * 32).decode(),
        "whsec_",
        "whsec_" + TELLTALE,
        "whsec_" + b64encode(b"k" * 23).decode(),
        "whsec_" + b64encode(b"k" * 65).decode(),
        "whsec_" + b64encode(b"k" * 32).decode().rstrip("="),
        "whsec_" + b64encode(b"\xff" * 32).decode().replace("/", "_"),
        "whsec_" + TELLTALE * 4 + "\n" + TELLTALE,
        "whsec_é" + TELLTALE * 4,
        "WHSEC_" + TELLTALE * 4,
        "Whsec_" + TELLTALE * 4,
        "whsec" + TELLTALE * 4,
        new_secret(b"k" * 24) + " " + new_secret(b"l" * 24),
        private(b"k" * 31),
        private(b"k" * 33),
        private(b"k" * 32, b"l" * 32),
        SVIX_PUBLIC,
    ],
)
def test_everything_else_is_refused_and_never_shown(secret: str) -> None:
    """An unusable secret is an error that shows no part of it but the prefix."""
    for use in (lambda: Signer([new_secret(b"k" * 32), secret]), lambda: public_key(secret)):
        with pytest.raises(SecretUnusable, match="expected") as refused:
            use()
        assert isinstance(refused.value, ConfigurationError)
        assert isinstance(refused.value, ValueError)
        shown = "".join(traceback.format_exception(refused.value))
        tail = secret.strip().removeprefix("whsec_").removeprefix("whsk_").removeprefix("whpk_")
        assert not tail or tail not in shown
        assert refused.value.__cause__ is None
        assert refused.value.__context__ is None


def test_a_signer_does_not_show_its_secrets() -> None:
    """A signer's ``repr`` and attributes show no secret."""
    signer = Signer([new_secret(b"k" * 24)])
    assert b64encode(b"k" * 24).decode() not in repr(signer) + repr(
        [getattr(signer, name) for name in signer.__slots__]
    )


def test_there_is_no_signer_without_secrets() -> None:
    """A signer without secrets is refused."""
    with pytest.raises(SecretUnusable, match="at least one"):
        Signer([])


def test_a_public_key_is_not_asked_of_a_shared_secret() -> None:
    """A shared secret has no public key."""
    with pytest.raises(SecretUnusable, match="whsk_"):
        public_key(new_secret(b"k" * 24))


@pytest.mark.parametrize("size", [0, 23, 65])
def test_a_new_secret_has_a_size_that_everybody_takes(size: int) -> None:
    """A new secret of fewer than 24 or more than 64 bytes is refused."""
    with pytest.raises(ValueError, match="24 to 64"):
        new_secret(b"k" * size)


def test_what_hides_secrets_knows_the_prefix_of_every_scheme() -> None:
    """The redaction in :mod:`poller.text` knows the prefix of every signature scheme."""
    assert [scheme.prefix for scheme in SCHEMES] == list(SIGNING_SECRETS)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_new_secret_of_every_scheme_signs_in_its_header(scheme: SignatureScheme) -> None:
    """A new secret of every scheme signs in the scheme's header, and has a public key if the scheme does."""
    secret = new_secret(bytes(range(DRAWN)), scheme.name)
    (signed,) = Signer([secret]).headers("a", 7, b"body").items()
    assert signed[0] == scheme.header
    assert signed[0] in SIGNATURE_HEADERS
    assert signed[1].startswith(f"{scheme.version},")
    assert (public_keys([secret]) != ()) is (scheme.public_key is not None)
