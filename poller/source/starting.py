"""Where a round starts, and what it leaves for the next one to start from: a feed's marks, read and written.

Theory of operation
-------------------
The state says which reading is due (:func:`poller.source.feed.due`). A rotation over many listings goes on where the
last round left it; whoever wants all to be read begins one. What an operator has ordered makes a round read everything
whatever the API calls unchanged.

A round that was not complete leaves its result and nothing else: the next one reads the same again. One that was leaves
the delta token, and what that token belongs to. A full one moves the moment of the last full reading as well, takes the
orders off that it has carried out, and shows what it held back.

The law: no mark moves past what was not read. Pure: the moment is an argument.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from poller.changes.events import recorded_time
from poller.source.feed import Feed, Mode, due
from poller.source.learning import Learnt, learnt_of
from poller.source.result import RoundResult
from poller.store.state import (
    DELTA_TOKEN,
    DELTA_TOKEN_AT,
    FIELDS,
    GOOD_AT,
    HELD,
    HELD_AT,
    ID_FIELD,
    LEARNT,
    NEXT_AT,
    OLDEST,
    QUERY,
    READ_AT,
    REFUSALS,
    RELEASED,
    RESYNC,
    ROTATION,
    ROUND,
    ROUND_AT,
    FeedState,
    fields_mark,
)

# The readings that find all of their listing in the store already, if it is as it was. In the others something is
# missing: the first reading itself, what a lost token may have skipped, or what another query asks for.
_ON_CONDITION: Final = frozenset({Mode.FULL, Mode.RECONCILE})


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Where a round starts.

    Attributes:
        mode: the kind of reading.
        since: the delta token that it starts from; None where it has none.
        begun: when the reading began, or the rotation that it goes on with.
        resumed: whether it goes on with one.
        orders: the marks of what an operator has ordered.
        refusals: how many delta tokens in a row the API has refused.
        learnt: what is known of the API.
        held_at: since when removals wait for an operator; None where none do, or it is not known.
    """

    mode: Mode
    since: str | None
    begun: datetime
    resumed: bool
    orders: tuple[str, ...]
    refusals: int
    learnt: Learnt
    held_at: datetime | None = None

    @property
    def on_condition(self) -> bool:
        """Whether the API may answer that a listing is unchanged."""
        return self.mode in _ON_CONDITION and not self.orders

    def without_token(self) -> Start:
        """The same where the API has refused the delta token."""
        return msgspec.structs.replace(self, mode=Mode.RESYNC, since=None, refusals=self.refusals + 1)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What a round came to.

    Attributes:
        at: the wall clock, UTC.
        result: how it ended.
        complete: whether everything was read, and what that means for removals is settled or held.
        as_before: whether the listing is unchanged, and was not read.
        delta_token: where the next delta starts; None where the API gave none.
        fields: that were asked for, empty for all.
        held: why removals wait for an operator; None where none do.
        next_at: when the next round is due; None where that is not known.
    """

    at: datetime
    result: RoundResult
    complete: bool
    as_before: bool
    delta_token: str | None
    fields: tuple[str, ...]
    held: str | None
    next_at: datetime | None = None


def start_of(feed: Feed, state: FeedState, now: datetime) -> Start:
    """Where a round of this feed starts now."""
    mode, since = due(feed, state, now)
    orders = tuple(name for name, given in ((RELEASED, state.released), (RESYNC, state.resync)) if given)
    goes_on = feed.slot is not None and (mode is Mode.BASELINE or (mode in _ON_CONDITION and not orders))
    rotation = state.rotation if goes_on else None
    anew = state.resync or state.query != feed.fingerprint
    return Start(
        mode=mode,
        since=since,
        begun=rotation or now,
        resumed=rotation is not None,
        orders=orders,
        refusals=0 if anew else state.refusals,
        learnt=learnt_of(None if state.resync else state.learnt).about(feed.fingerprint),
        held_at=state.held_at if state.held else None,
    )


def marks_of(feed: Feed, start: Start, end: End) -> dict[str, str | None]:
    """What a round leaves behind: its result and, if it was complete, where the next one starts. None: a mark goes."""
    now = recorded_time(end.at)
    marks: dict[str, str | None] = {ROUND: msgspec.json.encode(end.result.public).decode(), ROUND_AT: now}
    if end.next_at is not None:
        marks[NEXT_AT] = recorded_time(end.next_at)
    if end.result.ok:
        marks[GOOD_AT] = now
    if end.result.learnt is not None:
        marks[LEARNT] = msgspec.json.encode(end.result.learnt).decode()
    if end.complete:
        marks |= _where_the_next_one_starts(feed, start, end)
    elif end.result.ok and end.as_before:
        marks[READ_AT] = recorded_time(start.begun)
    return marks


def rotation_marks(start: Start, *, over: bool, oldest: int | None) -> dict[str, str | None]:
    """What a round over many listings leaves besides.

    Args:
        start: where it started.
        over: whether all of them were tried.
        oldest: when the one was read that was not read for the longest time, milliseconds; None before all were.
    """
    shown = None if oldest is None else recorded_time(datetime.fromtimestamp(oldest / 1000, UTC))
    return {ROTATION: None if over else recorded_time(start.begun), OLDEST: shown}


def _where_the_next_one_starts(feed: Feed, start: Start, end: End) -> dict[str, str | None]:
    full = start.mode is not Mode.DELTA
    marks: dict[str, str | None] = {
        QUERY: feed.fingerprint,
        ID_FIELD: feed.id_field,
        FIELDS: fields_mark(end.fields),
        REFUSALS: str(start.refusals) if start.refusals and full else None,
    }
    if end.delta_token and feed.delta:
        marks |= {DELTA_TOKEN: end.delta_token, DELTA_TOKEN_AT: recorded_time(end.at)}
    elif full:
        marks |= dict.fromkeys((DELTA_TOKEN, DELTA_TOKEN_AT))
    if full:
        marks |= {READ_AT: recorded_time(start.begun), HELD: end.held, **dict.fromkeys(start.orders)}
        marks[HELD_AT] = recorded_time(start.held_at or end.at) if end.held else None
    return marks
