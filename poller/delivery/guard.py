"""The address guard: a sink's name becomes addresses here, and only here, and each of them is looked at.

The law: a connection goes to an address that this has checked, without a second look-up in between, so a name server
that changes its mind between check and connection gains nothing. One bad address among good ones refuses them all:
whoever lists it means it to be tried. aiohttp does not ask a resolver about a host that is an address already: that one
is looked at together with its spelling (:mod:`poller.http.hosts`).

A look-up blocks a thread for as long as the name server likes. Each has a thread of its own, not one of the loop's few:
names that nobody answers for hold up neither other sinks nor the end of the program.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

from aiohttp.abc import AbstractResolver, ResolveResult

from poller.errors import AddressRefused
from poller.http.addresses import Allowance

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, those to be tried first in front. Raises OSError where there are none."""


class Guard(AbstractResolver):
    """A resolver that gives only addresses that may be connected to."""

    def __init__(self, allowed: Allowance, lookup: Lookup | None = None) -> None:
        """Take what is allowed beyond public addresses, and how names are looked up: the system's way by default."""
        self._allowed = allowed
        self._lookup = lookup or system_lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a host.

        Raises:
            AddressRefused: one of them may not be connected to.
            OSError: there are none.
        """
        found = await self._lookup(host)
        for text in found:
            self._check(text, host)
        results = [_result(host, port, text) for text in found]
        if family != socket.AF_UNSPEC:
            results = [result for result in results if result["family"] == family]
        if not results:
            raise OSError(None, f"{host} has no address")
        return results

    async def close(self) -> None:
        """Nothing is held."""

    def _check(self, text: str, host: str) -> None:
        reason = self._allowed.refusal(ip_address(text), host=host)
        if reason:
            raise AddressRefused(f"{host} leads to {text}, {reason}")


async def system_lookup(host: str) -> Sequence[str]:
    """The addresses that the system knows for a name, in the order of RFC 6724.

    Raises:
        OSError: there are none, or nobody who could say.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str] | OSError) -> None:
        if answered.done():
            return  # whoever asked has gone
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
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name=f"look-up of {host[:80]}", daemon=True).start()
    return await answered


def _numeric(address: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    text, _ = socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)
    return text


def _result(host: str, port: int, text: str) -> ResolveResult:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=text, port=port, family=family, proto=0, flags=flags)
