"""The store that the scenes of one worker share, each on a clean slate; those that kill their store bring their own."""

from __future__ import annotations

import pytest


@pytest.fixture
def store(store_url: str) -> str:
    """The URL of an empty store."""
    return store_url
