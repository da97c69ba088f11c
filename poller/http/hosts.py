"""How the host of a URL may be spelled, so that everybody reads the same host in it.

The law: a host is a DNS name in ASCII or an address in its one proper spelling. ``0x7f.1``, ``2130706433`` and
``017700000001`` are names to one library and 127.0.0.1 to another, and what is checked must be what is connected to.
A name that only ever means this machine is known as such without asking anybody.

Pure: nothing is resolved.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from poller.http.addresses import Allowance, address_of

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


def forbidden(url: str, allowed: Allowance) -> str | None:
    """Why a sink's URL is refused before anything is resolved, fit to follow "expected …"; None: it is not.

    What its host resolves to is looked at each time that a connection is made.
    """
    try:
        parts = urlsplit(url)
        authority, host = parts.netloc, parts.hostname or ""
        _ = parts.port
    except ValueError:
        return "a URL whose host and port can be read"
    if parts.scheme not in {"http", "https"} or not host:
        return "a URL that begins with https:// and a host"
    if "@" in authority or _UNFIT.search(url):
        return "a URL in ASCII without user and password, backslashes, spaces and control characters"
    shown = f"[{host}]" if authority.startswith("[") else host
    wrong = misspelling(shown)
    if wrong:
        return f"a host that everybody reads alike, but {wrong}"
    return _inwards(host, allowed) or _plain(parts.scheme, host, allowed)


def _inwards(host: str, allowed: Allowance) -> str | None:
    address = address_of(host)
    if address is not None:
        reason = allowed.refusal(address)
        return reason and f"a host that the Internet can reach, but this is {reason}; {_HOW}"
    if _means_here(host) and not (allowed.private or allowed.names(host)):
        return f"a host that the Internet can reach, but this name means this machine; {_HOW}"
    return None


def _plain(scheme: str, host: str, allowed: Allowance) -> str | None:
    if scheme == "http" and not (allowed.private or allowed.names(host)):
        return f"https://; http:// only with {PRIVATE}, or to a host of allow_hosts"
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
