"""Laws of :mod:`poller.source.origin`: another API's records do not take the place of the known ones by themselves."""

from __future__ import annotations

import msgspec
import pytest

from poller.errors import SourceUnavailable
from poller.source.feed import Feed, Mode
from poller.store.state import DELTA_TOKEN, HELD_ORIGIN, ORIGIN
from tests.source.round_sides import FEED, Round, Script, records

HERE = msgspec.structs.replace(FEED, base_url="https://api.example.org/v1", binding="https://api.example.org/v1 u")
MOVED = msgspec.structs.replace(
    HERE,
    base_url="https://new.example.org/v1",
    binding="https://new.example.org/v1 u",
    event_source="https://new.example.org/v1",
)
RENAMED = msgspec.structs.replace(HERE, event_source="urn:acme")


def listing(*subjects: str, delta: str = "d") -> Script:
    script = Script().on(records(*subjects), delta=delta)
    return script.on([], since="d", delta=delta)


async def known(feed: Feed = HERE) -> Round:
    """A feed that has read two records."""
    read = Round(feed)
    read.store.mark("kept", "0 0 0")
    assert (await read(listing("a", "b"))).created == 2
    read.store.mark("kept", "2 0 0")
    return read


@pytest.mark.parametrize("other", [MOVED, RENAMED])
async def test_another_origin_is_held_and_nothing_is_asked_or_published(other: Feed) -> None:
    """Law: the round reads nothing, publishes nothing, moves no token, says why, and is announced once."""
    read = await known()
    before = len(read.store.events), read.kept
    script = listing("c", "d")
    held = await read(script, other)
    assert (held.ok, held.created, held.removed, script.asked) == (False, 0, 0, [])
    assert held.held == held.error == read.store.state.held
    again = await read(script, other)
    assert (again.ok, again.held, again.error) == (False, None, held.error)
    assert (len(read.store.events), read.kept) == before


async def test_the_reason_names_what_differs_and_what_to_do() -> None:
    """Law: both addresses, both ways out; an event source that only follows base_url is not a second difference."""
    read = await known(msgspec.structs.replace(HERE, event_source=HERE.base_url))
    error = (await read(listing("c"), MOVED)).error or ""
    assert f'base_url was "{HERE.base_url}" and is "{MOVED.base_url}" now: nothing is published' in error
    assert "event_source" not in error
    assert "`poller release acme/contractTypes`" in error
    assert "`poller resync acme/contractTypes --anew`" in error


async def test_a_release_publishes_what_differs_and_nothing_else() -> None:
    """Law: the API has moved: what is as it was is silent; a round that fails meanwhile leaves the release standing."""
    read = await known()
    await read(listing(), MOVED)
    read.store.mark("released", "1")
    down = Script().on(SourceUnavailable("down"))
    assert (await read(down, MOVED)).ok is False
    assert read.store.state.origin == HERE.origin.mark
    result = await read(listing("a", "b", "c"), MOVED)
    assert (result.mode, result.ok, result.created, result.unchanged, result.removed) == (Mode.RESYNC, True, 1, 2, 0)
    state = read.store.state
    assert (state.held, state.held_at, state.held_origin, state.released) == (None, None, None, False)
    assert state.origin == MOVED.origin.mark
    assert (await read(listing("a", "b", "c"), MOVED)).mode is Mode.DELTA
    assert (await read(listing("a", "b", "c"), HERE)).ok is False  # and back is a change as well


async def test_the_old_value_put_back_ends_it() -> None:
    """Law: with the known origin again the feed goes on from its token, and nothing is held any more."""
    read = await known()
    await read(listing("c"), MOVED)
    result = await read(listing("a", "b"))
    assert (result.mode, result.ok, result.changes) == (Mode.DELTA, True, 0)
    assert (read.store.state.held, read.store.state.held_origin) == (None, None)


async def test_a_release_of_something_else_does_not_count() -> None:
    """Law: what an operator has released is what was held then; another origin that comes after it is held itself."""
    read = await known()
    read.store.mark("held", "60 of 301 known records are missing")
    read.store.mark("released", "1")
    first = await read(listing("c"), MOVED)
    assert (first.ok, first.held) == (False, first.error)
    assert (await read(listing("c"), MOVED)).ok is False
    read.store.mark("released", "1")
    third = msgspec.structs.replace(MOVED, base_url="https://third.example.org")
    other = await read(listing("c"), third)
    assert (other.ok, other.held) == (False, other.error)
    assert len(read.store.events) == 2


async def test_a_feed_that_knows_no_record_has_no_origin_yet() -> None:
    """Law: an address that was mistyped, or an API without records, holds nobody up when the right one comes."""
    read = Round(HERE)
    read.store.mark("kept", "0 0 0")
    assert (await read(listing())).ok
    result = await read(listing("a"), MOVED)
    assert (result.ok, result.created) == (True, 1)
    assert read.store.state.origin == MOVED.origin.mark


async def test_the_origin_is_written_with_the_first_records() -> None:
    """Law: a first reading that breaks off after its first page is held as well, should it go on at another API."""
    read = Round(HERE)
    read.store.mark("kept", "0 0 0")
    broken = Script().on(records("a"), further="p").on(SourceUnavailable("down"), page="p")
    assert (await read(broken)).created == 1
    first = next(commit for commit in read.store.commits if commit.snapshots)
    assert first.marks == {ORIGIN: HERE.origin.mark}
    read.store.mark("kept", "1 0 0")
    assert (await read(listing("c"), MOVED)).held is not None


async def test_a_store_of_an_older_version_is_read_on() -> None:
    """Law: where no origin is kept the one that is read now becomes known, by the next round that reads something."""
    read = await known()
    del read.store.fields[ORIGIN.encode()]
    assert (await read(listing("a", "b"))).ok
    assert read.store.state.origin == HERE.origin.mark
    del read.store.fields[ORIGIN.encode()]
    read.store.mark("query", "another")
    assert (await read(listing("a", "b"), MOVED)).ok
    assert read.store.state.origin == MOVED.origin.mark


async def test_a_held_round_leaves_the_marks_of_reading_alone() -> None:
    """Law: a held round is no reading: query, token and the moment of the last reading stay."""
    read = await known()
    await read(listing("c"), MOVED)
    marks = read.store.commits[-1].marks
    assert marks[HELD_ORIGIN] == MOVED.origin.mark
    assert not {DELTA_TOKEN, ORIGIN, "query", "read_at", "good_at"} & marks.keys()
