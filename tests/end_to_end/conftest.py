"""The store that the scenes of one worker share, emptied for each; tests that kill their store start their own."""

from __future__ import annotations

import pytest


@pytest.fixture
def store(store_url: str) -> str:
    """The URL of an empty store."""
    return store_url
