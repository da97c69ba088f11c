"""Measures which files of the program run on three paths: a page, an entry, a pause.

The real program runs against the sandbox, a real server and a real sink, each process under :mod:`tests.house_trace`.
Each path is run several times, and a file is on it if it runs every time, so that timers do not count. The frame
(:data:`FRAME`) is on every path and is not counted: a reader of a path need not open it.

* *page*: from the response to a delta request with one changed record to the command that adds the event. * *entry*:
from the reply that holds an event to the command that settles it, at a sink that answers 204 and at one that answers
500 twice, where the event is first scheduled for a retry and then a dead letter. The files of both. * *pause*: the
whole command, and in the daemon from the reply that holds the pause to its own reply. No round is running.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from tests.harness.processes import Daemon, daemon
from tests.harness.scene import Scene, scene, stream
from tests.harness.waiting import until
from tests.harness.wishes import SECRET, Wish
from tests.programs import bare_environ
from tests.receiver import Received, Reply, receiving

PATHS: Final = {
    "page": "a page's bytes to XADD",
    "entry": "an entry to 2xx, retry or dead letter",
    "pause": "`poller pause FEED` to its effect",
}

FRAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("__init__", "errors", "clock", "resources", "lifecycle", "text", "limits", "failpoints"),
        "small things that everything uses alike",
    ),
    "telemetry": "each step is measured and logged in the same way",
    "redis": "a client of Redis that knows nothing of feeds",
    "config": "read at the start, whatever follows",
    "store/clock": "the time, which everything needs",
}
"""Modules and folders that are not part of a path, with the reason."""

Files = dict[str, set[str]]
"""The functions that ran, by file relative to the program's directory."""

_RESOURCE: Final = "employmentUnavailabilities"
_FEED: Final = f"acme/{_RESOURCE}"
_TIMES: Final = 4
_ROOT: Final = Path(__file__).parents[1]
_SINKS: Final = {  # by id: how many answers settle an event, and the lines of the subscription
    "taken": (1, 'start = "now"'),
    "refused": (2, 'start = "now"\nretry = { schedule = ["50ms"] }'),  # first a scheduled retry, then a dead letter
}


def is_frame(file: str) -> bool:
    """Whether a file is part of the frame."""
    name = file.removesuffix(".py")
    return not {name, name.partition("/")[0]}.isdisjoint(FRAME)


def measured() -> dict[str, Files]:
    """The files that run on each path, including the frame."""
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_measured(Path(directory)))


async def _measured(directory: Path) -> dict[str, Files]:
    async with scene(directory, records=20, changes_per_second=0) as played:
        config = played.config(resources=[_RESOURCE], interval="300ms", ttl="10s")
        notes = directory / "polling"
        async with _traced(config, notes, 0, "poll") as poller:
            await poller.polled([_RESOURCE])
            page = await _walked(notes, "page", partial(_change, played))
            entry = [await _delivered(played, config, sink) for sink in _SINKS]
            asked = directory / "asked"
            handled = await _walked(notes, "pause", partial(_pause, config, asked))
            command = _common(_passages(asked, "command"))
    return {"page": page, "entry": _joined(entry), "pause": _joined([command, handled])}


def _traced(config: Path, notes: Path, answers: int, role: str) -> AbstractAsyncContextManager[Daemon]:
    return daemon(config, command=("tests.house_trace", str(notes), str(answers), "run", "--only", role))


async def _delivered(played: Scene, config: Path, sink: str) -> Files:
    """The files that run when an entry is delivered to one of the sinks."""
    answers, lines = _SINKS[sink]
    async with receiving() as receiver:
        receiver.answer = _answer
        subscribed = _with_subscription(config, Wish(sink, lines=lines), receiver.url)
        notes = subscribed.with_suffix(".notes")
        async with _traced(subscribed, notes, answers, "deliver"):
            await until(partial(_is_read, played, sink), f"a consumer group of {sink}")
            return await _walked(notes, "entry", partial(_change, played))


def _with_subscription(config: Path, wish: Wish, url: str) -> Path:
    secret, subscribed = config.with_name("secret"), config.with_name(f"{wish.sink}.toml")
    secret.write_text(SECRET)
    secret.chmod(0o600)
    subscribed.write_text(config.read_text() + wish.table(secret, url, "5s"))
    return subscribed


def _answer(request: Received) -> Reply:
    return Reply(500 if request.target == "/refused" else 204)


async def _is_read(played: Scene, sink: str) -> bool:
    groups = await played.client.xinfo_groups(stream(_RESOURCE))
    return any(group["name"] == f"sub:{sink}".encode() for group in groups)


async def _change(played: Scene) -> None:
    """Change a record of the source."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    await played.put(_RESOURCE, {"id": "house", "reason": now, "lastModifiedAt": now})


async def _pause(config: Path, notes: Path) -> None:
    await _poller("tests.house_trace", str(notes), "0", "pause", _FEED, "--config", str(config))
    await _poller("poller", "resume", _FEED, "--config", str(config))


async def _poller(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command), cwd=_ROOT, env=bare_environ(), stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0, command


async def _walked(notes: Path, path: str, walk: Callable[[], Awaitable[None]]) -> Files:
    """The files that run every time a path is taken."""
    before = len(_passages(notes, path))
    for count in range(before, before + _TIMES):
        await walk()
        await until(partial(_has_more, notes, path, count), f"the end of the path: {path}")
    return _common(_passages(notes, path)[before:])


def _has_more(notes: Path, path: str, count: int) -> bool:
    return len(_passages(notes, path)) > count


def _passages(notes: Path, path: str) -> list[Files]:
    text = notes.read_text() if notes.exists() else ""
    lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())  # the last one may be half written
    return [{file: set(ran) for file, ran in line["files"].items()} for line in lines if line["path"] == path]


def _common(passages: list[Files]) -> Files:
    """The files of all passages, and the functions that ran in any of them."""
    files = set.intersection(*map(set, passages))
    return {file: ran for file, ran in _joined(passages).items() if file in files}


def _joined(passages: list[Files]) -> Files:
    joined: Files = {}
    for passage in passages:
        for file, ran in passage.items():
            joined[file] = joined.get(file, set()) | ran
    return joined
