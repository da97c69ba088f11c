"""Key queues: decide which events may be sent now, one event of a record at a time.

Each record has a queue of its events in stream order. Only the first entry of a queue may be sent. While it is being
sent or waits for its next attempt, its queue is shut, and no other queue is affected. Open queues take turns in the
order in which they opened, scheduled retries first; waiting queues are in a heap, ordered by due time.

An entry is *fresh* until it is settled or scheduled for a retry: until then the consumer group holds it. Fresh entries
behind a scheduled retry are *stranded*; they are stored with it, so that days of retries burden neither the group nor
the memory. Of a stored entry only the id is in memory; its event is fetched when it is sent.

If entries are sent in batches, a failed entry is sent *alone* from then on: otherwise one bad event would turn all
others of its batches into dead letters. A redelivery joins its queue at its place in stream order, behind entries that
are being sent, and opens a queue that waits for a later entry.

**Invariants**

* No event of a record is sent before all earlier ones are settled.
* Pure; moments are seconds of any monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from poller.store.backfill import DeliveryId

T = TypeVar("T")


class QueuedEntry(Generic[T]):
    """An entry in its queue.

    Attributes:
        id: of the stream entry, or of a backfilled event.
        key: of its record.
        item: its event; None: it must be fetched.
        fresh: whether the consumer group still holds the entry.
        size: of the item, in bytes.
        alone: whether it must not be sent in a batch with others.
    """

    __slots__ = ("alone", "fresh", "id", "item", "key", "size")

    def __init__(
        self, entry_id: str, key: str, item: T | None, *, fresh: bool, size: int = 0, alone: bool = False
    ) -> None:
        self.id = entry_id
        self.key = key
        self.item = item
        self.fresh = fresh
        self.size = size
        self.alone = alone


class KeyQueues(Generic[T]):
    """The key queues of one feed consumer."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[QueuedEntry[T]]] = {}
        self._open: deque[str] = deque()
        self._due: list[tuple[float, str]] = []
        self._taken: dict[str, int] = {}  # for each shut queue: the number of its entries that are being sent
        self._mixed: set[str] = set()  # queues with an earlier entry behind one that is being sent
        self._fresh: dict[str, int] = {}  # sizes, in the order of the stream
        self._fresh_bytes = 0
        self._parked = 0

    @property
    def fresh(self) -> int:
        """The number of fresh entries."""
        return len(self._fresh)

    @property
    def fresh_bytes(self) -> int:
        """The size of all fresh entries, in bytes."""
        return self._fresh_bytes

    @property
    def parked(self) -> int:
        """The number of scheduled entries."""
        return self._parked

    @property
    def most_parked(self) -> tuple[str, int]:
        """The record with the most scheduled entries, and their number; looks at all entries."""
        counts = ((sum(not one.fresh for one in queue), key) for key, queue in self._queues.items())
        count, key = max(counts, default=(0, ""))
        return key, count

    @property
    def oldest_fresh(self) -> str | None:
        """The first entry that is neither settled nor scheduled."""
        return next(iter(self._fresh), None)

    @property
    def next_due(self) -> float | None:
        """When the next waiting queue is due."""
        return self._due[0][0] if self._due else None

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent now."""
        return bool(self._open)

    @property
    def due(self) -> bool:
        """Whether the next entry is a retry, or was stranded behind one."""
        return bool(self._open) and not self._queues[self._open[0]][0].fresh

    def add(self, entry: QueuedEntry[T]) -> None:
        """Add an entry that was read after all others."""
        queue = self._queues.get(entry.key)
        if queue is None:
            self._queues[entry.key] = deque((entry,))
            self._open.append(entry.key)
        else:
            queue.append(entry)
        if entry.fresh:
            self._fresh[entry.id] = entry.size
            self._fresh_bytes += entry.size
        else:
            self._parked += 1

    def insert(self, entry: QueuedEntry[T]) -> None:
        """Insert a redelivery or an entry of a replay at its place in its queue.

        The queue is open then, unless an entry is being sent or an earlier one waits.
        """
        queue = self._queues.get(entry.key)
        if queue is None:
            self.add(entry)
            return
        place, at = DeliveryId.parse(entry.id), self._taken.get(entry.key, 0)
        if at:
            self._mixed.add(entry.key)
        while at < len(queue) and DeliveryId.parse(queue[at].id) < place:
            at += 1
        queue.insert(at, entry)
        self._parked += 1
        if at == 0 and any(key == entry.key for _, key in self._due):
            self._due = [one for one in self._due if one[1] != entry.key]
            heapify(self._due)
            self._open.append(entry.key)

    def restore(self, key: str, entries: list[QueuedEntry[T]], due: float) -> None:
        """Add a queue of scheduled entries, the first of which is due at ``due``."""
        self._queues[key] = deque(entries)
        self._parked += len(entries)
        self.wait(key, due)

    def wait(self, key: str, due: float) -> None:
        """Make the first entry of this shut queue wait until this moment.

        If an earlier entry was inserted meanwhile, that is the first, and the queue is open.
        """
        if self._mended(key):
            self._open.append(key)
            return
        heappush(self._due, (due, key))

    def hasten(self, entries: Container[str], due: float) -> None:
        """Make queues whose first entry is one of these due at this moment at the latest."""
        self._due = [
            (min(later, due) if self._queues[key][0].id in entries else later, key) for later, key in self._due
        ]
        heapify(self._due)

    def wake(self, now: float) -> None:
        """Open the queues that are due, in the order of their due times."""
        if not self._due:
            return
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due)[1])
        self._open.extendleft(reversed(due))

    def gathered(self, most: int, most_bytes: int | None = None) -> bool:
        """Whether the batch of :meth:`claim` cannot grow by waiting."""
        count = size = 0
        for key in self._open:
            for entry in self._queues[key]:
                if entry.alone or entry.item is None:
                    return True
                count += 1
                size += entry.size
                if count >= most or (most_bytes is not None and size >= most_bytes):
                    return True
        return False

    def claim(self, *, most: int = 1, most_bytes: int | None = None) -> list[QueuedEntry[T]]:
        """Shut queues and return their first entries that may be sent together now.

        At least one entry if a queue is open, even if it is larger than ``most_bytes``. No entry follows one whose
        event must be fetched.
        """
        taken: list[QueuedEntry[T]] = []
        size = 0
        while self._open and len(taken) < most:
            key = self._open[0]
            queue = self._queues[key]
            count = len(taken)
            for entry in queue if len(queue) == 1 else _some(queue, most - count):
                over = most_bytes is not None and size + entry.size > most_bytes
                if taken and (over or entry.alone or taken[0].alone):
                    if entry is queue[0]:
                        return taken
                    break
                taken.append(entry)
                size += entry.size
            self._taken[key] = len(taken) - count
            self._open.popleft()
        return taken

    def settle(self, entry: QueuedEntry[T]) -> None:
        """Remove the first entry of its queue. The queue stays shut until :meth:`reopen`."""
        queue = self._queues[entry.key]
        if queue[0] is not entry:
            raise ValueError(f"{entry.id} is not the foremost of its queue")
        queue.popleft()
        if entry.key in self._taken:
            self._taken[entry.key] -= 1
        if entry.fresh:
            self._fresh_bytes -= self._fresh.pop(entry.id)
        else:
            self._parked -= 1

    def reopen(self, key: str) -> None:
        """Open a shut queue; an empty one is removed."""
        self._mended(key)
        if self._queues[key]:
            self._open.append(key)
        else:
            del self._queues[key]

    def park(self, entry: QueuedEntry[T]) -> None:
        """Mark an entry as stored outside the group; its place in the queue remains."""
        if entry.fresh:
            self._fresh_bytes -= self._fresh.pop(entry.id)
            self._parked += 1
            entry.fresh = False
        entry.item = None

    def stranded(self, key: str, *and_of: Container[str]) -> list[QueuedEntry[T]]:
        """The fresh entries of a queue, and those whose ids are in one of ``and_of``."""
        queue = self._queues.get(key, ())
        return [entry for entry in queue if entry.fresh or any(entry.id in one for one in and_of)]

    def foremost(self, key: str) -> str | None:
        """The id of the first entry of a queue."""
        queue = self._queues.get(key)
        return queue[0].id if queue else None

    def is_stored(self, key: str) -> bool:
        """Whether this queue has entries, and all of them are retries, stranded behind one, of a replay or backfill."""
        queue = self._queues.get(key)
        return not any(entry.fresh for entry in queue) if queue else False

    def last(self, key: str) -> str | None:
        """The last entry of this queue."""
        queue = self._queues.get(key)
        return queue[-1].id if queue else None

    def awaits_write(self, key: str) -> bool:
        """Whether this queue is empty, and shut until the settlement of its last entry is written."""
        queue = self._queues.get(key)
        return queue is not None and not queue

    def holds(self, entry_id: str) -> bool:
        """Whether this entry is in a queue and fresh."""
        return entry_id in self._fresh

    def _mended(self, key: str) -> bool:
        """Sort a queue once none of its entries is being sent. True: another entry is the first now."""
        self._taken.pop(key, None)
        if key not in self._mixed:
            return False
        self._mixed.discard(key)
        queue = self._queues[key]
        foremost = queue[0] if queue else None
        self._queues[key] = queue = deque(sorted(queue, key=lambda entry: DeliveryId.parse(entry.id)))
        return bool(queue) and queue[0] is not foremost


def _some(queue: Iterable[QueuedEntry[T]], most: int) -> Iterator[QueuedEntry[T]]:
    """The first entry and those after it whose events are in memory."""
    for number, entry in enumerate(queue):
        if number >= most or (number and entry.item is None):
            return
        yield entry
        if entry.item is None:
            return
