"""The log of the sinks."""

from __future__ import annotations

import socket

import pytest

from tests.harness.requests import Arrived, Ended, Line
from tests.harness.sinks import Sinks
from tests.receiver import receiving

_REQUEST = b"POST /one HTTP/1.1\r\nContent-Length: 0\r\n\r\n"


def _connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("leaves", [True, False], ids=["given up", "open"])
async def test_of_two_requests_at_once_one_that_was_given_up_has_ended_before_the_other(*, leaves: bool) -> None:
    """Law: a sink that had to wait for its turn logs two requests as two at once only if both clients are there."""
    lines: list[Line] = []
    async with receiving(recording=False) as receiver:
        receiver.answer = Sinks(lines.append, 1, has_left=receiver.has_left)
        port = int(receiver.url.rpartition(":")[2])
        with _connection(port) as first, _connection(port) as other:
            await receiver.until(lambda: receiver.open == 2, "both connections")
            first.sendall(_REQUEST)  # nothing is read before the next wait
            if leaves:
                first.shutdown(socket.SHUT_WR)
            other.sendall(_REQUEST)
            await receiver.until(lambda: receiver.count == 2, "both requests")
    if leaves:
        assert [(type(line), line.number) for line in lines[:3]] == [(Arrived, 1), (Ended, 1), (Arrived, 2)]
        assert isinstance(lines[1], Ended)
        assert lines[1].status is None
    else:
        assert [type(line) for line in lines[:2]] == [Arrived, Arrived]
