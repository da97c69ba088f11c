"""Quiet times of a scene, in which digests, validators and counts decide that nothing has changed.

Under load every reading differs from the one before, and a change that a wrong digest has hidden comes with the next
one. So a strike at what is remembered stops the load, gives the last record of each listing a text, and waits until
each feed was read in full without a change. Then it changes these records and sometimes changes them back: the bytes of
all pages are then those that were remembered. What is not published before the load goes on is lost.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.chaos.asking import PATIENCE, answered
from tests.chaos.fault import Setting
from tests.chaos.stage import Unpublished
from tests.chaos.steady import TEXTS
from tests.harness.scene import RESOURCES
from tests.harness.waiting import Deadline, patience

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.processes import Daemon

SETTING = Setting(
    records=240,
    # Without a delta token, which each change moves, the same records have the same ETag. Elsewhere digests decide.
    profile="delta-none@contractTypes,etag@contractTypes",
    feeds={
        "contractTypes": 'delta = "off"\nlimit = 1000',
        "evidenceVariants": 'delta = "off"\nlimit = 15',
        "employmentUnavailabilities": "limit = 15",
    },
    config={"reconcile": "700ms"},
)
"""A feed of one page with full readings alone, one of several, one with deltas, and one with many listings."""

_FIRST = "first"
_LATEST_SECONDS = 26.0  # a doubtful delta is followed by a full reading after 12 s, and by another after as many
_BETWEEN = 0.1
_READINGS = 2


class Quiet:
    """A time without load, and the records that are changed in it."""

    def __init__(
        self, stage: Stage, records: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self._stage = stage
        self._records = records
        self._others = others

    @classmethod
    async def begin(cls, stage: Stage) -> Quiet:
        """Stop the load, give a record of each feed its first text, and wait until all readings agree on that."""
        await stage.load.stop()
        last = _last(await stage.log())
        quiet = cls(
            stage, {feed: found[-1] for feed, found in last.items()}, {feed: found[-2] for feed, found in last.items()}
        )
        await quiet.back()
        await quiet.rest()
        return quiet

    async def back(self) -> None:
        """Put all of these records where and as they were."""
        await self._put(self._records, _FIRST)

    async def change(self, rng: Random) -> None:
        """Change or remove each of these records."""
        played, text = self._stage.scene.played, f"turn {rng.randrange(10_000)}"
        await self._put(self._records, text)
        for feed, record in self._records.items():
            if not rng.randrange(3):
                await played.remove(feed, record["id"])

    async def remove(self) -> None:
        """Remove each of these records."""
        await self._remove(self._records)

    async def change_others(self) -> None:
        """Change another record of each feed."""
        await self._put(self._others, _FIRST)

    async def remove_others(self) -> None:
        """Remove another record of each feed."""
        await self._remove(self._others)

    async def older(self, feed: str) -> None:
        """Give the record of one feed another text and a time of a day before."""
        record = self._records[feed]
        modified = datetime.fromisoformat(record["lastModifiedAt"]) - timedelta(days=1)
        older = {**record, TEXTS.get(feed, "name"): f"of {modified.date()}", "lastModifiedAt": modified.isoformat()}
        await self._stage.scene.played.put(feed, older)

    async def _remove(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        for feed, record in records.items():
            await self._stage.scene.played.remove(feed, record["id"])

    async def _put(self, records: Mapping[str, Mapping[str, Any]], text: str) -> None:
        for feed, record in records.items():
            await self._stage.scene.played.put(feed, {**record, TEXTS.get(feed, "name"): text})

    async def published(self, *, later: float = 0.0) -> None:
        """Wait until the streams are where the source is.

        Args:
            later: by how many seconds something is published later than usual.

        Raises:
            Unpublished: they are not although all was read often enough and there was time, or something is wrong.
        """
        stage, deadline, since = self._stage, Deadline(PATIENCE + later), self._now()
        upto, settled = await stage.scene.played.version(), time.monotonic() + _LATEST_SECONDS + later
        while True:
            found = await answered(partial(stage.scene.source_verdict, upto, begun_anew=stage.begun_anew))
            if found.clean:
                return
            is_over = time.monotonic() > settled and self._agreeing(since) >= _READINGS
            if is_over or not found.sound or deadline.left <= 0:
                raise Unpublished(found)
            await stage.rest(_BETWEEN)

    async def rest(self) -> None:
        """Wait until all is published, and each feed was read in full a few times since without a change."""
        await self.published()
        since = self._now()
        async with patience("readings without a change"):
            while self._agreeing(since) < _READINGS:
                await self._stage.rest(_BETWEEN)

    def _now(self) -> Mapping[int, int]:
        """How many lines the log of each process has."""
        return {id(one): len(one.lines) for one in self._stage.replicas.started}

    def _agreeing(self, since: Mapping[int, int]) -> int:
        """How many full readings of each feed at least have ended since without a change."""
        started = self._stage.replicas.started
        return min(sum(_agrees(one, since.get(id(one), 0), feed) for one in started) for feed in RESOURCES)

    async def end(self, *, later: float = 0.0) -> None:
        """As :meth:`published`, and start the load again."""
        await self.published(later=later)
        self._stage.load.start()


def exchange(log: Path, copy: Path) -> None:
    """Put a copy of the store's log in its place, while the store does not run."""
    shutil.rmtree(log)
    copy.rename(log)


def _last(log: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The present records of each feed in the order of their last changes, which is that of the listings."""
    present: dict[tuple[str, str], Any] = {}
    for line in log:
        key = line["resource"], line["id"]
        present.pop(key, None)
        if line["record"] is not None:
            present[key] = line["record"]
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for (feed, _), record in present.items():
        found[feed].append(json.loads(json.dumps(record, default=int)))
    return found


def _agrees(one: Daemon, since: int, feed: str) -> int:
    """How many full readings of a feed a process has ended since without a change."""
    rounds = [line for line in one.rounds(since=since) if line["feed"] == f"acme/{feed}"]
    return sum(
        line["ok"] and line["mode"] != "delta" and not (line["created"] + line["modified"] + line["removed"])
        for line in rounds
    )
