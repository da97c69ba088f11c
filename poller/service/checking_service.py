"""What ``poller check`` finds out about the HTTP service: whether its address is free, and its token can be read.

Law: an address that a daemon of this store has is no fault; one that another program has is, another poller too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final

import httpx

from poller.config.daemon import Address
from poller.config.settings import Settings
from poller.errors import AddressTaken, ConfigurationError, SourceError
from poller.http.listening import listener
from poller.service.findings import Checked
from poller.service.web.admission import CLOSED, Token, admin_token, is_closed, read_token

_SUBJECT: Final = "http"
_PROBE_SECONDS: Final = 2.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- where to ask whoever listens everywhere


async def check_service(
    settings: Settings, environ: Mapping[str, str], *, running: bool | None = None
) -> list[Checked]:
    """What is to be said of it; nothing where it is off and no token is named.

    Args:
        settings: the configuration.
        environ: the environment.
        running: whether a daemon polls or delivers on the configured store; None where that is not known.
    """
    http = settings.http
    found = [] if http.bind is None else [await _address(http.bind, running=running)]
    tokens = {"read": read_token(http, environ), "admin": admin_token(http, environ)}
    texts = {name: _text(name, token, found) for name, token in tokens.items() if token}
    if texts.get("read") and texts.get("read") == texts.get("admin"):
        found.append(Checked("warning", _SUBJECT, "read token and admin token are the same: who reads may change"))
    if is_closed(http, environ):
        found.append(Checked("warning", _SUBJECT, f"nobody may read on {http.bind}: {CLOSED}"))
    elif http.open_reads and tokens["read"]:
        found.append(Checked("warning", _SUBJECT, "http.open_reads has no effect: a read token is set, and is needed"))
    elif http.open_reads:
        found.append(Checked("warning", _SUBJECT, "http.open_reads: everybody who reaches the port reads all records"))
    return found


def _text(name: str, token: Token, found: list[Checked]) -> str | None:
    """The token, once it is said whether it can be read."""
    try:
        text = token.text()
    except SourceError as error:
        who = f"; it is read as user id {os.getuid()}" if hasattr(os, "getuid") else ""
        found.append(Checked("error", _SUBJECT, f"http.{name}_token_file: {error}{who}"))
        return None
    found.append(Checked("ok", _SUBJECT, f"the {name} token can be read"))
    return text


async def _address(address: Address, *, running: bool | None) -> Checked:
    host, port = address
    try:
        listener(host, port).close()
    except AddressTaken as taken:
        if running is not False and await _is_ours(_ANY.get(host, host), port):
            return Checked("ok", _SUBJECT, f"a poller listens on {host} port {port}")
        return Checked("warning", _SUBJECT, f'{taken}: set http.bind or POLLER_HTTP_BIND to another, or "off"')
    except ConfigurationError as error:
        return Checked("error", _SUBJECT, f"{error}: set http.bind or POLLER_HTTP_BIND to an address of this machine")
    return Checked("ok", _SUBJECT, f"{host} port {port} is free")


async def _is_ours(host: str, port: int) -> bool:
    """Whether whoever listens answers as the daemon does: alive, and ready or not for reasons."""
    shown = f"[{host}]" if ":" in host else host
    try:
        async with asyncio.timeout(_PROBE_SECONDS), httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://{shown}:{port}/readyz")
            return "reasons" in answer.json() or answer.status_code == httpx.codes.OK
    except (httpx.HTTPError, TimeoutError, ValueError):
        return False
