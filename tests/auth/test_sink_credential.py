"""Sink credentials from a request: what fits a header is accepted, sent correctly, and never shown."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.pretty import pretty_repr

from poller.auth.sink_credential import EXPECTED, KIND, LONGEST, UNKNOWN, authorization_of, brought_of, kind_of, written
from poller.errors import ConfigurationError
from tests.harness.leaks import leaks

SECRET: Final = "c0rrect-h0rse-battery-staple"  # noqa: S105 -- of this test alone
TOKEN: Final[dict[str, Any]] = {"credentialtype": "ACCESSTOKEN", "accesstoken": SECRET}
PLAIN: Final[dict[str, Any]] = {"credentialtype": "PLAIN", "identifier": "poller", "secret": SECRET}
EXPIRES: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


def kept(given: Mapping[str, Any]) -> bytes:
    made = brought_of(given)
    assert not isinstance(made, dict), made
    return written(made)


def test_an_access_token_is_a_bearer() -> None:
    """An access token is sent as ``Bearer``, whatever case the type had."""
    for spelled in ({}, {"accesstokentype": "Bearer"}, {"accesstokentype": "bearer"}):
        assert authorization_of(kept(TOKEN | spelled)).value == f"Bearer {SECRET}"


def test_a_name_and_a_secret_are_basic() -> None:
    """Name and secret are joined and encoded by RFC 7617; the secret may be empty or contain a colon."""
    for secret in (SECRET, "a:b", "", "schlüssel"):
        scheme, _, value = authorization_of(kept(PLAIN | {"secret": secret})).value.partition(" ")
        assert (scheme, base64.b64decode(value).decode()) == ("Basic", f"poller:{secret}")


def test_an_expired_token_is_remarked_on() -> None:
    """A token counts as expired from its moment on, and never if it has none."""
    one = authorization_of(kept(TOKEN | {"accesstokenexpiresutc": "2026-03-02T08:15:00Z"}))
    assert one.remark(EXPIRES - timedelta(microseconds=1)) == ""
    assert one.remark(EXPIRES) == "the access token expired at 2026-03-02T08:15:00Z"
    early = authorization_of(kept(TOKEN | {"accesstokenexpiresutc": "0001-01-01T00:00:00+14:00"}))
    assert "expired at 0001-01-01T00:00:00+14:00" in early.remark(EXPIRES)
    for unknown in (TOKEN, TOKEN | {"accesstokenexpiresutc": None}, PLAIN):
        assert authorization_of(kept(unknown)).remark(datetime.max.replace(tzinfo=UTC)) == ""


UNUSABLE: Final[list[tuple[dict[str, Any], dict[str, str]]]] = [
    ({}, {"credentialtype": KIND}),
    ({"credentialtype": ["ACCESSTOKEN"]}, {"credentialtype": KIND}),
    ({"credentialtype": "accesstoken", "accesstoken": SECRET}, {"credentialtype": KIND}),
    *(
        (TOKEN | {"accesstoken": token}, {"accesstoken": EXPECTED["accesstoken"]})
        for token in ("", "x" * (LONGEST + 1), "a b", "a\n", "\na", "a\r\nX-A: b", "a\x00", "ä", 7, None, [SECRET])
    ),
    *(
        (TOKEN | {"accesstokenexpiresutc": moment}, {"accesstokenexpiresutc": EXPECTED["accesstokenexpiresutc"]})
        for moment in ("2026-03-02T08:15:00", "soon", "", 7)
    ),
    (TOKEN | {"accesstokentype": "MAC"}, {"accesstokentype": EXPECTED["accesstokentype"]}),
    *((PLAIN | {"identifier": name}, {"identifier": EXPECTED["identifier"]}) for name in ("", "a:b", "a\n", "\x7f", 1)),
    *(
        (PLAIN | {"secret": secret}, {"secret": EXPECTED["secret"]})
        for secret in ("a\n", "\x85", "\x00", "ü" * LONGEST, None, 1)
    ),
    ({"credentialtype": "PLAIN"}, {key: EXPECTED[key] for key in ("identifier", "secret")}),
    (PLAIN | {"accesstoken": SECRET}, {"": UNKNOWN}),
    (TOKEN | {SECRET: ""}, {"": UNKNOWN}),
]


@pytest.mark.parametrize(("given", "wrong"), UNUSABLE)
def test_what_cannot_be_sent_is_told_by_its_key(given: dict[str, Any], wrong: dict[str, str]) -> None:
    """Each error of a sink credential names its key and what is expected, and repeats no value."""
    found = brought_of(given)
    assert found == wrong
    assert not leaks({"secret": SECRET}, repr(found))


def test_a_refresh_token_is_refused_with_the_reason() -> None:
    """A refresh token is refused with the reason and what to do instead."""
    found = brought_of({"credentialtype": "REFRESHTOKEN", "refreshtoken": SECRET})
    assert isinstance(found, dict)
    assert "not refreshed here" in found["credentialtype"]


@given(st.text(), st.text())
def test_whatever_is_taken_fits_a_header_and_comes_back(name: str, secret: str) -> None:
    """An accepted credential is one line of printable ASCII, and survives storage unchanged."""
    for one in (PLAIN | {"identifier": name, "secret": secret}, TOKEN | {"accesstoken": secret}):
        made = brought_of(one)
        if not isinstance(made, dict):
            value = authorization_of(written(made)).value
            assert value.isascii()
            assert value.isprintable()
            assert msgspec.json.decode(written(made)).items() >= one.items()


def test_none_of_it_is_shown() -> None:
    """No repr, including rich's, and no error shows any part of the credential."""
    for one in (TOKEN, PLAIN):
        made = brought_of(one)
        assert not isinstance(made, dict)
        sent = authorization_of(written(made))
        for shown in (repr(made), repr(sent), pretty_repr(made), pretty_repr(sent), kind_of(written(made))):
            assert not leaks({"secret": SECRET}, shown)
        assert kind_of(written(made)) == one["credentialtype"]


@pytest.mark.parametrize(
    "kept",
    [
        SECRET.encode(),
        b'"\xff"',
        msgspec.json.encode(TOKEN | {"accesstoken": f"{SECRET}\r\nx: y"}),
        msgspec.json.encode({"credentialtype": SECRET}),
        msgspec.json.encode(PLAIN | {"identifier": f"{SECRET}:x"}),
    ],
)
def test_what_another_version_kept_is_not_sent(kept: bytes) -> None:
    """An unreadable stored credential is an error without its content, and its kind is ``?``."""
    with pytest.raises(ConfigurationError) as caught:
        authorization_of(kept)
    assert not leaks({"secret": SECRET}, str(caught.value))
    assert caught.value.__cause__ is None
    assert kind_of(kept) == "?"


def test_secrets_are_those_that_a_sink_may_repeat() -> None:
    """The texts to hide are the secret and its encoded form, and a name only if it is long."""
    joined = base64.b64encode(f"poller:{SECRET}".encode()).decode()
    assert set(filter(None, authorization_of(kept(PLAIN)).secrets)) == {joined, SECRET}
    assert SECRET in authorization_of(kept(PLAIN | {"identifier": SECRET, "secret": ""})).secrets
    assert authorization_of(kept(TOKEN)).secrets == (SECRET,)
