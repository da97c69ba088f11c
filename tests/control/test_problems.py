"""Laws of :mod:`poller.control.problems`: each problem is a sentence with its remedy; a healthy state shows none."""

from __future__ import annotations

import msgspec
import pytest

from poller.changes.plan import RoundCounts
from poller.control.problems import confirmation_text, feed_problems, progress_text, subscription_problems, way_out
from poller.source.feed import Progress
from poller.store.feed_state import FeedState
from poller.store.recovery import STREAM, HighWaterMark, loss_of
from poller.store.stats import Backlog
from tests.control.statuses import NAMES, NOW, feed, subscription


def test_a_problem_is_shown_with_its_remedy() -> None:
    """A pause is shown with who and why, a failure with its remedy."""
    paused = feed(state="paused", paused_by="anna", paused_reason="moving", paused_age_seconds=7200.0)
    assert list(feed_problems(paused)) == [f"paused by anna for 2 h: moving; poller resume {NAMES[0]}"]
    denied = feed(state="failing", error="GET /x: the API answered 401")
    assert list(feed_problems(denied)) == [
        "GET /x: the API answered 401 (check that the credential in auth is right and has not expired)"
    ]
    assert list(feed_problems(feed(state="failing", error="odd"))) == ["odd"]


def test_a_long_round_and_a_confirmation_are_shown() -> None:
    """A long round and a confirmation are stated in words below the table."""
    one = feed(progress=Progress("baseline", 40, 4000, 75.0), confirming=True)
    assert list(feed_problems(one)) == [progress_text(one), confirmation_text(one)]


@pytest.mark.parametrize("state", ["held", "paused"])
def test_held_removals_are_shown_until_released(state: str) -> None:
    """Held removals are shown with number, age and remedy, once, even after a good delta or with a pause."""
    reason = f"12 of 60 records are missing: let it through with: poller release {NAMES[0]}"
    held = feed(state=state, held_reason=reason, held_age_seconds=7200.0)
    assert f"held for 2 h: {reason}" in list(feed_problems(held))
    at_once = msgspec.structs.replace(held, state="held", error=reason)
    assert list(feed_problems(at_once)) == [f"held for 2 h: {reason}"]
    later = msgspec.structs.replace(at_once, error="odd")
    assert list(feed_problems(later)) == [f"held for 2 h: {reason}", "odd"]
    of_before = msgspec.structs.replace(at_once, held_age_seconds=None)
    assert list(feed_problems(of_before)) == [f"held: {reason}"]


_KNOWN = HighWaterMark("g2", 9, ("g1",))


@pytest.mark.parametrize(
    ("state", "found", "remedies"),
    [
        (FeedState("g3", 0, formers=("g2",)), "all", ("poller replay SUBSCRIPTION {feed} --from {at}",)),
        (FeedState("g3", 0, formers=("g2",)), "", ("poller replay SUBSCRIPTION {feed} --from {at}",)),
        (
            FeedState("g2", 9),
            STREAM,
            ("poller resync {feed} --anew --wait", "poller replay SUBSCRIPTION {feed} --from 10m"),
        ),
        (FeedState("g2", 5), "", ("published again, with the same ids", "poller resync {feed} --anew")),
        (FeedState("g1", 5), "", ("published again, with the same ids", "poller resync {feed} --anew")),
        (FeedState("x", 5), "", ("check redis.url and redis.prefix", "--from {at}")),
    ],
    ids=["all", "a part", "the stream", "an older backup", "before a loss", "another installation"],
)
def test_a_loss_is_shown_with_what_to_run(state: FeedState, found: str, remedies: tuple[str, ...]) -> None:
    """A loss is shown for a week, with what happens by itself and the commands that repair the rest."""
    loss = loss_of(_KNOWN, state, found)
    assert loss is not None
    at = "2026-03-02T08:15:00.000Z"
    lost = feed(lost=loss.text, lost_at=at, lost_age_seconds=7200.0)
    [told] = feed_problems(lost)
    assert told.startswith(f"lost 2 h ago: {loss.text}; ")
    for remedy in remedies:
        assert remedy.format(feed=NAMES[0], at=at) in told
    assert list(feed_problems(msgspec.structs.replace(lost, lost_age_seconds=8 * 86400.0))) == []


@pytest.mark.parametrize(
    ("group", "remedy"),
    [
        ("sub:rostering", "see poller subscriptions show rostering; resume, repair or remove it"),
        ("theirs", "let it read and acknowledge them, or delete it with XGROUP DESTROY"),
    ],
)
def test_who_holds_a_stream_is_shown_with_what_to_do(group: str, remedy: str) -> None:
    """A group that needs old events is named, with what to do about a subscription or another program's group."""
    [told] = feed_problems(feed(held_by=group))
    assert told.startswith(f"{group} needs events that are older than retention.age")
    assert told.endswith(remedy)


def test_lost_deliveries_are_shown_until_their_dead_letter_is_dropped() -> None:
    """Deleted events are shown with the commands that name them and repair the receiver, until that is done."""
    lost = subscription("a", state="active", lost=12, dead_letters=1)
    [told] = subscription_problems(lost, NOW)
    assert told.startswith("12 events were deleted before they were delivered")
    assert "poller dead-letters list --subscription a" in told
    assert "poller replay a FEED --from 10m" in told
    assert list(subscription_problems(msgspec.structs.replace(lost, dead_letters=0), NOW)) == []


@pytest.mark.parametrize(("many", "words"), [(1, "a dead letter is kept"), (39, "39 dead letters are kept")])
def test_dead_letters_are_shown_until_they_are_redelivered_or_dropped(many: int, words: str) -> None:
    """Dead letters of a subscription that delivers again are a problem, with the command that lists them."""
    one = subscription("a", state="active", dead_letters=many)
    assert list(subscription_problems(one, NOW)) == [
        f"{words}: see poller dead-letters list --subscription a, then redeliver or drop them"
    ]


def test_a_feed_of_which_nothing_more_is_read_is_shown() -> None:
    """A feed at the limit of scheduled retries is named, with what to do; of a paused subscription nothing is read."""
    feeds = (Backlog(NAMES[0], 7, 3540.0, 1000, 2), Backlog(NAMES[1], 7, 3540.0, 999, 2))
    full = subscription("a", state="active", feeds=feeds, dead_letters=0)
    [told] = subscription_problems(full, NOW)
    assert told.startswith(f"1000 events or more of {NAMES[0]} wait")
    assert NAMES[1] not in told
    assert "retry.schedule" in told
    for other in ({"unlisted": NAMES[:1]}, {"state": "paused", "paused_by": "operator"}):
        [told] = subscription_problems(msgspec.structs.replace(full, **other), NOW)
        assert "nothing more is read" not in told


@pytest.mark.parametrize(
    ("by", "remedy"),
    [
        ("operator", "poller subscriptions resume a"),
        ("sink", "poller subscriptions resume a"),
        ("failures", "poller subscriptions resume a"),
        ("removed", "list it in the file again, or delete it with poller subscriptions remove a"),
    ],
)
def test_a_pause_is_shown_with_the_command_that_ends_it(by: str, remedy: str) -> None:
    """A paused subscription is shown with who, since when and why, and with the command that ends the pause."""
    paused = subscription("a", state="paused", paused_by=by, reason="why", dead_letters=0)
    [told] = subscription_problems(paused, NOW)
    assert told.startswith("paused by ")
    assert told.endswith(f" for 1 h: why; {remedy}")


@pytest.mark.parametrize(("number", "what"), [(1, "a record whose"), (3, "3 records whose")])
def test_records_without_an_id_are_shown_with_the_consequence(number: int, what: str) -> None:
    """Records without an id are shown with their number, the consequence and where to look."""
    [told] = feed_problems(feed(unidentified=number))
    assert f"held {what} id cannot be read, so no record was removed" in told
    assert f"poller dead-letters list {NAMES[0]}" in told


def test_a_feed_with_nothing_to_list_says_so() -> None:
    """A first reading without a page: no qualification is known, and the remedy names what may hide them."""
    [told] = feed_problems(feed(mode="baseline", round=RoundCounts()))
    assert "no qualification is known" in told
    assert "qualificationID" in told
    assert list(feed_problems(feed(mode="baseline", round=RoundCounts(pages=1)))) == []
    assert list(feed_problems(feed(mode="full", round=RoundCounts()))) == []
    assert list(feed_problems(feed(state="failing", mode="baseline", round=RoundCounts()))) == []


def test_versions_that_are_held_back_are_shown() -> None:
    """Versions that are held back are a problem; the number of all older versions is a detail of the feed."""
    [told] = feed_problems(feed(held_versions=3, backwards=81))
    assert told.startswith("3 versions older than the known ones are held back")
    assert list(feed_problems(feed(backwards=81))) == []


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("GET /x: the API answered 401: {}", "auth"),
        ("GET /x: the API answered 403", "permission"),
        ("GET /x: the API answered 404", "base_url"),
        ("GET /x: the API answered 302", "redirects"),
        ("GET /x: the API answered 503 (3 attempts)", "itself fails"),
        ("GET /x: the API answered 429 (3 attempts)", "rate"),
        ("the answer is not a list envelope: expected the key results, found data", '{"results": […], "pageToken"'),
        ("the answer is not a list envelope: Expected `object`, got `array`", "no list of records"),
        ("page 2: the answer is not JSON (54 bytes): JSON is malformed", "pages before it"),
        ("the answer is not a list envelope: Expected `str | null`, got `int` - at `$.pageToken`", "a token has to be"),
        ("GET /x: no complete answer within 30 s (3 attempts)", "timeout"),
    ],
)
def test_each_known_failure_has_its_own(message: str, word: str) -> None:
    """Each known failure has a remedy that names what to set or to ask for."""
    assert word in (way_out(message) or "")


def test_what_is_not_known_has_none() -> None:
    """An unknown failure has no remedy; a number in a name is no status."""
    assert way_out("the listing repeats itself") is None
    assert way_out("record 401 of 500 is odd") is None
