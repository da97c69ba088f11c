"""Laws of :mod:`poller.http.hosts`: seventeen ways to write 127.0.0.1, and their like."""

from __future__ import annotations

import pytest

from poller.http.addresses import Allowance
from poller.http.hosts import forbidden, misspelling

NONE = Allowance()
ALL = Allowance(private=True)
ODD = ["127.1", "127.0.1", "0x7f.1", "0x7f000001", "0x7f.0x0.0x0.0x1", "2130706433", "017700000001", "0177.0.0.1",
       "127.0.0.01", "0x", "127.0.0.1.", "localhost.", "example.org.", "127%2e0.0.1", "\uff11\uff12\uff17.0.0.1",
       "127\u30020\u30020\u30021", "\u24dbocalhost", "[fe80::1%eth0]", "[::1%25lo]", "[::ffff:127.1]", "[1]",
       "256.1.1.1", "1.2.3", "a..b", "-a.b", "a b",
       "a\tb", "a" * 64, ".".join(["a" * 60] * 5), "", "a.example.0x7f"]  # fmt: skip
PLAIN = ["example.org", "EXAMPLE.org", "a-b.c_d.example", "xn--bcher-kva.example", "redis", "8.8.8.8", "127.0.0.1",
         "[::1]", "[2606:4700::1111]", "0x7f.example", "1.example"]  # fmt: skip
HERE = ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "[::]", "[::127.0.0.1]", "localhost",  # noqa: S104 -- not bound
        "LOCALHOST", "x.localhost", "localhost.localdomain", "[64:ff9b::127.0.0.1]", "[2002:7f00:1::]"]  # fmt: skip


@pytest.mark.parametrize("host", ODD)
def test_a_host_that_is_read_in_two_ways_is_refused(host: str) -> None:
    """Whatever is allowed: it says why, and no look-up is needed for it."""
    assert misspelling(host)
    refused = forbidden(f"https://{host}/hooks", ALL)
    assert refused
    assert refused.isprintable()


@pytest.mark.parametrize("host", PLAIN)
def test_names_and_addresses_in_their_spelling_are_not(host: str) -> None:
    """Private or not: that is another question."""
    assert misspelling(host) is None
    assert forbidden(f"https://{host}:8443/hooks?a=b", ALL) is None


@pytest.mark.parametrize("host", HERE)
def test_what_means_this_machine_is_refused_unless_allowed(host: str) -> None:
    """By what it is, with the keys that would allow it."""
    refused = forbidden(f"https://{host}/", NONE)
    assert refused
    assert refused.startswith("a host that the Internet can reach, but this ")
    assert "allow_private = true or allow_hosts" in refused
    assert forbidden(f"https://{host}/", Allowance.of((host.strip("[]"),))) is None


@pytest.mark.parametrize(
    "url",
    ["https://u:hunter2@h/", "https://hunter2@h/", "https://h\\@127.0.0.1/", "https://h/\r\nX: y", "https://h/%00",
     "https://h/%0d%0aX", "https://h/ x", "https://h/ü", "ftp://h/", "//h/", "h", "", "https:///x", "https://h:x/",
     "https://h:99999/", "https://[::1/", "file:///etc/passwd"],
)  # fmt: skip
def test_a_url_that_holds_more_than_a_url_is_refused(url: str) -> None:
    """And nothing of it is repeated."""
    refused = forbidden(url, ALL)
    assert refused
    assert "hunter2" not in refused


def test_plain_http_is_for_what_is_allowed() -> None:
    """All of it, or the host that is named."""
    assert "http:// only with allow_private" in str(forbidden("http://example.org/", NONE))
    assert forbidden("http://example.org/", ALL) is None
    assert forbidden("http://example.org/", Allowance.of(("example.org",))) is None
    assert forbidden("http://10.1.2.3/", Allowance.of(("10.0.0.0/8",))) is None
    assert forbidden("http://example.com/", Allowance.of(("example.org",)))
