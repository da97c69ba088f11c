"""Node and its packages, for tests with receivers and validators outside Python.

They are searched in the directories of ``NODE_PATH``: ``npm install --prefix DIR PACKAGE…``, with the packages that
``.ci/run`` names, and ``NODE_PATH=DIR/node_modules``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


def needs_node(*packages: str) -> pytest.MarkDecorator:
    """Skip the test, or the module's tests, if ``node`` or one of these packages is missing."""
    missing = [package for package in packages if not _installed(package)]
    if shutil.which("node") is None:
        reason = "node is not on the PATH"
    else:
        reason = f"the npm package {missing[0]} is not in NODE_PATH" if missing else ""
    return pytest.mark.skipif(bool(reason), reason=reason)


def _installed(package: str) -> bool:
    places = os.environ.get("NODE_PATH", "").split(os.pathsep)
    return any((Path(place) / package).is_dir() for place in places if place)
