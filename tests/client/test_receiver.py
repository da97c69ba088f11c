"""Laws of :class:`poller.client.Receiver` on real servers, ASGI and WSGI: what is handled, when, and the answers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from datetime import timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from poller.client import MalformedSecret, MemoryStore, ReceivedEvent, Receiver, RedisStore, WebhookRefused
from poller.client.repeats import key_of
from poller.delivery.cloudevent import Mode
from tests.client.webhooks import (
    BATCH,
    NOW,
    OTHER,
    SECRET,
    Answer,
    asked,
    batch,
    event,
    post,
    request_of,
    served,
    served_wsgi,
    signed,
)
from tests.harness.waiting import until, within

Kind = Literal["coroutine", "function", "wsgi"]


class Ledger:
    """A handler that notes the ids it is given; each one in ``failing`` fails once."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.failing: set[str] = set()
        self.running = 0
        self.most_running = 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()

    def __call__(self, event_: ReceivedEvent) -> None:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.gate.wait(60)
        with self._lock:
            self.running -= 1
            self._note(event_.get_id())

    async def coroutine(self, event_: ReceivedEvent) -> None:
        await asyncio.to_thread(self, event_)

    def _note(self, event_id: str) -> None:
        if event_id in self.failing:
            self.failing.discard(event_id)
            raise RuntimeError("the work failed on purpose")
        self.ids.append(event_id)


Serving = Callable[..., Any]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=["coroutine", "function", "wsgi"])
def serving(request: pytest.FixtureRequest, ledger: Ledger) -> Serving:
    """Gives the URL of a served receiver of the ledger, for the duration of a block."""

    @asynccontextmanager
    async def serve(secrets: Any = SECRET, **options: Any) -> AsyncIterator[str]:
        handler: Any = ledger.coroutine if request.param == "coroutine" else ledger
        receiver = Receiver(handler, secrets, **options)
        async with AsyncExitStack() as stack:
            if request.param == "wsgi":
                url = stack.enter_context(served_wsgi(receiver.wsgi))
            else:
                url = await stack.enter_async_context(served(receiver))
            stack.callback(ledger.gate.set)  # a test that failed ends soon, too
            yield url

    return serve


# What is handled.


@pytest.mark.parametrize("mode", ["structured", "binary", "batch"])
async def test_an_event_is_handled_then_acknowledged(serving: Serving, ledger: Ledger, mode: Mode) -> None:
    """Each event of the daemon's requests is handled once, in their order, and answered with an empty 204."""
    keys = ("a", "b", "c") if mode == "batch" else ("a",)
    headers, body = request_of(mode, *keys)
    async with serving() as url:
        answer = await asked("POST", url, headers=headers, data=body)
        assert (answer.status, answer.text) == (204, "")
        assert len(ledger.ids) == len(keys)
        again = await asked("POST", f"{url}/hooks?x=1", headers=headers, data=body)  # at any path
    assert again.status == 204
    assert len(ledger.ids) == len(keys)


async def test_order_within_a_batch(serving: Serving, ledger: Ledger) -> None:
    """Events of a batch are handled one after the other; one that occurs twice is handled once."""
    async with serving() as url:
        assert (await post(url, batch("b", "a", "b", "c"), content_type=BATCH)).status == 204
        assert (await post(url, b"[]", content_type=BATCH)).status == 204
    assert ledger.ids == ["b", "a", "c"]
    assert ledger.most_running == 1


async def test_after_half_a_batch_only_the_rest_is_repeated(serving: Serving, ledger: Ledger) -> None:
    """After a failure in a batch the rest is not handled; the repeat of the batch handles what was not handled yet."""
    ledger.failing = {"b"}
    async with serving() as url:
        assert (await post(url, batch("a", "b", "c"), content_type=BATCH)).status == 500
        assert ledger.ids == ["a"]
        assert (await post(url, batch("a", "b", "c"), content_type=BATCH)).status == 204
    assert ledger.ids == ["a", "b", "c"]


async def test_a_failure_is_not_remembered(serving: Serving, ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """A failed event is answered with 500 and handled again; the traceback is logged and not sent."""
    ledger.failing = {"a"}
    async with serving() as url:
        answer = await post(url, event("a", data="a value"))
        assert (answer.status, "purpose" in answer.text) == (500, False)
        assert (await post(url, event("a", data="a value"))).status == 204
    assert ledger.ids == ["a"]
    (logged,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert logged.name == "poller.client"
    assert "RuntimeError: the work failed on purpose" in caplog.text
    assert "a value" not in caplog.text


async def test_the_mark_comes_after_the_work(serving: Serving, ledger: Ledger) -> None:
    """While the handler works, the store does not know the event; when the answer comes, it does."""
    seen = MemoryStore()
    ledger.gate.clear()
    async with serving(seen=seen) as url:
        sent = asyncio.create_task(post(url, event("a")))
        await until(lambda: ledger.running, "the handler to run")
        assert len(seen) == 0
        ledger.gate.set()
        assert (await within(sent)).status == 204
        assert len(seen) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_repeat_waits_for_the_work_on_the_event(serving: Serving, ledger: Ledger, fails: bool) -> None:
    """A second delivery of an event that is being handled runs nothing beside it, and is answered after it.

    If the first fails, the second handles the event. Another event does not wait.
    """
    ledger.failing = {"a"} if fails else set()
    ledger.gate.clear()
    async with serving() as url:
        first = asyncio.create_task(post(url, event("a")))
        await until(lambda: ledger.running, "the handler to run")
        second = asyncio.create_task(post(url, event("a")))
        third = asyncio.create_task(post(url, event("b")))
        await until(lambda: ledger.running == 2, "the other event to be handled")
        assert not second.done()
        assert ledger.ids == []
        ledger.gate.set()
        answers = await within(asyncio.gather(first, second, third))
    assert [answer.status for answer in answers] == [500 if fails else 204, 204, 204]
    assert sorted(ledger.ids) == ["a", "b"]


async def test_a_repeat_does_not_wait_for_ever(serving: Serving, ledger: Ledger) -> None:
    """A repeat of an event that is handled for longer than the time limit is answered with 503, and not as success."""
    ledger.gate.clear()
    async with serving(repeat_timeout=timedelta(milliseconds=20)) as url:
        first = asyncio.create_task(post(url, event("a")))
        await until(lambda: ledger.running, "the handler to run")
        assert (await within(post(url, event("a")))).status == 503
        ledger.gate.set()
        assert (await within(first)).status == 204
    assert ledger.ids == ["a"]


async def test_a_client_that_leaves_does_not_interrupt_the_work(serving: Serving, ledger: Ledger) -> None:
    """A sender that gives up waiting finds its event handled when it tries again."""
    ledger.gate.clear()
    async with serving() as url:
        first = asyncio.create_task(post(url, event("a")))
        await until(lambda: ledger.running, "the handler to run")
        first.cancel()
        await asyncio.wait({first})
        second = asyncio.create_task(post(url, event("a")))
        ledger.gate.set()
        assert (await within(second)).status == 204
    assert ledger.ids == ["a"]
    assert ledger.most_running == 1


async def test_a_server_that_cancels_requests_does_not_interrupt_the_work(ledger: Ledger) -> None:
    """A request that its server cancels, as some do when a client leaves, is worked on to its end and remembered."""
    receiver = Receiver(ledger, SECRET)
    ledger.gate.clear()
    headers = [(name.encode(), text.encode()) for name, text in signed(event("a"), SECRET).items()]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": headers}
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": event("a")}

    async def send(message: Any) -> None:
        sent.append(message)

    cancelled = asyncio.ensure_future(receiver(scope, receive, send))
    await until(lambda: ledger.running, "the handler to run")
    cancelled.cancel()
    await asyncio.wait({cancelled})
    repeated = asyncio.ensure_future(receiver(scope, receive, send))
    ledger.gate.set()
    await within(repeated)
    await receiver.aclose()
    assert sent[0]["status"] == 204
    assert (ledger.ids, ledger.most_running) == (["a"], 1)


async def test_the_server_ends_after_the_work(ledger: Ledger) -> None:
    """At its end the server waits for a handler that still runs, although its request was cancelled."""
    receiver, sent = Receiver(ledger.coroutine, SECRET), list[str]()
    ledger.gate.clear()
    headers = [(name.encode(), text.encode()) for name, text in signed(event("a"), SECRET).items()]
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def body() -> dict[str, Any]:
        return {"type": "http.request", "body": event("a")}

    async def told() -> dict[str, Any]:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    request = asyncio.ensure_future(receiver({"type": "http", "method": "POST", "headers": headers}, body, send))
    await until(lambda: ledger.running, "the handler to run")
    request.cancel()
    await asyncio.wait({request})
    life = asyncio.ensure_future(receiver({"type": "lifespan"}, told, send))
    await until(lambda: "lifespan.startup.complete" in sent, "the start")
    assert next(messages, None) is None  # it was told to shut down
    assert not life.done()
    ledger.gate.set()
    await within(life)
    assert ledger.ids == ["a"]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# Stores.


class Broken(MemoryStore):
    """A store that is away when it is asked, or when it is written."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def contains(self, key: str) -> bool:
        if self.what == "contains":
            raise ConnectionError("away")
        return super().contains(key)

    def add(self, key: str) -> None:
        if self.what == "add":
            raise ConnectionError("away")
        super().add(key)


async def test_without_the_store_nothing_is_handled(serving: Serving, ledger: Ledger) -> None:
    """If the store cannot be asked, the answer is 503 and the handler is not called: it might be a repeat."""
    store = Broken("contains")
    async with serving(seen=store) as url:
        assert (await post(url, event("a"))).status == 503
        assert ledger.ids == []
        store.what = ""
        assert (await post(url, event("a"))).status == 204
    assert ledger.ids == ["a"]


async def test_work_that_cannot_be_remembered_is_done(
    serving: Serving, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """If the store cannot be written after the work, the event is acknowledged: a refusal would do it again."""
    async with serving(seen=Broken("add")) as url:
        assert (await post(url, event("a"))).status == 204
    assert ledger.ids == ["a"]
    assert "not remembered" in caplog.text


async def test_redis_drops_repeats_after_a_restart(serving: Serving, ledger: Ledger, store_url: str) -> None:
    """With the store in Redis, another process, as after a restart, handles no event again."""
    for _ in range(2):
        async with serving(seen=RedisStore(store_url)) as url:
            assert (await post(url, event("a"))).status == 204
    assert ledger.ids == ["a"]


async def test_the_same_id_of_two_sources_is_two_events(serving: Serving, ledger: Ledger) -> None:
    """Only source and id together make a repeat."""
    async with serving() as url:
        for source in ("/one", "/two", "/one"):
            assert (await post(url, event("a", source=source))).status == 204
    assert ledger.ids == ["a", "a"]


# Refusals.


async def test_only_what_is_signed_is_handled(serving: Serving, ledger: Ledger) -> None:
    """Unsigned, old, foreign and changed requests are answered with 401 and the reason, and never handled."""
    reasons: list[WebhookRefused] = []
    body = event("a", data="a value")
    async with serving(on_refusal=reasons.append) as url:
        for headers in (
            {"Content-Type": "application/cloudevents+json"},
            signed(body, OTHER),
            signed(body, SECRET, at=NOW),
            signed(body + b" ", SECRET),
        ):
            answer = await post(url, body, headers=headers)
            assert (answer.status, "a value" in answer.text) == (401, False)
        assert (await post(url, body, OTHER, SECRET)).status == 204
    assert ledger.ids == ["a"]
    assert [reason.status for reason in reasons] == [401] * 4
    assert [str(reason).partition(":")[0] for reason in reasons][:2] == ["it is not signed", "no signature matches"]


async def test_without_secrets_everything_is_handled_and_said(
    serving: Serving, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """Only with None in place of secrets unsigned requests are handled, and the log warns."""
    async with serving(None) as url:
        answer = await post(url, event("a"), headers={"Content-Type": "application/cloudevents+json"})
    assert (answer.status, ledger.ids) == (204, ["a"])
    assert "not verified" in caplog.text
    for secrets in ("", "whsec_x"):
        with pytest.raises(MalformedSecret):
            Receiver(ledger, secrets)


@pytest.mark.parametrize(
    ("body", "content_type", "extra", "status"),
    [
        (b"{", "application/cloudevents+json", {}, 400),
        (event("a"), "application/json", {}, 415),
        (event("a"), "application/cloudevents+json; charset=utf-16", {}, 415),
        (event("a"), "application/cloudevents+json", {"Content-Encoding": "gzip"}, 415),
        (batch("a", "b", "c"), BATCH, {}, 413),
        (event("a", data="x" * 1000), "application/cloudevents+json", {}, 413),
    ],
)
async def test_content_that_is_refused(
    serving: Serving, ledger: Ledger, *, body: bytes, content_type: str, extra: dict[str, str], status: int
) -> None:
    """Content that is no event, of another format, or too much, has its own status, and the connection goes on."""
    async with serving(max_events=2, max_body=1000) as url:
        headers = signed(body, SECRET, content_type=content_type) | extra
        answer = await post(url, body, headers=headers)
        assert (answer.status, bool(answer.text)) == (status, True)
        assert (await post(url, event("b"))).status == 204
    assert ledger.ids == ["b"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH"])
async def test_other_methods(serving: Serving, method: str) -> None:
    """Other methods are answered with 405 and those that are allowed."""
    async with serving() as url:
        answer = await asked(method, url)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST, OPTIONS")


async def test_a_refusal_is_logged_without_content(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    """Without a function for refusals, each is a warning with its status and reason, without content or secret."""
    body = event("a", data="a value")
    async with serving() as url:
        await post(url, body, OTHER)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "poller.client"]
    assert line.startswith("webhook refused with 401: no signature matches")
    assert "a value" not in caplog.text


# Permission.


@pytest.mark.parametrize(
    ("options", "sent", "status", "granted"),
    [
        ({}, {"WebHook-Request-Origin": "a.example"}, 200, ("*", None)),
        ({}, {"WebHook-Request-Origin": "a.example", "WebHook-Request-Rate": "120"}, 200, ("*", "*")),
        ({"rate": 60}, {"WebHook-Request-Origin": "a.example", "WebHook-Request-Rate": "120"}, 200, ("*", "60")),
        ({"origins": ["A.example"]}, {"WebHook-Request-Origin": "a.example"}, 200, ("a.example", None)),
        ({"origins": ["b.example"]}, {"WebHook-Request-Origin": "a.example"}, 403, (None, None)),
        ({"origins": []}, {"WebHook-Request-Origin": "a.example"}, 403, (None, None)),
        ({}, {}, 204, (None, None)),
    ],
)
async def test_the_handshake(
    serving: Serving,
    options: dict[str, Any],
    sent: dict[str, str],
    status: int,
    granted: tuple[str | None, str | None],
) -> None:
    """A request for permission is granted to the chosen origins at the chosen rate, and to no others."""
    async with serving(**options) as url:
        answer = await asked("OPTIONS", url, headers=sent)
    names = ("WebHook-Allowed-Origin", "WebHook-Allowed-Rate")
    assert (answer.status, tuple(answer.headers.get(name) for name in names)) == (status, granted)


# Slow, cut and odd requests, over plain sockets.

_HEAD: Final = "POST / HTTP/1.1\r\nHost: x\r\n"


async def exchanged(url: str, *pieces: bytes, end: bool = False) -> bytes:
    """What a server answers to these bytes until it closes the connection or has answered."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    with closing(writer):
        with suppress(OSError):  # the server may have answered and left already
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if end:
                writer.write_eof()
        return await within(reader.read(4096))


def head(body: bytes, length: str) -> bytes:
    lines = [f"{name}: {text}" for name, text in signed(body, SECRET).items()]
    return (_HEAD + "\r\n".join([*lines, length, "", ""])).encode()


async def test_a_chunked_body(ledger: Ledger) -> None:
    """A body in chunks is read to its end, and refused as soon as it is above the limit."""
    body = event("a")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:10], body[10:])) + b"0\r\n\r\n"
    async with served(Receiver(ledger, SECRET, max_body=len(body))) as url:
        answer = await exchanged(url, head(body, "Transfer-Encoding: chunked"), chunks)
        assert answer.startswith(b"HTTP/1.1 204")
        endless = b"%x\r\n%b\r\n" % (len(body) + 1, body + b" ")
        answer = await exchanged(url, head(body, "Transfer-Encoding: chunked"), endless)
        assert answer.startswith(b"HTTP/1.1 413")
    assert ledger.ids == ["a"]


async def test_a_body_that_does_not_come(ledger: Ledger) -> None:
    """A body that does not arrive in time is answered with 408, and the connection is closed."""
    body = event("a")
    async with served(Receiver(ledger, SECRET, body_timeout=timedelta(milliseconds=20))) as url:
        answer = await exchanged(url, head(body, f"Content-Length: {len(body)}"), body[:5])
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer.lower()
    assert ledger.ids == []


async def test_a_client_that_leaves_in_its_body(serving: Serving, ledger: Ledger) -> None:
    """A request whose client leaves before its end is not handled, and the next one is."""
    body = event("a")
    async with serving() as url:
        await exchanged(url, head(body, f"Content-Length: {len(body)}"), body[:5], end=True)
        assert (await post(url, event("b"))).status == 204
    assert ledger.ids == ["b"]


@pytest.mark.parametrize(("length", "status"), [("Transfer-Encoding: chunked", 411), ("Content-Length: x", 400)])
async def test_a_body_without_an_end(ledger: Ledger, length: str, status: int) -> None:
    """A WSGI server that cannot tell where the body ends gets 411; a length that is none gets 400."""
    with served_wsgi(Receiver(ledger, SECRET).wsgi) as url:
        answer = await exchanged(url, head(b"", length))
    assert f" {status} ".encode() in answer.partition(b"\r\n")[0]


def test_a_wsgi_server_that_ends_the_body_itself(ledger: Ledger) -> None:
    """With ``wsgi.input_terminated`` a body without a length is read to its end, up to the limit."""
    body = event("a")
    assert _called(Receiver(ledger, SECRET), body) == "204 No Content"
    assert _called(Receiver(ledger, SECRET, max_body=len(body) - 1), body).startswith("413 ")  # the words vary
    assert ledger.ids == ["a"]


def _called(receiver: Receiver, body: bytes) -> str:
    from io import BytesIO  # noqa: PLC0415 -- used here alone

    headers = {name.upper().replace("-", "_"): text for name, text in signed(body, SECRET).items()}
    environ: dict[str, Any] = {f"HTTP_{name}": text for name, text in headers.items() if name != "CONTENT_TYPE"}
    environ |= {"CONTENT_TYPE": headers["CONTENT_TYPE"], "REQUEST_METHOD": "POST", "wsgi.input": BytesIO(body)}
    said: list[str] = []
    list(receiver.wsgi(environ | {"wsgi.input_terminated": True}, lambda status, *_: said.append(status)))  # type: ignore[arg-type] # enough of it
    return said[0]


# Handlers and servers.


def _hidden(ledger: Ledger) -> Callable[[ReceivedEvent], object]:
    """A plain function that returns a coroutine."""

    def handle(event_: ReceivedEvent) -> object:
        return ledger.coroutine(event_)

    return handle


def test_a_coroutine_is_not_for_wsgi(ledger: Ledger) -> None:
    """A coroutine function with WSGI is refused, and one that hides is an error of the handler."""
    with pytest.raises(TypeError, match="ASGI"):
        Receiver(ledger.coroutine, SECRET).wsgi({"REQUEST_METHOD": "POST"}, None)  # type: ignore[arg-type] # not called
    assert _called(Receiver(_hidden(ledger), SECRET), event("a")).startswith("500")
    assert ledger.ids == []


async def test_a_function_that_returns_a_coroutine(ledger: Ledger) -> None:
    """With ASGI whatever a function returns to be awaited is awaited before the answer."""
    async with served(Receiver(_hidden(ledger), SECRET)) as url:
        assert (await post(url, event("a"))).status == 204
        assert ledger.ids == ["a"]


async def test_a_function_does_not_block_the_loop(ledger: Ledger) -> None:
    """While a plain function works in its thread, other requests are answered."""
    ledger.gate.clear()
    async with served(Receiver(ledger, SECRET)) as url:
        first = asyncio.create_task(post(url, event("a")))
        await until(lambda: ledger.running, "the handler to run")
        assert (await within(post(url, event("b"), OTHER))).status == 401
        ledger.gate.set()
        assert (await within(first)).status == 204


async def test_it_can_be_mounted(ledger: Ledger) -> None:
    """Mounted in an application of a framework it answers at its path, and the rest is the framework's."""
    app = Starlette(routes=[Mount("/hooks", Receiver(ledger.coroutine, SECRET))])
    async with served(app) as url:
        statuses = [(await post(f"{url}{path}", event("a"))).status for path in ("/hooks", "/hooks/", "/other")]
    assert statuses[1:] == [204, 404]
    assert ledger.ids == ["a"]


async def test_it_has_no_websockets(ledger: Ledger) -> None:
    """A WebSocket is closed, and an unknown protocol is an error, as ASGI demands."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await Receiver(ledger, SECRET)({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1000}]
    with pytest.raises(NotImplementedError):
        await Receiver(ledger, SECRET)({"type": "other"}, receive, send)


async def test_many_deliveries_of_many_events(serving: Serving, ledger: Ledger) -> None:
    """Of forty events that are each delivered five times, all at the same time, each is handled once."""
    ids = [f"e{number}" for number in range(40)]
    async with serving() as url:
        answers: list[Answer] = []
        for _ in range(5):
            answers += await asyncio.gather(*(post(url, event(event_id)) for event_id in ids))
        simultaneous = await asyncio.gather(*(post(url, event("same")) for _ in range(40)))
    assert {answer.status for answer in (*answers, *simultaneous)} == {204}
    assert sorted(ledger.ids) == sorted([*ids, "same"])


def test_the_key_of_an_event_is_what_the_store_gets(ledger: Ledger) -> None:
    """A store of one's own is asked and written by :func:`key_of`, so that it can be filled from elsewhere."""
    asked_for: list[str] = []

    class Own(MemoryStore):
        def contains(self, key: str) -> bool:
            asked_for.append(key)
            return super().contains(key)

    seen = Own()
    assert _called(Receiver(ledger, SECRET, seen=seen), event("a")).startswith("204")
    (found,) = asked_for
    assert found == key_of(ReceivedEvent({"specversion": "1.0", "id": "a", "source": "/s", "type": "t"}))
