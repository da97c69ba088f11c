"""What one reading leaves for the next: what is to be confirmed, what deltas brought, digests of pages, older versions.

Theory of operation
-------------------
If an API pages by offset, each insertion or removal while a listing is read moves all records behind it by one place.
A record that moves over the edge of a page in that moment is on no page of the reading, and as it did not change
itself, no delta brings it. So a listing of several pages is read in full again at its next turns, until one of these
readings brings no record late: none that neither an earlier reading nor a delta had brought.

A listing may lag behind deltas, so a full reading leaves alone what deltas have brought lately. Some APIs bring their
last changes again in each delta, whether or not anything has changed. What each delta has brought as it is, for longer
than the listing may lag, is compared all the same.

A full reading leaves the digest of each page whose records are all as the store has them. The next reading compares no
record of a page that has one of these digests. If it finds all of these pages and no other one, no record is missing.

A delta of several pages is read again, and some APIs list all versions of a record in it. What a reading of a delta
has shown already is not compared again: an older version among the changes of a delta is no change back. Yet a record
may be restored with the time that it had, and then one of these versions is the present one. Such versions are in
doubt, and a full reading decides.

A listing may have a record on two pages, in two versions. One that is older than the known version is put off until the
listing has ended: if another page has the record in a newer version, that one counts.

An API behind two unequal backends shows a record now as it is and now as it was. A version with an earlier
modification time than the known one is either such an answer or a record that was restored. With
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

- After :data:`MOST` readings the listing waits for the next regular one, and the number of late records is reported.
  A reading that takes longer than a round may counts as one of them.
- A listing of one page has no edge. It is read again only after a reading, or a delta, that held an element which may
  be several records in one (:func:`poller.changes.records.is_single`), or after a reading whose missing records are not
  removed yet: because a second reading decides, or because the API may have lost them for a short time.
- Digests are valid for exactly the state that their reading left: generation, sequence number, time of the reading, and
  the rules by which records were compared. Any write of a snapshot deletes them (``commit.lua``).
- They are kept only if the reading has settled which records are gone: all known records are on its pages.
- A page with a record that was rejected or held back has no digest. If a record was read twice, on two pages or on one,
  no page has one: what is stored of it may be the other version.
- What deltas have brought is known to one process only.
- A version that is put off is compared when the listing ends, also if that fails on a later page: nothing is lost. If a
  page is not asked for because other lists have failed, the next reading, a moment later, shows the version again.
- Any other version of its record ends the hold of a version: a newer one, the known one, or none. Another older one
  starts a new hold.
- A delta does not count as one of the two readings, but its token moves on: what it showed is stored too, and asks
  for a full reading.
- A held version is stored by the commit that passes it over, and deleted by the commit that publishes it.
- As long as a version is held, a full reading is due at some time.
- Pure. Times are milliseconds of the store's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b, sha256
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

from poller.changes.records import Record, Rejected, is_older, text_key
from poller.clock import Clock

MOST: Final = 5
"""Readings that may follow one of several pages."""


class Confirmation(msgspec.Struct, frozen=True, array_like=True):
    """The confirmation of a listing: open, or given up after :data:`MOST` readings.

    Attributes:
        readings: how many have followed the first one, each of which brought records late, was undecided, or took
            longer than a round may.
        late: how many records these brought late.
        listings: the number of listings in the sum, for a feed that has many.
    """

    readings: int = 0
    late: int = 0
    listings: int = 1

    @property
    def due(self) -> bool:
        """Whether another reading follows."""
        return self.readings < MOST

    def after(self, late: int | None) -> Confirmation | None:
        """What is left to be confirmed after another reading; None: nothing.

        Args:
            late: how many records it brought late; None: unknown.
        """
        if late == 0:
            return None
        return msgspec.structs.replace(self, readings=self.readings + 1, late=self.late + (late or 0))


def after_reading(
    before: Confirmation | None, *, pages: int, confirming: bool, late: int | None, doubtful: bool = False
) -> Confirmation | None:
    """What is left to be confirmed after a complete reading; None: nothing.

    Args:
        before: what was to be confirmed before it.
        pages: how many the listing had.
        confirming: whether the reading continues those before it; False: it is the first.
        late: how many records it brought late; None: unknown.
        doubtful: whether some of its records could not be distinguished, or some were missing and were not removed.
    """
    if pages <= 1 and not doubtful:
        return None
    if doubtful and late == 0:
        late = None
    return before.after(late) if confirming and before is not None and before.due else Confirmation()


def after_doubtful_delta(before: Confirmation | None) -> Confirmation:
    """What is left to be confirmed after a delta whose records could not be distinguished, or are known only in part.

    At least one reading follows.
    """
    if before is None or before.due:
        return before or Confirmation()
    return msgspec.structs.replace(before, readings=MOST - 1)


def confirmation_of(text: str | None) -> Confirmation | None:
    """Decode the confirmation in the feed's state; None: unknown version."""
    try:
        return msgspec.json.decode(text, type=Confirmation) if text else None
    except msgspec.MsgspecError:
        return None


def confirmation_mark(confirmation: Confirmation | None) -> str | None:
    """What :func:`confirmation_of` gives back."""
    return None if confirmation is None else msgspec.json.encode(confirmation).decode()


_MOST_BROUGHT: Final = 100_000  # names; some megabytes


class _Brought(msgspec.Struct, frozen=True, gc=False):
    """When deltas have brought something.

    Attributes:
        first: the first time of those after each other, seconds of the monotonic clock.
        last: the last time.
        delta: the number of the last one.
    """

    first: float
    last: float
    delta: int


class DeltaMemory:
    """What the last deltas of a feed have brought, by name: the keys of records, and of what they left in doubt."""

    def __init__(self, clock: Clock) -> None:
        """Nothing is known; ``clock`` measures how long ago something was brought."""
        self._clock = clock
        self._brought: dict[str, _Brought] = {}  # in order
        self._delta = 0
        self._has_ended = True
        self._token: str | None = None
        self._followed_since = clock.monotonic()

    def start(self, token: str | None) -> None:
        """Start another delta, from a token.

        One that was not read to its end goes on, for it may not have brought all. If the token is not that of the last
        delta, another process has read some between: nothing is known to be repeated.
        """
        if token != self._token:
            self._delta, self._followed_since = self._delta + 1, self._clock.monotonic()
        self._delta += self._has_ended
        self._has_ended = False

    def finish(self, token: str | None) -> None:
        """The delta was read to its end, and this is the token for the next one."""
        self._has_ended, self._token = True, token

    def has_followed(self, age: timedelta) -> bool:
        """Whether no delta of this time was read by another process."""
        return self._clock.monotonic() - self._followed_since >= age.total_seconds()

    def add(self, names: Iterable[str], *, changed: bool = False) -> None:
        """Add what the delta has brought; ``changed``: it has changed, so deltas before do not count."""
        now = self._clock.monotonic()
        for name in names:
            before = self._brought.pop(name, None)
            goes_on = before is not None and before.delta >= self._delta - 1 and not changed
            self._brought[name] = _Brought(before.first if before and goes_on else now, now, self._delta)
        while len(self._brought) > _MOST_BROUGHT:
            del self._brought[next(iter(self._brought))]

    def forget(self, names: Iterable[str]) -> None:
        """Forget what a full reading has changed: the next delta brings it as something new."""
        for name in names if self._brought else ():
            self._brought.pop(name, None)

    def is_repeated(self, name: str, age: timedelta) -> bool:
        """Whether each delta for this time at least has brought it as it is."""
        brought = self._brought.get(name)
        if brought is None or brought.delta < self._delta - 1:
            return False
        return brought.first < self._clock.monotonic() - age.total_seconds()

    def since(self, age: timedelta, *, first: bool = False) -> set[str]:
        """What was brought within this time; ``first``: without what each delta before has brought as well."""
        since, last = self._clock.monotonic() - age.total_seconds(), self._delta - 1
        self._brought = {name: one for name, one in self._brought.items() if one.last >= since or one.delta >= last}
        return {name for name, one in self._brought.items() if (one.first if first else one.last) >= since}


_MOST_SHOWN: Final = 10_000  # versions; some megabytes
_MOST_MEMBERS: Final = 500_000  # of published records, which parts are compared with; some ten megabytes


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

    def __init__(
        self,
        form: Callable[[bytes], bytes] | None = None,
        *,
        members: Callable[[bytes], frozenset[int]] | None = None,
    ) -> None:
        """Nothing is shown yet.

        Args:
            form: leaves out of a version what does not count; None: all of its bytes do.
            members: hashes of a record's members, if the delta shows parts of records; None: it shows whole ones.
        """
        self._form = form
        self._members = members
        self.digest = 0
        self._pages = 0
        self._lacks_some = False  # versions of a page that is committed are not remembered
        self._shown: set[tuple[str, int]] = set()  # keys and versions (hashes)
        self._shown_before: set[tuple[str, int]] = set()  # when the delta was read before
        self._is_resumed = False  # what was shown before is what was published when the delta was broken off
        self._wholes: dict[str, list[frozenset[int]]] = {}  # by key, what was published, the latest first
        self._member_count = 0  # of these
        self._behind: dict[str, tuple[str, int]] = {}  # by key, a part that is shown last and is not what was published
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
            if self._members is not None:
                self._wholes.setdefault(key, []).append(members := self._members(published.raw))
                self._member_count += len(members)
        self._is_resumed = True
        return len(self._shown_before) < _MOST_SHOWN and self._member_count < _MOST_MEMBERS

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
        self._behind.pop(one.key, None)
        if not self._was_shown(one):
            self._new.add(one.key)
        elif one.key in self._new:
            self._left_out.add(self._version(one))
        elif not self._is_part_of(one, self._wholes.get(one.key, ())[:1]):
            self._behind[one.key] = self._version(one)

    def _was_shown(self, one: Record) -> bool:
        if self._version(one) in self._shown_before:
            return True
        wholes = self._wholes.get(one.key, ())
        return bool(wholes) and self._is_part_of(one, wholes)

    def _is_part_of(self, one: Record, wholes: Sequence[frozenset[int]]) -> bool:
        """Whether a part changes nothing of one of these; whole records have none."""
        if not wholes or self._members is None:
            return True
        members = self._members(one.raw)
        return any(members <= whole for whole in wholes)

    def _after_published(self, received: Sequence[Record | Rejected]) -> Sequence[Record | Rejected]:
        following: dict[str, Record] = {}  # by key, the next version on the page that was published
        after: list[Record | Rejected] = []
        for one in reversed(received):
            if isinstance(one, Rejected):
                after.append(one)
            elif self._was_shown(one):
                following[one.key] = one
            elif one.key not in following or is_older(following[one.key].modified, one.modified):
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
            self._behind.values(),
            (one for one in last if one in self._shown_before and before.get(one[0], one[1]) != one[1]),
        )


_DIGEST: Final = (1 << 64) - 1


def _is_no_newer(modified: str | None, than: str | None) -> bool:
    """Whether a version may be no newer than the known one. If it is undated, the order in which it is shown counts."""
    return modified is not None and not is_older(than, modified)


_DIGEST_BYTES: Final = 16


def page_digest(results: bytes) -> bytes:
    """The digest of the records of a page as they stand there: 16 bytes."""
    return sha256(results).digest()[:_DIGEST_BYTES]  # processors have instructions for it


class DigestBasis(msgspec.Struct, frozen=True, array_like=True):
    """What digests are valid for.

    Attributes:
        generation: of the feed's state.
        sequence: the number of the feed's last event.
        read_at: when the reading began, RFC 3339.
        missing_at: when records were last marked as missing, milliseconds of the store's clock; None: never.
        rules: a hash of everything that decides what of a record is requested and compared.
    """

    generation: str
    sequence: int
    read_at: str
    missing_at: int | None
    rules: str


class _StoredDigests(msgspec.Struct, frozen=True, array_like=True):
    basis: DigestBasis
    digests: bytes


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_StoredDigests).decode


class PageDigests:
    """The digests of one reading, beside those of the reading before."""

    def __init__(self, known: frozenset[bytes] = frozenset()) -> None:
        """Start a reading; ``known`` are the digests of the one before, as far as they are valid."""
        self._known = known
        self._kept: dict[bytes, None] = {}
        self._differs = False
        self._pages = 0

    def __contains__(self, digest: object) -> bool:
        """Whether a page with this digest is unchanged."""
        return digest in self._known

    def add(self, digest: bytes, *, is_stored: bool) -> None:
        """Add a page; ``is_stored``: all of its records are as the store has them now."""
        self._pages += 1
        if is_stored:
            self._kept[digest] = None
        self._differs = self._differs or digest not in self._known

    @property
    def is_unchanged(self) -> bool:
        """Whether the reading had exactly the pages of the one before."""
        return bool(self._known) and not self._differs and len(self._kept) == len(self._known)

    @property
    def only(self) -> bytes:
        """The digest of the only page; empty: there were several, or a record of it is not as it is stored."""
        return next(iter(self._kept)) if self._pages == len(self._kept) == 1 else b""

    def encode(self, basis: DigestBasis) -> bytes:
        """The stored form of the digests of this reading."""
        return _encode(_StoredDigests(basis, b"".join(self._kept)))


def decode_digests(stored: bytes | None, basis: DigestBasis) -> frozenset[bytes]:
    """The stored digests; none if they are not valid on this basis, or of an unknown version."""
    try:
        found = _decode(stored or b"")
    except msgspec.MsgspecError:
        return frozenset()
    return frozenset(_digests(found.digests)) if found.basis == basis else frozenset()


def _digests(joined: bytes) -> Iterator[bytes]:
    for start in range(0, len(joined), _DIGEST_BYTES):
        yield joined[start : start + _DIGEST_BYTES]


class KeyCounts(Protocol):
    """Says how often each key was listed."""

    def __getitem__(self, key: str, /) -> int:
        """How often a key was listed; 0: it was not."""
        ...


MOST_PUT_OFF: Final = 10_000
"""Versions of one listing, counted after each page; some megabytes."""
_MOST_PUT_OFF_BYTES: Final = 8 * 1024 * 1024


class OlderVersions:
    """The versions of one listing that are older than the known ones, put off until its end.

    After a restore of the API's data all records may be older. The first ones are put off, the others are compared when
    they are read.
    """

    def __init__(self) -> None:
        """Nothing is put off yet."""
        self._latest: dict[str, Record] = {}
        self._times = Counter[str]()  # how often their records were listed on the pages that had them
        self._count = self._size = 0  # of all that were put off

    @property
    def has_room(self) -> bool:
        """Whether more versions may be put off."""
        return len(self._latest) < MOST_PUT_OFF and self._size < _MOST_PUT_OFF_BYTES

    def put_off(self, versions: Sequence[Record], page: Sequence[str]) -> None:
        """Put off these versions of a page.

        Args:
            versions: one of each record.
            page: the keys of all records of the page; it may have a record in several versions.
        """
        if not versions:  # as of nearly all pages
            return
        new = {one.key: one for one in versions}
        self._times.update(key for key in page if key in new)
        for key, one in new.items():
            self._count += 1
            before = self._latest.get(key)
            if before is None or not is_older(one.modified, before.modified):
                self._latest[key] = one
                self._size += len(one.raw)

    def at_end(self, listed: KeyCounts) -> tuple[list[Record], int]:
        """The versions to be compared now that the listing has ended, and how many others are superseded.

        Args:
            listed: the keys of the listing, those of versions that were put off included.
        """
        left = [one for key, one in self._latest.items() if listed[key] <= self._times[key]]
        return left, self._count - len(left)


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
