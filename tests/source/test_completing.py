"""Laws of :mod:`poller.source.completing`: a part of a record that nobody knows is no record."""

from __future__ import annotations

import json

import msgspec
import pytest

from poller.errors import SourceRefused, SourceUnavailable
from poller.source.feed import Mode
from tests.source.round_sides import FEED, Round, Script

PARTS = msgspec.structs.replace(FEED, partial=True)


async def known() -> Round:
    read = Round(PARTS)
    assert (await read(Script().on([{"id": "a", "n": 1, "m": 1}], delta="d1"))).ok
    return read


def delta(*parts: dict[str, object]) -> Script:
    return Script().on(list(parts), since="d1", delta="d2")


async def test_a_new_record_is_asked_for_as_a_whole_and_a_known_one_is_not() -> None:
    """What is published of it is what the API has, not the part that the delta brought."""
    read = await known()
    script = delta({"id": "b", "n": 2}, {"id": "a", "n": 2})
    script.whole("/contractTypes/b", {"id": "b", "n": 2, "m": 7})
    result = await read(script)
    assert (result.ok, result.mode, result.created, result.modified) == (True, Mode.DELTA, 1, 1)
    assert [event["data"]["record"] for event in read.store.events[1:]] == [
        {"id": "b", "n": 2, "m": 7},
        {"id": "a", "n": 2, "m": 1},
    ]
    assert [path for path, _ in script.asked] == ["/contractTypes", "/contractTypes/b"]


async def test_one_that_is_gone_again_is_kept_as_it_came() -> None:
    """That it existed is not lost."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).on(SourceRefused("gone", status=410), path="/contractTypes/b"))
    assert (result.created, read.store.events[-1]["data"]["record"]) == (1, {"id": "b", "n": 2})


@pytest.mark.parametrize("failure", [SourceUnavailable("503"), SourceRefused("403", status=403)])
async def test_one_that_cannot_be_asked_for_fails_the_round(failure: Exception) -> None:
    """The token stays, and the next round asks again."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).on(failure, path="/contractTypes/b"))  # type: ignore[arg-type] # one of ours
    assert (result.ok, read.kept, len(read.store.events)) == (False, "d1", 1)
    assert json.loads(read.store.state.round or "")["ok"] is False


async def test_an_id_that_leads_to_another_path_is_kept_as_it_came() -> None:
    """Law: it is not asked for: what the API answers to ``/contractTypes/..`` is about something else."""
    read = await known()
    script = delta({"id": "..", "n": 2})
    assert ((await read(script)).created, [path for path, _ in script.asked]) == (1, ["/contractTypes"])
    assert read.store.events[-1]["data"]["record"] == {"id": "..", "n": 2}


async def test_an_answer_about_another_record_completes_nothing() -> None:
    """Law: what the API answers with another id is not this record; it is kept as the delta brought it."""
    read = await known()
    result = await read(delta({"id": "b", "n": 2}).whole("/contractTypes/b", {"id": "a", "n": 9, "m": 9}))
    assert (result.ok, result.created, result.modified) == (True, 1, 0)
    assert read.store.events[-1]["data"]["record"] == {"id": "b", "n": 2}
