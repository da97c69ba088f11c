"""What a simulated store has written, so that it can go back: copies of its databases and the commands since.

A write costs one tuple; every so many writes all databases are copied by pickle. To go back, an earlier copy is put in
place and the commands after it are run again, each at its moment: what a command writes follows from the databases, its
words and the store's clock.

**Invariants**

- Only commands that have changed something are kept, a transaction as one.
- At least the latest :attr:`History.depth` writes can be taken back; all, as long as there were no more.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fakeredis._core import Database


class Write(NamedTuple):
    """A command, or a transaction, that has changed something.

    Attributes:
        moment: of the store's clock, in microseconds since 1970.
        database: its number.
        commands: each one's words.
        full: whether the server was out of memory, for a script that then stops in its middle.
    """

    moment: int
    database: int
    commands: Sequence[Sequence[bytes]]
    full: bool


class _Copy(NamedTuple):
    writes: int
    databases: bytes


class History:
    """The writes of one store, from the earlier one of two copies on."""

    def __init__(self, databases: Mapping[int, Database], depth: int) -> None:
        """Begin with databases that are empty.

        Args:
            databases: of the server; their contents are replaced.
            depth: how many writes can be taken back at least.
        """
        self.depth = depth
        self.count = 0
        self._databases = databases
        self._copies = [_Copy(0, self._copied())]
        self._writes: list[Write] = []

    def add(self, write: Write) -> None:
        """Note a write that has been carried out."""
        self._writes.append(write)
        self.count += 1
        if self.count >= self._copies[-1].writes + self.depth:
            self._copies.append(_Copy(self.count, self._copied()))
            if len(self._copies) > 2:
                gone = self._copies.pop(0)
                del self._writes[: self._copies[0].writes - gone.writes]

    def go_back(self, writes: int, repeat: Callable[[Write], None]) -> int:
        """Take back the latest writes; returns how many, less than asked for where no more are kept.

        Args:
            writes: how many.
            repeat: carries a write out again, without adding it here.
        """
        target = max(self.count - writes, self._copies[0].writes)
        taken, self.count = self.count - target, target
        while self._copies[-1].writes > target:
            self._copies.pop()
        first, (copied, content) = self._copies[0].writes, self._copies[-1]
        kept = pickle.loads(content)  # noqa: S301 -- made here
        for number, database in self._databases.items():
            database._dict, database._expiry_heap = kept.get(number, ({}, []))
        del self._writes[target - first :]
        for write in self._writes[copied - first :]:
            repeat(write)
        return taken

    def _copied(self) -> bytes:
        content: dict[int, Any] = {
            number: (database._dict, database._expiry_heap) for number, database in self._databases.items()
        }
        return pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
