"""The JSON Schema of the file, and the example file that shows every key."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it brings no types
from pydantic import ValidationError

from poller.config.http import AuthSettings
from poller.config.load import load
from poller.config.settings import Settings, config_schema
from poller.config.sources import FeedSettings, SourceSettings
from poller.config.subscriptions import SubscriptionSettings
from poller.errors import ConfigurationError
from tests.config.conftest import FEED, SOURCE, SUBSCRIPTION
from tests.config.test_load import CASES

EXAMPLE = Path(__file__).parents[2] / "poller" / "config" / "example.toml"
SCHEMA = Draft202012Validator(config_schema())


def test_it_is_a_schema() -> None:
    """The schema is valid JSON Schema 2020-12."""
    Draft202012Validator.check_schema(config_schema())


def test_the_example_holds() -> None:
    """The example file loads, and the schema accepts it."""
    assert load(EXAMPLE, {}).feed_ids == (
        "acme/employmentUnavailabilities",
        "acme/achievements",
        "acme/positions",
        "acme/groupings",
    )
    SCHEMA.validate(tomllib.loads(EXAMPLE.read_text(encoding="utf-8")))


def test_the_example_holds_uncommented() -> None:
    """Commented-out keys of the example are valid, too, unless they exclude another key."""
    text = re.sub(r"^# (?!cron)([a-z_]+ = )", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    whole = tomllib.loads(text)
    SCHEMA.validate(whole)
    assert whole["sources"][0]["client_key_file"]


def test_the_example_is_complete() -> None:
    """The example holds every key of every table, commented out or not."""
    text = EXAMPLE.read_text(encoding="utf-8")
    for table, schema in config_schema()["$defs"].items():
        if table != "FilterSettings":
            for key in schema["properties"]:
                assert re.search(rf"\b{key}(\]\]| = )", text), f"{table}.{key}"


def _descriptions(schema: dict[str, Any]) -> list[tuple[str, str]]:
    tables = {"": schema, **schema["$defs"]}
    return [
        (f"{table}.{key}", described.get("description", described.get("$ref", "")))
        for table, properties in tables.items()
        for key, described in properties["properties"].items()
    ]


@pytest.mark.parametrize(("key", "description"), _descriptions(config_schema()))
def test_every_key_is_described(key: str, description: str) -> None:
    """Every key has a description, or refers to that of its table."""
    assert description.endswith(".") or description.startswith("#/$defs/")


def test_defaults_as_written() -> None:
    """Defaults in the schema are written as in TOML, without null."""
    feed = config_schema()["$defs"]["FeedSettings"]["properties"]
    assert (feed["reconcile"]["default"], feed["max_removals"]["default"]) == ("24h", "10%")
    assert config_schema()["$defs"]["HttpSettings"]["properties"]["bind"]["default"] == "127.0.0.1:8080"
    assert "null" not in str(config_schema())
    assert "None" not in str(config_schema())


@pytest.mark.parametrize(
    "text",
    [
        SOURCE + FEED + "intervall = 1",
        SOURCE + FEED + 'interval = "5 parsecs"',
        SOURCE + FEED + "interval = true",
        SOURCE + FEED + "limit = 0",
        SOURCE + FEED + 'max_removals = "ten"',
        SOURCE + "auth = {}\n" + FEED,
        SOURCE + 'auth = { token_env = "A", none = true }\n' + FEED,
        SOURCE + FEED + SUBSCRIPTION + 'mode = "btach"',
        SOURCE + FEED + SUBSCRIPTION + "filters = [{ any = [{}] }]",
        "[lease]\nttl = -1",
        "zzz = 1",
    ],
)
def test_what_it_refuses(text: str) -> None:
    """Misspelt keys, values of another kind and impossible combinations are refused by the schema alone."""
    assert not SCHEMA.is_valid(tomllib.loads(text))


def test_what_it_finds() -> None:
    """The schema accepts the smallest file, and refuses most of the files that loading refuses."""
    SCHEMA.validate(tomllib.loads(SOURCE + FEED + SUBSCRIPTION))
    assert sum(SCHEMA.is_valid(tomllib.loads(text)) for text, _ in CASES) < len(CASES) / 2


# The settings as one value: frozen, usable from code, and able to find a feed by name.


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
    """The error for an unknown or ambiguous feed lists the feeds that exist."""
    with pytest.raises(ConfigurationError) as refused:
        SETTINGS.find_feed(text)
    assert str(refused.value) == message


def test_frozen() -> None:
    """Settings are immutable, and lists are tuples."""
    with pytest.raises(ValidationError):
        SETTINGS.sources[0].concurrency = 5
    assert isinstance(SETTINGS.sources[0].feeds[0].ignore, tuple)


def test_relations_hold_in_code_too() -> None:
    """Settings made from arguments are validated like those of a file."""
    wanted = SubscriptionSettings(id="r", sink="https://r.example.org", feeds=("a/x",), validate=True)
    for sources in ((), (_source("a", "contractTypes"),) * 2, (_source("a", "contractTypes"),)):
        with pytest.raises(ValidationError, match=r"no source|expected another name|that exists"):
            Settings(sources=sources, subscriptions=(wanted,))
    assert wanted.handshake


def test_kinds_of_credentials() -> None:
    """Auth settings have the kind of their credential."""
    assert AuthSettings(token_env="A").kind == "token_env"  # noqa: S106  # the name of a variable
    assert AuthSettings(command=("a", "b")).kind == "command"


def test_written_as_in_the_file() -> None:
    """Settings written as JSON have durations, sizes and shares as people write them."""
    written = SETTINGS.model_dump(mode="json")
    feed = written["sources"][0]["feeds"][0]
    assert (feed["interval"], feed["reconcile"], feed["max_removals"]) == ("1m", "24h", "10%")
    assert (written["retention"]["max_bytes"], written["http"]["bind"]) == ("1GiB", "127.0.0.1:8080")


def test_loading_is_light() -> None:
    """Importing the configuration imports neither the scheduler nor Redis."""
    later = "'apscheduler', 'redis', 'httpx', 'platformdirs'"
    code = f"import sys, poller.config; print([name for name in ({later}) if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"
