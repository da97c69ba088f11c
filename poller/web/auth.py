"""Authorization of HTTP requests: reading, changing, and the permitted host names.

**Invariants.**

- With a read token, reading requires it or the admin token. Without one, only this machine may read: requests to a
  loopback address that no proxy has forwarded. ``http.open_reads`` permits all reads if no read token is set.
- Without an admin token nothing can be changed over HTTP. The read token permits no change.
- A token comes from the environment or from a secret file; a changed file counts immediately.
  Comparison takes constant time. The log names the address of a wrong token's sender, never the token. A file that
  cannot be read is logged once, for anyone may send requests.
- Browsers, which cannot send ``Bearer`` by themselves, may send the token as the password of ``Basic``. This permits
  reading only, because a page of another site can make a browser send its stored password.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NoReturn
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from poller.auth.http_token import CLOSED, LOCALHOST, ServiceToken, admin_token, is_closed, is_loopback, read_token
from poller.clock import Clock
from poller.config.http import is_address
from poller.config.load import ADMIN_TOKEN
from poller.config.settings import HttpSettings
from poller.errors import CredentialUnusable
from poller.telemetry.logs import LogOnce
from poller.text import one_line
from poller.web.http import Endpoint, RequestRefused, problem

_NO_ADMIN: Final = (
    f"nothing can be changed over HTTP here: set http.admin_token_file to a file with a token (or {ADMIN_TOKEN} or "
    f"{ADMIN_TOKEN}_FILE in the environment) and start the daemon again, or use the command line (poller pause, "
    "resume, resync, release, subscriptions, backfill, records erase)"
)
_ELSEWHERE: Final = f"reading over HTTP is refused here: {CLOSED}"
_PASSED_ON: Final = f"reading through a proxy is refused here, and by HTTP/1.0, which some proxies use: {CLOSED}"
_NEEDS_READ: Final = "reading needs a token: send Authorization: Bearer with the read token or the admin token"
_NEEDS_ADMIN: Final = (
    "changes require the admin token, that of http.admin_token_file or "
    f"{ADMIN_TOKEN}: send Authorization: Bearer with it"
)
_READ_ONLY: Final = "the read token permits no change: send the admin token"
_WRONG: Final = "the token is not the admin token"
_WRONG_READ: Final = "the token is neither the read token nor the admin token"
_BEARER: Final = 'Bearer realm="poller"'
_INVALID: Final = f'{_BEARER}, error="invalid_token"'
_BASIC: Final = 'Basic realm="poller", charset="UTF-8"'
_READING: Final = frozenset({"GET", "HEAD"})
_PROXIES: Final = ("forwarded", "x-real-ip", "via", "x-client-ip", "true-client-ip", "cf-connecting-ip")
_FORWARDED: Final = "x-forwarded-"
_PROXIES_SPEAK: Final = "1.0"  # nginx does this unless configured otherwise, and adds no header

_log = structlog.get_logger("poller.web")


class Authorizer:
    """Checks the tokens of requests."""

    def __init__(self, settings: HttpSettings, environ: Mapping[str, str], *, clock: Clock) -> None:
        """Take the configuration, the environment that may hold tokens, and the clock."""
        self._read = read_token(settings, environ)
        self._admin = admin_token(settings, environ)
        self._open = settings.open_reads
        self._loopback = settings.bind is None or is_loopback(settings.bind.host)
        self._guesses = FailedAttempts(clock)
        self._unreadable = {
            token.what: LogOnce(_log, "a token of the HTTP service cannot be read", which=token.what)
            for token in (self._read, self._admin)
        }
        for token in (self._read, self._admin):
            with suppress(RequestRefused):  # an unusable token is logged at the start, and again when it is needed
                self._matches(token, "")
        if is_closed(settings, environ):
            _log.warning("reading over HTTP is refused", address=str(settings.bind), advice=CLOSED)

    def readable(self, route: Route) -> Route:
        """The route, with GET and HEAD restricted to requests that may read."""
        endpoint: Endpoint = route.endpoint

        async def admitted(request: Request) -> Response:
            if request.method in _READING:
                self.check_reading(request)
            return await endpoint(request)

        return Route(route.path, admitted, methods=sorted(route.methods or _READING))

    def only(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint, restricted to requests with the admin token."""

        async def admitted(request: Request) -> Response:
            self.check(request)
            return await endpoint(request)

        return admitted

    def check(self, request: Request) -> None:
        """Check that the request may make changes.

        Raises:
            RequestRefused: it may not.
        """
        if not self._admin:
            raise RequestRefused(403, _NO_ADMIN)
        brought = _bearer(request)
        if not brought:
            raise RequestRefused(401, _NEEDS_ADMIN, headers={"www-authenticate": _BEARER})
        if self._matches(self._admin, brought):
            return
        if self._read and self._reads(brought):
            raise RequestRefused(
                403, _READ_ONLY, headers={"www-authenticate": f'{_BEARER}, error="insufficient_scope"'}
            )
        self._refuse(request, "wrong admin token", _WRONG)

    def check_reading(self, request: Request) -> None:
        """Check that the request may read.

        Raises:
            RequestRefused: it may not.
        """
        if not self._read and (self._open or (self._loopback and not _passed_on(request))):
            return
        brought = _bearer(request) or _password(request)
        if brought and self._reads(brought):
            return
        if not self._read and not (brought and self._admin):
            raise RequestRefused(403, _PASSED_ON if self._loopback else _ELSEWHERE)
        if brought:
            self._refuse(request, "wrong read token", _WRONG_READ)
        raise RequestRefused(401, _NEEDS_READ, headers={"www-authenticate": _challenge(request, _BEARER)})

    def is_admin(self, request: Request) -> bool:
        """Whether a request that may read has the admin token, and so may see more."""
        brought = _bearer(request) or _password(request)
        try:
            return bool(brought) and self._matches(self._admin, brought)
        except RequestRefused:  # the token cannot be read; the log says so
            return False

    def may_read(self, request: Request) -> bool:
        """Whether the request may read; for open routes that show more to readers."""
        try:
            self.check_reading(request)
        except RequestRefused:
            return False
        return True

    def _matches(self, token: ServiceToken, brought: str) -> bool:
        """Whether this is the token.

        Raises:
            RequestRefused: the token cannot be read.
        """
        try:
            is_right = token.matches(brought)
        except CredentialUnusable as error:
            self._unreadable[token.what].failed(str(error))
            raise RequestRefused(503, f"the {token.what} cannot be read; the log says why") from None
        self._unreadable[token.what].worked()
        return is_right

    def _reads(self, brought: str) -> bool:
        """Whether this is one of the two tokens. If one cannot be read, the other still works."""
        unreadable: RequestRefused | None = None
        for token in (self._read, self._admin):
            try:
                if self._matches(token, brought):
                    return True
            except RequestRefused as refused:
                unreadable = refused
        if unreadable:
            raise unreadable
        return False

    def _refuse(self, request: Request, event: str, detail: str) -> NoReturn:
        """Refuse a wrong token; after many from one address, without logging."""
        address = request.client.host if request.client else ""
        if wait := self._guesses.wait(address):
            said = "too many wrong tokens from this address"
            raise RequestRefused(429, said, headers={"retry-after": str(math.ceil(wait))})
        self._guesses.wrong(address)
        _log.warning(event, client=address, path=one_line(request.url.path), method=request.method)
        raise RequestRefused(401, detail, headers={"www-authenticate": _challenge(request, _INVALID)})


def _challenge(request: Request, bearer: str) -> str:
    """The ``WWW-Authenticate`` header; for a page it makes the browser ask its user for a password."""
    page = request.method in _READING and "text/html" in request.headers.get("accept", "")
    return f"{bearer}, {_BASIC}" if page else bearer


def _credentials(request: Request, scheme: str) -> str:
    found, _, credentials = request.headers.get("authorization", "").partition(" ")
    return credentials.strip() if found.lower() == scheme else ""


def _bearer(request: Request) -> str:
    return _credentials(request, "bearer")


def _password(request: Request) -> str:
    """The password of Basic authentication; the user name is ignored."""
    try:
        decoded = b64decode(_credentials(request, "basic"), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return decoded.partition(":")[2].strip()


def _passed_on(request: Request) -> bool:
    """Whether a proxy has forwarded a request to a loopback address, by its headers."""
    if request.scope["http_version"] == _PROXIES_SPEAK:
        return True
    if any(name in _PROXIES or name.startswith(_FORWARDED) for name in request.headers):
        return True
    host = request.headers.get("host", "")
    name = host_in(host)
    return bool(host) and (name is None or not is_loopback(name.rstrip(".")))


# Host names. A web page can make its own name resolve to 127.0.0.1 and then call a service there (DNS rebinding); the
# request has that name in ``Host``. So a service on loopback accepts only addresses, ``localhost`` and the host of
# ``http.public_url``, and answers 421 to any other.

_OTHER_HOST: Final = (
    "this service listens on loopback alone and is asked for by address, as localhost, or by the host of "
    "http.public_url; set that to the URL by which others reach it"
)


def names_of(settings: HttpSettings) -> frozenset[str] | None:
    """The names permitted in ``Host``, besides addresses; None: any."""
    if settings.bind is None or not is_loopback(settings.bind.host):
        return None
    public = urlsplit(settings.public_url or "").hostname
    return frozenset({LOCALHOST, public or LOCALHOST})


# A host and a port, without user, path, query, fragment or zone.
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|([0-9A-Za-z._-]+))(?::[0-9]*)?")


def may_be_asked_for(host: str, names: frozenset[str]) -> bool:
    """Whether a ``Host`` is one of these names or an address, with or without a port."""
    name = host_in(host)
    return name is not None and (name.rstrip(".") in names or is_address(name))


def host_in(header: str) -> str | None:
    """The name or address in a ``Host``, in lower case and without brackets; None: invalid."""
    found = _HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else None


class HostFilter:
    """An ASGI application that refuses requests with other host names."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        """Protect this application; ``names`` are permitted."""
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI defines it."""
        host = Headers(scope=scope).get("host")
        if host is None or may_be_asked_for(host, self._names):  # HTTP/1.0 has no Host, and no browser uses it
            await self._app(scope, receive, send)
        else:
            await problem(421, _OTHER_HOST)(scope, receive, send)


# Wrong tokens: after :data:`MOST` from one address within :data:`WINDOW`, the next ones are refused without logging.
# The right token is still accepted: behind a proxy all clients have one address, and operators must not be locked out.
# Beyond :data:`ADDRESSES` the oldest address is forgotten.

MOST: Final = 30
WINDOW: Final = 60.0
"""Seconds."""

ADDRESSES: Final = 1000


class FailedAttempts:
    """Wrong tokens by address."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock of this process."""
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until wrong tokens from this address are checked again; 0: now."""
        since, count = self._wrong.get(address, (0.0, 0))
        left = since + WINDOW - self._clock.monotonic()
        return left if count >= MOST and left > 0 else 0.0

    def wrong(self, address: str) -> None:
        """Record a wrong token."""
        since, count = self._wrong.pop(address, (self._clock.monotonic(), 0))
        if self._clock.monotonic() - since >= WINDOW:
            since, count = self._clock.monotonic(), 0
        self._wrong[address] = (since, count + 1)
        while len(self._wrong) > ADDRESSES:
            self._wrong.popitem(last=False)
