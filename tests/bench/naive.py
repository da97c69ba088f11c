"""What a user would write instead: forty lines that read a list, compare, and append to a stream.

It commits by several commands, without a lease, a revision or an order to recover from a crash. It reads the same pages
as the program beside it, and each writes to a new server: one that holds much would rewrite its log meanwhile.
``python -m tests.bench.naive URL STORE`` reads the list once, and prints the number of records, of changes, and the
seconds that it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import redis

from tests.bench.figures import NODE_BYTES, Figure
from tests.bench.scene import PAGE, RESOURCE, bench
from tests.servers import Server

_ROUNDS = 3


def read_all(url: str, store: str) -> tuple[int, int]:
    """Read the list once; how many records it has, and how many of them are new or changed."""
    records = changes = 0
    params: dict[str, Any] = {"limit": PAGE}
    with httpx.Client(headers={"Authorization": "Bearer sandbox"}) as http, redis.Redis.from_url(store) as client:
        while True:
            page = http.get(f"{url}{RESOURCE.path}", params=params).raise_for_status().json()
            found = {record["id"]: json.dumps(record, sort_keys=True) for record in page["results"]}
            known = client.hmget("naive:records", list(found)) if found else []
            pipeline = client.pipeline(transaction=False)
            for (key, text), before in zip(found.items(), known, strict=True):
                if before is None or before.decode() != text:
                    kind = "created" if before is None else "modified"
                    pipeline.xadd("naive:events", {"data": json.dumps({"type": kind, "data": json.loads(text)})})
                    pipeline.hset("naive:records", key, text)
                    changes += 1
            pipeline.execute()
            records += len(found)
            if not page.get("pageToken"):
                return records, changes
            params["pageToken"] = page["pageToken"]


async def naive(url: str, servers: Iterator[Server]) -> AsyncIterator[Figure]:
    """First and silent readings of the script and of the program, on the same source, each on a server of its own."""
    server = next(servers)
    first, *silent = [_timed(url, server.url) for _ in range(1 + _ROUNDS)]
    server = next(servers)
    async with bench(url, server.url, delta=False) as feed:
        await feed.redis.config_set("stream-node-max-bytes", NODE_BYTES)
        own_first = await feed.round()
        own = [await feed.round() for _ in range(1 + _ROUNDS)][1:]  # the first of them leaves the digests of pages
        await feed.store.release()
    speed = own_first.records / own_first.seconds
    yield Figure(
        f"first reading of {own_first.records} records",
        f"{speed:,.0f} records/s",
        f"forty lines of a user's own {first:,.0f}/s",
        speed / first,
        "3",
    )
    best = max(one.records / one.seconds for one in own)
    yield Figure(
        "silent full reading",
        f"{best:,.0f} records/s",
        f"forty lines of a user's own {max(silent):,.0f}/s",
        best / max(silent),
        "5",
    )


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
