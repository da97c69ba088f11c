"""From a subscription's settings to the values that its deliveries work with. Opens nothing, asks nothing."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from poller import __version__
from poller.auth.base import SecretFile
from poller.auth.sink_credential import authorization_of
from poller.config.subscriptions import SubscriptionSettings
from poller.control.feeds import credential_of
from poller.delivery.filters import compile_filters
from poller.delivery.formats import Request, RequestForm
from poller.delivery.handshake import Granted, pace
from poller.delivery.retry import Patience
from poller.delivery.signing import SecretUnusable, Signer, public_keys
from poller.delivery.sinks.base import Batching, Event, Subscription
from poller.delivery.sinks.webhook import Sink
from poller.errors import CredentialUnusable
from poller.http.ssrf import AddressPolicy
from poller.http.transport import Transport, tls_of

_USER_AGENT: Final = f"poller/{__version__}"


def subscription_of(settings: SubscriptionSettings, granted: Granted | None = None) -> Subscription:
    """What is wanted, and how; slower where the sink has granted less than is configured."""
    batch = settings.batch
    batching = Batching(batch.max_events, batch.max_bytes, batch.linger) if settings.mode == "batch" else Batching()
    return Subscription(
        id=settings.id,
        wanted=compile_filters(settings.types, settings.filters),
        patience=Patience(settings.retry.schedule, settings.retry.jitter),
        disable_after=settings.disable_after,
        start=settings.start,
        batching=batching,
        concurrency=settings.concurrency,
        rate=pace(granted, settings.rate) if granted else settings.rate,
        sink=urlsplit(settings.sink).netloc.rpartition("@")[2],
    )


def sink_of(
    settings: SubscriptionSettings,
    environ: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
    *,
    brought: bytes | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Sink:
    """The way to the sink; not open yet.

    Args:
        settings: the subscription's.
        environ: where a credential may be.
        tls: whom to trust; by default what the settings name, else the system's authorities.
        brought: the credential that a request has brought, as it is kept; takes the place of ``auth``.
        now: the store's clock, UTC.

    Raises:
        ConfigurationError: its credential cannot be set up, or a certificate file cannot be used.
    """
    transport = Transport(settings.ca_file, settings.client_cert_file, settings.client_key_file)
    if tls is None and transport != Transport():
        tls = tls_of(transport, "sink")
    return Sink(
        settings.sink,
        timeout=settings.timeout,
        concurrency=settings.concurrency,
        headers=tuple(settings.headers.items()),
        credential=credential_of(settings.auth, environ, transport=transport, within=settings.timeout),
        authorization=authorization_of(brought) if brought else None,
        allowed=AddressPolicy.of(settings.allow_hosts, private=settings.allow_private),
        tls=tls,
        now=now,
    )


def public_keys_of(settings: SubscriptionSettings, secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """What a receiver needs to verify ``v1a`` signatures, as far as secret files can be read here.

    Args:
        settings: the subscription's.
        secrets: those that no file holds.
    """
    texts = list(secrets)
    for path in settings.secret_files:
        with suppress(CredentialUnusable):
            texts.append(SecretFile(path, "signing secret").text())
    return public_keys(texts)


class RequestBuilder:
    """The requests of a subscription, signed with whatever its secret files hold now."""

    def __init__(self, settings: SubscriptionSettings, secrets: Sequence[str], granted: Granted | None = None) -> None:
        """Take what is the same in each request; ``secrets`` are those that no file holds."""
        self._mode = settings.mode
        self._origin = granted.origin if granted else None
        self._secrets = tuple(secrets)
        self._files = [SecretFile(path, "signing secret") for path in settings.secret_files]
        self._signed_with: tuple[str, ...] | None = None
        self._form = self._made(())

    def __call__(self, events: Sequence[Event], timestamp: int) -> Request:
        """The request that carries these events.

        Raises:
            ValueError: see :meth:`poller.delivery.formats.RequestForm.request`.
            CredentialUnusable: a secret file cannot be read.
            SecretUnusable: it holds no secret; says which.
        """
        texts = [file.text() for file in self._files]
        secrets = (*self._secrets, *texts)
        if secrets != self._signed_with:
            for file, text in zip(self._files, texts, strict=True):
                _check(file, text)
            self._form = self._made(secrets)
            self._signed_with = secrets
        return self._form.request(events, timestamp=timestamp)

    def _made(self, secrets: tuple[str, ...]) -> RequestForm:
        signer = Signer(secrets) if secrets else None
        return RequestForm(self._mode, signer=signer, user_agent=_USER_AGENT, origin=self._origin)


def signing_secrets(files: Iterable[Path]) -> list[str]:
    """The secrets that these files hold.

    Raises:
        CredentialUnusable: a file cannot be read.
        SecretUnusable: it holds no secret; says which.
    """
    read = [(file, file.text()) for file in (SecretFile(path, "signing secret") for path in files)]
    for file, text in read:
        _check(file, text)
    return [text for _, text in read]


def _check(file: SecretFile, text: str) -> None:
    try:
        Signer((text,))
    except SecretUnusable as error:
        raise SecretUnusable(f"{file.origin} holds no signing secret: {error}") from None
