"""The source's history by feed and record, for the checker.

Made from the lines of ``GET /_sandbox/log``. Ids are compared without regard to case.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness.json_values import equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Version(NamedTuple):
    """A record between two changes. ``record`` is None after its removal."""

    number: int
    record: Any


class Past:
    """All versions of one record, in order."""

    def __init__(self) -> None:
        self.versions: list[Version] = []

    def after(self, place: int, record: Any) -> int | None:
        """The index of the first version from ``place`` on that equals this record; None if there is none."""
        versions = self.versions
        return next((at for at in range(place, len(versions)) if equal(versions[at].record, record)), None)

    def until(self, number: int) -> int | None:
        """The index of the last version with at most this number; None if the record is younger."""
        return max((at for at, version in enumerate(self.versions) if version.number <= number), default=None)


def pasts(log: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Past]]:
    """For each resource the past of each record, by its id in lower case."""
    found: defaultdict[str, defaultdict[str, Past]] = defaultdict(lambda: defaultdict(Past))
    for line in log:
        found[line["resource"]][line["id"].lower()].versions.append(Version(int(line["version"]), line["record"]))
    return {resource: dict(records) for resource, records in found.items()}
