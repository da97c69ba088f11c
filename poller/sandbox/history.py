"""The history: every version of every record, and what a reader sees of it.

Theory of operation
-------------------
A listing is an append-only log of versions. A record's new version goes to the end and its old row is struck out, so
the live rows are each record once, ordered by version number. A reader's position is the number of the last version
it saw: a change behind it appears in front of it, and nothing unseen can slip behind it. Struck rows are dropped when
they outnumber the live ones; positions survive that because they are numbers, not indexes.

**Invariants**

- One number rises by one with each change of any resource; versions are never altered or dropped.
- Lists show each record once, in the order of latest versions; removed records are absent. Ids are compared without
  regard to case and shown as given.
- The fields of a resource are those of the reference; ``fields`` may ask for these and no others.
- No HTTP, tokens, clock or randomness here (``at`` is passed in), and no check whether a record makes sense.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from poller import resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from random import Random


class SandboxResource(msgspec.Struct, frozen=True):
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


RESOURCES = {
    one.name: SandboxResource(
        one.name,
        frozenset({"id", *one.fields}),
        takes_delta=one.delta,
        of_qualification=one.per_qualification,
    )
    for one in resources.RESOURCES.values()
}
"""Every resource by its name."""


class UnusableRecord(ValueError):
    """Not a JSON object with a string ``id`` (of achievements: and a string ``qualificationID``)."""


class Version(msgspec.Struct, frozen=True, gc=False):
    """A record as it was from one change to the next.

    Attributes:
        number: its place in the history, from 1.
        at: when, UTC.
        resource: the resource's name.
        id: the record's id as given.
        qualification: the qualification it is listed under; None for records listed for themselves.
        record: its JSON, exactly as given; None when this version is the record's removal.
    """

    number: int
    at: datetime
    resource: str
    id: str
    qualification: str | None
    record: bytes | None


class _RecordIdentity(msgspec.Struct, gc=False):
    id: str


class _QualifiedIdentity(msgspec.Struct, gc=False):
    id: str
    qualificationID: str | None = None  # noqa: N815 - the API's spelling


_identity = msgspec.json.Decoder(_RecordIdentity)
_qualified_identity = msgspec.json.Decoder(_QualifiedIdentity)


class History:
    """All versions of all records. Not shared between threads."""

    __slots__ = ("_current", "_listings", "_qualifications", "_versions")

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._current: dict[tuple[str, str], Version] = {}
        self._listings: defaultdict[tuple[str, str | None], LogList[Version]] = defaultdict(LogList)
        self._qualifications: set[str] = set()

    @property
    def version(self) -> int:
        """The number of the latest change; 0 before the first."""
        return len(self._versions)

    def count(self, resource: str) -> int:
        """How many records of a resource exist now, of all its listings."""
        return len(self._listings[resource, None])

    def put(self, resource: str, record: Mapping[str, Any] | bytes, at: datetime) -> Version:
        """Create a record, or replace the one with its id.

        Args:
            resource: a name in :data:`~poller.sandbox.history.RESOURCES`.
            record: a JSON object, encoded (kept byte for byte) or not.
            at: the time of the change, UTC.

        Raises:
            UnusableRecord: the record cannot be listed.
        """
        encoded = record if isinstance(record, bytes) else msgspec.json.encode(record)
        id_, qualification = _identify(RESOURCES[resource], encoded)
        if qualification is not None:
            self._qualifications.add(qualification.lower())
        listed_under = qualification if RESOURCES[resource].of_qualification else None
        return self._append(Version(self.version + 1, at, resource, id_, listed_under, encoded))

    def remove(self, resource: str, id_: str, at: datetime) -> Version | None:
        """Remove a record for good; None if there is none with this id."""
        present = self.find(resource, id_)
        if present is None:
            return None
        return self._append(Version(self.version + 1, at, resource, present.id, present.qualification, None))

    def find(self, resource: str, id_: str) -> Version | None:
        """The present version of a record; None: it does not exist."""
        return self._current.get((resource, id_.lower()))

    def page(self, resource: str, qualification: str | None, *, after: int, limit: int) -> LogPage[Version]:
        """At most ``limit`` records whose latest change has a number above ``after``, in that order."""
        listing = self._listings.get((resource, qualification and qualification.lower()))
        return LogPage([], more=False) if listing is None else listing.page(after=after, limit=limit)

    def knows_qualification(self, id_: str) -> bool:
        """Whether any record ever named this qualification; they have no records of their own."""
        return id_.lower() in self._qualifications

    def pick(self, resource: str, rng: Random) -> Version | None:
        """Any record that exists now; None if the resource has none."""
        return self._listings[resource, None].pick(rng)

    def since(self, number: int) -> Iterator[Version]:
        """Versions above ``number``, in order, up to the latest at the first step."""
        for index in range(number, len(self._versions)):
            yield self._versions[index]

    def _append(self, version: Version) -> Version:
        key = (version.resource, version.id.lower())
        superseded = self._current.pop(key, None)
        if superseded is not None:
            for listing in self._listings_of(superseded):
                listing.strike(superseded)
        self._versions.append(version)
        if version.record is not None:
            self._current[key] = version
            for listing in self._listings_of(version):
                listing.append(version)
        return version

    def _listings_of(self, version: Version) -> list[LogList[Version]]:
        """The resource's listing, for picking records, and the qualification's, which the API shows."""
        listings = [self._listings[version.resource, None]]
        if version.qualification is not None:
            listings.append(self._listings[version.resource, version.qualification.lower()])
        return listings


def _identify(resource: SandboxResource, encoded: bytes) -> tuple[str, str | None]:
    try:
        if "qualificationID" not in resource.fields:
            return _identity.decode(encoded).id, None
        identity = _qualified_identity.decode(encoded)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableRecord(str(error)) from error
    if resource.of_qualification and identity.qualificationID is None:
        raise UnusableRecord(f"{resource.name}: a record needs a qualificationID")
    return identity.id, identity.qualificationID


class Numbered(Protocol):
    """Anything with a number in the order."""

    @property
    def number(self) -> int:
        """Its version number, unique and rising."""


Row = TypeVar("Row", bound=Numbered)

_FEW = 64
"""The fewest struck rows that are worth a compaction."""


class LogPage(msgspec.Struct, Generic[Row], frozen=True):
    """Some consecutive rows.

    Attributes:
        rows: at most as many as requested, in order.
        more: whether there are live rows after them.
    """

    rows: list[Row]
    more: bool


class LogList(Generic[Row]):
    """The log of one list. Appending and striking cost O(log n), a page O(its length)."""

    __slots__ = ("_numbers", "_rows", "_struck")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._rows: list[Row | None] = []
        self._struck = 0

    def __len__(self) -> int:
        return len(self._rows) - self._struck

    def append(self, row: Row) -> None:
        """Put a row at the end; its number must be the highest so far."""
        self._numbers.append(row.number)
        self._rows.append(row)

    def strike(self, row: Row) -> None:
        """Take out a row that is in the listing: superseded, or its record removed."""
        self._rows[bisect_left(self._numbers, row.number)] = None
        self._struck += 1
        if self._struck > _FEW and self._struck * 2 > len(self._rows):
            self._compact()

    def page(self, *, after: int, limit: int) -> LogPage[Row]:
        """At most ``limit`` rows whose number is above ``after``."""
        start = bisect_right(self._numbers, after)
        rows: list[Row] = []
        # One more row than requested shows whether this page is the last.
        while len(rows) <= limit and start < len(self._rows):
            stretch = self._rows[start : start + limit + 1 - len(rows)]
            rows += [row for row in stretch if row is not None]
            start += len(stretch)
        return LogPage(rows[:limit], more=len(rows) > limit)

    def pick(self, rng: Random) -> Row | None:
        """Any live row, each equally likely; None from an empty listing."""
        if not len(self):
            return None
        row = None
        while row is None:  # compaction keeps the struck rows few, so this ends soon
            row = rng.choice(self._rows)
        return row

    def _compact(self) -> None:
        self._rows = [row for row in self._rows if row is not None]
        self._numbers = [row.number for row in self._rows if row is not None]
        self._struck = 0
