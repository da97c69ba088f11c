"""A member of a consumer group in a process of its own, whose body waits for a line from its parent.

``python -m tests.client.member_process URL FEED NAME exclusive|shared MILLISECONDS`` writes the sequence of an event
when its body begins, and goes on with the next event after each line on standard input.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from poller.client import Consumer


async def main(url: str, feed: str, name: str, mode: str, milliseconds: str) -> None:
    """Handle events until the process is killed."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    span = timedelta(milliseconds=int(milliseconds))
    exclusive = mode == "exclusive"
    async with Consumer(url, feed, "g", name, exclusive=exclusive, lease=span, claim_after=span, batch=20) as consumer:
        async for event in consumer:
            sys.stdout.write(f"{int(event.get_extension('sequence'))}\n")
            sys.stdout.flush()
            await reader.readline()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
