"""Laws of :mod:`poller.sandbox.resources`."""

from __future__ import annotations

import pytest

from poller.sandbox.resources import RESOURCES

REFERENCE = {
    "evidenceVariants": "id qualificationID code name externalCode externalId interval createdAt lastModifiedAt",
    "employmentUnavailabilities": "id employmentID reason interval createdAt lastModifiedAt",
    "contractTypes": "id code name externalCode externalId createdAt lastModifiedAt",
    "achievements": "id qualificationID evidenceVariantID employmentID submittedByID approvedByID issueDate "
    "expirationDate overriddenExpirationDate remark scoreOrder isAutoAchieved documents externalCode externalId "
    "createdAt lastModifiedAt",
}


@pytest.mark.parametrize("name", REFERENCE)
def test_fields_are_those_of_the_reference(name: str) -> None:
    """Every resource has the reference's fields and no others."""
    assert RESOURCES[name].fields == set(REFERENCE[name].split())


def test_resources_are_those_of_the_reference() -> None:
    """There are exactly four resources; only achievements belong to a qualification, and only they take no delta."""
    assert RESOURCES.keys() == REFERENCE.keys()
    assert [name for name, resource in RESOURCES.items() if resource.of_qualification] == ["achievements"]
    assert [name for name, resource in RESOURCES.items() if not resource.takes_delta] == ["achievements"]
