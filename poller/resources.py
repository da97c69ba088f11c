"""The resources of the API: their names, list paths and detail paths.

Pure, and light to import: completion of the command line reads the names from here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

ACHIEVEMENTS: Final = "achievements"
PARENT: Final = "{id}"
ID_IN_PATH: Final = r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}"
"""The pattern of ids that stand in a path as they are."""

# Dots alone between slashes. URL parsers, proxies and servers take them for a step to another path, some of them after
# they have decoded what was encoded.
_STEPS: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\]|$)").search
# Proxies and servers decode these twice, take them for separators, cut them off or refuse them, escaped or not.
_MISREAD: Final = re.compile(r"[/\\%+;]|[. ]$").search


class Resource(NamedTuple):
    """A kind of record and its paths.

    Attributes:
        name: as in the reference and the configuration.
        type_name: the part of the event type that names it.
        path: of the list endpoint, with ``{id}`` if each qualification has a listing.
        detail_path: of the single record, with ``{id}``; None: no such endpoint.
        delta: whether the list endpoint accepts ``sinceDeltaToken``, by the reference.
        fields: the name of each field and what it holds, but for the id; empty where that is not known.
    """

    name: str
    type_name: str
    path: str
    detail_path: str | None = None
    delta: bool = True
    fields: Mapping[str, str] = MappingProxyType({})

    def __hash__(self) -> int:
        """Without the fields: a mapping has no hash, and a feed with its resource is a key."""
        return hash(self[:-1])

    @property
    def per_qualification(self) -> bool:
        """Whether each qualification has a listing of its own."""
        return PARENT in self.path

    def listing_path(self, qualification: str | None) -> str:
        """The path of one listing."""
        if qualification is None:
            return self.path.replace(f"/{PARENT}", "")  # of a record that does not say which; a brace is in no URL
        return self.path.replace(PARENT, qualification)

    def record_path(self, subject: str) -> str | None:
        """The path of a single record.

        None: no such endpoint, or the id leads to another path, so that a 404 would say nothing of the record.
        """
        if self.detail_path is None or _STEPS(unquote(subject)):
            return None
        return self.detail_path.replace(PARENT, quote(subject, safe=""))

    def absence_path(self, subject: str) -> str | None:
        """The path of a single record whose 404 says that the record is gone.

        None: no such endpoint, or servers may answer 404 for this id although they have the record.
        """
        return None if _MISREAD(subject) else self.record_path(subject)


_UUID: Final = "A UUID."
_TEXT: Final = "Text."
_DATE: Final = "A calendar date, YYYY-MM-DD."
_TIME: Final = "A moment; how it is written is the API's choice."
_INTERVAL: Final = "An object."
_STAMPS: Final = {"createdAt": _TIME, "lastModifiedAt": _TIME}
_EXTERNAL: Final = {"externalCode": _TEXT, "externalId": _TEXT}

RESOURCES: Final = {
    resource.name: resource
    for resource in (
        Resource(
            "evidenceVariants",
            "evidenceVariant",
            "/evidenceVariants",
            "/evidenceVariants/{id}",
            fields={"qualificationID": _UUID, "code": _TEXT, "name": _TEXT, **_EXTERNAL, "interval": _INTERVAL}
            | _STAMPS,
        ),
        Resource(
            "employmentUnavailabilities",
            "employmentUnavailability",
            "/employmentUnavailabilities",
            "/employmentUnavailabilities/{id}",
            fields={"employmentID": _UUID, "reason": _TEXT, "interval": _INTERVAL} | _STAMPS,
        ),
        Resource(
            "contractTypes",
            "contractType",
            "/contractTypes",
            "/contractTypes/{id}",
            fields={"code": _TEXT, "name": _TEXT, **_EXTERNAL} | _STAMPS,
        ),
        Resource(
            ACHIEVEMENTS,
            "achievement",
            "/qualifications/{id}/achievements",
            delta=False,
            fields={
                **dict.fromkeys(
                    ("qualificationID", "evidenceVariantID", "employmentID", "submittedByID", "approvedByID"), _UUID
                ),
                **dict.fromkeys(("issueDate", "expirationDate", "overriddenExpirationDate"), _DATE),
                "remark": _TEXT,
                "scoreOrder": "An integer.",
                "isAutoAchieved": "true or false.",
                "documents": "A list of objects with contentType and filename.",
                **_EXTERNAL,
            }
            | _STAMPS,
        ),
    )
}
"""The resources of the reference by name; they need no ``path``, and are all polled where no file says otherwise."""


def type_name_of(name: str) -> str:
    """The default name of a resource's records in event types."""
    return RESOURCES[name].type_name if name in RESOURCES else name.removesuffix("s")


def resource_of(
    name: str, *, path: str | None = None, detail_path: str | None = None, type_name: str | None = None
) -> Resource:
    """The resource of a feed, from its configuration.

    Args:
        name: one of the reference's, or any other with a path.
        path: the list endpoint, from the root of the API.
        detail_path: the single record, with ``{id}``.
        type_name: default: the name without a plural s.

    Raises:
        LookupError: an unknown name without a path; the configuration refuses that earlier.
    """
    known = RESOURCES.get(name)
    if known is None and path is None:
        raise LookupError(f"{name} is not one of {', '.join(RESOURCES)} and has no path")
    if known is None:
        return Resource(name, type_name or type_name_of(name), path or "", detail_path)
    return known._replace(
        type_name=type_name or known.type_name,
        path=path or known.path,
        detail_path=detail_path or known.detail_path,
    )
