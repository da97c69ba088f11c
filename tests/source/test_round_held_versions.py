"""Laws of ``versions = "newest"``: an older version of a record is held until two full rounds have shown it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from poller.changes.full_readings import MOST_PUT_OFF
from poller.errors import SourceNotAsked, SourceRefused, SourceUnavailable
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.store.feed_state import RECHECK_AT
from tests.source.round_sides import ACHIEVEMENTS, DAY, FEED, Round, Script

NEWEST = msgspec.structs.replace(FEED, newest=True)
FULL = msgspec.structs.replace(NEWEST, delta=False)
OLD, NEW, NEWER = "2025-03-01T08:00:00Z", "2025-03-01T09:00:00Z", "2025-03-01T10:00:00Z"
MINUTE = 60_000
LONG = 2 * MINUTE


def version(at: str | None, value: int = 1, subject: str = "a") -> dict[str, Any]:
    return {"id": subject, "n": value, "lastModifiedAt": at}


async def known(feed: Feed = FULL) -> Round:
    """A feed that knows the version of nine o'clock."""
    read = Round(feed)
    assert (await shown(read, version(NEW, 2))).created == 1
    return read


async def shown(read: Round, *records: dict[str, Any], later: int = 0) -> RoundResult:
    """A full round that lists these records, this number of milliseconds after the one before."""
    read.store.now_ms += later
    result = await read(Script().on(list(records), delta="d1"))
    assert result.ok
    return result


def values(read: Round) -> list[int]:
    """The published values, in order."""
    return [event["data"]["record"]["n"] for event in read.store.events]


async def test_versions_that_go_backwards_are_published_and_counted() -> None:
    """Without the setting an older version is published, and the state counts it."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    results = [await shown(read, version(at, n)) for at, n in ((OLD, 1), (NEW, 2), (NEWER, 3), (None, 4), (OLD, 5))]
    assert [result.backwards for result in results] == [1, 0, 0, 0, 0]
    assert (values(read), read.store.state.backwards) == ([2, 1, 2, 3, 4, 5], 1)


async def test_an_older_version_is_published_when_two_readings_a_minute_apart_have_shown_it() -> None:
    """An older version is held and counted once; a full round a minute later publishes it."""
    read = await known()
    results = [await shown(read, version(OLD), later=later) for later in (MINUTE, MINUTE // 2, MINUTE // 3)]
    assert [(result.changes, result.unchanged, result.backwards) for result in results] == [
        (0, 1, 1),
        (0, 1, 0),
        (0, 1, 0),
    ]
    assert [result.held_versions for result in results] == [1, 1, 1]
    assert (values(read), read.store.state.held_versions) == ([2], 1)
    result = await shown(read, version(OLD), later=MINUTE)
    assert (result.modified, result.backwards, result.held_versions) == (1, 0, 0)
    assert (values(read), read.store.held, read.store.state.held_versions) == ([2, 1], {}, 0)
    assert (read.store.state.second_look, read.store.state.backwards) == (None, 1)
    assert (await shown(read, version(OLD), later=MINUTE)).changes == 0


@pytest.mark.parametrize(
    ("between", "published"), [(version(NEW, 2), []), (version(NEWER, 3), [3]), (version(None, 4), [4])]
)
async def test_any_other_version_in_between_ends_the_wait(between: dict[str, Any], published: list[int]) -> None:
    """The known version, a newer one, or one without a time ends a held version."""
    read = await known()
    await shown(read, version(OLD))
    await shown(read, between, later=LONG)
    assert (values(read)[1:], read.store.held, read.store.state.second_look) == (published, {}, None)
    await shown(read, version(OLD), later=LONG)
    assert values(read)[1:] == (published if between["lastModifiedAt"] else [*published, 1])


async def test_another_older_version_begins_anew() -> None:
    """Both rounds have to show the same older version; each other one is counted too."""
    read = await known()
    for value in (5, 6, 5):
        assert (await shown(read, version(OLD, value), later=LONG)).changes == 0
    assert (values(read), read.store.state.backwards) == ([2], 3)
    assert (await shown(read, version(OLD, 5), later=LONG)).modified == 1


async def test_a_reading_without_the_record_ends_the_wait() -> None:
    """A full round without the record ends its held version; the next one is held from then on."""
    read = await known()
    await shown(read, version(OLD), version(NEW, 7, "b"))
    script = Script().on([version(NEW, 7, "b")], delta="d1").on([], path="/contractTypes/a")
    read.store.now_ms += LONG
    assert (await read(script)).ok
    assert (read.store.held, read.store.state.held_versions) == ({}, 0)
    assert (await shown(read, version(OLD), version(NEW, 7, "b"), later=LONG)).changes == 0


async def test_two_backends_in_turn_publish_nothing_old() -> None:
    """If two backends alternate between a version and an older one, no event is published; each is counted."""
    read = await known()
    for _ in range(20):
        await shown(read, version(OLD), later=LONG)
        await shown(read, version(NEW, 2), later=LONG)
    assert (values(read), read.store.state.backwards) == ([2], 20)


async def test_of_two_versions_in_one_reading_the_newer_counts() -> None:
    """Of two versions in one full round the newer counts, and nothing is held."""
    read = await known()
    for first, second in ((OLD, NEWER), (NEWER, OLD)):
        script = Script().on([version(first, 1 if first == OLD else 3)], further="p", delta="d1")
        script.on([version(second, 1 if second == OLD else 3)], page="p")
        read.store.now_ms += LONG
        assert (await read(script)).ok
    assert values(read) == [2, 3]


async def test_what_a_delta_shows_asks_for_full_readings() -> None:
    """An older version in a delta is held; the next round is a full one, and a second follows a minute later."""
    read = await known(NEWEST)
    delta = Script().on([version(OLD)], since="d1", delta="d2")
    result = await read(delta)
    assert (result.mode, result.changes, result.held_versions, read.kept) == (RoundMode.DELTA, 0, 1, "d2")
    assert result.second_look == timedelta()
    first = await shown(read, version(OLD), later=1)
    assert (first.mode, first.changes) == (RoundMode.RECONCILE, 0)
    assert first.second_look is not None
    assert timedelta(seconds=55) < first.second_look <= timedelta(minutes=1)
    read.store.now_ms += MINUTE // 2
    quiet = await read(Script().on([], since="d1", delta="d1"))
    assert (quiet.mode, quiet.changes) == (RoundMode.DELTA, 0)
    second = await shown(read, version(OLD), later=MINUTE)
    assert (second.mode, second.modified, second.second_look) == (RoundMode.RECONCILE, 1, None)
    assert values(read) == [2, 1]


async def test_full_readings_for_what_cannot_be_decided_are_a_minute_apart() -> None:
    """While a held record is unusable, full rounds are a minute apart, with deltas in between."""
    read = await known(NEWEST)
    await read(Script().on([version(OLD)], since="d1", delta="d2"))
    for _ in range(3):
        read.store.now_ms += LONG
        result = await read(Script().page(b'{"id":"a","n":1,"n":2}'))
        assert (result.ok, result.mode, result.held_versions) == (True, RoundMode.RECONCILE, 1)
        read.store.mark("delta_token", "d2")
        read.store.now_ms += 1
        assert (await read(Script().on([], since="d2", delta="d2"))).mode is RoundMode.DELTA


async def test_a_reading_that_broke_off_is_made_again() -> None:
    """While a version is held a full round stays due, even after failed ones."""
    read = await known(NEWEST)
    await read(Script().on([version(OLD)], since="d1", delta="d2"))
    for _ in range(2):
        away = SourceUnavailable("no answer")
        result = await read(Script().on(away).on(away, since="d2"))
        assert (result.ok, result.mode) == (False, RoundMode.RECONCILE)
    assert (await shown(read, version(OLD))).mode is RoundMode.RECONCILE


async def test_switched_off_what_was_held_back_is_published() -> None:
    """Without the setting, a full round publishes the held versions."""
    read = await known(NEWEST)
    await read(Script().on([version(OLD)], since="d1", delta="d2"))
    await shown(read, version(OLD))
    last = msgspec.structs.replace(NEWEST, newest=False)
    result = await read(Script().on([version(OLD)], delta="d3"), last)
    assert (result.mode, result.modified, result.backwards) == (RoundMode.RECONCILE, 1, 0)
    assert (values(read), read.store.held, read.store.state.second_look) == ([2, 1], {}, None)


async def test_a_server_whose_clock_is_set_back_publishes_later_and_not_never() -> None:
    """If the server's clock is set back, held versions are published later."""
    read = await known(NEWEST)
    await read(Script().on([version(OLD)], since="d1", delta="d2"))
    await shown(read, version(OLD))
    read.store.now_ms -= 24 * 60 * MINUTE
    again = await shown(read, version(OLD))
    assert (again.mode, again.changes) == (RoundMode.RECONCILE, 0)
    assert (await shown(read, version(OLD), later=LONG)).modified == 1


async def test_a_removed_record_that_returns_in_an_older_version_is_created() -> None:
    """A removed record that returns in an older version is created."""
    read = await known()
    await shown(read, version(OLD), version(NEW, 7, "b"))
    gone = Script().on([version(NEW, 7, "b")]).on(SourceRefused("gone", status=404), path="/contractTypes/a")
    assert (await read(gone)).removed == 1
    result = await shown(read, version(OLD), version(NEW, 7, "b"))
    assert (result.created, result.held_versions) == (1, 0)


async def test_what_is_held_back_was_not_missing() -> None:
    """A record that shows an older version is not missing; the count of missing rounds starts again."""
    feed = msgspec.structs.replace(
        ACHIEVEMENTS, newest=True, qualifications=("q1",), breaker=msgspec.structs.replace(FEED.breaker, percent=None)
    )
    path = "/qualifications/q1/achievements"
    other = version(NEW, 7, "b")
    read = Round(feed)
    results = [
        await read(Script().on(listed, path=path))
        for listed in ([version(NEW, 2), other], [other], [version(OLD), other], [other], [other])
    ]
    assert [result.removed for result in results] == [0, 0, 0, 0, 1]


async def test_held_versions_that_the_store_has_lost_ask_for_one_reading() -> None:
    """Where nothing is held any more, the feed goes back to deltas after the reading that found it so."""
    read = Round(NEWEST)
    newer, older = ([{"id": "a", "lastModifiedAt": f"2025-01-0{day}T00:00:00Z"}] for day in (5, 3))
    await read(Script().on(newer, delta="d1"))
    assert (await read(Script().on(older, since="d1", delta="d2"))).held_versions == 1
    read.store.held.clear()
    read.store.now_ms += 3_600_000
    script = Script().on(newer, delta="d3").on([], since="d2", delta="d3").on([], since="d3", delta="d3")
    assert [(await read(script)).mode for _ in range(2)] == ["reconcile", "delta"]
    assert (read.store.state.held_versions, read.store.state.second_look) == (0, None)


# Of a record that stands on several pages of a listing the newer version counts, whichever came first.


async def shown_on(read: Round, *pages: list[dict[str, Any]], path: str = "/contractTypes") -> RoundResult:
    """A full round of a listing of these pages, more than a minute after the one before."""
    read.store.now_ms += LONG
    script = Script()
    for number, page in enumerate(pages):
        further = str(number + 1) if number + 1 < len(pages) else None
        script.on(page, path=path, page=str(number) if number else None, further=further)
    result = await read(script)
    assert result.ok
    return result


BOTH = [version(NEW, 2)], [version(OLD, 1)]


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("pages", [BOTH, BOTH[::-1], [*BOTH, []], [*BOTH, BOTH[1]]], ids=str)
async def test_an_older_version_on_another_page_is_never_published(pages: list[Any], newest: bool) -> None:
    """However often such a listing is read, nothing has changed, and nothing is held or counted as going back."""
    read = await known(msgspec.structs.replace(FULL, newest=newest))
    for _ in range(3):
        result = await shown_on(read, *pages)
        assert (result.changes, result.unchanged, result.backwards) == (0, sum(map(len, pages)), 0)
    assert (values(read), read.store.held, read.store.state.second_look) == ([2], {}, None)


@pytest.mark.parametrize("pages", [BOTH, BOTH[::-1]], ids=str)
async def test_an_older_version_on_another_page_of_one_of_many_listings_is_never_published(pages: list[Any]) -> None:
    """Each of many listings is read like the only one of a feed."""
    path = "/qualifications/q1/achievements"
    read = Round(msgspec.structs.replace(ACHIEVEMENTS, qualifications=("q1",)))
    await shown_on(read, BOTH[0], path=path)
    assert [(await shown_on(read, *pages, path=path)).changes for _ in range(3)] == [0, 0, 0]
    assert values(read) == [2]


@pytest.mark.parametrize("pages", [BOTH, BOTH[::-1]], ids=str)
async def test_a_silent_first_reading_keeps_the_newer_version(pages: list[Any]) -> None:
    """The reading after it finds no change."""
    read = Round(msgspec.structs.replace(FULL, silent_baseline=True))
    await shown_on(read, *pages)
    assert [(await shown_on(read, *pages)).changes for _ in range(2)] == [0, 0]
    assert values(read) == []


@pytest.mark.parametrize(
    "pages",
    [
        [[version(OLD)], [version(NEW, 7, "b")]],
        [[version(NEW, 7, "b")], [version(OLD)]],
        [[version(OLD)], [version(OLD), version(NEW, 7, "b")]],
        [[version(OLD), version(OLD)], [version(NEW, 7, "b")]],
    ],
    ids=str,
)
async def test_a_restored_record_is_published_when_all_pages_are_read(pages: list[Any]) -> None:
    """A version that is the newest of its listing is published once, although it is older than the known one."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    result = await shown_on(read, *pages)
    assert (result.modified, result.created, result.backwards) == (1, 1, 1)
    assert values(read) == [2, 7, 1]
    assert (await shown_on(read, *pages)).changes == 0


async def test_of_the_only_page_records_are_published_in_its_order() -> None:
    """No other page can have a newer version."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    await shown_on(read, [version(OLD), version(NEW, 7, "b")])
    assert values(read) == [2, 1, 7]


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("newer", [version(NEWER, 3), version(None, 3)], ids=str)
async def test_what_another_page_shows_later_is_published_alone(newer: dict[str, Any], newest: bool) -> None:
    """A newer version, or one without a time that comes last, makes the older one void."""
    read = await known(msgspec.structs.replace(FULL, newest=newest))
    result = await shown_on(read, [version(OLD)], [newer])
    assert (result.modified, result.unchanged, result.backwards) == (1, 1, 0)
    assert (values(read), read.store.held) == ([2, 3], {})


@pytest.mark.parametrize("turned", [False, True])
async def test_of_two_older_versions_on_two_pages_the_newer_is_published(turned: bool) -> None:
    """The known version is on no page."""
    read = Round(msgspec.structs.replace(FULL, newest=False))
    await shown(read, version(NEWER, 3))
    pages = [[version(NEW, 2)], [version(OLD, 1)]]
    result = await shown_on(read, *(pages[::-1] if turned else pages))
    assert (result.modified, values(read)) == (1, [3, 2])
    assert (await shown_on(read, *pages)).changes == 0


async def test_a_restored_record_is_published_though_a_later_page_fails() -> None:
    """Nothing of a page that was read is lost: an API may fail at a page for ever."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    script = Script().on([version(OLD)], further="p").on(SourceUnavailable("no answer"), page="p")
    result = await read(script)
    assert (result.ok, result.modified, values(read)) == (False, 1, [2, 1])


async def test_an_older_version_waits_while_a_list_is_not_asked_because_others_have_failed() -> None:
    """The list itself has not failed, and a later page may have the newer version."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    script = Script().on([version(OLD)], further="p").on(SourceNotAsked("not asked"), page="p")
    assert ((await read(script)).ok, values(read)) == (False, [2])
    assert ((await shown_on(read, *BOTH[::-1])).changes, values(read)) == (0, [2])
    await shown_on(read, [version(OLD)], [version(NEW, 7, "b")])
    assert values(read) == [2, 7, 1]


async def test_a_restored_record_is_published_where_a_page_token_expires() -> None:
    """The listing is read from its first page again: what it showed before that does not count."""
    read = await known(msgspec.structs.replace(FULL, newest=False))

    class Expiring(Script):
        async def get(self, path: str, params: Any) -> bytes:
            if dict(params).get("pageToken") == "p" and len(self.asked) == 1:
                self.on([version(OLD)], further="p").on([version(NEW, 7, "b")], page="p")
                self.asked.append((path, dict(params)))
                raise SourceRefused("expired", status=410)
            return await super().get(path, params)

    result = await read(Expiring().on([version(NEW, 2)], further="p"))
    assert (result.ok, values(read)) == (True, [2, 7, 1])


async def test_after_a_restore_of_everything_the_first_versions_are_put_off() -> None:
    """Those of pages after the first ten thousand are published when they are read; all of them are in the end."""
    read = Round(msgspec.structs.replace(FULL, newest=False))
    many = [str(number) for number in range(MOST_PUT_OFF)]
    await shown(read, *(version(NEW, 2, one) for one in (*many, "z")))
    result = await shown_on(read, [version(OLD, 1, one) for one in many], [version(OLD, 1, "z")])
    assert (result.modified, result.backwards) == (MOST_PUT_OFF + 1, MOST_PUT_OFF + 1)
    assert [event["subject"] for event in read.store.events[MOST_PUT_OFF + 1 :]] == ["z", *many]


async def test_after_eight_mebibytes_no_version_is_put_off() -> None:
    """What is put off takes little memory."""
    read = Round(msgspec.structs.replace(FULL, newest=False))
    large = "x" * 4 * 1024 * 1024
    await shown(read, *({**version(NEW, 2, one), "text": large} for one in "ab"), version(NEW, 2, "z"))
    older = [{**version(OLD, 1, one), "text": large} for one in "ab"]
    await shown_on(read, older[:1], older[1:], [version(OLD, 1, "z")])
    assert [event["subject"] for event in read.store.events[3:]] == ["z", "a", "b"]


async def test_a_restored_record_comes_late_beside_deltas() -> None:
    """No delta has brought it, so further readings follow."""
    read = await known(msgspec.structs.replace(NEWEST, newest=False))
    read.clock.pass_by(DAY)
    script = Script().on([version(OLD)], further="p").on([version(NEW, 7, "b")], page="p")
    result = await read(script.on([version(NEW, 7, "b")], since="d1", delta="d2"))
    assert (result.mode, result.late, values(read)) == (RoundMode.RECONCILE, 1, [2, 7, 1])


async def test_an_older_version_is_passed_over_if_a_delta_beside_has_brought_a_newer_one() -> None:
    """The listing may show the record as it was before the delta; another reading looks once more."""
    read = await known(msgspec.structs.replace(NEWEST, newest=False))
    read.store.unmark(RECHECK_AT)
    read.clock.pass_by(DAY)
    script = Script().on([version(OLD)], further="p").on([version(NEW, 7, "b")], page="p")
    result = await read(script.on([version(NEWER, 3)], since="d1", delta="d2"))
    assert (result.mode, result.backwards, values(read)) == (RoundMode.RECONCILE, 0, [2, 3, 7])
    assert read.store.state.recheck_at is not None


async def test_an_older_version_on_a_page_that_is_not_compared_counts_as_listed() -> None:
    """The newer one may be on a page that is unchanged as a whole."""
    read = await known(msgspec.structs.replace(FULL, newest=False))
    other = [version(NEW, 7, "b")]
    for _ in range(2):
        await shown_on(read, BOTH[0], other)
    assert read.store.digests is not None
    assert (await shown_on(read, BOTH[0], [*other, *BOTH[1]])).changes == 0
