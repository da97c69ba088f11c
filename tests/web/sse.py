"""Server-sent messages, parsed as a browser does by the HTML standard."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aiohttp import ClientResponse


@dataclass(frozen=True, slots=True)
class Message:
    """A dispatched message: the last id seen, the kind of event, the data."""

    id: str
    kind: str
    data: str


class Parser:
    """Parses lines into messages and keeps the last id between them."""

    def __init__(self) -> None:
        self.last = ""
        self._kind = ""
        self._data: list[str] = []

    def line(self, text: str) -> Message | None:
        """Take one line; the message that it ends, if it ends one."""
        if not text:
            kind, data = self._kind or "message", self._data
            self._kind, self._data = "", []
            return Message(self.last, kind, "\n".join(data)) if data else None
        field, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if field == "id" and "\0" not in value:
            self.last = value
        elif field == "event":
            self._kind = value
        elif field == "data":
            self._data.append(value)
        return None


def messages_of(content: bytes) -> Iterator[Message]:
    """All messages of a complete answer."""
    parser = Parser()
    for line in re.split(r"\r\n|\r|\n", content.decode()):
        if message := parser.line(line):
            yield message


async def following(answer: ClientResponse, parser: Parser) -> AsyncIterator[Message]:
    """The messages of an answer as they come, until it ends."""
    async for line in answer.content:
        if message := parser.line(line.decode().rstrip("\n")):
            yield message
