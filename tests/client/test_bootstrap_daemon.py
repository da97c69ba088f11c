"""Law: a bootstrap from a real daemon is exact while the source changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from poller.client import Consumer
from poller.lifecycle import ended
from tests.client.test_bootstrap import fallen
from tests.client.test_consumer import waiting
from tests.harness.processes import daemon
from tests.harness.scene import Scene, scene
from tests.harness.waiting import until
from tests.servers import free_port

pytest.importorskip("poller.web.records", reason="the daemon does not show its records over HTTP yet")

RESOURCE: Final = "employmentUnavailabilities"
FEED: Final = f"acme/{RESOURCE}"


@pytest.mark.thorough
async def test_a_bootstrap_from_a_daemon_is_exact(tmp_path: Path) -> None:
    """With records that change meanwhile, the result is what the daemon shows in the end, and no revision falls."""
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    async with scene(tmp_path, records=900, changes_per_second=0) as here:
        config = here.config(resources=[RESOURCE], bind=f"127.0.0.1:{port}", limit="100")
        async with daemon(config) as running:
            await running.polled([RESOURCE])
            changing = asyncio.create_task(_change(here))
            handled: list[tuple[str, int, bool]] = []
            records: dict[str, Any] = {}
            try:
                for part in range(3):  # twice it is interrupted
                    consumer = Consumer(here.store, FEED, "g", "a", bootstrap=True, api=api)
                    await _handle(consumer, handled, records, changing, most=150 if part < 2 else None)
            finally:
                await ended(changing)
            async with here.http.get(f"{api}/feeds/{FEED}/records", headers={"accept": "application/x-ndjson"}) as said:
                lines = [json.loads(line) for line in (await said.text()).splitlines()[1:]]
    last = {subject: (revision, removed) for subject, revision, removed in handled}
    assert {subject: revision for subject, (revision, removed) in last.items() if not removed} == {
        line["id"]: line["revision"] for line in lines
    }
    assert all(records[line["id"]] == line["record"] for line in lines)
    assert fallen(handled) == []


async def _change(here: Scene) -> None:
    for _ in range(8):
        await here.change(40)
        before = await here.published()

        async def grown(since: int = before) -> bool:
            return await here.published() > since

        await until(grown, "more events")


async def _handle(
    consumer: Consumer,
    handled: list[tuple[str, int, bool]],
    records: dict[str, Any],
    changing: asyncio.Task[None],
    *,
    most: int | None,
) -> None:
    """Handle this many events, or all until no more come."""
    count, quiet = 0, 0
    async with consumer:
        while quiet < 4 and count != most:
            async with waiting(consumer) as event:
                await asyncio.wait([event], timeout=0.5)
                if not event.done():
                    quiet = quiet + 1 if changing.done() else 0
                    continue
                data = event.result().get_data()
                assert isinstance(data, dict)
                subject, removed = str(event.result().get_subject()), "removed" in event.result().get_type()
                handled.append((subject, data["revision"], removed))
                records[subject] = data.get("record")
                count, quiet = count + 1, 0
