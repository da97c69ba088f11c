"""Laws of :mod:`poller.service.checking_rights`: the rule to add, and the protocol that a port really speaks."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trustme

from poller.config.load import load
from poller.service.checking_rights import check_rights, other_protocol
from poller.store.connection import commands
from tests.acl import running_with_acl, set_user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def test_the_rule_that_is_missing_is_told(tmp_path: Path) -> None:
    """Commands by their names, keys by their pattern; nothing where all is allowed."""
    settings = load(None, {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"})
    with running_with_acl("valkey", tmp_path) as server:
        async with commands(server.url) as client, commands(server.admin) as admin:
            assert await check_rights(client, settings, server.url) is None
            await set_user(admin, "-xtrim", "-hscan")
            found = await check_rights(client, settings, server.url)
            assert found is not None
            assert found.text.startswith("user poller may not hscan, xtrim: ACL SETUSER poller +hscan +xtrim;")
            await set_user(admin, "resetkeys", "~other:*")
            found = await check_rights(client, settings, server.url)
            assert found is not None
            assert found.text.startswith("user poller may touch no key of poller:*: ACL SETUSER poller ~poller:*;")


async def test_a_port_that_speaks_tls_is_told_from_one_that_does_not() -> None:
    """Whichever was meant; where both agree nothing is said."""
    async with tls_port() as port:
        assert "rediss://" in (await other_protocol(f"redis://127.0.0.1:{port}/0") or "")
        assert await other_protocol(f"rediss://127.0.0.1:{port}/0") is None
    async with plain_port() as port:
        assert "speaks no TLS" in (await other_protocol(f"rediss://127.0.0.1:{port}/0") or "")
        assert await other_protocol(f"redis://127.0.0.1:{port}/0") is None


@asynccontextmanager
async def tls_port() -> AsyncIterator[int]:
    """One that speaks TLS and ends what speaks nothing else; the Valkey of the wheel has none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with served(context) as port:
        yield port


@asynccontextmanager
async def plain_port() -> AsyncIterator[int]:
    """One that answers as a server without TLS does."""
    async with served(None) as port:
        yield port


@asynccontextmanager
async def served(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if await reader.read(1) == b"*":
                writer.write(b"+PONG\r\n")
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere", "redis+cluster://127.0.0.1:1"])
async def test_where_nobody_answers_nothing_is_said(url: str) -> None:
    """The error that led here says it."""
    assert await other_protocol(url) is None
