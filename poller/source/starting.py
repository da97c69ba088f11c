"""Where a round starts, and what it leaves for the next one to start from: a feed's marks, read and written.

Theory of operation
-------------------
The state says which reading is due (:func:`poller.source.feed.due`). A rotation over many listings goes on where the
last round left it; whoever wants all to be read begins one. What an operator has ordered makes a round read everything
whatever the API calls unchanged.

A round that was not complete leaves its result: the next one reads the same again, but for a confirming reading that
took too long, which is counted. One that was leaves the delta token, and what that token belongs to. A full one moves
the moment of the last full reading as well, takes the orders off that it has carried out, and shows what it held back.

The law: no mark moves past what was not read. Pure: the moment is an argument.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from poller.changes.confirmation import Confirmation, after_reading, confirmation_mark, confirmation_of
from poller.changes.events import recorded_time
from poller.source.feed import Feed, Mode, due
from poller.source.learning import Learnt, learnt_of
from poller.source.origin import is_known
from poller.source.result import RoundResult
from poller.store.state import (
    CONFIRMATION,
    DELTA_TOKEN,
    DELTA_TOKEN_AT,
    FIELDS,
    GOOD_AT,
    HELD,
    HELD_AT,
    HELD_ORIGIN,
    ID_FIELD,
    LEARNT,
    NEXT_AT,
    OLDEST,
    ORIGIN,
    QUERY,
    READ_AT,
    REFUSALS,
    RELEASED,
    RESYNC,
    ROTATION,
    ROUND,
    ROUND_AT,
    UNIDENTIFIED,
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
        held_at: since when something waits for an operator; None where nothing does, or it is not known.
        holds: whether older versions are held back.
        held_origin: see :attr:`poller.store.state.FeedState.held_origin`.
        adopts: whether the feed's origin is to be written with what is read first; see :mod:`poller.source.origin`.
        deltas_since: the delta token from which deltas are read beside a full reading; None: none are.
        confirmation: what is to be confirmed of the readings before; None: nothing.
    """

    mode: Mode
    since: str | None
    begun: datetime
    resumed: bool
    orders: tuple[str, ...]
    refusals: int
    learnt: Learnt
    held_at: datetime | None = None
    holds: bool = False
    held_origin: str | None = None
    adopts: bool = False
    deltas_since: str | None = None
    confirmation: Confirmation | None = None

    @property
    def in_slots(self) -> bool:
        """Whether a reading of many listings may go on in the next round; one that was ordered is for all of them."""
        return self.mode in _ON_CONDITION and not self.orders

    @property
    def on_condition(self) -> bool:
        """Whether the API may answer that a listing is unchanged: not while it has to show what is held back."""
        return self.in_slots and not self.holds

    @property
    def confirms(self) -> bool:
        """Whether the reading is one of those that confirm the ones before."""
        return self.mode is Mode.RECONCILE and self.confirmation is not None and self.confirmation.due

    def without_token(self) -> Start:
        """The same where the API has refused the delta token."""
        return msgspec.structs.replace(
            self, mode=Mode.RESYNC, since=None, deltas_since=None, refusals=self.refusals + 1
        )


class End(msgspec.Struct, frozen=True, kw_only=True):
    """What a round came to.

    Attributes:
        at: the store's clock, UTC.
        result: how it ended.
        complete: whether everything was read, and what that means for removals is settled or held.
        as_before: whether the listing is unchanged, and was not read.
        delta_token: where the next delta starts; None where the API gave none.
        fields: that were asked for, empty for all.
        held: why something waits for an operator; None where nothing does. Of a round that was not complete: its origin
            is withheld, and nothing was read.
        next_at: when the next round is due; None where that is not known.
        pages: of the listing that was read last.
        late: how many records a full reading brought that no delta beside it had; None where that cannot be told.
        out_of_time: whether it was given up because it took too long.
    """

    at: datetime
    result: RoundResult
    complete: bool
    as_before: bool
    delta_token: str | None
    fields: tuple[str, ...]
    held: str | None
    next_at: datetime | None = None
    pages: int = 1
    late: int | None = None
    out_of_time: bool = False


def start_of(feed: Feed, state: FeedState, now: datetime) -> Start:
    """Where a round of this feed starts now."""
    mode, since = due(feed, state, now)
    orders = tuple(name for name, given in ((RELEASED, state.released), (RESYNC, state.resync)) if given)
    goes_on = feed.slot is not None and (mode is Mode.BASELINE or (mode in _ON_CONDITION and not orders))
    # One from what is still to come was begun before the store's clock was set back: it would have no end until then.
    rotation = state.rotation if goes_on and state.rotation is not None and state.rotation <= now else None
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
        holds=state.held_versions > 0,
        held_origin=state.held_origin,
        adopts=state.origin != feed.origin.mark
        and is_known(feed.origin, state)
        and state.query in (None, feed.fingerprint),
        deltas_since=state.delta_token if mode is Mode.RECONCILE else None,
        confirmation=confirmation_of(state.confirmation),
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
    if start.held_origin is not None and end.held is None and (end.result.ok or end.complete):
        marks |= dict.fromkeys((HELD, HELD_AT, HELD_ORIGIN))
    if end.complete:
        marks |= _where_the_next_one_starts(feed, start, end)
    elif end.held is not None:
        marks |= {HELD: end.held, HELD_AT: recorded_time(start.held_at or end.at), HELD_ORIGIN: feed.origin.mark}
        if RELEASED in start.orders:  # which was about something else
            marks[RELEASED] = None
    elif end.result.ok and end.as_before:
        marks[READ_AT] = recorded_time(start.begun)
    elif end.out_of_time and start.confirms:
        marks[CONFIRMATION] = confirmation_mark(start.confirmation and start.confirmation.after(None))
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
        ORIGIN: feed.origin.mark,
        FIELDS: fields_mark(end.fields),
        REFUSALS: str(start.refusals) if start.refusals and full else None,
    }
    if end.delta_token and feed.delta:
        marks |= {DELTA_TOKEN: end.delta_token, DELTA_TOKEN_AT: recorded_time(end.at)}
    elif full:
        marks |= dict.fromkeys((DELTA_TOKEN, DELTA_TOKEN_AT))
    if full:
        unidentified = end.result.unidentified
        undecided = bool(unidentified) and start.held_origin is None  # what removals are held was not looked at
        done = [order for order in start.orders if order != RELEASED or not undecided]
        marks |= {READ_AT: recorded_time(start.begun), **dict.fromkeys(done)}
        marks[UNIDENTIFIED] = str(unidentified) if unidentified else None
        if not undecided:
            marks |= {HELD: end.held, HELD_AT: recorded_time(start.held_at or end.at) if end.held else None}
        if start.held_origin is not None:
            marks[HELD_ORIGIN] = None
        if not feed.resource.per_qualification:
            marks[CONFIRMATION] = confirmation_mark(_to_be_confirmed(start, end)) if marks.get(DELTA_TOKEN) else None
    return marks


def _to_be_confirmed(start: Start, end: End) -> Confirmation | None:
    confirming = start.mode is Mode.RECONCILE
    return after_reading(start.confirmation, pages=end.pages, confirming=confirming, late=end.late)
