"""Law: a bootstrap from a daemon is exact while the source changes and members die."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from cloudevents.core.v1.event import CloudEvent

from poller.client import Consumer
from tests.harness.consumed import GROUP, ConsumerGroup, consumed
from tests.harness.processes import daemon, ran
from tests.harness.scene import Scene, scene, stream
from tests.harness.waiting import strain, until, within
from tests.servers import free_port

RESOURCE: Final = "employmentUnavailabilities"
FEED: Final = f"acme/{RESOURCE}"
LAST: Final = "LAST"


@pytest.mark.thorough
async def test_a_bootstrap_from_a_daemon_is_exact(tmp_path: Path) -> None:
    """The result is what the daemon shows in the end, and no revision falls, although members are killed and stopped.

    The stream has lost the events of the first records, so only pages hold those that do not change.
    """
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    lease = timedelta(seconds=0.5 * strain())
    async with scene(tmp_path, records=600, changes_per_second=0) as here:
        config = here.config(resources=[RESOURCE], bind=f"127.0.0.1:{port}", limit="200", reconcile="1s")
        async with daemon(config) as running:
            await running.polled([RESOURCE])
            first = await _shown(here, api)
            await here.client.xtrim(stream(RESOURCE), maxlen=0, approximate=False)
            ledger = tmp_path / "ledger"
            group = consumed(ledger, store=here.store, feeds=[FEED], lease=lease, api=api, trouble=0.003)
            with group as members:
                gone = sorted(first)[:20]
                for number in range(8):
                    await here.change(40)
                    for record in gone[number::8]:
                        await here.remove(RESOURCE, record)
                    await until(partial(_has_handled, members, 50 * number), "more events")
                await here.put(RESOURCE, {"id": LAST})
                shown = await until(lambda: _settled(here, api, gone), "all changes")
                await until(lambda: _all_is_read(here), "the group to read everything")
                handled = members.handled(GROUP)
                assert members.wrong({}) == []
                assert members.fallen() == []
                assert {one: (revision, json.loads(text)) for one, (revision, text) in members.state().items()} == shown
    assert len(handled) > len(first)
    assert any(line.revision == 1 for line in handled)


async def test_a_bootstrap_is_of_one_generation_of_a_daemon(tmp_path: Path) -> None:
    """A member ends within its first page, records change, and the feed is reset silently: none stays as it was."""
    port = free_port()
    api = f"http://127.0.0.1:{port}"
    state: dict[str, tuple[int, Any]] = {}

    def handle(events: list[CloudEvent]) -> None:
        for event in events:
            data = event.get_data()
            assert isinstance(data, dict)
            state[str(event.get_subject()).lower()] = data["revision"], data["record"]

    async with scene(tmp_path, records=700, changes_per_second=0) as here:
        silent = {RESOURCE: 'baseline = "silent"'}
        config = here.config(resources=[RESOURCE], lines=silent, bind=f"127.0.0.1:{port}", limit="200")

        def member() -> Consumer:
            return Consumer(here.store, FEED, GROUP, "one", bootstrap=True, api=api, ack=False)

        async with daemon(config) as running:
            await running.polled([RESOURCE])
            async with member() as consumer:
                events = [await within(anext(consumer)) for _ in range(122)]
                await consumer.ack(events[-1])
        handle(events)
        for record in [found for _, found in state.values()][::2]:
            await here.put(RESOURCE, record | {"reason": "of the next generation"})
        assert (await ran("-c", str(config), "resync", FEED, "--anew", "--yes"))[0] == 0
        async with daemon(config) as running:
            await running.polled([RESOURCE])
            shown = await _shown(here, api)
            async with member() as consumer:
                events = [await within(anext(consumer)) for _ in shown]
                await consumer.ack(events[-1])
                assert await here.client.hget(_state(), "bootstrap") == b"done"
    handle(events)
    assert len(shown) > 400  # of more than one page
    assert state == shown


async def _has_handled(members: ConsumerGroup, most: int) -> bool:
    return len(members.handled(GROUP)) > most


async def _shown(here: Scene, api: str) -> dict[str, tuple[int, Any]]:
    async with here.http.get(f"{api}/feeds/{FEED}/records", headers={"accept": "application/x-ndjson"}) as answer:
        lines = [json.loads(line) for line in (await answer.text()).splitlines()[1:]]
    return {line["id"].lower(): (line["revision"], line["record"]) for line in lines}


async def _settled(here: Scene, api: str, gone: list[str]) -> dict[str, tuple[int, Any]] | None:
    shown = await _shown(here, api)
    return None if LAST.lower() not in shown or shown.keys() & set(gone) else shown


async def _all_is_read(here: Scene) -> bool:
    groups: Any = await here.client.xinfo_groups(stream(RESOURCE))
    state = await here.client.hget(_state(), "bootstrap")
    return state == b"done" and groups[0]["lag"] == 0 and groups[0]["pending"] == 0


def _state() -> str:
    return f"{stream(RESOURCE).removesuffix('events')}group:state:{GROUP}"
