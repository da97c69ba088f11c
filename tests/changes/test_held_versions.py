"""Laws of :mod:`poller.changes.full_readings`: versions that a delta shows, and older ones that are held back."""

from __future__ import annotations

from datetime import timedelta

from poller.changes.full_readings import DeltaVersions, HeldVersion, VersionPolicy, full_reading_due
from poller.changes.records import Record

APART = timedelta(minutes=1)
OLDER, OTHER = b'{"n":1}', b'{"n":2}'
SEEN = 100_000


def reading(*, begun: int | None, now: int) -> VersionPolicy:
    return VersionPolicy(newest=True, begun=begun, now=now, apart=APART)


def held(seen_at: int = SEEN) -> HeldVersion:
    shown = reading(begun=seen_at, now=seen_at).after(None, OLDER)
    assert shown is not None
    return shown


def test_the_minute_passes_before_the_second_reading_begins() -> None:
    """A full reading that begins less than a minute after the first confirms nothing, however long it takes."""
    early, late = reading(begun=SEEN + 59_999, now=SEEN + 3_600_000), reading(begun=SEEN + 60_000, now=SEEN + 60_000)
    assert early.after(held(), OLDER) == held()
    assert late.after(held(), OLDER) is None


def test_a_delta_confirms_nothing() -> None:
    """A delta that returns the held version again does not change what is noted, however late it comes."""
    delta = reading(begun=None, now=SEEN + 3_600_000)
    assert delta.after(held(), OLDER) == held()
    assert delta.after(held(), OTHER) == delta.after(None, OTHER)
    shown = delta.after(None, OTHER)
    assert shown is not None
    assert shown.seen_at == 0


def test_what_only_a_delta_has_shown_begins_with_the_first_full_reading() -> None:
    """Two full readings decide; a version seen in a delta is noted but does not count as one of them."""
    noted = reading(begun=None, now=SEEN).after(None, OLDER)
    assert noted is not None
    full = reading(begun=SEEN + 3_600_000, now=SEEN + 3_600_000).after(noted, OLDER)
    assert full == held(SEEN + 3_600_000)
    assert full_reading_due([noted, held()], apart=APART) == 0
    assert full_reading_due([held()], apart=APART) == SEEN + 60_000
    assert full_reading_due([], apart=APART) is None


def test_what_a_delta_shows_beyond_what_is_remembered_takes_no_memory() -> None:
    """Law: after ten thousand versions none is told from another; the delta as a whole is in doubt."""
    versions, records = DeltaVersions(), [Record(f"r{number}", "r", b"1", None, None) for number in range(10_001)]
    versions.add(records)
    full = [versions.is_full]
    restored = [Record("n", "n", raw, None, None) for raw in (b"1", b"2", b"1")]
    for one in restored:
        assert versions.in_doubt([one], lambda _: (True, None)) == []
        versions.add([one])
    full.append(versions.is_full)
    shown = sum(versions.has_shown(one.key, one.raw) for one in (*records, *restored))
    assert (full, shown) == ([False, True], 10_000)


def test_of_published_records_that_parts_are_compared_with_so_many_members_are_remembered() -> None:
    """Half a million, however many records they are of."""
    versions = DeltaVersions(members=lambda _: frozenset(range(100_000)))
    more = [versions.resume(f"r{number}", Record(f"r{number}", "r", b"1", None, None)) for number in range(5)]
    assert more == [True] * 4 + [False]


def test_of_a_delta_that_was_broken_off_so_many_versions_are_remembered() -> None:
    """Ten thousand, the latest ones."""
    versions = DeltaVersions()
    records = [Record(f"r{number}", "r", b"1", None, None) for number in range(10_000)]
    more = [versions.resume(one.key, one) for one in records]
    assert more == [True] * 9_999 + [False]
