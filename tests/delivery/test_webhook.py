"""Laws of :mod:`poller.delivery.sinks.webhook` over real sockets: what is sent, and the outcome of each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import uvloop

from poller import __version__
from poller.auth.base import Credential, EnvironmentToken, FileToken
from poller.auth.sink_credential import Authorization
from poller.delivery.sinks.base import NOT_PERMITTED, Failure, SinkEvent
from poller.delivery.sinks.connection import RequestWrites, SinkProtocol
from poller.delivery.sinks.webhook import KEPT
from tests.delivery.events import pair, spelled
from tests.delivery.sinks import TYPE, loopback, posted, sink_of
from tests.harness.clock import NOON, FakeClock
from tests.harness.waiting import turns
from tests.receiver import HANG, Held, Receiver, Reply, receiving
from tests.source.clients import keep

LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None
TOKEN = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
CREDENTIAL = EnvironmentToken("TOKEN", {"TOKEN": TOKEN})


async def test_what_is_given_is_what_is_sent() -> None:
    """A request has the given method, target, headers and body, and only those headers besides that HTTP needs."""
    body = '{"a": "\u00e9"}'.encode() + b"\x00\xff"
    async with receiving() as receiver:
        async with sink_of(f"{receiver.url}/a%2Fb//c?x=%7E&y=1+2", headers=(("X-Tenant", "t"),)) as sink:
            outcome = await sink.post((TYPE, ("webhook-id", "1")), body)
        assert (outcome.status, outcome.failure, outcome.is_delivered) == (204, None, True)
        (request,) = receiver.requests
        assert (request.method, request.target, request.body) == ("POST", "/a%2Fb//c?x=%7E&y=1+2", body)
        assert request.header("content-type") == TYPE[1]
        assert request.header("x-tenant") == "t"
        assert request.header("webhook-id") == "1"
        assert request.header("user-agent") == f"poller/{__version__}"
        assert request.header("accept-encoding") == "identity"
        names = {name.lower() for name, _ in request.headers}
        known = {"content-type", "x-tenant", "webhook-id", "user-agent", "accept-encoding"}
        assert names - known == {"host", "accept", "content-length"}


@pytest.mark.parametrize("size", [0, 1, 600_000, 3_000_000])
async def test_a_body_of_any_size_arrives(size: int) -> None:
    """A body of any size is sent with its length, never in chunks."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        assert (await sink.post((TYPE,), b"x" * size)).is_delivered
        assert receiver.requests[0].header("content-length") == str(size)
        assert receiver.requests[0].body == b"x" * size


async def test_a_header_is_sent_once() -> None:
    """A header is sent once: the delivery's own, else the configured one, else the default."""
    configured = (("X-Tenant", "t"), ("user-agent", "acme"), ("x-twice", "1"))
    async with receiving() as receiver, sink_of(receiver.url, headers=configured) as sink:
        await sink.post((TYPE, ("X-Twice", "2")), b"{}")
        headers = [(name.lower(), value) for name, value in receiver.requests[0].headers]
    assert [value for name, value in headers if name in ("user-agent", "x-twice")] == ["acme", "2"]


@pytest.mark.parametrize("name", ["User-Agent", "user-agent"])
async def test_a_user_agent_of_the_subscription_replaces_the_programs(name: str) -> None:
    """Law: the ``User-Agent`` that a subscription sets is the only one, of deliveries, previews and OPTIONS."""
    sent = SinkEvent(*pair(spelled()))
    async with receiving() as receiver, sink_of(receiver.url, headers=((name, "acme"),)) as sink:
        assert (await sink.send([sent])).is_delivered
        preview, _ = await sink.try_out([sent])
        await sink.verify()
        agents = [[value for one, value in got.headers if one.lower() == "user-agent"] for got in receiver.requests]
    assert agents == [["acme"]] * 3
    assert [line for line in preview.head if line.lower().startswith("user-agent")] == [f"{name}: …"]


async def test_each_request_has_its_own_headers() -> None:
    """Law: what is kept of earlier requests changes no later one, whatever characters a header has."""
    configured = (("X-{0}", "{}"), ("X-Same", "{1}"))
    async with receiving() as receiver, sink_of(f"{receiver.url}/{{0}}?a={{}}", headers=configured) as sink:
        for own in ((("X-A", "{2}"), ("X-A", "2")), (("X-A", "3"), ("x-a", "4")), (("X-A", "{b}"), ("X-A", "5"))):
            await sink.post((TYPE, *own), b"{}")
        assert [request.target for request in receiver.requests] == ["/{0}?a={}"] * 3
        named = [[one for one in request.headers if one[0].lower().startswith("x-")] for request in receiver.requests]
    assert named == [
        [*configured, ("X-A", "{2}"), ("X-A", "2")],
        [*configured, ("x-a", "4")],
        [*configured, ("X-A", "{b}"), ("X-A", "5")],
    ]


async def test_requests_of_ever_other_headers_are_sent() -> None:
    """Law: a request is sent as it is to be, however many others have had headers of other names."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        for number in range(200):
            await sink.post((TYPE, (f"X-{number}", str(number))), b"{}")
        assert [request.header(f"x-{number}") for number, request in enumerate(receiver.requests)] == [
            str(number) for number in range(200)
        ]


@pytest.mark.parametrize("earlier", [0, 1])
async def test_what_is_not_allowed_any_more_is_not_written(earlier: int) -> None:
    """Law: a request is not written after its permission has ended, however late that is; no sink is at fault then."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        for _ in range(earlier):
            assert (await sink.post((TYPE,), b"{}")).is_delivered
        for questions in range(3):  # before and after a connection is made, and right before the request is written
            answers = iter([True] * questions)
            outcome = await sink.post((TYPE,), b"{}", allowed=lambda: next(answers, False))  # noqa: B023 -- asked now
            assert outcome is NOT_PERMITTED
            assert receiver.count == earlier
        answers = iter([True] * 3)
        assert (await sink.post((TYPE,), b"{}", allowed=lambda: next(answers, False))).is_delivered
        assert receiver.count == earlier + 1


async def test_many_requests_at_a_time_all_arrive() -> None:
    """Law: requests that are made within one turn of the loop are all written, each as a whole."""
    count = 50
    async with receiving() as receiver, sink_of(receiver.url, concurrency=count) as sink:
        for _ in range(2):  # over new connections and over kept ones
            outcomes = await asyncio.gather(*[sink.post((TYPE,), str(one).encode()) for one in range(count)])
            assert all(outcome.is_delivered for outcome in outcomes)
        assert sorted(int(request.body) for request in receiver.requests) == sorted([*range(count)] * 2)


class Written(SinkProtocol):
    """A connection that keeps what is to be written."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.requests: list[bytes] = []

    def write(self, request: bytes) -> None:
        self.requests.append(request)


def test_what_an_ended_loop_has_left_holds_nothing_up() -> None:
    """Law: a request that was gathered when its loop ended is not written later, and holds up no other one."""
    writes, connections = RequestWrites(), list[Written]()

    def add() -> None:
        connections.append(Written())
        writes.add(connections[-1], b"x")
        asyncio.get_running_loop().stop()

    for further in (0, 1):
        loop = asyncio.new_event_loop()
        loop.call_soon(add)
        loop.run_forever()
        for _ in range(further):
            loop.run_until_complete(turns(1))
        loop.close()
    assert [one.requests for one in connections] == [[], [b"x"]]


@pytest.mark.parametrize("factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_has_ended_takes_no_request(factory: LoopFactory) -> None:
    """A connection that ends while requests are gathered is no failure of the others."""

    async def ended() -> int:
        loop = asyncio.get_running_loop()
        connection = SinkProtocol(loop)
        connection.write(b"x")
        async with receiving() as receiver:
            port = int(receiver.url.rpartition(":")[2])
            transport, _ = await loop.create_connection(lambda: connection, "127.0.0.1", port)
            transport.abort()
            connection.write(b"x")
            return receiver.count

    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(ended()) == 0


async def test_a_connection_is_used_again() -> None:
    """Sequential requests share one connection; concurrent ones use at most ``concurrency`` connections."""
    both = asyncio.Event()
    async with receiving(Reply(200, body=b"thanks")) as receiver, sink_of(receiver.url, concurrency=2) as sink:
        for _ in range(5):
            assert (await sink.post((TYPE,), b"{}")).is_delivered
        assert receiver.connections == 1
        receiver.answer = Held(both, Reply())
        posts = [asyncio.create_task(sink.post((TYPE,), b"{}")) for _ in range(6)]
        await receiver.until(lambda: receiver.count == 7 and receiver.open == 2)
        both.set()
        assert all(outcome.is_delivered for outcome in await asyncio.gather(*posts))
        assert receiver.connections == 2


@pytest.mark.parametrize("status", [200, 201, 202, 204, 301, 400, 404, 410, 415, 418, 429, 500, 503, 599, 700, 999])
async def test_a_status_is_told_as_it_is(status: int) -> None:
    """Any status is reported with the beginning of the sink's answer."""
    headers = (("Retry-After", "999999999999"), ("Date", "Sat, 01 Mar 2025 12:00:00 GMT"))
    async with receiving(Reply(status, headers, b"" if status == 204 else b"so it is")) as receiver:
        outcome = await posted(receiver.url)
    assert (outcome.status, outcome.failure) == (status, None)
    assert (outcome.wait is not None) == (status in (429, 503))
    assert outcome.excerpt == (b"" if status == 204 else b"so it is")
    said = {410: ": it is gone for good", 415: ": it does not take requests of this mode"}.get(status, ": so it is")
    assert outcome.error == ("" if outcome.is_delivered else f"the sink answered {status}{said}")
    assert 0 < outcome.seconds < 10


async def test_an_html_page_is_told_by_its_title() -> None:
    """The error has only the title of an HTML page; the excerpt keeps the markup."""
    body = b"<!DOCTYPE html>\n<html>\n<head>\n<title>502 Bad Gateway</title>\n</head>\n<body><h1>502</h1></body></html>"
    async with receiving(Reply(502, (("Content-Type", "text/html"),), body)) as receiver:
        outcome = await posted(receiver.url)
    assert outcome.error == 'the sink answered 502: an HTML page, "502 Bad Gateway"'
    assert outcome.excerpt == body


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["itself", "another"])
async def test_a_redirect_is_an_answer_and_not_followed(status: int, where: str) -> None:
    """A redirect is not followed: its target gets neither the request nor the credential."""
    async with receiving() as other, receiving() as receiver:
        to = receiver.url if where == "itself" else other.url
        receiver.answer = Reply(status, (("Location", to),))
        assert (await posted(receiver.url, credential=CREDENTIAL)).status == status
        assert (receiver.count, other.count) == (1, 0)


async def test_nothing_is_taken_from_the_environment_and_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Proxies and netrc of the environment are ignored, and cookies are not kept."""
    monkeypatch.setenv("NETRC", str(keep(tmp_path / "netrc", "default login somebody password else\n")))
    async with receiving() as proxy, receiving(Reply(200, (("Set-Cookie", "a=b; Path=/"),))) as receiver:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        url = receiver.url.replace("127.0.0.1", "sink.example")  # clients keep no cookies of bare addresses
        async with sink_of(url, lookup=loopback) as sink:
            for _ in range(2):
                await sink.post((TYPE,), b"{}")
        assert (receiver.count, proxy.count) == (2, 0)
        for request in receiver.requests:
            assert request.header("cookie") is None
            assert request.header("authorization") is None


async def test_a_credential_is_sent_and_asked_for_each_time(tmp_path: Path) -> None:
    """The credential is read from its file for each request."""
    file = keep(tmp_path / "token", "first")
    async with receiving() as receiver, sink_of(receiver.url, credential=FileToken(file)) as sink:
        await sink.post((TYPE,), b"{}")
        keep(file, "second-one")
        await sink.post((TYPE,), b"{}")
        sent = [request.header("authorization") for request in receiver.requests]
    assert sent == ["Bearer first", "Bearer second-one"]


class Renewing(Credential):
    """A credential that renews its token each time, or never."""

    origin = "the test"

    def __init__(self, *, others: bool) -> None:
        self.renewed: list[str] = []
        self._others = others

    async def token(self) -> str:
        return f"token-{len(self.renewed)}"

    async def renew(self, rejected: str) -> bool:
        if self._others:
            self.renewed.append(rejected)
        return self._others


@pytest.mark.parametrize(
    ("answers", "others", "status", "sent"),
    [([401, 204], True, 204, 2), ([401, 401], True, 401, 2), ([401, 204], False, 401, 1), ([403, 204], True, 403, 1)],
)
async def test_a_401_is_answered_once_with_another_token(
    answers: list[int], others: bool, status: int, sent: int
) -> None:
    """After a 401 the same request is sent once more with a renewed token, if there is one."""
    credential = Renewing(others=others)
    async with receiving([Reply(answer) for answer in answers]) as receiver:
        async with sink_of(receiver.url, credential=credential) as sink:
            assert (await sink.post((TYPE, ("webhook-id", "1")), b"{}")).status == status
        tokens = [request.header("authorization") for request in receiver.requests]
        assert tokens == ["Bearer token-0", "Bearer token-1"][:sent]
        assert {(request.header("webhook-id"), request.body) for request in receiver.requests} == {("1", b"{}")}


async def test_a_401_whose_second_answer_never_comes_is_no_401() -> None:
    """If the second request after a 401 gets no answer, the outcome is a timeout, not the 401."""
    async with receiving([Reply(401), HANG]) as receiver:
        outcome = await posted(receiver.url, credential=Renewing(others=True), seconds=0.2)
    assert (outcome.status, outcome.failure) == (None, Failure.TIMEOUT)


async def test_without_its_credential_nothing_is_sent(tmp_path: Path) -> None:
    """Without the credential nothing is sent, and the error names the file."""
    async with receiving() as receiver:
        outcome = await posted(receiver.url, credential=FileToken(tmp_path / "missing"))
        assert (outcome.failure, receiver.connections) == (Failure.CREDENTIAL, 0)
        assert "missing" in outcome.error


class Slow(Credential):
    """A credential that never returns a token."""

    origin = "the command print-token"

    async def token(self) -> str | None:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return] # never completes

    async def renew(self, rejected: str) -> bool:
        raise AssertionError(rejected)


async def test_a_token_that_does_not_come_in_time_is_no_fault_of_the_sink() -> None:
    """A credential that takes too long is a failure of the credential, not of the sink."""
    async with receiving() as receiver:
        outcome = await posted(receiver.url, credential=Slow(), seconds=0.1)
        assert (outcome.failure, receiver.connections) == (Failure.CREDENTIAL, 0)
        assert outcome.error == "the command print-token has given no token within 0.1 s"


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_a_secret_that_is_echoed_is_hidden(status: int) -> None:
    """An echoed token or header value is hidden in the excerpt and in the error."""
    key = "k3y-of-the-tenant"
    for padding in (0, 150, KEPT - 10, KEPT - 1):
        said = b"y" * padding + TOKEN.encode() + b" " + key.encode()
        async with receiving(Reply(status, body=said)) as receiver:
            outcome = await posted(receiver.url, credential=CREDENTIAL, headers=(("X-Key", key),))
        shown = outcome.error + outcome.excerpt.decode()
        assert len(outcome.excerpt) <= KEPT
        for secret in (TOKEN, key):
            assert not any(secret[start : start + 8] in shown for start in range(len(secret) - 7))


async def test_a_cancelled_attempt_frees_its_connection() -> None:
    """A cancelled attempt frees its connection."""
    async with receiving([HANG, Reply()]) as receiver, sink_of(receiver.url, concurrency=1) as sink:
        hanging = asyncio.create_task(sink.post((TYPE,), b"{}"))
        await receiver.received(1)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert hanging.cancelled()
        assert (await sink.post((TYPE,), b"{}")).is_delivered


async def test_a_sink_that_hangs_holds_up_no_other() -> None:
    """A sink that hangs does not delay another sink."""
    async with receiving(HANG) as stuck, receiving() as well, sink_of(stuck.url) as one, sink_of(well.url) as other:
        hanging = [asyncio.create_task(one.post((TYPE,), b"{}")) for _ in range(20)]
        await stuck.received(8)
        outcomes = await asyncio.gather(*(other.post((TYPE,), b"{}") for _ in range(50)))
        assert all(outcome.is_delivered for outcome in outcomes)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)


async def test_options_gives_the_headers() -> None:
    """OPTIONS sends no body and returns the headers, which are case-insensitive."""
    async with receiving(Reply(200, (("WebHook-Allowed-Origin", "*"),))) as receiver, sink_of(receiver.url) as sink:
        answer = await sink.options((("WebHook-Request-Origin", "poller.example.org"),))
        assert answer.outcome.status == 200
        assert answer.headers.get("webhook-allowed-origin") == "*"
        request = receiver.requests[0]
        assert (request.method, request.body) == ("OPTIONS", b"")
        assert request.header("WebHook-Request-Origin") == "poller.example.org"
        assert request.header("content-type") is None


async def test_a_sink_that_is_closed_leaves_no_connection() -> None:
    """Closing a sink closes all its connections, idle ones included."""
    receiver: Receiver
    async with receiving() as receiver:
        async with sink_of(receiver.url) as sink:
            await asyncio.gather(*(sink.post((TYPE,), b"{}") for _ in range(8)))
            assert receiver.open > 0
        await receiver.until(lambda: receiver.open == 0, "all connections to be closed")
        with pytest.raises(RuntimeError, match="closed"):
            await sink.post((TYPE,), b"{}")


EXPIRED = Authorization("Bearer t0ken-t0ken", ("t0ken-t0ken",), datetime(2026, 3, 2, 8, 15, tzinfo=UTC))


async def test_an_authorization_is_sent_with_each_request() -> None:
    """A given authorization replaces any credential, in events and in the handshake."""
    async with receiving() as receiver:
        async with sink_of(receiver.url, authorization=EXPIRED, credential=Renewing(others=True)) as sink:
            await sink.post((TYPE,), b"{}")
            await sink.options(())
        sent = [[value for name, value in one.headers if name == "Authorization"] for one in receiver.requests]
    assert sent == [["Bearer t0ken-t0ken"], ["Bearer t0ken-t0ken"]]


@pytest.mark.parametrize("status", [401, 403, 400])
async def test_an_expired_token_is_sent_and_named_where_it_is_refused(status: int) -> None:
    """An expired token is sent; if the sink refuses it, the error has its expiry and hides the echoed token."""
    async with receiving(Reply(status, body=b"not t0ken-t0ken")) as receiver:
        texts = [
            await posted(receiver.url, authorization=EXPIRED, clock=FakeClock(at or NOON))
            for at in (EXPIRED.expires, datetime(2026, 3, 2, 8, 14, tzinfo=UTC))
        ]
    said = "; the access token expired at 2026-03-02T08:15:00Z" if status != 400 else ""
    assert [one.error for one in texts] == [
        f"the sink answered {status}{remark}: not [redacted]" for remark in (said, "")
    ]
    assert {one.excerpt for one in texts} == {b"not [redacted]"}
