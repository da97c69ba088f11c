"""The state of a feed: its hash in Redis, read into one value.

The fields are written by commits (``Commit.marks``), together with the events they belong to, and by orders
(:mod:`poller.store.commands`). All of them are text; a field that is missing or unreadable counts as absent, for the
state may have been written by another version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

import msgspec

GENERATION: Final = "generation"

# The marks: names of fields that a round sets.
DELTA_TOKEN: Final = "delta_token"  # noqa: S105 -- a field's name
QUERY: Final = "query"
FIELDS: Final = "fields"
TOKEN_SEQUENCE: Final = "token_sequence"  # noqa: S105 -- as above
DELTA_TOKEN_AT: Final = "delta_token_at"  # noqa: S105 -- as above
READ_AT: Final = "read_at"
ROUND: Final = "round"
ROUND_AT: Final = "round_at"
GOOD_AT: Final = "good_at"
REFUSALS: Final = "refusals"
TOKEN_FAILURES: Final = "token_failures"  # noqa: S105 -- a field's name
HELD: Final = "held"
HELD_AT: Final = "held_at"
HELD_MISSING: Final = "held_missing"
RELEASED: Final = "released"
RELEASED_MISSING: Final = "released_missing"
RESYNC: Final = "resync"
LEARNT: Final = "learnt"
ROTATION: Final = "rotation"
OLDEST: Final = "oldest"
ID_FIELD: Final = "id_field"
ORIGIN: Final = "origin"
HELD_ORIGIN: Final = "held_origin"
ANEW_AT: Final = "anew_at"
# When the state was created, as ANEW_AT, and after which entry of the stream; a round does not look at them.
BEGUN_AT: Final = "begun_at"
BEGUN_AFTER: Final = "begun_after"
# The same moment, if it was created because an operator wanted it.
ORDERED_AT: Final = "ordered_at"
# The generations before, the newest first, and where each reset came: GENERATION=ENTRY.
FORMERS: Final = "formers"
RESETS: Final = "resets"
LOST: Final = "lost"
LOST_AT: Final = "lost_at"
NEXT_AT: Final = "next_at"
MISSING_AT: Final = "missing_at"
UNIDENTIFIED: Final = "unidentified"
CONFIRMATION: Final = "confirmation"
PROGRESS: Final = "progress"
BACKWARDS: Final = "backwards"
HELD_VERSIONS: Final = "held_versions"
SECOND_LOOK: Final = "second_look"
TOMBSTONES: Final = "tombstones"
TAKEN_OVER: Final = "taken_over"
RECHECK_AT: Final = "recheck_at"
RECHECK_FROM: Final = "recheck_from"
RECHECKED: Final = "rechecked"
# When all snapshots were looked at (poller.store.upkeep); a round does not look at it.
UPKEEP_AT: Final = "upkeep_at"

FORMS: Final = b"\xffforms"
"""The forms of the feed's snapshots. Its name is no text, so that earlier versions, which know one form, refuse it."""

Forms = Literal["1", "1 2", "2 after 1", "2", "3 after 1", "3"]
"""See :mod:`poller.store.snapshots`. Where the first form is named, records may stand in it."""


_WRITTEN: Final[Mapping[str, int]] = {"1": 1, "1 2": 2, "2 after 1": 2, "2": 2, "3 after 1": 3, "3": 3}
_LATEST: Final[Mapping[Forms, Forms]] = {"2 after 1": "3 after 1", "2": "3"}


def written_form(forms: str) -> int | None:
    """The form in which snapshots are written where a feed has these; None: a later version has written them."""
    return _WRITTEN.get(forms)


def is_latest(forms: str) -> bool:
    """Whether these need no conversion."""
    return written_form(forms) == max(_WRITTEN.values())


def later_forms(forms: Forms, *, is_empty: bool) -> Forms:
    """What a feed has once each process reads all forms; ``is_empty``: it has no snapshots."""
    if forms == "1":
        return "3" if is_empty else "1 2"
    return _LATEST.get(forms, forms)


class Loss(msgspec.Struct, frozen=True):
    """A part of a feed that the store has lost.

    Attributes:
        kind: ``lost``: a part or all of what was known, or the stream; ``rolled back``: it holds what it held before;
            ``replaced``: it holds another installation's data.
        text: which part, in words.
        advice: what an operator is to do, in words.
        generation: of the feed now.
        sequence: of its last event now.
        former: the generation that was known before.
        former_sequence: the sequence that was known before, at least.
    """

    kind: Literal["lost", "rolled back", "replaced"]
    text: str
    advice: str
    generation: str
    sequence: int
    former: str | None = None
    former_sequence: int | None = None


class FeedState(msgspec.Struct, frozen=True, gc=False):
    """The state of a feed when its lease was acquired.

    Attributes:
        generation: drawn once when the state was created; a part of every event's id.
        sequence: the number of the last event; 0 where there was none yet.
        entry: the id of the last event's entry; None where that is not known.
        delta_token: where the next delta starts; None before the first complete reading and where the API has none.
        query: hash of the query that the token belongs to.
        fields: which were asked for, empty for all; None where that is not known.
        origin: where the known records came from, see :mod:`poller.source.feed`; None where that is not known.
        kept_records: how many records are known, removed ones included; None where that is not known.
        id_field: which key of the records their identity was read from; None before the first records.
        read_at: when the last complete full reading began; None before the first.
        good_at: when the last good round ended.
        refusals: how many delta tokens in a row the API has refused, each answered by a full reading.
        token_failures: how many requests with the delta token in a row were refused in a way that does not say that the
            token is no longer valid.
        held: why removals wait for an operator, in words; None where none do.
        held_at: since when, the first of the readings that held them.
        held_origin: another origin, of which nothing is published until an operator has decided; None where it is not
            that for which something is held.
        released: whether an operator has let them through.
        released_missing: how many records were missing then; None where that is not known.
        resync: whether an operator wants the feed to be read in full.
        learnt: what the API's answers said of it, as :mod:`poller.source.paging` writes it.
        rotation: when the reading of all listings that is under way began; None where none is.
        oldest: when the listing was read that was not read for the longest time; None before all were.
        round: the last round's result as JSON, as ``poller once --json`` prints it.
        round_at: when that round ended.
        delta_token_at: when the delta token was taken.
        token_sequence: of the last event when a delta had last been read to its end, or the token was taken, and a
            digest of the token: later events may be of a delta that was broken off. None where that is not known.
        missing_at: when records were last marked as missing, milliseconds of the server's clock; None for never.
        unidentified: how many records of the last full reading had no id that can be read.
        backwards: how many versions were older than the known one, ever.
        held_versions: how many of them are held back.
        second_look: when a full reading is due for these, milliseconds of the server's clock; None where none are.
        recheck_at: when a full reading is due that looks for what the listing did not show yet; None where none is.
        recheck_from: from when on the listing shows it; an older copy of a cache does not count as that reading.
        rechecked: how many such readings were ordered one after the other.
        tombstones: how many of the known records are removed; None where that was not counted yet.
        taken_over: how often records went to other keys, because the JSON type of their ids had changed.
        next_at: when the next round is due, as its process saw it when the last one ended; None where it was not known.
        confirmation: whether the feed is read in full again, as :mod:`poller.changes.full_readings` writes it.
        progress: how far the round that is under way has come, as :mod:`poller.source.feed` writes it; None where
            none has been for long.
        formers: the generations before this one, as far as they are known, the newest first.
        begun_at: when the generation was drawn, milliseconds of the server's clock.
        ordered_at: when an operator last had the feed reset, likewise; equal to ``begun_at`` where that drew this one.
        anew_at: when the feed was reset because a part of it was lost, or by an operator, likewise.
        lost: what was lost last, in words.
        lost_at: when that was noticed.
        forms: of its snapshots.
        now_ms: the server's clock when the lease was taken; 0 where it was not asked. Not a part of the hash.
        loss: the loss found when the lease was acquired, if it was not reported yet. Not a part of the hash.
    """

    generation: str
    sequence: int
    entry: str | None = None
    delta_token: str | None = None
    query: str | None = None
    fields: tuple[str, ...] | None = None
    id_field: str | None = None
    origin: str | None = None
    kept_records: int | None = None
    read_at: datetime | None = None
    good_at: datetime | None = None
    refusals: int = 0
    token_failures: int = 0
    held: str | None = None
    held_at: datetime | None = None
    held_origin: str | None = None
    released: bool = False
    released_missing: int | None = None
    resync: bool = False
    learnt: str | None = None
    rotation: datetime | None = None
    oldest: datetime | None = None
    round: str | None = None
    round_at: datetime | None = None
    delta_token_at: datetime | None = None
    token_sequence: str | None = None
    next_at: datetime | None = None
    missing_at: int | None = None
    unidentified: int = 0
    tombstones: int | None = None
    taken_over: int = 0
    confirmation: str | None = None
    progress: str | None = None
    backwards: int = 0
    held_versions: int = 0
    second_look: int | None = None
    recheck_at: datetime | None = None
    recheck_from: datetime | None = None
    rechecked: int = 0
    formers: tuple[str, ...] = ()
    begun_at: int | None = None
    ordered_at: int | None = None
    anew_at: int | None = None
    lost: str | None = None
    lost_at: datetime | None = None
    forms: Forms = "1"
    now_ms: int = 0
    loss: Loss | None = None


class IdleStart(msgspec.Struct, frozen=True, gc=False):
    """Where the next delta starts, as long as the feed in the store is as this process knows it.

    Attributes:
        feed: the definition that this was decided by; it says nothing to another one.
        digest: of the state in the store; see ``lua/state_digest.lua``.
        generation: of the feed.
        sequence: of its last event.
        delta_token: that the delta starts from.
        read_at: when the last full reading began.
        recheck_at: see :attr:`FeedState.recheck_at`.
        params: of the request for the delta, without the token.
    """

    feed: object
    digest: bytes
    generation: str
    sequence: int
    delta_token: str
    read_at: datetime
    recheck_at: datetime | None
    params: tuple[tuple[str, str], ...]


def state_of(fields: Mapping[bytes, bytes]) -> FeedState:
    """The state from the hash as Redis answers it.

    Raises:
        ValueError: it has no readable sequence, a field that no version of this program has written, or snapshots of a
            form that a later version has written.
    """
    found: dict[str, Any] = {"generation": "", "sequence": 0}
    for field, value in fields.items():
        if field == FORMS:
            found["forms"] = _forms(value)
        elif (known := _BY_FIELD.get(field)) is not None:
            attribute, decode = known
            decoded = decode(value.decode("utf-8", "replace"))
            if decoded is not None:
                found[attribute] = decoded
        else:
            field.decode()  # a name that is no text is a later version's
    return FeedState(**found)


def marked(state: FeedState, marks: Mapping[str, str | None]) -> FeedState:
    """The state once these marks are set. Only such as stand in the state under their own names."""
    read = state_of({name.encode(): (value or "").encode() for name, value in marks.items() if value is not None})
    return msgspec.structs.replace(state, **{name: getattr(read, name) for name in marks})


def _forms(value: bytes) -> Forms:
    text = value.decode("utf-8", "replace")
    if written_form(text) is None:
        raise ValueError(f"snapshots of the forms {text!r}, which a later version has written")
    return cast("Forms", text)


def fields_mark(fields: tuple[str, ...]) -> str:
    """The fields that were asked for as a mark; :attr:`FeedState.fields` gives them back."""
    return msgspec.json.encode(fields).decode()


_decode_fields: Final = msgspec.json.Decoder(tuple[str, ...]).decode


def _fields(text: str) -> tuple[str, ...] | None:
    try:
        return _decode_fields(text) if text else None
    except msgspec.MsgspecError:
        return None


def _first_number(text: str) -> int | None:
    return _whole(text.partition(" ")[0])


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _decimal(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text) if text else None
        return moment if moment is None or moment.tzinfo is UTC else moment.astimezone(UTC)
    except ValueError:
        return None


_ATTRIBUTES: Final = {"kept": "kept_records"}  # all others have the name of their field in the hash
_BY_TYPE: Final[Mapping[Any, Callable[[str], object]]] = {
    str: str,
    str | None: lambda text: text or None,
    int: _whole,
    int | None: _whole,
    float | None: _decimal,
    bool: lambda _: True,
    datetime | None: _moment,
}
_DECODERS: Final[Mapping[str, Callable[[str], object]]] = {
    one.name: _BY_TYPE[one.type] for one in msgspec.structs.fields(FeedState) if one.type in _BY_TYPE
} | {
    "sequence": int,  # without it nothing may be written
    "kept": _first_number,
    FORMERS: lambda text: tuple(text.split()),
    FIELDS: _fields,
}
_BY_FIELD: Final = {name.encode(): (_ATTRIBUTES.get(name, name), decode) for name, decode in _DECODERS.items()}
_NOT_STORED: Final = {"loss", "forms"}  # the one is not kept, the other not under its name
if undecoded := set(FeedState.__struct_fields__) - _DECODERS.keys() - set(_ATTRIBUTES.values()) - _NOT_STORED:
    raise TypeError(f"FeedState: no decoder for {', '.join(sorted(undecoded))}; add its type to _BY_TYPE")
