"""Laws of :mod:`poller.source.resources`."""

from __future__ import annotations

import pytest

from poller.source.resources import KNOWN, resource_of


@pytest.mark.parametrize(
    ("name", "type_name", "path", "detail_path", "delta"),
    [
        ("evidenceVariants", "evidenceVariant", "/evidenceVariants", "/evidenceVariants/{id}", True),
        (
            "employmentUnavailabilities",
            "employmentUnavailability",
            "/employmentUnavailabilities",
            "/employmentUnavailabilities/{id}",
            True,
        ),
        ("contractTypes", "contractType", "/contractTypes", "/contractTypes/{id}", True),
        ("achievements", "achievement", "/qualifications/{id}/achievements", None, False),
    ],
)
def test_the_four_resources_are_those_of_the_reference(
    name: str, type_name: str, path: str, detail_path: str | None, delta: bool
) -> None:
    """Names, paths, event types and delta tokens are as the reference and the contract have them."""
    found = resource_of(name)
    assert found is not None
    assert (found.name, found.type_name, found.path) == (name, type_name, path)
    assert (found.detail_path, found.delta) == (detail_path, delta)
    assert len(KNOWN) == 4


def test_only_achievements_have_a_listing_for_each_qualification() -> None:
    """There the id goes into the path; elsewhere the path stands as it is."""
    assert [name for name, resource in KNOWN.items() if resource.per_qualification] == ["achievements"]
    assert KNOWN["achievements"].listing_path("q-1") == "/qualifications/q-1/achievements"
    assert KNOWN["contractTypes"].listing_path(None) == "/contractTypes"


def test_any_other_list_endpoint_can_be_described() -> None:
    """A name of one's own needs a path; its type is the name without a plural s unless said otherwise."""
    assert resource_of("positions", path="/positions").type_name == "position"
    assert resource_of("staff", path="/staff").type_name == "staff"
    named = resource_of("staff", path="/v2/staff", detail_path="/v2/staff/{id}", type_name="person")
    assert (named.type_name, named.path, named.detail_path) == ("person", "/v2/staff", "/v2/staff/{id}")
    with pytest.raises(LookupError, match="positions"):
        resource_of("positions")


@pytest.mark.parametrize("subject", [".", "..", "a/..", "../a", "a/./b", "a\\..", "%2e", "%2E%2e", "a%2F.."])
def test_an_id_that_leads_to_another_path_has_none_of_its_own(subject: str) -> None:
    """Law: what a URL parser takes for a step to another path, now or after it has decoded it, is not asked for."""
    assert KNOWN["contractTypes"].record_path(subject) is None
    assert resource_of("staff", path="/staff", detail_path="/staff/{id}/all").record_path(subject) is None


@pytest.mark.parametrize(
    ("subject", "path"), [("a", "a"), ("...", "..."), (".a", ".a"), ("a..b", "a..b"), ("a/b", "a%2Fb"), ("?", "%3F")]
)
def test_any_other_id_is_one_segment_of_the_path(subject: str, path: str) -> None:
    """Law: dots beside other characters are an id like any other; where there is no such endpoint, none has a path."""
    assert KNOWN["contractTypes"].record_path(subject) == f"/contractTypes/{path}"
    assert KNOWN["achievements"].record_path(subject) is None


def test_a_known_resource_can_be_overridden_in_part() -> None:
    """What the configuration says wins; the rest is the reference's."""
    found = resource_of("achievements", path="/x/{id}/y", type_name="badge")
    assert (found.path, found.type_name, found.detail_path, found.delta) == ("/x/{id}/y", "badge", None, False)
