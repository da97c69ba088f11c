"""An empty store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fakeredis import FakeAsyncRedis


@pytest.fixture
async def client() -> AsyncIterator[FakeAsyncRedis]:
    async with FakeAsyncRedis() as fake:
        yield fake
