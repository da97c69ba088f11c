"""How one attempt at a sink ended, as a value.

The law: either the sink answered, then ``status`` says what, or it did not, then ``failure`` says how that came about;
an outcome has exactly one of them. Once a status arrived, whatever happens to the rest of the answer changes nothing.

Pure. What follows from an outcome is not known here.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
