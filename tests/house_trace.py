"""The program under a profiler that notes which of its files run on three paths: ``python -m tests.house_trace``.

    python -m tests.house_trace NOTES ANSWERS COMMAND...     runs ``poller COMMAND...`` and appends to NOTES

Each line of NOTES is one passage: ``{"path": "page", "files": {"source/round.py": ["poll", ...]}}``, the functions that
ran by file. A passage begins and ends where the libraries below the program are called, so that this module depends on
nothing inside the program:

========  ==============================================  ================================================
path      begins                                          ends
========  ==============================================  ================================================
page      an HTTP response arrives                        a command to Redis holds a stream and an event
entry     a reply of Redis holds a stream and an event    a command holds the entry's id, after ANSWERS
                                                          HTTP responses
pause     a reply holds a pause that waits for an answer  a command names the key of the answer
command   the program's entry point is called             it returns
========  ==============================================  ================================================

A file runs when one of its functions does. What runs while a module is imported does not count. Neither does what other
tasks do meanwhile: a passage has the calls of the task in which it begins (a page: the one that sent the request), of
the one in which it ends, and of the tasks that these start in between. Only ``command`` has all calls of its process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Container
from contextvars import ContextVar
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, Final

PROGRAM: Final = str(Path(__file__).parents[1] / "poller") + "/"
_REDIS: Final = "redis/asyncio/connection.py"
_CLIENT: Final = "aiohttp/client.py"
_HTTP: Final = "aiohttp/client_proto.py"
_ENTRY_ID: Final = re.compile(r"\b\d{13}-\d+\b")
_STREAM: Final = (":events", "specversion")


class Actor:
    """A task as its context knows it; tasks that it starts inherit the context, and with it their origin.

    Attributes:
        number: increases from task to task.
        parent: the task that started this one.
    """

    def __init__(self, task: asyncio.Task[Any], parent: Actor | None) -> None:
        self.task = weakref.ref(task)
        self.number = next(_numbers)
        self.parent = parent


_numbers: Final = itertools.count(1)
_actor: ContextVar[Actor | None] = ContextVar("actor", default=None)


def _acting() -> Actor | None:
    """The running task, or the one to which a callback or a thread belongs."""
    actor = _actor.get()
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return actor
    if task is not None and (actor is None or actor.task() is not task):
        actor = Actor(task, actor)
        _actor.set(actor)
    return actor


class Passage:
    """The functions that have run since it began."""

    def __init__(self, first: Actor | None) -> None:
        self._first = first
        self._since = next(_numbers)
        self._calls: defaultdict[Actor | None, set[tuple[str, str]]] = defaultdict(set)

    def ran(self, file: str, function: str) -> None:
        self._calls[_acting()].add((file, function))

    def files(self, last: Actor | None) -> dict[str, list[str]]:
        """The functions by file; those of all tasks if the passage began in none."""
        ends = {self._first, last}  # and the task that started the last one, if that is new
        while last is not None and last.number > self._since:
            last = last.parent
            ends.add(last)
        found: defaultdict[str, set[str]] = defaultdict(set)
        for actor, calls in self._calls.items():
            if self._first is None or self._belongs(actor, ends):
                for file, function in calls:
                    found[file].add(function)
        return {file: sorted(functions) for file, functions in found.items()}

    def _belongs(self, actor: Actor | None, ends: Container[Actor | None]) -> bool:
        while actor is not None and actor not in ends and actor.number > self._since:
            actor = actor.parent
        return actor is not None and actor in ends


class Passages:
    """The open passages."""

    def __init__(self, notes: Path, answers: int) -> None:
        self._notes = notes
        self._answers = answers
        self._open = {"command": Passage(None)}
        self._left = 0
        self._entry = ""
        self._asking: Actor | None = None
        self._importing = threading.local()

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """See :func:`sys.setprofile`."""
        code = frame.f_code
        if code.co_name == "<module>":
            depth = getattr(self._importing, "depth", 0)
            self._importing.depth = max(0, depth + {"call": 1, "return": -1}.get(event, 0))
        elif event == "call":
            if code.co_filename.startswith(PROGRAM):
                self._ran(code.co_filename.removeprefix(PROGRAM), code.co_qualname)
            elif code.co_name == "_request" and code.co_filename.endswith(_CLIENT):
                self._asking = _acting()
            elif code.co_name == "data_received" and code.co_filename.endswith(_HTTP):
                self._answered(frame.f_locals["data"])
            elif code.co_name == "send_packed_command" and code.co_filename.endswith(_REDIS):
                self._sent(frame.f_locals["command"])
        elif event == "return" and code.co_name == "read_response" and code.co_filename.endswith(_REDIS):
            self._replied(repr(value))

    def close(self, path: str) -> None:
        """Write a passage that has ended, if it was open."""
        if (passage := self._open.pop(path, None)) is not None:
            noted = {"path": path, "files": passage.files(_acting())}
            with self._notes.open("a") as notes:
                notes.write(json.dumps(noted) + "\n")

    def _ran(self, file: str, function: str) -> None:
        if not getattr(self._importing, "depth", 0):
            _acting()  # so that tasks know each other when a passage begins
            for passage in self._open.values():
                passage.ran(file, function)

    def _answered(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 "):
            self._left -= 1
            self._open["page"] = Passage(self._asking)

    def _sent(self, command: Any) -> None:
        sent = command if isinstance(command, bytes) else b"".join(command)
        if all(part.encode() in sent for part in _STREAM):
            self.close("page")
        if self._left <= 0 and self._entry.encode() in sent:
            self.close("entry")
        if b":answer:" in sent:
            self.close("pause")

    def _replied(self, reply: str) -> None:
        if all(part in reply for part in _STREAM) and (entry := _ENTRY_ID.search(reply)):
            self._open["entry"], self._entry, self._left = Passage(_acting()), entry[0], self._answers
        if '"pause"' in reply and "pause" not in self._open:
            self._open["pause"] = Passage(_acting())


def main() -> None:
    """Run ``poller`` with the arguments that follow the first two."""
    notes, answers, *sys.argv[1:] = sys.argv[1:]
    passages = Passages(Path(notes), int(answers))
    (poller,) = entry_points(group="console_scripts", name="poller")
    run = poller.load()
    threading.setprofile(passages)
    sys.setprofile(passages)
    try:
        run()
    finally:
        sys.setprofile(None)
        passages.close("command")


if __name__ == "__main__":
    main()
