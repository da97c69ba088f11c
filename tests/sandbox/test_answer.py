"""Laws of :mod:`poller.sandbox.answer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from poller.sandbox.answer import Ask, answer

if TYPE_CHECKING:
    from datetime import datetime

    from poller.sandbox.model import History

ODD = b'{"id":"b", "code" : 1.0,"name":12345678901234567890123,"x":[ ]}'


@pytest.fixture
def filled(history: History, at: datetime) -> History:
    history.put("contractTypes", b'{"id":"a","code":"A"}', at)
    history.put("contractTypes", ODD, at)
    history.put("contractTypes", b'{"id":"C","code":null}', at)
    return history


def said(history: History, *query: tuple[str, str]) -> dict[str, Any]:
    answered = answer(history, Ask("contractTypes", query=query))
    assert answered.status == 200
    envelope: dict[str, Any] = msgspec.json.decode(answered.body)
    return envelope


def test_records_are_served_byte_for_byte(filled: History) -> None:
    """A record's bytes stand in the list and in the single answer as they were put."""
    assert b"," + ODD + b"," in answer(filled, Ask("contractTypes")).body
    assert answer(filled, Ask("contractTypes", id="B")).body == ODD


def test_fields_keep_literals(filled: History) -> None:
    """With ``fields`` the values that are left keep their spelling, in the record's own order; the id is always in."""
    body = answer(filled, Ask("contractTypes", query=(("fields", "name"), ("fields", "code")))).body
    assert b'{"id":"b","code":1.0,"name":12345678901234567890123}' in body


def test_pages_follow_one_another(filled: History) -> None:
    """A page token is there while there are more pages, and absent on the last, however full that is."""
    first = said(filled, ("limit", "2"))
    assert [record["id"] for record in first["results"]] == ["a", "b"]
    last = said(filled, ("pageToken", first["pageToken"]))
    assert [record["id"] for record in last["results"]] == ["C"]
    assert last.keys() == {"results", "deltaToken"}
    assert "pageToken" not in said(filled, ("limit", "3"))


def test_a_changed_record_moves_to_the_end(filled: History, at: datetime) -> None:
    """A record that changes behind the reader comes again, and the round's delta token stays the first one."""
    first = said(filled, ("limit", "2"))
    filled.put("contractTypes", b'{"id":"a","code":"A2"}', at)
    last = said(filled, ("pageToken", first["pageToken"]))
    assert [record["id"] for record in last["results"]] == ["C", "a"]
    assert last["deltaToken"] == first["deltaToken"]
    assert said(filled, ("sinceDeltaToken", last["deltaToken"]))["results"] == [{"id": "a", "code": "A2"}]


def test_an_empty_delta_has_a_token(filled: History) -> None:
    """Nothing new: empty results, a delta token, no page token."""
    token = said(filled)["deltaToken"]
    empty = said(filled, ("sinceDeltaToken", token))
    assert empty == {"results": [], "deltaToken": empty["deltaToken"]}
    assert said(filled, ("sinceDeltaToken", empty["deltaToken"]))["results"] == []


def test_removed_records_just_vanish(filled: History, at: datetime) -> None:
    """A removal shows in no list and no delta; the single read is 404."""
    token = said(filled)["deltaToken"]
    filled.remove("contractTypes", "a", at)
    assert said(filled, ("sinceDeltaToken", token))["results"] == []
    assert len(said(filled)["results"]) == 2
    assert answer(filled, Ask("contractTypes", id="a")).status == 404


def test_achievements_are_those_of_their_qualification(history: History, at: datetime) -> None:
    """Each qualification lists its own achievements; one that nobody named is 404."""
    for id_, qualification in (("x", "q"), ("y", "r"), ("z", "Q")):
        history.put("achievements", {"id": id_, "qualificationID": qualification}, at)
    listed = msgspec.json.decode(answer(history, Ask("achievements", qualification="q")).body)
    assert [record["id"] for record in listed["results"]] == ["x", "z"]
    assert "deltaToken" in listed
    assert answer(history, Ask("achievements", qualification="s")).status == 404


def test_a_refusal_names_its_rule(filled: History) -> None:
    """A bad parameter is 400 with a code and a message in JSON."""
    refused = answer(filled, Ask("contractTypes", query=(("limit", "0"),)))
    assert refused.status == 400
    assert msgspec.json.decode(refused.body)["error"].keys() == {"code", "message"}
    assert ("content-type", "application/json") in refused.headers
