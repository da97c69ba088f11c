"""URLs: which are accepted, and what of them may be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.config.http import (
    check_base_url,
    check_proxy,
    check_redis_url,
    check_url,
    holds_password,
    redacted,
    reversed_host,
    same_host,
)


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("https://api.example.org/v1", "org.example.api"),
        ("https://API.Example.org./v1", "org.example.api"),
        ("http://api:8080", "api"),
        ("http://localhost:8080", "poller"),
        ("http://127.0.0.1:8080", "poller"),
        ("http://[::1]:8080", "poller"),
        ("http://2130706433/", "poller"),
        ("http://0x7f.1/", "poller"),
    ],
)
def test_reversed_host(url: str, prefix: str) -> None:
    """The type prefix is the reversed host name, or the program's name if there is none."""
    assert reversed_host(url) == prefix


@pytest.mark.parametrize(
    "url",
    ["", "api.example.org", "ftp://h", "http://", "https:///x", "http://h:0", "http://h:99999", "http://h:x", "http://[::1",
     "http://u:hunter2@h", "http://hunter2@h", "http://h/#f", "http://h/a b", "http://h/\n", "http://ü.example", "http://h\\x"],
)  # fmt: skip
def test_refused_urls(url: str) -> None:
    """A URL that is not absolute http or holds a credential is refused, and no part of it is repeated."""
    with pytest.raises(ValueError, match=r"^expected a URL ") as refused:
        check_url(url)
    assert "hunter2" not in str(refused.value)


def test_where_a_credential_goes() -> None:
    """A URL with user and password is refused with the place for a credential."""
    with pytest.raises(ValueError, match=r"^expected a URL without user and password: a credential goes into auth$"):
        check_url("http://u:hunter2@h")


def test_base_urls() -> None:
    """A base URL has no final slash and no query; a proxy has no path either."""
    assert check_base_url("https://h/v1//") == "https://h/v1"
    assert check_proxy("http://p:3128/") == "http://p:3128"
    assert check_url("https://h/v1?a=b") == "https://h/v1?a=b"
    for check, url in (
        (check_base_url, "https://h/?a=b"),
        (check_base_url, "https://h/?"),
        (check_proxy, "http://p/x"),
    ):
        with pytest.raises(ValueError, match=r"^expected "):
            check(url)


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:6379/0", "redis://:pw@h", "rediss://u:p@h:1/2", "unix:///run/redis.sock", "redis://[::1]:6379",
     "redis+sentinel://h:26379,h2:26379/main/0", "redis+cluster://h:7000,h2:7001"],
)  # fmt: skip
def test_redis_urls(url: str) -> None:
    """Every kind of Redis URL in the contract is accepted unchanged."""
    assert check_redis_url(url) == url


@pytest.mark.parametrize(
    "url",
    ["", "redis", "http://h", "redis://", "redis://h:0", "redis://h:99999", "redis://h:x", "redis:// h", "unix://run/x",
     "unix://", "redis+sentinel://h:1", "redis+sentinel://h:1/", "redis+cluster://h,", "redis://h,h2"],
)  # fmt: skip
def test_refused_redis_urls(url: str) -> None:
    """An invalid Redis URL is refused before any connection."""
    with pytest.raises(ValueError, match=r"^expected "):
        check_redis_url(url)


@pytest.mark.parametrize(
    ("url", "held"),
    [
        ("redis://h", False),
        ("redis://u@h", False),
        ("redis://:pw@h", True),
        ("rediss://u:pw@h/0", True),
        ("unix:///s?password=pw", True),
        ("redis://h?PASSWORD=", True),
        ("redis+sentinel://h/main?sentinel_password=pw", True),
        ("unix:///s?db=1", False),
    ],
)
def test_passwords_are_found(url: str, held: bool) -> None:
    """A password is found before the host and in the query."""
    assert holds_password(url) == held


@given(st.sampled_from(["https", "redis", "unix", "redis+sentinel"]), st.text(alphabet="a:@/?#%[]", max_size=8))
def test_no_password_is_shown(scheme: str, noise: str) -> None:
    """No part of a broken URL before its last @ or after its ? is shown."""
    assert "hunter2" not in redacted(f"{scheme}://{noise}hunter2{noise}@host/path")
    assert "hunter2" not in redacted(f"{scheme}://host/path?{noise}=hunter2")
    assert "hunter2" not in redacted(f"u:hunter2{noise}@host")


def test_same_host() -> None:
    """Scheme, host and port have to be equal; path and query do not count; unreadable URLs have no host."""
    assert same_host("https://A.example/x?y", "https://a.example/z")
    for other in ("http://a.example", "https://a.example:8443", "https://a.example.evil", "https://b.example"):
        assert not same_host("https://a.example/", other)
    assert not same_host("http://[", "http://[")
    assert not same_host("http://a:x", "http://a:x")
