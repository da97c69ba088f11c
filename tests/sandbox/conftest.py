"""Fixtures of the sandbox's tests: a fixed time, a seeded random generator, a history, and the API on a socket."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING

import httpx
import pytest

from poller.sandbox.history import History
from poller.sandbox.server import serving
from tests.harness.waiting import PATIENCE, strain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""An empty TLS context: loading certificates costs 20 ms of CPU, and the sandbox needs none."""

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def at() -> datetime:
    return NOON


@pytest.fixture
def rng() -> Random:
    return Random(7)


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
async def api(history: History, rng: Random) -> AsyncIterator[httpx.AsyncClient]:
    """A client with the right credential, on the served history; its clock stands at noon."""
    async with serving(history, rng=rng, now=lambda: NOON) as url, client_of(url) as client:
        yield client


def client_of(url: str, token: str = "sandbox") -> httpx.AsyncClient:  # noqa: S107 - public on purpose
    """A client that sends the token and ignores proxies of the environment."""
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(
        base_url=url, headers=headers, verify=NO_AUTHORITIES, trust_env=False, timeout=PATIENCE * strain()
    )
