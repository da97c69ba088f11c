"""Laws of :mod:`poller.store.retention`: what is needed stays, what is not goes, and size has the last word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from poller.store.retention import StreamExtent, TrimToLength, TrimUpTo, holder, next_step, pressing
from poller.store.stream import EntryId

PLACES = st.builds(EntryId, st.integers(0, 6), st.sampled_from([0, 1, 2, 2**64 - 1]))
STREAMS = st.sets(PLACES.filter(lambda place: place > (0, 0)), min_size=1)
DONE = st.dictionaries(st.sampled_from("abc"), PLACES)
SMALL = 10


def left(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int = SMALL) -> set[EntryId]:
    """What is left of the entries when every step has been done that is for their age."""
    while True:
        stream = StreamExtent(len(entries), size, min(entries, default=None))
        step = next_step(stream, done, oldest=oldest, max_bytes=SMALL)
        if not isinstance(step, TrimUpTo):
            return entries
        entries = {entry for entry in entries if entry > step.last}


@given(STREAMS, DONE, PLACES)
def test_what_is_needed_or_young_stays_and_all_else_goes(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId
) -> None:
    """Law: exactly the first entries go that are old enough and behind everybody; a second look takes nothing more."""
    stays = {entry for entry in entries if entry >= oldest or any(entry > place for place in done.values())}
    found = left(entries, done, oldest)
    assert found == {entry for entry in entries if stays and entry >= min(stays)}
    assert left(found, done, oldest) == found


@given(STREAMS, DONE, PLACES, PLACES, st.sampled_from("abc"))
def test_who_goes_forward_keeps_less(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, place: EntryId, name: str
) -> None:
    """Law: the further somebody is, and the later it is, the less is left; one more reader never makes it less."""
    found = left(entries, done, oldest)
    further = done | {name: max(place, done[name])} if name in done else done
    assert left(entries, further, max(oldest, place)) <= found
    assert left(entries, done | {"new": place}, oldest) >= found


@given(STREAMS, DONE, PLACES, st.integers(SMALL + 1, 10_000))
def test_size_has_the_last_word(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int) -> None:
    """Law: what is too large loses entries, needed or not, as soon as none may go for its age; what fits loses none."""
    entries = left(entries, done, oldest, size)
    stream = StreamExtent(len(entries), size, min(entries, default=None))
    step = next_step(stream, done, oldest=oldest, max_bytes=SMALL)
    assert (step is not None) == bool(entries)
    if step is not None:
        assert isinstance(step, TrimToLength)
        assert 0 <= step.entries < stream.length
    fits = StreamExtent(stream.length, SMALL, stream.first)
    assert next_step(fits, done, oldest=oldest, max_bytes=SMALL) is None


@given(STREAMS, DONE, PLACES, st.integers(0, 2 * SMALL))
def test_nothing_is_asked_where_nothing_may_go(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int
) -> None:
    """Law: where nothing presses there is nothing to be done, whoever needs what."""
    stream = StreamExtent(len(entries), size, min(entries))
    if not pressing(stream, oldest=oldest, max_bytes=SMALL):
        assert next_step(stream, done, oldest=oldest, max_bytes=SMALL) is None


@given(STREAMS, DONE, PLACES)
def test_who_holds_the_stream_is_named(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId) -> None:
    """Law: of a stream that is trimmed somebody holds the first entry if, and only if, it is old enough to go."""
    entries = left(entries, done, oldest)
    first = min(entries, default=None)
    name = holder(StreamExtent(len(entries), SMALL, first), done, oldest=oldest)
    assert (name is not None) == (first is not None and first < oldest)
    assert name is None or done[name] == min(done.values())
