"""Laws of :mod:`poller.delivery.sinks.webhook` with hostile or broken sinks, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import aiohttp
import pytest

from poller.auth.base import EnvironmentToken
from poller.delivery.sinks.base import Failure
from poller.delivery.sinks.connection import ReceivedBytes as Bytes
from poller.delivery.sinks.connection import SinkProtocol, current, failure_of
from poller.delivery.sinks.webhook import KEPT, READ, SEND_AGAIN
from tests.delivery.sinks import TYPE, posted, sink_of
from tests.harness.clock import StubClock
from tests.harness.unread import MANY, unread
from tests.harness.waiting import patience, strain, turns
from tests.receiver import (
    CLOSE,
    FLOOD,
    HANG,
    PATIENCE,
    RESET,
    Answer,
    Drip,
    Flood,
    Held,
    Pieces,
    Raw,
    Received,
    Reply,
    Then,
    flooded,
    receiving,
)

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

SILENT = {
    "nothing": HANG,
    "half a line": Raw(b"HTTP/1.1 2", Then.HANG),
    "half a line, with the status": Raw(b"HTTP/1.1 200 O", Then.HANG),
    "interim answers": Raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", Then.HANG),
    "interim answers for ever": Flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
}
RUDE = {
    "its head has no end": Raw(OK, Then.HANG),
    "its head drips": Drip(OK + b"X: "),
    "its head is cut": Raw(OK),
    "its head is reset": Raw(OK, Then.RESET),
    "it drips": Drip(OK + b"Content-Length: 1000\r\n\r\n"),
    "it has no end": Flood(OK + b"\r\n", b"y" * 65536),
    "it has no end, in chunks": Flood(CHUNKED, b"1\r\ny\r\n" * 10000),
    "it has no end, in an extension": Flood(CHUNKED + b"1;", b"y" * 65536),
    "it is cut": Raw(OK + b"Content-Length: 10\r\n\r\nabc"),
    "it is reset": Raw(OK + b"Content-Length: 10\r\n\r\nabc", Then.RESET),
    "it is reset before it begins": Raw(OK + b"Content-Length: 10\r\n\r\n", Then.RESET),
}
NO_HTTP = {
    "TLS": b"\x16\x03\x01\x00\xff" * 10,
    "a status that goes on": b"HTTP/1.1 200x\r\n\r\n",
    "SMTP": b"220 mail ESMTP\r\n",
    "SSH": b"SSH-2.0-x\r\n",
    "HTML": b"<html>hi</html>",
    "Redis": b"-ERR unknown command\r\n",
    "ICY": b"ICY 200 OK\r\n\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "two digits": b"HTTP/1.1 99 x\r\n\r\n",
    "four digits": b"HTTP/1.1 1000 x\r\n\r\n",
    "nought": b"HTTP/1.1 000 x\r\n\r\n",
    "negative": b"HTTP/1.1 -20 x\r\n\r\n",
}


AFTER_THE_STATUS = {
    "a body after 204": (204, b"\r\nok"),
    "a body after 204, with its length": (204, b"Content-Length: 2\r\n\r\nok"),
    "chunks that are none": (200, b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "chunks that break off": (200, b"Transfer-Encoding: chunked\r\n\r\n5\r\nabc"),
    "a length that is none": (200, b"Content-Length: two\r\n\r\nok"),
    "two lengths": (200, b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    "a negative length": (200, b"Content-Length: -1\r\n\r\n"),
    "a length without an end": (200, b"Content-Length: 99999999999999999999999\r\n\r\n"),
    "more body than was said": (200, b"Content-Length: 1\r\n\r\nabcdef"),
    "data after Connection: close": (200, b"Connection: close\r\nContent-Length: 2\r\n\r\nok<html>"),
    "another answer after Connection: close": (
        200,
        b"Connection: close\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 x\r\n\r\n",
    ),
    "a header that is too long": (200, b"X: " + b"y" * 9000 + b"\r\n\r\n"),
    "a header that is far too long": (200, b"X: " + b"y" * 100_000 + b"\r\n\r\n"),
    "too many headers": (200, b"X: y\r\n" * 5000 + b"\r\n"),
    "a header that is none": (200, b"<html>\r\n\r\n"),
    "a NUL in a header": (200, b"X: a\0b\r\n\r\n"),
    "a body that is not gzip": (200, b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"),
    "bytes at random": (202, bytes(range(256)) * 3),
    "no headers": (200, b""),
}
LINES = {
    "HTTP/1.1": b"HTTP/1.1 %d Some Reason\r\n",
    "HTTP/1.0": b"HTTP/1.0 %d x\r\n",
    "no reason": b"HTTP/1.1 %d\r\n",
    "after interim answers": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 x\r\nLink: <a>\r\n\r\nHTTP/1.1 %d x\r\n",
}


CUTS = ["one segment", "after the line", "in the line", "after the head"]


@pytest.mark.parametrize(
    ("line", "cut"),
    [("HTTP/1.1", cut) for cut in CUTS] + [(line, "one segment") for line in LINES if line != "HTTP/1.1"],
)
@pytest.mark.parametrize(("status", "rest"), AFTER_THE_STATUS.values(), ids=AFTER_THE_STATUS)
async def test_the_status_line_decides_whatever_follows_it(status: int, rest: bytes, line: str, cut: str) -> None:
    """A sink that has sent a 2xx status line has the event, whatever follows and in whichever segments.

    The attempt ends then, and the connection is not used again.
    """
    first = LINES[line] % status
    written = first + rest
    head = written.find(b"\r\n\r\n", len(first) - 2)
    at = {
        "one segment": 0,
        "after the line": len(first),
        "in the line": len(first) - 4,
        "after the head": head + 4,
    }
    pieces = [piece for piece in (written[: at[cut]], written[at[cut] :]) if piece]
    async with receiving(Pieces(pieces)) as receiver, sink_of(receiver.url, seconds=5) as sink:
        outcome = await sink.post((TYPE,), b"{}")
        assert (outcome.status, outcome.is_delivered, receiver.count) == (status, True, 1)
        assert outcome.seconds < 4  # it does not wait for what cannot come
        await receiver.until(lambda: receiver.open == 0, "the connection to close")
        receiver.answer = Reply()
        assert (await sink.post((TYPE,), b"{}")).is_delivered
        assert (receiver.count, receiver.connections) == (2, 2)


@pytest.mark.parametrize("first", [b"ok", b"HT", b"HTTP ok\r\n", b"<p>" * 9000], ids=["ok", "HT", "HTTP", "much"])
async def test_what_a_sink_sends_after_204_is_not_taken_for_its_next_answer(first: bytes) -> None:
    """A body after a 204 that arrives during the next request is dropped, and the answer to that request counts."""

    def answer(_: Received) -> Answer:
        if receiver.count == 1:
            return Raw(b"HTTP/1.1 204 x\r\n\r\n", Then.KEEP)
        return Pieces([first, b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n"], Then.HANG)

    async with receiving() as receiver, sink_of(receiver.url, seconds=5) as sink:
        receiver.answer = answer
        assert (await sink.post((TYPE,), b"{}")).status == 204
        assert (await sink.post((TYPE,), b"{}")).status == 500
        assert (receiver.count, receiver.connections) == (2, 1)
        await receiver.until(lambda: receiver.open == 0, "the connection to close")


@pytest.mark.parametrize("rest", [b"X: a\0b\r\n\r\n", b"Content-Length: -1\r\n\r\nslowly", b"<html>", b""])
@pytest.mark.parametrize("status", [429, 503])
async def test_what_can_be_read_of_a_broken_answer_is_heeded(status: int, rest: bytes) -> None:
    """Retry-After and Date count if they precede the fault in a broken answer."""
    asked = b"retry-after:  Sat, 01 Mar 2025 12:00:07 GMT \r\nDate: Sat, 01 Mar 2025 12:00:00 GMT\r\n"
    head = b"HTTP/1.1 %d x\r\n%b" % (status, asked)
    async with receiving(Raw(head + rest)) as receiver:
        outcome = await posted(receiver.url)
    assert (outcome.status, outcome.failure, outcome.wait) == (status, None, timedelta(seconds=7))
    assert outcome.error == f"the sink answered {status}" + (": slowly" if rest.endswith(b"slowly") else "")


@pytest.mark.parametrize("answer", SILENT.values(), ids=SILENT)
async def test_no_answer_in_time_is_a_timeout(answer: Answer) -> None:
    """Neither a slow stream of bytes nor interim answers extend the time limit, and the connection is closed."""
    async with receiving(answer) as receiver:
        outcome = await posted(receiver.url, seconds=0.2)
        await receiver.until(lambda: receiver.open == 0, "the connection to close")
    assert (outcome.failure, outcome.error) == (Failure.TIMEOUT, "no answer within 0.2 s")
    assert 0.2 <= outcome.seconds < 2 * strain()


@pytest.mark.parametrize("answer", RUDE.values(), ids=RUDE)
async def test_a_status_stands_whatever_becomes_of_the_body(answer: Answer) -> None:
    """A status counts whatever happens to the rest of the answer; time and size stay bounded."""
    async with receiving(answer) as receiver:
        outcome = await posted(receiver.url, seconds=0.5 * min(strain(), 10))
        await receiver.until(lambda: receiver.open == 0, "the connection to close")
    assert (outcome.status, outcome.is_delivered) == (200, True)
    assert len(outcome.excerpt) <= KEPT
    assert outcome.seconds < 2 * strain()


@pytest.mark.parametrize("used", [False, True], ids=["new connection", "used connection"])
@pytest.mark.parametrize(
    ("answer", "status", "failure"),
    [
        (Flood(CHUNKED + b"1;", b"y" * 65536), 200, None),
        (Flood(CHUNKED + b"1\r\ny\r\n1;", b"y" * 65536), 200, None),
        (Flood(b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y" * 65536), 503, None),
        (Flood(b"", b"\r\n" * 32768), None, Failure.NOT_HTTP),
    ],
    ids=["an extension", "a later extension", "an extension after an error", "line breaks before the status"],
)
async def test_an_answer_without_end_and_body_is_cut(
    answer: Answer, status: int | None, failure: Failure | None, used: bool
) -> None:
    """Endless bytes that are no body end with the connection long before the time limit; a status read before counts.

    The request is not repeated.
    """
    script = [Reply(), answer] if used else [answer]
    async with receiving(script) as receiver, sink_of(receiver.url, seconds=PATIENCE) as sink:
        if used:
            assert (await sink.post((TYPE,), b"{}")).is_delivered
        outcome = await sink.post((TYPE,), b"{}")
        await receiver.until(lambda: receiver.open == 0, "the connection to close")
        assert (outcome.status, outcome.failure) == (status, failure)
        assert outcome.seconds < PATIENCE / 4
        assert (receiver.count, receiver.connections) == (len(script), 1)
        if failure:
            assert outcome.error == "the answer is not HTTP: no status line within 512 KiB"


@pytest.mark.parametrize("written", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_told_so(written: bytes) -> None:
    """An answer that is not HTTP is reported as such."""
    async with receiving(Raw(written)) as receiver:
        outcome = await posted(receiver.url)
    assert (outcome.status, outcome.failure) == (None, Failure.NOT_HTTP)
    assert outcome.error.startswith("the answer is not HTTP: ")
    assert "message" not in outcome.error  # the parser's own code and text are not the sink's answer
    assert "400" not in outcome.error


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("TLSV1_ALERT_NO_APPLICATION_PROTOCOL", "(alert: no application protocol); the sink speaks HTTP/2 only"),
        ("TLSV1_ALERT_UNKNOWN_CA", "(alert: unknown ca); it does not accept the client certificate"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", "(alert: certificate expired); it does not accept the client certificate"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "(alert: protocol version); the sink must offer TLS 1.2"),
        ("UNSUPPORTED_PROTOCOL", "TLS cannot be agreed on: unsupported protocol; the sink must offer TLS 1.2"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "(alert: internal error)"),
    ],
)
def test_an_alert_of_tls_is_told_with_its_remedy(reason: str, remedy: str) -> None:
    """A TLS alert is reported with its reason and the remedy, whichever exception carries it."""
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:2580)")
    error.reason = reason
    outer = aiohttp.ClientOSError(1, str(error))
    outer.__cause__ = error
    for failure, text in (failure_of(outer), failure_of(aiohttp.ServerDisconnectedError(), error)):
        assert failure is Failure.TLS
        assert remedy in text
        assert "_ssl.c" not in text


async def test_http_2_is_named_with_the_remedy() -> None:
    """An HTTP/2 answer is named in the error, with the remedy."""
    async with receiving(Raw(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64")) as receiver:
        outcome = await posted(receiver.url)
    assert outcome.failure is Failure.NOT_HTTP
    assert "HTTP/2 only; enable HTTP/1.1" in outcome.error


@pytest.mark.parametrize(
    ("first", "block"),
    [(OK, b"X-A: b\r\n" * 1000), (OK + b"X: ", b"y" * 65536), (b"HTTP/1.1 200 ", b"y" * 65536)],
    ids=["headers", "a header", "a reason"],
)
async def test_a_head_without_an_end_is_bounded(first: bytes, block: bytes) -> None:
    """An endless head is cut at a bound; the status counts if its line is complete."""
    async with receiving(Flood(first, block)) as receiver:
        outcome = await posted(receiver.url)
    if first.startswith(OK):
        assert outcome.status == 200
    else:
        assert outcome.failure is Failure.NOT_HTTP
    assert outcome.seconds < 5


async def test_a_body_without_an_end_is_not_kept() -> None:
    """An endless body takes neither time nor memory beyond a bound."""
    async with receiving(Flood(OK + b"\r\n", b"y" * 65536)) as receiver:
        assert (await posted(receiver.url)).seconds < 5
        tracemalloc.start()
        try:
            for _ in range(20):
                await posted(receiver.url)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 100 * READ


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_answers_without_end_are_not_kept(when: str) -> None:
    """Answers that follow the one to a request, at once or over the idle connection, end the connection unread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        delivered = threading.Event()
        flood = asyncio.create_task(asyncio.to_thread(flooded, server, delivered if when == "later" else None))
        async with sink_of(f"http://127.0.0.1:{server.getsockname()[1]}") as sink:
            assert (await sink.post((TYPE,), b"{}")).is_delivered
            delivered.set()
            assert await flood < FLOOD // 4  # what fits into the buffers of sockets, and no more


async def test_a_gzip_bomb_is_not_unpacked() -> None:
    """A compressed answer is kept as sent and not decompressed."""
    bomb = gzip.compress(b"0" * 3_000_000)
    async with receiving(Reply(500, (("Content-Encoding", "gzip"),), bomb)) as receiver:
        outcome = await posted(receiver.url)
    assert outcome.excerpt == bomb[:KEPT]


@pytest.mark.parametrize(
    ("answer", "failure"),
    [(RESET, Failure.RESET), (CLOSE, Failure.CLOSED), (Raw(b"HTTP/1.1 2"), Failure.CLOSED)],
    ids=["reset", "closed", "closed in a line"],
)
async def test_an_end_without_an_answer_says_how(answer: Answer, failure: Failure) -> None:
    """A connection that ends without an answer fails with how it ended, and the request is not repeated."""
    async with receiving(answer) as receiver:
        assert (await posted(receiver.url)).failure is failure
        assert receiver.count == 1


async def test_a_kept_connection_that_is_closed_is_not_used_again() -> None:
    """An idle connection that the sink closed is not used, and the next attempt succeeds on a new one."""
    closed = asyncio.Event()
    async with receiving([Reply(), Held(closed, Reply())]) as receiver, sink_of(receiver.url) as sink:
        assert (await sink.post((TYPE,), b"{}")).is_delivered
        for connection in list(receiver._protocols):
            connection.transport.close()
        await receiver.until(lambda: receiver.open == 0, "the connection to close")
        await turns(5)  # until the sink's side notices
        closed.set()
        assert (await sink.post((TYPE,), b"{}")).is_delivered
        assert receiver.connections == 2


async def test_what_came_over_an_idle_connection_is_seen_before_it_is_used() -> None:
    """An idle connection with unread data in its socket is not used, even before the event loop has read the data."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def answered() -> socket.socket:
            connection, _ = server.accept()
            connection.settimeout(PATIENCE)
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 204 x\r\n\r\n")
            return connection

        async with sink_of(f"http://127.0.0.1:{server.getsockname()[1]}") as sink:
            posting = asyncio.create_task(sink.post((TYPE,), b"{}"))
            first = await asyncio.to_thread(answered)
            await posting
            next_one = asyncio.get_running_loop().run_in_executor(None, answered)
            first.sendall(b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n")
            assert (await sink.post((TYPE,), b"{}")).status == 204
            first.close()
            (await next_one).close()


@pytest.mark.parametrize("when", ["before the request", "after it"])
async def test_why_a_connection_was_lost_is_known_whenever_that_was(when: str) -> None:
    """A TLS alert is reported whether it comes before or after the request is written."""
    protocol = SinkProtocol(asyncio.get_running_loop())
    received, error = Bytes(), ssl.SSLError(1, "alert")
    outer = current.set(received)
    steps: list[Callable[[], object]] = [lambda: protocol.connection_lost(error), protocol.set_response_params]
    for step in steps if when == "before the request" else reversed(steps):
        step()
    current.reset(outer)
    assert received.lost is error


@pytest.mark.parametrize("end", [CLOSE, RESET], ids=["closed", "reset"])
@pytest.mark.parametrize("size", [2, 3_000_000])
async def test_a_kept_connection_that_ends_under_a_request_is_replaced(end: Answer, size: int) -> None:
    """A request on an idle connection that the sink then closes is sent again over a new one, in the same attempt.

    If the new connection ends without an answer too, the attempt has failed.
    """
    both = asyncio.Event()
    async with receiving(Held(both, Reply())) as receiver, sink_of(receiver.url) as sink:
        posts = [asyncio.create_task(sink.post((TYPE,), b"{}")) for _ in range(2)]
        await receiver.received(2)
        both.set()
        await asyncio.gather(*posts)  # two connections are idle now
        receiver.answer = lambda request: end if request.connection <= 2 else Reply()
        assert (await sink.post((TYPE,), b"x" * size)).is_delivered
        assert len(receiver.requests[-1].body) == size
        assert (receiver.count, receiver.connections) == (4, 3)
        receiver.answer = end
        assert (await sink.post((TYPE,), b"x" * size)).failure in (Failure.CLOSED, Failure.RESET)
        assert (receiver.count, receiver.connections) == (6, 4)


async def test_a_kept_connection_that_ends_late_is_not_replaced() -> None:
    """If a reused connection ends only after a while, the request may have arrived, so the attempt fails."""
    late = asyncio.Event()
    seconds = [0.0]
    async with receiving([Reply(), Held(late, CLOSE)]) as receiver:
        async with sink_of(receiver.url, clock=StubClock(monotonic=lambda: seconds[0])) as sink:
            await sink.post((TYPE,), b"{}")
            waiting = asyncio.create_task(sink.post((TYPE,), b"{}"))
            await receiver.received(2)
            seconds[0] += SEND_AGAIN + 0.1
            late.set()
            assert (await waiting).failure is Failure.CLOSED
        assert (receiver.count, receiver.connections) == (2, 1)


async def test_a_sink_that_closes_its_connections_the_moment_it_answers_loses_no_attempt() -> None:
    """A sink that closes each connection after its answer, unannounced, gets every request of many exactly once."""
    async with receiving(Reply(then=Then.CLOSE)) as receiver, sink_of(receiver.url, concurrency=8) as sink:

        async def some() -> bool:
            return all([(await sink.post((TYPE,), b"{}")).is_delivered for _ in range(100)])

        assert all(await asyncio.gather(*(some() for _ in range(8))))
        assert receiver.count == 800


async def test_a_sink_that_answers_before_it_has_read_is_heard() -> None:
    """A 413 that arrives while a large body is still being sent is the outcome."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.write_eof()
            while await reader.read(65536):
                pass

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, sink_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as sink:
        assert (await sink.post((TYPE,), b"x" * 3_000_000)).status == 413


async def test_a_connection_with_a_part_of_a_request_is_not_used_again() -> None:
    """If the answer comes before all of a large body was sent, the next request goes over another connection."""
    heads: list[bytes] = []
    over = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await over.wait()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server, sink_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as sink:
        for _ in range(2):
            assert (await sink.post((TYPE,), b"x" * 9_000_000)).is_delivered
        assert [head[:4] for head in heads] == [b"POST", b"POST"]
        over.set()


async def test_what_an_early_answer_leaves_unsent_keeps_no_connection() -> None:
    """A sink that has answered and reads no more of the body is cut off, or it would hold the connection."""
    ends: list[bool] = []
    size = 40_000_000

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # every transport of a stream has it
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            await answered.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]  # as above
            got = 0
            try:
                while part := await reader.read(1_000_000):
                    got += len(part)
            except ConnectionError:
                got = 0
            ends.append(got < size // 2)
            over.set()

    answered, over = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=4096)
    async with server, sink_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as sink:
        assert (await sink.post((TYPE,), b"x" * size)).is_delivered
        answered.set()
        async with patience("the end of the connection"):
            await over.wait()
    assert ends == [True]


async def test_a_refused_connection_is_told_as_one() -> None:
    """A refused connection is reported with host and port, without the path."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    outcome = await posted(f"http://127.0.0.1:{port}/secret-path")
    assert outcome.failure is Failure.REFUSED
    assert outcome.error == f"cannot connect to 127.0.0.1:{port}: Connection refused"


async def test_an_upgrade_is_no_success() -> None:
    """An upgrade (101) does not count as delivered."""
    switching = Raw(b"HTTP/1.1 101 x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Then.HANG)
    async with receiving(switching) as receiver:
        outcome = await posted(receiver.url, seconds=0.5 * min(strain(), 4))
    assert (outcome.status, outcome.is_delivered) == (101, False)


@pytest.mark.parametrize("header", [("X-A", "b\r\nX-C: d"), ("X-A", "b\nc"), ("X\r\nA", "b"), ("X-A", "b\0")])
async def test_a_header_that_would_be_two_is_not_sent(header: tuple[str, str]) -> None:
    """A header with a line break or NUL is a failure of the request, and nothing is sent."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        outcome = await sink.post((TYPE, header), b"{}")
        assert outcome.failure is Failure.REQUEST
        assert receiver.count == 0


async def test_a_header_that_is_no_text_asks_for_nothing() -> None:
    """A Retry-After that is not text is ignored, and the status counts."""
    busy = b"HTTP/1.1 429 x\r\nRetry-After: \xff\xfe" + b"9" * 4000 + b"\r\nContent-Length: 0\r\n\r\n"
    async with receiving(Raw(busy)) as receiver:
        outcome = await posted(receiver.url)
    assert (outcome.status, outcome.wait, outcome.is_unexplained) == (429, None, True)


@pytest.mark.parametrize(
    "before", [b"X: a\0", b"X\0", b"X: " + b"y" * 8180, *(b"X: " + b"y" * few for few in range(70, 100, 5))]
)
async def test_no_part_of_the_token_comes_back_in_a_complaint(before: bytes) -> None:
    """A token that the sink echoes in a malformed answer does not appear in the error."""
    token = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
    for line in (b"HTTP/1.1 2x0 x\r\n", b"HTTP/1.1 500 x\r\n"):
        async with receiving(Raw(line + b"X: " + before + token.encode() * 300 + b"\r\n\r\n")) as receiver:
            outcome = await posted(receiver.url, credential=EnvironmentToken("T", {"T": token}))
        assert (outcome.status or outcome.failure) in (500, Failure.NOT_HTTP)
        assert not any(token[start : start + 6] in outcome.error for start in range(len(token) - 5))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
def test_what_this_machine_lacks_is_no_failure_of_the_network(number: int) -> None:
    """A lack of local resources is a failure of its own kind, which names the resource."""
    assert failure_of(OSError(number, "?")) == (Failure.LOCAL, os.strerror(number))


async def test_a_request_that_is_given_up_does_not_arrive_later() -> None:
    """What a sink has not received of a request that nothing waits for any more is discarded.

    A network that loses packets for some seconds would else deliver an old event of a record after newer ones: the
    kernel sends it again, although the connection is closed.
    """
    async with unread() as listener, sink_of(f"http://127.0.0.1:{listener.port}/") as sink:
        sending = asyncio.ensure_future(sink.post((TYPE,), b"x" * MANY))
        server = await listener.accepted()
        assert await server.read()
        sending.cancel()
        await asyncio.wait([sending])
        assert await server.rest() < MANY // 2
