"""Laws of :mod:`poller.source.learning`: what the API refuses is found, left out and remembered; nothing else is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.errors import SourceRefused, SourceUnavailable
from poller.source.envelope import Page
from poller.source.feed import Mode
from poller.source.learning import Learnt, learnt_of, taken
from poller.source.paging import Drain, Params, Query
from poller.source.round import poll
from tests.source.round_sides import ACHIEVEMENTS, FEED, Clock, MemoryStore, records

LIMITS = st.none() | st.integers(1, 5_000)
FIELDS = st.sampled_from([(), ("id", "n")])


@given(LIMITS, FIELDS, st.integers(0, 3_000), st.booleans(), st.booleans())
async def test_the_nearest_query_that_is_taken_is_found(
    limit: int | None, fields: tuple[str, ...], most: int, takes_fields: bool, takes_all: bool
) -> None:
    """As many of the parameters as the API takes, a limit no less than half of what it would take; few requests."""
    asked: list[Query] = []

    async def takes(query: Query) -> bool:
        asked.append(query)
        return takes_all and (query.limit or 0) <= most and (takes_fields or not query.fields)

    query = Query(limit=limit, fields=fields)
    if await takes(query):
        return
    found = await taken(query, takes)
    assert len(asked) < 20
    if not takes_all or (limit is None and not fields):
        assert found is None
        return
    assert found is not None
    assert found.fields == (fields if takes_fields else ())
    if limit is None or limit <= most:
        assert found.limit == limit
    elif most:
        assert found.limit is not None
        assert most / 2 < found.limit + 1 <= most + 1
    else:
        assert found.limit is None


def test_what_was_learnt_is_applied_kept_and_bound_to_its_query() -> None:
    """It comes back from the state as it was; for another query it says nothing."""
    asked = Query(limit=500, fields=("id", "n"))
    learnt = Learnt("q").refusing(asked, Query(limit=125))
    assert learnt.refused == ("limit (taken: 125)", "fields")
    assert learnt.applied(asked) == Query(limit=125)
    kept = learnt_of(msgspec.json.encode(learnt).decode())
    assert kept.about("q") == learnt
    assert kept.about("another") == Learnt("another")
    assert Learnt("q").refusing(asked, Query(fields=asked.fields)).applied(asked) == Query(fields=asked.fields)
    assert learnt_of(None) == learnt_of("{broken") == learnt_of('{"limit":"many"}') == Learnt()


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        ("ttt", "every page"),
        ("t--", "the first page"),
        ("--t", "the last page"),
        ("-t-", "some pages"),
        ("tt-", "some pages"),
        ("---", "none"),
    ],
)
def test_where_the_delta_token_stands_is_seen(tokens: str, place: str) -> None:
    """From a listing of several pages; one page later on takes nothing back."""
    drain = Drain(Query())
    for number, stands in enumerate(tokens, start=1):
        more = str(number) if number < len(tokens) else None
        drain.take(Page([str(number).encode()], "d" if stands == "t" else None, more, "pageToken empty"))
    learnt = Learnt().seeing(drain)
    assert (learnt.delta_token, learnt.paging) == (place, "pageToken empty")
    single = Drain(Query())
    single.take(Page([b"1"], "d", None))
    assert learnt.seeing(single) == learnt
    assert Learnt().seeing(single).paging == "no pageToken"


class Picky:
    """An API that takes limits up to some number, and fields or not."""

    def __init__(self, *, most: int, fields: bool = False, status: int = 400) -> None:
        self.most, self.fields, self.status = most, fields, status
        self.away = False
        self.asked: list[dict[str, str]] = []

    async def get(self, path: str, params: Params) -> bytes:
        asked = dict(params)
        self.asked.append(asked)
        if self.away and "limit" not in asked:
            raise SourceUnavailable("away")
        if int(asked.get("limit", 0)) > self.most or ("fields" in asked and not self.fields):
            raise SourceRefused(f"GET {path}: no", status=self.status)
        return msgspec.json.encode({"results": records(path), "deltaToken": "d"})


async def rounds(api: Picky, store: MemoryStore, *, achievements: bool = False, **changed: Any) -> Any:
    feed = msgspec.structs.replace(ACHIEVEMENTS if achievements else FEED, **changed)

    async def none(since: int) -> dict[str, int]:
        assert not since
        return {}

    api.asked.clear()
    return await poll(feed, store, api.get, now=Clock(), qualifications=none)


ASKED = Query(limit=1_000, fields=("id", "n"))


@pytest.mark.parametrize("status", [400, 413, 414, 422])
async def test_a_limit_that_is_too_large_is_halved_and_remembered(status: int) -> None:
    """The first round finds out, says so, and reads; later ones ask in the way that is taken, with their token."""
    api, store = Picky(most=300, fields=True, status=status), MemoryStore()
    result = await rounds(api, store, query=ASKED)
    assert (result.ok, result.mode, result.created) == (True, Mode.BASELINE, 1)
    assert result.learnt.refused == ("limit (taken: 250)",)
    again = await rounds(api, store, query=ASKED)
    assert (again.ok, again.mode, again.learnt) == (True, Mode.DELTA, None)
    assert api.asked == [{"limit": "250", "fields": "n", "sinceDeltaToken": "d"}]


async def test_what_was_learnt_is_forgotten_by_a_resync_and_with_another_query() -> None:
    """The API may have changed its mind; an operator, or the configuration, has it asked again."""
    api, store = Picky(most=300), MemoryStore()
    assert (await rounds(api, store, query=ASKED)).learnt.refused == ("limit (taken: 250)", "fields")
    api.most, api.fields = 5_000, True
    assert (await rounds(api, store, query=ASKED)).ok
    assert "fields" not in api.asked[0]
    store.mark("resync", "1")
    result = await rounds(api, store, query=ASKED)
    assert (result.mode, result.ok, result.learnt.refused, len(api.asked)) == (Mode.RESYNC, True, (), 1)
    api.most = 10
    result = await rounds(api, store, query=Query(limit=40))
    assert (result.mode, result.ok, result.learnt.refused) == (Mode.RESYNC, True, ("limit (taken: 10)",))
    assert len(store.events) == 1


async def test_a_refusal_for_another_reason_is_an_error_and_teaches_nothing() -> None:
    """Where the bare request is refused too, the parameters are not to blame: the error is that of the first."""
    api, store = Picky(most=-1, fields=True), MemoryStore()
    result = await rounds(api, store, query=Query(limit=10))
    assert (result.ok, result.error, result.learnt) == (False, "GET /contractTypes: no", None)
    assert len(api.asked) == 2


async def test_an_api_that_goes_away_during_the_search_fails_the_round() -> None:
    """What cannot be asked now is not taken for refused."""
    api, store = Picky(most=300), MemoryStore()
    api.away = True
    result = await rounds(api, store, query=ASKED)
    assert (result.ok, result.error, result.learnt) == (False, "away", None)


async def test_all_listings_of_a_feed_share_what_one_has_taught() -> None:
    """The first finds out; those that were on their way are asked for again, the search is not."""
    api, store = Picky(most=300), MemoryStore()
    names = tuple(f"q{number}" for number in range(9))
    result = await rounds(api, store, achievements=True, query=ASKED, qualifications=names, at_once=3)
    assert (result.ok, result.created) == (True, 9)
    assert len(api.asked) == 3 + 5 + 9
    assert result.learnt.refused == ("limit (taken: 250)", "fields")
