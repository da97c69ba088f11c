"""Laws of :mod:`poller.config.event_types`: a type means the same everywhere, and an unknown type is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poller.changes.diff import ChangeKind
from poller.config.event_types import (
    KINDS,
    LONGEST_PATTERN,
    MOST_PATTERNS,
    MOST_REPORTED,
    published_types,
    type_test,
    unmatched_types,
)
from poller.config.load import load
from poller.config.validation import decode_subscription, subscription_of
from poller.control.factories import feed_of
from poller.errors import ConfigurationError

TYPE = "org.example.api.contractType.modified.v1"


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [
        (TYPE, True),
        ("*.modified.v1", True),
        ("*.contractType.*", True),
        ("modified", True),
        ("removed", False),
        ("contractType", False),
        ("ORG.*", False),
        (TYPE[:-1], False),
        (TYPE + "0", False),
        ("org.example.api.contractType.modified.v?", True),
    ],
)
def test_what_an_entry_matches(wanted: str, *, matched: bool) -> None:
    """An entry is a whole type, a pattern, or a kind of change; one matching entry suffices."""
    assert type_test([wanted])(TYPE) is matched
    assert type_test(["other", wanted])(TYPE) is matched


def test_a_kind_is_no_part_of_a_prefix() -> None:
    """A prefix that looks like another kind does not make an event of that kind."""
    assert not type_test(["created"])("org.created.v1.contractType.modified.v1")


def test_types_are_those_of_the_events() -> None:
    """The expected event types are those that rounds publish, for known and other resources."""
    assert set(KINDS) == set(ChangeKind)
    for type_name in (None, "post"):
        settings = load(None, {"POLLER_BASE_URL": "https://api.example.org"})
        source = settings.sources[0]
        other = source.feeds[0].model_copy(update={"resource": "positions", "path": "/p", "type_name": type_name})
        for feed in (*source.feeds, other):
            stem = f"{source.type_prefix}.{feed_of(source, feed).resource.type_name}"
            expected = tuple(f"{stem}.{kind}.v1" for kind in KINDS)
            assert published_types(source.type_prefix, feed.resource, feed.type_name) == expected


def test_what_matches_nothing_is_told_with_what_was_meant() -> None:
    """An unmatched entry is reported by its place, with the nearest type or an example."""
    types = published_types("org.example.api", "contractTypes", None)
    assert unmatched_types(["created", "*.removed.v1", TYPE], types) == []
    [(place, entry, expected)] = unmatched_types(["created", "creatd"], types)
    assert (place, entry) == (1, "creatd")
    assert expected == 'expected a type that a feed publishes; did you mean "created"?'
    assert 'such as "org.example.api.contractType.created.v1"' in unmatched_types(["zzz"], types)[0][2]


def test_a_pattern_is_bounded_in_length_and_number() -> None:
    """Patterns are limited in length and number; types without ``*``, ``?`` or ``[`` are not."""
    types = published_types("org.example.api", "contractTypes", None)
    longest = "*" * LONGEST_PATTERN
    assert unmatched_types([longest], types) == []
    assert unmatched_types([longest + "*"], types) == [
        (0, longest + "*", f"expected a pattern of at most {LONGEST_PATTERN} characters")
    ]
    several = [f"*{'?' * (number % 2)}*" for number in range(MOST_PATTERNS)]
    assert unmatched_types([*several, TYPE], types) == []
    [(place, _, expected)] = unmatched_types([*several, "*", "removed"], types)
    assert place == MOST_PATTERNS
    assert expected.startswith(f"expected at most {MOST_PATTERNS} patterns")
    assert "expected a type" in unmatched_types(["x" * 30_000], types)[0][2]


def test_of_many_wrong_types_the_first_are_told() -> None:
    """Only the first of many wrong types are compared with all types and reported."""
    types = published_types("org.example.api", "contractTypes", None)
    assert len(unmatched_types([f"creat{number}" for number in range(1000)], types)) == MOST_REPORTED


FILE = """
[[sources]]
name = "acme"
base_url = "https://api.example.org"
{prefix}
[[sources.feeds]]
resource = "contractTypes"
[[sources.feeds]]
resource = "positions"
path = "/positions"
[[subscriptions]]
id = "a"
sink = "https://sink.example.org"
types = {types}
{more}
"""


def loaded(tmp_path: Path, types: str, prefix: str = "", more: str = "") -> None:
    file = tmp_path / "poller.toml"
    file.write_text(FILE.format(types=types, prefix=prefix, more=more), "utf-8")
    load(file, {})


def test_a_file_whose_subscription_would_get_nothing_is_refused(tmp_path: Path) -> None:
    """Each entry of types must match an event of the chosen feeds, or of any; the error names the key's path."""
    loaded(tmp_path, '["created", "*.removed.v1", "org.example.api.position.modified.v1"]')
    loaded(tmp_path, '["x.y.position.*"]', prefix='type_prefix = "x.y"')
    with pytest.raises(ConfigurationError, match=r'types\[1\] = "creatd": expected a type .* did you mean "created"'):
        loaded(tmp_path, '["created", "creatd"]')
    with pytest.raises(ConfigurationError, match=r"types\[0\]"):
        loaded(tmp_path, '["*.position.*"]', more='feeds = ["acme/contractTypes"]')
    with pytest.raises(ConfigurationError, match=r"types\[0\]"):
        loaded(tmp_path, '["org.example.api.contractType.created.v1"]', prefix='type_prefix = "x.y"')


def test_a_file_that_is_wrong_elsewhere_is_not_blamed_for_its_types(tmp_path: Path) -> None:
    """If the file has another error, only that is reported, because the published types are unknown."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, '["created"]', prefix="type_prefix = 7")
    assert "types" not in str(caught.value).replace("type_prefix", "")
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, '["created"]', more='feeds = ["acme/none"]')
    assert "types" not in str(caught.value).replace("contractTypes", "")


def test_what_is_kept_is_read_on() -> None:
    """A stored subscription with an unknown type is read; only adding one is refused."""
    settings = load(None, {"POLLER_BASE_URL": "https://api.example.org"})
    values: dict[str, Any] = {"id": "a", "sink": "https://sink.example.org", "types": ["org.other.thing.created.v1"]}
    with pytest.raises(ConfigurationError, match=r"types\[0\]"):
        subscription_of(values, settings, where="x")
    kept = decode_subscription(
        b'{"id": "a", "sink": "https://sink.example.org", "types": ["org.other.thing.created.v1"]}'
    )
    assert kept.types == ("org.other.thing.created.v1",)
