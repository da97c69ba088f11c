"""The program started without some of its standard streams."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_reason_to_fail(closed: str) -> None:
    """Law: whoever closes a stream does not want it; the exit code is that of the work."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m poller schema events {closed}', sys.executable],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
