"""The lock on a data directory: held by the server itself, for exactly as long as the server lives.

Law: two servers never write to one directory. A server started without this accepts writes beside the first one.

The lock is an ``flock`` on a file in the directory. It belongs to the open file, not to a process: the descriptor is
handed to the server when it is started and our copy is closed. So the kernel frees it when the last process that
belongs to that server is gone, and nobody has to tidy up, however our own process died.

Refuses to know: what a server is. The file is never removed, for a removed file can be locked twice.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def attempted(path: Path) -> Iterator[int | None]:
    """A try for the lock at ``path``, without waiting: a descriptor that holds it, or None where another holds it.

    At the end our copy is closed. A process started with the descriptor in ``pass_fds`` goes on holding the lock.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor if _taken(descriptor, path) else None
    finally:
        os.close(descriptor)  # never LOCK_UN: that would free it for the server too


def _taken(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False  # removed between opening and locking: another would lock a new file
