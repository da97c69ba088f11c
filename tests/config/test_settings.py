"""The settings as one value: frozen, usable from code, and able to find a feed by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from poller.config import AuthSettings, FeedSettings, Settings, SourceSettings, SubscriptionSettings
from poller.errors import ConfigurationError


def _source(name: str, *resources: str) -> SourceSettings:
    feeds = tuple(FeedSettings(resource=resource) for resource in resources)
    return SourceSettings(name=name, base_url="http://localhost", feeds=feeds)


SETTINGS = Settings(sources=(_source("a", "contractTypes", "achievements"), _source("b", "contractTypes")))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a/contractTypes", "a/contractTypes"),
        ("b/contractTypes", "b/contractTypes"),
        ("achievements", "a/achievements"),
    ],
)
def test_find_feed(text: str, found: str) -> None:
    """A feed is found by SOURCE/NAME, and by NAME where only one source has it."""
    source, feed = SETTINGS.find_feed(text)
    assert source.feed_id(feed) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("contractTypes", 'feed "contractTypes" is in several sources: say which, a/contractTypes, b/contractTypes'),
        ("achievement", ('there is no feed "achievement"; did you mean "achievements"? There are '
         "a/contractTypes, a/achievements, b/contractTypes")),
        ("", 'there is no feed "". There are a/contractTypes, a/achievements, b/contractTypes'),
    ],
)  # fmt: skip
def test_feeds_that_are_not_found(text: str, message: str) -> None:
    """An unknown or ambiguous name is answered with what there is."""
    with pytest.raises(ConfigurationError) as refused:
        SETTINGS.find_feed(text)
    assert str(refused.value) == message


def test_frozen() -> None:
    """Nothing changes a setting once it is made, and lists are tuples."""
    with pytest.raises(ValidationError):
        SETTINGS.sources[0].concurrency = 5
    assert isinstance(SETTINGS.sources[0].feeds[0].ignore, tuple)


def test_relations_hold_in_code_too() -> None:
    """Settings made from arguments obey the same relations as a file's."""
    wanted = SubscriptionSettings(id="r", sink="https://r.example.org", feeds=("a/x",), validate=True)
    for sources in ((), (_source("a", "contractTypes"),) * 2, (_source("a", "contractTypes"),)):
        with pytest.raises(ValidationError, match=r"no source|expected another name|that exists"):
            Settings(sources=sources, subscriptions=(wanted,))
    assert wanted.handshake


def test_kinds_of_credentials() -> None:
    """A credential tells its kind."""
    assert AuthSettings(token_env="A").kind == "token_env"  # noqa: S106  # the name of a variable
    assert AuthSettings(command=("a", "b")).kind == "command"


def test_written_as_in_the_file() -> None:
    """Settings written as JSON have durations, sizes and shares as people write them."""
    written = SETTINGS.model_dump(mode="json")
    feed = written["sources"][0]["feeds"][0]
    assert (feed["interval"], feed["reconcile"], feed["max_removals"]) == ("1m", "24h", "10%")
    assert (written["retention"]["max_bytes"], written["http"]["bind"]) == ("1GiB", "127.0.0.1:8080")


def test_loading_is_light() -> None:
    """Neither the scheduler nor Redis is imported before something needs it."""
    later = "'apscheduler', 'redis', 'httpx', 'platformdirs'"
    code = f"import sys, poller.config; print([name for name in ({later}) if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
