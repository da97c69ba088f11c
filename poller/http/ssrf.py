"""Address guard against SSRF: sinks may have public addresses only.

**Invariants**

* Only addresses that the registries list as globally reachable unicast are permitted; every refusal has a reason.
  :attr:`ipaddress.IPv4Address.is_global` is not enough: for it, multicast, NAT64, 6to4 (which lead to any IPv4 address)
  and unassigned ranges are global. So the tables here decide, and other IPv6 addresses are refused.
* Refusals are of two kinds: addresses that an operator may allow (a service beside the daemon), and addresses that no
  sink can have.
* The name of a sink is resolved only here, and each address is checked. Connections go to a checked address without a
  second look-up, so a name server that changes its answer gains nothing. One forbidden address refuses the host.
* Pure, but for the look-up of names.
"""

from __future__ import annotations

import asyncio
import errno
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
"""Addresses that no sink can have, unless a network with them is allowed."""

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
"""Internal addresses, and others like them: refused unless allowed. The first match gives the reason."""

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_NOWHERE_TABLE: Final = tuple((ip_network(network), reason) for network, reason in _NOWHERE)
_INWARDS_TABLE: Final = tuple((ip_network(network), reason) for network, reason in _INWARDS)


class AddressPolicy(msgspec.Struct, frozen=True):
    """The internal addresses that are allowed.

    Attributes:
        private: allow all internal addresses.
        networks: allow all addresses of these networks.
        hosts: allow internal addresses for these names; lower case, without a dot at the end.
    """

    private: bool = False
    networks: tuple[Network, ...] = ()
    hosts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entries: tuple[str, ...], *, private: bool = False) -> AddressPolicy:
        """The policy of configured entries: networks (``10.1.0.0/16``), addresses and names."""
        networks = {entry: network_of(entry) for entry in entries}
        return cls(
            private,
            tuple(network for network in networks.values() if network is not None),
            frozenset(entry.lower() for entry, network in networks.items() if network is None),
        )

    def names(self, host: str) -> bool:
        """Whether the policy names this host, or a network with this address."""
        address = address_of(host)
        return host.lower() in self.hosts if address is None else self._holds(address)

    def refusal(self, address: Address, *, host: str = "") -> str | None:
        """The reason why this address of ``host`` is forbidden; None: it is permitted."""
        if self._holds(address):
            return None
        inwards_allowed = self.private or host.lower() in self.hosts
        return _named(address, _NOWHERE_TABLE) if inwards_allowed else refusal(address)

    def _holds(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def refusal(address: Address) -> str | None:
    """The kind of a forbidden address, in words; None: it is public."""
    reason = _named(address, _NOWHERE_TABLE) or _named(address, _INWARDS_TABLE)
    if reason is None and isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "a reserved address"
    return reason


def address_of(host: str) -> Address | None:
    """The address in a URL's host, with or without brackets, in canonical form; None: it is no address."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def network_of(text: str) -> Network | None:
    """The network of ``10.1.0.0/16``, or of the one address ``10.1.2.3``; None: neither."""
    try:
        return ip_network(text)
    except ValueError:
        return None


def _named(address: Address, table: tuple[tuple[Network, str], ...]) -> str | None:
    return next((reason for network, reason in table if address in network), None)


# Spelling of hosts: a DNS name in ASCII, or an address in canonical form. ``0x7f.1``, ``2130706433`` and
# ``017700000001`` are names for one library and 127.0.0.1 for another; the checked host must be the connected one.

_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_LONGEST: Final = 253
_UNFIT: Final = re.compile(r"[^\x21-\x7e]|\\|%(?:00|0[aA]|0[dD])")
PRIVATE: Final = "allow_private = true"
"""The setting that allows internal addresses."""

_HOW: Final = f"{PRIVATE} or allow_hosts lets it through"


def misspelling(host: str) -> str | None:
    """The error in the spelling of a URL's host (an IPv6 address has brackets); None: it is correct."""
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
    """The expectation that a sink's URL violates, to follow "expected …"; None: the URL is correct.

    Addresses are checked each time that a connection is made.

    Args:
        url: of the sink.
        allowed: the policy; an allowed host may be used without TLS, too.
        tls: the scheme of such sinks with TLS; "": there is none.
        plain: the scheme without TLS; "": likewise.
    """
    parts = _parts(url)
    if parts is None:
        return "a URL whose host and port can be read"
    authority, host = parts.netloc, parts.hostname or ""
    if parts.scheme not in {plain, tls} or not host:
        return f"a URL that begins with {tls or plain}:// and a host"
    if "@" in authority + parts.fragment or _UNFIT.search(url):
        return "a URL in ASCII without user and password, backslashes, spaces and control characters"
    shown = f"[{host}]" if authority.startswith("[") else host
    wrong = misspelling(shown)
    if wrong:
        return f"a host that everybody reads alike, but {wrong}"
    inwards = _inwards(host, allowed)
    if inwards or parts.scheme == tls or allowed.private or allowed.names(host):
        return inwards
    return f"{f'{tls}://; ' if tls else ''}{plain}:// only with {PRIVATE}, or to a host of allow_hosts"


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL; None: its host or port cannot be read, or the port is 0."""
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


# Look-ups. Each blocks a thread of its own, so it delays neither others nor the end of the process. Those of the event
# loop share a few threads, and the loop cannot be closed before all of them have ended.

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, in the order of preference. Raises OSError if there are none."""


ASKED_AGAIN: Final = 2.0
"""Seconds after which a shared look-up is begun once more."""


async def checked_addresses(host: str, allowed: AddressPolicy, lookup: Lookup | None = None) -> Sequence[str]:
    """The addresses of a host, all permitted.

    Args:
        host: a name, or an address without brackets.
        allowed: the policy.
        lookup: resolves names; default: the system's resolver.

    Raises:
        AddressRefused: one of the addresses is forbidden.
        OSError: there are no addresses.
    """
    found = await (lookup or system_lookup)(host)
    for text in found:
        reason = allowed.refusal(ip_address(text), host=host)
        if reason:
            raise AddressRefused(f"{host} leads to {text}, {reason}")
    return found


async def system_lookup(host: str) -> Sequence[str]:
    """The addresses of a name from the system's resolver, in the order of RFC 6724.

    Raises:
        OSError: there are no addresses, or no name server answered.
    """
    return await _begun(host, socket.AI_ADDRCONFIG)


class SharedLookup:
    """The system's resolver, asked for a name every :data:`ASKED_AGAIN` seconds at most while it does not answer.

    So a name that nothing answers for takes few threads, however many wait for it or have given up, and is found soon
    after the name server is back: the resolver itself repeats a question after five seconds.
    """

    def __init__(self) -> None:
        """Begin without a look-up."""
        self._under_way: dict[str, asyncio.Future[Sequence[str]]] = {}

    async def __call__(self, host: str) -> Sequence[str]:
        """As :func:`system_lookup`, also with addresses of a kind that this machine has not."""
        asked = self._under_way.get(host)
        if asked is None or asked.done():
            asked = self._under_way[host] = _begun(host)
            asked.add_done_callback(_seen)
            asyncio.get_running_loop().call_later(ASKED_AGAIN, self._leave, host, asked)
        return await asyncio.shield(asked)

    def _leave(self, host: str, asked: asyncio.Future[Sequence[str]]) -> None:
        if self._under_way.get(host) is asked:
            del self._under_way[host]


def _seen(answered: asyncio.Future[Sequence[str]]) -> None:
    """Retrieve the error, even if all callers were cancelled."""
    if not answered.cancelled():
        answered.exception()


def _begun(host: str, flags: int = 0) -> asyncio.Future[Sequence[str]]:
    """A look-up that was begun; raises OSError where none can be. See :func:`system_lookup`."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Sequence[str]] = loop.create_future()

    def settle(found: Sequence[str] | OSError) -> None:
        if answered.done():
            return  # the caller was cancelled
        if isinstance(found, OSError):
            answered.set_exception(found)
        else:
            answered.set_result(found)

    def ask() -> None:
        found: Sequence[str] | OSError
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=flags)
            found = list(dict.fromkeys(_numeric(info[4]) for info in infos))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError(None, f"{host[:80]!r} is no name")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, found)

    try:
        threading.Thread(target=ask, name=f"look-up of {host[:80]}", daemon=True).start()
    except RuntimeError:
        raise OSError(errno.EAGAIN, "this machine can start no further thread") from None
    return answered


def _numeric(address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    text, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return text
