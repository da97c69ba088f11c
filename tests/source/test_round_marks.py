"""Laws of :mod:`poller.source.round`: how a round starts, and which fields of the state it writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from poller.source.feed import RoundMode, RoundResult
from poller.source.paging import DetectedCapabilities, ListQuery
from poller.source.round import RoundEnd, rotation_marks, round_marks, round_start
from poller.store.feed_state import (
    DELTA_TOKEN,
    DELTA_TOKEN_AT,
    FIELDS,
    GOOD_AT,
    HELD,
    HELD_AT,
    ID_FIELD,
    NEXT_AT,
    OLDEST,
    ORIGIN,
    QUERY,
    READ_AT,
    REFUSALS,
    RELEASED,
    RESYNC,
    ROTATION,
    ROUND,
    ROUND_AT,
    FeedState,
)
from tests.source.test_feed_due_mode import FEED as LISTED

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
TEXT = "2025-03-01T12:00:00.000Z"
HOUR = timedelta(hours=1)
FEED = msgspec.structs.replace(LISTED, slot=timedelta(seconds=5))
READ = FeedState("g", 5, delta_token="d", query=FEED.fingerprint, read_at=NOON - HOUR, refusals=1)  # noqa: S106 -- no secret
GOOD = RoundEnd(
    at=NOON + HOUR,
    result=RoundResult(feed=FEED.id, mode=RoundMode.DELTA, ok=True, pages=1, seconds=0.1),
    complete=True,
    as_before=False,
    delta_token="e",  # noqa: S106 -- no secret
    fields=("id",),
    held=None,
)
FAILED = msgspec.structs.replace(GOOD, result=msgspec.structs.replace(GOOD.result, ok=False), complete=False)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"delta_token": None}, True),
        ({"delta_token": None, "released": True}, False),
        ({"delta_token": None, "held_versions": 1}, False),
        ({"resync": True}, False),
        ({"read_at": None}, False),
        ({}, False),
    ],
)
def test_only_a_listing_that_is_whole_is_asked_for_on_condition(state: dict[str, object], *, expected: bool) -> None:
    """A baseline, a delta, a requested resync or release, and a round with held versions are unconditional."""
    assert round_start(FEED, msgspec.structs.replace(READ, **state), NOON).on_condition is expected


@pytest.mark.parametrize(
    ("state", "resumed"),
    [
        ({"delta_token": None}, True),
        ({"read_at": None}, True),
        ({}, False),
        ({"delta_token": None, "released": True}, False),
        ({"resync": True}, False),
    ],
)
def test_a_rotation_goes_on_unless_all_is_to_be_read(state: dict[str, object], *, resumed: bool) -> None:
    """A rotation goes on from its earlier start, unless everything is to be read."""
    start = round_start(FEED, msgspec.structs.replace(READ, rotation=NOON - HOUR, **state), NOON)
    assert (start.resumed, start.begun) == (resumed, NOON - HOUR if resumed else NOON)


def test_what_was_learnt_of_another_query_does_not_count() -> None:
    """Refusals and detected capabilities of another query do not count; a resync forgets them too."""
    learnt = msgspec.json.encode(DetectedCapabilities(FEED.fingerprint, limit=5)).decode()
    known = msgspec.structs.replace(READ, learnt=learnt)
    same, ordered, another = (
        round_start(feed, state, NOON)
        for feed, state in (
            (FEED, known),
            (FEED, msgspec.structs.replace(known, resync=True)),
            (msgspec.structs.replace(FEED, query=ListQuery(limit=9)), known),
        )
    )
    assert [(one.refusals, one.learnt.limit) for one in (same, ordered, another)] == [(1, 5), (0, None), (0, None)]


def test_a_refused_token_leads_to_a_full_reading_that_counts_it() -> None:
    """A refused token makes the round a resync without a token, and the state counts the refusal."""
    start = round_start(FEED, READ, NOON).without_token()
    assert (start.mode, start.since, start.on_condition) == (RoundMode.RESYNC, None, False)
    assert round_marks(FEED, start, GOOD)[REFUSALS] == "2"


def test_a_round_that_was_not_complete_leaves_its_result_alone() -> None:
    """An incomplete round writes only its result, so that the next round starts from the same state."""
    assert set(round_marks(FEED, round_start(FEED, READ, NOON), FAILED)) == {ROUND, ROUND_AT}


def test_a_delta_moves_the_token_and_what_it_belongs_to() -> None:
    """A delta writes its token, query and origin, but not the time of the last full round."""
    marks = round_marks(FEED, round_start(FEED, READ, NOON), GOOD)
    assert marks.pop(ROUND)
    assert marks == {
        **dict.fromkeys((ROUND_AT, GOOD_AT, DELTA_TOKEN_AT), "2025-03-01T13:00:00.000Z"),
        QUERY: FEED.fingerprint,
        ORIGIN: FEED.origin.mark,
        ID_FIELD: "id",
        FIELDS: '["id"]',
        REFUSALS: None,
        DELTA_TOKEN: "e",
    }


def test_a_delta_without_a_new_token_keeps_the_one_it_came_from() -> None:
    """A delta without a new token keeps its token; a full round without one stores none."""
    end = msgspec.structs.replace(GOOD, delta_token="")
    assert DELTA_TOKEN not in round_marks(FEED, round_start(FEED, READ, NOON), end)
    assert (
        round_marks(FEED, round_start(FEED, msgspec.structs.replace(READ, delta_token=None), NOON), end)[DELTA_TOKEN]
        is None
    )


def test_a_full_reading_takes_off_the_orders_that_it_found() -> None:
    """A full round ends the requests present at its start, no later ones, and stores what is held."""
    state = msgspec.structs.replace(READ, resync=True)
    marks = round_marks(FEED, round_start(FEED, state, NOON), msgspec.structs.replace(GOOD, held="too many"))
    assert {name: marks.get(name, "as it was") for name in (READ_AT, HELD, RESYNC, RELEASED)} == {
        READ_AT: TEXT,
        HELD: "too many",
        RESYNC: None,
        RELEASED: "as it was",
    }


def test_since_when_it_is_held_is_told_by_the_first_reading_that_held_it() -> None:
    """``held_at`` is set by the first round that holds, kept by later ones, and ended by one that holds nothing."""
    first = msgspec.structs.replace(READ, resync=True)
    too_many = msgspec.structs.replace(GOOD, held="too many")
    marks = round_marks(FEED, round_start(FEED, first, NOON), too_many)
    assert marks[HELD_AT] == "2025-03-01T13:00:00.000Z"
    held = msgspec.structs.replace(first, held="too many", held_at=NOON)
    assert round_marks(FEED, round_start(FEED, held, NOON + HOUR), too_many)[HELD_AT] == TEXT
    assert not {HELD, HELD_AT} & set(round_marks(FEED, round_start(FEED, READ, NOON), GOOD))
    over = round_marks(FEED, round_start(FEED, held, NOON + HOUR), GOOD)
    assert (over[HELD], over[HELD_AT]) == (None, None)


def test_a_release_that_comes_while_the_hold_ends_permits_nothing_later() -> None:
    """A release given during the round that ends the hold ends with it; one given while it stays is kept."""
    held = msgspec.structs.replace(READ, resync=True, held="too many", held_at=NOON)
    start = round_start(FEED, held, NOON)
    assert round_marks(FEED, start, GOOD)[RELEASED] is None
    assert RELEASED not in round_marks(FEED, start, msgspec.structs.replace(GOOD, held="too many"))


def test_a_release_of_removals_releases_no_other_api() -> None:
    """A release given during the round that first holds another API is about what was held before."""
    held = msgspec.structs.replace(READ, held="too many", held_at=NOON)
    end = msgspec.structs.replace(FAILED, held="another API")
    assert round_marks(FEED, round_start(FEED, held, NOON), end)[RELEASED] is None
    again = msgspec.structs.replace(held, held_origin=FEED.origin.mark)
    assert RELEASED not in round_marks(FEED, round_start(FEED, again, NOON), end)


def test_a_listing_that_is_as_it_was_counts_as_read() -> None:
    """An unchanged listing renews the time of the last full round, and nothing else of the checkpoint."""
    end = msgspec.structs.replace(GOOD, complete=False, as_before=True)
    assert set(round_marks(FEED, round_start(FEED, READ, NOON), end)) == {ROUND, ROUND_AT, GOOD_AT, READ_AT}


def test_a_rotation_is_marked_until_it_is_over() -> None:
    """A rotation's start is stored until its end; then the time of the oldest reading is."""
    start = round_start(FEED, READ, NOON)
    assert rotation_marks(start, over=False, oldest=None) == {ROTATION: TEXT, OLDEST: None}
    assert rotation_marks(start, over=True, oldest=1_740_830_400_000) == {ROTATION: None, OLDEST: TEXT}


@pytest.mark.parametrize("end", [GOOD, FAILED])
def test_when_the_next_one_is_due_is_left_where_it_is_known(end: RoundEnd) -> None:
    """A round stores when the next one is due, also if it failed; a single round stores nothing."""
    start = round_start(FEED, READ, NOON)
    due = msgspec.structs.replace(end, next_at=NOON)
    assert round_marks(FEED, start, due)[NEXT_AT] == TEXT
    assert NEXT_AT not in round_marks(FEED, start, end)


def test_a_rotation_from_what_is_still_to_come_is_not_gone_on_with() -> None:
    """A rotation that began in the future (the store's clock was set back) starts again now."""
    state = msgspec.structs.replace(READ, delta_token=None, rotation=NOON + HOUR)
    start = round_start(FEED, state, NOON)
    assert (start.resumed, start.begun) == (False, NOON)
    start = round_start(FEED, state, NOON + 2 * HOUR)
    assert (start.resumed, start.begun) == (True, NOON + HOUR)
