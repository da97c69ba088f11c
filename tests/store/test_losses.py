"""What is found of a feed against what was known of it: a table."""

from __future__ import annotations

import msgspec
import pytest

from poller.store.losses import LATELY, ORDER, STREAM, Remembered, loss_marks, loss_of, told_already
from poller.store.state import ANEW_AT, DELTA_TOKEN, LOST, LOST_AT, READ_AT, FeedState

NOW = 10 * LATELY
KNOWN = Remembered("g2", 10, ("g1",))


@pytest.mark.parametrize(
    ("state", "found", "kind"),
    [
        (FeedState("g2", 10), "", None),
        (FeedState("g2", 11), "", None),
        (FeedState("g2", 9), "", "rolled back"),
        (FeedState("g1", 50), "", "rolled back"),
        (FeedState("g3", 10, formers=("g2", "g1")), "", "lost"),
        (FeedState("g3", 10, formers=("g2", "g1")), "snapshots", "lost"),
        (FeedState("g3", 10, formers=("g2", "g1")), ORDER, None),
        (FeedState("h3", 10, formers=("h2", "g1")), "", "lost"),
        (FeedState("x", 10, formers=("y",)), "", "replaced"),
        (FeedState("x", 99), "", "replaced"),
        (FeedState("x", 99, begun_at=NOW - LATELY), "", "replaced"),
        (FeedState("x", 99, begun_at=NOW - LATELY + 1), "", "lost"),
        (FeedState("g2", 10), STREAM, "lost"),
    ],
)
def test_what_is_found_against_what_was_known(state: FeedState, found: str, kind: str | None) -> None:
    """Law: the generation, those before it and the sequence tell what became of a feed."""
    loss = loss_of(KNOWN, state, found, now_ms=NOW)
    assert (loss.kind if loss else None) == kind
    if loss:
        assert (loss.former, loss.former_sequence, loss.generation) == ("g2", 10, state.generation)


@pytest.mark.parametrize(("found", "kind"), [("", None), ("new", None), ("snapshots", "lost"), (STREAM, "lost")])
def test_without_a_memory_only_what_is_missing_tells(found: str, kind: str | None) -> None:
    """Law: a first start is no loss; a half that is missing is one, whoever finds it."""
    loss = loss_of(None, FeedState("g", 5), found, now_ms=NOW)
    assert (loss.kind if loss else None) == kind


@pytest.mark.parametrize(
    ("noted", "told"),
    [
        (None, False),
        (Remembered("g2", 10, ("g1",), 0), False),
        (Remembered("g2", 4, ("g1",), 1), True),
        (Remembered("g3", 10, ("g2", "g1"), 1), True),
        (Remembered("h3", 10, ("h2", "g1"), 1), True),
        (Remembered("x", 10, (), 9), False),
    ],
)
def test_who_comes_second_knows_it(noted: Remembered | None, told: bool) -> None:
    """Law: a loss that another process has noted of the same feed is known; a note of another feed says nothing."""
    assert told_already(KNOWN, noted) is told


def test_only_a_replaced_feed_is_read_as_a_baseline_over_what_it_holds() -> None:
    """Law: the marks say what and when; what another installation has written is kept and its token not used."""
    lost = loss_of(KNOWN, FeedState("g2", 1), "", now_ms=1000)
    foreign = FeedState("x", 1, begun_at=NOW - LATELY)
    replaced = loss_of(KNOWN, foreign, "", now_ms=NOW)
    assert lost is not None
    assert replaced is not None
    said = {LOST: lost.text, LOST_AT: "1970-01-01T00:00:01.000Z"}
    assert loss_marks(lost, FeedState("g2", 1), now_ms=1000) == said
    marks = {READ_AT: None, DELTA_TOKEN: None, ANEW_AT: str(NOW)}
    assert marks.items() <= loss_marks(replaced, foreign, now_ms=NOW).items()


def test_what_was_begun_lately_was_begun_by_who_had_not_heard_of_it() -> None:
    """Law: it goes on as it is, for it has published what changed since; and it is anew since it was begun."""
    state = FeedState("x", 1, begun_at=NOW - 5)
    loss = loss_of(KNOWN, state, "", now_ms=NOW)
    assert loss is not None
    assert loss.kind == "lost"
    assert loss_marks(loss, state, now_ms=NOW).keys() == {LOST, LOST_AT, ANEW_AT}
    assert loss_marks(loss, state, now_ms=NOW)[ANEW_AT] == str(NOW - 5)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (STREAM, FeedState("g2", 10, begun_at=NOW)),
        ("snapshots", FeedState("x", 10, formers=("g1",), begun_at=1, anew_at=2)),
    ],
)
def test_nothing_else_is_anew_by_the_telling(found: str, state: FeedState) -> None:
    """Law: what lacks its stream alone goes on; what was begun anew already says since when."""
    loss = loss_of(KNOWN, state, found, now_ms=NOW)
    assert loss is not None
    assert ANEW_AT not in loss_marks(loss, state, now_ms=NOW)


def test_what_is_remembered_survives_being_written() -> None:
    """Law: one that is read is the one that was written."""
    assert msgspec.json.decode(msgspec.json.encode(KNOWN), type=Remembered) == KNOWN
