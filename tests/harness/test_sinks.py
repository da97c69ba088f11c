"""The log of the sinks."""

from __future__ import annotations

import socket

from tests.harness.requests import Arrived, Ended, Line
from tests.harness.sinks import Sinks
from tests.receiver import receiving

_REQUEST = b"POST /one HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


def _connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


async def test_what_was_given_up_while_the_sink_had_to_wait_ended_before_the_next_request() -> None:
    """Law: of two requests that a sink finds at once, the one whose client has left ends before the other arrives."""
    lines: list[Line] = []
    async with receiving(recording=False) as receiver:
        receiver.answer = Sinks(lines.append, 1, has_left=receiver.has_left)
        port = int(receiver.url.rpartition(":")[2])
        with _connection(port) as first, _connection(port) as other:
            await receiver.until(lambda: receiver.open == 2, "both connections")
            first.sendall(_REQUEST)  # nothing is read before the next wait
            first.shutdown(socket.SHUT_WR)
            other.sendall(_REQUEST)
            await receiver.until(lambda: receiver.count == 2, "both requests")
    assert [(type(line), line.number) for line in lines[:3]] == [(Arrived, 1), (Ended, 1), (Arrived, 2)]
    assert isinstance(lines[1], Ended)
    assert lines[1].status is None


async def test_a_request_that_is_open_has_not_ended() -> None:
    """Law: two requests at once are logged as two at once."""
    lines: list[Line] = []
    async with receiving(recording=False) as receiver:
        receiver.answer = Sinks(lines.append, 1, has_left=receiver.has_left)
        port = int(receiver.url.rpartition(":")[2])
        with _connection(port) as first, _connection(port) as other:
            await receiver.until(lambda: receiver.open == 2, "both connections")
            first.sendall(_REQUEST)
            other.sendall(_REQUEST)
            await receiver.until(lambda: receiver.count == 2, "both requests")
    assert [type(line) for line in lines[:2]] == [Arrived, Arrived]
