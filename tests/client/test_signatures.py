"""Laws of :mod:`poller.client.signatures`: who is believed, and what refusals say."""

from __future__ import annotations

import traceback
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.client import MalformedSecret, VerificationError, WebhookRefused, verify
from poller.delivery.signing import Signer, new_secret, public_key
from tests.changes.samples import FEW
from tests.client.webhooks import NOW, OTHER, PRIVATE, SECRET, event, signed
from tests.delivery.test_signing import SVIX_PUBLIC, SVIX_SECRET, SVIX_SIGNED

BODY = event("a1", data={"name": "a value"})
AT = datetime.fromtimestamp(NOW, UTC)
STRANGER = "whsk_" + b64encode(b"x" * 32).decode()


def accepts(headers: object, body: bytes, secrets: object, now: datetime = AT) -> bool:
    try:
        verify(headers, body, secrets, now=now)  # type: ignore[arg-type] # of any kind
    except VerificationError:
        return False
    return True


@pytest.mark.parametrize(
    ("signing", "verifying"),
    [
        ([SECRET], SECRET),
        ([SECRET], [OTHER, SECRET]),
        ([OTHER, SECRET], [SECRET]),
        ([PRIVATE], [public_key(PRIVATE)]),
        ([PRIVATE], [PRIVATE]),
        ([OTHER, PRIVATE], [SECRET, public_key(PRIVATE)]),
        ([SECRET], f"\n {SECRET}\r\n"),
        ([SVIX_SECRET], SVIX_PUBLIC),
        ([SVIX_SECRET], SVIX_SECRET),
    ],
)
def test_one_signature_of_one_secret_is_enough(signing: list[str], verifying: str | list[str]) -> None:
    """A request is accepted if any of its signatures is of any of the secrets, of both versions."""
    assert accepts(signed(BODY, *signing, at=NOW), BODY, verifying)


@pytest.mark.parametrize("family", ["webhook", "svix"])
@pytest.mark.parametrize(
    ("signing", "verifying"),
    [([OTHER], [SECRET]), ([PRIVATE], [SECRET]), ([SECRET], [public_key(PRIVATE)]), ([STRANGER], [PRIVATE])],
)
def test_other_secrets_are_refused(signing: list[str], verifying: list[str], family: str) -> None:
    """A request that none of the secrets has signed is refused."""
    assert not accepts(signed(BODY, *signing, at=NOW, family=family), BODY, verifying)


def test_the_published_vector_of_v1a() -> None:
    """The published vector of v1a is accepted, and no other body."""
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": SVIX_SIGNED,
    }
    at = datetime.fromtimestamp(1_614_265_330, UTC)
    with pytest.raises(WebhookRefused, match="expected application/cloudevents") as refused:
        verify(headers, b'{"test": 2432232314}', SVIX_PUBLIC, now=at)
    assert refused.value.status == 415  # verified, and then no CloudEvent
    assert not accepts(headers, b'{"test": 2432232315}', SVIX_PUBLIC, now=at)


@FEW
@given(st.data())
def test_no_byte_may_change(data: st.DataObject) -> None:
    """With any one byte of body, id, timestamp or signature changed, the request is refused."""
    secret = data.draw(st.sampled_from([SECRET, PRIVATE]))
    headers, body = signed(BODY, secret, at=NOW), BODY
    assert accepts(headers, body, secret)
    name = data.draw(st.sampled_from(["body", "webhook-id", "webhook-timestamp", "webhook-signature"]))
    text = body.decode() if name == "body" else headers[name]
    at = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from([one for one in "0129abzAZ,. " if one != text[at]]))
    changed = text[:at] + letter + text[at + 1 :]
    if name == "body":
        body = changed.encode()
    else:
        headers |= {name: changed}
    assert not accepts(headers, body, secret)


def test_a_signature_has_one_spelling() -> None:
    """A signature whose base64 has other unused bits, and so the same bytes, is refused in both versions."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    for secret, padding in ((SECRET, "="), (PRIVATE, "==")):
        headers = signed(BODY, secret, at=NOW)
        signature = headers["webhook-signature"].removesuffix(padding)
        other = signature[:-1] + letters[letters.index(signature[-1]) + 1] + padding
        version, _, encoded = other.partition(",")
        assert b64decode(encoded) == b64decode(headers["webhook-signature"].partition(",")[2])
        assert not accepts(headers | {"webhook-signature": f"{version},{encoded}"}, BODY, secret)


@pytest.mark.parametrize("seconds", [-301, -300, 0, 300, 301])
def test_a_signature_is_valid_for_five_minutes_in_both_directions(seconds: int) -> None:
    """A signature older or earlier than the tolerance is refused, whatever it proves."""
    headers = signed(BODY, SECRET, at=NOW)
    assert accepts(headers, BODY, SECRET, now=AT + timedelta(seconds=seconds)) is (abs(seconds) <= 300)


def test_the_tolerance_is_chosen() -> None:
    """Another tolerance holds in place of five minutes."""
    headers, later = signed(BODY, SECRET, at=NOW), AT + timedelta(minutes=20)
    assert verify(headers, BODY, SECRET, now=later, tolerance=timedelta(hours=1))
    with pytest.raises(VerificationError, match="too long ago"):
        verify(headers, BODY, SECRET, now=AT + timedelta(seconds=2), tolerance=timedelta(seconds=1))
    with pytest.raises(VerificationError, match="in the future"):
        verify(headers, BODY, SECRET, now=AT - timedelta(seconds=2), tolerance=timedelta(seconds=1))


def test_without_a_moment_it_is_now() -> None:
    """A request that was just signed is accepted, and one of 2025 is not."""
    assert verify(signed(BODY, SECRET), BODY, SECRET)
    with pytest.raises(VerificationError, match="too long ago"):
        verify(signed(BODY, SECRET, at=NOW), BODY, SECRET)


def test_headers_of_any_framework() -> None:
    """Names count in any case; headers may be pairs of text or of bytes, with a name several times."""
    headers = signed(BODY, SECRET, at=NOW)
    upper = {name.upper(): text for name, text in headers.items()}
    raw = [(name.encode(), text.encode()) for name, text in headers.items()]
    signatures = signed(BODY, OTHER, at=NOW)["webhook-signature"]
    twice = [("Webhook-Signature", signatures), *headers.items()]
    folded = headers | {"webhook-signature": f"{signatures}, {headers['webhook-signature']}"}
    for given_headers in (headers, upper, raw, list(upper.items()), twice, folded):
        assert accepts(given_headers, BODY, SECRET)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp"])
def test_an_id_or_a_timestamp_that_comes_twice_is_refused(name: str) -> None:
    """Which of two ids or timestamps counts is not guessed."""
    headers = signed(BODY, SECRET, at=NOW)
    assert not accepts([*headers.items(), (name, headers[name])], BODY, SECRET)


def test_the_two_sets_of_headers_are_not_mixed() -> None:
    """Headers of Svix are accepted alone; with one of another name missing, the set is not completed by the other."""
    svix, standard = signed(BODY, SECRET, at=NOW, family="svix"), signed(BODY, SECRET, at=NOW)
    assert accepts(svix, BODY, SECRET)
    mixed = {name: text for name, text in svix.items() if name != "svix-id"}
    assert not accepts(mixed | {"webhook-id": "msg_1"}, BODY, SECRET)
    assert not accepts(svix | standard | {"webhook-signature": "v1,AAAA"}, BODY, SECRET)


def test_a_body_cannot_be_moved_into_the_id() -> None:
    """An id with a dot is refused: one signature would prove two pairs of id and body."""
    body = b"1750000001.{}"
    headers = signed(body, SECRET, at=NOW) | {"Content-Type": "text/plain", "ce-id": "1"}
    moved = headers | {"webhook-id": f"msg_1.{NOW}", "webhook-timestamp": "1750000001"}
    with pytest.raises(VerificationError, match="no id"):
        verify(moved, b"{}", SECRET, now=AT)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"webhook-signature": None}, "not signed"),
        ({"webhook-timestamp": "1_750_000_000"}, "number of seconds"),
        ({"webhook-timestamp": "-1"}, "number of seconds"),
        ({"webhook-timestamp": "\u0661\u0667\u0665"}, "number of seconds"),  # digits of another script
        ({"webhook-id": ""}, "no id"),
        ({"webhook-id": "é"}, "no id"),
        ({"webhook-signature": ""}, "version v1"),
        ({"webhook-signature": "v2,AAAA v1a,AAAA"}, "version v1"),
        ({"webhook-signature": "v1,AAAA"}, "no signature matches"),
        ({"webhook-signature": "v1,é"}, "no signature matches"),
        ({"webhook-signature": "v1,AAAA " * 33}, "more than 32"),
    ],
)
def test_reasons(changed: dict[str, str | None], says: str) -> None:
    """Each refusal says what is wrong, is a ValueError with status 401, and repeats nothing of the request."""
    headers = {name: text for name, text in (signed(BODY, SECRET, at=NOW) | changed).items() if text is not None}
    with pytest.raises(VerificationError, match=says) as refused:
        verify(headers, BODY, SECRET, now=AT)
    assert isinstance(refused.value, ValueError)
    assert refused.value.status == 401
    shown = "".join(traceback.format_exception(refused.value))
    assert not [part for part in ("a value", "AAAA", SECRET[6:]) if part in shown]


TELLTALE = "Zm9vYmFy"


@pytest.mark.parametrize(
    "secret",
    [
        "",
        TELLTALE * 4,
        "whsec_" + TELLTALE,
        "whsec_" + TELLTALE * 12,
        "whsec_" + TELLTALE * 4 + "\n" + TELLTALE,
        "WHSEC_" + TELLTALE * 4,
        "whpk_" + TELLTALE,
        "whsk_" + TELLTALE,
        "whsk_" + b64encode(b"k" * 32 + b"l" * 32).decode(),
        f"{SECRET} {OTHER}",
    ],
)
def test_a_malformed_secret_is_no_refused_request(secret: str) -> None:
    """A secret that cannot be used is an error of its own, and no part of it is shown."""
    for secrets in (secret, [SECRET, secret]):
        with pytest.raises(MalformedSecret, match="expected") as wrong:
            verify(signed(BODY, SECRET), BODY, secrets)
        assert not isinstance(wrong.value, WebhookRefused)
        shown = "".join(traceback.format_exception(wrong.value))
        assert TELLTALE not in shown
        assert b64encode(b"k" * 24).decode() not in shown


@pytest.mark.parametrize("secrets", [[], (), [None], ""])
def test_no_secret_at_all_is_malformed(secrets: list[str]) -> None:
    """An empty list, or a variable that is not set within one, verifies nothing and is refused."""
    with pytest.raises(MalformedSecret):
        verify(signed(BODY, SECRET), BODY, secrets)


def test_none_verifies_nothing() -> None:
    """Only None in place of the secrets accepts what is not signed."""
    (found,) = verify({"content-type": "application/cloudevents+json"}, BODY, None)
    assert found.get_id() == "a1"


def test_text_is_not_what_was_signed() -> None:
    """A body that was decoded already is refused, because a signature covers bytes."""
    with pytest.raises(TypeError, match="bytes as received"):
        verify(signed(BODY, SECRET), BODY.decode(), SECRET)  # type: ignore[arg-type] # that is the mistake


@FEW
@given(st.binary(min_size=24, max_size=64), st.binary(min_size=32, max_size=32), st.binary())
def test_what_this_program_signs_is_verified(key: bytes, seed: bytes, body: bytes) -> None:
    """Whatever the daemon signs is verified by each of its secrets, with any body."""
    secrets = [new_secret(key), new_secret(seed, "ed25519")]
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    signature = Signer(secrets).headers("m", NOW, body)["webhook-signature"]
    headers = dict(zip(names, ("m", str(NOW), signature), strict=True)) | {"ce-id": "1"}
    for secret in (*secrets, public_key(secrets[1])):
        with pytest.raises(WebhookRefused) as refused:
            verify(headers, body, secret, now=AT)
        assert refused.value.status != 401
