"""Laws of :mod:`poller.delivery.handshake`, and of the handshake over a real socket."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.handshake import (
    Awaiting,
    Granted,
    HandshakeState,
    Refused,
    Revoked,
    Unanswered,
    callback_url,
    decoded,
    digest_of,
    encoded,
    pace,
    state_called,
    state_unanswered,
    ungranted,
)
from poller.delivery.handshake import (
    state_after as state_by,
)
from poller.delivery.sinks.base import PermissionRequest
from poller.delivery.sinks.webhook import permission_of
from tests.delivery.sinks import sink_of
from tests.receiver import Reply, receiving

ORIGIN = "poller.example.org"
KEY = "callback-key"
ASKED = PermissionRequest(ORIGIN)
OFFERED = PermissionRequest(
    ORIGIN, rate=120, callback=callback_url("https://p.example/confirm", subscription="r", key=KEY)
)
NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
STATES: list[HandshakeState] = [
    Granted(ORIGIN),
    Granted(ORIGIN, 100),
    Awaiting(ORIGIN, digest_of(KEY), 5),
    Refused("no"),
    Revoked("no", NOW),
    Unanswered("no", NOW),
]


def said(origin: str | None, rate: str | None = None) -> Mapping[str, str]:
    named = {"webhook-allowed-origin": origin, "webhook-allowed-rate": rate}
    return {name: value for name, value in named.items() if value is not None}


def state_after(
    headers: Mapping[str, str], asked: PermissionRequest, *, status: int = 200, **known: Any
) -> HandshakeState:
    """The state after an HTTP answer."""
    return state_by(permission_of(headers, status, asked), asked, **known)


async def test_the_request_says_what_is_asked_for() -> None:
    """The origin always; rate and callback where there is one; nothing where no permission is asked for."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        for asked in (ASKED, OFFERED, None):
            await sink.verify(asked)
        sent = [
            {name: value for name, value in one.headers if name.lower().startswith("webhook-")}
            for one in receiver.requests
        ]
    callback = {
        "WebHook-Request-Callback": "https://p.example/confirm?id=r&key=callback-key",
        "WebHook-Request-Rate": "120",
    }
    assert sent == [{"WebHook-Request-Origin": ORIGIN}, {"WebHook-Request-Origin": ORIGIN} | callback, {}]


@pytest.mark.parametrize("origin", ["", "127.0.0.1", "::1", "a b", "a\r\nX: y", "https://p.example", "p.example."])
def test_an_origin_is_a_dns_name(origin: str) -> None:
    """Nothing else can stand in the header."""
    with pytest.raises(ValueError, match="DNS name"):
        PermissionRequest(origin)


def test_a_rate_is_positive() -> None:
    """As the header wants it."""
    with pytest.raises(ValueError, match="whole number"):
        PermissionRequest(ORIGIN, rate=0)


@pytest.mark.parametrize(
    ("origin", "rate", "state"),
    [
        (ORIGIN, "100", Granted(ORIGIN, 100)),
        (ORIGIN.upper(), " 100 ", Granted(ORIGIN, 100)),
        ("*", "*", Granted(ORIGIN)),
        ("*", "0000100", Granted(ORIGIN, 100)),
        ("*", None, Granted(ORIGIN)),
        (ORIGIN, "", Granted(ORIGIN)),
    ],
)
def test_permission_is_read_from_the_headers(origin: str, rate: str | None, state: HandshakeState) -> None:
    """Our origin or any; so many a minute, no limit where it says so or nothing."""
    assert state_after(said(origin, rate), ASKED) == state


@pytest.mark.parametrize("origin", ["other.example", "", "**", f"{ORIGIN}, other.example", f"x{ORIGIN}"])
def test_another_origin_is_a_refusal(origin: str) -> None:
    """Whatever the rate, and although a callback was offered."""
    for asked in (ASKED, OFFERED):
        assert isinstance(state_after(said(origin, "*"), asked, key=KEY), Refused)


@pytest.mark.parametrize("rate", ["0", "-1", "1.5", "1e3", "many", "* *", "9" * 30, "\uff11"])
def test_a_rate_that_is_none_is_a_refusal(rate: str) -> None:
    """Nobody guesses."""
    assert isinstance(state_after(said("*", rate), ASKED), Refused)


def test_no_header_is_no_permission() -> None:
    """Without a callback refused; with one it is waited for; a rate alone grants nothing."""
    for rate in (None, "*"):
        assert isinstance(state_after(said(None, rate), ASKED), Refused)
        assert state_after(said(None, rate), OFFERED, key=KEY) == Awaiting(ORIGIN, digest_of(KEY), 120)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 405, 415])
def test_who_does_not_know_the_question_is_refusing(status: int) -> None:
    """Although a callback was offered: who answers OPTIONS so will never call it. A grant is one all the same."""
    state = state_after({}, OFFERED, status=status, key=KEY)
    assert isinstance(state, Refused)
    assert f"answered {status} to OPTIONS" in state.reason
    assert state_after(said("*"), OFFERED, status=status, key=KEY) == Granted(ORIGIN, 120)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_answer_without_a_word_on_permission_leaves_the_callback_open(status: int) -> None:
    """It is no refusal; whoever was offered a callback before may still call it."""
    waiting = state_after({}, OFFERED, key=KEY)
    assert state_after({}, OFFERED, status=status, key="another", before=waiting) == waiting
    assert state_unanswered("nobody there", before=waiting) == waiting
    assert isinstance(state_after({}, OFFERED, status=status, key=KEY), Unanswered)
    assert state_unanswered("nobody there", before=Refused("no", NOW)) == Unanswered("nobody there", NOW)


def test_since_when_nothing_is_granted() -> None:
    """From the first answer that was no grant, whatever came after it; after a grant anew."""
    first = state_after({}, ASKED, status=405, now=NOW)
    later = state_after({}, ASKED, before=first, now=NOW + timedelta(hours=1))
    assert (later.since if not isinstance(later, Granted) else None) == NOW
    revoked = state_after({}, ASKED, before=Granted(ORIGIN), now=NOW + timedelta(hours=2))
    assert revoked == Revoked(str(getattr(later, "reason", "")), NOW + timedelta(hours=2))


def test_what_is_no_grant_has_a_reason_and_a_remedy() -> None:
    """Each of its own; a grant, and a sink that nobody has asked, have none."""
    assert [ungranted(state) for state in (None, Granted(ORIGIN))] == [None, None]
    told = [ungranted(state) for state in STATES[2:]]
    assert [("; " in str(one)) for one in told] == [True] * 4
    assert len(set(told)) == 3  # refused and revoked for the same reason are mended in the same way


def test_a_rate_that_is_not_answered_is_the_one_asked_for() -> None:
    """Never more than was asked."""
    assert state_after(said("*"), OFFERED) == Granted(ORIGIN, 120)


def test_a_refusal_after_a_grant_is_a_revocation() -> None:
    """And stays one until there is a grant again."""
    before: HandshakeState = Granted(ORIGIN)
    for _ in range(2):
        before = state_after(said(None), ASKED, before=before)
        assert isinstance(before, Revoked)
    assert state_after(said("*"), ASKED, before=before) == Granted(ORIGIN)
    assert isinstance(state_after(said(None), ASKED, before=Refused("no")), Refused)


def test_the_callback_grants_with_its_key_alone() -> None:
    """At the rate that it names, else the one asked for; where nobody waits it does nothing."""
    waiting = state_after(said(None), OFFERED, key=KEY)
    assert state_called(waiting, KEY) == Granted(ORIGIN, 120)
    assert state_called(waiting, KEY, "7") == Granted(ORIGIN, 7)
    for wrong in ("", "Callback-key", KEY + " ", digest_of(KEY), "\udcff"):
        assert state_called(waiting, wrong) is None
    for other in (None, Granted(ORIGIN), Refused("no"), Revoked("no")):
        assert state_called(other, KEY) is None


@pytest.mark.parametrize("state", STATES)
def test_states_are_kept_as_json(state: HandshakeState) -> None:
    """And come back as they were, without the callback's key."""
    kept = encoded(state)
    assert decoded(kept) == state
    assert KEY.encode() not in kept


@pytest.mark.parametrize("kept", [b"", b"{}", b"null", b'{"state":"other"}', b'{"state":"granted"}'])
def test_what_is_no_state_is_told(kept: bytes) -> None:
    """Never taken for a grant."""
    with pytest.raises(msgspec.DecodeError):
        decoded(kept)


@given(st.none() | st.floats(0.001, 1e6), st.none() | st.integers(1, 10**9))
def test_the_slower_of_two_rates_is_kept(configured: float | None, rate: int | None) -> None:
    """The grant is a minute's, the subscription's a second's."""
    result = pace(Granted(ORIGIN, rate), configured)
    limits = [limit for limit in (configured, rate and rate / 60) if limit is not None]
    assert (result is None) == (not limits)
    assert all(result is not None and result <= limit for limit in limits)


@pytest.mark.parametrize("status", [200, 204, 404, 405, 500])
async def test_headers_grant_whatever_the_status(status: int) -> None:
    """Over a socket: granted with a 405, not granted with a 200."""
    allowing = (("WebHook-Allowed-Origin", ORIGIN), ("WebHook-Allowed-Rate", "30"))
    async with receiving([Reply(status, allowing), Reply(status)]) as receiver:
        async with sink_of(f"{receiver.url}/hooks?tenant=%20a") as sink:
            first, second = [state_by(await sink.verify(ASKED), ASKED) for _ in range(2)]
        assert first == Granted(ORIGIN, 30)
        assert isinstance(second, Refused | Unanswered)
        assert {request.target for request in receiver.requests} == {"/hooks?tenant=%20a"}
        assert {request.header("webhook-request-origin") for request in receiver.requests} == {ORIGIN}
