"""The HTTP service on a real store, without a daemon; the test itself writes the store's content."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import aiohttp
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.load import load
from poller.config.settings import Settings
from poller.daemon.health import Readiness, StoreMonitor
from poller.http.server import listening
from poller.redis.client import commands
from poller.store.session import OpenStore
from poller.web.app import site
from poller.web.context import AppContext
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import patience

NOW: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
TOKEN: Final = "the-admin-token-of-this-test"  # noqa: S105 -- of this test alone
FEEDS: Final = ("acme/contractTypes", "acme/evidenceVariants")
SINK: Final = "https://sink.example.org/hook"


@dataclass(frozen=True, slots=True)
class Served:
    """The running service and what a test needs to query it.

    Attributes:
        url: of the service.
        http: a client of it.
        store: a client of the store.
        settings: the configuration.
        backing: the context of the routes.
    """

    url: str
    http: aiohttp.ClientSession
    store: Redis
    settings: Settings
    backing: AppContext

    async def ask(
        self, path: str, method: str = "GET", *, token: str | None = TOKEN, **more: Any
    ) -> tuple[int, Any, Any]:
        """Status, headers, and the body: decoded JSON, else text."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        headers |= more.pop("headers", {})
        asked = self.http.request(method, self.url + path, headers=headers, **more)
        async with patience(f"an answer to {method} {path}"), asked as answer:
            content = await answer.json(content_type=None) if "json" in answer.content_type else await answer.text()
            return answer.status, answer.headers, content


def configured(tmp_path: Path, store_url: str, *ids: str, http: str = "", admin: bool = True) -> Settings:
    """A configuration with two feeds, these subscriptions, and an admin token if ``admin``."""
    token = tmp_path / "admin"
    token.write_text(f"{TOKEN}\n", "utf-8")
    token.chmod(0o600)
    file = tmp_path / "poller.toml"
    feeds = [f'[[sources.feeds]]\nresource = "{feed.partition("/")[2]}"' for feed in FEEDS]
    tables = [f'[[subscriptions]]\nid = "{one}"\nsink = "{SINK}?key=s3cret"' for one in ids]
    lines = [f'[redis]\nurl = "{store_url}"', "[http]", f'admin_token_file = "{token}"' if admin else "", http]
    lines += ['[[sources]]\nname = "acme"\nbase_url = "https://api.example.org"\nauth = { none = true }']
    file.write_text("\n".join([*lines, *feeds, *tables]), "utf-8")
    return load(file, {})


@asynccontextmanager
async def served(
    settings: Settings,
    environ: Mapping[str, str] = MappingProxyType({}),
    *,
    store: bool = True,
    backed: Callable[..., AppContext] = AppContext,
) -> AsyncIterator[Served]:
    """The service for the duration of the block; without ``store``, as before the store has first answered."""
    backing = backed(settings, environ, clock=StubClock(now=lambda: NOW))
    readiness = Readiness(StoreMonitor("warn", clock=backing.clock))
    url = settings.redis.url or ""
    async with (
        listening(site(backing, readiness, lambda: None), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession() as http,
        commands(url) as client,
    ):
        given = Served(web, http, client, settings, backing)
        if not store:
            yield given
            return
        async with backing.standing(OpenStore(url, client, store_clock())):
            yield given
