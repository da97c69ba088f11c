"""Laws of :mod:`poller.delivery.sinks.webhook` over TLS, with real certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
import uvloop

from poller.delivery.sinks.base import Failure
from poller.http.transport import CertificateFiles, Transport, _system_tls
from tests.delivery.sinks import TYPE, loopback, posted, sink_of
from tests.receiver import PATIENCE, Raw, receiving

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
    """A trusted certificate of the right host name is accepted at any address."""
    async with receiving(tls=presenting(authority.issue_cert("sink.example"))) as receiver:
        url = receiver.url.replace("127.0.0.1", "sink.example")
        assert (await posted(url, tls=trusting, lookup=loopback)).is_delivered


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
    """With an invalid certificate no request is sent, and the error has the reason."""
    certificate = {
        "expired": lambda: authority.issue_cert("127.0.0.1", not_before=LONG_AGO, not_after=LONG_AGO.replace(month=2)),
        "self-signed": lambda: trustme.CA().issue_cert("127.0.0.1"),
        "wrong host": lambda: authority.issue_cert("other.example"),
    }[which]()
    async with receiving(tls=presenting(certificate)) as receiver:
        outcome = await posted(receiver.url, tls=trusting)
        assert receiver.count == 0
    assert outcome.failure is Failure.TLS
    assert outcome.error.startswith(f"the sink's certificate is not accepted: {why}")


async def test_a_certificate_file_that_changes_counts_from_the_next_request_on(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """An open sink trusts the authority that its file names now."""
    file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(file)
    certificates = CertificateFiles(Transport(ca_file=file), "sink")
    async with (
        receiving(tls=presenting(authority.issue_cert("127.0.0.1"))) as receiver,
        sink_of(receiver.url, certificates=certificates) as sink,
    ):
        assert (await sink.post((TYPE,), b"{}")).failure is Failure.TLS
        authority.cert_pem.write_to_path(file)
        assert (await sink.post((TYPE,), b"{}")).is_delivered


@pytest.fixture
def systems(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system's authorities are this one."""
    file = tmp_path / "authorities.pem"
    authority.cert_pem.write_to_path(file)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    _system_tls.cache_clear()
    yield
    _system_tls.cache_clear()


@pytest.mark.usefixtures("systems")
async def test_by_default_the_systems_authorities_are_trusted_and_no_other(authority: trustme.CA) -> None:
    """By default only the system's certificate authorities are trusted."""
    for issuer, accepted in ((authority, True), (trustme.CA(), False)):
        async with receiving(tls=presenting(issuer.issue_cert("127.0.0.1"))) as receiver:
            outcome = await posted(receiver.url)
            assert (outcome.is_delivered, outcome.failure is Failure.TLS) == (accepted, not accepted)


async def test_old_tls_is_not_spoken(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    """A server that supports TLS 1.1 at most gets no request."""
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


class Alerting:
    """A TLS server that refuses with an alert, as most do; asyncio's server sends none, so it runs in a thread."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(PATIENCE)
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        """Serve one connection and read it to its end: an early close could reset it before the alert."""
        connection, _ = self._socket.accept()
        connection.settimeout(PATIENCE)
        tls = self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with closing(self._socket), closing(tls), suppress(TimeoutError, ConnectionError):
            with suppress(ssl.SSLError):
                tls.do_handshake()
                tls.recv(65536)
            with socket.socket(fileno=tls.detach()) as raw:
                raw.settimeout(PATIENCE)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(65536):
                    pass


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_sink_that_wants_a_client_certificate_is_named(
    version: ssl.TLSVersion, loop: str, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    """The error names TLS, the sink's alert and the keys to set, though TLS 1.3 alerts only after the handshake."""
    wanting = presenting(authority.issue_cert("127.0.0.1"))
    wanting.maximum_version = version
    wanting.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(wanting)
    server = Alerting(wanting)
    serving = threading.Thread(target=server.serve)
    serving.start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        outcome = runner.run(posted(server.url, tls=trusting))
    serving.join()
    alert = "certificate required" if version is ssl.TLSVersion.TLSv1_3 else "handshake failure"
    assert outcome.failure is Failure.TLS
    assert outcome.error.startswith(f"the sink refuses TLS (alert: {alert}); it ")
    assert "want" in outcome.error
    assert "client_cert_file and client_key_file of the subscription" in outcome.error


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_sink_that_ends_a_handshake_without_a_word_may_want_a_client_certificate(
    version: ssl.TLSVersion, authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    """Without an alert the error says when the connection ended and suggests a client certificate."""
    wanting = presenting(authority.issue_cert("127.0.0.1"))
    wanting.maximum_version = version
    wanting.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(wanting)
    async with receiving(tls=wanting) as receiver:
        outcome = await posted(receiver.url, tls=trusting)
    assert "TLS was" in outcome.error
    assert "it may want a client certificate (client_cert_file and client_key_file" in outcome.error


async def test_what_is_no_tls_is_named(trusting: ssl.SSLContext) -> None:
    """A plain HTTP answer to a TLS handshake is named in the error."""

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.read(1)
            writer.write(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            await writer.drain()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with server:
        outcome = await posted(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", tls=trusting)
    assert outcome.failure is Failure.TLS
    assert "the sink seems to speak plain HTTP" in outcome.error


async def test_http_2_over_tls_is_named(authority: trustme.CA, trusting: ssl.SSLContext) -> None:
    """An HTTP/2 answer over TLS is named in the error, with the remedy."""
    frames = Raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64")
    async with receiving(frames, tls=presenting(authority.issue_cert("127.0.0.1"))) as receiver:
        outcome = await posted(receiver.url, tls=trusting)
    assert outcome.error.startswith("the answer is not HTTP/1.1: the sink speaks HTTP/2 only; enable HTTP/1.1")


async def test_plain_http_where_tls_is_due_is_a_failure_of_tls() -> None:
    """TLS to a plain HTTP port and plain HTTP to a TLS port are failures of their own kinds."""
    async with receiving() as receiver:
        outcome = await posted(receiver.url.replace("http", "https"), seconds=0.2)
    assert outcome.failure in {Failure.TLS, Failure.TIMEOUT}
    async with receiving(tls=presenting(trustme.CA().issue_cert("127.0.0.1"))) as receiver:
        outcome = await posted(receiver.url.replace("https", "http"))
    assert outcome.failure in {Failure.NOT_HTTP, Failure.CLOSED, Failure.RESET}
