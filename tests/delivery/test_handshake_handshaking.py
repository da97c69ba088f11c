"""Laws of :mod:`poller.delivery.handshake` and its callback: nothing is sent before it was granted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import encode_subscription
from poller.delivery.handshake import Granted, Refused, Unanswered, decoded, encoded, origin, permitted
from poller.http.server import listening
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from poller.web.app import application
from poller.web.subscriptions import callback_routes
from tests.delivery.sinks import sink_of
from tests.harness.clock import StubClock
from tests.harness.waiting import until
from tests.receiver import Answer, Received, Receiver, Reply, receiving

NOW = datetime(2026, 3, 2, tzinfo=UTC)
ALLOWED = ("WebHook-Allowed-Origin", "*")


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with FakeAsyncRedis() as client:
        kept = Registry(client, SubscriptionKeys.of("poller"))
        await kept.add("rostering", b"{}", (), NOW)
        yield kept


def settings(url: str) -> SubscriptionSettings:
    return SubscriptionSettings.model_validate(
        {"id": "rostering", "sink": url, "allow_private": True, "validate": True, "rate": 2}
    )


@asynccontextmanager
async def asking(
    registry: Registry, receiver: Receiver, *, kept: bytes | None = None, public_url: str | None = None
) -> AsyncIterator[tuple[asyncio.Task[Granted | None], asyncio.Event]]:
    stop = asyncio.Event()
    await registry.change("rostering", encode_subscription(settings(receiver.url)))
    async with sink_of(receiver.url) as sink:
        task = asyncio.create_task(
            permitted(settings(receiver.url), sink, registry, kept, stop, public_url=public_url, clock=Clock())
        )
        try:
            yield task, stop
        finally:
            stop.set()
            await task


async def test_a_grant_is_asked_for_once_and_kept(registry: Registry) -> None:
    """OPTIONS names origin and rate; the grant is kept, and whoever finds it kept does not ask again."""
    async with receiving() as receiver:
        receiver.answer = Reply(200, headers=(ALLOWED, ("WebHook-Allowed-Rate", "60")))
        async with asking(registry, receiver) as (task, _):
            granted = await task
        assert granted == Granted(origin(None), 60)
        (request,) = receiver.requests
        assert (request.method, request.header("WebHook-Request-Origin")) == ("OPTIONS", origin(None))
        assert request.header("WebHook-Request-Rate") == "120"
        assert request.header("WebHook-Request-Callback") is None
        kept = await registry.handshake("rostering")
        async with asking(registry, receiver, kept=kept) as (task, _):
            assert await task == granted
        assert len(receiver.requests) == 1


async def test_the_grant_of_one_sink_does_not_hold_for_the_next(registry: Registry) -> None:
    """Law: a sink that answers after the subscription got another one grants nothing, and nothing of it is kept."""
    async with receiving() as receiver:

        async def late(_: Received) -> Answer:
            await registry.change("rostering", encode_subscription(settings("http://127.0.0.1:1/next")))
            return Reply(200, headers=(ALLOWED,))

        receiver.answer = late
        async with asking(registry, receiver) as (task, stop):
            await receiver.received(1)
            stop.set()
            assert await task is None
        assert await registry.handshake("rostering") is None


async def test_a_sink_that_refuses_is_sent_nothing(registry: Registry) -> None:
    """The state says why, and the wait ends when it is told to."""
    async with receiving() as receiver:
        receiver.answer = Reply(200)
        async with asking(registry, receiver) as (task, stop):
            await receiver.received(1)
            stop.set()
            assert await task is None
        assert isinstance(decoded(await registry.handshake("rostering") or b""), Refused)


async def test_what_is_not_granted_is_told(registry: Registry) -> None:
    """As a warning with a remedy, once for each reason; and to whoever asks this process how it does."""
    stop, told = asyncio.Event(), list[str | None]()
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        await registry.change("rostering", encode_subscription(settings(receiver.url)))
        receiver.answer = Reply(405)
        with capture_logs() as said:
            waiting = asyncio.create_task(
                permitted(
                    *(settings(receiver.url), sink, registry, None, stop),
                    public_url="https://p.example",
                    clock=StubClock(now=lambda: NOW),
                    report=told.append,
                )
            )
            await until(lambda: said, "the line")
            stop.set()
            assert await waiting is None
        kept = decoded(await registry.handshake("rostering") or b"")
    assert isinstance(kept, Refused)
    assert kept.since == NOW
    (line,) = said
    assert (line["event"], line["log_level"], line["state"]) == ("handshake", "warning", "refused")
    assert "answered 405" in line["error"]
    assert "unset validate" in line["error"]
    assert told[-1] == line["error"]


async def test_a_sink_that_does_not_answer_is_known_for_it(registry: Registry) -> None:
    """Law: nothing is silent; a sink that is not there is kept as unanswered, with the reason."""
    stop = asyncio.Event()
    await registry.change("rostering", encode_subscription(settings("http://127.0.0.1:1/")))
    async with sink_of("http://127.0.0.1:1/") as sink:
        task = asyncio.create_task(
            permitted(settings("http://127.0.0.1:1/"), sink, registry, None, stop, public_url=None, clock=Clock())
        )
        kept = await until(lambda: registry.handshake("rostering"), "a state")
        stop.set()
        assert await task is None
    state = decoded(kept)
    assert isinstance(state, Unanswered)
    assert "refused" in state.reason


async def test_a_sink_may_call_back_with_its_key_and_no_other(registry: Registry) -> None:
    """Granted later, over HTTP, by whoever has the key that was sent; another key changes nothing."""
    async with (
        receiving() as receiver,
        listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
    ):
        receiver.answer = Reply(200)
        async with asking(registry, receiver, public_url=web) as (task, _), aiohttp.ClientSession() as http:
            await receiver.received(1)
            callback = receiver.requests[0].header("WebHook-Request-Callback") or ""
            assert callback.startswith(f"{web}/webhooks/callback?")
            key = parse_qs(urlsplit(callback).query)["key"][0]
            assert len(key) > 40
            kept = await until_awaited(registry)
            assert key.encode() not in kept
            for wrong in (callback + "x", callback.replace("rostering", "another"), f"{web}/webhooks/callback"):
                async with http.post(wrong) as answer:
                    assert answer.status == 404
            async with http.get(callback, headers={"WebHook-Allowed-Rate": "30"}) as answer:
                assert answer.status == 200
            assert (await task) == Granted(origin(web), 30)
            async with http.get(callback) as answer:
                assert answer.status == 404  # once


@pytest.mark.parametrize("answer", [Reply(200), Reply(405), Reply(503)])
async def test_a_sink_may_call_back_before_it_answers(registry: Registry, answer: Reply) -> None:
    """Law: a callback grants from the moment on at which it is offered, whatever the sink answers after it."""
    async with (
        receiving() as receiver,
        listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession() as http,
    ):
        called: list[int] = []

        async def calling(request: Received) -> Answer:
            async with http.get(request.header("WebHook-Request-Callback") or "") as granted:
                called.append(granted.status)
            return answer

        receiver.answer = calling
        async with asking(registry, receiver, public_url=web) as (task, _):
            assert await task == Granted(origin(web), 120)
    assert called == [200]


async def test_a_callback_that_was_offered_earlier_still_grants(registry: Registry) -> None:
    """Law: asking again, by this process or another, takes back no offer: the last four of them grant."""
    async with (
        receiving() as receiver,
        listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession() as http,
    ):
        receiver.answer = Reply(200)
        for number in range(1, 6):
            kept = await registry.handshake("rostering")
            async with asking(registry, receiver, kept=kept, public_url=web) as (task, stop):
                await receiver.received(number)
                stop.set()
                await task
        callbacks = [request.header("WebHook-Request-Callback") or "" for request in receiver.requests]
        assert len(set(callbacks)) == 5
        for callback, status in ((callbacks[0], 404), (callbacks[1], 200)):
            async with http.get(callback) as answer:
                assert answer.status == status
    assert decoded(await registry.handshake("rostering") or b"") == Granted(origin(web), 120)


async def test_a_grant_for_another_name_is_asked_for_anew(registry: Registry) -> None:
    """Law: a permission is for one origin; a daemon whose public name is another one now has none."""
    async with receiving() as receiver:
        receiver.answer = Reply(200, headers=(ALLOWED,))
        kept = encoded(Granted("before.example.org"))
        async with asking(registry, receiver, kept=kept) as (task, _):
            assert await task == Granted(origin(None), 120)
        assert len(receiver.requests) == 1


class Looked(Registry):
    """Counts how often it is looked whether the sink has called back."""

    looks = 0

    async def handshake(self, subscription: str) -> bytes | None:
        self.looks += 1
        return await super().handshake(subscription)


async def test_a_sink_that_refuses_is_left_alone_for_a_while() -> None:
    """Law: between two questions it is looked for a callback each second, and the sink is asked nothing."""
    async with FakeAsyncRedis() as client, receiving() as receiver:
        registry = Looked(client, SubscriptionKeys.of("poller"))
        await registry.add("rostering", b"{}", (), NOW)
        receiver.answer = Reply(200)
        async with asking(registry, receiver):
            await receiver.received(1)
            await until(lambda: registry.looks >= 3, "it to look a few times")
        assert len(receiver.requests) == 1


async def until_awaited(registry: Registry) -> bytes:
    return await until(lambda: registry.handshake("rostering"), "a callback to be awaited")


def test_the_origin_is_that_of_the_public_url() -> None:
    """Else the machine's own, if it has a DNS name."""
    assert origin("https://poller.example.org/x") == "poller.example.org"
    assert origin("http://127.0.0.1:1") == origin(None)
    assert decoded(encoded(Granted(origin(None)))) == Granted(origin(None))
