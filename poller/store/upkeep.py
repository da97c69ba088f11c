"""The upkeep of a feed's snapshots: old dictionaries and the content of removed records go.

Theory of operation
-------------------
Two things are left behind in snapshots. Some name an old dictionary: one that an earlier version made, which may hold
values of records, or one from before the API gave its records other properties, which makes snapshots larger than they
need be. And tombstones hold the content of removed records for ``retention.removed``. A *pass* scans all
snapshots in slices, in the background, beside the feed's rounds: it packs those again that name an old dictionary, and
empties the tombstones that are old enough. When it has seen all of them, it empties the old dictionaries.

A sample tells, once a day, whether records have other properties now: most of it has no layout, and a dictionary that
is trained on it saves a fifth (:meth:`~poller.store.snapshots.SnapshotCodec.improvement`).

A round adds the new dictionary, for only a round can do that without refusing its own commits; :attr:`wants_dictionary`
asks it to. From then on no process writes with the old one: a commit is refused if its process knows fewer dictionaries
than there are. So a pass that begins after that, and reaches its end, has seen all snapshots that name the old one.

**Invariants**

- Each snapshot is replaced only if it is still what was read: what a round has written since stays.
- Each script checks the feed's lease, its generation, and how many dictionaries it has; one that writes snapshots
  checks their forms as well.
- A dictionary is emptied at the end of a pass alone, and a pass ends only within one process of the server: a cursor
  says nothing to another one, and a store that went back may have named it again.
- The number of dictionaries never falls, so a process that knows only an old one is refused.
- A step takes about :data:`STEP`; a pass that was broken off begins again and finds what it has done.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.changes.diff import Snapshot
from poller.clock import Clock, milliseconds_of
from poller.errors import Fenced, Stale
from poller.redis.errors import translated
from poller.store.feed_state import FORMS, GENERATION, TOMBSTONES, UPKEEP_AT, Forms, is_latest, written_form
from poller.store.keys import FeedKeys
from poller.store.scripts import in_any_case, lua
from poller.store.snapshots import FIRST_LOOK, SnapshotCodec, UnknownDictionary, key_of, sampled

STEP: Final = timedelta(milliseconds=100)
"""How long a step works before others have their turn."""

LONGEST: Final = timedelta(days=1)
"""Between two passes of a feed that has tombstones."""

_SHORTEST: Final = timedelta(minutes=1)
_PART: Final = 10  # of retention.removed: how much longer than that content may stay
_SLICE_BYTES: Final = 1024 * 1024  # of records, packed when they are read, unpacked when they are packed again
_FIRST_COUNT: Final = 16
_MOST_AT_ONCE: Final = 500
_CLEARLY_MOST: Final = 0.75  # of a few samples: then it is most of all
_REPACKING: Final = (
    "the feed has a new dictionary, beside the rounds: the former one holds values of records, or makes them larger"
)

_log = structlog.get_logger("poller.store")


class UpkeepScripts:
    """The scripts, registered once for a client and shared by its feeds."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        first = in_any_case(shebang)
        self.scan: AsyncScript = client.register_script(lua("scan_snapshots"))
        self.convert: AsyncScript = client.register_script(first + lua("convert_snapshots"))
        self.end: AsyncScript = client.register_script(first + lua("end_upkeep"))


class _Pass(msgspec.Struct):
    """A scan of all snapshots that is under way.

    Attributes:
        codec: packs them again.
        generation: of the feed.
        forms: of its snapshots.
        cut_ms: tombstones from before this moment lose their content.
        began: on the monotonic clock.
        cursor: where it goes on; 0: it has not begun.
        run_id: of the server's process that has given the cursor.
        count: how many snapshots are read at a time.
        packed, emptied: how many were packed again, and how many tombstones have lost their content.
    """

    codec: SnapshotCodec
    generation: bytes
    forms: Forms
    cut_ms: int
    began: float
    cursor: int = 0
    run_id: bytes = b""
    count: int = _FIRST_COUNT
    packed: int = 0
    emptied: int = 0


class SnapshotUpkeep:
    """The upkeep of one feed. The process with its lease steps forward now and then.

    Attributes:
        wants_dictionary: whether the next round is to add a dictionary in place of an outdated one.
        awaits_round: whether a round has to do that first, or to find that all processes read a later form.
    """

    def __init__(
        self, client: Redis, scripts: UpkeepScripts, keys: FeedKeys, *, nonce: str, removed: timedelta, clock: Clock
    ) -> None:
        """Take what the upkeep works with.

        Args:
            client: without retries of its own.
            scripts: for this client.
            keys: of the feed.
            nonce: proves that the lease is this process'.
            removed: how long a removed record's content is kept.
            clock: the store's.
        """
        self.wants_dictionary = self.awaits_round = False
        self._client = client
        self._scripts = scripts
        self._keys = keys
        self._nonce = nonce
        self._removed = removed
        self._clock = clock
        self._pass: _Pass | None = None
        self._sampled_at = -math.inf  # on the monotonic clock
        self._changed_since: int | None = None  # how many dictionaries there were when records had changed

    @property
    def interval(self) -> timedelta:
        """The time between two looks for something to do."""
        return min(max(self._removed / _PART, _SHORTEST), LONGEST) if self._removed else LONGEST

    def abandon(self) -> None:
        """Break off the pass that is under way, if any; another process has the lease."""
        self._pass = None
        self.wants_dictionary = self.awaits_round = False

    async def step(self) -> bool:
        """Work for a short time. Returns whether there is more to do.

        Raises:
            Fenced: the lease is another's.
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        if self._pass is None:
            self._pass = await self._due()
        until = self._clock.monotonic() + STEP.total_seconds()
        try:
            while self._pass is not None:
                await self._slice(self._pass)
                if self._clock.monotonic() >= until:
                    break
        except Stale:  # reset, converted, or the store went back: the next look sees what is to be done now
            self._pass = None
            return True
        except BaseException:
            self._pass = None
            raise
        return self._pass is not None

    async def _due(self) -> _Pass | None:
        """A new pass, if one is to be made."""
        names: Any = [GENERATION, FORMS, TOMBSTONES, UPKEEP_AT]
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            asking.hmget(self._keys.state, names)
            asking.hgetall(self._keys.dictionaries)
            (generation, stored_forms, tombstones, last), dictionaries = await asking.execute()
        forms = cast("Forms", (stored_forms or b"1").decode())
        form = written_form(forms)
        self.awaits_round = generation is not None and not is_latest(forms)
        if generation is None or form is None or forms == "1 2":  # a round converts them, or refuses them
            return None
        numbered = {int(number): content for number, content in cast("dict[bytes, bytes]", dictionaries).items()}
        codec = SnapshotCodec(numbered, form=form)
        self.wants_dictionary = bool(codec.outdated) and not codec.is_current
        if codec.is_current and not codec.outdated:
            self.wants_dictionary = await self._have_changed(codec)
        self.awaits_round = self.awaits_round or self.wants_dictionary
        now_ms = milliseconds_of(self._clock.now())
        is_old = not last or not 0 <= now_ms - int(last) < self.interval / timedelta(milliseconds=1)
        if self.wants_dictionary or not (codec.outdated or (tombstones not in (None, b"0") and is_old)):
            return None
        cut_ms = now_ms - int(self._removed / timedelta(milliseconds=1))
        if codec.outdated:
            _log.info("repacking snapshots", feed=self._keys.feed, advice=_REPACKING)
        return _Pass(codec, generation, forms, cut_ms, self._clock.monotonic())

    async def _have_changed(self, codec: SnapshotCodec) -> bool:
        """Whether records have other properties than when the dictionary was made. A sample is read once a day."""
        if not codec.dictionaries:  # the first one is made by a round, when there are enough records
            return False
        now = self._clock.monotonic()
        if now >= self._sampled_at + LONGEST.total_seconds():
            few = await sampled(self._client, self._keys.snapshots, most=FIRST_LOOK)
            changed = codec.share_laid_out(few) < _CLEARLY_MOST and await self._has_improvement(codec)
            self._sampled_at, self._changed_since = now, codec.dictionaries if changed else None
        return self._changed_since == codec.dictionaries

    async def _has_improvement(self, codec: SnapshotCodec) -> bool:
        stored = await sampled(self._client, self._keys.snapshots)
        return 2 * codec.share_laid_out(stored) < 1 and codec.improvement(codec.readable(stored)) is not None

    async def _slice(self, here: _Pass) -> None:
        with translated(self._client):
            answer: Any = await self._scripts.scan([self._keys.snapshots], [here.cursor, here.count])
        run_id, cursor, flat = answer[0], int(answer[1]), cast("list[bytes]", answer[2])
        if here.cursor and run_id != here.run_id:  # it knows nothing of the cursor, and may have an older copy
            raise Stale(f"another process of the server has {self._keys.feed}")
        size, found = sum(map(len, flat)), len(flat) // 2
        if found:
            here.count = max(min(_MOST_AT_ONCE, int(_SLICE_BYTES * found / max(size, 1)), here.count * 4), 1)
        for conversions in _slices(self._rewritten(here, zip(flat[::2], flat[1::2], strict=True))):
            await self._write(here, conversions)
        here.cursor, here.run_id = cursor, run_id
        if not cursor:
            await self._finish(here)

    def _rewritten(
        self, here: _Pass, found: Iterable[tuple[bytes, bytes]]
    ) -> Iterator[tuple[int, tuple[bytes, bytes, bytes, bytes]]]:
        """The snapshots to be replaced: the size of each; its field, what that holds, the field, what it is to hold."""
        outdated = frozenset(here.codec.outdated)
        for name, stored in found:
            is_outdated = here.codec.dictionary_of(stored) in outdated
            if not (is_outdated or here.codec.removed(stored)):
                continue
            with suppress(UnknownDictionary, ValueError, IndexError):  # its round finds that it cannot be read
                key = key_of(name)
                snapshot = here.codec.decode(key, stored)
                if snapshot.removed and snapshot.raw and snapshot.changed_at * 1000 <= here.cut_ms:
                    snapshot = without_content(snapshot)
                    here.emptied += 1
                elif not is_outdated:
                    continue
                here.packed += is_outdated
                yield len(snapshot.raw), (name, stored, name, here.codec.encode(key, snapshot))

    async def _write(self, here: _Pass, conversions: list[bytes]) -> None:
        keys = [self._keys.lease, self._keys.state, self._keys.snapshots, self._keys.dictionaries]
        checks: list[Any] = [self._nonce, here.generation, "", here.codec.dictionaries, FORMS, here.forms, here.forms]
        with translated(self._client):
            self._checked(await self._scripts.convert(keys, [*checks, *conversions]))

    async def _finish(self, here: _Pass) -> None:
        keys = [self._keys.lease, self._keys.state, self._keys.dictionaries]
        now_ms = milliseconds_of(self._clock.now())
        checks: list[Any] = [self._nonce, here.generation, here.codec.dictionaries, now_ms]
        with translated(self._client):
            self._checked(await self._scripts.end(keys, [*checks, *here.codec.outdated]))
        if here.packed or here.emptied or here.codec.outdated:
            seconds = round(self._clock.monotonic() - here.began, 3)
            counts = {"repacked": here.packed, "tombstones_emptied": here.emptied}
            _log.info("snapshots kept up", feed=self._keys.feed, **counts, seconds=seconds)
        self._pass = None

    def _checked(self, answer: bytes) -> None:
        if answer == b"FENCED":
            raise Fenced(f"the lease of {self._keys.feed} is another process's; its snapshots are not kept up here")
        if answer == b"STALE":
            raise Stale(f"{self._keys.feed} was reset, converted, or has another dictionary")


def without_content(tombstone: Snapshot) -> Snapshot:
    """The tombstone with nothing of what the record was; its revision, sequence and moment stay."""
    return msgspec.structs.replace(tombstone, raw=b"", removed=True, missing=False, unreadable="")


def _slices(rewritten: Iterable[tuple[int, tuple[bytes, bytes, bytes, bytes]]]) -> Iterator[list[bytes]]:
    """The arguments of scripts, none of which keeps the store busy for others."""
    size, some = 0, list[bytes]()
    for length, one in rewritten:
        some += one
        size += length
        if size >= _SLICE_BYTES:
            yield some
            size, some = 0, []
    if some:
        yield some
