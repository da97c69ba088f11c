"""The simulated store in a process of its own, on a real socket and by the system's clock.

    python -m tests.simulation.store_process SOCKET       # writes its URL once it is ready

So the suite of ``tests/store`` runs on it as on a real server: ``pytest --store simulated tests/store``.
"""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import UTC, datetime

from tests.simulation.store import SimulatedStore


async def serve(path: str) -> None:
    """Serve until the process is ended."""
    store = SimulatedStore(lambda: datetime.now(UTC), random.SystemRandom())
    async with await asyncio.get_running_loop().create_unix_server(store.protocol, path) as server:
        sys.stdout.write(f"unix://{path}\n")
        sys.stdout.flush()
        await server.serve_forever()


def main() -> None:
    """Serve on the socket that the command line names."""
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
