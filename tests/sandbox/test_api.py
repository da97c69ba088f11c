"""Laws of :mod:`poller.sandbox.api`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.api import (
    DEFAULT_LIMIT,
    BadParameter,
    DeltaToken,
    MalformedToken,
    PageToken,
    SandboxRequest,
    answer,
    decode,
    encode,
    place,
)
from poller.sandbox.history import RESOURCES

if TYPE_CHECKING:
    from datetime import datetime

    from poller.sandbox.history import History


ODD = b'{"id":"b", "code" : 1.0,"name":12345678901234567890123,"x":[ ]}'


@pytest.fixture
def filled(history: History, at: datetime) -> History:
    history.put("contractTypes", b'{"id":"a","code":"A"}', at)
    history.put("contractTypes", ODD, at)
    history.put("contractTypes", b'{"id":"C","code":null}', at)
    return history


def said(history: History, *query: tuple[str, str]) -> dict[str, Any]:
    answered = answer(history, SandboxRequest("contractTypes", query=query))
    assert answered.status == 200
    envelope: dict[str, Any] = msgspec.json.decode(answered.body)
    return envelope


def test_records_are_served_byte_for_byte(filled: History) -> None:
    """A record's bytes are served unchanged in the list and in the single answer."""
    assert b"," + ODD + b"," in answer(filled, SandboxRequest("contractTypes")).body
    assert answer(filled, SandboxRequest("contractTypes", id="B")).body == ODD


def test_fields_keep_literals(filled: History) -> None:
    """With ``fields`` the remaining values keep their spelling and order, and the id is always included."""
    body = answer(filled, SandboxRequest("contractTypes", query=(("fields", "name"), ("fields", "code")))).body
    assert b'{"id":"b","code":1.0,"name":12345678901234567890123}' in body


def test_pages_follow_one_another(filled: History) -> None:
    """Every page but the last has a page token, even when the last one is full."""
    first = said(filled, ("limit", "2"))
    assert [record["id"] for record in first["results"]] == ["a", "b"]
    last = said(filled, ("pageToken", first["pageToken"]))
    assert [record["id"] for record in last["results"]] == ["C"]
    assert last.keys() == {"results", "deltaToken"}
    assert "pageToken" not in said(filled, ("limit", "3"))


def test_a_changed_record_moves_to_the_end(filled: History, at: datetime) -> None:
    """A record that changes during a round is listed again, and the round keeps its first delta token."""
    first = said(filled, ("limit", "2"))
    filled.put("contractTypes", b'{"id":"a","code":"A2"}', at)
    last = said(filled, ("pageToken", first["pageToken"]))
    assert [record["id"] for record in last["results"]] == ["C", "a"]
    assert last["deltaToken"] == first["deltaToken"]
    assert said(filled, ("sinceDeltaToken", last["deltaToken"]))["results"] == [{"id": "a", "code": "A2"}]


def test_an_empty_delta_has_a_token(filled: History) -> None:
    """An empty delta has no results, a delta token and no page token."""
    token = said(filled)["deltaToken"]
    empty = said(filled, ("sinceDeltaToken", token))
    assert empty == {"results": [], "deltaToken": empty["deltaToken"]}
    assert said(filled, ("sinceDeltaToken", empty["deltaToken"]))["results"] == []


def test_removed_records_just_vanish(filled: History, at: datetime) -> None:
    """A removal appears in no list and no delta; the single read is 404."""
    token = said(filled)["deltaToken"]
    filled.remove("contractTypes", "a", at)
    assert said(filled, ("sinceDeltaToken", token))["results"] == []
    assert len(said(filled)["results"]) == 2
    assert answer(filled, SandboxRequest("contractTypes", id="a")).status == 404


def test_achievements_are_those_of_their_qualification(history: History, at: datetime) -> None:
    """Each qualification lists its own achievements; an unknown one is 404."""
    for id_, qualification in (("x", "q"), ("y", "r"), ("z", "Q")):
        history.put("achievements", {"id": id_, "qualificationID": qualification}, at)
    listed = msgspec.json.decode(answer(history, SandboxRequest("achievements", qualification="q")).body)
    assert [record["id"] for record in listed["results"]] == ["x", "z"]
    assert "deltaToken" in listed
    assert answer(history, SandboxRequest("achievements", qualification="s")).status == 404


def test_a_refusal_names_its_rule(filled: History) -> None:
    """A bad parameter gets 400 with a code and a message in JSON."""
    refused = answer(filled, SandboxRequest("contractTypes", query=(("limit", "0"),)))
    assert refused.status == 400
    assert msgspec.json.decode(refused.body)["error"].keys() == {"code", "message"}
    assert ("content-type", "application/json") in refused.headers


# Laws of :mod:`poller.sandbox.api`.

NAME = "contractTypes"
LISTING = (NAME, None)
MID_ROUND = PageToken(*LISTING, since=3, after=5, delta=9, limit=2, fields=("code", "id"))


def place_of(*query: tuple[str, str], resource: str = NAME, qualification: str | None = None) -> PageToken:
    return place(RESOURCES[resource], qualification, query, latest=9)


def test_a_first_request_fixes_the_round() -> None:
    """Without parameters a round is full, has all fields, the default page size, and the latest version."""
    assert place_of() == PageToken(*LISTING, since=None, after=0, delta=9, limit=DEFAULT_LIMIT, fields=())


def test_a_delta_begins_where_its_token_says() -> None:
    """A delta round starts after the version of its token."""
    at = place_of(("sinceDeltaToken", encode(DeltaToken(*LISTING, 4))))
    assert (at.since, at.after, at.delta) == (4, 4, 9)


@pytest.mark.parametrize(
    "query",
    [
        [("fields", "name"), ("fields", "code")],
        [("fields", "code,name")],
        [("fields[]", "code"), ("fields[]", "name")],
        [("fields[]", "code,name"), ("fields", "id")],
    ],
)
def test_fields_in_every_encoding(query: list[tuple[str, str]]) -> None:
    """Repeated, comma-separated and bracketed ``fields`` mean the same, and always include the id."""
    assert place_of(*query).fields == ("code", "id", "name")


def test_a_page_token_alone_is_enough() -> None:
    """A page token carries the whole round."""
    assert place_of(("pageToken", encode(MID_ROUND))) == MID_ROUND


def test_a_page_token_with_the_same_parameters() -> None:
    """The round's parameters may be sent again, and the page size may change."""
    since = encode(DeltaToken(*LISTING, 3))
    query = (("pageToken", encode(MID_ROUND)), ("sinceDeltaToken", since), ("fields", "code"), ("limit", "7"))
    assert place_of(*query) == PageToken(*LISTING, since=3, after=5, delta=9, limit=7, fields=("code", "id"))


@pytest.mark.parametrize("query", [("fields", "name"), ("sinceDeltaToken", encode(DeltaToken(*LISTING, 2)))])
def test_a_page_token_of_another_query(query: tuple[str, str]) -> None:
    """Parameters that contradict the page token are refused."""
    with pytest.raises(BadParameter, match="other parameters"):
        place_of(("pageToken", encode(MID_ROUND)), query)


@pytest.mark.parametrize("limit", ["0", "5001", "-1", "+5", "", "1.0", "ten", "٣", "9" * 5000])
def test_a_limit_is_an_integer_in_its_bounds(limit: str) -> None:
    """Anything but an integer from 1 to 5000 is refused."""
    with pytest.raises(BadParameter, match="limit") as refused:
        place_of(("limit", limit))
    assert refused.value.code == "invalidLimit"


@pytest.mark.parametrize("limit", [1, 5000])
def test_the_bounds_of_a_limit_are_in(limit: int) -> None:
    """1 and 5000 are valid page sizes."""
    assert place_of(("limit", str(limit))).limit == limit


@pytest.mark.parametrize("fields", ["colour", "", "code,,name", "Name", "reason"])
def test_unknown_fields_are_refused(fields: str) -> None:
    """A field that the resource does not have is refused by name."""
    with pytest.raises(BadParameter, match="no field") as refused:
        place_of(("fields", fields))
    assert refused.value.code == "unknownField"


@pytest.mark.parametrize(
    ("parameter", "token"),
    [
        ("pageToken", "nonsense"),
        ("pageToken", ""),
        ("pageToken", encode(DeltaToken(*LISTING, 1))),
        ("pageToken", encode(PageToken("evidenceVariants", None, None, 0, 0, 1, ()))),
        ("pageToken", encode(PageToken(*LISTING, None, 10, 0, 1, ()))),
        ("pageToken", encode(PageToken(*LISTING, None, 0, 10, 1, ()))),
        ("sinceDeltaToken", "nonsense"),
        ("sinceDeltaToken", ""),
        ("sinceDeltaToken", encode(MID_ROUND)),
        ("sinceDeltaToken", encode(DeltaToken("evidenceVariants", None, 1))),
        ("sinceDeltaToken", encode(DeltaToken(*LISTING, 10))),
    ],
)
def test_foreign_tokens_are_refused(parameter: str, token: str) -> None:
    """Malformed tokens and tokens of another kind, listing or future version are refused."""
    with pytest.raises(BadParameter) as refused:
        place_of((parameter, token))
    assert refused.value.code.lower() == f"invalid{parameter}".lower()


def test_achievements_take_no_delta_token() -> None:
    """Achievements accept no sinceDeltaToken, not even their own token."""
    token = encode(DeltaToken("achievements", "q", 1))
    with pytest.raises(BadParameter, match="no parameter"):
        place_of(("sinceDeltaToken", token), resource="achievements", qualification="q")


def test_a_page_token_of_another_qualification() -> None:
    """A page token is valid for its own qualification in any case of the id, and for no other."""
    token = encode(PageToken("achievements", "q", None, 1, 2, 3, ()))
    assert place_of(("pageToken", token), resource="achievements", qualification="Q").after == 1
    with pytest.raises(BadParameter, match="another listing"):
        place_of(("pageToken", token), resource="achievements", qualification="r")


def test_unknown_parameters_are_ignored() -> None:
    """Unknown parameters are ignored."""
    assert place_of(("order", "desc"), ("Limit", "0")) == place_of()


# Laws of :mod:`poller.sandbox.api`.

numbers = st.integers(0, 2**62)
names = st.text(st.characters(codec="utf-8"))
page_tokens = st.builds(
    PageToken, names, st.none() | names, st.none() | numbers, numbers, numbers, numbers, st.lists(names).map(tuple)
)
delta_tokens = st.builds(DeltaToken, names, st.none() | names, numbers)


@given(page_tokens, delta_tokens)
def test_decode_undoes_encode(page: PageToken, delta: DeltaToken) -> None:
    """Decoding an encoded token gives the token, and its text needs no escaping in a URL."""
    assert decode(encode(page), PageToken) == page
    assert decode(encode(delta), DeltaToken) == delta
    assert re.fullmatch(r"[A-Za-z0-9_-]+", encode(page) + encode(delta))


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_nonsense_is_not_read(text: str) -> None:
    """A text that the sandbox did not encode is refused as a token."""
    with pytest.raises(MalformedToken):
        decode(text, DeltaToken)


@given(delta_tokens, st.data())
def test_a_damaged_token_is_not_read(token: DeltaToken, data: st.DataObject) -> None:
    """A token with one character changed is refused."""
    text = encode(token)
    place = data.draw(st.integers(0, len(text) - 2))  # the last character may have unused bits
    letter = data.draw(st.sampled_from("AZaz09-_").filter(lambda letter: letter != text[place]))
    with pytest.raises(MalformedToken):
        decode(text[:place] + letter + text[place + 1 :], DeltaToken)


def test_one_kind_is_not_the_other() -> None:
    """A page token is refused as a delta token, and the other way round."""
    with pytest.raises(MalformedToken):
        decode(encode(PageToken("x", None, None, 0, 0, 1, ())), DeltaToken)
    with pytest.raises(MalformedToken):
        decode(encode(DeltaToken("x", None, 0)), PageToken)
