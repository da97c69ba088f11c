"""Projection: the part of an event that a subscription sends (``fields``, ``thin``).

==================  ==================================================================================
a pointer leads to  what happens
==================  ==================================================================================
a member            ``pick`` keeps it with all that is in it, ``drop`` takes it out
into an array       arrays count as a whole: ``pick`` keeps nothing of it, ``drop`` takes it out whole
nothing             ``pick`` keeps nothing, ``drop`` takes nothing out
==================  ==================================================================================

**Invariants**

* No value that was taken out is in the event that is sent: not in ``record``, in ``previous`` or in an attribute. Of
  ``data`` only members that are known here are sent. What cannot be read is refused, never sent whole.
* What stays has the bytes that were received, keys and numbers included, in the same order. Nothing is encoded again.
* ``changed`` names what the receiver can see to have changed. If that is nothing, the event is not sent; events
  without ``changed`` (created, removed) are always sent.
* ``pick`` keeps the record's id. ``drop`` takes out what it names.
* A projection of a projected event by the same settings is that event.
* The id of the event, and with it its ``webhook-id``, stays.
* Pure. Subscriptions with equal settings share the projection and its latest results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from poller.changes.canonical import parse
from poller.changes.diff import changed_pointers
from poller.delivery.cloudevent import Envelope, Event, LatestResults

Tree = dict[str, "Tree | None"]
"""Pointers by their segments; None: a pointer ends there."""

_MODIFIED: Final = "lastModifiedAt"
"""The member of a record that the attribute ``time`` is made of."""

_KEPT: Final = frozenset({"record", "previous", "omitted", "changed", "revision", "cause"})
_VALUES: Final = frozenset({"record", "previous", "omitted"})
_KEY: Final = re.compile(rb'[ \t\r\n]*,?[ \t\r\n]*("(?:[^"\\]|\\.)*+"[ \t\r\n]*:[ \t\r\n]*)', re.DOTALL)
_END: Final = re.compile(rb"[ \t\r\n]*\}[ \t\r\n]*")

_raw_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_pointers: Final = msgspec.json.Decoder(tuple[str, ...]).decode
_json: Final = msgspec.json.Encoder().encode


class Projection:
    """What a subscription sends of the events of a feed; :func:`projection_of` makes it."""

    def __init__(self, pick: Sequence[str], drop: Sequence[str], *, thin: bool, id_field: str) -> None:
        """Take pointers to pick, or to drop, or neither.

        Args:
            pick: kept with the id.
            drop: taken out.
            thin: send neither ``record`` nor ``previous``.
            id_field: the key of a record that identifies it.
        """
        self._pick = _tree([*pick, f"/{_escaped(id_field)}"]) if pick else None
        self._picked = tuple(pick)
        self._drop = _tree(drop)
        self._thin = thin
        self._hides_time = self._drop.get(_MODIFIED, self._drop) is None

    def of(self, event: Event) -> Event | None:
        """The event that is sent; None: the receiver would see no change, so it is not sent.

        Raises:
            ValueError: the event's data has another form than events of records have.
        """
        known = _projected.get((self, event[1]))
        if known is None:
            made = self._made(event)
            known = (made,)
            _projected.put((self, event[1]), known, len(event[1]) + (len(made[1]) if made else 0))
        return known[0]

    def _made(self, event: Event) -> Event | None:
        envelope, written = event
        if not envelope.data:
            return event
        if envelope.opaque:
            raise ValueError("its data is binary, so fields and thin cannot be applied")
        data = self._data(bytes(envelope.data))
        if data is None:
            return None
        time = envelope.recordedtime if self._hides_time else envelope.time
        sent = _replaced(written, envelope, data, time)
        return msgspec.structs.replace(envelope, data=Raw(data), time=time), sent

    def _data(self, data: bytes) -> bytes | None:
        """The data that is sent; None: nothing that is sent has changed."""
        members = {name: (key, value) for name, key, value in members_of(data, "data") if name in _KEPT}
        sides = {name: self._record(members[name][1], name) for name in ("record", "previous") if name in members}
        if "changed" in members:
            key, value = members["changed"]
            before = _changed_of(value)
            changed = self._changed(before, sides.get("previous"), sides.get("record"))
            if not changed:
                return None
            members["changed"] = key, value if changed == before else _json(changed)
        for name, side in sides.items():
            members[name] = members[name][0], side
        sent = [key + value for name, (key, value) in members.items() if not (self._thin and name in _VALUES)]
        return b"{" + b",".join(sent) + b"}"

    def _record(self, value: bytes, name: str) -> bytes:
        """What is sent of a record."""
        if not value.startswith(b"{"):
            raise ValueError(f"data.{name} is no object, so fields and thin cannot be applied")
        if self._pick is not None:
            return _picked(value, self._pick) or b"{}"
        return _without(value, self._drop) or b"{}"

    def _changed(self, pointers: tuple[str, ...], previous: bytes | None, record: bytes | None) -> tuple[str, ...]:
        """The pointers that the receiver sees."""
        kept, doubtful = list[str](), list[str]()
        for pointer in pointers:
            visible = self._is_visible(pointer)
            if visible is None:
                doubtful.append(pointer)
            elif visible:
                kept.append(pointer)
        if doubtful:
            kept += self._seen(doubtful, previous, record)
        return pointers if len(kept) == len(pointers) and not doubtful else tuple(sorted(set(kept)))

    def _is_visible(self, pointer: str) -> bool | None:
        """Whether all of what a pointer names is sent; None: a part of it may be."""
        tree: Tree = self._drop if self._pick is None else self._pick
        found = self._pick is not None  # what a pointer of the settings leads to is sent, or is not
        for segment in segments_of(pointer):
            below = tree.get(segment, tree)
            if below is tree:
                return not found
            if below is None:
                return found
            tree = below
        return None if tree else not found

    def _seen(self, doubtful: Sequence[str], previous: bytes | None, record: bytes | None) -> Iterator[str]:
        """The pointers that differ, of those that these name in part."""
        if previous is not None and record is not None:
            for pointer in changed_pointers(parse(previous), parse(record)):
                if touches(pointer, doubtful):
                    yield pointer
            return
        for pointer in doubtful:  # the version before is not in the event, so all that may have changed is named
            below = [] if pointer == "" else [one for one in self._picked if one.startswith(f"{pointer}/")]
            yield from below or [pointer]


_projected: Final[LatestResults[tuple[Projection, bytes], tuple[Event | None]]] = LatestResults()


@lru_cache(maxsize=1024)
def _shared(pick: tuple[str, ...], drop: tuple[str, ...], thin: bool, id_field: str) -> Projection:  # noqa: FBT001 -- a key
    return Projection(pick, drop, thin=thin, id_field=id_field)


def projection_of(
    pick: Iterable[str] = (), drop: Iterable[str] = (), *, thin: bool = False, id_field: str = "id"
) -> Projection:
    """The projection with these settings; the same one for equal settings."""
    return _shared(tuple(sorted(set(pick))), tuple(sorted(set(drop))), thin, id_field)


def touches(pointer: str, others: Iterable[str]) -> bool:
    """Whether a pointer is one of these, or leads below or above one of them."""
    below = f"{pointer}/"
    return any(pointer == other or pointer.startswith(f"{other}/") or other.startswith(below) for other in others)


def segments_of(pointer: str) -> list[str]:
    """The keys that a JSON pointer goes through."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _tree(pointers: Iterable[str]) -> Tree:
    root: Tree = {}
    for *above, last in map(segments_of, sorted(pointers, key=len)):
        tree: Tree | None = root
        for segment in above:
            tree = None if tree is None else tree.setdefault(segment, {})
        if tree is not None:  # else a pointer to what is around it is there
            tree[last] = None
    return root


def members_of(value: bytes, name: str) -> list[tuple[str, bytes, bytes]]:
    """The members of a JSON object, as received: key, its bytes with the colon, the bytes of the value.

    Raises:
        ValueError: no object; a key occurs twice. The message names it by ``name``.
    """
    found = []
    try:
        read = _raw_members(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ValueError(f"{name} is no object that can be read, so fields and thin cannot be applied") from None
    place = value.index(b"{") + 1
    for key, raw in read.items():
        written = _KEY.match(value, place)
        if written is None:
            break
        place = written.end() + len(raw)
        found.append((key, written[1], value[written.end() : place]))
    if len(found) != len(read) or not _END.fullmatch(value, place):
        raise ValueError(f"{name} has a key twice, so fields and thin cannot be applied")
    return found


def _picked(value: bytes, tree: Mapping[str, Tree | None]) -> bytes | None:
    """What is picked of a value that pointers lead into; None: nothing."""
    if not value.startswith(b"{"):
        return None
    kept = []
    for name, key, inner in members_of(value, "a record"):
        below = tree.get(name, {})
        part = inner if below is None else _picked(inner, below) if below else None
        if part is not None:
            kept.append(key + part)
    return b"{" + b",".join(kept) + b"}" if kept else None


def _without(value: bytes, tree: Mapping[str, Tree | None]) -> bytes | None:
    """What is left of a value that pointers lead into; None: nothing."""
    if value.startswith(b"["):
        return None
    if not tree or not value.startswith(b"{"):
        return value
    kept, is_cut = [], False
    for name, key, inner in members_of(value, "a record"):
        below = tree.get(name, tree)
        part = inner if below is tree else None if below is None else _without(inner, below)
        is_cut = is_cut or part is not inner
        if part is not None:
            kept.append(key + part)
    return b"{" + b",".join(kept) + b"}" if is_cut else value


def _changed_of(value: bytes) -> tuple[str, ...]:
    try:
        return _pointers(value)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ValueError("data.changed is no list of texts, so fields and thin cannot be applied") from None


def _replaced(written: bytes, envelope: Envelope, data: bytes, time: str | None) -> bytes:
    """The event with other data and another time."""
    if time == envelope.time and written[-1 - len(envelope.data) : -1] == bytes(envelope.data):
        return written[: -1 - len(envelope.data)] + data + b"}"  # as this program writes it: data is the last member
    replaced = {"data": data, "time": b"" if time is None else _json(time)}
    members = [(key, replaced.get(name, value)) for name, key, value in members_of(written, "the event")]
    return b"{" + b",".join([key + value for key, value in members if value]) + b"}"
