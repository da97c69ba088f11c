"""Fixtures that the tests of rounds share."""

from __future__ import annotations

import pytest

from poller.store.feed_state import CONFIRMATION
from tests.source.round_sides import Round, Script, records


@pytest.fixture
async def read() -> Round:
    """A feed after a confirmed baseline: records a and b, delta token d1."""
    feed = Round()
    result = await feed(Script().on(records("a"), further="p", delta="d1").on(records("b"), page="p", delta="d2"))
    assert result.ok
    feed.store.unmark(CONFIRMATION)
    return feed
