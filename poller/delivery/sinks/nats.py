"""A sink that publishes to NATS JetStream: one event a message, CloudEvents in structured mode.

=============================================  ===================================================
event                                          outcome
=============================================  ===================================================
acknowledged by a stream, repeats included     delivered
no stream takes the subject                    retry, ``no_stream``
rights are missing, or the login is refused    retry, ``permission``
the stream or the account is full              retry, ``stream_full``
no acknowledgement in time, connection lost    retry
larger than the server or the stream takes     rejected
a token or a credentials file cannot be read   not sent
=============================================  ===================================================

``Nats-Msg-Id`` is the event's id, followed by ``/`` and the number of the redelivery or the id of the replay, then
``@`` and the subject. So, within the duplicate window of the stream, JetStream drops events that are sent again after
a lost acknowledgement, and keeps redeliveries, replays, and what other subscriptions send to other subjects of the
stream. Where an earlier event of the record has come behind the message that the stream keeps, because that one's
window was over, the event is sent once more, with the sequence number of that message behind ``@`` and the subject.

**Invariants**

* Connections go to addresses that the guard has checked, never to addresses that a server announces.
* With ``tls://`` nothing, and no credential, is sent before TLS is established. A server without TLS is refused.
* A connection that was lost, or on which the server denied a request, is not used again; the next attempt opens a new
  one.
* The client's reconnecting and buffering are off: retries and order belong to the engine.
* When a connection is given up, what the server has not received is discarded. It would arrive after later events.
* The last message of a record is that of its latest event, as long as one process delivers them: what a stream took
  before the process began is known only by its acknowledgements.
* The client buffers incomplete messages without a limit. So a server that sends more than :data:`_ANSWER` bytes per
  request is disconnected.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from base64 import b32decode, b64encode
from binascii import crc_hqx
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from urllib.parse import ParseResult, urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from poller import __version__
from poller.auth.base import Credential, EnvironmentToken, SecretFile, SingleFlight
from poller.auth.sink_credential import PlainCredential, read_credential
from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.cloudevent import STRUCTURED_TYPE, record_of
from poller.delivery.sinks.base import (
    NOT_PERMITTED,
    Failure,
    Outcome,
    OutcomeKind,
    Permission,
    PermissionRequest,
    Preview,
    Sink,
    SinkEvent,
    SinkParts,
    always,
)
from poller.delivery.sinks.connection import MAY_WANT_A_CERTIFICATE, failure_of
from poller.errors import AddressRefused, ConfigurationError, CredentialUnusable, SourceError
from poller.http.ssrf import AddressPolicy, Lookup, checked_addresses, forbidden
from poller.http.transport import CertificateFiles, Transport, tls_of
from poller.lifecycle import abandon, ended
from poller.telemetry import tracing
from poller.text import hidden, one_line

try:
    import nats.errors
    import nats.js.errors
    from nats.aio.client import Client
    from nats.aio.transport import TcpTransport
    from nats.js.api import PubAck
except ImportError as missing:
    raise ConfigurationError(
        'a sink with nats:// or tls:// needs the package nats-py: pip install "poller[nats]"'
    ) from missing

MESSAGE_ID: Final = "Nats-Msg-Id"
_PORT: Final = 4222
_PING: Final = 10  # seconds between pings; a connection without answers is closed after three
_CLOSE: Final = 1.0  # seconds that closing a connection may take
_RECORDS: Final = 10_000  # whose last message is known, of each sink
_ANSWER: Final = 256 * 1024  # bytes that a server may send per request; an acknowledgement has 100
_TOO_LARGE: Final = 10054  # JetStream: "message size exceeds maximum allowed"
_FULL: Final = frozenset({10002, 10023, 10028, 10047, 10077})  # JetStream: limits of a stream, or of an account
_DENIED: Final = "permissions violation"
_UNAUTHORIZED: Final = ("authorization violation", "authentication", "user jwt", "account")
_JWT: Final = re.compile(r"-BEGIN NATS USER JWT-+\s+([\w.-]+)\s+-+END ")
_SEED: Final = re.compile(r"-BEGIN USER NKEY SEED-+\s+(S[A-Z2-7]+)\s+-+END ")
_MAY_BE_TLS: Final = frozenset({Failure.TLS, Failure.CLOSED, Failure.RESET})
_SEED_BYTES: Final = 36  # two of prefix, the seed, two of checksum
_NONSENSE: Final = (ValueError, KeyError, TypeError, RecursionError)  # of the client, which reads JSON as it comes
_REFUSALS: Final = (AddressRefused, SourceError, nats.errors.Error, OSError, *_NONSENSE)


def open_sink(settings: SubscriptionSettings, parts: SinkParts) -> NatsSink:
    """The sink of a subscription to a subject of NATS.

    Raises:
        ConfigurationError: it has signing secrets, which NATS messages do not support.
    """
    if parts.secrets:
        raise ConfigurationError("a NATS sink has no signing secrets; remove the subscription and add it without")
    return NatsSink(
        settings.sink,
        timeout=settings.timeout,
        login=_login_of(settings, parts),
        allowed=AddressPolicy.of(settings.allow_hosts, private=settings.allow_private),
        tls=parts.tls,
        certificates=parts.certificates,
        clock=parts.clock,
    )


class Login:
    """The login: a token, a user with a password, a credentials file, or none."""

    def __init__(
        self,
        credential: Credential | None = None,
        *,
        user: str = "",
        password: Callable[[], str] = str,
        credentials: SecretFile | None = None,
    ) -> None:
        """Use one of these.

        Args:
            credential: gives a token.
            user: a name.
            password: of the user; CredentialUnusable: it cannot be read.
            credentials: a file with a JWT and the seed of a user's nkey.
        """
        self._credential = credential
        self._user = user
        self._password = password
        self._credentials = credentials
        self._token: str | None = None

    async def options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The options for the client, and their secrets.

        Raises:
            CredentialUnusable, SourceUnavailable: there is no usable credential.
        """
        if self._user:
            password = self._password()
            return {"user": self._user, "password": password}, (password,)
        if self._credentials:
            jwt, key = user_credentials(self._credentials)
            signs = {"user_jwt_cb": jwt.encode, "signature_cb": lambda nonce: b64encode(key.sign(nonce.encode()))}
            return signs, (jwt,)
        self._token = await self._credential.token() if self._credential else None
        return ({"token": self._token}, (self._token,)) if self._token else ({}, ())

    async def renew(self) -> bool:
        """Get another token than the one that was refused. True: there is one.

        Raises:
            CredentialUnusable, SourceUnavailable: as :meth:`options`.
        """
        return self._credential is not None and self._token is not None and await self._credential.renew(self._token)

    async def close(self) -> None:
        """End what the credential does in the background."""
        if self._credential is not None:
            await self._credential.close()


def _login_of(settings: SubscriptionSettings, parts: SinkParts) -> Login:
    """The login by the stored credential of a request, else by the subscription's ``auth``."""
    brought = read_credential(parts.brought) if parts.brought else None
    if isinstance(brought, PlainCredential):
        secret = brought.secret
        return Login(user=brought.identifier, password=lambda: secret)
    if brought is not None:
        return Login(EnvironmentToken("a request", {"a request": brought.accesstoken}))
    auth = settings.auth
    if auth.user is not None:
        return Login(user=auth.user.name, password=SecretFile(auth.user.password_file, "password").text)
    if auth.credentials_file is not None:
        return Login(credentials=SecretFile(auth.credentials_file, "NATS credentials"))
    return Login(parts.credential)


def user_credentials(file: SecretFile) -> tuple[str, Ed25519PrivateKey]:
    """The JWT and the key of a credentials file, as ``nsc`` writes it.

    Raises:
        CredentialUnusable: the file cannot be read, or is no credentials file.
    """
    text = file.text()
    jwt, seed = _JWT.search(text), _SEED.search(text)
    try:
        raw = b32decode(seed[1] + "=" * (-len(seed[1]) % 8)) if seed else b""
    except ValueError:
        raw = b""
    whole = len(raw) == _SEED_BYTES and raw[-2:] == crc_hqx(raw[:-2], 0).to_bytes(2, "little")
    if jwt is None or not whole:
        raise CredentialUnusable(f"{file.origin} holds no NATS credentials: a user's JWT and the seed of its key")
    return jwt[1], Ed25519PrivateKey.from_private_bytes(raw[2:-2])


class NatsSink(Sink):
    """Publishes to one subject of one server; connects when necessary."""

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta,
        login: Login | None = None,
        allowed: AddressPolicy | None = None,
        tls: ssl.SSLContext | None = None,
        certificates: CertificateFiles | None = None,
        lookup: Lookup | None = None,
        clock: Clock,
    ) -> None:
        """Begin without a connection.

        Args:
            url: ``nats://HOST:PORT/SUBJECT``, or with ``tls://``.
            timeout: of a whole attempt, connection included.
            login: of the connection.
            allowed: the address policy.
            tls: trusted authorities and client certificate; default: the system's authorities.
            certificates: replaces ``tls``; its files are checked for changes at each connection.
            lookup: resolves names.
            clock: of this process.
        """
        self._allowed = allowed or AddressPolicy()
        self._expected = forbidden(url, self._allowed, tls="tls", plain="nats")
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or _PORT
        self._subject = parts.path.removeprefix("/")
        self._with_tls = parts.scheme == "tls"
        self._seconds = timeout.total_seconds()
        self._login = login or Login()
        self._tls = tls
        self._certificates = certificates
        self._lookup = lookup
        self._clock = clock
        self._words: dict[str, str | int] = {
            "messaging.system": "nats",
            "messaging.destination.name": self._subject,
            "server.address": self._host,
            "server.port": self._port,
        }
        self._secrets: tuple[str, ...] = ()
        self._last = _LastMessages(_RECORDS)
        self._may_read = True  # messages of the stream; False: the server has denied it
        self._connection: _Connection | None = None
        self._connect = SingleFlight(self._connected)
        self._is_closed = False

    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = always) -> Outcome:
        """Publish this event, and wait for the acknowledgement of a stream."""
        (event,) = batch
        span = tracing.current()
        span.set_attributes(self._words)
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                await self._publish(event, span.carried, allowed)
        except _NotAllowed:
            return NOT_PERMITTED
        except TimeoutError:
            failed = Outcome(
                OutcomeKind.RETRY, error=f"no acknowledgement within {self._seconds:g} s", failure=Failure.TIMEOUT
            )
        except _REFUSALS as error:
            failed = self._outcome_of(error)
        else:
            return Outcome(OutcomeKind.DELIVERED, seconds=self._clock.monotonic() - began)
        return _timed(failed, self._clock.monotonic() - began)

    async def _publish(self, event: SinkEvent, carried: Mapping[str, str], allowed: Callable[[], bool]) -> None:
        """Have the stream take this event, behind the earlier ones of its record."""

        async def published(suffix: str = "") -> PubAck:
            connection = await self._open()  # the server may have ended the one before
            if not allowed():
                raise _NotAllowed
            return await connection.publish(self._subject, event.data, _headers(event, suffix) | dict(carried))

        kept = await published()
        if kept.duplicate and not await self._is_ours(kept, event):
            kept = await published(self._subject)
        if kept.duplicate and (number := self._last.behind(event, kept)):
            kept = await published(f"{self._subject}@{number}")
        self._last.add(event, kept)

    async def _is_ours(self, kept: PubAck, event: SinkEvent) -> bool:
        """Whether the message that the stream keeps in place of this event has this subject; False: or is unknown."""
        if not self._may_read:
            return False
        try:
            connection = await self._open()
            return await connection.subject_of(kept, most=_ANSWER + 2 * len(event.data)) == self._subject
        except _Denied:
            self._may_read = False
            return False
        except _REFUSALS:  # it is removed from the stream, or the connection has ended
            return False

    async def verify(self, request: PermissionRequest | None = None) -> Permission:  # noqa: ARG002 -- it has no handshake
        """Connect, and ask whether a stream has the subject."""
        try:
            async with asyncio.timeout(self._seconds):
                connection = await self._open()
                stream = await connection.stream_of(self._subject)
        except TimeoutError:
            return Permission("unanswered", f"no answer within {self._seconds:g} s", failure=Failure.TIMEOUT)
        except _Denied as error:  # it may still be permitted to publish
            return Permission("granted", f"the server answers, but not with the stream of {self._subject}: {error}")
        except _REFUSALS as error:
            outcome = self._outcome_of(error)
            return Permission("refused", outcome.error, failure=outcome.failure)
        return Permission("granted", f"the stream {stream} takes {self._subject}")

    async def try_out(self, batch: Sequence[SinkEvent]) -> tuple[Preview, Outcome]:
        """Send the event; shows server, subject, headers and data."""
        (event,) = batch
        head = [f"PUB {self._subject}", f"Server: {self._host}:{self._port}"]
        head += [f"{name}: {text}" for name, text in _headers(event).items()]
        return Preview(head, event.data), await self.send(batch)

    async def close(self) -> None:
        """Close the connection; later attempts fail."""
        self._is_closed = True
        await self._login.close()
        connection, self._connection = self._connection, None
        if connection:
            await connection.close()

    async def _open(self) -> _Connection:
        connection = self._connection
        return connection if connection is not None and connection.is_usable else await self._connect()

    async def _connected(self) -> _Connection:
        """Open a new connection, with another token if the first one is refused."""
        if self._is_closed:
            raise OSError(None, "the sink is closed")
        if self._expected:
            raise AddressRefused(f"expected {self._expected}")
        before, self._connection = self._connection, None
        if before:
            await before.close()
        try:
            self._connection = await self._login_at()
        except _Unauthorized:
            if not await self._login.renew():
                raise
            self._connection = await self._login_at()
        return self._connection

    async def _login_at(self) -> _Connection:
        options, self._secrets = await self._login.options()
        try:
            addresses = await checked_addresses(self._host, self._allowed, self._lookup)
        except OSError as error:
            raise _Unresolved(f"{self._host} cannot be resolved: {error.strerror or 'no address'}") from error
        wire = _GuardedTransport(addresses, self._port, with_tls=self._with_tls)
        if self._with_tls:
            tls = self._certificates.context() if self._certificates else self._tls
            options |= {"tls": tls or tls_of(Transport()), "tls_hostname": self._host}
        connection = _Connection(wire, seconds=self._seconds)
        await connection.open(f"nats://{_bracketed(self._host)}:{self._port}", options)
        return connection

    def _outcome_of(self, error: Exception) -> Outcome:
        """The outcome for an exception, without secrets."""
        kind, failure, text = _meaning_of(error, self._subject, f"{self._host}:{self._port}")
        if self._certificates and self._certificates.problem and failure in _MAY_BE_TLS:
            text = f"{self._certificates.problem}; {text}"
        return Outcome(kind, error=one_line(hidden(text, *self._secrets)), failure=failure)


class _NotAllowed(Exception):
    """The event may not be sent any more."""


class _LastMessages:
    """The last message of each record that a stream is known to hold, and which event that is."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[tuple[str, str], tuple[str, int, str]] = OrderedDict()

    def behind(self, event: SinkEvent, kept: PubAck) -> int:
        """The sequence number of an earlier event of the record that comes after this acknowledged one; 0: none does.

        The sequences of the events themselves decide which is earlier: a later event that comes after is in order.
        """
        stream, number, sequence = self._last.get(_record(event), ("", 0, ""))
        is_earlier = stream == kept.stream and sequence < (event.envelope.sequence or "")
        return number if is_earlier and kept.seq < number else 0

    def add(self, event: SinkEvent, kept: PubAck) -> None:
        """Add an event that the stream holds, with its number there."""
        record = _record(event)
        stream, number, _ = self._last.get(record, ("", 0, ""))
        if kept.duplicate and stream == kept.stream and number > kept.seq:
            return
        self._last[record] = kept.stream, kept.seq, event.envelope.sequence or ""
        self._last.move_to_end(record)
        if len(self._last) > self._most:
            self._last.popitem(last=False)


def _record(event: SinkEvent) -> tuple[str, str]:
    return event.envelope.source, record_of(event.envelope)


class _NatsFailure(nats.errors.Error):
    """A failure that this module has found, with its text."""

    failure = Failure.CLOSED


class _Denied(_NatsFailure):
    failure = Failure.PERMISSION


class _Unauthorized(_NatsFailure):
    failure = Failure.PERMISSION


class _Unresolved(_NatsFailure):
    failure = Failure.DNS


class _NotNats(_NatsFailure):
    failure = Failure.PROTOCOL


class _TlsMissing(_NatsFailure):
    failure = Failure.TLS


class _Flooded(ConnectionError):
    """An OSError, for the client closes the connection on these alone."""


class _GuardedTransport(TcpTransport):
    """The client's bytes, to addresses that were checked; the server's first line is read before the client sees it."""

    def __init__(self, addresses: Sequence[str], port: int, *, with_tls: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # of the client
        self.failure: Exception | None = None
        self._addresses = addresses
        self._port = port
        self._with_tls = with_tls
        self._greeted = False
        self._is_abandoned = False
        self._due = _ANSWER

    def expect_answer(self, most: int = _ANSWER) -> None:
        """The server is asked something, and may answer with this many bytes."""
        self._due = most

    async def read(self, buffer_size: int) -> bytes:
        """What has come, unless it is more than an answer has."""
        data: bytes = await super().read(min(buffer_size, _ANSWER))
        self._due -= len(data)
        if self._due < 0:
            raise _Flooded(None, "the server sends far more than it was asked for")
        return data

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Try each address once, whatever the client thinks that the server is called."""
        if self.failure:
            raise self.failure
        for address in self._addresses:
            try:
                await super().connect(
                    uri._replace(netloc=f"{_bracketed(address)}:{self._port}"), buffer_size, connect_timeout
                )
            except OSError as error:
                self.failure = error
            else:
                self.failure = None
                return
        raise self.failure or OSError(None, "no address")

    async def readline(self) -> bytes:
        """A line; the greeting without other servers, and with TLS as it is wanted here."""
        line: bytes = await super().readline()  # type: ignore[no-untyped-call] # of the client
        if self._greeted:
            return line
        self._greeted = True
        verb, _, rest = line.partition(b" ")
        try:
            info = json.loads(rest) if verb.upper() == b"INFO" else None
        except ValueError:
            info = None
        if not isinstance(info, dict):
            raise _NotNats("what answers is no NATS server")
        info.pop("connect_urls", None)
        offered = bool(info.get("tls_required") or info.get("tls_available"))
        if self._with_tls and not offered:
            raise _TlsMissing("the server offers no TLS; write nats:// if it is meant to have none")
        if info.get("tls_required") and not self._with_tls:
            raise _TlsMissing("the server requires TLS; write tls:// in the subscription's sink")
        info["tls_required"] = self._with_tls
        return b"INFO " + json.dumps(info).encode() + b"\r\n"

    async def drain(self) -> None:
        """Wait until most is sent; once the connection is closed, the client that waits for this goes on and ends."""
        try:
            await super().drain()  # type: ignore[no-untyped-call] # of the client
        except OSError:
            if not self._is_abandoned:
                raise

    def close(self) -> None:
        """Close the connection, and discard what is unsent: without its acknowledgement an event is sent again."""
        self._is_abandoned = True
        if self._io_writer is not None:
            abandon(self._io_writer.transport)

    def __bool__(self) -> bool:
        """Keep the client from making one of its own."""
        return True


class _Connection:
    """One connection of the client, from its login to its end."""

    def __init__(self, wire: _GuardedTransport, *, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._wire = wire
        self._client = Client()
        self._stream = self._client.jetstream(timeout=seconds)
        self._seconds = seconds
        self._client._transport = wire  # noqa: SLF001 -- the one way in; the tests of addresses fail without it
        self._lost: asyncio.Future[None] = loop.create_future()
        self._denied: asyncio.Future[str] = loop.create_future()

    @property
    def is_usable(self) -> bool:
        """Whether it may carry another message."""
        # The client may be closed without having said so, if its connection is lost while it logs in.
        return not self._lost.done() and not self._denied.done() and not self._client.is_closed

    async def open(self, url: str, options: dict[str, Any]) -> None:
        """Connect and log in."""
        try:
            await self._client.connect(
                url,
                name=f"poller/{__version__}",
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=max(1, round(self._seconds)),
                ping_interval=_PING,
                **options,
            )
        except BaseException as error:
            await self.close()
            if self._wire.failure is not None and isinstance(error, nats.errors.NoServersError):
                raise self._wire.failure from None
            if isinstance(error, nats.errors.Error) and any(word in str(error).lower() for word in _UNAUTHORIZED):
                raise _Unauthorized(
                    f"the server refuses the login ({_error_text(error)}); check auth of the subscription"
                ) from error
            raise

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> PubAck:
        """Have a stream acknowledge this."""
        # The client counts the data alone, and the server ends the connection of every other message with this one.
        if len(data) + _size_of(headers) > self._client.max_payload:
            raise nats.errors.MaxPayloadError
        self._wire.expect_answer()
        kept: PubAck = await self._unless_ended(self._stream.publish(subject, data, headers=headers))
        return kept

    async def subject_of(self, kept: PubAck, *, most: int) -> str | None:
        """The subject of the message that an acknowledgement names; ``most``: bytes of the answer."""
        self._wire.expect_answer(most)
        message = await self._unless_ended(self._stream.get_msg(kept.stream, kept.seq))
        subject: str | None = message.subject
        return subject

    async def stream_of(self, subject: str) -> str:
        """The stream that takes a subject."""
        self._wire.expect_answer()
        name: str = await self._unless_ended(self._stream.find_stream_name_by_subject(subject))
        return name

    async def close(self) -> None:
        """End it."""
        if not self._lost.done():
            self._lost.set_result(None)
        self._wire.close()  # first, for the client waits until the server has read everything
        with suppress(Exception):  # it is given up, whatever the client or the socket say of it
            async with asyncio.timeout(_CLOSE):
                await self._client.close()

    async def _unless_ended(self, asking: Any) -> Any:
        """The answer, unless the connection ends or something is denied before."""
        answer = asyncio.ensure_future(asking)
        try:
            await asyncio.wait({answer, self._lost, self._denied}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if self._denied.done():
                raise _Denied(f"{self._denied.result()}; grant publishing to the subject and subscribing to _INBOX.>")
            raise _NatsFailure(_closed(self._client.last_error))
        finally:
            await ended(answer)

    async def _on_error(self, error: Exception) -> None:
        if _DENIED in str(error).lower() and not self._denied.done():
            self._denied.set_result(_error_text(error))

    async def _on_closed(self) -> None:
        if not self._lost.done():
            self._lost.set_result(None)


def _meaning_of(error: Exception, subject: str, server: str) -> tuple[OutcomeKind, Failure, str]:
    """The kind of outcome, the failure, and what to do about it."""
    if isinstance(error, SourceError):
        return OutcomeKind.NOT_SENT, Failure.CREDENTIAL, str(error)
    if isinstance(error, nats.errors.MaxPayloadError):
        return OutcomeKind.REJECTED, Failure.REQUEST, "the event is larger than max_payload of the server"
    if isinstance(error, nats.js.errors.APIError) and error.err_code == _TOO_LARGE:
        return OutcomeKind.REJECTED, Failure.REQUEST, f"the stream does not take the event: {_api_error_text(error)}"
    return OutcomeKind.RETRY, *_failure_of(error, subject, server)


def _failure_of(error: Exception, subject: str, server: str) -> tuple[Failure, str]:
    match error:
        case nats.js.errors.NoStreamResponseError() | nats.js.errors.NotFoundError():
            return Failure.NO_STREAM, f"no stream takes the subject {subject}: create one, or correct the sink"
        case nats.js.errors.APIError() if error.err_code in _FULL:
            return Failure.STREAM_FULL, f"the stream of {subject} is full: {_api_error_text(error)}; raise its limits"
        case nats.js.errors.APIError():
            return Failure.PROTOCOL, f"JetStream refuses: {_api_error_text(error)}"
        case nats.errors.Error():
            return getattr(error, "failure", Failure.CLOSED), _error_text(error)
        case AddressRefused() | OSError():
            return _unconnected(error, server)
    return Failure.PROTOCOL, "the answer is not one of JetStream"


def _unconnected(error: Exception, server: str) -> tuple[Failure, str]:
    if isinstance(error, ConnectionError) and not error.errno:  # a stream that ends says no more
        return Failure.CLOSED, f"{server} closed the connection before it was ready; {MAY_WANT_A_CERTIFICATE}"
    failure, text = failure_of(error)
    return failure, text if failure in (Failure.ADDRESS, Failure.TLS) else f"cannot connect to {server}: {text}"


def _api_error_text(error: nats.js.errors.APIError) -> str:
    return f"{error.description} ({error.err_code})"


def _closed(error: Exception | None) -> str:
    """Why the server has ended a connection, where it said so."""
    if isinstance(error, _Flooded):
        return f"the connection was closed: {error.strerror}"
    said = "" if isinstance(error, nats.errors.UnexpectedEOF | OSError) else _error_text(error)
    return f"the connection was closed: {said}" if said else "the connection was closed before there was an answer"


def _error_text(error: Exception | None) -> str:
    return str(error or "").removeprefix("nats: ").strip("' ")


def _headers(event: SinkEvent, suffix: str = "") -> dict[str, str]:
    name = f"{event.envelope.id}/{event.repeat}" if event.repeat else event.envelope.id
    return {MESSAGE_ID: f"{name}@{suffix}" if suffix else name, "Content-Type": STRUCTURED_TYPE}


def _size_of(headers: Mapping[str, str]) -> int:
    """The bytes of a message's headers, as the server counts them."""
    return len("NATS/1.0\r\n\r\n") + sum(len(f"{name}: {text}\r\n".encode()) for name, text in headers.items())


def _timed(outcome: Outcome, seconds: float) -> Outcome:
    sent = outcome.kind is not OutcomeKind.NOT_SENT
    return Outcome(outcome.kind, error=outcome.error, failure=outcome.failure, seconds=seconds if sent else 0.0)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
