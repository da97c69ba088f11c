"""Laws of :mod:`tests.chaos.plan`: the plan depends on the seed alone."""

from __future__ import annotations

import pytest

from tests.chaos.plan import only, planned

_TIMES = {"a": 7, "b": 4, "c": 1}
_MOST = {"a": 3, "b": 2, "c": 5}


def test_the_same_seed_gives_the_same_plan() -> None:
    """One seed gives the same chapters, order and moments; another seed gives others."""
    assert planned(_TIMES, 5, most=_MOST) == planned(_TIMES, 5, most=_MOST)
    assert planned(_TIMES, 5, most=_MOST) != planned(_TIMES, 6, most=_MOST)


def test_each_fault_strikes_as_often_as_asked() -> None:
    """The strikes of a fault are spread over chapters of limited size, and add up to the requested number."""
    chapters = planned(_TIMES, 5, most=_MOST)
    for name, times in _TIMES.items():
        sizes = [len(chapter.strikes) for chapter in chapters if chapter.fault == name]
        assert sum(sizes) == times
        assert max(sizes) <= _MOST[name]


def test_a_chapter_can_be_played_without_the_others() -> None:
    """A chapter's plan does not depend on others, and is the beginning of a longer one."""
    (alone,) = only(planned({"a": 2}, 5, most={"a": 9}), ["a:1"])
    (among,) = only(planned(_TIMES, 5, most={"a": 9, "b": 1, "c": 1}), ["a:1"])
    assert among.strikes[:2] == alone.strikes
    assert among.seed == alone.seed


def test_only_some_are_played() -> None:
    """Faults and chapters are chosen by name; an unknown name is an error."""
    chapters = planned(_TIMES, 5, most=_MOST)
    assert {chapter.name for chapter in only(chapters, ["b", "a:2"])} == {"a:2", "b:1", "b:2"}
    with pytest.raises(ValueError, match="nothing is planned of d, e"):
        only(chapters, ["a", "e", "d"])
