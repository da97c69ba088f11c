"""Laws of :mod:`poller.config.event_choice`: choices that nothing can meet are refused, and only those."""

from __future__ import annotations

import json
import tomllib
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import ChangeKind, Snapshot, compare
from poller.changes.events import Cause, event_schema
from poller.changes.records import Record, record_reader
from poller.config.event_choice import (
    CAUSES,
    DROPPED_ID,
    EVENT_ATTRIBUTES,
    NOTHING_BACKFILLED,
    NOTHING_BUT_BASELINES,
    dropped_ids,
    is_possible,
    outer_pointers,
    unknown_attributes,
    within_record,
)
from poller.config.load import load
from poller.config.settings import Settings
from poller.config.subscriptions import FilterSettings, WhenSettings
from poller.config.validation import decode_subscription, encode_subscription, subscription_of
from poller.control.problems import unmatched_choices
from poller.delivery.cloudevent import ATTRIBUTES, envelope_of
from poller.delivery.filters import compile_filters
from poller.delivery.projection import touches
from poller.errors import ConfigurationError
from tests.changes.samples import MANY

API: Final = "https://api.example.org/v1"
STEM: Final = "org.example.api.contractType"
FILE: Final = f"""
[[sources]]
name = "acme"
base_url = "{API}"
[[sources.feeds]]
resource = "contractTypes"
[[sources.feeds]]
resource = "positions"
path = "/positions"
id_field = "code/x"
[[subscriptions]]
id = "a"
sink = "https://sink.example.org"
"""
BASE: Final[dict[str, Any]] = {"id": "a", "sink": "https://sink.example.org"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return loaded(tmp_path, "")


def loaded(directory: Path, more: str) -> Settings:
    file = directory / "poller.toml"
    file.write_text(FILE + more, "utf-8")
    return load(file, {})


def test_causes_and_attributes_are_those_of_events() -> None:
    """The configuration knows exactly the causes and the attributes that events have."""
    assert set(CAUSES) == set(Cause)
    properties = event_schema(STEM, ChangeKind.CREATED)["properties"]
    assert set(EVENT_ATTRIBUTES) == properties.keys() - {"data"}
    assert set(EVENT_ATTRIBUTES) == {*ATTRIBUTES} - {"dataschema"}


KNOWN: Final = f"expected an attribute that events have: {', '.join(EVENT_ATTRIBUTES)}"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('filters = [{ exact = { nosuch = "x" } }]', f"filters[0].exact.nosuch: {KNOWN}"),
        ('filters = [{ exact = { dataschema = "x" } }]', f"filters[0].exact.dataschema: {KNOWN}"),
        (
            'filters = [{ any = [{ prefix = { type = "o" } }, { not = { suffix = { x1 = "x" } } }] }]',
            f"filters[0].any[1].not.suffix.x1: {KNOWN}",
        ),
        (
            'filters = [{ exact = { cause = "whim" } }]',
            f'filters[0].exact.cause = "whim": expected a cause of events: {", ".join(CAUSES)}',
        ),
        (
            'when = { cause = ["whim"] }',
            'when.cause[0] = "whim": expected "baseline", "delta", "full", "reconcile", "resync" or "backfill"',
        ),
        (
            'when = { not_cause = ["baseline", "Delta"] }',
            'when.not_cause[1] = "Delta": expected "baseline", "delta", "full", "reconcile", "resync" or "backfill"',
        ),
        ('when = { cause = ["full", "full"] }', 'when.cause = ["full", "full"]: expected no entry twice'),
        (
            'when = { changed = ["reason"] }',
            'when.changed[0] = "reason": expected a JSON pointer (RFC 6901) such as "/lastModifiedAt"',
        ),
        ('when = { change = ["/a"] }', 'when.change: unknown key; did you mean "changed"?'),
        ("when = 3", "when = 3: expected a table"),
        (
            'fields = { drop = [""] }',
            'fields.drop[0] = "": expected a JSON pointer (RFC 6901) such as "/lastModifiedAt"',
        ),
        ("fields = { }", "fields: expected exactly one of pick and drop"),
        ('fields = { pick = ["/a"], drop = ["/b"] }', "fields: expected exactly one of pick and drop"),
        ("fields = { pick = [] }", "fields.pick = []: expected at least one entry"),
        ('fields = { pick = ["/a", "/a"] }', 'fields.pick = ["/a", "/a"]: expected no entry twice'),
        ('fields = ["/a"]', 'fields = ["/a"]: expected a table'),
        (
            'fields = { drop = ["/a", "/id"] }',
            f'fields.drop[1] = "/id": {DROPPED_ID}',
        ),
        (
            'feeds = ["acme/positions"]\nfields = { drop = ["/code~1x"] }',
            f'fields.drop[0] = "/code~1x": {DROPPED_ID}',
        ),
        (
            'fields = { drop = ["/a", "/record/reason"] }',
            f'fields.drop[1] = "/record/reason": {within_record("/record/reason")}',
        ),
        (
            'when = { changed = ["/data/previous/a"] }',
            f'when.changed[0] = "/data/previous/a": {within_record("/data/previous/a")}',
        ),
        *(
            (f'fields = {{ drop = ["{one}"] }}', f'fields.drop[0] = "{one}": {within_record(one)}')
            for one in ("/record", "/previous", "/data", "/data/record", "/data/changed", "/data/a")
        ),
        ('when = { changed = ["/record"] }', f'when.changed[0] = "/record": {within_record("/record")}'),
        ('start = "snapshot"\ntypes = ["removed"]', f"types: {NOTHING_BACKFILLED}"),
        ('start = "snapshot"\nwhen = { not_cause = ["backfill"] }', f"when: {NOTHING_BACKFILLED}"),
        ('start = "snapshot"\nfilters = [{ exact = { cause = "delta" } }]', f"filters: {NOTHING_BACKFILLED}"),
        ('when = { cause = ["baseline"] }', f"when: {NOTHING_BUT_BASELINES}"),
        ('start = "now"\nwhen = { cause = ["baseline"] }', f"when: {NOTHING_BUT_BASELINES}"),
        ('filters = [{ exact = { cause = "baseline" } }]', f"filters: {NOTHING_BUT_BASELINES}"),
        ("thin = 1", "thin = 1: expected true or false"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, line: str, says: str) -> None:
    """Each problem names the key's path, the value, and what is expected; there is no other line."""
    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, line)
    assert str(refused.value) == f"{tmp_path}/poller.toml: subscriptions[0].{says}"


TOGETHER: Final = (
    "expected choices that one event can meet: no event of its feeds meets types, filters and when together"
)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('when = { cause = ["full"], not_cause = ["full"] }', "when"),
        (f"when = {{ not_cause = {json.dumps(CAUSES)} }}", "when"),
        ('types = ["modified", "removed"]\nwhen = { cause = ["backfill"] }', "when"),
        ('types = ["removed"]\nfilters = [{ suffix = { type = ".created.v1" } }]', "filters"),
        ('when = { cause = ["full"] }\nfilters = [{ exact = { cause = "delta" } }]', "when"),
        (
            f'filters = [{{ exact = {{ source = "{API}/positions" }} }}, {{ prefix = {{ type = "{STEM}" }} }}]',
            "filters",
        ),
        ('filters = [{ exact = { subject = "1" } }, { all = [{ exact = { subject = "2" } }] }]', "filters"),
        ('filters = [{ exact = { datacontenttype = "text/plain" } }]', "filters"),
        ('filters = [{ not = { prefix = { specversion = "1" } } }]', "filters"),
        ('filters = [{ any = [{ prefix = { type = "com." } }, { suffix = { type = ".v2" } }] }]', "filters"),
        ('feeds = ["acme/positions"]\nfilters = [{ prefix = { type = "org.example.api.contract" } }]', "filters"),
    ],
)
def test_choices_that_no_event_can_meet_are_refused(tmp_path: Path, settings: Settings, line: str, key: str) -> None:
    """Types, filters and when that exclude each other are refused; one that is stored is read, with a warning."""
    with pytest.raises(ConfigurationError) as refused:
        loaded(tmp_path, line)
    assert str(refused.value) == f"{tmp_path}/poller.toml: subscriptions[0].{key}: {TOGETHER}"
    values = {**BASE, **tomllib.loads(line)}
    stored = decode_subscription(json.dumps(values).encode())
    assert list(unmatched_choices(settings, stored)) == [
        "types, filters and when cannot be met together by any event of its feeds"
    ]


@pytest.mark.parametrize(
    "line",
    [
        'when = { changed = ["/interval"], cause = [], not_cause = ["baseline"] }',
        "when = { }",
        'types = ["removed"]\nwhen = { changed = ["/a"] }',
        'start = "earliest"\nwhen = { cause = ["baseline"] }',
        'start = "snapshot"\nwhen = { cause = ["baseline", "backfill"] }',
        'when = { cause = ["baseline", "full"] }',
        'types = ["modified"]\nwhen = { changed = ["/id"] }',
        'types = ["modified"]\nfields = { pick = ["/id"] }',
        'types = ["created"]\nwhen = { cause = ["backfill"] }',
        'filters = [{ not = { exact = { cause = "baseline" } } }]',
        'filters = [{ exact = { subject = "1", traceparent = "x" } }, { not = { exact = { subject = "2" } } }]',
        f'filters = [{{ prefix = {{ source = "{API}/p" }} }}]',
        'filters = [{ any = [{ prefix = { type = "com." } }, { exact = { subject = "1" } }] }]',
        'fields = { drop = ["/code~1x", "/a/id"] }\nfeeds = ["acme/contractTypes"]',
        'fields = { pick = ["/id"] }\nthin = true',
        'fields = { pick = ["/recorded/at", "/database", "/a/record/b", "/a/data"] }',
        'start = "snapshot"\nwhen = { not_cause = ["baseline"] }\ntypes = ["created", "removed"]',
    ],
)
def test_choices_that_an_event_may_meet_are_taken(tmp_path: Path, line: str) -> None:
    """Nothing that an event may meet is refused, and nothing is said of it later."""
    settings = loaded(tmp_path, line)
    (one,) = settings.subscriptions
    assert not list(unmatched_choices(settings, one))
    assert decode_subscription(encode_subscription(one)) == one


@pytest.mark.parametrize(
    ("pointer", "within"),
    [
        ("/record/reason", "/reason"),
        ("/data/previous/a/b", "/a/b"),
        ("/previous/record/a", "/record/a"),
        ("/data/a", "/a"),
        ("/record", "/reason"),
        ("/data/changed", "/reason"),
    ],
)
def test_a_pointer_around_the_record_is_told_the_one_within(pointer: str, within: str) -> None:
    """The message names the pointer that was meant."""
    assert f'"{within}"' in within_record(pointer)


@pytest.mark.parametrize("pointer", ["/record", "/data/a", "/data/record/b"])
def test_a_field_that_a_feed_names_can_be_chosen(tmp_path: Path, pointer: str) -> None:
    """If ``fields`` of a feed lists record or data, pointers may begin with it in subscriptions to that feed alone."""
    feed = '[[sources]]\nname = "own"\nbase_url = "https://own.example.org"\n[[sources.feeds]]\nresource = "things"\n'
    more = f'fields = {{ drop = ["{pointer}"] }}\n{feed}path = "/things"\nfields = ["id", "record", "data"]\n'
    settings = loaded(tmp_path, f'feeds = ["own/things"]\n{more}')
    assert not list(unmatched_choices(settings, settings.subscriptions[0]))
    with pytest.raises(ConfigurationError, match=r"fields.drop\[0\]"):
        loaded(tmp_path, f'feeds = ["acme/positions"]\n{more}')


def test_a_stored_choice_of_first_readings_alone_is_named(settings: Settings) -> None:
    """A stored subscription that starts with new events and wants first readings alone is named in status.

    A new one is refused, also where it does not come from the file.
    """
    with pytest.raises(ConfigurationError) as refused:
        subscription_of({**BASE, "when": {"cause": ["baseline"]}}, settings, where="x")
    assert str(refused.value) == f"x: when: {NOTHING_BUT_BASELINES}"
    stored = decode_subscription(json.dumps({**BASE, "when": {"cause": ["baseline"]}}).encode())
    (text,) = unmatched_choices(settings, stored)
    assert text == f"types, filters and when choose first readings alone: {NOTHING_BUT_BASELINES}"


@pytest.mark.parametrize("before", [b'{"id":"0190A0DE-0000-7000-8000-000000000001","n":1}', b"{"])
def test_the_id_of_a_modified_record_may_differ(before: bytes) -> None:
    """A modified record may have another case of its id, or nothing known before it: then its id counts as changed.

    So choices of the id alone may be met, and are taken.
    """
    record = record_reader("id")(b'{"id":"0190a0de-0000-7000-8000-000000000001","n":2}')
    assert isinstance(record, Record)
    change = compare(record, Snapshot(1, 1, before))
    assert change is not None
    assert any(touches(pointer, ["/id"]) for pointer in change.changed)


def test_a_stored_pointer_around_the_record_is_named(settings: Settings) -> None:
    """A stored drop of the whole record, which drops nothing, is read, and named in status."""
    stored = decode_subscription(json.dumps({**BASE, "fields": {"drop": ["/record"]}}).encode())
    assert list(unmatched_choices(settings, stored)) == [f'fields.drop has "/record": {within_record("/record")}']


def test_what_an_earlier_version_has_taken_is_read_on(settings: Settings) -> None:
    """A stored filter for an attribute that no event has is read, and named in status; a new one is refused."""
    values: dict[str, Any] = {**BASE, "filters": [{"any": [{"exact": {"nosuch": "x"}}, {"exact": {"subject": "1"}}]}]}
    with pytest.raises(ConfigurationError, match=r"x: filters\[0\].any\[0\].exact.nosuch: expected an attribute that"):
        subscription_of(values, settings, where="x")
    stored = decode_subscription(json.dumps(values).encode())
    assert list(unmatched_choices(settings, stored)) == [
        f'filters have the attribute "nosuch", which no event has: {KNOWN}'
    ]


def test_a_stored_drop_of_the_id_is_named(settings: Settings) -> None:
    """If a feed's id_field changes, a subscription that drops the new id field is named in status."""
    stored = decode_subscription(json.dumps({**BASE, "fields": {"drop": ["/id"]}}).encode())
    (text,) = unmatched_choices(settings, stored)
    assert text == f'fields drops "/id": {DROPPED_ID}'


def test_a_list_of_pointers_has_a_limit(tmp_path: Path) -> None:
    """More than 256 pointers are refused, with the number that is allowed."""
    many = json.dumps([f"/{number}" for number in range(257)])
    for line in (f"fields = {{ pick = {many} }}", f"when = {{ changed = {many} }}"):
        with pytest.raises(ConfigurationError, match="expected at most 256 entries"):
            loaded(tmp_path, line)


_ATTRIBUTES: Final = st.sampled_from(["type", "cause", "source", "subject"])
_TEXTS: Final = st.sampled_from([f"{STEM}.created.v1", f"{STEM}.", ".removed.v1", "delta", "d", API, f"{API}/a", "1"])
_LEAVES: Final = st.builds(
    lambda dialect, name, text: {dialect: {name: text}},
    st.sampled_from(["exact", "prefix", "suffix"]),
    _ATTRIBUTES,
    _TEXTS,
)
_FILTERS: Final[st.SearchStrategy[dict[str, Any]]] = st.recursive(
    _LEAVES,
    lambda inner: (
        st.builds(lambda dialect, parts: {dialect: parts}, st.sampled_from(["all", "any"]), st.lists(inner, min_size=1))
        | st.builds(lambda part: {"not": part}, inner)
    ),
    max_leaves=4,
)
_WHEN: Final = st.fixed_dictionaries(
    {}, optional={name: st.lists(st.sampled_from(CAUSES), max_size=3, unique=True) for name in ("cause", "not_cause")}
)


@MANY
@given(
    st.none() | st.lists(st.sampled_from(["created", "*.removed.v1", f"{STEM}.modified.v1"]), min_size=1, max_size=2),
    st.lists(_FILTERS, max_size=3),
    _WHEN,
)
def test_what_an_event_meets_is_never_called_impossible(
    types: list[str] | None, filters: list[dict[str, Any]], when: dict[str, Any]
) -> None:
    """For any choices: if some event of the feed passes the filters of deliveries, they are possible."""
    given_filters = [FilterSettings.model_validate(one) for one in filters]
    passes = compile_filters(types, given_filters, WhenSettings.model_validate(when))
    published = [(f"{STEM}.{kind}.v1", f"{API}/a") for kind in ChangeKind]
    met = any(
        passes(envelope_of(json.dumps(attributes | {"subject": subject}).encode()))
        for (type_, source), cause, subject in product(published, CAUSES, ("1", "2"))
        if cause != "backfill" or ".created." in type_
        for attributes in [{"specversion": "1.0", "id": "x", "source": source, "type": type_, "cause": cause}]
    )
    choice = {"types": types, "filters": filters, "when": when}
    assert is_possible(choice, published) or not met


@pytest.mark.parametrize(
    "wrong",
    [
        7,
        None,
        [7],
        [{"exact": 7}],
        [{"not": 7}],
        [{"any": 7}],
        [{"exact": {"type": 7}}],
        {"cause": 7},
        {"drop": 7},
        {"drop": [{}]},
    ],
)
def test_values_of_any_shape_are_looked_at(wrong: Any) -> None:
    """Choices of a wrong shape are passed over here: what is wrong with them is said by their validation."""
    assert not list(unknown_attributes(wrong))
    assert not list(dropped_ids(wrong, ["id"]))
    assert not list(outer_pointers({"fields": wrong, "when": wrong}))
    for key in ("filters", "when", "types"):
        assert is_possible({key: wrong}, [("t.created.v1", "s")])
