"""Laws of :mod:`poller.delivery.sink` over TLS, with real certificates: nothing is sent to whom it cannot trust."""

from __future__ import annotations

import ssl
import warnings
from datetime import UTC, datetime

import pytest
import trustme

from poller.delivery.outcome import Failure
from tests.delivery.sinks import loopback, posted
from tests.receiver import receiving

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def presenting(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


async def test_a_trusted_certificate_of_the_right_host_is_accepted(
    authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    """By its name, whatever address that leads to."""
    async with receiving(tls=presenting(authority.issue_cert("sink.example"))) as receiver:
        url = receiver.url.replace("127.0.0.1", "sink.example")
        assert (await posted(url, tls=trusting, lookup=loopback)).success


@pytest.mark.parametrize(
    ("which", "why"),
    [
        ("expired", "certificate has expired"),
        ("self-signed", "unable to get local issuer certificate"),
        ("wrong host", "IP address mismatch"),
    ],
)
async def test_a_certificate_that_proves_nothing_is_not_accepted(
    which: str, why: str, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    """No request is sent, and the line says what is wrong with it."""
    certificate = {
        "expired": lambda: authority.issue_cert("127.0.0.1", not_before=LONG_AGO, not_after=LONG_AGO.replace(month=2)),
        "self-signed": lambda: trustme.CA().issue_cert("127.0.0.1"),
        "wrong host": lambda: authority.issue_cert("other.example"),
    }[which]()
    async with receiving(tls=presenting(certificate)) as receiver:
        outcome = await posted(receiver.url, tls=trusting)
        assert receiver.count == 0
    assert outcome.failure is Failure.TLS
    assert outcome.text.startswith(f"the sink's certificate is not accepted: {why}")


async def test_by_default_the_systems_authorities_are_trusted_and_no_other(authority: trustme.CA) -> None:
    """A private one is not among them."""
    async with receiving(tls=presenting(authority.issue_cert("127.0.0.1"))) as receiver:
        assert (await posted(receiver.url)).failure is Failure.TLS


async def test_old_tls_is_not_spoken(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    """A server that knows TLS 1.1 at most gets nothing."""
    old = presenting(authority.issue_cert("127.0.0.1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with receiving(tls=old) as receiver:
        outcome = await posted(receiver.url, tls=trusting)
        assert receiver.count == 0
    assert outcome.failure is Failure.TLS


async def test_plain_http_where_tls_is_due_is_a_failure_of_tls() -> None:
    """And the other way round no HTTP."""
    async with receiving() as receiver:
        outcome = await posted(receiver.url.replace("http", "https"), seconds=0.2)
    assert outcome.failure in {Failure.TLS, Failure.TIMEOUT}
    async with receiving(tls=presenting(trustme.CA().issue_cert("127.0.0.1"))) as receiver:
        outcome = await posted(receiver.url.replace("https", "http"))
    assert outcome.failure in {Failure.NOT_HTTP, Failure.CLOSED, Failure.RESET}
