"""Laws of :mod:`poller.delivery.filters`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.events import Cause
from poller.config.subscriptions import FilterSettings, WhenSettings
from poller.delivery.cloudevent import envelope_of
from poller.delivery.filters import compile_filters, meets_baseline
from tests.changes.samples import MANY
from tests.delivery.events import MEMBERS, NAMES, TYPE, WORDS, entry, spelled, string_form
from tests.delivery.scene import subscription

_COMPARED = st.dictionaries(NAMES, WORDS | st.sampled_from(["true", "1", "a1", "t"]), min_size=1, max_size=2)
_LEAVES = st.builds(
    lambda dialect, compared: {dialect: compared}, st.sampled_from(["exact", "prefix", "suffix"]), _COMPARED
)
FILTERS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    _LEAVES,
    lambda inner: (
        st.builds(lambda parts: {"all": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda part: {"not": part}, inner)
    ),
    max_leaves=6,
)


def holds(single: dict[str, Any], attributes: dict[str, str]) -> bool:
    """Whether a filter matches: a plain second implementation, for comparison."""
    ((dialect, content),) = single.items()
    if dialect == "all":
        return all(holds(part, attributes) for part in content)
    if dialect == "any":
        return any(holds(part, attributes) for part in content)
    if dialect == "not":
        return not holds(content, attributes)
    for name, expected in content.items():
        if name not in attributes:
            return False
        value, size = attributes[name], len(expected)
        part = {"exact": value, "prefix": value[:size], "suffix": value[-size:]}[dialect]
        if part != expected:
            return False
    return True


def wanted(written: bytes, *filters: dict[str, Any], types: tuple[str, ...] | None = None) -> bool:
    return compile_filters(types, [FilterSettings.model_validate(one) for one in filters])(envelope_of(written))


@MANY
@given(MEMBERS, st.lists(FILTERS, max_size=3), st.none() | st.lists(WORDS | st.just("t"), min_size=1, max_size=3))
def test_the_predicate_is_what_the_dialects_mean(
    members: dict[str, Any], filters: list[dict[str, Any]], types: list[str] | None
) -> None:
    """For any event, filters and types, the predicate agrees with a plain reading of them."""
    given_attributes = {"specversion": "1.0", "id": "a1", "source": "/s", "type": "t"} | members
    attributes = {name: string_form(value) for name, value in given_attributes.items()}
    expected = (types is None or attributes["type"] in types) and all(holds(one, attributes) for one in filters)
    assert wanted(spelled(**members), *filters, types=None if types is None else tuple(types)) == expected


@pytest.mark.parametrize(
    ("single", "expected"),
    [
        ({"exact": {"type": TYPE}}, True),
        ({"exact": {"type": TYPE.upper()}}, False),
        ({"exact": {"type": TYPE[:-1]}}, False),
        ({"prefix": {"type": "org.example."}}, True),
        ({"prefix": {"type": "Org.example."}}, False),
        ({"suffix": {"type": ".created.v1"}}, True),
        ({"suffix": {"type": ".created.V1"}}, False),
        ({"exact": {"specversion": "1.0"}}, True),
        ({"prefix": {"type": "org.", "subject": "K"}}, True),
        ({"prefix": {"type": "org.", "subject": "k"}}, False),
        ({"prefix": {"data": "{"}}, False),
        ({"exact": {"extensions": "x"}}, False),
        ({"exact": {"nosuch": "x"}}, False),
        ({"not": {"exact": {"nosuch": "x"}}}, True),
        ({"not": {"prefix": {"type": "org."}}}, False),
        ({"any": [{"exact": {"nosuch": "x"}}, {"exact": {"subject": "K"}}]}, True),
        ({"all": [{"exact": {"nosuch": "x"}}, {"exact": {"subject": "K"}}]}, False),
    ],
)
def test_the_dialects(single: dict[str, Any], expected: bool) -> None:
    """Comparison is case-sensitive, all entries of a mapping must match, and an absent attribute matches nothing."""
    assert wanted(entry(), single) == expected


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (False, "false"), (-7, "-7"), ("é", "é")])
def test_values_are_compared_in_their_string_form(value: object, text: str) -> None:
    """An integer is compared by its digits, a boolean by its name."""
    assert wanted(spelled(shard=value), {"exact": {"shard": text}})
    assert not wanted(spelled(shard=value), {"exact": {"shard": text + "0"}})


@pytest.mark.parametrize("cause", list(Cause))
def test_the_cause_of_an_event_of_an_earlier_version_is_that_of_its_data(cause: Cause) -> None:
    """A filter on ``cause`` reads the attribute, and of an event that does not have it the end of its data."""
    written = entry().replace(b'"cause":"delta"', b'"cause":"%b"' % cause.encode())
    former = written.replace(b'"cause":"%b",' % cause.encode(), b"", 1)
    assert former.count(b'"cause"') == 1
    for one in (written, former):
        assert wanted(one, {"exact": {"cause": cause.value}})
        assert not wanted(one, {"not": {"exact": {"cause": cause.value}}})


@pytest.mark.parametrize(
    "data",
    [{"cause": "delta", "more": 1}, {"of": {"cause": "delta"}}, ',"cause":"delta"}', [{"cause": "delta"}]],
)
def test_no_other_text_is_taken_for_a_cause(data: object) -> None:
    """An event of another program has a cause only if the attribute says so, or its data ends as ours does."""
    assert not wanted(spelled(data=data), {"prefix": {"cause": "d"}})


def chosen(written: bytes, **when: Any) -> bool:
    return compile_filters(None, (), WhenSettings.model_validate(when))(envelope_of(written))


def altered(*changed: str, cause: str = "delta") -> bytes:
    data = {"record": {}, "changed": list(changed), "revision": 2, "cause": cause}
    return spelled(cause=cause, data=data)


@pytest.mark.parametrize(
    ("changed", "wanted_too", "expected"),
    [
        (("/a",), ("/a",), True),
        (("/a/b",), ("/a",), True),
        (("/a",), ("/a/b",), True),
        (("/b", "/c"), ("/a", "/c"), True),
        (("",), ("/a",), True),
        (("/ab",), ("/a",), False),
        (("/a",), ("/ab", "/b/a"), False),
        (("/a~1b",), ("/a",), False),
        (("/b",), (), True),
    ],
)
def test_a_change_is_chosen_by_what_changed(
    changed: tuple[str, ...], wanted_too: tuple[str, ...], expected: bool
) -> None:
    """``when.changed`` lets a modified record through if a pointer changed, or something below or above it."""
    assert chosen(altered(*changed), changed=wanted_too) is expected


def test_created_and_removed_records_are_not_held_back_by_what_changed() -> None:
    """Events without ``changed`` pass, those of other programs included, whatever form their data has."""
    forms: list[Any] = [{"record": {}, "revision": 1}, {"previous": {}}, "text", {"changed": "/a"}, {"changed": None}]
    for data in forms:
        assert chosen(spelled(data=data), changed=["/a"])
    assert chosen(spelled(), changed=["/a"])
    assert chosen(entry(), changed=["/a"])


def test_a_change_is_chosen_by_its_cause() -> None:
    """``when.cause`` and ``when.not_cause`` choose by the cause, also of events of earlier versions."""
    former = entry().replace(b'"cause":"delta",', b"", 1)
    for written in (entry(), former):
        assert chosen(written, cause=["delta", "full"])
        assert not chosen(written, cause=["full"])
        assert chosen(written, not_cause=["full"])
        assert not chosen(written, not_cause=["delta"])
    assert not chosen(altered("/a"), changed=["/a"], cause=["full"])
    assert not chosen(altered("/b"), changed=["/a"], cause=["delta"])
    assert chosen(spelled(), not_cause=["delta"])
    assert not chosen(spelled(), cause=["delta"])


def test_all_filters_of_the_list_must_hold_and_the_type_too() -> None:
    """An event must match every filter and one of the types; without filters every event matches."""
    yes, no = {"prefix": {"type": "org."}}, {"prefix": {"type": "com."}}
    assert wanted(entry())
    assert wanted(entry(), yes, yes, types=(TYPE, "other"))
    assert not wanted(entry(), yes, no)
    assert not wanted(entry(), yes, types=("other",))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("created",), True),
        (("*.created.v1",), True),
        (("modified", "removed"), False),
        (("nothing", "created"), True),
        (("*.removed.*",), False),
    ],
)
def test_types_are_what_tail_takes(types: tuple[str, ...], expected: bool) -> None:
    """Types may be whole types, patterns or kinds of change."""
    assert TYPE.endswith(".created.v1")
    assert wanted(entry(), types=types) is expected


def test_the_store_is_asked_only_where_a_baseline_may_have_been_told() -> None:
    """The reset entry is read only for subscriptions from ``earliest`` and entries with a baseline."""
    baseline = entry().replace(b'"cause":"delta"}}', b'"cause":"baseline"}}')
    entries = [("4-0", baseline), ("5-0", None), ("6-0", entry())]
    assert meets_baseline(subscription(start="earliest"), entries)
    assert not meets_baseline(subscription(start="earliest"), entries[1:])
    assert not meets_baseline(subscription(start="now"), entries)
