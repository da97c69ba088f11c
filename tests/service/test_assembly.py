"""Laws of :mod:`poller.service.assembly`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from poller.config.sources import SourceSettings
from poller.service.assembly import feed_of


@pytest.mark.parametrize(
    ("timing", "seconds"),
    [({"interval": "5s"}, 5), ({"interval": "60s"}, 60), ({"interval": "24h"}, 60), ({"cron": "0 3 * * *"}, 60)],
)
def test_a_requests_patience_is_its_feeds_interval_and_no_more_than_a_minute(
    timing: dict[str, str], seconds: int
) -> None:
    """Waiting longer than until the next round would be of no use; a round that comes daily does not wait for hours."""
    source = SourceSettings.model_validate(
        {
            "name": "acme",
            "base_url": "https://api.example.org",
            "auth": {"none": True},
            "feeds": [{"resource": "contractTypes", **timing}],
        }
    )
    assert feed_of(source, source.feeds[0]).patience == timedelta(seconds=seconds)
