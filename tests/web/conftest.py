"""The HTTP service with two feeds, one subscription from the configuration file, and an admin token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.served import Served, configured, served


@pytest.fixture
async def given(tmp_path: Path, store_url: str) -> AsyncIterator[Served]:
    async with served(configured(tmp_path, store_url, "filed")) as one:
        yield one
