"""What the simulated API serves: four resources, their fields, and where they are listed.

Law: this table is the reference's chapter on fields, name for name; ``fields`` may ask for these and no others.

It does not know: which values a field may have. A record posted for a test may hold anything.
"""

from __future__ import annotations

import msgspec

_STAMPS = frozenset({"createdAt", "lastModifiedAt"})
_EXTERNAL = frozenset({"externalCode", "externalId"})


class Resource(msgspec.Struct, frozen=True):
    """One kind of record.

    Attributes:
        name: as in the path of its list.
        fields: the names that the ``fields`` parameter takes.
        takes_delta: whether its list takes ``sinceDeltaToken``.
        of_qualification: whether there is one listing for each qualification, and no single reads.
    """

    name: str
    fields: frozenset[str]
    takes_delta: bool = True
    of_qualification: bool = False


EVIDENCE_VARIANTS = Resource(
    "evidenceVariants", frozenset({"id", "qualificationID", "code", "name", "interval"}) | _EXTERNAL | _STAMPS
)
EMPLOYMENT_UNAVAILABILITIES = Resource(
    "employmentUnavailabilities", frozenset({"id", "employmentID", "reason", "interval"}) | _STAMPS
)
CONTRACT_TYPES = Resource("contractTypes", frozenset({"id", "code", "name"}) | _EXTERNAL | _STAMPS)
ACHIEVEMENTS = Resource(
    "achievements",
    frozenset({"id", "qualificationID", "evidenceVariantID", "employmentID", "submittedByID", "approvedByID"})
    | frozenset({"issueDate", "expirationDate", "overriddenExpirationDate", "remark", "scoreOrder"})
    | frozenset({"isAutoAchieved", "documents"})
    | _EXTERNAL
    | _STAMPS,
    takes_delta=False,
    of_qualification=True,
)

RESOURCES = {
    resource.name: resource
    for resource in (EVIDENCE_VARIANTS, EMPLOYMENT_UNAVAILABILITIES, CONTRACT_TYPES, ACHIEVEMENTS)
}
"""Every resource by its name."""
