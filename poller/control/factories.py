"""Makes the objects that the configuration describes: API clients, credentials, feeds, subscriptions, sinks.

**Invariants**

- Nothing is opened and no request is made here.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from poller.auth.base import Credential, CredentialParts, MakeCredential, SecretFile
from poller.changes.plan import RemovalGuard
from poller.clock import Clock
from poller.config.http import AUTH_KINDS, AuthSettings, host_only
from poller.config.settings import Settings
from poller.config.sources import FeedSettings, SourceSettings
from poller.config.subscriptions import FieldsSettings, SubscriptionSettings
from poller.delivery.filters import Batching, Subscription, compile_filters
from poller.delivery.handshake import Granted, pace
from poller.delivery.projection import Projection, projection_of
from poller.delivery.retry import RetryPolicy
from poller.delivery.signing import check_secret, public_keys
from poller.delivery.sinks.base import Sink, SinkParts, open_sink
from poller.errors import CredentialUnusable
from poller.http.transport import CertificateFiles, SharedConnections, Transport
from poller.resources import Resource, resource_of
from poller.source.client import ApiClient, ClientLimits
from poller.source.feed import Feed
from poller.source.paging import ListQuery
from poller.store.keys import FeedKeys
from poller.telemetry.metrics import SourceSeries


def client_of(
    source: SourceSettings,
    environ: Mapping[str, str],
    clock: Clock,
    shared: SharedConnections | None = None,
) -> ApiClient:
    """The client of a source, not open yet.

    Args:
        source: the source's settings.
        environ: may hold the credential.
        clock: the store's if there is a store, else this process's.
        shared: the connections of all sources, if it is one of many.

    Raises:
        ConfigurationError: a certificate cannot be used.
    """
    transport = Transport(
        source.ca_file,
        source.client_cert_file,
        source.client_key_file,
        source.proxy,
        tuple(source.headers.items()),
    )
    return ApiClient(
        source.base_url,
        credential=credential_of(source.auth, environ, transport, source.timeout, clock),
        limits=ClientLimits(source.timeout, source.max_page_bytes, source.rate, source.concurrency),
        transport=transport,
        series=SourceSeries(source.name),
        clock=clock,
        shared=shared,
    )


def credential_of(
    auth: AuthSettings, environ: Mapping[str, str], transport: Transport, within: timedelta, clock: Clock
) -> Credential:
    """The credential that ``auth`` describes.

    Args:
        auth: the kind, and the place of the secret.
        environ: as :class:`CredentialParts`.
        transport: likewise.
        within: likewise.
        clock: likewise.

    Raises:
        ConfigurationError: a certificate file cannot be used.
    """
    make: MakeCredential = import_module(f"poller.auth.{AUTH_KINDS[auth.kind].module}").make_credential
    return make(auth.kind, getattr(auth, auth.kind), CredentialParts(environ, transport, within, clock))


AUTO = "auto"
LONGEST_PATIENCE: Final = timedelta(seconds=60)


def feed_of(source: SourceSettings, feed: FeedSettings) -> Feed:
    """The feed, as rounds use it."""
    resource = resource_of(feed.resource, path=feed.path, detail_path=feed.detail_path, type_name=feed.type_name)
    return Feed(
        id=source.feed_id(feed),
        resource=resource,
        query=ListQuery(
            limit=feed.limit,
            fields=_fields(feed, resource),
            style=feed.fields_style,
            page_params=feed.page_params,
            keep=feed.delta_token,
            max_pages=feed.max_pages,
        ),
        event_source=source.event_source,
        type_prefix=source.type_prefix,
        base_url=source.base_url,
        binding=sys.intern(f"{source.base_url} {source.auth.binding}{_bound_headers(source.headers)}"),
        id_field=feed.id_field,
        delta=feed.delta == "on" or (feed.delta == AUTO and resource.delta),
        delta_on_trial=feed.delta == AUTO,
        partial=feed.partial,
        ignore=feed.ignore,
        silent_baseline=feed.baseline == "silent",
        reconcile=feed.reconcile,
        removals=feed.removals == "confirm",
        newest=feed.versions == "newest",
        breaker=RemovalGuard(feed.max_removals.percent, feed.max_removals.records),
        expired_statuses=_set_of(feed.expired_statuses),
        qualifications=tuple(name for name in feed.qualifications if name != AUTO),
        discover=resource.per_qualification and AUTO in feed.qualifications,
        slot=feed.interval,
        at_once=max(1, source.concurrency - 1),  # one request is left for the source's other feeds
        max_round=feed.max_round,
        patience=min(feed.interval or LONGEST_PATIENCE, LONGEST_PATIENCE),
    )


def configured_feed(settings: Settings, feed_id: str) -> Feed | None:
    """The feed of this id; None: the configuration does not have it."""
    for source in settings.sources:
        for feed in source.feeds:
            if source.feed_id(feed) == feed_id:
                return feed_of(source, feed)
    return None


@lru_cache(maxsize=64)
def _set_of(statuses: tuple[int, ...]) -> frozenset[int]:
    """One value for all feeds with the same ones: it takes more memory than the rest of a feed."""
    return frozenset(statuses)


def keys_of(settings: Settings, feed_id: str) -> FeedKeys:
    """The store's keys of a feed."""
    return FeedKeys.of(settings.redis.prefix, feed_id)


def _bound_headers(headers: Mapping[str, str]) -> str:
    """What delta tokens are bound to in the source's headers, which may name a tenant; nothing where there are none."""
    if not headers:
        return ""
    named = sorted((name.lower(), value) for name, value in headers.items())
    return f" headers {blake2b(repr(named).encode(), digest_size=8).hexdigest()}"


def _fields(feed: FeedSettings, resource: Resource) -> tuple[str, ...]:
    if not feed.fields:
        return ()
    # Of a record that is gone, the qualification is in the snapshot alone, and the listing it was in has its id.
    needed = (feed.id_field, *(("qualificationID",) if resource.per_qualification else ()))
    return (*(name for name in needed if name not in feed.fields), *feed.fields)


# From a subscription's settings to the values that its deliveries work with. Opens nothing, asks nothing.


def subscription_of(
    settings: SubscriptionSettings, granted: Granted | None = None, id_fields: Mapping[str, str] | None = None
) -> Subscription:
    """The subscription, as deliveries use it. A sink that granted a lower rate than configured gets that.

    Args:
        settings: the subscription's.
        granted: the sink's permission, if it was asked for one.
        id_fields: the key of a record that identifies it, by feed; of other feeds it is ``id``.
    """
    batch = settings.batch
    batching = Batching(batch.max_events, batch.max_bytes, batch.linger) if settings.mode == "batch" else Batching()
    return Subscription(
        id=settings.id,
        wanted=compile_filters(settings.types, settings.filters, settings.when),
        patience=RetryPolicy(settings.retry.schedule, settings.retry.jitter),
        disable_after=settings.disable_after,
        start=settings.start,
        batching=batching,
        concurrency=settings.concurrency,
        rate=pace(granted, settings.rate) if granted else settings.rate,
        sink=urlsplit(settings.sink).netloc.rpartition("@")[2] or host_only(settings.sink),
        projection=projections_of(settings, id_fields or {}),
    )


def projections_of(settings: SubscriptionSettings, id_fields: Mapping[str, str]) -> Callable[[str], Projection] | None:
    """What gives the projection of a feed's events; None: they are sent whole.

    Args:
        settings: the subscription's.
        id_fields: as for :func:`subscription_of`.
    """
    fields = settings.fields or FieldsSettings.model_construct(pick=None, drop=None)
    if settings.fields is None and not settings.thin:
        return None
    pick, drop = fields.pick or (), fields.drop or ()
    return lambda feed: projection_of(pick, drop, thin=settings.thin, id_field=id_fields.get(feed, "id"))


def sink_of(
    settings: SubscriptionSettings,
    environ: Mapping[str, str],
    tls: ssl.SSLContext | None = None,
    *,
    brought: bytes | None = None,
    secrets: Sequence[str] = (),
    granted: Granted | None = None,
    clock: Clock,
) -> Sink:
    """The sink of a subscription, not connected yet.

    Args:
        settings: the subscription's.
        environ: may hold the credential.
        tls: trusted authorities; None: those of the settings, else the system's.
        brought: the stored credential of the request that added the subscription; replaces ``auth``.
        secrets: signing secrets that no file holds.
        granted: the sink's permission, if it was asked for one.
        clock: the store's.

    Raises:
        ConfigurationError: the credential or a certificate file cannot be used.
    """
    transport = Transport(settings.ca_file, settings.client_cert_file, settings.client_key_file)
    certificates = CertificateFiles(transport, "sink") if tls is None and transport != Transport() else None
    parts = SinkParts(
        credential_of(settings.auth, environ, transport, settings.timeout, clock),
        clock,
        tls=certificates.context() if certificates else tls,
        certificates=certificates,
        brought=brought,
        secrets=tuple(secrets),
        origin=granted.origin if granted else None,
    )
    return open_sink(settings, parts)


def public_keys_of(settings: SubscriptionSettings, secrets: Sequence[str] = ()) -> tuple[str, ...]:
    """The public keys that verify ``v1a`` signatures. Secret files that cannot be read are left out.

    Args:
        settings: the subscription's.
        secrets: signing secrets that no file holds.
    """
    texts = list(secrets)
    for path in settings.secret_files:
        with suppress(CredentialUnusable):
            texts.append(SecretFile(path, "signing secret").text())
    return public_keys(texts)


def signing_secrets(files: Iterable[Path]) -> list[str]:
    """The secrets in these files.

    Raises:
        CredentialUnusable: a file cannot be read.
        SecretUnusable: a file holds no secret; names the file.
    """
    read = [(file, file.text()) for file in (SecretFile(path, "signing secret") for path in files)]
    for file, text in read:
        check_secret(text, file.origin)
    return [text for _, text in read]
