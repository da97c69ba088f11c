"""Earlier versions of the program, taken from the history of the checkout."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
FORMER = "1abc275"
"""The last version that knows the first form of snapshots alone (:mod:`poller.store.snapshots`)."""
SEALED = "50f8589"
"""The last one that knows the first two."""


def exported(commit: str, directory: Path) -> Path:
    """A directory with the package as it was at this commit."""
    to = directory / "former"
    told = subprocess.run(("git", "archive", commit, "poller"), cwd=_ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(told.stdout)) as archive:
        archive.extractall(to, filter="data")
    return to


def missing(commit: str = FORMER) -> str | None:
    """Why this earlier version is not here; None if it is."""
    asked = ("git", "cat-file", "-e", f"{commit}^{{commit}}")
    found = subprocess.run(asked, cwd=_ROOT, check=False, capture_output=True)
    return f"the checkout has no history back to {commit}" if found.returncode else None
