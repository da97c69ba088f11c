"""Laws of :mod:`tests.receiver`: what it records and answers is what happened."""

from __future__ import annotations

import asyncio
import http.client
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness.waiting import strain
from tests.receiver import CLOSE, Held, Raw, Received, Reply, Then, receiving
from tests.receiver_process import logged, receiver_process


def sent(url: str, *bodies: bytes) -> list[int]:
    """The statuses of these bodies, sent in turn on one connection by an independent HTTP client."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20 * strain())
    try:
        statuses = []
        for body in bodies:
            connection.request("POST", "/hooks?a=b", body, {"X-Twice": "1", "x-twice": "2"})
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        return statuses
    finally:
        connection.close()


async def test_what_arrives_is_recorded_as_it_was_sent() -> None:
    """The record has the method, target, headers as sent and in order, raw body and connection."""
    async with receiving() as receiver:
        assert await asyncio.to_thread(sent, receiver.url, b"\x00\xff", b"second") == [204, 204]
        first, second = await receiver.received(2)
    assert (first.method, first.target, first.body) == ("POST", "/hooks?a=b", b"\x00\xff")
    assert [pair for pair in first.headers if pair[0].lower() == "x-twice"] == [("X-Twice", "1"), ("x-twice", "2")]
    assert (first.connection, second.connection) == (1, 1)
    assert first.at <= second.at


async def test_answers_are_given_in_their_order() -> None:
    """Answers are given in order, the last one repeatedly, or by a function of the request."""
    async with receiving([Reply(503), Reply(200, body=b"x")]) as receiver:
        assert await asyncio.to_thread(sent, receiver.url, b"1", b"2", b"3") == [503, 200, 200]
        receiver.answer = lambda request: Reply(410 if request.body == b"gone" else 202)
        assert await asyncio.to_thread(sent, receiver.url, b"gone", b"4") == [410, 202]
        assert receiver.count == 5


async def test_an_answer_waits_for_its_event() -> None:
    """A held answer is not sent before its event is set."""
    event = asyncio.Event()
    async with receiving(Held(event, Reply(200))) as receiver:
        sending = asyncio.create_task(asyncio.to_thread(sent, receiver.url, b"1"))
        await receiver.received(1)
        assert not sending.done()
        event.set()
        assert await sending == [200]


@pytest.mark.parametrize("answer", [CLOSE, Raw(b"", Then.RESET)])
async def test_connections_end_as_they_are_told(answer: Raw) -> None:
    """The connection is closed or reset, as the answer says."""
    async with receiving(answer) as receiver:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            await asyncio.to_thread(sent, receiver.url, b"1")
        await receiver.until(lambda: receiver.open == 0)


def test_the_process_logs_before_it_answers(tmp_path: Path) -> None:
    """Every answered request is in the log, and every third one fails if that is requested."""
    log = tmp_path / "requests"
    assert logged(log) == []
    with receiver_process(log, every=3) as url:
        assert sent(url, b"1", b"\xff", b"3") == [204, 204, 503]
        requests = logged(log)
    assert [request.body for request in requests] == [b"1", b"\xff", b"3"]
    assert isinstance(requests[0], Received)
