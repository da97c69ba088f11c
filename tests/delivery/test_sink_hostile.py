"""Laws of :mod:`poller.delivery.sink` against sinks that mean harm, or know no better, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from contextlib import closing

import pytest

from poller.credentials.bearer import EnvironmentToken
from poller.delivery.exchange import KEPT
from poller.delivery.outcome import Failure
from poller.delivery.sink import READ
from tests.delivery.sinks import TYPE, posted, sink_of
from tests.harness.waiting import turns
from tests.receiver import CLOSE, HANG, RESET, Answer, Drip, Flood, Held, Raw, Reply, Then, receiving

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

SILENT = {
    "nothing": HANG,
    "half a line": Raw(b"HTTP/1.1 2", Then.HANG),
    "half a head": Raw(OK, Then.HANG),
    "a header that drips": Drip(OK + b"X: "),
    "interim answers": Raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", Then.HANG),
    "interim answers for ever": Flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
}
RUDE = {
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
    "two lengths": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "negative length": OK + b"Content-Length: -1\r\n\r\n",
    "endless length": OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "more body than was said": OK + b"Content-Length: 1\r\n\r\nabcdef",
    "NUL in a header": OK + b"X: a\0b\r\n\r\n",
}


@pytest.mark.parametrize("answer", SILENT.values(), ids=SILENT)
async def test_no_answer_in_time_is_a_timeout(answer: Answer) -> None:
    """Bytes that keep coming do not prolong it, an interim answer is none, and the connection is given up."""
    async with receiving(answer) as receiver:
        outcome = await posted(receiver.url, seconds=0.2)
        await receiver.until(lambda: receiver.open == 0, "the connection's end")
    assert (outcome.failure, outcome.text) == (Failure.TIMEOUT, "no answer within 0.2 s")
    assert 0.2 <= outcome.seconds < 2


@pytest.mark.parametrize("answer", RUDE.values(), ids=RUDE)
async def test_a_status_stands_whatever_becomes_of_the_body(answer: Answer) -> None:
    """The sink has answered, within the bounds of time and size."""
    async with receiving(answer) as receiver:
        outcome = await posted(receiver.url, seconds=0.3)
        await receiver.until(lambda: receiver.open == 0, "the connection's end")
    assert (outcome.status, outcome.success) == (200, True)
    assert len(outcome.excerpt) <= KEPT
    assert outcome.seconds < 2


@pytest.mark.parametrize("written", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_told_so(written: bytes) -> None:
    """Whatever else it is."""
    async with receiving(Raw(written)) as receiver:
        outcome = await posted(receiver.url)
    assert (outcome.status, outcome.failure) == (None, Failure.NOT_HTTP)
    assert outcome.text.startswith("the answer is not HTTP: ")


@pytest.mark.parametrize(
    ("first", "block"),
    [(OK, b"X-A: b\r\n" * 1000), (OK + b"X: ", b"y" * 65536), (b"HTTP/1.1 200 ", b"y" * 65536)],
    ids=["headers", "a header", "a reason"],
)
async def test_a_head_without_an_end_is_bounded(first: bytes, block: bytes) -> None:
    """Long before the time is over."""
    async with receiving(Flood(first, block)) as receiver:
        outcome = await posted(receiver.url)
    assert outcome.failure is Failure.NOT_HTTP
    assert outcome.seconds < 5


async def test_a_body_without_an_end_is_not_kept() -> None:
    """Neither read further than the bound nor held in memory."""
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


async def test_a_gzip_bomb_is_not_unpacked() -> None:
    """What is kept is what was sent."""
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
    """Reset or closed in order: nobody knows whether the sink has taken it, so it has not. It is not sent twice."""
    async with receiving(answer) as receiver:
        assert (await posted(receiver.url)).failure is failure
        assert receiver.count == 1


async def test_a_kept_connection_that_is_closed_is_not_used_again() -> None:
    """Closed while nothing was asked: the next attempt makes another connection and does not fail."""
    closed = asyncio.Event()
    async with receiving([Reply(), Held(closed, Reply())]) as receiver, sink_of(receiver.url) as sink:
        assert (await sink.post((TYPE,), b"{}")).success
        for connection in list(receiver._protocols):
            connection.transport.close()
        await receiver.until(lambda: receiver.open == 0, "the connection's end")
        await turns(5)  # in which the sink's side comes to know
        closed.set()
        assert (await sink.post((TYPE,), b"{}")).success
        assert receiver.connections == 2


async def test_a_sink_that_answers_before_it_has_read_is_heard() -> None:
    """A 413 in the middle of a large body is a 413."""

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


async def test_a_refused_connection_is_told_as_one() -> None:
    """With host and port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    outcome = await posted(f"http://127.0.0.1:{port}/secret-path")
    assert outcome.failure is Failure.REFUSED
    assert outcome.text == f"cannot connect to 127.0.0.1:{port}: Connection refused"


async def test_an_upgrade_is_no_success() -> None:
    """101 is an answer to what nobody asked."""
    switching = Raw(b"HTTP/1.1 101 x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Then.HANG)
    async with receiving(switching) as receiver:
        outcome = await posted(receiver.url, seconds=0.5)
    assert (outcome.status, outcome.success) == (101, False)


@pytest.mark.parametrize("header", [("X-A", "b\r\nX-C: d"), ("X-A", "b\nc"), ("X\r\nA", "b"), ("X-A", "b\0")])
async def test_a_header_that_would_be_two_is_not_sent(header: tuple[str, str]) -> None:
    """Whoever made it: nothing leaves, and the outcome does not repeat it."""
    async with receiving() as receiver, sink_of(receiver.url) as sink:
        outcome = await sink.post((TYPE, header), b"{}")
        assert outcome.failure is Failure.REQUEST
        assert receiver.count == 0


async def test_headers_of_the_answer_are_kept_as_text() -> None:
    """Whatever bytes they hold: short, and fit to be encoded."""
    answer = Raw(OK + b"Retry-After: \xff\xfe" + b"9" * 4000 + b"\r\nContent-Length: 0\r\n\r\n")
    async with receiving(answer) as receiver:
        outcome = await posted(receiver.url)
    assert outcome.retry_after is not None
    assert outcome.retry_after.isascii()
    assert len(outcome.retry_after) < 200


@pytest.mark.parametrize(
    "before", [b"X: a\0", b"X\0", b"X: " + b"y" * 8180, *(b"X: " + b"y" * few for few in range(70, 100, 5))]
)
async def test_no_part_of_the_token_comes_back_in_a_complaint(before: bytes) -> None:
    """A sink that sends it in what is no HTTP does not see it in our log."""
    token = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
    async with receiving(Raw(OK + b"X: " + before + token.encode() * 300 + b"\r\n\r\n")) as receiver:
        outcome = await posted(receiver.url, credential=EnvironmentToken("T", {"T": token}))
    assert outcome.failure is Failure.NOT_HTTP
    assert not any(token[start : start + 6] in outcome.text for start in range(len(token) - 5))
