"""The store that the scenes of one worker share, each on a clean slate; those that kill their store bring their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis import Redis

from tests.servers import running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def lasting_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running("valkey", tmp_path_factory.mktemp("v"), appendfsync="always") as server:
        yield server.url


@pytest.fixture
def store(lasting_store: str) -> str:
    """The URL of an empty store with ``appendfsync always``."""
    with Redis.from_url(lasting_store) as client:
        client.flushall()
    return lasting_store
