"""What a user would write instead: forty lines that read a list, compare, and append to a stream.

It commits by several commands, without a lease, a revision or an order to recover from a crash. It reads the same pages
as the program beside it and publishes CloudEvents as well. Each writes to a new server, for one that holds much would
rewrite its log meanwhile, and reads once more when nothing has changed. They do so in turn, for a machine that is
slower for a minute is so for both; of all pairs of readings the one with the middle ratio counts.
``python -m tests.bench.naive URL STORE`` reads the list once, and prints the number of records, of changes, and the
seconds that it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import redis

from tests.bench.figures import NODE_BYTES, Figure
from tests.bench.scene import PAGE, RESOURCE, bench
from tests.servers import Server

_PAIRS = 7


def read_all(url: str, store: str) -> tuple[int, int]:
    """Read the list once; how many records it has, and how many of them are new or changed."""
    records = changes = 0
    params: dict[str, Any] = {"limit": PAGE}
    with httpx.Client(headers={"Authorization": "Bearer sandbox"}) as http, redis.Redis.from_url(store) as client:
        while True:
            page = http.get(f"{url}{RESOURCE.path}", params=params).raise_for_status().json()
            found = {record["id"]: record for record in page["results"]}
            known = client.hmget("naive:records", list(found)) if found else []
            pipeline = client.pipeline(transaction=False)
            for (key, record), before in zip(found.items(), known, strict=True):
                text = json.dumps(record, sort_keys=True)
                if before is None or before.decode() != text:
                    event = {
                        "specversion": "1.0",
                        "id": str(uuid.uuid4()),
                        "source": f"{url}{RESOURCE.path}",
                        "type": f"org.example.{RESOURCE.type_name}.{'created' if before is None else 'modified'}",
                        "subject": key,
                        "time": record.get("lastModifiedAt") or datetime.now(UTC).isoformat(),
                        "datacontenttype": "application/json",
                        "data": record,
                    }
                    pipeline.xadd("naive:events", {"event": json.dumps(event)})
                    pipeline.hset("naive:records", key, text)
                    changes += 1
            pipeline.execute()
            records += len(found)
            if not page.get("pageToken"):
                return records, changes
            params["pageToken"] = page["pageToken"]


async def naive(url: str, servers: Iterator[Server]) -> AsyncIterator[Figure]:
    """First and silent readings of the script and of the program, on the same source, each on a server of its own."""
    first, silent = list[_Pair](), list[_Pair]()
    records = 0
    for _ in range(_PAIRS):
        server = next(servers)
        script = [_timed(url, server.url) for _ in range(2)]
        async with bench(url, next(servers).url, delta=False) as feed:
            await feed.redis.config_set("stream-node-max-bytes", NODE_BYTES)
            new, _, unchanged = [await feed.round() for _ in range(3)]  # the second one leaves the digests of pages
            await feed.store.release()
        records = new.records
        first.append(_Pair(records / new.seconds, script[0]))
        silent.append(_Pair(records / unchanged.seconds, script[1]))
    yield _middle(first).figure(f"first reading of {records} records", "3")
    yield _middle(silent).figure("silent full reading", "5")


class _Pair(NamedTuple):
    """A reading of the program and one of the script, records a second."""

    own: float
    script: float

    @property
    def ratio(self) -> float:
        return self.own / self.script

    def figure(self, name: str, wanted: str) -> Figure:
        limit = f"forty lines of a user's own {self.script:,.0f}/s"
        return Figure(name, f"{self.own:,.0f} records/s", limit, self.ratio, wanted)


def _middle(pairs: Sequence[_Pair]) -> _Pair:
    return sorted(pairs, key=lambda pair: pair.ratio)[len(pairs) // 2]


def _timed(url: str, store: str) -> float:
    """Records a second of one reading in a process of its own, without its start."""
    command = [sys.executable, "-m", "tests.bench.naive", url, store]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path.cwd())
    records, _, seconds = done.stdout.split()
    return int(records) / float(seconds)


if __name__ == "__main__":
    begun = time.perf_counter()
    counts = read_all(sys.argv[1], sys.argv[2])
    sys.stdout.write(f"{counts[0]} {counts[1]} {time.perf_counter() - begun:.3f}\n")
