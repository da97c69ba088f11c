"""What is found of a feed against what was known of it: a table."""

from __future__ import annotations

import msgspec
import pytest

from poller.store.losses import ORDER, STREAM, Remembered, loss_marks, loss_of, told_already
from poller.store.state import ANEW_AT, DELTA_TOKEN, LOST, LOST_AT, READ_AT, FeedState

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
        (FeedState("g2", 10), STREAM, "lost"),
    ],
)
def test_what_is_found_against_what_was_known(state: FeedState, found: str, kind: str | None) -> None:
    """Law: the generation, those before it and the sequence tell what became of a feed."""
    loss = loss_of(KNOWN, state, found)
    assert (loss.kind if loss else None) == kind
    if loss:
        assert (loss.former, loss.former_sequence, loss.generation) == ("g2", 10, state.generation)


@pytest.mark.parametrize(("found", "kind"), [("", None), ("new", None), ("snapshots", "lost"), (STREAM, "lost")])
def test_without_a_memory_only_what_is_missing_tells(found: str, kind: str | None) -> None:
    """Law: a first start is no loss; a half that is missing is one, whoever finds it."""
    loss = loss_of(None, FeedState("g", 5), found)
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
    lost, replaced = loss_of(KNOWN, FeedState("g2", 1), ""), loss_of(KNOWN, FeedState("x", 1), "")
    assert lost is not None
    assert replaced is not None
    said = {LOST: lost.text, LOST_AT: "1970-01-01T00:00:01.000Z"}
    assert loss_marks(lost, now_ms=1000) == said
    assert {READ_AT: None, DELTA_TOKEN: None, ANEW_AT: "1000"}.items() <= loss_marks(replaced, now_ms=1000).items()


def test_what_is_remembered_survives_being_written() -> None:
    """Law: one that is read is the one that was written."""
    assert msgspec.json.decode(msgspec.json.encode(KNOWN), type=Remembered) == KNOWN
