"""Laws of :mod:`poller.sandbox.reading`."""

from __future__ import annotations

import pytest

from poller.sandbox.reading import DEFAULT_LIMIT, BadParameter, place
from poller.sandbox.resources import RESOURCES
from poller.sandbox.tokens import DeltaToken, PageToken, encode

NAME = "contractTypes"
LISTING = (NAME, None)
MID_ROUND = PageToken(*LISTING, since=3, after=5, delta=9, limit=2, fields=("code", "id"))


def place_of(*query: tuple[str, str], resource: str = NAME, qualification: str | None = None) -> PageToken:
    return place(RESOURCES[resource], qualification, query, latest=9)


def test_a_first_request_fixes_the_round() -> None:
    """Without parameters a round is full, of all fields, in pages of the default size, as of the latest version."""
    assert place_of() == PageToken(*LISTING, since=None, after=0, delta=9, limit=DEFAULT_LIMIT, fields=())


def test_a_delta_begins_where_its_token_says() -> None:
    """A delta round begins after the version of its token."""
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
    """Repeated, with commas or with brackets: the same fields, and the id always."""
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
    """1 and 5000 are page sizes."""
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
    """Nonsense, tokens of another kind or listing, and tokens of versions to come are refused."""
    with pytest.raises(BadParameter) as refused:
        place_of((parameter, token))
    assert refused.value.code.lower() == f"invalid{parameter}".lower()


def test_achievements_take_no_delta_token() -> None:
    """The achievements of a qualification have no parameter sinceDeltaToken, not even for their own token."""
    token = encode(DeltaToken("achievements", "q", 1))
    with pytest.raises(BadParameter, match="no parameter"):
        place_of(("sinceDeltaToken", token), resource="achievements", qualification="q")


def test_a_page_token_of_another_qualification() -> None:
    """A page token is good for its own qualification's listing, in any case, and for no other."""
    token = encode(PageToken("achievements", "q", None, 1, 2, 3, ()))
    assert place_of(("pageToken", token), resource="achievements", qualification="Q").after == 1
    with pytest.raises(BadParameter, match="another listing"):
        place_of(("pageToken", token), resource="achievements", qualification="r")


def test_unknown_parameters_are_ignored() -> None:
    """A parameter that the API does not know changes nothing."""
    assert place_of(("order", "desc"), ("Limit", "0")) == place_of()
