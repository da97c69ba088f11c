"""A subscription whose signing secret becomes unreadable and readable again."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import aiohttp
import pytest

from poller.cli.options import utc_now
from poller.config.load import load
from poller.control.status import subscription_statuses
from tests.harness.processes import daemon
from tests.harness.subscribed import SECRET, Wish, subscribed
from tests.harness.waiting import until
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from poller.config.settings import Settings
    from poller.control.status import SubscriptionStatus
    from tests.harness.subscribed import Subscribed

_TWO = [Wish("one", lines='disable_after = "1s"'), Wish("two", signed=False)]
_IN_FLIGHT = 8
_REASON = "the signing secret cannot be read from the file "


@pytest.mark.thorough
async def test_nothing_is_lost_while_a_secret_is_away(tmp_path: Path, store: str) -> None:
    """Without its secret a subscription is failing with the reason; the start and the end are logged once each.

    Meanwhile nothing is given up or paused, however short ``disable_after`` is, and other subscriptions go on. When the
    secret is back all events are delivered, in order for each record.
    """
    async with subscribed(tmp_path, _TWO, store=store) as scene:
        web = f"127.0.0.1:{free_port()}"
        config = scene.config(bind=web)
        secret = scene.played.directory / "secret"
        settings = load(config, os.environ)
        async with daemon(config) as told:
            await scene.more("one", 20)
            since = len(told.lines)
            secret.rename(secret.with_name("away"))
            line = await told.until(lambda line: line["event"] == "credential fails", "the failure", since=since)
            assert (line["level"], line["subscription"]) == ("warning", "one")
            assert str(line["error"]) == f"{_REASON}{secret}: No such file or directory"
            status = await until(lambda: _failing(scene, settings), "a failing status")
            assert (status.error, status.paused_by) == (line["error"], None)
            assert await until(lambda: _named(web), "/readyz to name the subscription") == ({"one": line["error"]},)
            before = len(scene.sinks.of("one"))
            await scene.more("two", 100)
            assert len(scene.sinks.of("one")) <= before + 2 * _IN_FLIGHT  # requests and answers of what was in flight
            status = await _status(scene, settings)
            assert (status.state, status.dead_letters) == ("failing", 0)
            assert status.parked <= _IN_FLIGHT < (status.lag_entries or 0)
            secret.with_name("away").rename(secret)
            line = await told.until(lambda line: line["event"] == "credential works again", "its recovery", since=since)
            verdicts = await scene.caught_up()
            assert await until(lambda: _well(scene, settings), "an active status") == (None, None)
            await until(lambda: _named(web, anything=False), "/readyz to name no subscription")
            lines = [line["event"] for line in told.lines if "credential" in f"{line['event']} {line.get('failure')}"]
            assert lines == ["credential fails", "credential works again"]
            assert SECRET not in json.dumps(told.lines)
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]


async def _status(scene: Subscribed, settings: Settings) -> SubscriptionStatus:
    (found,) = await subscription_statuses(scene.played.client, settings, now=utc_now(), only=["one"])
    return found


async def _failing(scene: Subscribed, settings: Settings) -> SubscriptionStatus | None:
    found = await _status(scene, settings)
    return found if found.state == "failing" else None


async def _well(scene: Subscribed, settings: Settings) -> tuple[str | None, str | None] | None:
    found = await _status(scene, settings)
    return (found.error, found.reason) if found.state == "active" else None


async def _named(web: str, *, anything: bool = True) -> tuple[dict[str, str]] | None:
    """The failing subscriptions as /readyz names them, once there are some (or none)."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{web}/readyz") as answer:
        report = await answer.json()
    assert (answer.status, report["reasons"]) == (200, [])
    found: dict[str, str] = report["subscriptions"]
    return (found,) if bool(found) is anything else None
