"""The judge of deliveries after a data loss in the store: what it accepts and what it reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.harness.after_loss import judge_after_loss
from tests.harness.json_values import read
from tests.harness.requests import Arrived, Ended

if TYPE_CHECKING:
    from tests.harness.delivered import Deliveries
    from tests.harness.requests import Line

_HISTORY = [
    {"version": number, "resource": "things", "id": "a", "record": read(f'{{"id": "a", "n": {number}}}')}
    for number in (1, 2, 3)
]


def _event(name: str, revision: int, shows: int, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "source": "s",
        "subject": "a",
        "type": "t",
        "data": {"revision": revision, "record": {"id": "a", "n": shows}, "cause": "delta"},
        **more,
    }


_FIRST, _FORGOTTEN, _INSTEAD = _event("1", 1, 1), _event("2", 2, 2), _event("2'", 2, 3)


def _judged(
    sent: list[dict[str, Any]], stands: list[dict[str, Any]], *, begun_anew: tuple[str, ...] = ()
) -> Deliveries:
    log: list[Line] = []
    for number, event in enumerate(sent):
        headers = {"content-type": "application/cloudevents+json", "webhook-id": event["id"]}
        log += [
            Arrived(number, "s", number, headers, json.dumps(event).encode()),
            Ended(number, "s", number + 0.5, 204),
        ]
    entries = [(f"{number}-0", json.dumps(event).encode()) for number, event in enumerate(stands)]
    return judge_after_loss(log, {"things": entries}, _HISTORY, None, begun_anew=begun_anew)


def test_what_was_forgotten_may_have_been_sent() -> None:
    """Lost events may have been sent, new ones reuse their revision, and equal changes have equal ids."""
    found = _judged([_FIRST, _FORGOTTEN, _INSTEAD], [_FIRST, _INSTEAD])
    assert found.clean, found
    later = _event("1", 1, 1, recordedtime="later", sequence="7")
    found = _judged([_FIRST, later, _INSTEAD], [later, _INSTEAD])
    assert found.clean, found
    assert len(found.repeats) == 1


def test_what_stands_in_the_stream_has_to_be_taken() -> None:
    """Every event in the stream must be delivered, even if lost events were sent before."""
    assert len(_judged([_FIRST, _FORGOTTEN], [_FIRST, _INSTEAD]).lost) == 1


def test_an_id_means_one_thing() -> None:
    """An id used for another version of a record, or for content that the source never had, is reported."""
    assert len(_judged([_FIRST, _FORGOTTEN, _event("2", 2, 3)], [_FIRST, _FORGOTTEN]).altered) == 1
    assert len(_judged([_FIRST, _event("9", 2, 9)], [_FIRST]).altered) == 1
    assert len(_judged([_FIRST, _event("1", 2, 1)], [_FIRST]).altered) == 1
    assert _judged([_event("1", 1, 1, type="t.created"), _event("1", 1, 1, type="t.modified")], [_FIRST]).clean


def test_a_revision_comes_after_the_one_before() -> None:
    """A skipped revision is reported as out of order."""
    assert len(_judged([_FIRST, _event("3", 3, 3)], [_FIRST]).out_of_order) == 1


def test_what_comes_last_is_what_stands_last() -> None:
    """Repeated events that end with an older one of their record are late, but not what was sent and then lost."""
    second = _event("2", 2, 2)
    found = _judged([_FIRST, second, _FIRST], [_FIRST, second])
    assert (len(found.late), len(found.repeats)) == (1, 1)
    assert _judged([_FIRST, second, _FIRST, second], [_FIRST, second]).clean
    assert _judged([_FIRST, second, _FIRST], [_FIRST]).clean


def test_the_baseline_of_what_was_begun_anew_is_not_told_and_no_other_is_left_out() -> None:
    """The baseline of a reset feed must not be delivered, and the baseline of any other feed must be."""
    baseline = _event("1", 1, 1, data={"revision": 1, "record": {"id": "a", "n": 1}, "cause": "baseline"})
    assert len(_judged([baseline], [baseline], begun_anew=("things",)).unwanted) == 1
    assert _judged([_INSTEAD], [baseline, _INSTEAD], begun_anew=("things",)).clean
    assert _judged([baseline], [baseline], begun_anew=("others",)).clean
    assert len(_judged([], [baseline], begun_anew=("others",)).lost) == 1
    assert len(_judged([_INSTEAD], [baseline, _INSTEAD], begun_anew=("others",)).out_of_order) == 1
