"""A connection of uvicorn that does not wait for ever: who begins a request has to end it in time.

Law: from the connection on, and from the first byte of a later request on, there are :data:`REQUEST_SECONDS` until all
of its head and body is there; then the connection is closed. So whoever holds many open and says nothing costs their
sockets no longer than that. How long an answer takes, and how long a connection rests between two requests, are no
matter of this.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS: Final = 20.0


class PromptProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *given: Any, seconds: float = REQUEST_SECONDS, **more: Any) -> None:
        """Take what uvicorn gives, and how long a request may take to be there."""
        super().__init__(*given, **more)
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """It is there, and the first request is due."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Some of a request has come, or all of it."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """One was answered; some of the next may have come before that."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and nothing is due any more."""
        super().connection_lost(exc)
        self._relax()

    def _look(self) -> None:
        their, first = self.conn.their_state, self.headers is None
        if their is h11.SEND_BODY or (their is h11.IDLE and (first or self.conn.trailing_data[0])):
            self._expect()
        else:
            self._relax()

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self.transport.close)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
