"""Laws of :mod:`poller.delivery.handshake`, partly over real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import msgspec
import pytest
from fakeredis import FakeAsyncRedis
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import encode_subscription
from poller.delivery.handshake import (
    Awaiting,
    Granted,
    HandshakeState,
    Refused,
    Revoked,
    Unanswered,
    callback_url,
    decoded,
    digest_of,
    encoded,
    origin,
    origin_aside,
    pace,
    permitted,
    state_called,
    state_unanswered,
    ungranted,
)
from poller.delivery.handshake import state_after as state_by
from poller.delivery.sinks.base import PermissionRequest
from poller.delivery.sinks.webhook import permission_of
from poller.http.server import listening
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from poller.web.app import application
from poller.web.subscriptions import callback_routes
from tests.delivery.sinks import sink_of
from tests.harness.clock import StubClock
from tests.harness.waiting import turns, until
from tests.receiver import Answer, Received, Receiver, Reply, receiving

ORIGIN = "poller.example.org"
KEY = "callback-key"
ASKED = PermissionRequest(ORIGIN)
OFFERED = PermissionRequest(
    ORIGIN, rate=120, callback=callback_url("https://p.example/confirm", subscription="r", key=KEY)
)
NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
STATES: list[HandshakeState] = [
    Granted(ORIGIN),
    Granted(ORIGIN, 100),
    Awaiting(ORIGIN, digest_of(KEY), 5),
    Refused("no"),
    Revoked("no", NOW),
    Unanswered("no", NOW),
]


def said(origin: str | None, rate: str | None = None) -> Mapping[str, str]:
    named = {"webhook-allowed-origin": origin, "webhook-allowed-rate": rate}
    return {name: value for name, value in named.items() if value is not None}


def state_after(
    headers: Mapping[str, str], asked: PermissionRequest, *, status: int = 200, **known: Any
) -> HandshakeState:
    """The state after an HTTP answer with these headers."""
    return state_by(permission_of(headers, status, asked), asked, **known)


async def test_the_request_says_what_is_asked_for() -> None:
    """The request names the origin, and rate and callback if there are any; without permission asked for, nothing."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        for asked in (ASKED, OFFERED, None):
            await sink.verify(asked)
        sent = [
            {name: value for name, value in one.headers if name.lower().startswith("webhook-")}
            for one in receiver.requests
        ]
    callback = {
        "WebHook-Request-Callback": "https://p.example/confirm?id=r&key=callback-key",
        "WebHook-Request-Rate": "120",
    }
    assert sent == [{"WebHook-Request-Origin": ORIGIN}, {"WebHook-Request-Origin": ORIGIN} | callback, {}]


@pytest.mark.parametrize("origin", ["", "127.0.0.1", "::1", "a b", "a\r\nX: y", "https://p.example", "p.example."])
def test_an_origin_is_a_dns_name(origin: str) -> None:
    """An origin is a DNS name."""
    with pytest.raises(ValueError, match="DNS name"):
        PermissionRequest(origin)


def test_a_rate_is_positive() -> None:
    """A rate in a request is positive."""
    with pytest.raises(ValueError, match="whole number"):
        PermissionRequest(ORIGIN, rate=0)


@pytest.mark.parametrize(
    ("origin", "rate", "state"),
    [
        (ORIGIN, "100", Granted(ORIGIN, 100)),
        (ORIGIN.upper(), " 100 ", Granted(ORIGIN, 100)),
        ("*", "*", Granted(ORIGIN)),
        ("*", "0000100", Granted(ORIGIN, 100)),
        ("*", None, Granted(ORIGIN)),
        (ORIGIN, "", Granted(ORIGIN)),
    ],
)
def test_permission_is_read_from_the_headers(origin: str, rate: str | None, state: HandshakeState) -> None:
    """A grant names this origin or any, and a rate per minute or no limit."""
    assert state_after(said(origin, rate), ASKED) == state


@pytest.mark.parametrize("origin", ["other.example", "", "**", f"{ORIGIN}, other.example", f"x{ORIGIN}"])
def test_another_origin_is_a_refusal(origin: str) -> None:
    """A grant for another origin is a refusal, even if a callback was offered."""
    for asked in (ASKED, OFFERED):
        assert isinstance(state_after(said(origin, "*"), asked, key=KEY), Refused)


@pytest.mark.parametrize("rate", ["0", "-1", "1.5", "1e3", "many", "* *", "9" * 30, "\uff11"])
def test_a_rate_that_is_none_is_a_refusal(rate: str) -> None:
    """A rate that is no positive whole number is a refusal."""
    assert isinstance(state_after(said("*", rate), ASKED), Refused)


def test_no_header_is_no_permission() -> None:
    """An answer without an allowed origin is a refusal, or awaits the callback if one was offered."""
    for rate in (None, "*"):
        assert isinstance(state_after(said(None, rate), ASKED), Refused)
        assert state_after(said(None, rate), OFFERED, key=KEY) == Awaiting(ORIGIN, digest_of(KEY), 120)


@pytest.mark.parametrize("status", [301, 400, 401, 404, 405, 415])
def test_who_does_not_know_the_question_is_refusing(status: int) -> None:
    """A sink that does not support OPTIONS refuses, even if a callback was offered; with a grant header it grants."""
    state = state_after({}, OFFERED, status=status, key=KEY)
    assert isinstance(state, Refused)
    assert f"answered {status} to OPTIONS" in state.reason
    assert state_after(said("*"), OFFERED, status=status, key=KEY) == Granted(ORIGIN, 120)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_answer_without_a_word_on_permission_leaves_the_callback_open(status: int) -> None:
    """An error without permission headers, or no answer, keeps an offered callback open."""
    waiting = state_after({}, OFFERED, key=KEY)
    assert state_after({}, OFFERED, status=status, key="another", before=waiting) == waiting
    assert state_unanswered("nobody there", before=waiting) == waiting
    assert isinstance(state_after({}, OFFERED, status=status, key=KEY), Unanswered)
    assert state_unanswered("nobody there", before=Refused("no", NOW)) == Unanswered("nobody there", NOW)


def test_since_when_nothing_is_granted() -> None:
    """A sink is ungranted since its first answer without a grant; after a grant the time starts again."""
    first = state_after({}, ASKED, status=405, now=NOW)
    later = state_after({}, ASKED, before=first, now=NOW + timedelta(hours=1))
    assert (later.since if not isinstance(later, Granted) else None) == NOW
    revoked = state_after({}, ASKED, before=Granted(ORIGIN), now=NOW + timedelta(hours=2))
    assert revoked == Revoked(str(getattr(later, "reason", "")), NOW + timedelta(hours=2))


def test_what_is_no_grant_has_a_reason_and_a_remedy() -> None:
    """Each state without a grant has a reason and a remedy; a grant and a missing state have neither."""
    assert [ungranted(state) for state in (None, Granted(ORIGIN))] == [None, None]
    told = [ungranted(state) for state in STATES[2:]]
    assert [("; " in str(one)) for one in told] == [True] * 4
    assert len(set(told)) == 3  # refused and revoked have the same remedy


def test_a_rate_that_is_not_answered_is_the_one_asked_for() -> None:
    """A grant without a rate allows the requested one."""
    assert state_after(said("*"), OFFERED) == Granted(ORIGIN, 120)


def test_a_refusal_after_a_grant_is_a_revocation() -> None:
    """A refusal after a grant is a revocation until the next grant."""
    before: HandshakeState = Granted(ORIGIN)
    for _ in range(2):
        before = state_after(said(None), ASKED, before=before)
        assert isinstance(before, Revoked)
    assert state_after(said("*"), ASKED, before=before) == Granted(ORIGIN)
    assert isinstance(state_after(said(None), ASKED, before=Refused("no")), Refused)


def test_the_callback_grants_with_its_key_alone() -> None:
    """Only the right key grants, with its own rate or the requested one, and only while a callback is awaited."""
    waiting = state_after(said(None), OFFERED, key=KEY)
    assert state_called(waiting, KEY) == Granted(ORIGIN, 120)
    assert state_called(waiting, KEY, "7") == Granted(ORIGIN, 7)
    for wrong in ("", "Callback-key", KEY + " ", digest_of(KEY), "\udcff"):
        assert state_called(waiting, wrong) is None
    for other in (None, Granted(ORIGIN), Refused("no"), Revoked("no")):
        assert state_called(other, KEY) is None


@pytest.mark.parametrize("state", STATES)
def test_states_are_kept_as_json(state: HandshakeState) -> None:
    """Handshake states are stored as JSON without the callback's key, and decoded as they were."""
    kept = encoded(state)
    assert decoded(kept) == state
    assert KEY.encode() not in kept


@pytest.mark.parametrize("kept", [b"", b"{}", b"null", b'{"state":"other"}', b'{"state":"granted"}'])
def test_what_is_no_state_is_told(kept: bytes) -> None:
    """A stored state that cannot be decoded is an error."""
    with pytest.raises(msgspec.DecodeError):
        decoded(kept)


@given(st.none() | st.floats(0.001, 1e6), st.none() | st.integers(1, 10**9))
def test_the_slower_of_two_rates_is_kept(configured: float | None, rate: int | None) -> None:
    """The slower of the granted rate per minute and the configured rate per second applies."""
    result = pace(Granted(ORIGIN, rate), configured)
    limits = [limit for limit in (configured, rate and rate / 60) if limit is not None]
    assert (result is None) == (not limits)
    assert all(result is not None and result <= limit for limit in limits)


@pytest.mark.parametrize("status", [200, 204, 404, 405, 500])
async def test_headers_grant_whatever_the_status(status: int) -> None:
    """A grant header grants with any status; without it a 200 does not."""
    allowing = (("WebHook-Allowed-Origin", ORIGIN), ("WebHook-Allowed-Rate", "30"))
    async with receiving([Reply(status, allowing), Reply(status)]) as receiver:
        async with sink_of(f"{receiver.url}/hooks?tenant=%20a") as sink:
            first, second = [state_by(await sink.verify(ASKED), ASKED) for _ in range(2)]
        assert first == Granted(ORIGIN, 30)
        assert isinstance(second, Refused | Unanswered)
        assert {request.target for request in receiver.requests} == {"/hooks?tenant=%20a"}
        assert {request.header("webhook-request-origin") for request in receiver.requests} == {ORIGIN}


# Laws of :func:`poller.delivery.handshake.permitted` and of the callback: nothing is sent without a grant.

AT = datetime(2026, 3, 2, tzinfo=UTC)
ALLOWED = ("WebHook-Allowed-Origin", "*")


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with FakeAsyncRedis() as client:
        kept = Registry(client, SubscriptionKeys.of("poller"))
        await kept.add("rostering", b"{}", (), AT)
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
    """OPTIONS names origin and rate; the grant is stored, and a process that finds it sends no OPTIONS."""
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


async def test_the_look_up_of_the_machine_s_name_holds_up_nothing() -> None:
    """A resolver that hangs delays no other task, and is not asked if there is a public URL."""
    answered = threading.Event()

    def slow() -> str:
        assert answered.wait(30)
        return ORIGIN

    assert await origin_aside("https://public.example/p", slow) == "public.example"
    asking = asyncio.create_task(origin_aside(None, slow))
    await turns()
    assert not asking.done()
    answered.set()
    assert await asking == ORIGIN


async def test_a_sink_that_the_subscription_has_again_is_asked_again(registry: Registry) -> None:
    """An answer is void if the sink was changed meanwhile, even if changed back; the sink is then asked again."""
    async with receiving() as receiver:
        answers = iter((Reply(200), Reply(200, headers=(ALLOWED,))))

        async def late(_: Received) -> Answer:
            for url in ("http://127.0.0.1:1/next", receiver.url):
                await registry.change("rostering", encode_subscription(settings(url)))
            return next(answers)

        receiver.answer = late
        async with asking(registry, receiver, public_url="https://poller.example") as (task, _):
            assert await task == Granted("poller.example", 120)


async def test_the_grant_of_one_sink_does_not_hold_for_the_next(registry: Registry) -> None:
    """A sink that answers after the subscription got another sink grants nothing, and no state is stored."""
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
    """A refusing sink is stored as refused, and a stop ends the wait for its grant."""
    async with receiving() as receiver:
        receiver.answer = Reply(200)
        async with asking(registry, receiver) as (task, stop):
            await receiver.received(1)
            stop.set()
            assert await task is None
        assert isinstance(decoded(await registry.handshake("rostering") or b""), Refused)


async def test_what_is_not_granted_is_told(registry: Registry) -> None:
    """A missing grant is logged with its remedy and reported for the process's status."""
    stop, told = asyncio.Event(), list[str | None]()
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        await registry.change("rostering", encode_subscription(settings(receiver.url)))
        receiver.answer = Reply(405)
        with capture_logs() as said:
            waiting = asyncio.create_task(
                permitted(
                    *(settings(receiver.url), sink, registry, None, stop),
                    public_url="https://p.example",
                    clock=StubClock(now=lambda: AT),
                    report=told.append,
                )
            )
            await until(lambda: said, "the log line")
            stop.set()
            assert await waiting is None
        kept = decoded(await registry.handshake("rostering") or b"")
    assert isinstance(kept, Refused)
    assert kept.since == AT
    (line,) = said
    assert (line["event"], line["log_level"], line["state"]) == ("handshake", "warning", "refused")
    assert "answered 405" in line["error"]
    assert "unset validate" in line["error"]
    assert told[-1] == line["error"]


async def test_a_sink_that_does_not_answer_is_known_for_it(registry: Registry) -> None:
    """A sink that cannot be reached is stored as unanswered, with the reason."""
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
    """A callback grants with the key that the sink was sent; another key changes nothing."""
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


class Overtaken(Registry):
    """A registry in which the subscription gets another sink just after its handshake was read."""

    async def handshake(self, subscription: str) -> bytes | None:
        kept = await super().handshake(subscription)
        await self.change(subscription, encode_subscription(settings("http://127.0.0.1:1/next")))
        return kept


async def test_a_call_that_is_overtaken_grants_nothing_to_the_next_sink() -> None:
    """A callback grants nothing if the subscription gets another sink during the call."""
    async with FakeAsyncRedis() as client:
        registry = Overtaken(client, SubscriptionKeys.of("poller"))
        await registry.add("rostering", encode_subscription(settings("http://127.0.0.1:1/first")), (), AT)
        await registry.note_handshake("rostering", encoded(Awaiting(ORIGIN, digest_of(KEY))))
        async with (
            listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
            aiohttp.ClientSession() as http,
            http.get(callback_url(f"{web}/webhooks/callback", subscription="rostering", key=KEY)) as answer,
        ):
            assert answer.status == 404
        assert not (await registry.all()).handshakes


async def test_a_callback_for_a_subscription_that_the_store_has_lost_is_answered(registry: Registry) -> None:
    """A callback ends with 503 where the handshake is left of a subscription that the registry does not hold."""
    await registry.note_handshake("rostering", encoded(Awaiting(ORIGIN, digest_of(KEY))))
    await registry._client.delete(SubscriptionKeys.of("poller").registry)
    async with (
        listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as http,
        http.get(callback_url(f"{web}/webhooks/callback", subscription="rostering", key=KEY)) as answer,
    ):
        assert answer.status == 503


@pytest.mark.parametrize("answer", [Reply(200), Reply(405), Reply(503)])
async def test_a_sink_may_call_back_before_it_answers(registry: Registry, answer: Reply) -> None:
    """A callback that comes before the sink's answer grants, whatever that answer is."""
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


@pytest.mark.parametrize("answer", [Reply(200), Reply(503)], ids=["unsaid", "unanswered"])
async def test_a_callback_that_was_offered_earlier_still_grants(registry: Registry, answer: Reply) -> None:
    """The last four offered callbacks grant, also after the sink was asked again by any process, or answered late."""
    async with (
        receiving() as receiver,
        listening(application(*callback_routes(lambda: registry)), "127.0.0.1", 0, clock=Clock()) as web,
        aiohttp.ClientSession() as http,
    ):
        receiver.answer = answer
        for number in range(1, 6):
            kept = await registry.handshake("rostering")
            async with asking(registry, receiver, kept=kept, public_url=web) as (task, stop):
                await receiver.received(number)
                stop.set()
                await task
        callbacks = [request.header("WebHook-Request-Callback") or "" for request in receiver.requests]
        assert len(set(callbacks)) == 5
        for callback, status in ((callbacks[0], 404), (callbacks[1], 200)):
            async with http.get(callback) as called:
                assert called.status == status
    assert decoded(await registry.handshake("rostering") or b"") == Granted(origin(web), 120)


async def test_a_grant_for_another_name_is_asked_for_anew(registry: Registry) -> None:
    """A grant for another origin than the present one does not count, and the sink is asked again."""
    async with receiving() as receiver:
        receiver.answer = Reply(200, headers=(ALLOWED,))
        kept = encoded(Granted("before.example.org"))
        async with asking(registry, receiver, kept=kept) as (task, _):
            assert await task == Granted(origin(None), 120)
        assert len(receiver.requests) == 1


class Looked(Registry):
    """A registry that counts the looks for a callback."""

    looks = 0

    async def handshake(self, subscription: str) -> bytes | None:
        self.looks += 1
        return await super().handshake(subscription)


async def test_a_sink_that_refuses_is_left_alone_for_a_while() -> None:
    """Between two requests for permission the store is read for a callback, and the sink is asked nothing."""
    async with FakeAsyncRedis() as client, receiving() as receiver:
        registry = Looked(client, SubscriptionKeys.of("poller"))
        await registry.add("rostering", b"{}", (), AT)
        receiver.answer = Reply(200)
        async with asking(registry, receiver):
            await receiver.received(1)
            await until(lambda: registry.looks >= 3, "a few looks")
        assert len(receiver.requests) == 1


async def until_awaited(registry: Registry) -> bytes:
    return await until(lambda: registry.handshake("rostering"), "a callback to be awaited")


def test_the_origin_is_that_of_the_public_url() -> None:
    """The origin is the host of ``public_url``, or else the machine's DNS name."""
    assert origin("https://poller.example.org/x") == "poller.example.org"
    assert origin("http://127.0.0.1:1") == origin(None)
    assert decoded(encoded(Granted(origin(None)))) == Granted(origin(None))
