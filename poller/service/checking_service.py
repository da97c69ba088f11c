"""What ``poller check`` finds out about the HTTP service: whether its address is free, and its token can be read.

Law: an address that a daemon of ours has is no fault; one that somebody else has is.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import httpx

from poller.config.daemon import Address
from poller.config.settings import Settings
from poller.credentials.secret_file import SecretFile
from poller.errors import AddressTaken, ConfigurationError, SourceError
from poller.http.listening import listener
from poller.service.findings import Checked

_SUBJECT: Final = "http"
_PROBE_SECONDS: Final = 2.0
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- where to ask whoever listens everywhere


async def check_service(settings: Settings) -> list[Checked]:
    """What is to be said of it; nothing where it is off and no token is named."""
    found = [] if settings.http.bind is None else [await _address(settings.http.bind)]
    file = settings.http.admin_token_file
    if file is not None:
        try:
            SecretFile(file, "admin token").text()
            found.append(Checked("ok", _SUBJECT, "the admin token can be read"))
        except SourceError as error:
            who = f"; it is read as user id {os.getuid()}" if hasattr(os, "getuid") else ""
            found.append(Checked("error", _SUBJECT, f"http.admin_token_file: {error}{who}"))
    return found


async def _address(address: Address) -> Checked:
    host, port = address
    try:
        listener(host, port).close()
    except AddressTaken as taken:
        if await _is_ours(_ANY.get(host, host), port):
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
