"""Guard of sink addresses: only public ones may be connected to.

**Invariants**

* Only what the registries name globally reachable unicast may be connected to; every other address has a reason.
  :attr:`ipaddress.IPv4Address.is_global` alone is not enough: it takes multicast, NAT64 and 6to4, which lead to any
  IPv4 address, and unassigned ranges for global. So the tables here decide, and the rest of IPv6 is refused.
* Pure, but for the look-up of names at the end.

Two kinds of refusal: what an operator may want after all (a service beside the daemon), and what no sink can have.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from poller.errors import AddressRefused

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOWHERE: Final = (
    ("0.0.0.0/32", "the unspecified address"),
    ("255.255.255.255/32", "the broadcast address"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
    ("::/128", "the unspecified address"),
    ("ff00::/8", "a multicast address"),
    ("100::/64", "a discard address"),
)
"""What no sink can have, whatever is allowed, unless a network is named that holds it."""

_INWARDS: Final = (
    ("0.0.0.0/8", 'an address of "this network"'),
    ("10.0.0.0/8", "a private address"),
    ("100.64.0.0/10", "an address of a carrier's NAT"),
    ("127.0.0.0/8", "a loopback address"),
    ("169.254.0.0/16", "a link-local address"),
    ("172.16.0.0/12", "a private address"),
    ("192.0.0.0/24", "an address of protocol assignments"),
    ("192.0.2.0/24", "a documentation address"),
    ("192.88.99.0/24", "an address of 6to4 relays"),
    ("192.168.0.0/16", "a private address"),
    ("198.18.0.0/15", "a benchmark address"),
    ("198.51.100.0/24", "a documentation address"),
    ("203.0.113.0/24", "a documentation address"),
    ("::1/128", "a loopback address"),
    ("::ffff:0:0/96", "an IPv4-mapped address"),
    ("::ffff:0:0:0/96", "an IPv4-translated address"),
    ("::/96", "an IPv4-compatible address"),
    ("64:ff9b::/96", "an address of NAT64, which leads to an IPv4 address"),
    ("64:ff9b:1::/48", "an address of local NAT64, which leads to an IPv4 address"),
    ("2001::/32", "an address of Teredo, which leads to an IPv4 address"),
    ("2001:2::/48", "a benchmark address"),
    ("2001:10::/28", "an ORCHID, which nothing is routed to"),
    ("2001:20::/28", "an ORCHID, which nothing is routed to"),
    ("2001:db8::/32", "a documentation address"),
    ("2001::/23", "an address of protocol assignments"),
    ("2002::/16", "an address of 6to4, which leads to an IPv4 address"),
    ("3fff::/20", "a documentation address"),
    ("5f00::/16", "a segment routing address"),
    ("fc00::/7", "a unique local address"),
    ("fe80::/10", "a link-local address"),
    ("fec0::/10", "a site-local address"),
)
"""What leads inwards, or cannot be distinguished from what does: refused unless allowed. The first match names it."""

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NOWHERE_TABLE: Final = tuple((ip_network(network), reason) for network, reason in _NOWHERE)
_INWARDS_TABLE: Final = tuple((ip_network(network), reason) for network, reason in _INWARDS)


class AddressPolicy(msgspec.Struct, frozen=True):
    """What is allowed although it leads inwards.

    Attributes:
        private: whatever leads inwards.
        networks: these addresses, whatever they are.
        hosts: names whose addresses may lead inwards; lower case, without a dot at the end.
    """

    private: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: tuple[str, ...], *, private: bool = False) -> AddressPolicy:
        """Of entries as configured: networks (``10.1.0.0/16``), addresses and names."""
        networks = {entry: network_of(entry) for entry in entries}
        return cls(
            private,
            tuple(network for network in networks.values() if network is not None),
            frozenset(entry.lower() for entry, network in networks.items() if network is None),
        )

    def names(self, host: str) -> bool:
        """Whether it names this host, or a network that holds it."""
        address = address_of(host)
        return host.lower() in self.hosts if address is None else self._holds(address)

    def refusal(self, address: Address, *, host: str = "") -> str | None:
        """Why this address, which ``host`` has resolved to, may not be connected to; None: it may."""
        if self._holds(address):
            return None
        inwards_allowed = self.private or host.lower() in self.hosts
        return _named(address, _NOWHERE_TABLE) if inwards_allowed else refusal(address)

    def _holds(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def refusal(address: Address) -> str | None:
    """What kind of address this is that may not be connected to, in words; None: it may."""
    reason = _named(address, _NOWHERE_TABLE) or _named(address, _INWARDS_TABLE)
    if reason is None and isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "a reserved address"
    return reason


def address_of(host: str) -> Address | None:
    """The address that a URL's host is, with or without brackets, in its one proper spelling; None: it is none."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def network_of(text: str) -> Network | None:
    """The network of ``10.1.0.0/16``, or the one address of ``10.1.2.3``; None: it is neither."""
    try:
        return ip_network(text)
    except ValueError:
        return None


def _named(address: Address, table: tuple[tuple[Network, str], ...]) -> str | None:
    return next((reason for network, reason in table if address in network), None)


# Spelling of hosts: a DNS name in ASCII, or an address in its one proper spelling. ``0x7f.1``, ``2130706433`` and
# ``017700000001`` are names to one library and 127.0.0.1 to another; what is checked must be what is connected to.

_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST: Final = 253
_UNFIT: Final = re.compile(r"[^\x21-\x7e]|\\|%(?:00|0[aA]|0[dD])")
PRIVATE: Final = "allow_private = true"
"""What lets a host through that leads inwards, as it stands in a configuration."""

_HOW: Final = f"{PRIVATE} or allow_hosts lets it through"


def misspelling(host: str) -> str | None:
    """What is wrong with a host as it stands in a URL, an IPv6 address in brackets; None: nothing."""
    if host.startswith("["):
        return _ipv6(host)
    if re.search(r"[^\x21-\x7e]|%", host):
        return "it has characters that are none of a DNS name (an international one is written as xn--…)"
    if host.endswith("."):
        return "it ends in a dot"
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(host)
    if len(host) > _LONGEST or not all(map(_LABEL.fullmatch, labels)):
        return "it is no DNS name, which has labels of letters, digits and hyphens joined by dots"
    return None


def forbidden(url: str, allowed: AddressPolicy, *, tls: str = "https", plain: str = "http") -> str | None:
    """Why a sink's URL is refused before anything is resolved, fit to follow "expected …"; None: it is not.

    What its host resolves to is looked at each time that a connection is made.

    Args:
        url: of the sink.
        allowed: what is allowed beyond public addresses; the scheme without TLS too.
        tls: the scheme of such sinks with TLS.
        plain: the one without.
    """
    parts = _parts(url)
    if parts is None:
        return "a URL whose host and port can be read"
    authority, host = parts.netloc, parts.hostname or ""
    if parts.scheme not in {plain, tls} or not host:
        return f"a URL that begins with {tls}:// and a host"
    if "@" in authority + parts.fragment or _UNFIT.search(url):
        return "a URL in ASCII without user and password, backslashes, spaces and control characters"
    shown = f"[{host}]" if authority.startswith("[") else host
    wrong = misspelling(shown)
    if wrong:
        return f"a host that everybody reads alike, but {wrong}"
    inwards = _inwards(host, allowed)
    if inwards or parts.scheme == tls or allowed.private or allowed.names(host):
        return inwards
    return f"{tls}://; {plain}:// only with {PRIVATE}, or to a host of allow_hosts"


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL; None where its host or port cannot be read, or the port is 0."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname
        return None if parts.port == 0 else parts
    except ValueError:
        return None


def _inwards(host: str, allowed: AddressPolicy) -> str | None:
    address = address_of(host)
    if address is not None:
        reason = allowed.refusal(address)
        return reason and f"a host that the Internet can reach, but this is {reason}; {_HOW}"
    if _means_here(host) and not (allowed.private or allowed.names(host)):
        return f"a host that the Internet can reach, but this name means this machine; {_HOW}"
    return None


def _means_here(name: str) -> bool:
    return name.lower() == "localhost" or name.lower().endswith((".localhost", ".localdomain"))


def _ipv4(host: str) -> str | None:
    try:
        IPv4Address(host)
    except AddressValueError:
        return "some read an IPv4 address in it; one is written as four decimal numbers, as in 192.0.2.1"
    return None


def _ipv6(host: str) -> str | None:
    if "%" in host:
        return "it has a zone, which means something on this machine only"
    try:
        IPv6Address(host.removeprefix("[").removesuffix("]"))
    except AddressValueError:
        return "it is no IPv6 address"
    return None


# The address guard: the name of a sink becomes addresses only here, and each is checked. Connections go to a checked
# address without a second look-up, so a name server that changes its answer gains nothing. One bad address among good
# ones refuses them all. A look-up blocks a thread of its own, so it delays neither other sinks nor the end.

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, those to be tried first in front. Raises OSError where there are none."""


async def checked_addresses(host: str, allowed: AddressPolicy, lookup: Lookup | None = None) -> Sequence[str]:
    """The addresses of a host, each of which may be connected to.

    Args:
        host: a name, or an address without brackets.
        allowed: what is allowed beyond public addresses.
        lookup: how names are looked up; the system's way by default.

    Raises:
        AddressRefused: one of them may not be connected to.
        OSError: there are none.
    """
    found = await (lookup or system_lookup)(host)
    for text in found:
        reason = allowed.refusal(ip_address(text), host=host)
        if reason:
            raise AddressRefused(f"{host} leads to {text}, {reason}")
    return found


async def system_lookup(host: str) -> Sequence[str]:
    """The addresses that the system knows for a name, in the order of RFC 6724.

    Raises:
        OSError: there are none, or no name server answered.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if answered.done():
            return  # the caller has gone
        if isinstance(found, OSError):
            answered.set_exception(found)
        else:
            answered.set_result(found)

    def ask() -> None:
        found: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            found = list(dict.fromkeys(_numeric(info[4]) for info in infos))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(None, f"{host[:80]!r} is no name")
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name=f"look-up of {host[:80]}", daemon=True).start()
    return await answered


def _numeric(address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    text, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return text
