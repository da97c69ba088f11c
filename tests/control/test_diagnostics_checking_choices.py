"""Laws of :mod:`poller.control.diagnostics`: a choice that nothing can meet is told, with what was meant."""

from __future__ import annotations

from typing import Any

from poller.config.load import load
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.control.diagnostics import check_choices


def settings() -> Settings:
    return load(None, {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"})


def told(**choice: Any) -> list[str]:
    given = {"id": "rostering", "sink": "https://rostering.example.org/hooks", **choice}
    return [one.text for one in check_choices(settings(), SubscriptionSettings.model_validate(given))]


def test_what_can_be_met_is_not_told() -> None:
    """All types of all feeds, or of those that were chosen."""
    assert told() == []
    assert told(types=["org.example.api.contractType.removed.v1"]) == []
    assert told(filters=[{"exact": {"source": "https://api.example.org/contractTypes"}}]) == []
    assert told(types=["org.example.api.contractType.removed.v1"], feeds=["default/contractTypes"]) == []


def test_a_typing_error_is_told_with_what_was_meant() -> None:
    """A type that no feed has, or none of those that were chosen; a feed that is gone from the configuration."""
    [wrong_type] = told(types=["org.example.api.contractTypes.created.v1"])
    assert wrong_type.endswith('; did you mean "org.example.api.contractType.created.v1"?')
    assert len(told(types=["org.example.api.contractType.created.v1"], feeds=["default/achievements"])) == 1
    source = {"filters": [{"exact": {"source": "https://api.example.org/contractType"}}]}
    [wrong_source] = told(**source)
    assert wrong_source.endswith('; did you mean "https://api.example.org/contractTypes"?')
    [wrong_feed] = told(feeds=["default/contractType"])
    assert wrong_feed.endswith('no feed of this configuration; did you mean "default/contractTypes"?')
