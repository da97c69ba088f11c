"""Laws of :mod:`poller.source.removing`: what a full reading does not hold is removed if it is gone, and only then."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import pytest

from poller.changes.removal import Breaker
from poller.errors import SourceRefused, SourceUnavailable
from poller.source.feed import Feed, Mode
from poller.source.resources import KNOWN, Resource
from tests.source.round_sides import FEED, Round, Script, records

FULL = msgspec.structs.replace(FEED, delta=False)
MANY = tuple(f"r{number}" for number in range(300))
POSITIONS = msgspec.structs.replace(FULL, resource=Resource("positions", "position", "/positions"))


async def has(feed: Feed, *subjects: str) -> Round:
    """A feed that has read these records."""
    read = Round(feed)
    assert (await read(Script().on(records(*subjects), path=feed.resource.path))).ok
    return read


def listing(feed: Feed, subjects: Iterable[str], *, gone: Iterable[str] = (), still: Iterable[str] = ()) -> Script:
    """An API that lists these, says 404 to some others, and still knows the rest."""
    script = Script().on(records(*subjects), path=feed.resource.path)
    for subject in gone:
        script.on(SourceRefused("not there", status=404), path=f"{feed.resource.path}/{subject}")
    for subject in still:
        script.on([], path=f"{feed.resource.path}/{subject}")
    return script


async def test_what_is_gone_is_removed_and_what_the_listing_forgot_is_not() -> None:
    """7 of 300 are gone, 5 the listing forgets: seven events, and the five are asked for again next time."""
    read = await has(FULL, *MANY)
    listed, gone, still = MANY[12:], MANY[:7], MANY[7:12]
    result = await read(listing(FULL, listed, gone=gone, still=still))
    assert (result.mode, result.ok, result.removed, result.unchanged) == (Mode.FULL, True, 7, 288)
    assert [(subject, kind) for subject, kind, _ in read.causes[300:]] == [(subject, "removed") for subject in gone]
    event = read.store.events[-1]
    assert "record" not in event["data"]
    assert event["data"]["previous"]["id"] == "r6"
    assert (event["data"]["revision"], event["data"]["cause"]) == (2, "full")
    again = await read(listing(FULL, listed, still=still))
    assert (again.ok, again.removed, again.changes) == (True, 0, 0)


async def test_an_integer_is_removed_as_itself() -> None:
    """Of the ids 1 and "1" the one that is gone is removed and the other is not; each is asked for by its id."""
    both = [{"id": 1}, {"id": "1"}, {"id": 2}]
    for gone in both[:2]:
        read = Round(FULL)
        await read(Script().on(both))
        script = Script().on([record for record in both if record != gone])
        result = await read(script.on(SourceRefused("not there", status=404), path="/contractTypes/1"))
        assert (result.ok, result.removed, result.unchanged) == (True, 1, 2)
        assert [asked for asked, _ in script.asked[1:]] == ["/contractTypes/1"]
        assert (read.causes[-1], read.store.events[-1]["data"]["previous"]) == (("1", "removed", "full"), gone)


async def test_a_record_that_returns_is_created_and_goes_on_counting() -> None:
    """After removed comes created, one revision further, also where its content is the same."""
    read = await has(FULL, "a", "b")
    await read(listing(FULL, ["a"], gone=["b"]))
    result = await read(listing(FULL, ["a", "b"]))
    assert (result.created, result.unchanged) == (1, 1)
    assert [
        (kind, event["data"]["revision"]) for (_, kind, _), event in zip(read.causes, read.store.events, strict=True)
    ][-2:] == [("removed", 2), ("created", 3)]
    assert len({event["id"] for event in read.store.events}) == 4


async def test_without_a_single_record_endpoint_a_second_full_reading_decides() -> None:
    """Missing once says nothing, missing twice in a row is gone; being seen in between starts anew."""
    read = await has(POSITIONS, "a", "b", "c")
    assert (await read(listing(POSITIONS, ["a"]))).removed == 0
    assert (await read(listing(POSITIONS, ["a", "b"]))).removed == 1
    assert read.causes[-1][:2] == ("c", "removed")
    assert (await read(listing(POSITIONS, ["a"]))).removed == 0
    assert (await read(listing(POSITIONS, ["a"]))).removed == 1
    assert read.causes[-1][:2] == ("b", "removed")
    assert (await read(listing(POSITIONS, ["a"]))).changes == 0


async def test_nothing_for_everything_is_held_until_it_is_released() -> None:
    """An empty answer removes nothing and says so; deltas would go on, and a release lets it through."""
    read = await has(FULL, "a", "b")
    held = await read(listing(FULL, []))
    assert (held.ok, held.removed) == (False, 0)
    assert "2 of 2 known records are missing" in (held.error or "")
    assert "poller release acme/contractTypes" in (held.error or "")
    assert read.store.state.held == held.error
    read.store.mark("released", "yes")
    result = await read(listing(FULL, [], gone=["a", "b"]))
    assert (result.ok, result.removed) == (True, 2)
    assert (read.store.state.held, read.store.state.released) == (None, False)


async def test_a_held_feed_heals_when_the_records_are_back() -> None:
    """All back after an empty answer: no event, nothing held any more."""
    read = await has(FULL, "a", "b")
    await read(listing(FULL, []))
    result = await read(listing(FULL, ["a", "b"]))
    assert (result.ok, result.changes, read.store.state.held) == (True, 0, None)


async def test_too_many_at_once_are_held() -> None:
    """More than the share, and more than a few: held. The new and changed ones of the same reading are published."""
    read = await has(FULL, *MANY)
    held = await read(listing(FULL, [*MANY[60:], "new"]))
    assert (held.ok, held.removed, held.created) == (False, 0, 1)
    assert "60 of 301" in (held.error or "")


async def test_a_delta_feed_that_is_released_is_read_in_full_at_once() -> None:
    """A release does not wait for the next reconcile."""
    read = await has(FEED, "a")
    read.store.mark("delta_token", "d1")
    read.store.mark("released", "yes")
    result = await read(Script().on(records("a"), delta="d2"))
    assert (result.mode, read.kept) == (Mode.RECONCILE, "d2")


async def test_reconcile_finds_what_deltas_never_show() -> None:
    """The API's deltas hold no deletes; once in a while the feed is read in full."""
    feed = msgspec.structs.replace(FEED, reconcile=timedelta(hours=24))
    read = Round(feed)
    await read(Script().on(records("a", "b"), delta="d1"))
    quiet = Script().on([], since="d1", delta="d1")
    assert (await read(quiet)).mode == Mode.DELTA
    read.clock.pass_by(timedelta(hours=24))
    result = await read(listing(FEED, ["a"], gone=["b"]))
    assert (result.mode, result.removed) == (Mode.RECONCILE, 1)


@pytest.mark.parametrize("failure", [SourceUnavailable("no answer"), SourceRefused("forbidden", status=403)])
async def test_what_cannot_be_confirmed_is_not_removed(failure: SourceRefused | SourceUnavailable) -> None:
    """A record that cannot be asked for stays, and the round fails."""
    read = await has(FULL, "a", "b")
    script = listing(FULL, ["a"]).on(failure, path="/contractTypes/b")
    result = await read(script)
    assert (result.ok, result.removed, result.error) == (False, 0, str(failure))


async def test_an_incomplete_reading_removes_nothing() -> None:
    """A page that fails says nothing about what it would have held."""
    read = await has(FULL, "a", "b")
    script = Script().on(records("a"), further="p").on(SourceUnavailable("no answer"), page="p")
    result = await read(script)
    assert (result.ok, result.removed) == (False, 0)
    assert [path for path, _ in script.asked] == ["/contractTypes"] * 2


async def test_switched_off_nothing_is_looked_for() -> None:
    """With removals off, absence is nobody's business."""
    read = await has(msgspec.structs.replace(FULL, removals=False), "a", "b")
    result = await read(listing(FULL, ["a"]))
    assert (result.ok, result.removed) == (True, 0)


async def test_a_qualification_that_is_gone_takes_its_achievements_with_it_after_confirmation() -> None:
    """404 on a listing counts as empty, and a second reading has to say the same before anything is removed."""
    one, two = "0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b51", "0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b52"
    feed = msgspec.structs.replace(
        FULL, resource=KNOWN["achievements"], qualifications=(one, two), breaker=Breaker(None, None)
    )
    paths = {name: f"/qualifications/{name}/achievements" for name in (one, two)}

    def api(*, gone: bool) -> Script:
        script = Script().on([{"id": "x", "qualificationID": one}], path=paths[one])
        absent = SourceRefused("no such qualification", status=404)
        return script.on(absent if gone else [{"id": "y", "qualificationID": two}], path=paths[two])

    read = Round(feed)
    await read(api(gone=False))
    assert (await read(api(gone=True))).removed == 0
    assert (await read(api(gone=True))).removed == 1
    assert read.store.events[-1]["source"].endswith(paths[two])
    assert read.causes[-1][:2] == ("y", "removed")


def test_the_breaker_holds_what_looks_like_a_fault() -> None:
    """The table of the rule."""
    default = Breaker()
    table = [
        (default, 0, 100, True, False),
        (default, 50, 60, True, False),  # few
        (default, 51, 500, True, True),  # more than a tenth
        (default, 51, 511, True, False),
        (default, 1, 1, False, True),  # nothing for everything
        (Breaker(None, 3), 3, 10, True, False),
        (Breaker(None, 3), 4, 10, True, True),
        (Breaker(None, None), 10, 10, False, False),  # off
    ]
    for breaker, missing, live, anything, holds in table:
        assert breaker.holds(missing=missing, live=live, anything_read=anything) is holds
