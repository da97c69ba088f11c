"""The source's own history, by feed and record, as the checker looks things up in it.

Made from the lines of ``GET /_sandbox/log``. Ids are one whatever the case of their letters.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.harness.json_values import equal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Version(NamedTuple):
    """A record from one change to the next. ``record`` is None where the change was its removal."""

    number: int
    record: Any


class Past:
    """All versions of one record, in order."""

    def __init__(self) -> None:
        self.versions: list[Version] = []

    def after(self, place: int, record: Any) -> int | None:
        """The place of the first version from ``place`` on that reads like this; None: there is none."""
        versions = self.versions
        return next((at for at in range(place, len(versions)) if equal(versions[at].record, record)), None)

    def until(self, number: int) -> int | None:
        """The place of the last version whose number is at most this; None: the record is younger."""
        return max((at for at, version in enumerate(self.versions) if version.number <= number), default=None)


def pasts(log: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Past]]:
    """For each resource the past of each record, by its id in lower case."""
    found: defaultdict[str, defaultdict[str, Past]] = defaultdict(lambda: defaultdict(Past))
    for line in log:
        found[line["resource"]][line["id"].lower()].versions.append(Version(int(line["version"]), line["record"]))
    return {resource: dict(records) for resource, records in found.items()}
