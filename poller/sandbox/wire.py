"""Answers that do not arrive whole: dripping, cut, endless, reset.

Law: what is sent up to the break is what the whole answer would have begun with. A reader that leaves ends the sending
at once.

It does not know: why.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from poller.sandbox.answer import Answer, Wire

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

DRIP_SECONDS: Final = 0.5
"""Between two bytes of a dripping body."""

_CONNECTION: Final = "poller.connection"
_WHITE_SPACE: Final = b" " * 2**16
_NOT_HTTP: Final = b"220 mail.example.org ESMTP\r\n" + b"\x00\xff\n" * 1000
_NO_LINGER: Final = struct.pack("ii", 1, 0)


def with_connection(app: ASGIApp) -> ASGIApp:
    """The application, told which connection each request came by. For uvicorn only."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        # ASGI cannot break a connection. uvicorn's ``send`` is a method of the exchange, which has the transport.
        scope[_CONNECTION] = send.__self__.transport  # type: ignore[attr-defined] # see above
        await app(scope, receive, send)

    return call


class Broken(Response):
    """An answer whose ``wire`` says how it is sent."""

    def __init__(self, said: Answer, *, pause: float = DRIP_SECONDS) -> None:
        super().__init__(said.body, status_code=said.status, headers=dict(said.headers))
        self._wire = said.wire
        self._pause = pause

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is to send."""
        if self._wire is Wire.DRIP:
            await self._drip(receive, send)
        elif self._wire is Wire.ENDLESS:
            await self._pour(receive, send)
        elif self._wire is Wire.SILENT:
            await _left(receive)
        else:
            self._break(scope[_CONNECTION])
            await _left(receive)

    async def _drip(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for index in range(len(body)):
            more = index + 1 < len(body)
            await send({"type": "http.response.body", "body": body[index : index + 1], "more_body": more})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await _left(receive)
                    return

    async def _pour(self, receive: Receive, send: Send) -> None:
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        leaving = asyncio.create_task(_left(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": _WHITE_SPACE, "more_body": True})
            await asyncio.sleep(0)

    def _break(self, transport: asyncio.Transport) -> None:
        if self._wire is Wire.RESET:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
            return
        if self._wire is Wire.NOT_HTTP:
            transport.write(_NOT_HTTP)
            transport.close()
            return
        transport.write(self._head() + self._half())
        transport.close()

    def _head(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status_code} {HTTPStatus(self.status_code).phrase}".encode()]
        lines += [name + b": " + value for name, value in self.raw_headers if name != b"content-length"]
        if self._wire is Wire.CUT_WITH_LENGTH:
            lines.append(b"content-length: %d" % len(self.body))
        elif self._wire is Wire.CUT_CHUNKED:
            lines.append(b"transfer-encoding: chunked")
        else:
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def _half(self) -> bytes:
        half = bytes(self.body)[: len(self.body) // 2]
        return b"%x\r\n%b\r\n" % (len(half), half) if self._wire is Wire.CUT_CHUNKED else half


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
