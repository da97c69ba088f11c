"""Paused and disabled subscriptions: when they stop, what is announced, and what they get when resumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from poller.delivery.endpoint_health import Health, resumed
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed
from tests.harness.waiting import lasting

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.subscribed import Subscribed

_ONE, _TWO, _THREE = Wish("one"), Wish("two"), Wish("three")
_ALONE = Wish("one", lines="concurrency = 1")  # else a 410 still in flight would pause the subscription again


@pytest.mark.thorough
async def test_the_last_word_of_a_sink_is_heeded(tmp_path: Path, store: str) -> None:
    """A sink's 410 or 415 pauses its subscription in all processes and is announced; resumed, it gets the rest."""
    last_words = {"one": 410, "two": 415}
    async with subscribed(tmp_path, [_ONE, _TWO, _THREE], store=store) as scene:
        config = scene.config()
        async with daemon(config) as first:
            for name, status in last_words.items():
                await scene.more(name, 20)
                scene.sinks.mood(name, str(status))
                told = await scene.announced("poller.subscription.paused.v1", name)
                assert str(status) in told["data"]["reason"]
                scene.sinks.mood(name, "ok")
            await scene.more("three", 20)
            await first.kill()
        async with daemon(config):
            await scene.more("three", 40)
            for name in last_words:
                await _resume(scene, name)
            for name in last_words:
                await scene.more(name, 20)
            verdicts = await scene.caught_up()
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]


async def test_resumed_at_once_it_goes_on(tmp_path: Path, store: str) -> None:
    """A subscription paused by 410 and resumed immediately is delivered by the same process."""
    async with subscribed(tmp_path, [_ALONE], store=store) as scene, daemon(scene.config()):
        await scene.more("one", 20)
        for _ in range(3):
            scene.sinks.mood("one", "410")
            await scene.paused("one")
            scene.sinks.mood("one", "ok")
            await _resume(scene)
            await scene.more("one", 10)
        found = (await scene.caught_up())["one"]
    assert found.clean, found


async def test_nothing_but_failures_disables_and_keeps_the_events(tmp_path: Path, store: str) -> None:
    """After a second of failures a subscription is disabled; resumed, it gets all events. Both are announced."""
    failing = Wish("one", lines=f'disable_after = "{lasting(1)}"')  # a busy sink that is well must not fail for as long
    async with (
        subscribed(tmp_path, [failing], store=store) as scene,
        daemon(scene.config(sink_timeout=lasting(0.4))),
    ):
        await scene.more("one", 20)
        scene.sinks.mood("one", "503=5 reset hang")
        told = await scene.announced("poller.subscription.disabled.v1", "one")
        assert "nothing but failures" in told["data"]["reason"]
        await scene.ended("one")  # else an attempt under way could succeed
        scene.sinks.mood("one", "ok")
        await scene.played.change(50)
        assert not await scene.announcements("poller.subscription.recovered.v1")
        await _resume(scene)
        await scene.announced("poller.subscription.recovered.v1", "one")
        found = (await scene.caught_up())["one"]
    assert found.clean, found


@pytest.mark.thorough
async def test_a_subscription_that_returns_to_the_file_gets_what_it_missed(tmp_path: Path, store: str) -> None:
    """A subscription that leaves the file is paused and gets nothing; when it returns, it gets what it missed."""
    async with subscribed(tmp_path, [_ONE, _TWO], store=store) as scene:
        async with daemon(scene.config()):
            await scene.more("one", 20)
        async with daemon(scene.config("without", without=["one"])) as without:
            line = await without.until(lambda line: line.get("subscription") == "one", "the missing subscription")
            assert line["level"] == "warning"
            before = len(scene.sinks.of("one"))
            await scene.more("two", 60)
            assert len(scene.sinks.of("one")) == before
        async with daemon(scene.config()):
            verdicts = await scene.caught_up()
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]


async def _resume(scene: Subscribed, name: str = "one") -> None:
    """Resume the subscription, as an operator does."""
    scene.note_resumed(name)  # before it is, because requests come at once
    await Registry(scene.played.client, SubscriptionKeys.of("poller")).resume(name, _again)


def _again(health: bytes) -> bytes:
    return msgspec.json.encode(resumed(msgspec.json.decode(health, type=Health)))
