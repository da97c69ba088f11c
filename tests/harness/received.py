"""A receiver of the client library in a process of its own, its ledger, and the judge of that.

The handler appends each event to the ledger, and then the receiver acknowledges it; now and then it fails before that.
The library drops repeats, so the ledger has each event once, whatever happens to the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import msgspec

from poller.client import ReceivedEvent, Receiver
from tests.client.webhooks import served
from tests.harness.json_values import read
from tests.programs import program

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from tests.harness.delivered import Entry


class Handled(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the ledger: the path of the sink or the name of the group, and the event that was handled.

    Attributes:
        late: whether the member had been stopped for longer than its lease with this event at hand.
    """

    sink: str
    id: str
    subject: str
    revision: int = 0
    record: msgspec.Raw = msgspec.Raw(b"null")
    late: bool = False


class Ledger:
    """What was handled, and the judge of that."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger

    def handled(self, sink: str) -> list[Handled]:
        """What was handled at a sink, in order."""
        whole, _, _ = self._ledger.read_bytes().rpartition(b"\n")  # the last line may just be written
        lines = [msgspec.json.decode(line, type=Handled) for line in whole.splitlines()]
        return [line for line in lines if line.sink == sink]

    def missing(
        self, sink: str, streams: Mapping[str, Sequence[Entry]], *, begun_anew: Container[str] = ()
    ) -> set[str]:
        """The ids of events in the streams that were not handled; of feeds that were reset, without the baseline."""
        due = {
            event["id"]
            for feed, entries in streams.items()
            for event in (read(written) for _, written in entries)
            if feed not in begun_anew or event["data"]["cause"] != "baseline"
        }
        return due - {line.id for line in self.handled(sink)}

    def remarks(self, sink: str, streams: Mapping[str, Sequence[Entry]], *, in_order: bool = True) -> list[str]:
        """What is wrong in the ledger: events that were handled twice, or before earlier ones of their record.

        Events that are in no stream any more have no place there, so their order is not judged. ``in_order=False``:
        no order is, for the store has lost what it had acknowledged.
        """
        handled = self.handled(sink)
        counted = Counter(line.id for line in handled)
        found = [f"{sink} handled {event_id} {times} times" for event_id, times in counted.items() if times > 1]
        place = {
            read(written)["id"]: (feed, number)
            for feed, entries in streams.items()
            for number, (_, written) in enumerate(entries)
        }
        last: dict[tuple[str, str], int] = {}
        for line in handled:
            if in_order and line.id in place:
                feed, number = place[line.id]
                if number < last.get((feed, line.subject), -1):
                    found.append(f"{sink} handled {line.id} after later events of its record")
                last[feed, line.subject] = number
        return found


class ReceiverProcess(Ledger):
    """A running receiver; each path below ``url`` is a sink of its own."""

    def __init__(self, url: str, ledger: Path) -> None:
        super().__init__(ledger)
        self.url = url


@contextmanager
def received(ledger: Path, *, secret: str, seed: int = 1, fails: float = 0.05) -> Iterator[ReceiverProcess]:
    """A receiver for the duration of the block.

    Args:
        ledger: its file.
        secret: with which requests are signed.
        seed: of its failures.
        fails: the share of events at which the handler fails first.
    """
    ledger.touch()
    options = [f"--ledger={ledger}", f"--secret={secret}", f"--seed={seed}", f"--fails={fails}"]
    with program("tests.harness.received", *options) as url:
        yield ReceiverProcess(url, ledger)


class _Receivers:
    """A receiver for each path; the client library and the ledger do the rest."""

    def __init__(self, ledger: Path, secret: str, rng: Random, fails: float) -> None:
        self._file = ledger.open("ab", buffering=0)
        self._secret = secret
        self._rng = rng
        self._fails = fails
        self._receivers: dict[str, Receiver] = {}

    def _receiver(self, sink: str) -> Receiver:
        async def handle(event: ReceivedEvent) -> None:
            await asyncio.sleep(0)
            if self._rng.random() < self._fails:
                raise RuntimeError("the handler fails on purpose")
            line = Handled(sink, event.get_id(), (event.get_subject() or "").lower())
            self._file.write(msgspec.json.encode(line) + b"\n")

        return Receiver(handle, self._secret)

    async def __call__(self, scope: dict[str, object], receive: object, send: object) -> None:
        sink = str(scope.get("path", "")).strip("/")
        receiver = self._receivers.get(sink)
        if receiver is None:
            receiver = self._receivers[sink] = self._receiver(sink)
        await receiver(scope, receive, send)  # type: ignore[arg-type] # as the server has made them


async def serve(ledger: Path, secret: str, seed: int, fails: float) -> None:
    """Receive until the process is killed."""
    async with served(_Receivers(ledger, secret, Random(seed), fails)) as url:
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    """Serve with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--secret", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fails", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(serve(given.ledger, given.secret, given.seed, given.fails))


if __name__ == "__main__":
    main()
