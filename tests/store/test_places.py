"""URLs of Sentinel and Cluster are taken apart, or refused with their reason, and never show a secret."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import SSLConnection

from poller.errors import ConfigurationError
from poller.store.places import Place, place_of
from poller.store.slots import Address


def test_sentinels() -> None:
    """Hosts, service and database; the primary's credentials are not the Sentinels', TLS is everybody's."""
    assert place_of("redis+sentinel://a,[::1]:7/main", {}) == Place(
        (Address("a", 26379), Address("::1", 7)), {}, "main"
    )
    url = "redis+sentinel://u:p%40ss@a:1,b:2/main/3?tls=true&ssl_ca_certs=/ca.pem&sentinel_password=other"
    tls = {"ssl_ca_certs": "/ca.pem", "connection_class": SSLConnection, "protocol": 3}
    assert place_of(url, {"protocol": 3}) == Place(
        (Address("a", 1), Address("b", 2)),
        {"db": 3, "username": "u", "password": "p@ss", **tls},
        "main",
        {"password": "other", **tls},
    )


def test_clusters() -> None:
    """Hosts and credentials; the one database that a cluster has may be named."""
    assert place_of("redis+cluster://u:p@a:7000,b/0?protocol=3", {}) == Place(
        (Address("a", 7000), Address("b", 6379)), {"username": "u", "password": "p", "protocol": 3}
    )


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+cluster://a/1", "a cluster has no database numbers"),
        ("redis+cluster://a?db=1", "a cluster has no database numbers"),
        ("redis+cluster://a?sentinel_username=hunter2", "a cluster has no Sentinels"),
        ("redis+cluster://a/x", "expected a database number"),
        ("redis+cluster://", r"expected redis\+cluster://HOST:PORT,HOST:PORT and"),
        ("redis+cluster://a:7000,,b", r"expected redis\+cluster://HOST:PORT,HOST:PORT and"),
        ("redis+cluster://a:99999", r"expected redis\+cluster://HOST:PORT,HOST:PORT and"),
        ("redis+cluster://a?tls=hunter2", "tls=true or false"),
        ("redis+cluster://a?protocol=hunter2", "Invalid value for 'protocol'"),
        ("redis+cluster://a?socket_timeout=60", "'socket_timeout' cannot be set in the URL"),
        ("redis+sentinel://a", "expected the name of the service"),
        ("redis+sentinel://a/main/x", "expected a database number"),
        ("redis+sentinel://:hunter2@a:1:1/main", "SERVICE/DB"),
    ],
)
def test_what_cannot_be_used_is_refused(url: str, reason: str) -> None:
    """In one line that names the URL as it was given, without what may be secret."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        place_of(url, {})
    assert str(refused.value).startswith(f"redis.url {url.partition('://')[0]}://")
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
