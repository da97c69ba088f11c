"""Laws of :mod:`poller.control.factories`: clients, credentials, feeds and sinks follow the configuration."""

from __future__ import annotations

import json
import ssl
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import trustme

from poller.clock import Clock
from poller.config.http import AUTH_KINDS, AuthSettings, OAuth2Settings, SinkAuthSettings, auth_kinds_of
from poller.config.sources import SourceSettings
from poller.config.subscriptions import SubscriptionSettings
from poller.control.factories import client_of, credential_of, feed_of, subscription_of
from poller.errors import ConfigurationError
from poller.http.transport import Transport
from tests.source.api import Request, http, serving
from tests.source.clients import keep

SECOND = timedelta(seconds=1)


async def test_each_kind_of_auth_gives_its_token(tmp_path: Path) -> None:
    """Each kind of auth gives its token: file, variable, command, token endpoint, none."""
    secret = keep(tmp_path / "secret", "from-file")
    issued = http(200, b'{"access_token":"from-endpoint","token_type":"bearer"}')
    async with serving(issued) as server:
        oauth2 = {"token_url": server.url, "client_id": "c", "client_secret_file": str(secret), "scope": "s"}
        kinds: dict[str | None, dict[str, object]] = {
            "from-file": {"token_file": str(secret)},
            "from-variable": {"token_env": "TOKEN"},
            "from-command": {"command": ["echo", "from-command"]},
            "from-endpoint": {"oauth2": oauth2},
            None: {"none": True},
        }
        assert {name for kind in kinds.values() for name in kind} == auth_kinds_of("source")
        for token, kind in kinds.items():
            auth = AuthSettings.model_validate(kind)
            environ = {"TOKEN": "from-variable"}
            credential = credential_of(auth, environ, Transport(), 20 * SECOND, Clock())
            assert await credential.token() == token
        assert server.requests[0].form == {"grant_type": "client_credentials", "scope": "s"}


def test_every_kind_of_auth_has_what_makes_its_credential() -> None:
    """Each kind of auth in the configuration has a module that makes its credential."""
    assert all(callable(import_module(f"poller.auth.{kind.module}").make_credential) for kind in AUTH_KINDS.values())
    assert AUTH_KINDS.keys() == SinkAuthSettings.model_fields.keys()


async def test_a_source_is_reached_as_it_is_configured(tmp_path: Path) -> None:
    """The API gets authority, client certificate and headers; the token endpoint gets the first two."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(server)
    authority.configure_trust(server)
    mine = authority.issue_cert("poller@example.org")
    keep(tmp_path / "cert.pem", mine.cert_chain_pems[0].bytes())
    keep(tmp_path / "key.pem", mine.private_key_pem.bytes())
    keep(tmp_path / "secret", "s3cret")

    async def answer(request: Request, _: object) -> bytes:
        if request.method == "POST":
            return http(200, json.dumps({"access_token": "t1", "token_type": "Bearer"}).encode())
        return http(200, b"ok")

    async with serving(answer, tls=server) as api:
        oauth2 = {"token_url": f"{api.url}/token", "client_id": "c", "client_secret_file": str(tmp_path / "secret")}
        source = SourceSettings.model_validate(
            {
                "name": "acme",
                "base_url": api.url,
                "auth": {"oauth2": oauth2},
                "headers": {"X-Tenant": "t"},
                "ca_file": str(tmp_path / "ca.pem"),
                "client_cert_file": str(tmp_path / "cert.pem"),
                "client_key_file": str(tmp_path / "key.pem"),
                "feeds": [{"resource": "contractTypes"}],
            }
        )
        async with client_of(source, {}, Clock()) as client:
            assert await client.get("/x") == b"ok"
        token, asked = api.requests
        assert (token.path, "x-tenant" in token.headers) == ("/token", False)
        assert (asked.headers["authorization"], asked.headers["x-tenant"]) == ("Bearer t1", "t")


def test_certificates_of_a_token_endpoint_that_cannot_be_used_are_the_operators_mistake(tmp_path: Path) -> None:
    """Unusable certificates of a token endpoint are a ConfigurationError before the first request."""
    oauth2 = {"token_url": "https://a.invalid", "client_id": "c", "client_secret_file": str(tmp_path / "secret")}
    auth = AuthSettings.model_validate({"oauth2": oauth2})
    with pytest.raises(ConfigurationError, match="absent"):
        credential_of(auth, {}, Transport(tmp_path / "absent"), SECOND, Clock())


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [({"interval": "5s"}, 5), ({"interval": "60s"}, 60), ({"interval": "24h"}, 60), ({"cron": "0 3 * * *"}, 60)],
)
def test_a_requests_patience_is_its_feeds_interval_and_no_more_than_a_minute(
    timing: dict[str, str], seconds: int
) -> None:
    """A request's patience is the feed's interval, at most a minute."""
    source = SourceSettings.model_validate(
        {
            "name": "acme",
            "base_url": "https://api.example.org",
            "auth": {"none": True},
            "feeds": [{"resource": "contractTypes", **timing}],
        }
    )
    assert feed_of(source, source.feeds[0]).patience == timedelta(seconds=seconds)


OAUTH2 = {
    "token_url": "https://a.example.org/t?x=1",
    "client_id": "c'l\"i",
    "client_secret_file": "/run/secrets/client",
}
BOUND: list[tuple[dict[str, Any], str, str]] = [
    (
        {"token_file": "/run/secrets/acme"},
        "token_file=PosixPath('/run/secrets/acme'), token_env=None, oauth2=None, command=None, none=False",
        "e0de216dffd579de",
    ),
    (
        {"token_file": "it's"},
        'token_file=PosixPath("it\'s"), token_env=None, oauth2=None, command=None, none=False',
        "d15497815e632964",
    ),
    (
        {"token_env": "ACME_TOKEN"},
        "token_file=None, token_env='ACME_TOKEN', oauth2=None, command=None, none=False",
        "6eaac16fd6eef2db",
    ),
    (
        {"oauth2": OAUTH2},
        (
            "token_file=None, token_env=None, oauth2=OAuth2Settings(token_url='https://a.example.org/t?x=1', "
            "client_id='c\\'l\"i', client_secret_file=PosixPath('/run/secrets/client'), scope=None, audience=None), "
            "command=None, none=False"
        ),
        "729a696ad45440bf",
    ),
    (
        {"oauth2": OAUTH2 | {"scope": "read write", "audience": "https://api.example.org"}},
        (
            "token_file=None, token_env=None, oauth2=OAuth2Settings(token_url='https://a.example.org/t?x=1', "
            "client_id='c\\'l\"i', client_secret_file=PosixPath('/run/secrets/client'), scope='read write', "
            "audience='https://api.example.org'), command=None, none=False"
        ),
        "60c191259c2bfab5",
    ),
    (
        {"command": ["print-token", "it's", "a\\b", "ä"]},
        "token_file=None, token_env=None, oauth2=None, command=('print-token', \"it's\", 'a\\\\b', 'ä'), none=False",
        "6d5179e7d7f748dc",
    ),
    (
        {"command": ["x"]},
        "token_file=None, token_env=None, oauth2=None, command=('x',), none=False",
        "1771552c4768a35c",
    ),
    ({"none": True}, "token_file=None, token_env=None, oauth2=None, command=None, none=True", "3ae2a139f40f4760"),
]


@pytest.mark.parametrize(("auth", "text", "digest"), BOUND)
def test_delta_tokens_are_bound_to_the_text_of_the_first_version(auth: dict[str, Any], text: str, digest: str) -> None:
    """The binding text and digest are those of version 0.1: another digest makes every feed resync."""
    source = SourceSettings.model_validate(
        {
            "name": "acme",
            "base_url": "https://api.example.org/v1",
            "auth": auth,
            "feeds": [{"resource": "contractTypes", "limit": 100}],
        }
    )
    feed = feed_of(source, source.feeds[0])
    assert feed.binding == f"https://api.example.org/v1 AuthSettings({text})"
    assert feed.fingerprint == digest


def test_delta_tokens_are_bound_to_the_headers_of_the_source() -> None:
    """Another header may mean another tenant, so it changes the fingerprint; the binding shows no value."""
    source = {"name": "acme", "base_url": "https://api.example.org/v1", "feeds": [{"resource": "contractTypes"}]}
    headers = [{}, {"X-Tenant": "one"}, {"X-Tenant": "two"}, {"X-Area": "one"}]
    made = [SourceSettings.model_validate(source | {"headers": one}) for one in headers]
    feeds = [feed_of(one, one.feeds[0]) for one in made]
    assert len({feed.fingerprint for feed in feeds}) == len(headers)
    assert not any("two" in feed.binding for feed in feeds)


def test_feeds_share_what_is_the_same() -> None:
    """A process may have thousands of feeds: equal statuses, bindings and names are one value, others are not."""
    usual = [{"resource": "contractTypes"}, {"resource": "evidenceVariants"}]
    given = [*usual, {"resource": "positions", "path": "/positions", "expired_statuses": [410]}]
    source = SourceSettings.model_validate({"name": "acme", "base_url": "https://api.example.org/v1", "feeds": given})
    one, other, special = (feed_of(source, feed) for feed in source.feeds)
    assert one.expired_statuses is other.expired_statuses
    assert one.expired_statuses == frozenset(source.feeds[0].expired_statuses)
    assert special.expired_statuses == frozenset({410})
    assert one.binding is other.binding
    assert one.id is source.feed_id(source.feeds[0])
    assert len({feed.id for feed in (one, other, special)}) == 3


def test_achievements_are_requested_with_the_qualification_they_belong_to() -> None:
    """``fields`` of achievements include ``qualificationID``: a removal is published where the record was listed."""
    feeds = [{"resource": name, "fields": ["remark"]} for name in ("achievements", "contractTypes")]
    source = SourceSettings.model_validate({"name": "acme", "base_url": "https://api.example.org/v1", "feeds": feeds})
    assert [feed_of(source, feed).query.fields for feed in source.feeds] == [
        ("id", "qualificationID", "remark"),
        ("id", "remark"),
    ]


class LaterOAuth2(OAuth2Settings):
    """OAuth2 settings as a later version may have them."""

    tenant: str | None = None


class LaterAuth(AuthSettings):
    """Auth settings as a later version may have them."""

    oauth2: LaterOAuth2 | None = None
    query_key: str | None = None

    def _given(self) -> tuple[str, ...]:
        return super()._given() or ("token_file",)


@pytest.mark.parametrize(("auth", "text", "digest"), BOUND)
def test_a_later_key_of_auth_changes_nothing_where_it_is_not_given(
    auth: dict[str, Any], text: str, digest: str
) -> None:
    """A later key that is not set changes no binding, nor does another class name."""
    assert digest
    assert LaterAuth.model_validate(auth).binding == f"AuthSettings({text})"


def test_a_later_key_of_auth_counts_where_it_is_given() -> None:
    """A later key that is set changes the binding, since it may mean another user."""
    later = [{"query_key": "a"}, {"query_key": "b"}, {"oauth2": OAUTH2 | {"tenant": "a"}}, {"oauth2": OAUTH2}]
    texts = [LaterAuth.model_validate(auth).binding for auth in later]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("url", "shown"),
    [("https://sink.example.org:8443/s3cret", "sink.example.org:8443"), ("local:///var/s3cret", "local:///…")],
)
def test_a_sink_is_named_in_the_log_without_its_path(url: str, shown: str) -> None:
    """The log shows a sink by its host, or by its scheme if it has none."""
    settings = SubscriptionSettings.model_validate({"id": "a", "sink": "https://sink.example.org"})
    assert subscription_of(settings.model_copy(update={"sink": url})).sink == shown


def test_equal_fields_are_one_projection_for_each_id_field() -> None:
    """Subscriptions with equal ``fields`` and ``thin`` share their projections; the id field is that of the feed."""
    values = {"id": "a", "sink": "https://sink.example.org"}
    ids = {"acme/a": "id", "acme/b": "code"}
    given = [
        subscription_of(SubscriptionSettings.model_validate(values | more), id_fields=ids).projection
        for more in (
            {"fields": {"drop": ["/a", "/b"]}},
            {"id": "b", "fields": {"drop": ["/b", "/a"]}, "thin": False},
            {"fields": {"drop": ["/a", "/b"]}, "thin": True},
            {"thin": True},
            {},
        )
    ]
    assert given[4] is None
    made = [one("acme/a") for one in given if one is not None]
    assert made[0] is made[1]
    assert len({*made}) == 3
    first = given[0]
    assert first
    assert first("acme/b") is not first("acme/a")
    assert first("acme/gone") is first("acme/a")
