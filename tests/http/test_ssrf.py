"""Laws of :mod:`poller.http.ssrf`."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.http.ssrf import AddressPolicy, address_of, forbidden, misspelling, refusal

REFUSED = {
    "0.0.0.0": "the unspecified address",  # noqa: S104 -- not bound
    "0.1.2.3": 'an address of "this network"',
    "10.1.2.3": "a private address",
    "100.64.0.1": "an address of a carrier's NAT",
    "100.127.255.255": "an address of a carrier's NAT",
    "127.0.0.1": "a loopback address",
    "127.255.0.9": "a loopback address",
    "169.254.169.254": "a link-local address",
    "172.16.0.1": "a private address",
    "172.31.255.255": "a private address",
    "192.0.0.8": "an address of protocol assignments",
    "192.0.2.1": "a documentation address",
    "192.88.99.1": "an address of 6to4 relays",
    "192.168.1.1": "a private address",
    "198.18.0.1": "a benchmark address",
    "198.19.255.255": "a benchmark address",
    "198.51.100.1": "a documentation address",
    "203.0.113.1": "a documentation address",
    "224.0.0.1": "a multicast address",
    "239.255.255.255": "a multicast address",
    "240.0.0.1": "a reserved address",
    "255.255.255.255": "the broadcast address",
    "::": "the unspecified address",
    "::1": "a loopback address",
    "::8.8.8.8": "an IPv4-compatible address",
    "::ffff:127.0.0.1": "an IPv4-mapped address",
    "::ffff:8.8.8.8": "an IPv4-mapped address",
    "::ffff:0:8.8.8.8": "an IPv4-translated address",
    "64:ff9b::7f00:1": "an address of NAT64, which leads to an IPv4 address",
    "64:ff9b:1::1": "an address of local NAT64, which leads to an IPv4 address",
    "100::1": "a discard address",
    "2001:0:4136:e378::1": "an address of Teredo, which leads to an IPv4 address",
    "2001:1::1": "an address of protocol assignments",
    "2001:2::1": "a benchmark address",
    "2001:10::1": "an ORCHID, which nothing is routed to",
    "2001:2f::1": "an ORCHID, which nothing is routed to",
    "2001:db8::1": "a documentation address",
    "2002:7f00:1::": "an address of 6to4, which leads to an IPv4 address",
    "3fff::1": "a documentation address",
    "4000::1": "a reserved address",
    "5f00::1": "a segment routing address",
    "fc00::1": "a unique local address",
    "fdff::1": "a unique local address",
    "fe80::1": "a link-local address",
    "fe80::1%eth0": "a link-local address",
    "fec0::1": "a site-local address",
    "ff02::1": "a multicast address",
    "ff0e::1": "a multicast address",
}
PUBLIC = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.32.0.1", "198.20.0.1", "223.255.255.255",
          "2606:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2003::1"]  # fmt: skip
NOWHERE = ["0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "::", "ff02::1", "100::1"]  # noqa: S104 -- not bound


@pytest.mark.parametrize(("text", "reason"), REFUSED.items(), ids=REFUSED)
def test_what_leads_inwards_or_nowhere_is_refused_with_its_name(text: str, reason: str) -> None:
    """Addresses that lead inwards or nowhere are refused with the name of their range."""
    assert refusal(ip_address(text)) == reason


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_not(text: str) -> None:
    """Public addresses are accepted, including neighbours of refused ranges."""
    assert refusal(ip_address(text)) is None


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_nothing_passes_that_the_standard_library_calls_private(address: IPv4Address | IPv6Address) -> None:
    """Every accepted address is global by the standard library, so the tables are never laxer."""
    if refusal(address) is None:
        assert address.is_global
        assert not address.is_multicast
        assert not address.is_reserved


@pytest.mark.parametrize("text", [text for text in REFUSED if text not in NOWHERE and text != "239.255.255.255"])
def test_private_ones_are_allowed_as_a_whole(text: str) -> None:
    """``allow_private`` permits all private addresses, and none that lead nowhere."""
    allowed = AddressPolicy(private=True)
    assert (allowed.refusal(ip_address(text)) is None) == (not text.startswith("ff"))


@pytest.mark.parametrize("text", NOWHERE)
def test_what_leads_nowhere_is_allowed_by_its_network_alone(text: str) -> None:
    """An address that leads nowhere is allowed only by its network, not by ``private`` or a name."""
    address = ip_address(text)
    assert AddressPolicy(private=True).refusal(address)
    assert AddressPolicy.of(("h.example",)).refusal(address, host="h.example")
    assert AddressPolicy.of((text,)).refusal(address) is None


def test_an_allowance_is_no_larger_than_it_says() -> None:
    """A network allows its own addresses, and a name what that name resolves to."""
    allowed = AddressPolicy.of(("10.1.0.0/16", "fd00::/8", "192.168.0.7", "Sidecar"))
    for address in ("10.1.255.1", "fd12::1", "192.168.0.7"):
        assert allowed.refusal(ip_address(address)) is None
        assert allowed.names(address)
    for address in ("10.2.0.1", "192.168.0.8", "127.0.0.1", "::ffff:10.1.2.3"):
        assert allowed.refusal(ip_address(address), host="other")
        assert not allowed.names(address)
    assert allowed.refusal(ip_address("172.17.0.2"), host="SIDECAR") is None
    assert allowed.names("sidecar")
    assert not allowed.names("not.sidecar")


def test_an_address_has_one_spelling() -> None:
    """An address is read with or without brackets in its standard spelling; any other text is a name."""
    assert address_of("[::1]") == IPv6Address("::1")
    assert address_of("127.0.0.1") == IPv4Address("127.0.0.1")
    for name in ("127.1", "0x7f.1", "2130706433", "017700000001", "127.0.0.01", "localhost"):
        assert address_of(name) is None


# Laws of :mod:`poller.http.ssrf`: unusual spellings of hosts and addresses.

NONE = AddressPolicy()
ALL = AddressPolicy(private=True)
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
    """An ambiguous host is refused with a reason and without a look-up, even if everything is allowed."""
    assert misspelling(host)
    refused = forbidden(f"https://{host}/hooks", ALL)
    assert refused
    assert refused.isprintable()


@pytest.mark.parametrize("host", PLAIN)
def test_names_and_addresses_in_their_spelling_are_not(host: str) -> None:
    """Names and addresses in their standard spelling are not refused for their spelling."""
    assert misspelling(host) is None
    assert forbidden(f"https://{host}:8443/hooks?a=b", ALL) is None


@pytest.mark.parametrize("host", HERE)
def test_what_means_this_machine_is_refused_unless_allowed(host: str) -> None:
    """An address of this machine is refused with the keys that would allow it."""
    refused = forbidden(f"https://{host}/", NONE)
    assert refused
    assert refused.startswith("a host that the Internet can reach, but this ")
    assert "allow_private = true or allow_hosts" in refused
    assert forbidden(f"https://{host}/", AddressPolicy.of((host.strip("[]"),))) is None


@pytest.mark.parametrize(
    "url",
    ["https://u:hunter2@h/", "https://hunter2@h/", "https://h\\@127.0.0.1/", "https://h/\r\nX: y", "https://h/%00",
     "https://h/%0d%0aX", "https://h/ x", "https://h/ü", "ftp://h/", "//h/", "h", "", "https:///x", "https://h:x/",
     "https://h:99999/", "https://[::1/", "file:///etc/passwd",
     "https://h:0/", "https://h:00", "https://h/#@127.0.0.1", "https://h#hunter2@127.0.0.1/"],
)  # fmt: skip
def test_a_url_that_holds_more_than_a_url_is_refused(url: str) -> None:
    """A URL with credentials, a fragment, odd characters or an odd port is refused without being repeated."""
    refused = forbidden(url, ALL)
    assert refused
    assert "hunter2" not in refused


def test_plain_http_is_for_what_is_allowed() -> None:
    """Plain http is accepted only with ``allow_private`` or for an allowed host."""
    assert "http:// only with allow_private" in str(forbidden("http://example.org/", NONE))
    assert forbidden("http://example.org/", ALL) is None
    assert forbidden("http://example.org/", AddressPolicy.of(("example.org",))) is None
    assert forbidden("http://10.1.2.3/", AddressPolicy.of(("10.0.0.0/8",))) is None
    assert forbidden("http://example.com/", AddressPolicy.of(("example.org",)))
