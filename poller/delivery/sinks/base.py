"""What a sink is: one interface for every kind of destination.

To add a kind of sink: a module beside this one with a class that implements :class:`Sink` and a function ``open_sink``
(:data:`OpenSink`), and a ``SinkKind`` in ``SINKS`` of :mod:`poller.config.subscriptions`, by the schemes of its URLs.

**Invariants**

* A sink never raises: every way to fail is an :class:`~poller.delivery.outcome.Outcome`.
* An attempt has one bound in time, and sends nothing to an address that the guard has not checked.
* Retrying, rate, pauses and order per record belong to the engine and are the same for every sink.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Literal, NamedTuple, Self

import msgspec

from poller.auth.base import Credential
from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings, sink_kind_of
from poller.delivery.cloudevent import Envelope
from poller.delivery.outcome import Failure, Outcome
from poller.http.ssrf import address_of, misspelling
from poller.http.transport import CertificateFiles


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
