"""Laws of :mod:`poller.source.client`, over real sockets: what is sent, and what follows each answer."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from random import Random

import httpx
import pytest
import zstandard
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from poller.auth.base import FileToken, IssuedToken
from poller.clock import Clock
from poller.errors import ConfigurationError, CredentialUnusable, SourceNonsense, SourceRefused, SourceUnavailable
from poller.http.transport import BodyDecoder, Transport
from poller.source.client import ATTEMPTS, ApiClient, ClientLimits, Validators, record_round, round_span
from poller.source.feed import RoundResult
from tests.harness.waiting import limited
from tests.source.api import Flying, Request, http, serving
from tests.source.clients import TOKEN, Time, client_of, failure_of, keep
from tests.source.round_sides import DOWN, FEED, Round, Script, records
from tests.source.test_client_renewal import Numbered, accepting
from tests.telemetry.recording import parent, recorded, told, traceparent


async def test_a_request_is_what_the_reference_asks_for() -> None:
    """A request is a GET below the base URL with bearer token, Accept, User-Agent and the source's headers."""
    async with (
        serving(http(200, b'{"results":[]}')) as api,
        client_of(api.url + "/v1", transport=Transport(headers=(("X-Tenant", "t"),))) as client,
    ):
        assert await client.get("/contractTypes") == b'{"results":[]}'
        assert api.requests[0].target == "/v1/contractTypes"
        headers = api.requests[0].headers
        assert headers["authorization"] == f"Bearer {TOKEN}"
        assert headers["accept"] == "application/json"
        assert headers["user-agent"].startswith("poller/")
        assert headers["x-tenant"] == "t"
        assert headers["cache-control"] == "no-cache"  # a cache on the way may hold an older answer


@pytest.mark.parametrize("name", ["User-Agent", "user-agent"])
async def test_a_header_of_the_source_replaces_the_programs(name: str) -> None:
    """A configured header takes the place of the program's own header of that name."""
    transport = Transport(headers=((name, "acme"), ("Accept", "text/x")))
    async with serving(http(200, b'{"results":[]}')) as api, client_of(api.url, transport=transport) as client:
        await client.get("/contractTypes")
    assert (api.requests[0].headers["user-agent"], api.requests[0].headers["accept"]) == ("acme", "text/x")


@pytest.mark.parametrize("value", ["Müller", "naïve ÿ", "M\xfcller; q=1"])
async def test_a_header_outside_ascii_is_sent_as_utf_8(value: str) -> None:
    """A configured header value with other letters is sent as UTF-8, as to sinks, and hidden in errors."""
    transport = Transport(headers=(("X-Name", value), ("X-Key", f"{value}-{value}")))
    async with (
        serving(http(400, f"no {value}-{value}".encode())) as api,
        client_of(api.url, transport=transport) as client,
    ):
        failed = await failure_of(client)
        assert api.requests[0].headers["x-name"].encode("latin-1") == value.encode()
        assert f"{value}-{value}" not in str(failed)


async def test_parameters_survive_the_wire() -> None:
    """Parameters reach the server exactly as given, in order and repeated."""
    chance = Random(11)
    alphabet = "aZ09+/=&?#% %2B%20;,:@!$'()*[]{}|\\^`~\"<>é\u4e2d\U0001f600\u00a0"
    nasty = ["a+b/c==", "&x=1", " ", "%2B", "%", "#", "é", "a b", "%zz", "+", "[]", "..", "\U0001f600", ""]
    tokens = nasty + ["".join(chance.choices(alphabet, k=12)) for _ in range(40)]
    async with serving(http(200)) as api, client_of(api.url) as client:
        for token in tokens:
            params = (("fields[]", "id"), ("fields[]", token), ("pageToken", token))
            await client.get("/x", params)
            assert api.requests[-1].params == list(params)
            assert api.requests[-1].path == "/x"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 422, 204, 301, 302, 307])
async def test_a_refusal_is_final_and_says_its_status(status: int) -> None:
    """A final refusal is not retried; the error has the status and the start of the body."""
    body = b"no \n\x00such\tthing " + b"y" * 1000 if status != 204 else b""
    async with serving(http(status, body, "Location: /elsewhere")) as api, client_of(api.url) as client:
        refused = await failure_of(client)
        assert isinstance(refused, SourceRefused)
        assert refused.status == status
        assert f"GET /x: the API answered {status}" in str(refused)
        assert ("no such thing" in str(refused)) == bool(body)
        assert ("the environment variable TOKEN" in str(refused)) == (status == 401)
        assert [request.path for request in api.requests] == ["/x"]


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504])
async def test_a_transient_failure_is_tried_again_with_growing_pauses(status: int) -> None:
    """A transient failure is retried up to the limit; each pause is twice the one before, times the jitter."""
    time = Time(jitter=1.5)
    async with serving(http(status, b"later")) as api, client_of(api.url, time) as client:
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert f"the API answered {status}: later ({ATTEMPTS} attempts)" in str(failed)
        assert len(api.requests) == ATTEMPTS == 3
        assert time.slept == [0.375, 0.75]


async def test_an_attempt_that_succeeds_ends_the_trying() -> None:
    """After two different failures, the third attempt's body is the answer."""
    async with serving([http(503), http(200, b"cut", length=9), http(200, b"ok")]) as api, client_of(api.url) as client:
        assert await client.get("/x") == b"ok"
        assert len(api.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        f"HTTP/1.1 {TOKEN} OK\r\n\r\n".encode(),
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        http(200, b"short", length=100),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        http(200, b"not gzip", "Content-Encoding: gzip"),
        http(200, b"x", f"X-Echo: {TOKEN}\x00"),
    ],
    ids=["closed", "head cut", "no status", "not http", "body cut", "chunks cut", "chunks broken", "gzip", "header"],
)
async def test_an_answer_that_is_cut_or_broken_is_no_answer(answer: bytes) -> None:
    """A cut or broken answer is a failure that may be retried, never a short body."""
    async with serving(answer) as api, client_of(api.url) as client:
        assert isinstance(await failure_of(client), SourceUnavailable)
        assert len(api.requests) == ATTEMPTS


@pytest.mark.parametrize(
    ("body", "headers", "length"),
    [
        (b"", ("Content-Encoding: gzip",), None),
        (b"no gzip", ("Content-Encoding: gzip",), None),
        (b"x", ("Content-Encoding: br",), None),
        (b"short", (), 100),
        (b"x" * 2_000, (), None),
    ],
    ids=["nothing packed", "not gzip", "other encoding", "cut", "too large"],
)
async def test_a_status_decides_though_its_body_cannot_be_read(
    body: bytes, headers: tuple[str, ...], length: int | None
) -> None:
    """An error's status and headers count, whatever became of the body that explains it; so does a 304."""
    limits = ClientLimits(max_page_bytes=1_000)
    answers = [http(410, body, *headers, length=length), http(304, b"", *headers)]
    answers.append(http(429, body, "Retry-After: 100", *headers, length=length))
    async with serving(answers) as api, client_of(api.url, limits=limits) as client:
        refused = await failure_of(client)
        assert isinstance(refused, SourceRefused)
        assert refused.status == 410
        assert (await client.ask("/x", unless=Validators('"1"'))).body is None
        await failure_of(client)
        assert client.opens_at is not None
        assert len(api.requests) == 3


async def test_an_explanation_that_drips_is_not_waited_for() -> None:
    """The status of an error counts although its body does not end within the time limit."""
    hangs = asyncio.Event()

    async def drip(_: Request, writer: asyncio.StreamWriter) -> bytes:
        writer.write(http(410, b"x", length=100))
        await hangs.wait()
        return b""

    limits = ClientLimits(timeout=timedelta(seconds=0.4))
    async with serving(drip) as api, client_of(api.url, limits=limits) as client:
        assert isinstance(await failure_of(client), SourceRefused)
        assert len(api.requests) == 1


async def test_nobody_there_is_unavailable() -> None:
    """A refused connection is a one-line error after all attempts."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with client_of(f"http://127.0.0.1:{port}") as client:
        failed = await failure_of(client)
        assert isinstance(failed, SourceUnavailable)
        assert f"({ATTEMPTS} attempts)" in str(failed)


async def test_a_replaced_token_is_used_at_the_next_request(tmp_path: Path) -> None:
    """A token file is read for each request."""
    path, fresh = tmp_path / "token", tmp_path / "fresh"
    keep(path, "one\n")
    keep(fresh, "two\n")
    async with serving(http(200)) as api, client_of(api.url, credential=FileToken(path)) as client:
        await client.get("/x")
        fresh.replace(path)
        await client.get("/x")
        assert [request.headers["authorization"] for request in api.requests] == ["Bearer one", "Bearer two"]


async def test_without_a_usable_token_nothing_is_sent(tmp_path: Path) -> None:
    """A missing token file is an error, and no request is sent."""
    async with serving(http(200)) as api, client_of(api.url, credential=FileToken(tmp_path / "none")) as client:
        assert isinstance(await failure_of(client), CredentialUnusable)
        assert api.requests == []


async def test_a_client_works_while_it_is_open() -> None:
    """A client works only between its opening and its closing."""
    async with serving(http(200)) as api:
        client = ApiClient(api.url, clock=Clock())
        with pytest.raises(RuntimeError, match="not open"):
            await client.get("/x")
        async with client:
            assert await client.get("/x") == b""
        with pytest.raises(RuntimeError, match="not open"):
            await client.get("/x")


@pytest.mark.parametrize("content", [None, "not a certificate"])
@pytest.mark.parametrize("of", [lambda path: Transport(ca_file=path), lambda path: Transport(client_cert_file=path)])
def test_certificates_that_cannot_be_used_are_named(
    of: Callable[[Path], Transport], content: str | None, tmp_path: Path
) -> None:
    """Unusable certificates are named before the first request."""
    path = tmp_path / "file.pem"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"file\.pem") as refused:
        ApiClient("https://api.invalid", transport=of(path), clock=Clock())
    assert "None" not in str(refused.value)


# Kept connections and retries on the wire.

SECOND = timedelta(seconds=1)
KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Keeping:
    """A server that keeps connections alive; records the connection number and start time of each request."""

    def __init__(self, answered: int) -> None:
        self.starts: list[tuple[int, float]] = []
        self._answered = answered
        self._connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer this number of requests on each connection; close it at the next request."""
        self._connections += 1
        connection, left = self._connections, self._answered
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    self.starts.append((connection, asyncio.get_running_loop().time()))
                    if not left:
                        return
                    left -= 1
                    writer.write(KEPT)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def keeping(answered: int, time: Time, limits: ClientLimits) -> AsyncIterator[tuple[Keeping, ApiClient]]:
    keeps = Keeping(answered)
    server = await asyncio.start_server(keeps, "127.0.0.1", 0)
    async with client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", time, limits=limits) as client:
        yield keeps, client
    server.close()
    await server.wait_closed()


async def test_a_kept_connection_that_was_closed_costs_no_pause_but_its_turn() -> None:
    """A request on a closed idle connection is repeated at once on a new one, within the rate."""
    time = Time()
    async with keeping(1, time, ClientLimits(rate=10)) as (keeps, client):
        for _ in range(3):
            assert await client.get("/x") == b"ok"
    assert [connection for connection, _ in keeps.starts] == [1, 1, 2, 2, 3]
    assert set(time.slept) == {0.0}
    assert keeps.starts[-1][1] - keeps.starts[0][1] >= 4 / 10 - 0.15  # less than two turns


async def test_a_server_that_only_closes_is_asked_as_often_as_there_are_attempts() -> None:
    """If a server only closes connections, one retry is immediate and the others wait, up to the limit."""
    time = Time()
    async with keeping(0, time, ClientLimits()) as (keeps, client):
        assert f"({ATTEMPTS} attempts)" in str(await failure_of(client))
    assert len(keeps.starts) == ATTEMPTS
    assert time.slept == [0.0, 0.5]


@pytest.mark.parametrize("patience", [timedelta(0), SECOND / 10, SECOND / 4])
async def test_no_attempt_begins_when_the_patience_is_over(patience: timedelta) -> None:
    """No retry begins if the caller's patience ends before the pause does."""
    time = Time()
    async with serving(http(500)) as api, client_of(api.url, time) as client:
        assert "(1 attempt)" in str(await failure_of(client, patience=patience))
        assert (len(api.requests), time.slept) == (1, [])


async def test_a_repetition_is_broken_off_when_the_patience_is_over() -> None:
    """The first attempt has its whole timeout; a retry ends with the patience, in the first error."""
    hanging = asyncio.Event()

    async def answer(_: Request, __: asyncio.StreamWriter) -> bytes | None:
        if len(api.requests) == 1:
            return http(500, b"first")
        hanging.set()
        await asyncio.Event().wait()
        return None

    async with serving(answer) as api, client_of(api.url, limits=ClientLimits(timeout=60 * SECOND)) as client:
        async with limited(5):
            failed = await failure_of(client, patience=SECOND * 1.25)
        assert "answered 500: first (1 attempt)" in str(failed)
        assert hanging.is_set()
        assert len(api.requests) == 2


async def test_two_feeds_of_a_source_share_its_rate() -> None:
    """Two feeds of a source together stay within its rate, retries included."""
    async with serving([http(500), http(500), http(200)]) as api:
        async with client_of(api.url, limits=ClientLimits(rate=20, concurrency=8)) as client:
            await asyncio.gather(*(client.get(path) for path in ("/one", "/other") for _ in range(6)))
        starts = [request.at for request in api.requests]
        assert {request.path for request in api.requests} == {"/one", "/other"}
    assert len(starts) == 14
    assert starts[-1] - starts[0] >= 13 / 20 - 0.09  # less than two turns


async def test_two_feeds_of_a_source_share_its_places() -> None:
    """Two feeds of a source together stay within its limit of requests in flight."""
    flying = Flying(2)
    async with serving(flying.answer) as api, client_of(api.url, limits=ClientLimits(concurrency=2)) as client:
        await asyncio.gather(*(client.get(path) for path in ("/one", "/other") for _ in range(4)))
    assert flying.most == 2


# Decoding of bodies, within a limit.

MIB = 1024 * 1024


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=2000), st.integers(1, 500), st.lists(st.integers(0, 2000), max_size=4), st.booleans())
def test_pieces_make_the_body(body: bytes, step: int, cuts: list[int], padded: bool) -> None:
    """A compressed body in any pieces and members gives the original body."""
    edges = [0, *sorted(cuts), len(body)]
    packed = b"".join(gzip.compress(body[start:end]) for start, end in pairwise(edges)) + bytes(10 * padded)
    decoder = BodyDecoder("gzip", most=len(body))
    out = b"".join(decoder.decode(packed[start : start + step]) for start in range(0, len(packed), step))
    decoder.close()
    assert out == body
    assert BodyDecoder("", most=1).decode(body) == body


def test_a_bomb_unpacks_to_the_bound_and_no_further() -> None:
    """A body of hundreds of megabytes is decoded to one byte above the limit, in little memory."""
    bomb = gzip.compress(bytes(300 * MIB), compresslevel=1)
    tracemalloc.start()
    try:
        assert len(BodyDecoder("gzip", most=MIB).decode(bomb)) == MIB + 1
        assert len(BodyDecoder("gzip", most=MIB).decode(gzip.compress(bytes(MIB)) * 50)) == MIB + 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_what_is_cut_off_or_broken_is_said_to_be() -> None:
    """A compressed body that is cut off or broken is an error, not a shorter body."""
    decoder = BodyDecoder("gzip", most=100)
    decoder.decode(gzip.compress(b"whole")[:-6])
    with pytest.raises(httpx.DecodingError, match="cut off"):
        decoder.close()
    for broken in (b"something else", gzip.compress(b"whole") + b"\x1f\x8bbroken"):
        with pytest.raises(httpx.DecodingError, match="not gzip"):
            BodyDecoder("gzip", most=100).decode(broken)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("zstd", lambda: zstandard.compress(bytes(100 * MIB))),
        ("gzip, gzip", lambda: gzip.compress(gzip.compress(bytes(100 * MIB), compresslevel=1))),
        ("deflate", lambda: zlib.compress(b"{}")),
    ],
    ids=["zstd", "twice", "deflate"],
)
async def test_only_what_was_asked_for_is_unpacked(encoding: str, packed: Callable[[], bytes]) -> None:
    """Other and stacked encodings are refused without being decoded."""
    async with serving(http(200, packed(), f"Content-Encoding: {encoding}")) as api, client_of(api.url) as client:
        failure = await failure_of(client)
    assert isinstance(failure, SourceNonsense)
    assert encoding in str(failure)


# Spans of rounds and requests, and the trace context of events.

SECRET = (("sinceDeltaToken", "s3cret"),)


async def traced(feed: Round, script: Script) -> RoundResult:
    with round_span(FEED.id) as span:
        result = await feed(script)
        record_round(span, result)
    return result


async def test_a_round_tells_what_it_did() -> None:
    """The span of a round has its feed, mode and counts."""
    with recorded() as spans:
        await traced(Round(), Script().on([*records("a", "b"), 7], delta="d1"))
    span = spans.one("round")
    counts = {"pages": 1, "records": 3, "created": 2, "modified": 0, "removed": 0, "unchanged": 0, "quarantined": 1}
    assert told(span) == {
        "poller.feed": "acme/contractTypes",
        "poller.round.mode": "baseline",
        "poller.round.ok": True,
        **{f"poller.round.{name}": count for name, count in counts.items()},
    }
    assert (span.kind, span.status.status_code, parent(span)) == (SpanKind.INTERNAL, StatusCode.UNSET, None)


async def test_a_round_that_failed_says_why() -> None:
    """The span of a failed round has the round's error."""
    with recorded() as spans:
        result = await traced(Round(), Script().on(DOWN))
    span = spans.one("round")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, result.error)
    assert told(span)["poller.round.ok"] is False


async def test_its_events_carry_it() -> None:
    """Events carry ``traceparent`` as the CloudEvents extension defines it, and stay valid."""
    feed = Round()
    with recorded() as spans:
        await traced(feed, Script().on(records("a", "b")))
    assert {event["traceparent"] for event in feed.store.events} == {traceparent(spans.one("round"))}
    assert not [event for event in feed.store.events if "tracestate" in event]
    for commit in feed.store.commits:
        for event in commit.events:
            read = JSONFormat().read(CloudEvent, event)
            assert read.get_extension("traceparent") == traceparent(spans.one("round"))


async def test_it_is_carried_where_it_is_not_sampled() -> None:
    """The ``traceparent`` of a round that is not sampled has the sampled flag unset."""
    feed = Round()
    with recorded(ALWAYS_OFF):
        await traced(feed, Script().on(records("a")))
    [event] = feed.store.events
    assert int(event["traceparent"][-2:], 16) & 1 == 0


async def test_ids_and_commits_are_the_same_without() -> None:
    """Ids of events and digests of commits are the same with and without tracing."""
    plain, seen, again = Round(), Round(), Round()
    await traced(plain, Script().on(records("a", "b")))
    with recorded():
        await traced(seen, Script().on(records("a", "b")))
        await traced(again, Script().on(records("a", "b")))
    assert [event.pop("traceparent", None) is None for event in plain.store.events] == [True, True]
    first, second = ([event.pop("traceparent") for event in one.store.events] for one in (seen, again))
    assert first != second
    assert json.dumps(plain.store.events) == json.dumps(seen.store.events) == json.dumps(again.store.events)
    digests = [[commit.digest for commit in one.store.commits] for one in (plain, seen, again)]
    assert digests[0] == digests[1] == digests[2]
    assert any(digests[0])


async def test_requests_are_told_one_by_one() -> None:
    """Each request has a span with its number and status, without query and credential."""
    async with serving([http(503), http(404), http(200, b"ok")]) as api, client_of(api.url) as client:
        with recorded() as spans, round_span(FEED.id):
            with pytest.raises(SourceRefused):
                await client.get("/things", SECRET)
            await client.get("/things", SECRET)
    first, second, third = spans.named("GET")
    assert [told(one).get("http.response.status_code") for one in (first, second, third)] == [503, 404, 200]
    assert [told(one).get("http.request.resend_count") for one in (first, second, third)] == [None, 1, None]
    assert [told(one).get("error.type") for one in (first, second, third)] == ["503", "404", None]
    assert {told(one)["url.full"] for one in (first, second, third)} == {f"{api.url}/things"}
    assert {one.kind for one in (first, second, third)} == {SpanKind.CLIENT}
    ours = spans.one("round").get_span_context()
    assert ours is not None
    assert {parent(one) for one in (first, second, third)} == {f"{ours.span_id:016x}"}
    assert "s3cret" not in "".join(one.to_json() for one in spans.all)
    assert not [name for request in api.requests for name in request.headers if name.startswith("trace")]


async def test_a_repetition_with_a_fresh_token_is_a_request_of_its_own() -> None:
    """A request repeated with a fresh token has a span of its own."""
    async with (
        serving(accepting("t2")) as api,
        client_of(api.url, credential=IssuedToken(Numbered(), clock=Clock())) as client,
    ):
        with recorded() as spans, round_span(FEED.id):
            await client.get("/x")
    said = [told(one) for one in spans.named("GET")]
    assert [one["http.response.status_code"] for one in said] == [401, 200]
    assert [one.get("http.request.resend_count") for one in said] == [None, 1]


async def test_no_answer_is_told_as_one() -> None:
    """The span of a request without an answer has an error type and the text of the log line."""
    async with serving(b"") as api, client_of(api.url) as client:
        with recorded() as spans, round_span(FEED.id), pytest.raises(SourceUnavailable) as failed:
            await client.get("/x")
    last = spans.named("GET")[-1]
    assert told(last)["error.type"] == "_OTHER"
    assert str(failed.value).startswith(str(last.status.description))


async def test_outside_a_round_requests_are_no_traces() -> None:
    """Requests outside a round, such as those of ``check``, start no trace."""
    async with serving(http(200, b"ok")) as api, client_of(api.url) as client:
        with recorded() as spans:
            await client.get("/x")
    assert not spans.all


async def test_the_sources_own_word_to_caches_is_the_only_one() -> None:
    """A Cache-Control header of the source replaces the client's own."""
    transport = Transport(headers=(("cache-control", "max-age=5"),))
    async with serving(http(200, b"{}")) as api, client_of(api.url, transport=transport) as client:
        await client.get("/contractTypes")
        assert api.requests[0].headers["cache-control"] == "max-age=5"


@pytest.mark.parametrize(
    ("header", "age"),
    [((), 0), (("Age: 14",), 14), (("Age: -1",), 0), (("Age: soon",), 0), (("Age: 99999999999",), 0)],
)
async def test_a_refusal_says_how_long_a_cache_has_kept_it(header: tuple[str, ...], age: int) -> None:
    """A refusal has the age of the header Age; without a valid one it is 0."""
    async with serving(http(404, b"", *header)) as api, client_of(api.url) as client:
        with pytest.raises(SourceRefused) as refused:
            await client.get("/contractTypes/a")
    assert (refused.value.status, refused.value.age) == (404, age)
