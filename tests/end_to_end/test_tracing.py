"""Traces of a real daemon at a real collector, and of a daemon without one."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis

from poller.telemetry.tracing import ids_of
from tests.harness.processes import daemon
from tests.receiver import CLOSE, Raw, Reply, receiving
from tests.telemetry.collector import Span, spans_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.receiver import Received, Receiver

ROOT = Path(__file__).parents[2]
STREAM = "poller:{acme/contractTypes}:events"
LOOK = (
    "import atexit, sys; from poller.cli import main; atexit.register(lambda: print('imported:', "
    "[name for name, module in sys.modules.items() if name.startswith('opentelemetry') and module])); main()"
)


@dataclass
class Scene:
    """An API with one record, a sink, a collector, and the configuration that names API and sink."""

    config: Path
    api: Receiver
    sink: Receiver
    collector: Receiver
    first: list[Raw] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        return spans_of(self.collector.requests)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def environ(self, **variables: str) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50", **variables}

    def answer(self, _: Received) -> Reply | Raw:
        if self.first:
            return self.first.pop()
        return Reply(200, body=json.dumps({"results": [{"id": "K", "name": "a"}]}).encode())


@asynccontextmanager
async def scene(tmp_path: Path, store: str, interval: str = "100ms") -> AsyncIterator[Scene]:
    async with receiving() as api, receiving() as sink, receiving(Reply(200)) as collector:
        config = tmp_path / "poller.toml"
        config.write_text(
            f'[redis]\nurl = "{store}"\n[lease]\nttl = "30s"\n[http]\nbind = "off"\n'
            f'[[sources]]\nname = "acme"\nbase_url = "{api.url}/v1"\nauth = {{ none = true }}\n'
            f'[[sources.feeds]]\nresource = "contractTypes"\ninterval = "{interval}"\nlimit = 7\n'
            f'[[subscriptions]]\nid = "one"\nsink = "{sink.url}/hooks"\nstart = "earliest"\nallow_private = true\n'
        )
        played = Scene(config, api, sink, collector)
        api.answer = played.answer
        yield played


async def test_a_change_is_followed_from_the_api_to_the_sink(tmp_path: Path, store: str) -> None:
    """A round's span holds its requests and commits; its event carries the trace, and the delivery links to it."""
    async with scene(tmp_path, store, interval="20s") as played:
        played.first = [CLOSE]  # the request is repeated immediately
        async with daemon(played.config, environ=played.environ(OTEL_SERVICE_NAME="here")) as traced:
            [posted] = await played.sink.received(1)
            await played.collector.until(lambda: bool(played.named("deliver")), "the delivery's span")
            traced.send(signal.SIGTERM)
            assert await traced.left() == 0, traced
        async with Redis.from_url(store) as client:
            [[_, fields]] = cast("list[Any]", await client.xrange(STREAM))
    event = json.loads(fields[b"data"])
    assert json.loads(posted.body) == event
    [found] = [span for span in played.named("round") if span.attributes["poller.round.created"]]
    assert ids_of(event) == found.ids
    assert (found.parent, found.attributes["poller.feed"], found.resource["service.name"]) == (
        "",
        "acme/contractTypes",
        "here",
    )
    _look_at_its_parts(found, played)
    [deliver] = played.named("deliver")
    assert (deliver.parent, deliver.links) == ("", [found.ids])
    assert deliver.trace != found.trace
    assert ids_of({"traceparent": posted.header("traceparent") or ""}) == deliver.ids
    assert deliver.attributes["poller.event.id"] == event["id"]
    assert (deliver.attributes["poller.subscription"], deliver.attributes["poller.step"]) == ("one", "delivered")
    told = [line for line in traced.lines if line.get("event") == "round" and line["created"]]
    assert [(line["trace_id"], line["span_id"]) for line in told] == [found.ids]
    assert not [name for request in played.api.requests for name, _ in request.headers if "trace" in name.lower()]


def _look_at_its_parts(found: Span, played: Scene) -> None:
    parts = [span for span in played.spans if span.trace == found.trace and span != found]
    assert {span.parent for span in parts} == {found.id}
    gets = [span for span in parts if span.name == "GET"]
    assert [span.attributes.get("http.response.status_code") for span in gets] == [None, 200]
    assert [span.attributes.get("http.request.resend_count") for span in gets] == [None, 1]
    assert {span.attributes["url.full"] for span in gets} == {f"{played.api.url}/v1/contractTypes"}
    commits = [span.attributes for span in parts if span.name == "commit"]
    assert [one["poller.commit.events"] for one in commits] == [1, 0]
    assert {one["poller.commit.result"] for one in commits} == {"ok"}


@pytest.mark.thorough
async def test_not_sampled_it_is_named_and_not_sent(tmp_path: Path, store: str) -> None:
    """Without sampling, event and request carry a traceparent with the flag off, and nothing is exported."""
    async with scene(tmp_path, store) as played:
        environ = played.environ(OTEL_TRACES_SAMPLER="always_off")
        async with daemon(played.config, environ=environ) as unseen:
            [posted] = await played.sink.received(1)
            unseen.send(signal.SIGTERM)
            assert await unseen.left() == 0, unseen
        for name in (json.loads(posted.body)["traceparent"], posted.header("traceparent") or ""):
            assert int(name[-2:], 16) & 1 == 0
        assert not played.collector.requests


@pytest.mark.thorough
async def test_a_collector_that_goes_is_not_missed(tmp_path: Path, store: str) -> None:
    """If the collector fails, work goes on with one warning, and stopping releases the lease in time."""
    async with scene(tmp_path, store) as played, AsyncExitStack() as stack:
        async with receiving(Reply(200)) as dying:
            environ = played.environ(
                OTEL_EXPORTER_OTLP_ENDPOINT=dying.url, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20s3cret"
            )
            missing = await stack.enter_async_context(daemon(played.config, environ=environ))
            await dying.received(1)
        warned = await missing.until(lambda line: line.get("event") == "tracing fails", "a warning")
        since = len(missing.lines)
        for _ in range(3):
            await missing.polled(["contractTypes"], since=since)
            since = len(missing.lines)
        missing.send(signal.SIGTERM)
        assert await missing.left() == 0, missing
        async with Redis.from_url(store) as client:
            assert not await client.exists("poller:{acme/contractTypes}:lease")
    assert [line for line in missing.lines if "tracing" in str(line)] == [warned]
    assert "s3cret" not in str(missing.lines)


async def test_off_it_is_not_there(tmp_path: Path, store: str) -> None:
    """With tracing off nothing of OpenTelemetry is imported, and no event or request carries a trace."""
    async with scene(tmp_path, store) as played:
        assert (await _once(played, {})).splitlines()[-1] == "imported: []"
        async with daemon(played.config):
            [posted] = await played.sink.received(1)
    assert "trace" not in posted.body.decode()
    assert not [name for name, _ in posted.headers if "trace" in name.lower()]


@pytest.mark.thorough
async def test_on_the_same_look_sees_it(tmp_path: Path, store: str) -> None:
    """Control: with tracing on the import is seen, and ``once`` exports its spans before it exits."""
    async with scene(tmp_path, store) as played:
        assert "'opentelemetry.sdk.trace'" in await _once(played, played.environ())
        assert played.named("round")


async def _once(played: Scene, environ: dict[str, str]) -> str:
    """The output of ``once`` in an otherwise empty environment."""
    command = [sys.executable, "-c", LOOK, "once", "--config", str(played.config)]
    once = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environ, cwd=ROOT)
    said, _ = await once.communicate()
    return said.decode()
