"""Inputs and results of the judge of deliveries to one sink.

Pure; imports nothing of the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

GRACE = 0.3
"""Seconds that a process on a busy machine may take to read an answer."""

_SHOWN = 4

Entry = tuple[str, bytes]
"""An entry's id and its event."""


@dataclass(frozen=True, slots=True)
class OnRecord:
    """What was settled at a moment: of each feed all entries up to ``last`` except those in ``open``."""

    at: float
    last: Mapping[str, str]
    open: Mapping[str, frozenset[str]]

    def holds(self, feed: str, entry: str) -> bool:
        return order(entry) <= order(self.last.get(feed, "0-0")) and entry not in self.open.get(feed, frozenset())


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding; ``at`` is CLOCK_MONOTONIC, or the time of publication of an event that is lost."""

    at: float
    text: str


@dataclass(slots=True, repr=False)
class Deliveries:
    """What was found at one sink; ``forgotten`` counts the accepted events that are no longer in the stream."""

    requests: int = 0
    events: int = 0
    forgotten: int = 0
    repeats: list[Fault] = field(default_factory=list)
    after_success: list[Fault] = field(default_factory=list)
    underway: list[float] = field(default_factory=list)
    unheard: list[float] = field(default_factory=list)
    lost: list[Fault] = field(default_factory=list)
    out_of_order: list[Fault] = field(default_factory=list)
    late: list[Fault] = field(default_factory=list)
    crowded: list[Fault] = field(default_factory=list)
    renamed: list[Fault] = field(default_factory=list)
    altered: list[Fault] = field(default_factory=list)
    forged: list[Fault] = field(default_factory=list)
    unwanted: list[Fault] = field(default_factory=list)
    early: list[Fault] = field(default_factory=list)
    uncalled: list[Fault] = field(default_factory=list)
    needless: list[Fault] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(self.faults().values())

    def kept_in_takeover(self, concurrency: int) -> bool:
        """Whether the only faults are those that a process resumed in the middle of sending may cause.

        It may finish the requests it had begun: at most ``concurrency``, each with an event that the other process has
        sent too, beside it or after it, recorded as settled or not.
        """
        allowed = ("late", "crowded", "needless")
        others = [found for name, found in self.faults().items() if name not in allowed]
        return not any(others) and all(len(getattr(self, name)) <= concurrency for name in allowed)

    def faults(self) -> dict[str, list[Fault]]:
        names = [one.name for one in fields(self)]
        return {name: getattr(self, name) for name in names[names.index("lost") :]}

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(found)}" for name, found in self.faults().items())
        told = f"{self.requests} requests, {self.events} events taken, {len(self.repeats)} repeats, "
        told += (
            f"{len(self.after_success)} of them after a 2xx, {len(self.underway)} underway, {len(self.unheard)} unheard"
        )
        lines = [f"  {name}: {fault.text}" for name, found in self.faults().items() for fault in found[:_SHOWN]]
        return "\n".join((f"{told}; {counts}", *lines))


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a subscription and of what was done to it.

    Attributes:
        wants: whether an event is for this sink.
        secret: the signing secret of its requests.
        due: how many entries of each feed have to be accepted by now; all of a feed that is not named.
        kills: the moments at which processes were killed.
        losses: the moments at which answers may have been lost on their way.
        resumed: the moments at which the subscription was resumed.
        on_record: what was settled, at moments in order.
        heard: seconds after which all processes know of a pause or stop that the sink asks for.
        grace: seconds after which a live process knows of an answer.
        given_up: of each feed the entries that became dead letters; those behind them may be sent.
        suspensions: from when to when processes were suspended: an answer to one of them is not heard meanwhile.
        outages: from when to when processes may have been unable to store anything: a pause reaches no other one then.
    """

    wants: Callable[[Mapping[str, Any]], bool] = lambda _: True
    secret: str | None = None
    due: Mapping[str, int] = field(default_factory=dict)
    kills: Sequence[float] = ()
    losses: Sequence[float] = ()
    resumed: Sequence[float] = ()
    on_record: Sequence[OnRecord] = ()
    heard: float = GRACE
    grace: float = GRACE
    given_up: Mapping[str, Collection[str]] = field(default_factory=dict)
    suspensions: Sequence[tuple[float, float]] = ()
    outages: Sequence[tuple[float, float]] = ()


def order(entry: str) -> tuple[int, int]:
    """An entry's id as a sortable value."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)
