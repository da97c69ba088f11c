"""The judge of deliveries after a store has lost acknowledged writes: a power cut, or a failover.

A lost event may have been sent already. Its record is read again, which gives another stream: the same changes with the
same ids, or later ones. So the requests cannot be compared with the stream byte for byte. What must still hold:

* *lost*: each event that is in the stream at the end was accepted.
* *altered*: an event that is not in the stream shows a record that the source had; an id never has two meanings.
  Whether the same version of a record is called created or modified may change: a removal may have been lost.
* *out of order*: a record's revision rises by at most one: the first event of a revision is sent after one of the
  previous revision was accepted, or after it in the same batch.
* *late*: of a record's events in the stream, the last one to arrive is the last one in the stream, if that arrived: a
  receiver that keeps what came last has the record's latest state. Revisions cannot tell, for they may go back.
* *forged*: a wrong signature.

Pure; imports nothing of the program.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.harness.delivered import Deliveries, Fault, order
from tests.harness.history import Past, pasts
from tests.harness.json_values import equal, read
from tests.harness.requests import Arrived, events_of, forged, is_backfilled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tests.harness.delivered import Entry
    from tests.harness.requests import Line

    Event = Mapping[str, Any]


def judge_after_loss(
    log: Iterable[Line],
    streams: Mapping[str, Sequence[Entry]],
    history: Iterable[Mapping[str, Any]],
    secret: str | None,
    *,
    begun_anew: Collection[str] = (),
    resets: Mapping[str, str] | None = None,
) -> Deliveries:
    """Compare the requests at a sink with the streams and the source's log.

    Args:
        log: the log of one sink, in order; requests with whole events.
        streams: each feed's entries at the end, by the name of its resource.
        history: the source's log.
        secret: signs the requests.
        begun_anew: the resources whose data was lost. The sink should not get their baselines, and their revisions
            are not checked.
        resets: of these the last entry before the loss, where the stream has not gone with the rest: baselines up to
            there may have come.
    """
    judge = _Judge(pasts(history), secret, begun_anew)
    for resource, entries in streams.items():
        for entry, text in entries:
            reset = (resets or {}).get(resource)
            before = reset is not None and order(entry) <= order(reset)
            judge.stands(entry, read(text), told=resource in begun_anew, before=before)
    for line in log:
        if isinstance(line, Arrived):
            judge.arrived(line)
        elif line.status is not None and 200 <= line.status < 300:
            judge.took(line.number)
    return judge.verdict()


class _Judge:
    """The state of one sink while its log is replayed."""

    def __init__(
        self, records: Mapping[str, Mapping[str, Past]], secret: str | None, begun_anew: Collection[str]
    ) -> None:
        self._uncounted = {key for resource in begun_anew for key in records.get(resource, ())}
        self._records = {key: past for known in records.values() for key, past in known.items()}
        self._secret = secret
        self._found = Deliveries()
        self._meant: dict[str, Event] = {}
        self._standing: dict[str, str] = {}
        self._unwanted: set[str] = set()
        self._sent: set[str] = set()
        self._open: dict[int, Sequence[Event]] = {}
        self._taken: set[str] = set()
        self._reached: Counter[tuple[str, str]] = Counter()
        self._latest: dict[tuple[str, str], tuple[float, str, str]] = {}  # arrived last: when, where, id

    def stands(self, entry: str, event: Event, *, told: bool, before: bool = False) -> None:
        self._meant[event["id"]] = event
        if not told or event["data"]["cause"] != "baseline":
            self._standing[event["id"]] = entry
        elif not before:
            self._unwanted.add(event["id"])

    def arrived(self, request: Arrived) -> None:
        events, found = events_of(request), self._found
        where = f"request {request.number} at {request.at:.3f}"
        along: dict[tuple[str, str], int] = {}  # the revisions before each event in a batch
        found.requests += 1
        if forged(request, self._secret):
            found.forged.append(Fault(request.at, where))
        for event in events:
            if event["id"] in self._sent:
                found.repeats.append(Fault(request.at, where))
            if event["id"] in self._taken:
                found.after_success.append(Fault(request.at, where))
            if told := self._wrong(event):
                found.altered.append(Fault(request.at, f"{where}: {told}"))
            reached = max(self._reached[_key(event)], along.get(_key(event), 0))
            revision = along[_key(event)] = int(event["data"]["revision"])
            if event["id"] in self._unwanted:
                found.unwanted.append(Fault(request.at, f"{where}: a baseline"))
            is_next = revision <= reached + 1 or is_backfilled(event)
            if not is_next and event["subject"].lower() not in self._uncounted:
                text = f"{where}: revision {revision} of {event['subject']}, taken so far {reached}"
                found.out_of_order.append(Fault(request.at, text))
            self._sent.add(event["id"])
            if event["id"] in self._standing:
                self._latest[_key(event)] = request.at, where, event["id"]
        self._open[request.number] = events

    def _wrong(self, event: Event) -> str | None:
        meant = self._meant.setdefault(event["id"], event)
        if not _same(meant, event):
            return f"{event['id']} has two meanings"
        past = self._records.get(event["subject"].lower())
        if past is None or past.after(0, event["data"].get("record")) is None:
            return f"the source never had the record of {event['id']}"
        return None

    def took(self, number: int) -> None:
        for event in self._open.pop(number):
            self._taken.add(event["id"])
            key = _key(event)
            self._reached[key] = max(self._reached[key], int(event["data"]["revision"]))

    def verdict(self) -> Deliveries:
        self._found.events = len(self._taken)
        self._found.forgotten = len(self._taken - self._standing.keys() - self._unwanted)
        for id_, entry in self._standing.items():
            if id_ not in self._taken:
                self._found.lost.append(Fault(order(entry)[0] / 1000, f"{entry}: {id_}"))
        newest: dict[tuple[str, str], str] = {}
        for id_ in self._sent & self._standing.keys():
            key = _key(self._meant[id_])
            newest[key] = max(newest.get(key, id_), id_, key=lambda one: order(self._standing[one]))
        for key, (at, where, id_) in self._latest.items():
            if id_ != newest[key]:
                self._found.late.append(Fault(at, f"{where}: {id_} of {key[1]} came last, after {newest[key]}"))
        return self._found


def _key(event: Event) -> tuple[str, str]:
    return event["source"], event["subject"].lower()


def _same(one: Event, other: Event) -> bool:
    """Whether two events show the same version; what was known before, when it was seen, its sequence may differ."""
    told = [[event["source"], event["subject"], event["data"]["revision"]] for event in (one, other)]
    records = [event["data"].get("record") for event in (one, other)]
    return equal(told[0], told[1]) and equal(records[0], records[1])
