"""What follows from requests, as values: to be told, to be done, and to be written.

Pure. What follows is decided in :mod:`poller.delivery.books`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from poller.changes.events import recorded_time
from poller.delivery.attempts import Step
from poller.delivery.kept import Attempt, Letter, encode
from poller.store.deliveries import Settlement
from poller.store.replays import ReplayPlace


class Told(msgspec.Struct, frozen=True):
    """What follows for one event, to be told in the log.

    Attributes:
        entry: its place in the stream.
        event: its id; None where that is not known.
        attempt: which one it was, from 1.
        step: what follows.
        recorded: when the event was published, as it says; None where that is not known, or where it is delivered once
            more and was published long ago.
        size: bytes of the event; 0 where it is not here.
    """

    entry: str
    event: str | None
    attempt: int
    step: Step
    recorded: str | None = None
    size: int = 0


class Conclusion(msgspec.Struct, frozen=True):
    """What follows from one request.

    Attributes:
        told: for each of its events.
        pause: for how long the sink is to be sent nothing; None: it may be.
        rest: why the subscription gets nothing more at all; None: it does.
    """

    told: Sequence[Told]
    pause: timedelta | None = None
    rest: str | None = None


class Draft:
    """What is to be written next, and the lanes that go on when it is."""

    def __init__(self) -> None:
        self.acked: list[str] = []
        self.parked: dict[str, bytes] = {}
        self.unparked: list[str] = []
        self.letters: dict[str, bytes] = {}
        self.reopen: list[str] = []
        self.replay: ReplayPlace | None = None
        self.urgent = False  # something in those lanes waits for it

    def __bool__(self) -> bool:
        return bool(self.acked or self.parked or self.unparked or self.reopen or self.replay)

    def give_up(
        self, entry: str, event: bytes, reason: str, *, now: datetime, attempts: tuple[Attempt, ...] = ()
    ) -> None:
        """It becomes a dead letter."""
        self.letters[entry] = encode(Letter(msgspec.Raw(event), reason, recorded_time(now), attempts))

    @property
    def patient(self) -> bool:
        """Whether nothing but the crash of this process makes it matter when it is written."""
        return bool(self.acked) and not (self.parked or self.unparked or self.letters or self.urgent)

    def settlement(self, place: str) -> Settlement:
        """As the store takes it; every entry up to ``place`` is settled or parked with it."""
        return Settlement(self.acked, self.parked, self.unparked, self.letters, place, self.replay)
