"""Under which names this service may be asked for while only its own machine can reach it.

A page from elsewhere can have its own name lead to 127.0.0.1 and then ask whatever listens there, as far as the browser
knows within its own site (DNS rebinding). Such a request bears that name.

Law: where the service listens on loopback alone, a request's ``Host`` is an address, ``localhost`` or the host of
``http.public_url``. Any other one is answered 421. Where others can reach it, names are theirs to choose.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from poller.config.daemon import HttpSettings
from poller.config.urls import is_address
from poller.service.web.problems import problem

_HERE: Final = "localhost"
_OTHER_HOST: Final = (
    "this service listens on loopback alone and is asked for by address, as localhost, or by the host of "
    "http.public_url; set that to the URL by which others reach it"
)


def names_of(settings: HttpSettings) -> frozenset[str] | None:
    """The names that a request may ask for, besides addresses; None: any."""
    if settings.bind is None or not is_loopback(settings.bind.host):
        return None
    public = urlsplit(settings.public_url or "").hostname
    return frozenset({_HERE, public or _HERE})


def may_be_asked_for(host: str, names: frozenset[str]) -> bool:
    """Whether a ``Host`` is one of these names or an address, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name.rstrip(".") in names or is_address(name)


class OwnNames:
    """Nothing is answered to those who ask for another host."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        """Take what answers, and the names."""
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        host = Headers(scope=scope).get("host")
        if host is None or may_be_asked_for(host, self._names):  # HTTP/1.0 has none, and no browser speaks that
            await self._app(scope, receive, send)
        else:
            await problem(421, _OTHER_HOST)(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether this address or name means this machine alone; other names are not resolved."""
    return host.lower() == _HERE or (is_address(host) and ip_address(host).is_loopback)
