"""The judge of backfilled events at a sink: revisions that do not fall, and every record that there was.

**Invariants**

- Only the sink's own log and the streams are believed.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.harness.json_values import read
from tests.harness.requests import Arrived, events_of, is_backfilled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.harness.delivered import Entry
    from tests.harness.requests import Line


@dataclass(frozen=True, slots=True)
class BegunBackfill:
    """A backfill that the operator has begun.

    Attributes:
        subscription: of this subscription.
        feed: its name within its source.
        at: when, seconds after the start.
        published: how many events of the feed had been published before it was asked for.
    """

    subscription: str
    feed: str
    at: float
    published: int


def fallen_revisions(lines: Sequence[Line], *, is_strict: bool) -> list[str]:
    """The events that came first after a higher revision of their record had been taken.

    Args:
        lines: of a sink.
        is_strict: whether nothing was delivered again on demand: then events of the stream are looked at, too.
    """
    found, taken = list[str](), dict[str, int]()
    sent, open_ones = set[str](), dict[int, list[dict[str, Any]]]()
    for line in lines:
        if isinstance(line, Arrived):
            events = open_ones[line.number] = events_of(line)
            for event in events:
                before, revision = taken.get(_key(event), 0), int(event["data"]["revision"])
                is_first = event["id"] not in sent and (is_strict or is_backfilled(event))
                if is_first and revision < before:
                    where = f"request {line.number} at {line.at:.3f}"
                    found.append(f"{where}: revision {revision} of {event['subject']} after {before}")
                sent.add(event["id"])
        else:
            events = open_ones.pop(line.number)
            if line.status is not None and 200 <= line.status < 300:
                for event in events:
                    taken[_key(event)] = max(taken.get(_key(event), 0), int(event["data"]["revision"]))
    return found


def missing_records(lines: Sequence[Line], begun: BegunBackfill, entries: Sequence[Entry]) -> list[str]:
    """The records that were live when a backfill began, have not changed since, and were not taken since.

    Args:
        lines: of its sink.
        begun: the backfill.
        entries: of its feed's stream, all that were published.
    """
    latest: dict[str, Mapping[str, Any]] = {}
    for _, text in entries[: begun.published]:
        event = read(text)
        latest[_key(event)] = event
    changed = {_key(read(text)) for _, text in entries[begun.published :]}
    live = {key for key, event in latest.items() if not event["type"].endswith(".removed.v1")}
    return sorted(live - changed - set(_taken(lines, begun.at)))


def _taken(lines: Sequence[Line], since: float) -> Iterator[str]:
    """The records of backfilled events that were sent since a moment and taken."""
    arrived: dict[int, Arrived] = {}
    for line in lines:
        if isinstance(line, Arrived):
            arrived[line.number] = line
        elif line.status is not None and 200 <= line.status < 300 and line.at >= since:
            yield from (_key(event) for event in events_of(arrived[line.number]) if is_backfilled(event))


def _key(event: Mapping[str, Any]) -> str:
    return str(event["subject"]).lower()
