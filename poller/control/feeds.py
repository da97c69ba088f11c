"""From the configuration to the clients and times that rounds work with. Opens nothing, asks nothing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from poller.auth.base import Credential, EnvironmentToken, FileToken, IssuedToken, NoCredential
from poller.auth.command import TokenCommand
from poller.auth.oauth import ClientCredentials, OAuthClient
from poller.changes.canonical import without
from poller.changes.plan import RemovalGuard
from poller.clock import Clock
from poller.config.http import AuthSettings
from poller.config.settings import Settings
from poller.config.sources import FeedSettings, SourceSettings
from poller.http.transport import Transport
from poller.resources import resource_of
from poller.source.client import ApiClient, ClientLimits
from poller.source.feed import Feed
from poller.source.paging import ListQuery
from poller.store.keys import FeedKeys
from poller.telemetry.metrics import SourceSeries


def client_of(
    source: SourceSettings,
    environ: Mapping[str, str],
    clock: Clock,
) -> ApiClient:
    """The client of this source; not open yet.

    Args:
        source: its settings.
        environ: where its credential may be.
        clock: the store's, where there is a store; else this process's.

    Raises:
        ConfigurationError: its certificates cannot be used.
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
        credential=credential_of(source.auth, environ, transport=transport, within=source.timeout),
        limits=ClientLimits(source.timeout, source.max_page_bytes, source.rate, source.concurrency),
        transport=transport,
        series=SourceSeries(source.name),
        clock=clock,
    )


def credential_of(
    auth: AuthSettings, environ: Mapping[str, str], *, transport: Transport, within: timedelta
) -> Credential:
    """Where the tokens of this ``auth`` come from.

    Args:
        auth: the kind, and where the secret is kept.
        environ: where a variable is looked for.
        transport: how a token endpoint is reached.
        within: how long one whole exchange with it may take.

    Raises:
        ConfigurationError: a certificate file cannot be used.
    """
    if auth.token_file is not None:
        return FileToken(auth.token_file)
    if auth.token_env is not None:
        return EnvironmentToken(auth.token_env, environ)
    if auth.command is not None:
        return IssuedToken(TokenCommand(auth.command))
    if auth.oauth2 is not None:
        asked = auth.oauth2
        client = OAuthClient(asked.token_url, asked.client_id, asked.client_secret_file, asked.scope, asked.audience)
        return IssuedToken(ClientCredentials(client, transport=transport, within=within))
    return NoCredential()


# From the configuration to the values that rounds work with, and their keys.

AUTO = "auto"
LONGEST_PATIENCE: Final = timedelta(seconds=60)


def feed_of(source: SourceSettings, feed: FeedSettings) -> Feed:
    """What a round of this feed needs to know."""
    resource = resource_of(feed.resource, path=feed.path, detail_path=feed.detail_path, type_name=feed.type_name)
    return Feed(
        id=source.feed_id(feed),
        resource=resource,
        query=ListQuery(
            limit=feed.limit,
            fields=_fields(feed),
            style=feed.fields_style,
            page_params=feed.page_params,
            keep=feed.delta_token,
            max_pages=feed.max_pages,
        ),
        event_source=source.event_source,
        type_prefix=source.type_prefix,
        base_url=source.base_url,
        binding=f"{source.base_url} {source.auth!r}",
        id_field=feed.id_field,
        delta=feed.delta == "on" or (feed.delta == AUTO and resource.delta),
        delta_on_trial=feed.delta == AUTO,
        partial=feed.partial,
        strip=without(feed.ignore) if feed.ignore else None,
        silent_baseline=feed.baseline == "silent",
        reconcile=feed.reconcile,
        removals=feed.removals == "confirm",
        newest=feed.versions == "newest",
        breaker=RemovalGuard(feed.max_removals.percent, feed.max_removals.records),
        expired_statuses=frozenset(feed.expired_statuses),
        qualifications=tuple(name for name in feed.qualifications if name != AUTO),
        discover=resource.per_qualification and AUTO in feed.qualifications,
        slot=feed.interval,
        at_once=max(1, source.concurrency - 1),  # one request is left for the source's other feeds
        max_round=feed.max_round,
        patience=min(feed.interval or LONGEST_PATIENCE, LONGEST_PATIENCE),
    )


def keys_of(settings: Settings, feed_id: str) -> FeedKeys:
    """Where this feed is kept."""
    return FeedKeys.of(settings.redis.prefix, feed_id)


def _fields(feed: FeedSettings) -> tuple[str, ...]:
    if not feed.fields:
        return ()
    return feed.fields if feed.id_field in feed.fields else (feed.id_field, *feed.fields)
