"""The receiver in a process of its own, for benches and for tests that kill and stop processes.

    with receiver_process(tmp_path / "requests") as url:     # or: python -m tests.receiver_process --log FILE
        ...
    for request in logged(tmp_path / "requests"): ...

Each request is logged as a line of JSON before it is answered, so the log has every acknowledged request. ``at`` is
CLOCK_MONOTONIC, which all processes of the machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import uvloop

from tests.programs import program
from tests.receiver import Answer, Received, Reply, receiving


def receiver_process(
    log: Path | None = None, *, status: int = 204, every: int = 0, fails: int = 503
) -> AbstractContextManager[str]:
    """The URL of a running receiver, which is killed at the end of the block.

    Args:
        log: the file to which requests are appended; None: they are only answered.
        status: its answer.
        every: every n-th request is answered with ``fails`` instead; 0: none.
        fails: the status of a failing answer.
    """
    options = [f"--status={status}", f"--every={every}", f"--fails={fails}", *([f"--log={log}"] if log else [])]
    return program("tests.receiver_process", *options)


def logged(log: Path) -> list[Received]:
    """The requests so far, without an incomplete last line."""
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []
    return [msgspec.json.decode(line, type=Received) for line in lines]


async def serve(log: Path | None, answer: Answer, every: int, failing: Answer) -> None:
    """Receive until the process is killed."""
    async with receiving(recording=False) as receiver:
        receiver.answer = lambda _: failing if every and receiver.count % every == 0 else answer
        if log:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            encoder = msgspec.json.Encoder()
            receiver.on_request = lambda request: _append(file, encoder.encode(request))
        sys.stdout.write(receiver.url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _append(file: int, line: bytes) -> None:
    os.write(file, line + b"\n")


def main() -> None:
    """Receive with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--status", type=int, default=204)
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--fails", type=int, default=503)
    given = parser.parse_args()
    uvloop.run(serve(given.log, Reply(given.status), given.every, Reply(given.fails)))


if __name__ == "__main__":
    main()
