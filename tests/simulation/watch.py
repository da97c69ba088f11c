"""What must hold all the time, looked at after each command of the store and each request.

**Invariants that are watched**

- *Fencing*: what a daemon writes to a feed, it writes with the token of the lease that the store holds at that moment;
  the same for the state of a subscription at a feed, and for what its group has read and settled.
- *Leases*: none goes from one process to another before its time is over, unless it was released; a process renews
  and releases none but its own.
- *Streams*: sequence numbers rise by one, and no event id comes twice, unless the store has forgotten something.
- *Order*: an event is sent when the event of its record before it is settled in the store, and not earlier; unless a
  part of the stream is delivered once more.
- *Pauses*: nothing is published of a paused feed, and nothing is sent of a paused subscription, from some seconds
  after the operator was told so until it is resumed.

The store is asked from outside, so nothing here is seen by the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from tests.harness.delivered import order
from tests.harness.json_values import read
from tests.harness.requests import ids_of
from tests.harness.scene import lease, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from tests.harness.requests import Arrived
    from tests.simulation.store import Executed

_SETTLED: Final = (":parked", ":letters", ":letter_times")
"""What only the process that delivers may write, or an operator."""


@dataclass(slots=True)
class Pause:
    """A pause that the operator has asked for: of a feed or a subscription, from when on it must hold."""

    name: str
    since: float


@dataclass(slots=True)
class _Leased:
    """A lease: who has it, and until when by the store's clock."""

    token: str
    until: datetime


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an event is, and which event of its record was published before it."""

    feed: str
    entry: str
    before: str | None


@dataclass(slots=True)
class Watch:
    """The watch over one run.

    Attributes:
        ask: a command of the store, from outside.
        now: seconds since the start.
        feeds: the resources.
        problems: what was found wrong.
        lossy: whether the store has forgotten something, so that streams may go back.
        paused: what must be quiet now, by feed or subscription.
        deleted: the feeds that the operator deletes, or has deleted: what is settled there is not known.
        steady: whether the store's clock is not set; where it is, leases may end before their time.
        given_up: of each subscription and feed the entries that became dead letters.
        repeated: subscriptions of which a part is delivered once more.
        archive: of each feed all entries that were published, also those that the store has no more.
        published: how many events were published.
    """

    ask: Callable[..., Any]
    now: Callable[[], float]
    feeds: list[str]
    problems: list[str] = field(default_factory=list)
    lossy: bool = False
    paused: dict[str, Pause] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    steady: bool = True
    repeated: set[str] = field(default_factory=set)
    given_up: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    archive: dict[str, list[tuple[str, bytes]]] = field(default_factory=dict)
    published: int = 0
    _leases: dict[str, _Leased] = field(default_factory=dict)
    _last: dict[str, bytes] = field(default_factory=dict)
    _sequence: dict[str, int] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)
    _places: dict[str, _Place] = field(default_factory=dict)
    _newest: dict[tuple[str, str], str] = field(default_factory=dict)

    def executed(self, host: str, done: Executed) -> None:
        """A command was carried out for a host."""
        if not done.written:
            return
        written, daemon = [key.decode() for key in done.written], host.startswith("daemon")
        for key in written:
            if key.endswith(":lease"):
                self._leased(host, key, done.at, done.words if daemon else None)
            elif key.endswith(":letters"):
                self._gave_up(key)
        if not daemon:
            return
        for feed in self.feeds:
            if stream(feed) in written and (fresh := self._fresh(feed)):
                self._fenced(host, feed, lease(feed), done.words)
                self._told(host, feed, fresh)
        for consumer in _consumers(written, done.words):
            self._fenced(host, consumer, f"{consumer}:lease", done.words)

    def _leased(self, host: str, key: str, at: datetime, words: Sequence[bytes] | None) -> None:
        """A lease was given, renewed or released; before its time only the process that has it may do so."""
        value, milliseconds = self.ask("GET", key), int(self.ask("PTTL", key))
        before = self._leases.pop(key, None)
        token = None if value is None else bytes(value).decode()
        if self.steady and before is not None and before.token != token and at < before.until:
            former = before.token.partition("/")[0]
            if token is not None:
                self._wrong(f"{host} took {key}, which {former} had")
            elif words is not None and before.token.encode() not in words:
                self._wrong(f"{host} released {key}, which {former} had")
        if token is None:
            return
        until = at + timedelta(milliseconds=milliseconds)
        shortened = before is not None and until <= before.until  # one that would last as long as a clock was set back
        if words is not None and token.encode() not in words and not shortened:
            self._wrong(f"{host} renewed {key}, which {token.partition('/')[0]} has")
        self._leases[key] = _Leased(token, until)

    def _gave_up(self, key: str) -> None:
        feed, _, tail = key.partition("acme/")[2].partition("}:sub:")
        letters = self.given_up.setdefault((tail.rpartition(":")[0], feed), set())
        letters.update(bytes(entry).decode() for entry in self.ask("HKEYS", key))

    def _fresh(self, feed: str) -> Sequence[tuple[bytes, Mapping[bytes, bytes]]]:
        last = self._last.get(feed)
        found = self.ask("XRANGE", stream(feed), b"(" + last if last else "-", "+")
        entries = [(bytes(entry), _fields(fields)) for entry, fields in found]
        if entries:
            self._last[feed] = entries[-1][0]
        return entries

    def _fenced(self, host: str, what: str, key: str, arguments: Sequence[bytes]) -> None:
        holder = self.ask("GET", key)
        if holder is None or bytes(holder) not in [bytes(one) for one in arguments]:
            owner = "no process" if holder is None else bytes(holder).decode()
            self._wrong(f"{host} wrote to {what} without its lease, which {owner} has")

    def _told(self, host: str, feed: str, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        self.published += len(entries)
        for entry, fields in entries:
            event = read(fields[b"data"])
            number = int(event["sequence"])
            before = self._sequence.get(feed)
            if not self.lossy and number != (before or 0) + 1:
                self._wrong(f"{feed}: sequence {number} follows {before}")
            if not self.lossy and event["id"] in self._ids:
                self._wrong(f"{feed}: {event['subject']} was published twice with one id")
            self._sequence[feed] = number
            self._ids.add(event["id"])
            self.archive.setdefault(feed, []).append((entry.decode(), fields[b"data"]))
            record = feed, event["subject"].lower()
            self._places[event["id"]] = _Place(feed, entry.decode(), self._newest.get(record))
            self._newest[record] = event["id"]
        if (pause := self.paused.get(feed)) and self.now() > pause.since:
            self._wrong(f"{host} published {len(entries)} events of {feed} while it was paused")

    def request(self, arrived: Arrived) -> None:
        """A request has reached a sink."""
        subscription = arrived.sink
        if not self.lossy and subscription not in self.repeated:
            self._in_order(arrived)
        if (pause := self.paused.get(subscription)) and self.now() > pause.since:
            self._wrong(f"request {arrived.number} reached {subscription} while it was paused")

    def _in_order(self, arrived: Arrived) -> None:
        """The event before each of a request is settled, or comes with it."""
        ids = ids_of(arrived)
        for id_ in ids:
            place = self._places.get(id_)
            if place is None or place.feed in self.deleted or place.before in ids:
                continue
            before = self._places.get(place.before or "")
            if before is not None and not self._is_settled(before, arrived.sink):
                text = f"request {arrived.number} to {arrived.sink} has an event of {before.feed} that"
                self._wrong(f"{text} follows {before.entry}, which is not settled")

    def _is_settled(self, place: _Place, subscription: str) -> bool:
        """Whether a group has read an entry and holds it no more, and no retry of it is scheduled."""
        group, feed = f"sub:{subscription}", place.feed
        groups = [_fields(one) for one in self.ask("XINFO", "GROUPS", stream(feed))]
        read_to = next(
            (bytes(one[b"last-delivered-id"]).decode() for one in groups if one[b"name"] == group.encode()), ""
        )
        if not read_to or order(read_to) < order(place.entry):
            return not read_to  # without a group nothing is known
        if self.ask("XPENDING", stream(feed), group, place.entry, place.entry, "1"):
            return False
        return not self.ask("HEXISTS", f"poller:{{acme/{feed}}}:{group}:parked", place.entry)

    def id_of(self, feed: str, entry: str) -> str | None:
        """The id of the event that was published as this entry."""
        found = (id_ for id_, place in self._places.items() if (place.feed, place.entry) == (feed, entry))
        return next(found, None)

    def evicted(self, key: str) -> None:
        """The store has lost this key: a lease is free before its time."""
        self._leases.pop(key, None)

    def forgot(self) -> None:
        """The store has forgotten something; streams may end earlier than they did."""
        self.lossy = True
        self._last.clear()
        self._leases.clear()
        for feed in self.feeds:
            found = self.ask("XREVRANGE", stream(feed), "+", "-", "COUNT", "1")
            if found:
                self._last[feed] = bytes(found[0][0])

    def _wrong(self, text: str) -> None:
        line = f"at {self.now():.3f}: {text}"
        if len(self.problems) < 20:
            self.problems.append(line)


def _consumers(written: Sequence[str], words: Sequence[bytes]) -> list[str]:
    """The subscriptions at a feed whose state a command has changed, or whose group has read or settled by it."""
    found = [key.rpartition(":")[0] for key in written if key.endswith(_SETTLED) and ":sub:" in key]
    first = words[3].decode("utf-8", "replace") if len(words) > 3 and words[0].upper() == b"EVALSHA" else ""
    feed, under, _ = first.partition(":sub:")
    if under and first.endswith(":lease") and f"{feed}:events" in written:
        found.append(first.rpartition(":")[0])
    return found


def _fields(flat: Any) -> dict[bytes, Any]:
    """A part of an answer by name; a value may be None, such as the lag of a group that is not known."""
    pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
    return {bytes(name): value for name, value in pairs}
