"""From a subscription's settings to the values that its deliveries work with. Opens nothing, asks nothing."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from poller.auth.base import SecretFile
from poller.config.subscriptions import SubscriptionSettings
from poller.control.feeds import credential_of
from poller.delivery.filters import Batching, Subscription, compile_filters
from poller.delivery.handshake import Granted, pace
from poller.delivery.retry import RetryPolicy
from poller.delivery.signing import check_secret, public_keys
from poller.delivery.sinks.base import Sink, SinkParts, open_sink
from poller.errors import CredentialUnusable
from poller.http.transport import CertificateFiles, Transport


def subscription_of(settings: SubscriptionSettings, granted: Granted | None = None) -> Subscription:
    """What is wanted, and how; slower where the sink has granted less than is configured."""
    batch = settings.batch
    batching = Batching(batch.max_events, batch.max_bytes, batch.linger) if settings.mode == "batch" else Batching()
    return Subscription(
        id=settings.id,
        wanted=compile_filters(settings.types, settings.filters),
        patience=RetryPolicy(settings.retry.schedule, settings.retry.jitter),
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
    secrets: Sequence[str] = (),
    granted: Granted | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Sink:
    """The way to the sink; nothing is connected yet.

    Args:
        settings: the subscription's.
        environ: where a credential may be.
        tls: whom to trust; by default what the settings name, else the system's authorities.
        brought: the credential that a request has brought, as it is kept; takes the place of ``auth``.
        secrets: signing secrets that no file holds.
        granted: what the sink has granted, where it was asked.
        now: the store's clock, UTC.

    Raises:
        ConfigurationError: its credential cannot be set up, or a certificate file cannot be used.
    """
    transport = Transport(settings.ca_file, settings.client_cert_file, settings.client_key_file)
    certificates = CertificateFiles(transport, "sink") if tls is None and transport != Transport() else None
    parts = SinkParts(
        credential_of(settings.auth, environ, transport=transport, within=settings.timeout),
        now,
        tls=certificates.context() if certificates else tls,
        certificates=certificates,
        brought=brought,
        secrets=tuple(secrets),
        origin=granted.origin if granted else None,
    )
    return open_sink(settings, parts)


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


def signing_secrets(files: Iterable[Path]) -> list[str]:
    """The secrets that these files hold.

    Raises:
        CredentialUnusable: a file cannot be read.
        SecretUnusable: it holds no secret; says which.
    """
    read = [(file, file.text()) for file in (SecretFile(path, "signing secret") for path in files)]
    for file, text in read:
        check_secret(text, file.origin)
    return [text for _, text in read]
