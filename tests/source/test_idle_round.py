"""Rounds without news: they leave what ordinary ones leave, with one request and one script."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from poller.errors import StoreUnavailable
from poller.source.feed import RoundMode
from poller.source.round import run_round
from poller.store.feed_state import (
    HELD,
    HELD_ORIGIN,
    HELD_VERSIONS,
    LEARNT,
    PROGRESS,
    RECHECK_AT,
    REFUSALS,
    RELEASED,
    RESYNC,
    SECOND_LOOK,
    TOKEN_FAILURES,
    TOKEN_SEQUENCE,
)
from poller.store.lease import HeldElsewhere
from tests.source.round_sides import DAY, DOWN, FEED, Round, Script, records

if TYPE_CHECKING:
    from datetime import datetime

    from poller.source.paging import Params

_MINUTE = timedelta(minutes=1)


async def known(*, idles: bool = True) -> Round:
    """A feed with a record whose next round reads a delta."""
    read = Round()
    read.store.permits_idle = idles
    read.clock.drive_monotonic()
    await read(Script().on(records("a"), delta="d1"))
    while read.store.state.recheck_at is not None or read.store.state.confirmation is not None:
        read.clock.pass_by(_MINUTE)
        await read(Script().on(records("a"), delta="d1").on([], since="d1", delta="d1"))
    return read


def quiet(since: str, delta: str | None = None) -> Script:
    """An API that has nothing new since a token."""
    return Script().on([], since=since, delta=delta)


async def ran(read: Round, script: Script, *, next_at: datetime | None) -> Any:
    """A round that knows when the next one is due."""

    async def none(_: int) -> dict[str, int]:
        return {}

    return await run_round(
        read.feed, read.store, script.get, clock=read.clock, qualifications=none, next_at=lambda: next_at
    )


@pytest.mark.parametrize("rechecks", [False, True], ids=["settled", "a reading is pending"])
@pytest.mark.parametrize("token", ["d1", "d2", None], ids=["the same token", "another token", "no token"])
async def test_it_leaves_what_an_ordinary_round_leaves(token: str | None, *, rechecks: bool) -> None:
    """Law: its result and its marks are those of an ordinary round, from the store's state and from memory."""
    results, fields = list[Any](), list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        if rechecks:
            read.store.mark(RECHECK_AT, (read.clock.now() + 1.5 * _MINUTE).isoformat())
        mine, since = list[Any](), "d1"
        for _ in range(3):
            read.clock.pass_by(_MINUTE / 3)
            mine.append(await ran(read, quiet(since, token), next_at=read.clock.now() + DAY / 2))
            mine.append(dict(read.store.fields))
            since = token or since
        assert read.store.idle_rounds == (3 if idles else 0)
        results.append(mine)
        fields.append(read.store.fields)
    assert results[0] == results[1]
    assert fields[0] == fields[1]


async def test_a_round_from_memory_asks_the_store_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: after a round without news the store is asked once a round."""
    read = await known()
    await read(quiet("d1"))
    asked = list[object]()
    monkeypatch.setattr(read.store, "open_round", asked.append)
    for _ in range(3):
        assert (await read(quiet("d1"))).ok
    assert not asked


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (HELD, "60 of 301 known records are missing"),
        (HELD_ORIGIN, "x"),
        (HELD_VERSIONS, "1"),
        (PROGRESS, "{}"),
        (TOKEN_FAILURES, "2"),
        (REFUSALS, "1"),
        (LEARNT, "{}"),
        (TOKEN_SEQUENCE, "0 x"),
        ("id_field", "key"),
        ("origin", "elsewhere"),
        ("fields", '["id"]'),
        (RESYNC, "1"),
        (RELEASED, "1"),
        ("query", "another"),
    ],
)
@pytest.mark.parametrize("remembered", [False, True], ids=["from the state", "from memory"])
async def test_what_is_left_to_settle_makes_a_round_ordinary(field: str, value: str, *, remembered: bool) -> None:
    """Law: a mark that an ordinary round looks at makes the round one; it ends as if none had been idle before."""
    results, fields = list[Any](), list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        if remembered:
            await read(quiet("d1"))
        before = read.store.idle_rounds
        read.store.mark(field, value)
        results.append(await read(quiet("d1").on(records("a"), delta="d1")))
        fields.append(dict(read.store.fields))
        assert read.store.idle_rounds == before
    assert results[0] == results[1]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("remembered", [False, True], ids=["from the state", "from memory"])
@pytest.mark.parametrize("answer", [records("a", value=2), DOWN], ids=["news", "a failure"])
async def test_what_was_answered_is_not_asked_for_again(answer: Any, *, remembered: bool) -> None:
    """Law: where a delta has records, or fails, the ordinary round goes on from that answer."""
    results = list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        if remembered:
            await read(quiet("d1"))
        script = Script().on(answer, since="d1", delta="d2")
        results.append((await read(script), read.store.fields, read.causes, len(script.asked)))
    assert results[0] == results[1]
    assert results[0][3] == 1


async def test_a_delta_of_several_pages_is_read_as_by_an_ordinary_round() -> None:
    """Law: an empty first page that names another one is no end."""
    results = list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        script = Script().on([], since="d1", further="p", delta="d2").on(records("b"), since="d1", page="p")
        results.append((await read(script), read.store.fields, read.causes))
    assert results[0] == results[1]
    assert results[0][0].created == 1


async def test_an_answer_from_before_another_process_wrote_is_not_used() -> None:
    """Law: where the feed has moved since the request, what was answered is as old as that, and asked for again."""
    read = await known()
    await read(quiet("d1"))

    class Overtaken(Script):
        async def get(self, path: str, params: Params) -> bytes:
            answer = await super().get(path, params)
            read.store.mark("sequence", "9")  # another process has published a newer version
            return answer

    script = Overtaken().on(records("a", value=7), since="d1", delta="d2")
    await read(script)
    assert len(script.asked) == 2


async def test_an_answer_from_before_the_lease_was_lost_is_not_used() -> None:
    """Law: the same where this process has heard meanwhile that its lease is lost."""
    read = await known()
    await read(quiet("d1"))

    class Lost(Script):
        async def get(self, path: str, params: Params) -> bytes:
            answer = await super().get(path, params)
            read.store.idle_start = None
            return answer

    script = Lost().on(records("a", value=7), since="d1", delta="d2")
    assert (await read(script)).modified == 1
    assert len(script.asked) == 2


async def test_another_owner_is_found_at_the_end() -> None:
    """Law: the round of a feed that is another's by now is skipped, and writes nothing."""
    read = await known()
    await read(quiet("d1"))
    read.store.held_elsewhere, before = HeldElsewhere(timedelta(seconds=3)), dict(read.store.fields)
    result = await read(quiet("d1", "d2"))
    assert (result.mode, result.ok, result.wait) == (RoundMode.SKIPPED, True, timedelta(seconds=3))
    assert read.store.fields == before


async def test_the_api_is_left_alone_while_the_store_is_away() -> None:
    """Law: a round whose marks cannot be written says so, and the next one asks the store first."""
    read = await known()
    await read(quiet("d1"))
    read.store.unreachable = StoreUnavailable("redis: connection refused")
    first = await read(script := quiet("d1"))
    assert (first.mode, first.ok, first.away, len(script.asked)) == (RoundMode.DELTA, False, True, 1)
    second = await read(script := quiet("d1"))
    assert (second.mode, second.ok, second.away, len(script.asked)) == (RoundMode.SKIPPED, False, True, 0)
    read.store.unreachable = None
    assert (await read(quiet("d1"))).ok


async def test_a_full_reading_comes_in_time() -> None:
    """Law: rounds without news do not put off the reading of everything, nor one that looks once more."""
    read = await known()
    await read(quiet("d1"))
    read.clock.pass_by(DAY)
    assert (await read(quiet("d1").on(records("a"), delta="d1"))).mode is RoundMode.RECONCILE
    read.store.mark(RECHECK_AT, (read.clock.now() + _MINUTE).isoformat())
    assert (await read(quiet("d1"))).recheck == _MINUTE
    assert (await read(quiet("d1"))).mode is RoundMode.DELTA
    read.clock.pass_by(_MINUTE)
    assert (await read(quiet("d1").on(records("a"), delta="d1"))).mode is RoundMode.RECONCILE


async def test_another_definition_of_the_feed_decides_anew() -> None:
    """Law: what is remembered counts for the definition that it was decided by."""
    read = await known()
    await read(quiet("d1"))
    other = msgspec.structs.replace(FEED, id_field="key")
    result = await read(quiet("d1"), other)
    assert (result.ok, "id_field" in (result.error or "")) == (False, True)


@pytest.mark.parametrize("body", [b"{", b'{"results":{}}', b'{"results":[],"deltaToken":"' + b"d" * 5000 + b'"}'])
async def test_an_answer_of_another_kind_is_for_an_ordinary_round(body: bytes) -> None:
    """Law: what is no page, or long, is decoded and reported as ever."""
    results = list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        script = Script().answer(body, since="d1")
        results.append((await read(script), read.store.fields, len(script.asked)))
    assert results[0] == results[1]
    assert results[0][2] == 1


async def test_deltas_without_records_count_among_those_that_follow_each_other() -> None:
    """Law: what is known of several deltas, what each has brought and since when, is as after ordinary ones."""
    found = list[Any]()
    for idles in (True, False):
        read = await known(idles=idles)
        for number in range(4):
            repeated = Script().on(records("a"), since=f"d{1 + 2 * number}", delta=f"d{2 + 2 * number}")
            await read(repeated)
            await read(quiet(f"d{2 + 2 * number}", f"d{3 + 2 * number}"))
            read.clock.pass_by(_MINUTE / 4)
        deltas = read.store.deltas
        found.append((deltas.is_repeated("a", _MINUTE / 2), deltas.has_followed(_MINUTE / 2)))
    assert found == [(False, True)] * 2


async def test_held_versions_are_looked_at_in_time() -> None:
    """Law: while a version is held back, no round goes by what is remembered."""
    read = await known()
    read.feed = msgspec.structs.replace(FEED, newest=True)
    read.store.mark(SECOND_LOOK, str(read.store.now_ms + 30_000))
    assert (await read(quiet("d1"))).mode is RoundMode.DELTA
    assert read.store.idle_rounds == 0
