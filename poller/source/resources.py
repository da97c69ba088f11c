"""What the daemon knows of each resource before it asks: its paths, its event type, whether it takes a delta token.

The four resources of the reference stand here; any other list endpoint with the same envelope is described by the
configuration (``path``, ``detail_path``, ``id_field``, ``type_name``).
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

import msgspec

PARENT: Final = "{id}"

# Dots alone between slashes. URL parsers, proxies and servers take them for a step to another path, some of them after
# they have decoded what was encoded.
_STEPS: Final = re.compile(r"(?:^|[/\\])\.{1,2}(?:[/\\]|$)").search


class Resource(msgspec.Struct, frozen=True):
    """A kind of record and where it is listed.

    Attributes:
        name: as in the reference and the configuration.
        type_name: the part of the event type that names it.
        path: of the list endpoint, with ``{id}`` where there is one listing for each qualification.
        detail_path: of the single record, with ``{id}``; None where there is none.
        delta: whether the reference lets the list endpoint take a ``sinceDeltaToken``.
    """

    name: str
    type_name: str
    path: str
    detail_path: str | None = None
    delta: bool = True

    @property
    def per_qualification(self) -> bool:
        """Whether there is one listing for each qualification."""
        return PARENT in self.path

    def listing_path(self, qualification: str | None) -> str:
        """The path of one listing."""
        return self.path.replace(PARENT, qualification) if qualification is not None else self.path

    def record_path(self, subject: str) -> str | None:
        """The path of a single record.

        None where there is no such endpoint, or where the id leads to another path: a 404 from there says nothing of
        the record.
        """
        if self.detail_path is None or _STEPS(unquote(subject)):
            return None
        return self.detail_path.replace(PARENT, quote(subject, safe=""))


KNOWN: Final = {
    resource.name: resource
    for resource in (
        Resource("evidenceVariants", "evidenceVariant", "/evidenceVariants", "/evidenceVariants/{id}"),
        Resource(
            "employmentUnavailabilities",
            "employmentUnavailability",
            "/employmentUnavailabilities",
            "/employmentUnavailabilities/{id}",
        ),
        Resource("contractTypes", "contractType", "/contractTypes", "/contractTypes/{id}"),
        Resource("achievements", "achievement", "/qualifications/{id}/achievements", delta=False),
    )
}


def resource_of(
    name: str, *, path: str | None = None, detail_path: str | None = None, type_name: str | None = None
) -> Resource:
    """The resource of a feed, from its name and what the configuration says beside it.

    Args:
        name: one of the reference's four, or any other with a path.
        path: the list endpoint, from the root of the API.
        detail_path: the single record, with ``{id}``.
        type_name: default: the name without a plural s.

    Raises:
        LookupError: an unknown name without a path; the configuration refuses that earlier.
    """
    known = KNOWN.get(name)
    if known is None and path is None:
        raise LookupError(f"{name} is not one of {', '.join(KNOWN)} and has no path")
    if known is None:
        return Resource(name, type_name or name.removesuffix("s"), path or "", detail_path)
    return Resource(
        name,
        type_name or known.type_name,
        path or known.path,
        detail_path or known.detail_path,
        delta=known.delta,
    )
