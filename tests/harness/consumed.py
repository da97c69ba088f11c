"""Members of a group of the client library, each in a process of its own, their ledger, and the judge of that.

The body of the loop appends each event to the ledger unless it is there. Now and then a member fails, is killed or is
stopped for longer than its lease, before it does that. So the ledger has each event once and in order, or the library
is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import logging
import os
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from poller.client import Consumer, Gap
from tests.harness.received import Handled, Ledger
from tests.programs import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cloudevents.core.v1.event import CloudEvent

    from tests.harness.delivered import Entry

GROUP: Final = "client"
_FAILED: Final = "failed"  # in place of the group's name: a member that has ended by itself
_GAP: Final = "gap"
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG
_MEMBERS: Final = ("one", "two")
_AFTER_DEATH: Final = 0.1  # seconds
_BEFORE_TROUBLE: Final = 0.03  # seconds: longer than acknowledgements wait
_LEASES_STOPPED: Final = 1.5


class ConsumerGroup(Ledger):
    """The running members."""

    def wrong(self, streams: Mapping[str, Sequence[Entry]], *, after_loss: bool = False) -> list[str]:
        """What is wrong in the ledger; ``after_loss``: the store has lost what it had acknowledged."""
        found = [f"a member of {GROUP} ended: {line.subject}" for line in self.handled(_FAILED)]
        if not after_loss:
            found += [f"{GROUP} misses events: {line.subject}" for line in self.handled(_GAP)]
        return found + self.remarks(GROUP, streams, in_order=not after_loss)

    def fallen(self) -> list[Handled]:
        """What was handled after a later revision of its record, but for what is late."""
        return [line for line, highest in self._with_highest() if line.revision < highest and not line.late]

    def state(self) -> dict[str, tuple[int, bytes]]:
        """Revision and content of each record, as the events say; without those that are removed."""
        last = {line.subject: line for line, highest in self._with_highest() if line.revision >= highest}
        return {one: (line.revision, bytes(line.record)) for one, line in last.items() if bytes(line.record) != b"null"}

    def _with_highest(self) -> Iterator[tuple[Handled, int]]:
        """Each line, and the highest revision of its record before it.

        No lease ends a body that is running. A member that was stopped with an event at hand handles that although
        others have read on: the same entry, so the ledger has it already, or a record of a page that is older than
        theirs. Programs keep the higher revision then.
        """
        highest = dict[str, int]()
        for line in self.handled(GROUP):
            yield line, highest.get(line.subject, 0)
            highest[line.subject] = max(highest.get(line.subject, 0), line.revision)


@contextmanager
def consumed(
    ledger: Path,
    *,
    store: str,
    feeds: Sequence[str],
    lease: timedelta,
    api: str = "",
    seed: int = 1,
    trouble: float = 0.02,
) -> Iterator[ConsumerGroup]:
    """A group of two for the duration of the block.

    Args:
        ledger: its file.
        store: the URL of the store.
        feeds: which it reads.
        lease: how long it takes another member to take over.
        api: where the records come from, if the group begins with them.
        seed: of its troubles.
        trouble: the share of events at which a member fails, is killed, or is stopped, each.
    """
    ledger.touch()
    options = [f"--ledger={ledger}", f"--store={store}", f"--lease={lease.total_seconds()}", f"--api={api}"]
    options += [f"--seed={seed}", f"--trouble={trouble}", *(f"--feed={feed}" for feed in feeds)]
    with program("tests.harness.consumed", *options):
        yield ConsumerGroup(ledger)


class _Trouble(Exception):
    """What ends a body."""


class _Member:
    def __init__(self, given: argparse.Namespace, name: str, rng: Random) -> None:
        self._given = given
        self._name = name
        self._rng = rng
        self._file = given.ledger.open("r+b", buffering=0)
        self._known: set[str] = set()

    async def run(self) -> NoReturn:
        given = self._given
        while True:
            try:
                async with Consumer(
                    given.store,
                    given.feed,
                    GROUP,
                    self._name,
                    bootstrap=bool(given.api),
                    api=given.api,
                    lease=timedelta(seconds=given.lease),
                    on_gap=self._note_gap,
                    batch=20,
                ) as consumer:
                    async for event in consumer:
                        is_late = await self._suffer()
                        self._handle(event, is_late=is_late)
            except _Trouble:
                pass

    async def _suffer(self) -> bool:
        """Now and then, end or raise; True: this process was stopped for longer than a lease."""
        drawn, share = self._rng.random(), self._given.trouble
        if drawn >= 3 * share:
            return False
        await asyncio.sleep(_BEFORE_TROUBLE)
        if drawn < share:
            os.kill(os.getpid(), signal.SIGKILL)
        if drawn < 2 * share:
            os.kill(os.getpid(), signal.SIGSTOP)  # until the parent lets it go on
            return True
        raise _Trouble

    def _handle(self, event: CloudEvent, *, is_late: bool) -> None:
        data = event.get_data()
        assert isinstance(data, dict)
        record = msgspec.Raw(msgspec.json.encode(data.get("record")))
        subject = (event.get_subject() or "").lower()
        self._append(Handled(GROUP, event.get_id(), subject, data["revision"], record, is_late))

    def _note_gap(self, gap: Gap) -> None:
        self._append(Handled(_GAP, str(gap), str(gap)))

    def note_failure(self, text: str) -> None:
        self._append(Handled(_FAILED, text, text))

    def _append(self, line: Handled) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # not even a member that is stopped here can let another pass
        try:
            self._known |= {msgspec.json.decode(one, type=Handled).id for one in self._file.read().splitlines()}
            if line.id not in self._known:
                self._file.write(msgspec.json.encode(line) + b"\n")
                self._known.add(line.id)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _begin(given: argparse.Namespace, name: str, number: int) -> int:
    """Fork a member; its process id."""
    process = os.fork()
    if process:
        return process
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    logging.disable()  # the ledger has what matters
    member = _Member(given, name, Random(f"{given.seed}/{name}/{number}"))
    try:
        asyncio.run(member.run())
    except BaseException:  # noqa: BLE001 -- the judge shows it
        member.note_failure(traceback.format_exc(limit=-4))
    os._exit(1)


def main() -> NoReturn:
    """Keep the members running, with the options of the command line, until the process is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--feed", action="append", required=True)
    parser.add_argument("--lease", type=float, required=True)
    parser.add_argument("--api", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trouble", type=float, default=0.0)
    given = parser.parse_args()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    running = {_begin(given, name, 0): name for name in _MEMBERS}
    number = 0
    while True:
        process, status = os.waitpid(-1, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            time.sleep(_LEASES_STOPPED * given.lease)
            os.kill(process, signal.SIGCONT)
            continue
        number += 1
        name = running.pop(process)
        time.sleep(_AFTER_DEATH)
        running[_begin(given, name, number)] = name


if __name__ == "__main__":
    main()
