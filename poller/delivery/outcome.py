"""How one attempt at a sink ended, as a value that knows nothing of the sink's protocol.

**Invariants**

* ``kind``, ``wait`` and ``is_overloaded`` alone decide what follows (:mod:`poller.delivery.retry`). ``failure``,
  ``error``, ``status`` and ``excerpt`` are for logs, dead letters and people.
* A wait is a span of time, never a moment: the clock of the sink does not count.
* An outcome holds no credential.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum

import msgspec


class OutcomeKind(StrEnum):
    """What an attempt came to.

    * ``delivered``: the sink has it.
    * ``retry``: it may succeed later.
    * ``endpoint_gone``: the sink wants nothing more of this subscription.
    * ``rejected``: this event cannot be sent or is never accepted; another one can.
    * ``not_sent``: our own fault, such as a credential that cannot be read; nothing is known of sink or event.
    """

    DELIVERED = "delivered"
    RETRY = "retry"
    ENDPOINT_GONE = "endpoint_gone"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"


class Failure(StrEnum):
    """Why a sink did not answer, or refused.

    ``ADDRESS`` and ``REQUEST`` come before a connection: the address guard refused it; its URL or a header cannot be
    sent. ``CREDENTIAL`` is our own: the token cannot be had, so nothing was sent. ``LOCAL`` is of this machine:
    it has no file, port, memory or space left.
    """

    ADDRESS = "address"
    REQUEST = "request"
    CREDENTIAL = "credential"
    LOCAL = "local"
    DNS = "dns"
    REFUSED = "refused"
    TLS = "tls"
    TIMEOUT = "timeout"
    CLOSED = "closed"
    RESET = "reset"
    NOT_HTTP = "not_http"
    NETWORK = "network"
    PROTOCOL = "protocol"
    PERMISSION = "permission"
    NO_STREAM = "no_stream"
    STREAM_FULL = "stream_full"


class Outcome(msgspec.Struct, frozen=True):
    """How an attempt ended.

    Attributes:
        kind: decides what follows.
        wait: for how long the sink asked to be sent nothing; None where it did not say.
        is_overloaded: whether the sink refused because of its load, which says nothing against the event.
        error: one printable line that says what went wrong; empty where it was delivered.
        failure: why there is no answer, or what was refused.
        status: of the answer, where the protocol has one.
        seconds: how long it took, from before the connection to the end of the answer; 0 where nothing was sent.
        excerpt: the first bytes of the answer, at most 1 KiB, as sent but for our credential.
        each: of each event of a batch, in its order, where the sink can tell them apart; empty: this one for all.
    """

    kind: OutcomeKind
    wait: timedelta | None = None
    is_overloaded: bool = False
    error: str = ""
    failure: Failure | None = None
    status: int | None = None
    seconds: float = 0.0
    excerpt: bytes = b""
    each: tuple[Outcome, ...] = ()

    def __post_init__(self) -> None:
        """Check what the engine relies on."""
        if self.wait is not None and not self.is_overloaded:
            raise ValueError("an outcome with a wait is one of an overloaded sink")
        if any(one.kind in _OF_THE_SINK or one.each for one in self.each):
            raise ValueError("what concerns the sink is the outcome of the whole batch")

    @property
    def is_delivered(self) -> bool:
        """Whether the sink has taken what was sent."""
        return self.kind is OutcomeKind.DELIVERED

    @property
    def was_sent(self) -> bool:
        """Whether there was a request."""
        return self.kind is not OutcomeKind.NOT_SENT and (self.kind is not OutcomeKind.REJECTED or self.seconds > 0)

    @property
    def is_unexplained(self) -> bool:
        """Whether the sink refused because of its load, and did not say for how long."""
        return self.is_overloaded and self.wait is None

    def of_each(self, events: int) -> Iterator[Outcome]:
        """The outcome of each event of a batch of this size."""
        if self.each and len(self.each) != events:
            raise ValueError(f"{len(self.each)} outcomes of {events} events")
        return iter(self.each or (self,) * events)


_OF_THE_SINK = frozenset({OutcomeKind.ENDPOINT_GONE, OutcomeKind.NOT_SENT})
