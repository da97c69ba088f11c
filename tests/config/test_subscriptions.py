"""A subscription as it is kept between processes."""

from __future__ import annotations

import tomllib
from pathlib import Path

from poller.config.subscriptions import SubscriptionSettings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "poller.example.toml"


def test_a_subscription_reads_as_it_was_written() -> None:
    """Every key, each of them set, comes back from JSON as the same value; secret files are paths again."""
    oauth = {"token_url": "https://a.example/token", "client_id": "a", "client_secret_file": "/run/secrets/b"}
    (given,) = tomllib.loads(EXAMPLE.read_text("utf-8"))["subscriptions"]
    whole = SubscriptionSettings.model_validate(given | {"auth": {"oauth2": oauth}})
    assert whole.secret_files
    assert whole.model_fields_set == SubscriptionSettings.model_fields.keys()
    kept = whole.model_dump_json(by_alias=True, exclude_unset=True)
    assert SubscriptionSettings.model_validate_json(kept) == whole
