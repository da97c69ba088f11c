"""A connection of uvicorn that waits for nobody for ever, and holds one of a bounded number of places.

**Invariants.**

- From the connection on, and from the first byte of a later request on, there are :data:`REQUEST_SECONDS` until all of
  its head and body is there; then the connection is closed. How long an answer takes is no matter of this.
- A client that takes nothing of its answer for :data:`STALLED_SECONDS` is let go, and so is one that has not taken the
  rest of it so long after the connection was closed here.
- While there is no room (:mod:`poller.http.connections`), a connection that waits for its client may be dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from poller.http.connections import Connections

REQUEST_SECONDS: Final = 20.0
STALLED_SECONDS: Final = 60.0
_NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 0\r\n"
    b"cache-control: no-store\r\n\r\n"
)


class PromptProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        *given: Any,
        connections: Connections,
        seconds: float = REQUEST_SECONDS,
        stalled: float = STALLED_SECONDS,
        **more: Any,
    ) -> None:
        """Take what uvicorn gives, all connections of the listener, and how long each kind of waiting may take."""
        super().__init__(*given, **more)
        self._all = connections
        self._seconds = seconds
        self._stalled = stalled
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """Close it now, whatever has not been sent yet."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """It is there, and the first request is due."""
        super().connection_made(transport)
        if self._all.has_room(self):
            self._expect()
        else:
            transport.write(_NO_ROOM)
            self._close()

    def data_received(self, data: bytes) -> None:
        """Some of a request has come, or all of it."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """One was answered; some of the next may have come before that."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """The client does not take what is sent as fast as it is sent."""
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._stalled, self.drop)
        self._wait()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come."""
        super().timeout_keep_alive_handler()
        self._part()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and nothing is due any more."""
        super().connection_lost(exc)
        self._all.forget(self)
        self._relax()
        for timer in (self._taking, self._leaving):
            if timer is not None:
                timer.cancel()

    def _look(self) -> None:
        their, first = self.conn.their_state, self.headers is None
        if their is h11.SEND_BODY or (their is h11.IDLE and (first or self.conn.trailing_data[0])):
            self._expect()
        else:
            self._relax()
        self._wait()
        self._part()

    def _wait(self) -> None:
        """Note for whom it waits: for its client to say more or to take more, or the client for an answer."""
        slow = self._taking is not None
        self._all.waits(self, for_client=slow or self.conn.their_state in {h11.SEND_BODY, h11.IDLE})

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._close)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self.transport.close()
        self._part()

    def _part(self) -> None:
        """What is closed here and still has something to send has so long to send it."""
        if self._leaving is None and self.transport.is_closing():
            self._leaving = self.loop.call_later(self._stalled, self.drop)
