"""What is known of an exchange with a sink while it goes on, and the outcome that it becomes.

The law: what was known when it broke off counts: a status that has arrived stands, and a failure is told only where
none has. Nothing that was secret in the request is in the outcome, wherever the sink has put it.

Nothing is sent or read here, and time is told by whoever does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import aiohttp
import msgspec

from poller.delivery.connection import Received
from poller.delivery.failing import MAY_WANT_A_CERTIFICATE, NotHttp
from poller.delivery.outcome import Failure, Outcome
from poller.hiding import hidden, one_line, without_credentials

KEPT: Final = 1024
"""Bytes of an answer's body that are kept."""

_LEAST: Final = 100
_LONGEST: Final = 128  # characters of a header that is kept
_NONE: Final[Mapping[str, str]] = {}


class SinkResponse(msgspec.Struct, frozen=True):
    """An outcome, and the answer's headers, whose names know no case; none where there was no answer."""

    outcome: Outcome
    headers: Mapping[str, str] = _NONE


class Exchange:
    """What is known so far of an exchange that goes on."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.failed: tuple[Failure, str] | None = None
        self.remark = ""  # on a credential that the sink has not accepted
        self.received = Received()
        self._headers: Mapping[str, str] = _NONE
        self._tokens: tuple[str | None, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether anything was sent, or was about to be."""
        return bool(self._tokens)

    def begins(self, token: str | None) -> None:
        """Forget what came so far: a request with this token is sent."""
        self.status, self.body, self.received = None, b"", Received()
        self._tokens = (*self._tokens, token)

    def arrived(self, response: aiohttp.ClientResponse) -> None:
        """The head of an answer."""
        if response.status < _LEAST:
            raise NotHttp(f"it has the status {response.status}")
        self.status, self._headers = response.status, response.headers

    def answer(self, seconds: float, *secrets: str) -> SinkResponse:
        """How it ended."""
        known = (*self._tokens, *secrets)
        if self.status is None and (head := self.received.head):  # the parser has refused what came after its status
            self.status, self._headers, self.body = head.status, head.headers, head.body
        if self.status is None:
            kind, text = self.failed or (Failure.NETWORK, "there was no answer")
            if other := self.received.other_protocol:
                kind, text = Failure.NOT_HTTP, other
            elif kind in (Failure.CLOSED, Failure.RESET) and self.received.is_new_tls:
                text += f", right after TLS was agreed on; {MAY_WANT_A_CERTIFICATE}"
            return SinkResponse(Outcome(failure=kind, seconds=seconds, text=one_line(hidden(text, *known))))
        outcome = Outcome(
            status=self.status,
            retry_after=_ascii(self._headers.get("Retry-After")),
            date=_ascii(self._headers.get("Date")),
            seconds=seconds,
            excerpt=_kept(self.body, *known),
            text=self._text(*known),
        )
        return SinkResponse(outcome, self._headers)

    def _text(self, *secrets: str | None) -> str:
        text = f"the sink answered {self.status}"
        if self.failed and self.failed[0] is Failure.CREDENTIAL:
            text += f"; another token cannot be had: {one_line(hidden(self.failed[1], *secrets))}"
        if self.remark:
            text += f"; {self.remark}"
        if self.status is not None and 200 <= self.status < 300:  # noqa: PLR2004 -- nobody asks why it went well
            return text
        said = one_line(without_credentials(hidden(self.body.decode("utf-8", "replace"), *secrets)))
        return text + (f": {said}" if said else "")


def _ascii(value: str | None) -> str | None:
    """A header's text as it can be kept; what a date or a number cannot hold is replaced."""
    return value and value[:_LONGEST].encode("ascii", "replace").decode()


def _kept(body: bytes, *secrets: str | None) -> bytes:
    for secret in filter(None, secrets):
        body = body.replace(secret.encode(), b"[redacted]")
    return body[:KEPT]
