"""A model of a feed consumer's store in plain values, with faults on request."""

from __future__ import annotations

from asyncio import Future, ensure_future
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from poller.errors import GroupGone, StoreUnavailable
from poller.store.backfill import Backfill
from poller.store.consumer_state import Entry, FirstReading, SentSettlement, Settlement, Start
from poller.store.scripts import ScriptCall
from poller.store.stream import EntryId

T = TypeVar("T")


def at_once(work: Awaitable[T]) -> T:
    """The result of an awaitable that never really waits."""
    running: Any = work.__await__()
    try:
        next(running)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits")


class Ledger:
    """A stream, a group, the scheduled retries and the dead letters."""

    def __init__(self) -> None:
        self.held = True
        self.stream: dict[str, bytes] = {}
        self.kept: dict[str, bytes] = {}
        self.letters: dict[str, bytes] = {}
        self.group: dict[str, None] | None = None
        self.position = "0-0"
        self.place = "0-0"
        self.remade = False  # a new group may read settled entries again, and starts at the stored place
        self.lose_reply = False
        self.given_up = 0  # readings and settlements whose answer is not awaited any more
        self.told: Backfill | None = None
        self.reading = FirstReading(has_begun=True, has_ended=True, is_repeated=False)

    def add(self, event: bytes) -> str:
        entry = f"{len(self.stream) + 1}-0"
        self.stream[entry] = event
        return entry

    async def open(self, start: Start) -> None:  # noqa: ARG002 -- as the real one
        if self.group is None:
            self.remade = self.position != "0-0"
            self.group, self.position = {}, self.place

    async def parked(self) -> dict[str, bytes]:
        return dict(self.kept)

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        if self.group is None:
            raise GroupGone("gone")
        found = sorted(self.group, key=EntryId.parse)
        behind = EntryId.parse(after) if after != "0" else (0, 0)
        return self._answer([one for one in found if EntryId.parse(one) > behind][:most])

    async def read(self, *, most: int) -> list[Entry]:
        if self.group is None:
            raise GroupGone("gone")
        found = [one for one in self.stream if EntryId.parse(one) > EntryId.parse(self.position)][:most]
        self.group |= dict.fromkeys(found)
        self.position = found[-1] if found else self.position
        return self._answer(found)

    def begin_read(self, *, most: int) -> Future[Any]:
        return ensure_future(self.read(most=most))

    async def entries_of(self, answer: Future[Any]) -> list[Entry]:
        entries: list[Entry] = await answer
        return entries

    def begin_settle(self, settlement: Settlement, *, now_ms: int) -> SentSettlement:
        call = ScriptCall("settle", (), ())
        return SentSettlement(0, call, ensure_future(self.settle(settlement, now_ms=now_ms)))

    def note_answer(self, sent: SentSettlement) -> bool:
        return not sent.answer.cancelled() and sent.answer.exception() is None

    async def settled(self, sent: SentSettlement) -> None:
        await sent.answer

    def give_up(self, reading: Future[Any] | None, sent: SentSettlement | None) -> None:
        for answer in (reading, sent and sent.answer):
            if answer is not None:
                self.given_up += 1
                answer.cancel()

    async def fetch(self, entries: Sequence[str]) -> Mapping[str, bytes]:
        return {one: self.stream[one] for one in entries if one in self.stream}

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:  # noqa: ARG002 -- as the real one
        for one in settlement.acked:
            (self.group or {}).pop(one, None)
        self.kept |= settlement.parked
        for one in settlement.unparked:
            self.kept.pop(one, None)
        self.letters |= settlement.letters
        if settlement.place:
            assert self.remade or EntryId.parse(settlement.place) >= EntryId.parse(self.place), (
                "the place never goes back"
            )
            self.place = settlement.place

        place = settlement.backfill
        if place and self.told and place.id == self.told.id:
            at_place = msgspec.structs.replace(self.told, at=place.at, done=place.done)
            self.told = at_place if place.at else None

    async def backfill(self) -> Backfill | None:
        return self.told

    async def first_reading(self) -> FirstReading:
        return self.reading

    def _answer(self, found: Sequence[str]) -> list[Entry]:
        if self.lose_reply:
            self.lose_reply = False
            raise StoreUnavailable("the reply was lost")
        return [(one, self.stream.get(one)) for one in found]
