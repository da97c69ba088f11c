"""A real, empty store for each test."""

from __future__ import annotations

import pytest


@pytest.fixture
def valkey(store_url: str) -> str:
    """The URL of the store."""
    return store_url
