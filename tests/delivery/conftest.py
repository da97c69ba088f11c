"""A real, empty Valkey; one process for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis as BlockingRedis

from tests.servers import running


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running("valkey", tmp_path_factory.mktemp("v"), appendfsync="no") as server:
        yield server.url


@pytest.fixture
def valkey(_started: str) -> str:
    """Its URL."""
    with BlockingRedis.from_url(_started) as client:
        client.flushall()
    return _started
