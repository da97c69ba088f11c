"""A real, empty store."""

from __future__ import annotations

import pytest


@pytest.fixture
def valkey(store_url: str) -> str:
    """Its URL."""
    return store_url
