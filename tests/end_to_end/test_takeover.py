"""Two daemons on one store: one polls, the other waits for it to go, and who comes back too late is refused."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, scene
from tests.harness.waiting import patience
from tests.proxy import proxied

if TYPE_CHECKING:
    from pathlib import Path

_TTL = timedelta(seconds=1)
_SLACK = timedelta(seconds=2)  # for the rounds themselves, on a busy machine


async def test_the_other_takes_over_within_the_lease(tmp_path: Path, store: str) -> None:
    """While its owner lives a feed is polled by it alone; killed, the other polls all as soon as the leases end."""
    async with scene(tmp_path, store=store) as played:
        config = played.config(ttl=f"{_TTL.seconds}s")
        async with daemon(config) as owner:
            await owner.polled(RESOURCES)
            async with daemon(config, level="debug") as other:
                await other.skipped(RESOURCES)
                await owner.polled(RESOURCES, since=len(owner.lines))
                assert not other.rounds(), other
                await owner.kill()
                killed = datetime.now(UTC)
                await other.polled(RESOURCES)
                last = max(datetime.fromisoformat(line["at"]) for line in _firsts(other.rounds()))
                assert last - killed < _TTL + _SLACK
                verdict = await played.caught_up()
    assert verdict.clean, verdict


async def test_who_slept_through_its_lease_is_refused(tmp_path: Path, store: str) -> None:
    """Stopped with its plan made, replaced meanwhile, woken: its commit is refused, and so nothing comes twice."""
    async with (
        scene(tmp_path, store=store) as played,
        proxied(store) as proxy,
        daemon(played.config("sleeper", store=proxy.url)) as sleeper,
    ):
        await sleeper.polled(RESOURCES)
        planning = proxy.hold_reply(to=b"HMGET")
        async with daemon(played.config("other")) as other, patience("a plan to be made"):
            await planning.struck.wait()
            sleeper.send(signal.SIGSTOP)
            planning.freed.set()
            await other.polled(RESOURCES)
            await played.caught_up()
            since = len(sleeper.lines)
            sleeper.send(signal.SIGCONT)
            await sleeper.until(
                lambda line: "is not ours any more; nothing was written" in (line.get("error") or ""),
                "its commit to be refused",
                since=since,
            )
            await other.polled(RESOURCES, since=len(other.lines))
            verdict = await played.caught_up()
    assert verdict.clean, verdict
    assert not [line for line in other.rounds() if not line["ok"]], other


def _firsts(rounds: list[dict[str, str]]) -> list[dict[str, str]]:
    """The first of each feed's."""
    return list({line["feed"]: line for line in reversed(rounds)}.values())
