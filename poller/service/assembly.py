"""From the configuration to the clients and times that rounds work with. Opens nothing, asks nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from poller.config.auth import AuthSettings
from poller.config.sources import SourceSettings
from poller.credentials.bearer import Credential, EnvironmentToken, FileToken, NoCredential
from poller.credentials.issued import IssuedToken
from poller.credentials.oauth import Client, ClientCredentials
from poller.credentials.token_command import TokenCommand
from poller.http.transport import Transport
from poller.source.client import ApiClient, Limits
from poller.telemetry.sources import SourceSeries


def client_of(
    source: SourceSettings,
    environ: Mapping[str, str],
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> ApiClient:
    """The client of this source; not open yet.

    Args:
        source: its settings.
        environ: where its credential may be.
        now: the store's clock, UTC, where there is a store.

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
        limits=Limits(source.timeout, source.max_page_bytes, source.rate, source.concurrency),
        transport=transport,
        jitter=lambda: random.uniform(0.5, 1.5),  # noqa: S311 -- spreads retries, guards nothing
        series=SourceSeries(source.name),
        now=now,
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
        client = Client(asked.token_url, asked.client_id, asked.client_secret_file, asked.scope, asked.audience)
        return IssuedToken(ClientCredentials(client, transport=transport, within=within))
    return NoCredential()
