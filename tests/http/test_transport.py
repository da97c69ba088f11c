"""Laws of :mod:`poller.http.transport`, with real certificates and a real forward proxy."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

import aiohttp
import httpx
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from poller.auth.oauth import ClientCredentials, OAuthClient
from poller.clock import Clock
from poller.errors import SourceUnavailable
from poller.http.transport import DirectClient, SharedConnections, Transport, reason_of, shared_tls, transport_of
from poller.limits import http_date, pause_requested
from poller.source.client import ClientLimits, HttpSession
from tests.harness.lookups import without_lookups
from tests.harness.waiting import until
from tests.receiver import FLOOD, flooded
from tests.source.api import Flying, http, serving
from tests.source.clients import client_of, failure_of, keep


class Certificates(NamedTuple):
    """A private certificate authority in a file, and the TLS context of a server."""

    authority: trustme.CA
    file: Path
    server: ssl.SSLContext

    def client(self, path: Path) -> Path:
        """Certificate and key of a client, in one file."""
        made = self.authority.issue_cert("poller@example.org")
        return keep(path, b"".join(part.bytes() for part in (made.private_key_pem, *made.cert_chain_pems)))


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    return Certificates(authority, tmp_path / "ca.pem", server)


async def test_a_private_authority_is_trusted_where_it_is_named(certificates: Certificates) -> None:
    """With ``ca_file`` a server of a private authority is trusted."""
    async with (
        serving(http(200, b"ok"), tls=certificates.server) as api,
        client_of(api.url, transport=Transport(ca_file=certificates.file), clock=Clock()) as client,
    ):
        assert await client.get("/x") == b"ok"


async def test_certificates_that_are_renewed_are_used_by_a_client_that_is_open(certificates: Certificates) -> None:
    """An open session uses renewed files for the next request, and the last valid ones while they are unusable."""
    other = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    other.issue_cert("127.0.0.1").configure_cert(server)
    async with (
        serving(http(200, b"ok"), tls=server) as api,
        HttpSession(api.url, ClientLimits(), Transport(ca_file=certificates.file), clock=Clock()) as session,
    ):
        assert "certificate is not accepted" in (await session.get("/x")).text
        certificates.file.write_bytes(b"nonsense")
        assert "expected PEM" in (await session.get("/x")).text
        other.cert_pem.write_to_path(certificates.file)
        assert (await session.get("/x")).body == b"ok"
        certificates.file.unlink()
        assert (await session.get("/x")).body == b"ok"


async def test_the_token_endpoint_uses_renewed_certificates(certificates: Certificates, tmp_path: Path) -> None:
    """The token issuer reads renewed certificates too."""
    secret = keep(tmp_path / "secret", "s3cret")
    issued = http(200, b'{"access_token":"t1","token_type":"bearer"}')
    file = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(file)
    async with serving(issued, tls=certificates.server) as server:
        asked = OAuthClient(server.url, "c", secret)
        issuer = ClientCredentials(asked, transport=Transport(file), within=timedelta(seconds=20))
        with pytest.raises(SourceUnavailable, match="certificate is not accepted"):
            await issuer.issue()
        certificates.authority.cert_pem.write_to_path(file)
        assert (await issuer.issue()).value == "t1"


def test_names_are_not_looked_up_by_the_event_loop() -> None:
    """Sources are reached by their names without a look-up of the event loop, which would delay the program's end."""

    async def ask() -> None:
        async with serving(http(200, b"ok")) as api:
            url = api.url.replace("127.0.0.1", "localhost")
            async with client_of(url, clock=Clock()) as client:
                assert await client.get("/x") == b"ok"
        async with client_of("http://source.invalid", clock=Clock()) as client:
            assert "cannot connect to source.invalid:80: " in str(await failure_of(client))

    without_lookups(ask())


async def test_a_private_authority_is_not_trusted_otherwise(certificates: Certificates) -> None:
    """Without ``ca_file`` no request is sent, and the error names that key."""
    async with serving(http(200), tls=certificates.server) as api, client_of(api.url) as client:
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert "GET /x: the server's certificate is not accepted: unable to get local issuer" in str(failed)
        assert "ca_file" in str(failed)
        assert api.requests == []


async def test_a_certificate_of_another_host_is_not_accepted(certificates: Certificates) -> None:
    """A trusted certificate of another host is refused."""
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificates.authority.issue_cert("other.example.org").configure_cert(other)
    async with (
        serving(http(200), tls=other) as api,
        client_of(api.url, transport=Transport(ca_file=certificates.file), clock=Clock()) as client,
    ):
        assert "certificate is not accepted: IP address mismatch" in str(await failure_of(client))
        assert api.requests == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_is_shown_where_it_is_demanded(
    version: ssl.TLSVersion, certificates: Certificates, tmp_path: Path
) -> None:
    """A client certificate is sent on demand, with its key in the same or another file; without one requests fail."""
    certificates.server.maximum_version = version
    certificates.server.verify_mode = ssl.CERT_REQUIRED
    certificates.authority.configure_trust(certificates.server)
    both = certificates.client(tmp_path / "client.pem")
    one = certificates.authority.issue_cert("other@example.org")
    cert = keep(tmp_path / "cert.pem", one.cert_chain_pems[0].bytes())
    key = keep(tmp_path / "key.pem", one.private_key_pem.bytes())
    async with serving(http(200, b"ok"), tls=certificates.server) as api:
        for shown in ((both, None), (cert, key)):
            transport = Transport(certificates.file, *shown)
            async with client_of(api.url, transport=transport) as client:
                assert await client.get("/x") == b"ok"
        async with client_of(api.url, transport=Transport(certificates.file)) as client:
            assert isinstance(await failure_of(client), SourceUnavailable)
        assert len(api.requests) == 2


@contextmanager
def refusing_handshakes(tls: ssl.SSLContext) -> Iterator[str]:
    """A server that sends the reason for ending a handshake; asyncio's closes the connection before that."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # the listener's end
            while True:
                connection, _ = listener.accept()
                with connection, suppress(ssl.SSLError):
                    tls.wrap_socket(connection, server_side=True)

    thread = Thread(target=serve)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


async def test_a_client_certificate_that_is_missing_is_told(certificates: Certificates) -> None:
    """If the server reports the failed handshake, the error names the key for a client certificate."""
    certificates.server.maximum_version = ssl.TLSVersion.TLSv1_2  # later versions report it later or not at all
    certificates.server.verify_mode = ssl.CERT_REQUIRED
    with refusing_handshakes(certificates.server) as url:
        async with client_of(url, transport=Transport(certificates.file)) as client:
            failed = await failure_of(client)
            assert isinstance(failed, SourceUnavailable)
            assert "GET /x: TLS cannot be agreed on: sslv3 alert handshake failure (client_cert_file" in str(failed)


async def test_an_alert_is_told_though_only_its_text_is_left() -> None:
    """TLS errors of which the library keeps only the text are still explained."""
    bare = aiohttp.ClientOSError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert (_ssl.c:2580)'")
    assert (
        reason_of(bare)
        == "TLS cannot be agreed on: tlsv13 alert certificate required (client_cert_file sets the client certificate)"
    )
    assert reason_of(ConnectionResetError(104, "Connection reset by peer")) == "Connection reset by peer"
    assert reason_of(OSError("EOF occurred in violation of protocol (_ssl.c:1006)'")) == (
        "EOF occurred in violation of protocol"
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "the answer is not HTTP: bad status line"),
        (b"HTTP/1.1 200 OK\r\nA\x00B: s3cret\r\n\r\n", "the answer is not HTTP: invalid header token"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}", "the answer breaks off after 2 of 10 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
            "the answer breaks off before its end",
        ),
    ],
)
async def test_what_is_no_answer_is_told_in_our_words(answer: bytes, expected: str) -> None:
    """An invalid answer is described without a made-up status and without its content."""
    async with serving(answer) as api, client_of(api.url) as client:
        failed = await failure_of(client)
    assert isinstance(failed, SourceUnavailable)
    assert str(failed) == f"GET /x: {expected} (3 attempts)"


async def test_answers_without_end_are_not_kept() -> None:
    """Answers that follow the one to a request over the idle connection end the connection unread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        asked = Event()
        flood = asyncio.create_task(asyncio.to_thread(flooded, server, asked))
        async with client_of(f"http://127.0.0.1:{server.getsockname()[1]}") as client:
            assert await client.get("/x") == b""
            asked.set()
            assert await flood < FLOOD // 4


async def test_a_header_of_tens_of_kilobytes_does_no_harm() -> None:
    """A header of 20 kB, as some gateways send, is accepted."""
    async with serving(http(200, b"ok", f"X-Trace: {'x' * 20_000}")) as api, client_of(api.url) as client:
        assert await client.get("/x") == b"ok"


async def test_a_large_answer_is_read_to_its_end_though_its_reader_is_slow() -> None:
    """An answer of 16 MiB that nobody takes for a while arrives to its end."""
    body, pieces = bytes(range(256)) * (64 * 1024), list[bytes]()
    async with serving(http(200, body)) as api, asyncio.timeout(20):
        client = DirectClient(transport_of(shared_tls(uses_tls=False), proxy=None, connections=1), ())
        response = await client.open_get(httpx.URL(api.url), {})
        async for piece in response.aiter_raw():
            for _ in range(0 if pieces else 1000):  # turns of the event loop, in which more arrives
                await asyncio.sleep(0)
            pieces.append(piece)
        await client.aclose()
    assert b"".join(pieces) == body


async def test_a_handshake_that_ends_without_a_word_is_told_as_one(certificates: Certificates) -> None:
    """A connection closed during the TLS handshake is reported as such, not as a refused connection."""
    certificates.server.maximum_version = ssl.TLSVersion.TLSv1_2
    certificates.server.verify_mode = ssl.CERT_REQUIRED
    async with (
        serving(http(200), tls=certificates.server) as api,
        client_of(api.url, transport=Transport(certificates.file)) as client,
    ):
        assert "the connection was closed during the TLS handshake" in str(await failure_of(client))


async def test_the_token_endpoint_is_reached_with_the_same_certificates(
    certificates: Certificates, tmp_path: Path
) -> None:
    """The token endpoint uses the source's authority and client certificate; without them the error names it."""
    certificates.server.verify_mode = ssl.CERT_REQUIRED
    certificates.authority.configure_trust(certificates.server)
    transport = Transport(certificates.file, certificates.client(tmp_path / "client.pem"))
    secret = keep(tmp_path / "secret", "s3cret")
    issued = http(200, b'{"access_token":"t1","token_type":"bearer"}')
    async with serving(issued, tls=certificates.server) as server:
        asked = OAuthClient(server.url, "c", secret)
        issuer = ClientCredentials(asked, transport=transport, within=timedelta(seconds=20))
        assert (await issuer.issue()).value == "t1"
        stranger = ClientCredentials(asked, transport=Transport(), within=timedelta(seconds=20))
        with pytest.raises(SourceUnavailable, match="certificate is not accepted") as failed:
            await stranger.issue()
        assert str(failed.value).startswith(f"the token endpoint {server.url}: ")


@asynccontextmanager
async def forward_proxy(seen: list[str]) -> AsyncIterator[str]:
    """A proxy that tunnels (CONNECT) to any host, and records the requests."""
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            while chunk := await reader.read(65536):
                writer.write(chunk)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.append(head)
        host, _, port = head.split(" ")[1].partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_https_api_is_reached_through_the_proxy(certificates: Certificates) -> None:
    """Through a tunnel the proxy sees the host, and neither path, headers nor token."""
    seen: list[str] = []
    async with forward_proxy(seen) as proxy, serving(http(200, b"ok"), tls=certificates.server) as api:
        transport = Transport(certificates.file, proxy=proxy, headers=(("X-Tenant", "t"),))
        async with client_of(api.url, transport=transport) as client:
            assert await client.get("/x") == b"ok"
        assert api.requests[0].headers["x-tenant"] == "t"
        assert [head.split("\r\n")[0] for head in seen] == [f"CONNECT {api.url.removeprefix('https://')} HTTP/1.1"]
        assert "Bearer" not in seen[0]
        assert "X-Tenant" not in seen[0]


class KeptConnections:
    """A server that keeps its connections; of each request it notes the connection and what is asked by whom."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, str, str]] = []
        self.open = self.all = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.all, self.open = self.all, self.all + 1, self.open + 1
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                named = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                self.requests.append((number, head.split(" ")[1], named.get("x-tenant", "")))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


@asynccontextmanager
async def keeping_connections() -> AsyncIterator[tuple[str, KeptConnections]]:
    kept = KeptConnections()
    server = await asyncio.start_server(kept.connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", kept
        await until(lambda: not kept.open, "all connections to end")


async def test_sources_of_one_server_share_its_connections(certificates: Certificates) -> None:
    """Each request has the headers of its own source; a source that ends leaves the others their connection.

    One with certificate files has a connection of its own, for others' connections were made without them.
    """
    async with keeping_connections() as (url, kept), aclosing(SharedConnections()) as shared:
        tenant = Transport(headers=(("X-Tenant", "t"),))
        async with client_of(url, transport=tenant, shared=shared) as second:
            async with client_of(url + "/v1", shared=shared) as first:
                assert await first.get("/x") == b"ok"
                assert await second.get("/x") == b"ok"
            assert await second.get("/y") == b"ok"
            async with client_of(url, transport=Transport(certificates.file), shared=shared) as other:
                assert await other.get("/z") == b"ok"
            assert kept.requests == [(0, "/v1/x", ""), (0, "/x", "t"), (0, "/y", "t"), (1, "/z", "")]


async def test_a_source_that_hangs_takes_no_shared_connection_from_others() -> None:
    """Each source has as many requests under way as it may, whatever the others have."""
    flying = Flying(5)
    async with (
        serving(flying.answer) as api,
        aclosing(SharedConnections()) as shared,
        client_of(api.url, limits=ClientLimits(concurrency=2), shared=shared) as first,
        client_of(api.url, limits=ClientLimits(concurrency=3), shared=shared) as second,
    ):
        await asyncio.gather(*(one.get("/x") for one in [first] * 4 + [second] * 6))
    assert flying.most == 5


async def test_a_proxy_is_used_by_the_sources_that_name_it() -> None:
    """Sources with a proxy share no connections with those that have none."""
    async with (
        keeping_connections() as (url, kept),
        serving(http(200, b"by proxy")) as proxy,
        aclosing(SharedConnections()) as shared,
        client_of(url, transport=Transport(proxy=proxy.url), shared=shared) as first,
        client_of(url, shared=shared) as second,
    ):
        assert (await first.get("/x"), await second.get("/x")) == (b"by proxy", b"ok")
    assert [target for _, target, _ in kept.requests] == ["/x"]


async def test_shared_connections_trust_the_authorities_of_the_system_alone(certificates: Certificates) -> None:
    """A server of a private authority is trusted by the source that names it, and by no other one."""
    async with serving(http(200, b"ok"), tls=certificates.server) as api, aclosing(SharedConnections()) as shared:
        async with client_of(api.url, transport=Transport(certificates.file), shared=shared) as knowing:
            assert await knowing.get("/x") == b"ok"
        async with client_of(api.url, shared=shared) as other:
            assert "certificate is not accepted" in str(await failure_of(other))


async def test_a_proxy_that_refuses_is_named(certificates: Certificates) -> None:
    """A refusal of the proxy is reported as the proxy's answer, not the API's."""
    async with (
        serving(http(403, b"no")) as proxy,
        client_of("https://api.invalid", transport=Transport(certificates.file, proxy=proxy.url)) as client,
    ):
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert "GET /x: the proxy answered 403 instead of connecting" in str(failed)
        assert proxy.requests[0].method == "CONNECT"


# Laws of :mod:`poller.http.transport`.

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = 86_400


def at(seconds: float) -> str:
    """An HTTP date this many seconds after noon."""
    return format_datetime(NOON + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 1.5 ", 1.5),
        ("0", 0),
        ("-5", 0),
        ("-" + "9" * 5000, 0),
        ("9" * 5000, 36_500 * DAY),
        (at(30), 30),
        (at(-30), 0),
        (at(10**8), 10**8),
        ("Saturday, 01-Mar-25 12:00:30 GMT", 30),
        ("Sat Mar  1 12:00:30 2025", 30),
    ],
)
def test_seconds_and_dates_are_what_they_say(value: str, seconds: float) -> None:
    """Retry-After may be seconds or a date; a past date means no pause."""
    assert pause_requested(value, date=None, now=NOON) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [None, "", "soon", "+5", "1e3", "٣٠", "inf", "nan", "5, 10", "--5", "5s"])
def test_nonsense_asks_for_nothing(value: str | None) -> None:
    """An invalid Retry-After counts as absent."""
    assert pause_requested(value, date=None, now=NOON) is None


@given(
    st.text() | st.integers().map(str) | st.floats().map(str),
    st.none() | st.text(),
    st.datetimes(timezones=st.just(UTC)),
)
def test_any_text_can_be_read(value: str, date: str | None, now: datetime) -> None:
    """No text raises an error, and no pause is negative."""
    pause = pause_requested(value, date=date, now=now)
    assert pause is None or pause >= timedelta(0)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 -- hypothesis takes bounds without a zone
def test_dates_are_read_as_they_were_written(moment: datetime) -> None:
    """An HTTP date is read back to the second, in UTC."""
    assert http_date(format_datetime(moment, usegmt=True)) == moment.replace(microsecond=0)
