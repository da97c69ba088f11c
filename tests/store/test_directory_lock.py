"""The lock belongs to the process that was started with it."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from typing import TYPE_CHECKING

from poller.store.directory_lock import _taken, attempted

if TYPE_CHECKING:
    from pathlib import Path


def test_only_one_has_it(tmp_path: Path) -> None:
    """While one holds the lock another gets None, within one process too; afterwards it is free."""
    path = tmp_path / "lock"
    with attempted(path) as first, attempted(path) as second:
        assert first is not None
        assert second is None
    with attempted(path) as third:
        assert third is not None


def test_it_lives_as_long_as_the_process_that_got_it(tmp_path: Path) -> None:
    """Handed to a child and closed here, the lock is held until the child is gone, however it went."""
    path = tmp_path / "lock"
    with attempted(path) as lock:
        assert lock is not None
        waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=(lock,))
    try:
        with attempted(path) as other:
            assert other is None
    finally:
        child.kill()
        child.communicate()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # waits for the kernel, if it must
    with attempted(path) as free:
        assert free is not None


def test_a_removed_file_is_not_a_lock(tmp_path: Path) -> None:
    """A lock on a file that was removed or replaced after it was opened is none: others would lock the new file."""
    path = tmp_path / "lock"
    with path.open("w") as opened:
        path.unlink()
        assert not _taken(opened.fileno(), path)
        path.touch()
        assert not _taken(opened.fileno(), path)
    with attempted(path) as lock:
        assert lock is not None
