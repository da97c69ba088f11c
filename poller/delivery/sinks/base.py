"""What a sink is: one interface for every kind of destination, and how one attempt at it ended.

To add a kind of sink: a module beside this one with a class that implements :class:`Sink` and a function ``open_sink``
(:data:`OpenSink`), and a ``SinkKind`` in ``SINKS`` of :mod:`poller.config.subscriptions`, by the schemes of its URLs.

**Invariants**

* A sink never raises: every way to fail is an :class:`~poller.delivery.sinks.base.Outcome`.
* An attempt has one bound in time, and sends nothing to an address that the guard has not checked.
* Retrying, rate, pauses and order per record belong to the engine and are the same for every sink.
* An outcome knows nothing of the sink's protocol, and holds no credential. Its ``kind``, ``wait`` and ``is_overloaded``
  alone decide what follows (:mod:`poller.delivery.retry`). ``failure``, ``error``, ``status`` and ``excerpt`` are for
  logs, dead letters and people.
* A wait is a span of time, never a moment: the clock of the sink does not count.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from importlib import import_module
from typing import Literal, NamedTuple, Self

import msgspec

from poller.auth.base import Credential
from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings, sink_kind_of
from poller.delivery.cloudevent import Envelope
from poller.http.ssrf import address_of, misspelling
from poller.http.transport import CertificateFiles


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


class SinkEvent(NamedTuple):
    """An event on its way to a sink.

    Attributes:
        envelope: its attributes.
        data: all of it, as it stands in the stream: CloudEvents JSON.
        repeat: which redelivery or replay this is; empty for the first delivery. The same on every attempt.
    """

    envelope: Envelope
    data: bytes
    repeat: str = ""


class PermissionRequest(msgspec.Struct, frozen=True):
    """What a sink is asked before it is sent anything (``validate = true``).

    Attributes:
        origin: the DNS name that the daemon sends as.
        rate: requests a minute; None: no rate is named.
        callback: the URL to call for a later grant, with its key; None: none is offered.
    """

    origin: str
    rate: int | None = None
    callback: str | None = None

    def __post_init__(self) -> None:
        """Check what a header can say."""
        if misspelling(self.origin) or address_of(self.origin):
            raise ValueError("the origin of a handshake is a DNS name")
        if self.rate is not None and self.rate < 1:
            raise ValueError("the rate of a handshake is a whole number of requests a minute")


class Permission(msgspec.Struct, frozen=True):
    """What a sink said when it was asked whether it takes events.

    Attributes:
        state: ``granted``: it does, or was not asked for permission and is there; ``awaiting``: it may call the
            callback; ``refused``: it does not; ``unanswered``: it did not say.
        text: what it answered, or why it does not, in one printable line.
        rate: requests a minute at most, as the sink spells it; empty: it did not say.
        failure: why there was no answer.
        may_grant_later: whether it answered, without a word on permission, as a sink may that calls back later.
    """

    state: Literal["granted", "awaiting", "refused", "unanswered"]
    text: str
    rate: str = ""
    failure: Failure | None = None
    may_grant_later: bool = False


class Preview(msgspec.Struct, frozen=True):
    """What a sink would be sent, fit to be shown: lines of a head without secrets, and the body."""

    head: Sequence[str]
    body: bytes


class Sink(ABC):
    """The way to one endpoint. An async context manager that closes it."""

    @abstractmethod
    async def send(self, batch: Sequence[SinkEvent]) -> Outcome:
        """Make one attempt at these events. Raises nothing."""

    @abstractmethod
    async def verify(self, request: PermissionRequest | None = None) -> Permission:
        """Ask whether it takes events, and send none. Raises nothing.

        Args:
            request: the permission that is asked for; None: only whether it is there.
        """

    @abstractmethod
    def preview(self, batch: Sequence[SinkEvent]) -> Preview:
        """What :meth:`send` would send now, without credentials.

        Raises:
            ConfigurationError, CredentialUnusable: a secret cannot be used.
            ValueError: these events cannot be sent.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections."""

    async def __aenter__(self) -> Self:
        """Nothing is connected before it is needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()


class SinkParts(msgspec.Struct, frozen=True):
    """What a sink is made of beside its settings.

    Attributes:
        credential: where the token of ``auth`` comes from.
        clock: the store's.
        tls: whom to trust, and the client's certificate; None: the system's authorities.
        certificates: the files that ``tls`` was made of, where it was made of files: asked again for each connection.
        brought: the credential that a request to the Subscriptions API has brought, as it is kept; takes the place of
            ``credential``.
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
