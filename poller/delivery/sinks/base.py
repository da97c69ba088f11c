"""The interface of sinks, and the outcome of an attempt.

To add a kind of sink: a module beside this one with a class that implements :class:`Sink` and a function ``open_sink``
(:data:`OpenSink`), and a ``SinkKind`` in ``SINKS`` of :mod:`poller.config.subscriptions`, by the schemes of its URLs.

**Invariants**

* A sink never raises: every way to fail is an :class:`~poller.delivery.sinks.base.Outcome`.
* An attempt has one time limit, and sends nothing to an address that the guard has not checked.
* Retries, rate, pauses and order per record belong to the engine and are the same for every sink.
* An outcome does not depend on the sink's protocol, and holds no credential. Only its ``kind``, ``wait`` and
  ``is_overloaded`` decide about the next step (:mod:`poller.delivery.retry`). ``failure``, ``error``, ``status`` and
  ``excerpt`` are for logs, dead letters and people.
* A wait is a span of time, never a moment: the clock of the sink does not count.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import msgspec

from poller.auth.base import Credential
from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings, sink_kind_of
from poller.delivery.cloudevent import Envelope
from poller.http.ssrf import address_of, misspelling

if TYPE_CHECKING:  # the HTTP client is slow to import, and commands about the store need none
    from poller.http.transport import CertificateFiles


class OutcomeKind(StrEnum):
    """The kinds of outcomes.

    * ``delivered``: the sink has accepted the events.
    * ``retry``: a later attempt may succeed.
    * ``endpoint_gone``: the sink wants no more events of this subscription.
    * ``rejected``: this event cannot be sent or is never accepted; others may be.
    * ``not_sent``: a fault on this side, such as an unreadable credential; it says nothing about sink and event.
    """

    DELIVERED = "delivered"
    RETRY = "retry"
    ENDPOINT_GONE = "endpoint_gone"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"


class Failure(StrEnum):
    """The reason why a sink did not answer, or refused.

    ``ADDRESS`` and ``REQUEST`` come before a connection: the address guard refused it; the URL or a header cannot be
    sent. ``CREDENTIAL``: there is no usable credential, so nothing was sent. ``LOCAL``: this machine has no file, port,
    memory or disk space left.
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


UNANSWERED: Final = frozenset({Failure.CLOSED, Failure.RESET, Failure.TIMEOUT})
"""The failures of a sink that was reached and has not answered."""


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of an attempt.

    Attributes:
        kind: decides about the next step.
        wait: the pause that the sink requested; None: it did not.
        is_overloaded: whether the sink refused because of its load, which is not the event's fault.
        error: one printable line; empty: delivered.
        failure: the reason for a missing or refusing response.
        status: of the response, if the protocol has one.
        seconds: the duration, from before the connection to the end of the response; 0: nothing was sent.
        excerpt: the first bytes of the response, at most 1 KiB, as sent but without the credential.
        each: the outcome of each event of a batch, in order, if the sink can distinguish them; empty: this one for all.
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
        """Check the attributes that the engine relies on."""
        if self.wait is not None and not self.is_overloaded:
            raise ValueError("an outcome with a wait is one of an overloaded sink")
        if self.each and any(one.kind in _OF_THE_SINK or one.each for one in self.each):
            raise ValueError("what concerns the sink is the outcome of the whole batch")

    @property
    def is_delivered(self) -> bool:
        """Whether the sink has accepted the events."""
        return self.kind is OutcomeKind.DELIVERED

    @property
    def was_sent(self) -> bool:
        """Whether a request was sent."""
        return self.kind is not OutcomeKind.NOT_SENT and (self.kind is not OutcomeKind.REJECTED or self.seconds > 0)

    @property
    def is_unexplained(self) -> bool:
        """Whether the sink refused because of its load, without requesting a pause."""
        return self.is_overloaded and self.wait is None

    def of_each(self, events: int) -> Iterator[Outcome]:
        """The outcome of each event of a batch of this size."""
        if self.each and len(self.each) != events:
            raise ValueError(f"{len(self.each)} outcomes of {events} events")
        return iter(self.each or (self,) * events)


_OF_THE_SINK = frozenset({OutcomeKind.ENDPOINT_GONE, OutcomeKind.NOT_SENT})

NOT_PERMITTED: Final = Outcome(OutcomeKind.NOT_SENT, error="it was not permitted any more")
"""The outcome of an attempt that was no longer permitted when it could have been sent. It is no failure."""


def always() -> bool:
    """A permission that does not end."""
    return True


class SinkEvent(NamedTuple):
    """An event on its way to a sink.

    Attributes:
        envelope: its attributes.
        data: its bytes in the stream: CloudEvents JSON.
        repeat: the name of the redelivery or replay; empty: the first delivery. The same on every attempt.
    """

    envelope: Envelope
    data: bytes
    repeat: str = ""


class PermissionRequest(msgspec.Struct, frozen=True):
    """A request for permission, before any event is sent (``validate = true``).

    Attributes:
        origin: the DNS name that the daemon sends as.
        rate: requests a minute; None: not given.
        callback: the URL for a later grant, with its key; None: not offered.
    """

    origin: str
    rate: int | None = None
    callback: str | None = None

    def __post_init__(self) -> None:
        """Check that the values fit into headers."""
        if misspelling(self.origin) or address_of(self.origin):
            raise ValueError("the origin of a handshake is a DNS name")
        if self.rate is not None and self.rate < 1:
            raise ValueError("the rate of a handshake is a whole number of requests a minute")


class Permission(msgspec.Struct, frozen=True):
    """The answer of a sink to a request for permission.

    Attributes:
        state: ``granted``: it accepts events, or answers without being asked for permission; ``awaiting``: it may call
            the callback; ``refused``: it accepts none; ``unanswered``: it did not answer.
        text: the answer or the reason, in one printable line.
        rate: the limit in requests a minute, as the sink spells it; empty: not given.
        failure: the reason for a missing answer.
        may_grant_later: whether its answer did not mention permission, as that of a sink that calls back later.
    """

    state: Literal["granted", "awaiting", "refused", "unanswered"]
    text: str
    rate: str = ""
    failure: Failure | None = None
    may_grant_later: bool = False


class Preview(msgspec.Struct, frozen=True):
    """A request to show: the lines of its head without secrets, and its body."""

    head: Sequence[str]
    body: bytes


class Sink(ABC):
    """A connection to one endpoint. An async context manager that closes it."""

    @abstractmethod
    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = always) -> Outcome:
        """Make one attempt at these events. Raises nothing.

        Args:
            batch: the events.
            allowed: whether they may be sent. To be asked after each wait (for a token, for a connection), right before
                they are written: the lease may run out meanwhile, and the sink may want a pause. False:
                :data:`NOT_PERMITTED`.
        """

    @abstractmethod
    async def verify(self, request: PermissionRequest | None = None) -> Permission:
        """Ask whether the sink accepts events, without sending any. Raises nothing.

        Args:
            request: the requested permission; None: only check that the sink answers.
        """

    @abstractmethod
    async def try_out(self, batch: Sequence[SinkEvent]) -> tuple[Preview, Outcome]:
        """Make one attempt at these events: the request as it was sent, without credentials, and its outcome.

        Raises:
            ConfigurationError, CredentialUnusable: a secret cannot be used.
            ValueError: these events cannot be sent.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    async def __aenter__(self) -> Self:
        """Enter without connecting; connections are made when they are needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()


class SinkParts(msgspec.Struct, frozen=True):
    """The parts of a sink beside its settings.

    Attributes:
        credential: of ``auth``.
        clock: the store's.
        tls: trusted authorities and client certificate; None: the system's authorities.
        certificates: the files of ``tls``, checked for changes at each connection; None: no files.
        brought: the stored credential of a request to the Subscriptions API; replaces ``credential``.
        secrets: signing secrets that no file holds.
        origin: the DNS name that the sink has granted events for; None: it was not asked.
    """

    credential: Credential
    clock: Clock
    tls: ssl.SSLContext | None = None
    certificates: CertificateFiles | None = None
    brought: bytes | None = None
    secrets: tuple[str, ...] = ()
    origin: str | None = None


OpenSink = Callable[[SubscriptionSettings, SinkParts], Sink]
"""Makes a sink; ConfigurationError: its settings cannot be used."""


def open_sink(settings: SubscriptionSettings, parts: SinkParts) -> Sink:
    """The sink of a subscription, of the kind that its URL names.

    Raises:
        ConfigurationError: its settings cannot be used, or a package is not installed.
    """
    module = import_module(f"poller.delivery.sinks.{sink_kind_of(settings.sink).module}")
    made: OpenSink = module.open_sink
    return made(settings, parts)
