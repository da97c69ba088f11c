"""Laws of :mod:`poller.redis.url`: a URL is accepted or refused before any connection, and never shows a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio.connection import SSLConnection, UnixDomainSocketConnection

from poller.errors import ConfigurationError
from poller.redis.cluster import Address
from poller.redis.url import StoreAddress, arguments, place_of, shown


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://user:hunter2@db.example:6379/2", "redis://db.example:6379/2"),
        ("redis://:hunter2@db.example", "redis://db.example"),
        ("rediss://[::1]:6379?password=hunter2", "rediss://[::1]:6379"),
        ("unix:///run/redis.sock?db=1&password=hunter2", "unix:///run/redis.sock"),
        ("unix://hunter2@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis+sentinel://:hunter2@a:26379,b:26379/main/0", "redis+sentinel://a:26379,b:26379/main/0"),
        ("redis+sentinel://a,b:1/main?sentinel_password=hunter2", "redis+sentinel://a,b:1/main"),
        ("redis+cluster://u:hunter2@a:7000,b:7001?tls=true", "redis+cluster://a:7000,b:7001"),
        ("redis://:hunter2/x@db.example:6379", "redis://…"),
        ("redis://:hunter2", "redis://…"),
        ("redis:hunter2@db.example", "…"),
        ("hunter2", "…"),
    ],
)
def test_shown_is_the_place_alone(url: str, safe: str) -> None:
    """Of a URL only the place is shown, without user, password and query; nothing if the place is uncertain."""
    assert shown(url) == safe


@given(
    secret=st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=6).filter(lambda s: "redis" not in s)
)
def test_no_password_is_ever_shown(secret: str) -> None:
    """However a password is written in a URL, neither the shown URL nor an error repeats it."""
    url = f"redis://:q7{secret}7q@db.example:6379/0"
    assert f"q7{secret}7q" not in shown(url)
    assert f"q7{secret}7q" not in _refusal(url)


def _refusal(url: str) -> str:
    try:
        arguments(url)
    except ConfigurationError as refused:
        return str(refused)
    return ""


def test_arguments_of_each_kind() -> None:
    """``redis://``, ``rediss://`` and ``unix://`` URLs become connection arguments, percent-decoded."""
    assert arguments("redis://u:p%40ss@h:1/3") == {"host": "h", "port": 1, "db": 3, "username": "u", "password": "p@ss"}
    assert arguments("unix:///run/a%20b.sock?db=2") == {
        "path": "/run/a b.sock",
        "db": 2,
        "connection_class": UnixDomainSocketConnection,
    }
    assert arguments("redis://h?protocol=3") == {"host": "h", "protocol": 3}
    assert arguments("rediss://h?ssl_ca_certs=/ca.pem") == {
        "host": "h",
        "ssl_ca_certs": "/ca.pem",
        "connection_class": SSLConnection,
    }


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h", "expected one of redis://, rediss://, unix://"),
        ("127.0.0.1:6379", "expected one of redis://, rediss://, unix://"),
        ("", "expected one of redis://, rediss://, unix://"),
        ("redis://h:99999", "cannot be read"),
        ("redis://h:port", "cannot be read"),
        ("redis://h/events", "expected a database number"),
        ("redis://:a/b@h", "write special characters of a password as %XX"),
        ("unix://run/redis.sock", "expected an absolute path"),
        ("unix://", "expected an absolute path"),
        ("redis://h?db=x", "Invalid value for 'db'"),
        ("redis://h?socket_timeout=60", "'socket_timeout' cannot be set in the URL"),
        ("redis://h?retry_on_timeout=true", "'retry_on_timeout' cannot be set in the URL"),
        ("redis://h?path=/x", "'path' cannot be set in the URL"),
        ("redis://h?protocol=4", "expected protocol=2 or protocol=3"),
        ("redis://h?host=x", "'host' cannot be set in the URL"),
    ],
)
def test_unusable_addresses_are_refused_with_their_reason(url: str, reason: str) -> None:
    """A URL that is invalid, or sets an option that could repeat commands, is refused on one line."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        arguments(url)
    assert "\n" not in str(refused.value)


# URLs of Sentinel and Cluster.


def test_sentinels() -> None:
    """A Sentinel URL gives hosts, service and database; the Sentinels have their own credentials but share TLS."""
    assert place_of("redis+sentinel://a,[::1]:7/main", {}) == StoreAddress(
        (Address("a", 26379), Address("::1", 7)), {}, "main"
    )
    url = "redis+sentinel://u:p%40ss@a:1,b:2/main/3?tls=true&ssl_ca_certs=/ca.pem&sentinel_password=other"
    tls = {"ssl_ca_certs": "/ca.pem", "connection_class": SSLConnection, "protocol": 3}
    assert place_of(url, {"protocol": 3}) == StoreAddress(
        (Address("a", 1), Address("b", 2)),
        {"db": 3, "username": "u", "password": "p@ss", **tls},
        "main",
        {"password": "other", **tls},
    )


def test_clusters() -> None:
    """A cluster URL gives hosts and credentials; naming database 0 is allowed."""
    assert place_of("redis+cluster://u:p@a:7000,b/0?protocol=3", {}) == StoreAddress(
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
    """An unusable URL of Sentinel or Cluster is refused on one line that shows no secret."""
    with pytest.raises(ConfigurationError, match=reason) as refused:
        place_of(url, {})
    assert str(refused.value).startswith(f"redis.url {url.partition('://')[0]}://")
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
