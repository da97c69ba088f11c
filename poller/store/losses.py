"""What is found when a feed's lease is taken, against what was known of it: is all there, or was something lost?

Theory of operation
-------------------
A *generation* is drawn whenever a feed's state is created, and keeps the ones before it with it. A process remembers
the generation and the sequence that it saw last, and so does another place of the store, for those that come later.

==============================================  =====================================================
the store holds                                 then
==============================================  =====================================================
the generation known, no lower a sequence       all is there
the generation known, a lower sequence          rolled back: what came since comes again, with the same ids
one that followed on the one known              a part was lost, and the feed was begun anew
one that the one known had followed on          rolled back, to before something was lost
one that followed on the same as the one known  a part was lost twice, and another process has begun the feed anew
any other                                       replaced: it is another installation's
==============================================  =====================================================

Law: a feed of which a part is missing is begun anew as a whole, for snapshots, dictionaries and generation say nothing
without one another; the stream alone may be lost by itself. Who finds a loss that another process has told already
tells it no more.

Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from poller.changes.events import recorded_time
from poller.store.registrations import moment_of
from poller.store.state import ANEW_AT, DELTA_TOKEN, LOST, LOST_AT, READ_AT, ROTATION, FeedState, Loss

ORDER: Final = "order"
STREAM: Final = "stream"
# What the script that begins a round says is missing, in words.
_PARTS: Final = {
    "all": "all that was kept of it",
    "state": "its state",
    "snapshots": "what was known of its records",
    "dictionaries": "the dictionaries that its snapshots were packed with",
    "qualifications": "the qualifications that it had named",
}
_ANEW: Final = (
    "nothing is to be done for the feed: it is read anew, and webhooks do not get that reading again. Events not yet "
    "delivered may be gone. Find out what took it from the store: FLUSHALL, eviction, a volume that is not there"
)
_STREAM: Final = (
    "the feed goes on; events that were in the stream and not yet read are gone. `poller resync --anew` publishes all "
    "records again for readers of the stream"
)
_ROLLED_BACK: Final = (
    "nothing is to be done for the feed: what was lost is read and published again, with the same ids. Find out "
    "whether a backup was restored, or a failover lost acknowledged writes"
)
_REPLACED: Final = (
    "are redis.url and redis.prefix right? If they are, nothing is to be done: the next reading publishes what differs "
    "as a baseline, which webhooks do not get"
)


class Remembered(msgspec.Struct, frozen=True):
    """What was known of a feed.

    Attributes:
        generation: of its state.
        sequence: of its last event, at least.
        formers: the generations before that one, the newest first.
        told: how many losses of this feed were found so far; whoever finds the next one counts on.
    """

    generation: str
    sequence: int
    formers: tuple[str, ...] = ()
    told: int = 0

    @property
    def lineage(self) -> tuple[str, ...]:
        """All generations of the feed that are known."""
        return (self.generation, *self.formers)


def loss_of(known: Remembered | None, state: FeedState, found: str) -> Loss | None:
    """What was lost; None where nothing was.

    Args:
        known: before.
        state: now.
        found: the word of :data:`poller.store.scripts.BEGIN` on what was missing.
    """
    if found in _PARTS:
        return _loss(known, state, _PARTS[found])
    if found == STREAM:
        return _with(known, state, kind="lost", text="events that its stream held", advice=_STREAM)
    if known is None or found == ORDER:
        return None
    if state.generation in known.lineage:
        before = state.generation != known.generation
        return _rolled_back(known, state) if before or state.sequence < known.sequence else None
    if not set(known.lineage).isdisjoint(state.formers):
        return _loss(known, state, "what was kept of it")
    return _with(
        known, state, kind="replaced", text="another installation's data stands in its place", advice=_REPLACED
    )


def loss_marks(loss: Loss, *, now_ms: int) -> dict[str, str | None]:
    """What the state is to say of a loss, for whoever asks how the feed does.

    A feed that is another's keeps what it holds, for it may be needed there; that nobody here gets it all as changes,
    the next reading is its baseline.
    """
    marks: dict[str, str | None] = {LOST: loss.text, LOST_AT: recorded_time(moment_of(now_ms))}
    if loss.kind == "replaced":
        marks |= {READ_AT: None, DELTA_TOKEN: None, ROTATION: None, ANEW_AT: str(now_ms)}
    return marks


def told_already(known: Remembered, noted: Remembered | None) -> bool:
    """Whether another process has found a loss of the same feed since, and has noted so."""
    related = noted is not None and not set(noted.lineage).isdisjoint(known.lineage)
    return noted is not None and related and noted.told > known.told


def further(noted: Remembered, known: Remembered) -> bool:
    """Whether this is the same feed as is known, at a later event or after another loss."""
    related = not set(noted.lineage).isdisjoint(known.lineage)
    return related and (noted.told, noted.sequence) > (known.told, known.sequence)


def _loss(known: Remembered | None, state: FeedState, text: str) -> Loss:
    return _with(known, state, kind="lost", text=text, advice=_ANEW)


def _rolled_back(known: Remembered, state: FeedState) -> Loss:
    text = f"the store went back from event {known.sequence} to event {state.sequence}"
    if state.generation != known.generation:
        text = "the store went back to before it lost a part of the feed"
    return _with(known, state, kind="rolled back", text=text, advice=_ROLLED_BACK)


def _with(known: Remembered | None, state: FeedState, **said: str) -> Loss:
    place = {"generation": state.generation, "sequence": state.sequence}
    if known is not None:
        place |= {"former": known.generation, "former_sequence": known.sequence}
    return msgspec.convert(said | place, Loss)
