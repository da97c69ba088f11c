"""Laws of :mod:`poller.config.event_types`: a subscription for a source that no feed has is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poller.changes.diff import Change, ChangeKind
from poller.config.event_types import event_source, required_values, unknown_source
from poller.config.load import load
from poller.config.settings import Settings
from poller.config.validation import decode_subscription, subscription_of
from poller.control.factories import feed_of
from poller.control.problems import unmatched_choices
from poller.errors import ConfigurationError
from poller.source.feed import RoundMode
from poller.source.writer import event_frame

API = "https://api.example.org/v1"
LISTING = f"{API}/qualifications/{{id}}/achievements"


@pytest.fixture
def settings() -> Settings:
    return load(None, {"POLLER_BASE_URL": API})


def test_sources_are_those_of_the_events(settings: Settings) -> None:
    """The expected event sources are those that rounds publish, for all kinds of paths."""
    (source,) = settings.sources
    other = source.feeds[0].model_copy(update={"resource": "positions", "path": "/p"})
    moved = source.feeds[0].model_copy(update={"path": "/moved"})
    for feed in (*source.feeds, other, moved):
        made = feed_of(source, feed)
        path = made.resource.listing_path("q7" if made.resource.per_qualification else None)
        frame = event_frame(made, generation="g", mode=RoundMode.FULL, path=path)
        expected = event_source(source.event_source, feed.resource, feed.path)
        change = Change(ChangeKind.CREATED, "k", "k", None, b"{}", b"{}", None, (), 1)
        event = json.loads(frame.encode(change, event_id="0" * 32, sequence=1, recorded="2025-03-01T12:00:00.000Z"))
        assert unknown_source(event["source"], [expected]) is None


def test_a_listing_is_known_by_its_form() -> None:
    """``{id}`` stands for one id, not for another path."""
    assert unknown_source(f"{API}/qualifications/11-22/achievements", [LISTING]) is None
    for wrong in (f"{API}/qualifications//achievements", f"{API}/qualifications/1/2/achievements", API, f"{API}/x"):
        assert unknown_source(wrong, [LISTING]) is not None


def test_what_is_meant_is_named() -> None:
    """The error for an unknown source names the nearest one, else some known ones."""
    known = [f"{API}/contractTypes", LISTING]
    assert unknown_source(f"{API}/contractType", known) == (
        f'expected the source of a feed\'s events; did you mean "{API}/contractTypes"?'
    )
    assert str(unknown_source("zzz", known)).endswith(f"there are {API}/contractTypes, {LISTING}")


def test_only_what_has_to_hold_is_looked_at() -> None:
    """Only sources that a filter requires are checked, not alternatives, negations or other values."""
    wrong = {"exact": {"source": "x", "subject": "7"}}
    filters = [{"any": [wrong]}, {"not": wrong}, {"prefix": {"source": "x"}}, 7, {"all": [{"all": [wrong]}]}]
    assert list(required_values(filters, "source")) == [((4, "all", 0, "all", 0, "exact", "source"), "x")]
    assert not list(required_values({"exact": {"source": "x"}}, "source"))


FILE = """
[[sources]]
name = "acme"
base_url = "https://api.example.org/v1/"
{more}
[[sources.feeds]]
resource = "contractTypes"
[[sources.feeds]]
resource = "achievements"
[[subscriptions]]
id = "a"
sink = "https://sink.example.org"
filters = [{{ exact = {{ source = "{source}" }} }}]
{choice}
"""


@pytest.mark.parametrize(
    ("source", "more", "choice", "says"),
    [
        (f"{API}/contractTypes", "", "", None),
        (f"{API}/qualifications/1/achievements", "", "", None),
        ("urn:x/contractTypes", 'event_source = "urn:x"', "", None),
        (f"{API}/contractType", "", "", "did you mean"),
        (f"{API}/contractTypes", 'event_source = "urn:x"', "", "there are urn:x/"),
        (f"{API}/contractTypes", "", 'feeds = ["acme/achievements"]', "did you mean|there are"),
    ],
)
def test_a_file_whose_subscription_would_get_nothing_is_refused(
    tmp_path: Path, source: str, more: str, choice: str, says: str | None
) -> None:
    """A filter's source must be one of a chosen feed, or of any feed; the error names the key's path."""
    file = tmp_path / "poller.toml"
    file.write_text(FILE.format(source=source, more=more, choice=choice), "utf-8")
    if says is None:
        assert load(file, {}).subscriptions
        return
    with pytest.raises(ConfigurationError, match=rf"filters\[0\].exact.source = .*: expected the source.* {says}"):
        load(file, {})


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ([{"exact": {"type": "org.example.api.contractType.created.v1"}}], None),
        ([{"exact": {"type": "org.example.api.contractType.create.v1"}}], 'did you mean ".*contractType.created.v1"'),
        ([{"all": [{"exact": {"type": "*.removed.v1"}}]}], "expected a type that a feed publishes"),
        ([{"any": [{"exact": {"type": "x"}}, {"exact": {"subject": "7"}}]}], None),
        ([{"not": {"exact": {"type": "x"}}}], None),
    ],
)
def test_a_filter_for_a_type_that_no_feed_publishes_is_refused(
    settings: Settings, filters: list[Any], says: str | None
) -> None:
    """An exact type that must hold is a type of a chosen feed; what is stored already is read on, with a warning."""
    values: dict[str, Any] = {"id": "a", "sink": "https://sink.example.org", "filters": filters}
    stored = decode_subscription(json.dumps(values).encode())
    unmatched = list(unmatched_choices(settings, stored))
    if says is None:
        assert subscription_of(values, settings, where="--from-json").filters
        assert not unmatched
        return
    with pytest.raises(ConfigurationError, match=rf"filters\[0\].*exact.type = .*: .*{says}"):
        subscription_of(values, settings, where="--from-json")
    assert "filters have the type" in unmatched[0]


def test_what_is_kept_is_read_on(settings: Settings) -> None:
    """A stored subscription with an unknown source is read; only adding one is refused."""
    values: dict[str, Any] = {"id": "a", "sink": "https://sink.example.org"}
    values["filters"] = [{"exact": {"source": "https://other.example.org/things"}}]
    for also in ({}, {"rate": 0}):  # wrong elsewhere too
        with pytest.raises(ConfigurationError, match=r"filters\[0\].exact.source = .*expected the source of a feed"):
            subscription_of(values | also, settings, where="--from-json")
    kept = b'{"id":"a","sink":"https://sink.example.org","filters":[{"exact":{"source":"https://o.example.org/t"}}]}'
    assert decode_subscription(kept).filters
