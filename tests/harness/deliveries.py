"""The judge of deliveries: compares the requests at a sink with the stream.

Law: it trusts the sink's own log and the stream, and no state of the program. For one sink it looks for:

* *lost*: an event that is due and was never answered with 2xx.
* *out of order*: an event sent before the earlier events of its record were accepted.
* *late*: an event repeated after a later one of its record was sent without it.
* *crowded*: a request with an event of a record while another request with that record is open.
* *renamed*, *altered*, *forged*, *unwanted*: another ``webhook-id`` for the same events, content that differs from the
  stream, a wrong signature, an event that the subscription does not select.
* *early*: a request inside the time that a ``Retry-After`` asked for.
* *uncalled*: a request after a 410 or 415, before the subscription was resumed.
* *needless*: an event repeated although it was recorded as settled when the last process was killed.

Two things cannot be avoided, and are allowed and counted. A request that arrives within ``GRACE`` of the answer that
asks for a pause was already on its way (``underway``; with several processes ``heard`` says when all know of it). A
pause that cannot be stored binds only the process that was asked, until the store is back and the others have had that
time. A sink cannot tell processes apart, but what comes on the connection of the answer is of the one that has it. A
process killed within ``GRACE`` of an answer may not have read it (``unheard``), nor may any where the network lost
answers then. A process that was suspended and replaced may resume in the middle of a request:
:meth:`~tests.harness.delivered.Deliveries.kept_in_takeover` allows the effects of that.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tests.harness.delivered import Asked, Deliveries, Fault, order
from tests.harness.json_values import read
from tests.harness.requests import Arrived, forged, ids_of, told_wrongly

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.harness.delivered import Entry
    from tests.harness.requests import Ended, Line

_ROUNDING = 0.005
_GONE = (410, 415)


def judge_deliveries(
    log: Iterable[Line], streams: Mapping[str, Sequence[Entry]], asked: Asked | None = None
) -> Deliveries:
    """Compare the requests at a sink with the streams.

    Args:
        log: the log of one sink, in order.
        streams: each feed's entries, read after the log.
        asked: see there.
    """
    judge = _Judge(streams, asked or Asked())
    for line in log:
        if isinstance(line, Arrived):
            judge.arrived(line)
        else:
            judge.ended(line)
    return judge.verdict()


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of an event: its entry, and its index among the events of its record."""

    feed: str
    entry: str
    key: tuple[str, str]
    nth: int


@dataclass(frozen=True, slots=True)
class _Silence:
    """A pause that a sink has asked for, and the connection on which it did."""

    since: float
    until: float
    connection: int


class _Judge:
    """The state of one sink while its log is replayed."""

    def __init__(self, streams: Mapping[str, Sequence[Entry]], asked: Asked) -> None:
        self._asked = asked
        self._found = Deliveries()
        self._entries = {read(event)["id"]: event for entries in streams.values() for _, event in entries}
        self._places: dict[str, _Place] = {}
        self._due: list[str] = []
        self._given_up: set[tuple[tuple[str, str], int]] = set()
        lengths: Counter[tuple[str, str]] = Counter()
        for feed, entries in streams.items():
            for number, (entry, text) in enumerate(entries):
                event = read(text)
                if asked.wants(event):
                    key = (feed, event["partitionkey"])
                    self._places[event["id"]] = _Place(feed, entry, key, lengths[key])
                    if entry in asked.given_up.get(feed, ()):
                        self._given_up.add((key, lengths[key]))
                    lengths[key] += 1
                    if number < asked.due.get(feed, len(entries)):
                        self._due.append(event["id"])
        self._taken: set[str] = set()
        self._frontier: Counter[tuple[str, str]] = Counter()  # of each record, how many are accepted
        self._newest: dict[tuple[str, str], int] = {}
        self._sent: set[str] = set()
        self._open: dict[int, Arrived] = {}
        self._busy: Counter[tuple[str, str]] = Counter()
        self._names: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
        self._named: dict[tuple[str, ...], str] = {}
        self._silences: list[_Silence] = []
        self._outages = sorted(asked.outages)
        self._gone: float | None = None

    def arrived(self, request: Arrived) -> None:
        found, at, ids = self._found, request.at, ids_of(request)
        found.requests += 1
        where = f"request {request.number} at {at:.3f}"
        self._in_silence(request, where)
        if told := told_wrongly(request, self._entries):
            found.altered.append(Fault(at, f"{where}: {told}"))
        if forged(request, self._asked.secret):
            found.forged.append(Fault(at, where))
        if self._named.setdefault(tuple(ids), request.headers["webhook-id"]) != request.headers["webhook-id"]:
            found.renamed.append(Fault(at, where))
        if unwanted := [id_ for id_ in ids if id_ in self._entries and id_ not in self._places]:
            found.unwanted.append(Fault(at, f"{where}: {unwanted}"))
        places = [self._places[id_] for id_ in ids if id_ in self._places]
        if any(self._busy[key] for key in {place.key for place in places}):
            found.crowded.append(Fault(at, f"{where}: {ids}"))
        for id_ in ids:
            if id_ in self._places:
                self._sent_again(id_, at, where)
        self._in_order(places, at, where)
        self._open[request.number] = request
        self._busy.update({place.key for place in places})

    def _sent_again(self, id_: str, at: float, where: str) -> None:
        place, records = self._places[id_], self._asked.on_record
        if id_ in self._sent:
            self._found.repeats.append(Fault(at, where))
        if id_ in self._taken:
            self._found.after_success.append(Fault(at, where))
        self._sent.add(id_)
        latest = bisect(records, at, key=lambda record: record.at) - 1
        if latest >= 0 and records[latest].holds(place.feed, place.entry):
            self._found.needless.append(Fault(at, f"{where}: {place.entry} of {place.feed} was settled before"))

    def _in_order(self, places: Sequence[_Place], at: float, where: str) -> None:
        """An event may be sent once all before it are accepted or precede it in the same request."""
        along: Counter[tuple[str, str]] = Counter()
        for place in places:
            reached = max(self._frontier[place.key], along[place.key])
            while (place.key, reached) in self._given_up:
                reached += 1
            if place.nth > reached:
                self._found.out_of_order.append(
                    Fault(at, f"{where}: event {place.nth} of {place.key[1]}, taken so far {reached}")
                )
            if place.nth < max(self._newest.get(place.key, 0), along[place.key] - 1):
                self._found.late.append(Fault(at, f"{where}: event {place.nth} of {place.key[1]} after a later one"))
            along[place.key] = place.nth + 1
        # A request that was not accepted is repeated from its first event on.
        for key in along:
            first = min(place.nth for place in places if place.key == key)
            self._newest[key] = max(self._newest.get(key, 0), first)

    def _in_silence(self, request: Arrived, where: str) -> None:
        """A requested pause lasts to its end, whichever process knows of it, or until the subscription is resumed."""
        at, heard = request.at, self._asked.heard
        for one in self._silences:
            since, until = one.since, one.until
            resumed = any(since - heard < moment < at for moment in self._asked.resumed)
            if at < until - _ROUNDING and not resumed:
                known, text = self._known(one, request), f"{where}: {at - since:.3f} s into {until - since:.1f} s"
                self._too_soon(since, at, known, self._found.early, text)
        self._silences = [one for one in self._silences if at < one.until]
        if self._gone is not None and not any(self._gone < moment < at for moment in self._asked.resumed):
            text = f"{where}: {at - self._gone:.3f} s after 410 or 415"
            self._too_soon(self._gone, at, self._gone + heard, self._found.uncalled, text)

    def _known(self, silence: _Silence, request: Arrived) -> float:
        """The moment from which the process that sends a request has to know of a pause."""
        stored = silence.since
        for begun, ended in self._outages:
            if begun <= stored + self._asked.heard:  # until then it may not be stored, or not read by the others
                stored = max(stored, ended)
        if stored > silence.since and request.connection == silence.connection:
            return silence.since + self._asked.grace
        return stored + self._asked.heard

    def _too_soon(self, since: float, at: float, known: float, faults: list[Fault], text: str) -> None:
        ends = chain(self._asked.kills, self._asked.losses)
        ended = next((moment for moment in ends if since <= moment <= min(at, since + self._asked.grace)), None)
        asleep = any(begun - self._asked.grace <= since <= until for begun, until in self._asked.suspensions)
        if ended is not None or asleep:
            self._found.unheard.append(at - since if ended is None else ended - since)
        elif at <= known:
            self._found.underway.append(at - since)
        else:
            faults.append(Fault(at, text))

    def ended(self, end: Ended) -> None:
        request = self._open.pop(end.number)
        ids = [id_ for id_ in ids_of(request) if id_ in self._places]
        self._busy.subtract({self._places[id_].key for id_ in ids})
        if end.status is None:
            return
        if end.pause:
            self._silences.append(_Silence(end.at, end.at + end.pause, request.connection))
        if end.status in _GONE:
            self._gone = end.at
        if 200 <= end.status < 300:
            for place in (self._places[id_] for id_ in ids):
                self._frontier[place.key] = max(self._frontier[place.key], place.nth + 1)
            self._taken.update(ids)

    def verdict(self) -> Deliveries:
        self._found.events = len(self._taken)
        for id_ in self._due:
            if id_ not in self._taken:
                place = self._places[id_]
                self._found.lost.append(Fault(order(place.entry)[0] / 1000, f"{place.entry} of {place.feed}"))
        return self._found
