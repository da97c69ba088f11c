"""What an exception of an exchange says of the sink: a kind of failure, and one line for whoever has to mend it.

Pure: knows aiohttp's exceptions, and nothing of the exchange.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import aiohttp
import msgspec

from poller.delivery.sinks.connection import HTTP2_ONLY
from poller.errors import AddressRefused, SourceError

# How one attempt at a sink ended, as a value.
#
# The law: either the sink answered, then ``status`` says what, or it did not, then ``failure`` says how that came
# about;
# an outcome has exactly one of them. Once a status arrived, whatever happens to the rest of the answer changes
# nothing.
#
# Pure. What follows from an outcome is not known here.


class Failure(StrEnum):
    """Why there is no status.

    ``ADDRESS`` and ``REQUEST`` come before a connection: the address guard refused it; its URL or a header cannot be
    sent. ``CREDENTIAL`` is ours: the token could not be had, so nothing was sent.
    """

    ADDRESS = "address"
    REQUEST = "request"
    CREDENTIAL = "credential"
    DNS = "dns"
    REFUSED = "refused"
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    RESET = "reset"
    NOT_HTTP = "not_http"
    NETWORK = "network"


class Outcome(msgspec.Struct, frozen=True):
    """How an attempt ended.

    Attributes:
        status: the final HTTP status, 101 or 200 to 999; None where none arrived.
        failure: why none arrived; None where one did.
        retry_after: the text of ``Retry-After``, as sent.
        date: the text of the answer's ``Date``, as sent.
        seconds: how long it took, from before the connection to the end of the answer.
        excerpt: the first bytes of the answer's body, at most 1 KiB, as sent but for our credential.
        text: one printable line that says what came, fit for a log; it holds no credential.
    """

    status: int | None = None
    failure: Failure | None = None
    retry_after: str | None = None
    date: str | None = None
    seconds: float = 0.0
    excerpt: bytes = b""
    text: str = ""

    def __post_init__(self) -> None:
        """Hold it to the law."""
        if (self.status is None) == (self.failure is None):
            raise ValueError("an outcome has either a status or a failure")

    @property
    def success(self) -> bool:
        """Whether the sink has taken what was sent."""
        return self.status is not None and 200 <= self.status < 300  # noqa: PLR2004 -- the class of statuses


FAILURES: Final = (AddressRefused, SourceError, aiohttp.ClientError, OSError, ValueError)
"""What an exchange may raise: :func:`failure_of` knows what each means. ValueError: a URL or header cannot be sent."""

MAY_WANT_A_CERTIFICATE: Final = (
    "it may want a client certificate (client_cert_file and client_key_file of the subscription)"
)
_CLOSED: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError)
_PLAIN: Final = (
    (TimeoutError, Failure.TIMEOUT, "no answer in time"),
    (ValueError, Failure.REQUEST, "the URL or a header cannot be sent as it is"),
)
_BY_NUMBER: Final = {
    errno.ECONNREFUSED: Failure.REFUSED,
    errno.ETIMEDOUT: Failure.TIMEOUT,
    errno.ECONNRESET: Failure.RESET,
    errno.EPIPE: Failure.RESET,
    errno.ECONNABORTED: Failure.RESET,
}


_TLS_REMEDIES: Final = (
    (
        ("certificate required",),
        "it wants a client certificate: set client_cert_file and client_key_file of the subscription",
    ),
    (
        ("alert handshake failure",),
        f"{MAY_WANT_A_CERTIFICATE}, or none of the TLS versions and ciphers offered",
    ),
    (
        ("alert unknown ca", "alert bad certificate", "alert certificate", "alert unsupported certificate"),
        "it does not accept the client certificate: check client_cert_file of the subscription",
    ),
    (("no application protocol",), HTTP2_ONLY),
    (("protocol version", "unsupported protocol"), "the sink must offer TLS 1.2 or later"),
    (
        ("wrong version number", "record layer failure", "http request"),
        "the answer is not TLS: the sink seems to speak plain HTTP on this port",
    ),
)


_UNTRUSTED: Final = "set ca_file of the subscription to the certificate of the authority that issued it"
_CERTIFICATE_REMEDIES: Final = (
    ("mismatch", "the sink's URL must have the name that it was issued for"),
    ("not valid for", "the sink's URL must have the name that it was issued for"),
    ("expired", "the sink has to renew it"),
    ("not yet valid", "set the clocks"),
)


class NotHttp(aiohttp.ClientError):
    """An answer that the parser took for one, and that is none."""


def failure_of(error: BaseException, lost: BaseException | None = None) -> tuple[Failure, str]:
    """The kind of failure, and a line without anything that was sent.

    Args:
        error: of the exchange.
        lost: what ended its connection; aiohttp does not always hand it on.
    """
    told = _of_tls(error) or _of_tls(lost)  # first, for a certificate's error is a ValueError, too
    if told:
        return told
    if any(isinstance(one, _CLOSED) for one in (error, error.__cause__)):
        return Failure.CLOSED, "the connection was closed before there was an answer"
    for kind, failure, text in _PLAIN:
        if isinstance(error, kind):
            return failure, text
    return _with_reason(error) or _of_connection(error)


def _with_reason(error: BaseException) -> tuple[Failure, str] | None:
    match error:
        case NotHttp():
            return Failure.NOT_HTTP, f"the answer is not HTTP: {error}"
        case AddressRefused():
            return Failure.ADDRESS, f"the address is refused: {error}"
        case SourceError():
            return Failure.CREDENTIAL, str(error)
        case aiohttp.ClientConnectorDNSError():
            return Failure.DNS, f"{error.host} cannot be resolved: {error.strerror or 'nobody knows its address'}"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return Failure.NOT_HTTP, f"the answer is not HTTP: {_complaint(error)}"
    return None


def _of_tls(error: BaseException | None) -> tuple[Failure, str] | None:
    for cause in _chain(error):
        if isinstance(cause, aiohttp.ClientError):
            continue  # some call themselves SSL errors, without what makes one
        if isinstance(cause, ssl.SSLCertVerificationError):
            remedy = next((told for word, told in _CERTIFICATE_REMEDIES if word in cause.verify_message), _UNTRUSTED)
            return Failure.TLS, f"the sink's certificate is not accepted: {cause.verify_message.rstrip('.')}; {remedy}"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return Failure.TLS, _tls_text(cause.reason.replace("_", " ").lower())
    return None


def _tls_text(reason: str) -> str:
    """Which side refused, why, and what to do."""
    _, alert, name = reason.partition(" alert ")
    remedy = next((remedy for words, remedy in _TLS_REMEDIES if any(word in reason for word in words)), "")
    told = f"the sink refuses TLS (alert: {name})" if alert else f"TLS cannot be agreed on: {reason}"
    return f"{told}; {remedy}" if remedy else told


def _of_connection(error: BaseException) -> tuple[Failure, str]:
    number = (error.errno if isinstance(error, OSError) else None) or 0
    why = os.strerror(number) if number > 0 else "no address of it answers"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return _BY_NUMBER.get(number, Failure.NETWORK), why
    where = f"cannot connect to {error.host}:{error.port}: "
    if not number and isinstance(error.__cause__, ConnectionError):
        return Failure.TLS, (
            f"{where}the connection was closed while TLS was being agreed on; {MAY_WANT_A_CERTIFICATE}"
        )
    return _BY_NUMBER.get(number, Failure.NETWORK), where + why


def _complaint(error: aiohttp.ClientError) -> str:
    """What the parser says, but not what it repeats after a colon: cut anywhere, that may be the half of a secret."""
    said = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return said.partition(":")[0].strip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
