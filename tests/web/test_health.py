"""Laws of :mod:`poller.web.health` with a real daemon: its metrics are correct, complete, and hold no secret."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from poller.config.load import load
from poller.redis.client import commands
from poller.sandbox.data import seed
from poller.sandbox.history import History
from poller.sandbox.server import serving
from poller.store.keys import ConsumerKeys, SubscriptionKeys
from poller.telemetry.metrics import described
from tests.harness.waiting import until
from tests.receiver import Received, Receiver, Reply, receiving
from tests.servers import Server, free_port, running
from tests.telemetry.series import Key, key, values
from tests.test_app import now, running_daemon

SECRET: Final = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RESOURCE: Final = "employmentUnavailabilities"
NAMES: Final = (f"metered-{number}" for number in count())
"""A source name for each test, because counters of a process are never reset."""
_CONFIG: Final = """\
redis = {{ url = "{store}" }}
http = {{ bind = "{web}" }}
[[sources]]
name = "{name}"
base_url = "{source}"
auth = {{ token_env = "TOKEN" }}
[[sources.feeds]]
resource = "employmentUnavailabilities"
interval = "200ms"
[[subscriptions]]
id = "hook"
sink = "{sink}/hook?key=hidden-in-the-query"
start = "earliest"
allow_private = true
secret_files = ["{secret}"]
[[subscriptions]]
id = "refused"
sink = "{sink}/refused"
start = "earliest"
allow_private = true
"""


@dataclass
class Scene:
    """A daemon that polls a source and delivers to a sink, and its metrics."""

    web: str
    http: aiohttp.ClientSession
    server: Server
    sink: Receiver
    records: int
    name: str

    @property
    def feed(self) -> str:
        return f"{self.name}/{RESOURCE}"

    async def text(self, accept: str = "") -> tuple[str, str]:
        async with self.http.get(f"http://{self.web}/metrics", headers={"accept": accept}) as answer:
            assert answer.status == 200
            return answer.headers["content-type"], await answer.text()

    async def metrics(self) -> dict[Key, float]:
        return values((await self.text())[1])

    async def settled(self) -> None:
        """Wait until one subscription has every event and all events of the other wait for a retry."""
        async with commands(self.server.url) as client:
            parked = ConsumerKeys.of("poller", self.feed, "refused").parked
            healths = SubscriptionKeys.of("poller").health

            async def done() -> bool:
                hooked = sum(one.target.startswith("/hook") for one in self.sink.requests)
                waiting = await client.hlen(parked)
                return hooked >= self.records <= waiting and bool(await client.hexists(healths, f"refused {self.feed}"))

            await until(done, "every event to be delivered or to wait for a retry")

    async def says(self, wanted: Key, least: float) -> dict[Key, float]:
        """Wait until a sample is at least ``least``; all samples then."""

        async def enough() -> dict[Key, float] | None:
            found = await self.metrics()
            return found if found.get(wanted, -1.0) >= least else None

        return await until(enough, f"{wanted} of {least}", despite=(aiohttp.ClientConnectionError,), every=0.02)


@asynccontextmanager
async def staged(directory: Path) -> AsyncIterator[Scene]:
    history, rng, web = History(), Random(1), f"127.0.0.1:{free_port()}"
    name = next(NAMES)
    seed(history, rng, records=40, at=now())
    secret = directory / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)

    def answer(request: Received) -> Reply:
        return Reply(status=799 if request.target == "/refused" else 204)

    async with receiving(answer) as sink, serving(history, rng=rng) as url, aiohttp.ClientSession() as http:
        with running("valkey", directory / "v") as server:
            file = directory / "poller.toml"
            text = _CONFIG.format(name=name, store=server.url, web=web, source=url, sink=sink.url, secret=secret)
            file.write_text(text, "utf-8")
            async with running_daemon(load(file, {})):
                yield Scene(web, http, server, sink, history.count(RESOURCE), name)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with staged(tmp_path) as one:
        yield one


async def test_what_happened_is_what_is_counted(scene: Scene) -> None:
    """Figures of source, rounds, stream and sinks match what the other side saw; every metric has a series."""
    records = scene.records
    assert records
    await scene.settled()
    await scene.says(key("poller_attempts_total", subscription="hook", outcome="delivered"), records)
    await scene.says(key("poller_attempts_total", subscription="refused", outcome="retried"), records)
    await scene.says(key("poller_loop_lag_seconds_count"), 1)
    await scene.says(key("poller_subscription_parked_events", subscription="refused"), records)
    await scene.says(key("poller_rounds_total", feed=scene.feed, mode="delta", result="ok"), 2)

    lag = key("poller_subscription_lag_seconds", subscription="hook")
    failing = key("poller_subscription_failing", subscription="refused")

    async def recent() -> dict[Key, float] | None:
        found = await scene.metrics()
        return found if (found.get(lag), found.get(failing)) == (0.0, 1.0) else None

    # Figures of the store may be five seconds old, from before the last acknowledgement.
    found = await until(recent, "one subscription without lag, and the other failing", every=0.02)
    assert found[key("poller_records_total", feed=scene.feed, kind="created")] == records
    assert found[key("poller_feed_records", feed=scene.feed)] == records
    assert (
        found[key("poller_feed_events_total", feed=scene.feed)]
        == found[key("poller_stream_entries", feed=scene.feed)]
        == records
    )
    assert found[key("poller_rounds_total", feed=scene.feed, mode="baseline", result="ok")] == 1
    assert found[key("poller_delivery_delay_seconds_count", subscription="hook")] == records
    assert found[key("poller_attempt_duration_seconds_count", subscription="hook")] == records
    assert sum(one.target.startswith("/hook") for one in scene.sink.requests) == records
    assert found[key("poller_source_requests_total", source=scene.name, status="200")] >= 3
    assert found[key("poller_subscription_lag_seconds", subscription="refused")] > 0
    assert found[key("poller_leases_held", kind="feed")] == 1
    assert found[key("poller_leases_held", kind="delivery")] == 2
    assert [found[key(f"poller_{one}")] for one in ("ready", "store_up", "members")] == [1, 1, 1]
    assert found[key("poller_http_requests_total", route="/metrics", status="200")] >= 4
    names = {name for name, _ in found}
    suffixes = {"counter": "", "gauge": "", "histogram": "_count"}
    absent = {one.name for one in described() if one.name + suffixes[one.kind] not in names}
    # Absent here: the store has no problems, no sink needs a grant, and every feed is configured.
    assert absent <= {"poller_store_finding", "poller_subscription_ungranted", "poller_orphaned_feed_events"}
    assert found[key("poller_configuration_differences")] == 0


async def test_both_forms_are_as_prometheus_wants_them(scene: Scene) -> None:
    """The linter of Prometheus and an OpenMetrics parser accept the output, and it holds no secret."""
    await scene.says(key("poller_attempts_total", subscription="hook", outcome="delivered"), scene.records)
    kind, text = await scene.text()
    assert kind.startswith("text/plain; version=0.0.4")
    kind, other = await scene.text("application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert kind.startswith("application/openmetrics-text")
    families = {family.name for family in openmetrics(other)}  # type: ignore[no-untyped-call]  # as it is
    assert {"poller_rounds", "poller_ready", "poller_feed_events"} <= families
    for one in (
        SECRET,
        SECRET.removeprefix("whsec_"),
        "hidden-in-the-query",
        scene.sink.url,
        str(scene.server.url),
    ):
        assert one not in text
        assert one not in other
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not on the PATH; all other checks have passed")
    command = ("promtool", "check", "metrics")
    linted = await asyncio.to_thread(subprocess.run, command, input=text, capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")


async def test_a_store_that_went_takes_its_own_figures_along(scene: Scene) -> None:
    """While the store is unavailable its own metrics are absent, and all others are served."""
    created = key("poller_records_total", feed=scene.feed, kind="created")
    await scene.says(created, scene.records)
    await scene.says(key("poller_members"), 1)
    scene.server.process.kill()

    async def told() -> dict[Key, float] | None:
        found = await scene.metrics()
        return found if not found[key("poller_store_up")] else None

    found = await until(told, "the store to be unavailable")
    assert key("poller_members") not in found
    assert not any(name.startswith(("poller_feed_", "poller_stream_", "poller_subscription_")) for name, _ in found)
    assert found[key("poller_ready")] == 0
    assert found[created] == scene.records
    await scene.says(key("poller_store_failures_total"), 1)


async def test_nobody_makes_up_routes(scene: Scene) -> None:
    """All unknown paths share one series."""
    before = routes_in(await scene.says(key("poller_ready"), 0))  # earlier tests of this process requested other routes
    for path in ("/nothing", "/metrics/x", "/%7Bid%7D"):
        async with scene.http.get(f"http://{scene.web}{path}") as answer:
            assert answer.status == 404
    async with scene.http.post(f"http://{scene.web}/metrics") as answer:
        assert answer.status == 405
    assert routes_in(await scene.metrics()) - before <= {"other", "/metrics"}


def routes_in(found: Mapping[Key, float]) -> set[str]:
    """The routes that have a series."""
    return {dict(labels)["route"] for name, labels in found if name == "poller_http_requests_total"}
