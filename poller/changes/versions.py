"""Several versions of one record: those that one delta shows, and those that are older than the known one.

Theory of operation
-------------------
A delta of several pages is read again, and some APIs list all versions of a record in it. What a reading of a delta
has shown already is not compared again: an older version among the changes of a delta is no change back. Yet a record
may be restored with the time that it had, and then one of these versions is the present one. Such versions are in
doubt, and a full reading decides.

An API behind two unequal backends shows a record now as it is and now as it was. A version with an earlier
modification time than the known one is either such an answer or a record that was restored. So with
``versions = "newest"`` it is held back: its digest is stored, and if the same version is in two full readings, the
second started some time after the first one showed it, it is published. Its content is not needed, because the second
reading brings it again.

**Invariants**

- A delta that was broken off is read again from its token. What of it was published does not count as changes then,
  whichever process reads it: the stream has it.
- Of versions that a delta shows on several pages the latest counts, in whatever order they are shown. If they are
  undated, the one that is shown last counts.
- What a delta shows is remembered up to a number of versions. A delta with more is not read again, for what it showed
  beyond that number would count as changes. As a whole it is one doubt.
- Any other version of a record ends the hold: a newer one, the known one, or none. Another older version starts a
  new one.
- A delta does not count as one of the two readings, but its token moves on: what it showed is stored too, and asks
  for a full reading.
- A held version is stored by the commit that passes it over, and deleted by the commit that publishes it.
- As long as a version is held, a full reading is due at some time.
- Pure. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec

from poller.changes.records import Record, Rejected, is_older, text_key

_MOST_SHOWN: Final = 10_000  # versions; some megabytes


class _Shown(msgspec.Struct):
    """What a delta has shown of a record.

    Attributes:
        is_known: whether the record was known before.
        known: the modification time of that version; None: unknown.
        last: the version (a hash) that was shown last.
        versions: all of them, and their modification times.
    """

    is_known: bool
    known: str | None
    last: int
    versions: dict[int, str | None]


class DeltaVersions:
    """The versions of records that one delta shows, each time that it is read.

    Attributes:
        digest: of the new versions of all readings, in any order: a number.
    """

    def __init__(self, form: Callable[[bytes], bytes] | None = None) -> None:
        """Nothing is shown yet; ``form`` leaves out of a version what does not count, None: all of its bytes do."""
        self._form = form
        self.digest = 0
        self._pages = 0
        self._lacks_some = False  # versions of a page that is committed are not remembered
        self._shown: set[tuple[str, int]] = set()  # keys and versions (hashes)
        self._shown_before: set[tuple[str, int]] = set()  # when the delta was read before
        self._is_resumed = False  # what was shown before is what was published when the delta was broken off
        self._removed: set[str] = set()  # since it was broken off; subjects
        self._new: set[str] = set()  # keys of records of which this reading has shown a new version
        self._left_out: set[tuple[str, int]] = set()
        self._last: dict[str, int] = {}  # by key, the version that this reading has shown last
        self._last_before: dict[str, int] = {}  # and the reading before
        self._records: dict[str, _Shown] = {}

    @property
    def is_full(self) -> bool:
        """Whether it has shown more than is remembered, on several pages; one page holds each record once."""
        return self._lacks_some and self._pages > 1

    def resume(self, subject: str, published: Record | None) -> bool:
        """Add a version that was published since the delta was first requested, for it was broken off then.

        What was published before a removal does not count: the record may come back as it was.

        Args:
            subject: the record's id.
            published: the latest first; None: the record was removed. A full reading may have published it.

        Returns:
            Whether more are remembered.
        """
        if published is None:
            self._removed.add(text_key(subject))
        elif not {published.key, text_key(subject)} & self._removed:
            key, version = self._version(published)
            self._last_before.setdefault(key, version)
            self._shown_before.add((key, version))
        self._is_resumed = True
        return len(self._shown_before) < _MOST_SHOWN

    def repeat(self) -> None:
        """Start to read the same delta again: only what it did not show before is new."""
        self._shown_before |= self._shown
        self._is_resumed = False
        self._new.clear()
        self._last, self._last_before = {}, self._last

    def has_shown(self, key: str, raw: bytes) -> bool:
        """Whether the pages so far have shown this version of a record."""
        return bool(self._shown) and (key, self._hash(raw)) in self._shown

    def _hash(self, raw: bytes) -> int:
        return hash(raw if self._form is None else self._form(raw))

    def _version(self, record: Record) -> tuple[str, int]:
        return record.key, self._hash(record.raw)

    def new(self, received: Sequence[Record | Rejected]) -> Sequence[Record | Rejected]:
        """Those that no reading of the delta before this one has shown.

        Of a delta that was broken off only what was published is known. So what stands on a page before a version that
        was published is left out as well, unless it says that it is newer, and is in doubt.
        """
        if not self._shown_before:
            return received
        new = self._after_published(received) if self._is_resumed else self._not_shown_before(received)
        for one in received:
            if isinstance(one, Record):
                self._look_back(one)
        return new

    def _not_shown_before(self, received: Sequence[Record | Rejected]) -> Sequence[Record | Rejected]:
        before = self._shown_before
        return [one for one in received if isinstance(one, Rejected) or self._version(one) not in before]

    def _look_back(self, one: Record) -> None:
        """Leave a version in doubt that was shown before, if this reading has brought another one since."""
        if self._version(one) not in self._shown_before:
            self._new.add(one.key)
        elif one.key in self._new:
            self._left_out.add(self._version(one))

    def _after_published(self, received: Sequence[Record | Rejected]) -> Sequence[Record | Rejected]:
        published: dict[str, Record] = {}  # the next one of each record on what follows of the page
        after: list[Record | Rejected] = []
        for one in reversed(received):
            if isinstance(one, Rejected):
                after.append(one)
            elif self._version(one) in self._shown_before:
                published[one.key] = one
            elif one.key not in published or is_older(published[one.key].modified, one.modified):
                after.append(one)
            else:
                self._left_out.add(self._version(one))
        return after[::-1]

    def in_doubt(
        self, new: Iterable[Record | Rejected], known: Callable[[str], tuple[bool, str | None]]
    ) -> list[Record]:
        """Add the new versions of a page, and return those that may be restored ones.

        That is so of versions that are not newer than the known one, beside others, and of one that is shown again
        after another.

        Args:
            new: in the order received.
            known: whether a record is known, by its key, and when that version was modified.
        """
        return [one for one in new if isinstance(one, Record) and self._is_in_doubt(one, known)]

    def _is_in_doubt(self, record: Record, known: Callable[[str], tuple[bool, str | None]]) -> bool:
        version, shown = self._hash(record.raw), self._records.get(record.key)
        self.digest = (self.digest + hash((record.key, version))) & _DIGEST
        if self._lacks_some:  # the delta as a whole is in doubt
            return False
        if shown is None:
            self._records[record.key] = _Shown(*known(record.key), version, {version: record.modified})
            return False
        if version == shown.last:
            return False
        is_again, shown.last = version in shown.versions, version
        shown.versions[version] = record.modified
        return is_again or (shown.is_known and any(_is_no_newer(one, shown.known) for one in shown.versions.values()))

    def add(self, received: Iterable[Record | Rejected]) -> None:
        """Add all versions of a page that is committed."""
        versions = [self._version(one) for one in received if isinstance(one, Record)]
        self._pages += bool(versions)
        for version in versions:
            if version in self._shown or len(self._shown) < _MOST_SHOWN:
                self._shown.add(version)
                self._last.update((version,))
            else:
                self._lacks_some = True

    def returned(self) -> set[tuple[str, int]]:
        """Keys and versions of the records that this reading leaves at a version that was shown before another one.

        Such a version is not compared again, but the record may have gone back to it between two readings. With them
        come the versions that :meth:`new` has left out without knowing that they were shown.
        """
        before, last = self._last_before, self._last.items()
        return self._left_out.union(
            one for one in last if one in self._shown_before and before.get(one[0], one[1]) != one[1]
        )


_DIGEST: Final = (1 << 64) - 1


def _is_no_newer(modified: str | None, than: str | None) -> bool:
    """Whether a version may be no newer than the known one. If it is undated, the order in which it is shown counts."""
    return modified is not None and not is_older(than, modified)


class HeldVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version that is held back.

    Attributes:
        digest: of its canonical form, without ignored fields.
        seen_at: when a full reading showed it first; 0: only a delta did.
    """

    digest: bytes
    seen_at: int = 0


class VersionPolicy(msgspec.Struct, frozen=True):
    """How a reading treats older versions of known records.

    Attributes:
        kept: held versions by record key.
        newest: whether older versions are held back; if not, a held version is published when it is shown.
        begun: when the reading started; None: it is a delta.
        now: the present moment.
        apart: the least time between the two readings.
    """

    kept: Mapping[str, HeldVersion] = MappingProxyType({})
    newest: bool = False
    begun: int | None = None
    now: int = 0
    apart: timedelta = timedelta(minutes=1)

    def after(self, held: HeldVersion | None, canonical: bytes) -> HeldVersion | None:
        """What is held after this older version was shown; None: publish it.

        Args:
            held: what was held of the record before.
            canonical: the version's canonical form.
        """
        if not self.newest:
            return None
        digest = blake2b(canonical, digest_size=16).digest()
        shown = 0 if self.begun is None else self.now
        if held is None or held.digest != digest:
            return HeldVersion(digest, shown)
        if self.begun is None:
            return held
        if not held.seen_at or held.seen_at > self.now:  # never in a full reading, or the store's clock was set back
            return HeldVersion(digest, shown)
        return None if self.begun - held.seen_at >= _milliseconds(self.apart) else held


def full_reading_due(held: Iterable[HeldVersion], *, apart: timedelta) -> int | None:
    """When a full reading is due for held versions; None: nothing is held."""
    return min((one.seen_at + _milliseconds(apart) if one.seen_at else 0 for one in held), default=None)


def _milliseconds(span: timedelta) -> int:
    return int(span.total_seconds() * 1000)
