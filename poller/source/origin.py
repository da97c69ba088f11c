"""Where a feed's records come from, and whether that is still the place that the known records came from.

**Invariants**

- The origin is written with the first records of a feed, and replaced only by a complete full reading of another one.
- A feed that knows records of one origin publishes nothing of another one until an operator has decided: the records of
  another API would appear as removed and created, all of them.

Pure.
"""

from __future__ import annotations

import msgspec

from poller.store.state import FeedState


class FeedOrigin(msgspec.Struct, frozen=True):
    """The place that a feed is read from, and the name of that place in its events.

    Attributes:
        base_url: of the source.
        path: of the listing, relative to that.
        event_source: prefix of the events' ``source``.
    """

    base_url: str
    path: str
    event_source: str

    @property
    def mark(self) -> str:
        """The value as it stands in the feed's state."""
        return msgspec.json.encode(self).decode()


def is_known(origin: FeedOrigin, state: FeedState) -> bool:
    """Whether what the state knows came from here; True where nothing is known, or not from where."""
    return state.origin in (None, origin.mark) or state.kept_records == 0


def is_withheld(origin: FeedOrigin, state: FeedState) -> bool:
    """Whether nothing of this origin may be published: another one is known, and no operator has released this one."""
    return not is_known(origin, state) and not (state.released and state.held_origin == origin.mark)


def withheld_reason(feed: str, origin: FeedOrigin, state: FeedState) -> str:
    """Why nothing is published, and what an operator can do."""
    return (
        f"{_differences(origin, state.origin)}: nothing is published. If the API has moved, "
        f"`poller release {feed}` publishes what differs; if it is another API, `poller resync {feed} --anew` reads it "
        "as new; else put the old value back"
    )


def _differences(origin: FeedOrigin, known: str | None) -> str:
    try:
        before = msgspec.json.decode(known or "", type=FeedOrigin)
    except msgspec.MsgspecError:
        return "the known records came from another API"
    differing = [name for name in FeedOrigin.__struct_fields__ if getattr(before, name) != getattr(origin, name)]
    if "base_url" in differing and before.event_source == before.base_url and origin.event_source == origin.base_url:
        differing.remove("event_source")  # it follows base_url
    changed = (f'{name} was "{getattr(before, name)}" and is "{getattr(origin, name)}" now' for name in differing)
    return " and ".join(changed)
