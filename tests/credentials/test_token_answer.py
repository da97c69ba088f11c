"""Laws of :mod:`poller.credentials.token_answer`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.credentials.token_answer import LONGEST, UNKNOWN_LIFETIME, Answer, issued, lifetime_of, renewal
from poller.errors import CredentialUnusable, SourceError, SourceUnavailable

ORIGIN = "the token endpoint"
TOKEN = "s3cret-token"  # noqa: S105 -- of no use anywhere
GOOD = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}


def refusal(status: int, body: bytes | dict[str, Any], *secrets: str) -> SourceError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(SourceError) as refused:
        issued(Answer(status, content, secrets), ORIGIN)
    text = str(refused.value)
    assert text.startswith(("the token endpoint", "the access_token of the token endpoint"))
    assert text.isprintable()
    assert len(text) < 400
    assert "s3cret" not in text
    return refused.value


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [
        (3600, 3600),
        ("3600", 3600),
        (3599.5, 3599.5),
        (" 60 ", 60),
        (1, 1),
        (0.5, 0.5),
        (10**9, 86400),
        (1e9, 86400),
        (10**400, 86400),
        (0, 300),
        (-1, 300),
        ("-1", 300),
        (None, 300),
        ("soon", 300),
        ("", 300),
        ("nan", 300),
        ("inf", 300),
        (True, 300),
        ([3600], 300),
        ({}, 300),
    ],
)
def test_every_lifetime_counts_for_something(expires_in: object, seconds: float) -> None:
    """What makes no sense is unknown, what is endless is a day; none makes every request ask for a token."""
    assert lifetime_of(expires_in) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("lifetime", "after"), [(3600, 3540), (300, 240), (100, 80), (10, 8), (1, 0.8)])
def test_a_token_is_renewed_a_little_before_its_end(lifetime: float, after: float) -> None:
    """A minute before; short-lived ones when a fifth of their time is left."""
    assert renewal(timedelta(seconds=lifetime)) == timedelta(seconds=after)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())))
def test_no_lifetime_breaks_anything(expires_in: object) -> None:
    """Whatever it is: within bounds, and renewed within it."""
    lifetime = lifetime_of(expires_in)
    assert timedelta(0) <= renewal(lifetime) <= lifetime <= LONGEST


@pytest.mark.parametrize("kind", ["Bearer", "bearer", "BEARER", None])
def test_a_bearer_token_is_used(kind: str | None) -> None:
    """However its type is written; a server that leaves it out means the only one there is."""
    assert issued(Answer(200, json.dumps({**GOOD, "token_type": kind}).encode()), ORIGIN).value == TOKEN


def test_a_lifetime_that_is_left_out_is_unknown() -> None:
    """As one that is null."""
    del (answer := dict(GOOD))["expires_in"]
    assert issued(Answer(200, json.dumps(answer).encode()), ORIGIN).valid_for == UNKNOWN_LIFETIME


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({**GOOD, "token_type": "mac"}, 'tokens of type "mac"'),
        ({**GOOD, "token_type": f"x {TOKEN}"}, 'tokens of type "x [redacted]"'),
        ({**GOOD, "token_type": 1}, 'tokens of type "1"'),
        ({"error": "invalid_scope", **GOOD}, "200: invalid_scope"),
        ({"error": {"code": 7}}, "200: {'code': 7}"),
        ({**GOOD, "access_token": ""}, "holds no token"),
        ({**GOOD, "access_token": "two s3cret"}, "does not hold a token"),
        ({**GOOD, "access_token": "s3cret\r\nX: y"}, "does not hold a token"),
        ({**GOOD, "access_token": None}, "200 without an access_token"),
        ({**GOOD, "access_token": 7}, "200 without an access_token"),
        ({}, "200 without an access_token"),
        (b"", "200 without an access_token"),
        (b"<html>s3cret", "200 without an access_token"),
        (b"[1]", "200 without an access_token"),
        (b"[" * 60_000, "200 without an access_token"),
        (b"\xff\xfe", "200 without an access_token"),
        (b'{"access_token": "s3cret', "200 without an access_token"),
    ],
)
def test_a_200_without_a_token_that_can_be_used_is_refused(body: bytes | dict[str, Any], says: str) -> None:
    """Another type, an error, no token, no JSON: the operator has to see it."""
    refused = refusal(200, body)
    assert isinstance(refused, CredentialUnusable)
    assert says in str(refused)


@pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 401, 403, 404, 405, 415])
def test_a_refusal_says_the_servers_reason(status: int) -> None:
    """Status, error and description, shortened, and without what the request held."""
    told = {"error": "unauthorized_client", "error_description": f"{'s3cret-1'} may not\n" + "y" * 500}
    refused = refusal(status, told, "s3cret-1")
    assert isinstance(refused, CredentialUnusable)
    assert f"has answered {status}: unauthorized_client: [redacted] may not yy" in str(refused)
    assert ("redirects are not followed" in str(refused)) == (300 <= status < 400)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_an_outage_may_be_over_later(status: int) -> None:
    """The same statuses as the API's. A body that is no error of OAuth's is not shown."""
    refused = refusal(status, b'<h1>s3cret is down</h1>{"access_token":"s3cret')
    assert isinstance(refused, SourceUnavailable)
    assert str(refused) == f"the token endpoint has answered {status}"


@pytest.mark.parametrize("status", [200, 400])
def test_errors_that_say_so_may_be_over_later(status: int) -> None:
    """Some servers say it in the body alone."""
    assert isinstance(refusal(status, {"error": "temporarily_unavailable"}), SourceUnavailable)


@pytest.mark.parametrize(
    ("status", "body", "refuses"),
    [
        (401, b'{"error":"invalid_client"}', True),
        (400, b'{"error":"invalid_client"}', True),
        (403, b'{"error":"invalid_client"}', False),
        (401, b'{"error":"access_denied"}', False),
        (401, b"", False),
    ],
)
def test_only_invalid_client_means_that_the_proof_was_not_taken(status: int, body: bytes, refuses: bool) -> None:
    """Anything else would be refused the second way too."""
    assert Answer(status, body).refuses_client is refuses
