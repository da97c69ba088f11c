"""The checker reports each kind of fault, and nothing on a correct stream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.checker import judge
from tests.harness.json_values import differing, equal, read

if TYPE_CHECKING:
    from tests.harness.checker import Verdict

_A1, _A2, _B1 = {"id": "A", "n": 1}, {"id": "A", "n": 2}, {"id": "b", "n": 1}
_LOG = [
    {"version": 1, "resource": "things", "id": "A", "record": _A1},
    {"version": 2, "resource": "things", "id": "b", "record": _B1},
    {"version": 3, "resource": "things", "id": "A", "record": _A2},
    {"version": 4, "resource": "things", "id": "A", "record": _A1},
]


def _event(sequence: int, kind: str, record: dict[str, Any] | None, **content: Any) -> dict[str, Any]:
    named = record or content["previous"]
    found = {"revision": 1, "record": record} | content
    return {
        "id": f"e{sequence}",
        "type": f"org.example.thing.{kind}.v1",
        "subject": named["id"],
        "sequence": f"{sequence:020d}",
        "data": {name: value for name, value in found.items() if value is not None},
    }


def _story() -> list[dict[str, Any]]:
    """The correct events for the log."""
    return [
        _event(1, "created", _A1),
        _event(2, "created", _B1),
        _event(3, "modified", _A2, revision=2, previous=_A1, changed=["/n"]),
        _event(4, "modified", _A1, revision=3, previous=_A2, changed=["/n"]),
    ]


def _judged(events: list[dict[str, Any]], *, log: list[dict[str, Any]] = _LOG, upto: int = 4) -> Verdict:
    return judge(read(json.dumps(log)), {"things": [json.dumps(event).encode() for event in events]}, upto=upto)


def test_a_story_told_rightly_is_clean() -> None:
    """A stream with every version once, in order and with the right kind is clean."""
    verdict = _judged(_story())
    assert verdict.clean, verdict
    assert verdict.events == 4


def test_versions_between_two_polls_need_not_be_published() -> None:
    """A change that is undone between two polls need not be published; only the last state must be."""
    assert _judged(_story()[:2]).clean


def test_a_removal_is_told_rightly() -> None:
    """A removal is the record's last event; a record that returns is created with the next revision."""
    log = [
        {"version": 1, "resource": "things", "id": "A", "record": _A1},
        {"version": 2, "resource": "things", "id": "A", "record": None},
        {"version": 3, "resource": "things", "id": "A", "record": _A1},
    ]
    events = [
        _event(1, "created", _A1),
        _event(2, "removed", None, revision=2, previous=_A1),
        _event(3, "created", _A1, revision=3),
    ]
    assert _judged(events, log=log, upto=3).clean
    assert _judged(events[:1], log=log[:2], upto=2).lost


@pytest.mark.parametrize(
    ("events", "upto"),
    [([0], 2), ([], 1), ([0, 1, 2], 4)],
    ids=["never published", "nothing published", "last version not published"],
)
def test_what_is_missing_is_lost(events: list[int], upto: int) -> None:
    """A record that was never published, or whose last version was not, is lost."""
    verdict = _judged([_story()[at] for at in events], upto=upto)
    assert verdict.lost
    assert verdict.sound


def test_a_repeated_id_is_doubled() -> None:
    """A repeated event id is reported as doubled."""
    story = _story()
    story[3]["id"] = story[0]["id"]
    assert len(_judged(story).doubled) == 1


def test_saying_the_same_again_is_doubled() -> None:
    """An event with the content of the record's previous event is doubled, whatever its id."""
    again = _event(5, "modified", _A1, revision=4, previous=_A1, changed=[])
    assert len(_judged([*_story(), again]).doubled) == 1


@pytest.mark.parametrize(
    ("at", "kind", "content"),
    [
        (1, "modified", {}),
        (2, "created", {}),
        (2, "renamed", {}),
        (2, "modified", {"revision": 3}),
        (0, "created", {"revision": 0}),
        (2, "modified", {"previous": _B1}),
        (2, "modified", {"changed": ["/m"]}),
        (0, "created", {"record": {"id": "A", "n": 7}}),
        (0, "created", {"record": {"id": "A", "n": True}}),
        (0, "created", {"changed": ["/n"]}),
    ],
)
def test_a_wrong_word_is_misclassified(at: int, kind: str, content: dict[str, Any]) -> None:
    """An event with a wrong member is reported as misclassified."""
    story = _story()
    story[at]["type"] = f"org.example.thing.{kind}.v1"
    story[at]["data"] |= content
    assert _judged(story).misclassified


def test_versions_out_of_order_are_misclassified() -> None:
    """An older version published after a newer one is misclassified."""
    log = _LOG[:3]
    events = [_event(1, "created", _A2), _event(2, "modified", _A1, revision=2, previous=_A2, changed=["/n"])]
    assert _judged(events, log=log, upto=0).misclassified


@pytest.mark.parametrize("numbers", [(1, 3), (1, 1), (2, 3), (2, 1)])
def test_numbers_that_do_not_rise_by_one_are_gaps(numbers: tuple[int, int]) -> None:
    """A missing, repeated or decreasing sequence, or one that does not start at 1, is a gap."""
    events = [_event(numbers[0], "created", _A1), _event(numbers[1], "created", _B1)]
    assert _judged(events, upto=2).gaps


def test_numbers_are_equal_by_value_and_never_true() -> None:
    """1 equals 1.0 and not true, every decimal place counts, and null is not absent."""
    assert equal(read("[1, {}]"), read("[1.0, {}]"))
    assert not equal(read("1"), read("true"))
    assert not equal(read("0.1"), read("0.1000000000000000000001"))
    assert differing(read('{"a/b": null, "c": {"d~": [1]}}'), read('{"c": {"d~": [1, 2]}}')) == ["/a~1b", "/c/d~0"]


@pytest.mark.parametrize(
    ("begun_anew", "told", "lost"),
    [
        ((), ["q"], 1),
        (("achievements",), ["q"], 1),
        (("achievements",), ["q", "r"], 1),
        ((), ["r"], 0),
        (("achievements",), ["r"], 0),
        (("things",), ["r"], 0),
    ],
)
def test_achievements_that_nothing_leads_to_need_not_be_found(
    begun_anew: tuple[str, ...], told: list[str], lost: int
) -> None:
    """Achievements are not lost if no published record names their qualification, whether or not after a reset."""
    log = [
        {"version": 1, "resource": "things", "id": "A", "record": {"id": "A", "qualificationID": "q"}},
        {"version": 2, "resource": "achievements", "id": "x", "record": {"id": "x", "qualificationID": "q"}},
        {"version": 3, "resource": "things", "id": "A", "record": {"id": "A", "qualificationID": "r"}},
    ]
    events = [json.dumps(_event(1, "created", {"id": "A", "qualificationID": name})).encode() for name in told]
    verdict = judge(read(json.dumps(log)), {"things": events}, upto=2 if told == ["q"] else 3, begun_anew=begun_anew)
    assert len(verdict.lost) == lost


def test_numbers_go_on_where_the_store_lost_those_before() -> None:
    """After a reset the sequences may start anywhere, and must rise by one from there."""
    told = [json.dumps(_event(sequence, "created", record)).encode() for sequence, record in ((7, _A1), (8, _B1))]
    log = read(json.dumps(_LOG[:2]))
    assert judge(log, {"things": told}, upto=2, begun_anew=("things",)).clean
    assert judge(log, {"things": told}, upto=2).gaps
    assert judge(log, {"things": [told[0], told[0].replace(b"7", b"9")]}, upto=2, begun_anew=("things",)).gaps
