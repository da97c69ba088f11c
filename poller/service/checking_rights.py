"""What ``poller check`` finds out about the store's user, and about a port that speaks another protocol than was meant.

Law: the finding names what is missing in the words of the rule that would add it.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis

from poller.config.settings import Settings
from poller.service.findings import Checked
from poller.store.rights import refused

_PROBE_SECONDS: Final = 2.0
_HELLO: Final = b"*1\r\n$4\r\nPING\r\n"
_PORT: Final = 6379


async def check_rights(client: Redis, settings: Settings, url: str) -> Checked | None:
    """Whether the user may do what is needed; None where that cannot be asked.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    prefix = settings.redis.prefix
    found = await refused(client, prefix, next(iter(settings.feed_ids), "x/x"))
    if found is None:
        return None
    user = unquote(urlsplit(url).username or "") or "default"
    if found.keys:
        text = f"user {user} may touch no key of {prefix}:*: ACL SETUSER {user} ~{prefix}:*"
    else:
        rules = " ".join(f"+{name}" for name in found.commands)
        text = f"user {user} may not {', '.join(found.commands)}: ACL SETUSER {user} {rules}"
    return Checked("error", "store", f"{text}; keep it in the ACL file as well, as deploy/redis/users.acl has it")


async def other_protocol(url: str) -> str | None:
    """The words where a port speaks TLS to a URL without, or none to a URL with it; None where that is not so."""
    parts = urlsplit(url)
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        return None
    meant: Literal["TLS", "plain"] = "TLS" if parts.scheme == "rediss" else "plain"
    speaks = await _speaks(parts.hostname, parts.port or _PORT)
    if speaks is None or speaks == meant:
        return None
    if speaks == "TLS":
        return "this port speaks TLS: redis.url is rediss://…"
    return "this port speaks no TLS: redis.url is redis://…, or name the port that does (tls-port)"


async def _speaks(host: str, port: int) -> Literal["TLS", "plain"] | None:
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_PROBE_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(_HELLO)
                answer = await reader.read(1)
            finally:
                writer.close()
        if answer in {b"+", b"-"}:
            return "plain"
    return "TLS" if await _shakes_hands(host, port) else None


async def _shakes_hands(host: str, port: int) -> bool:
    """Whether TLS is spoken, whoever it is: nothing is sent there, so no certificate is asked for."""
    any_peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_peer.check_hostname = False
    any_peer.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=any_peer)
            writer.close()
    except ssl.SSLError as error:
        return "ALERT" in str(error).upper()  # it asks for a certificate of ours, in TLS
    except (OSError, TimeoutError):
        return False
    return True
