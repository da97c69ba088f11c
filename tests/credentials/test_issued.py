"""Laws of :mod:`poller.credentials.issued`, with a clock of the test's own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from poller.credentials.issued import Issued, IssuedToken
from poller.errors import CredentialUnusable, SourceError, SourceUnavailable
from tests.harness.waiting import turns


class Issuer:
    """Makes t1, t2, …, each to be renewed after 80 s and good for 100; fails when told to."""

    origin = "a test"

    def __init__(self) -> None:
        self.now = 1000.0
        self.made = 0
        self.fails: SourceError | None = None
        self.repeats = False
        self.takes = 0.0
        self.credential = IssuedToken(self, clock=lambda: self.now)

    async def issue(self) -> Issued:
        self.made += 1
        number = 1 if self.repeats else self.made
        await turns()
        self.now += self.takes
        if self.fails:
            raise self.fails
        return Issued(f"t{number}", timedelta(seconds=80), timedelta(seconds=100))


async def test_a_token_serves_until_it_is_to_be_renewed() -> None:
    """Then the next one does; its time began when it was asked for, not when it came."""
    issuer = Issuer()
    issuer.takes = 10
    assert await issuer.credential.token() == "t1"
    issuer.now = 1079.9
    assert await issuer.credential.token() == "t1"
    issuer.now = 1080
    assert await issuer.credential.token() == "t2"


async def test_requests_at_the_same_time_share_one_token() -> None:
    """The first one, and each renewal."""
    issuer = Issuer()
    for now, token in ((1000, "t1"), (1090, "t2")):
        issuer.now = now
        assert set(await asyncio.gather(*(issuer.credential.token() for _ in range(20)))) == {token}
    assert issuer.made == 2


async def test_an_outage_of_the_issuer_is_none_while_the_old_token_is_good() -> None:
    """It is asked again only every few seconds; when the old token has expired, the failure is one."""
    issuer = Issuer()
    assert await issuer.credential.token() == "t1"
    issuer.fails = SourceUnavailable("away")
    for now, made in ((1080, 2), (1084, 2), (1085, 3), (1095, 4)):
        issuer.now = now
        assert await issuer.credential.token() == "t1"
        assert issuer.made == made
    issuer.now = 1100
    with pytest.raises(SourceUnavailable, match="away"):
        await issuer.credential.token()
    issuer.fails = None
    assert await issuer.credential.token() == "t6"


async def test_a_refusal_of_the_issuer_is_told_at_once() -> None:
    """It is the operator who has to act, the sooner the better."""
    issuer = Issuer()
    assert await issuer.credential.token() == "t1"
    issuer.fails, issuer.now = CredentialUnusable("no"), 1090
    with pytest.raises(CredentialUnusable):
        await issuer.credential.token()


async def test_a_refused_token_is_renewed_once_however_many_say_so() -> None:
    """At the same time and one after the other: all get the one new token."""
    issuer = Issuer()
    assert await issuer.credential.token() == "t1"
    assert all(await asyncio.gather(*(issuer.credential.renew("t1") for _ in range(20))))
    assert await issuer.credential.renew("t1")
    assert issuer.made == 2
    assert await issuer.credential.token() == "t2"
    assert await issuer.credential.renew("t2")
    assert await issuer.credential.token() == "t3"


async def test_the_same_token_again_is_no_other_token() -> None:
    """A server that hands out its cached token has nothing better."""
    issuer = Issuer()
    issuer.repeats = True
    assert await issuer.credential.token() == "t1"
    assert not await issuer.credential.renew("t1")
    assert issuer.made == 2


async def test_a_refused_token_is_never_used_again() -> None:
    """Not even when the issuer is away and the token's time is not over."""
    issuer = Issuer()
    assert await issuer.credential.token() == "t1"
    issuer.fails = SourceUnavailable("away")
    with pytest.raises(SourceUnavailable):
        await issuer.credential.renew("t1")
    with pytest.raises(SourceUnavailable):
        await issuer.credential.token()
