"""Law: what is asked of a running daemon by HTTP is done by it, and its end is theirs who follow it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import aiohttp
from structlog.testing import capture_logs

from poller.config.load import load
from poller.sandbox.model import History
from poller.sandbox.seed import seed
from poller.sandbox.serving import serving
from poller.service.daemon import run
from tests.harness.waiting import patience, until, within
from tests.receiver import receiving
from tests.servers import free_port
from tests.service.web.served import TOKEN
from tests.service.web.sse import Parser, following

SOON = 8.0  # seconds; a supervisor kills after ten
FEED = "acme/contractTypes"


def configuration(directory: Path, *, source: str, store: str, bind: str) -> Path:
    token = directory / "admin"
    token.write_text(TOKEN, "utf-8")
    token.chmod(0o600)
    file = directory / "poller.toml"
    file.write_text(
        f'redis = {{ url = "{store}" }}\nhttp = {{ bind = "{bind}", admin_token_file = "{token}" }}\n'
        f'[[sources]]\nname = "acme"\nbase_url = "{source}"\nauth = {{ token_env = "TOKEN" }}\n'
        '[[sources.feeds]]\nresource = "contractTypes"\ninterval = "200ms"\n',
        "utf-8",
    )
    return file


async def test_a_running_daemon(tmp_path: Path, store_url: str) -> None:
    """Events come as they are published, a subscription is delivered, an order is carried out, all ends in order."""
    history, rng = History(), Random(1)
    seed(history, rng, records=20, at=datetime.now(UTC))
    bind = f"127.0.0.1:{free_port()}"
    stop = asyncio.Event()
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with (
        serving(history, rng=rng, changes_per_second=0) as source,
        receiving() as sink,
        aiohttp.ClientSession(f"http://{bind}", headers=headers) as http,
    ):
        settings = load(configuration(tmp_path, source=source, store=store_url, bind=bind), {})
        with capture_logs() as logs:
            daemon = asyncio.create_task(run(settings, {"TOKEN": "sandbox"}, stop=stop, now=lambda: datetime.now(UTC)))

            async def followed() -> aiohttp.ClientResponse | None:
                answer = await http.get("/events?from=earliest")
                return answer if answer.status == 200 else None

            answer = await until(followed, "the daemon", despite=(aiohttp.ClientConnectionError,))
            messages = following(answer, Parser())
            async with patience("an event"):
                event = json.loads((await anext(messages)).data)
            assert event["data"]["cause"] == "baseline"

            wanted = {"sink": sink.url, "config": {"start": "earliest", "allow_hosts": ["127.0.0.1"]}}
            async with http.post("/subscriptions", json=wanted) as made:
                assert made.status == 201
            await sink.received(1)

            async def ordered() -> bool:
                async with http.post(f"/feeds/{FEED}/resync") as order:
                    return order.status in {200, 202} and (await order.json())["outcome"] in {"begun", "done"}

            await until(ordered, "the order to be carried out")
            stop.set()
            async with patience("the end of the events"):
                async for _ in messages:
                    pass
            await within(daemon, SOON)
    assert not [line for line in logs if line["log_level"] in {"error", "critical"}]
