"""What an exception of an exchange says of the sink: a kind of failure, and one line for whoever has to mend it.

Pure: knows aiohttp's exceptions, and nothing of the exchange.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from typing import Final

import aiohttp

from poller.delivery.outcome import Failure
from poller.errors import AddressRefused, SourceError

FAILURES: Final = (AddressRefused, SourceError, aiohttp.ClientError, OSError, ValueError)
"""What an exchange may raise: :func:`failure_of` knows what each means. ValueError: a URL or header cannot be sent."""

_PLAIN: Final = (
    (TimeoutError, Failure.TIMEOUT, "no answer in time"),
    (ValueError, Failure.REQUEST, "the URL or a header cannot be sent as it is"),
    (aiohttp.ServerDisconnectedError, Failure.CLOSED, "the connection was closed before there was an answer"),
)
_RESET: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


class NotHttp(aiohttp.ClientError):
    """An answer that the parser took for one, and that is none."""


def failure_of(error: BaseException) -> tuple[Failure, str]:
    """The kind of failure, and a line without anything that was sent."""
    for kind, failure, text in _PLAIN:
        if isinstance(error, kind):
            return failure, text
    return _with_reason(error) or _of_tls(error) or _of_connection(error)


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


def _of_tls(error: BaseException) -> tuple[Failure, str] | None:
    for cause in _chain(error):
        if isinstance(cause, aiohttp.ClientError):
            continue  # some call themselves SSL errors, without what makes one
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Failure.TLS, f"the sink's certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return Failure.TLS, f"TLS cannot be agreed on: {cause.reason.replace('_', ' ').lower()}"
    return None


def _of_connection(error: BaseException) -> tuple[Failure, str]:
    number = getattr(error, "errno", None)
    why = os.strerror(number) if number and number > 0 else "the connection was closed"
    where = f"cannot connect to {error.host}:{error.port}: " if isinstance(error, aiohttp.ClientConnectorError) else ""
    if number == errno.ECONNREFUSED:
        return Failure.REFUSED, where + why
    if number == errno.ETIMEDOUT:
        return Failure.TIMEOUT, where + why
    if number in _RESET:
        return Failure.RESET, where + why
    return (Failure.CLOSED if number is None else Failure.NETWORK), where + why


def _complaint(error: aiohttp.ClientError) -> str:
    """What the parser says, but not what it repeats after a colon: cut anywhere, that may be the half of a secret."""
    said = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return said.partition(":")[0].strip()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
