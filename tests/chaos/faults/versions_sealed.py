"""As ``versions``, from the last version whose snapshots have seals and no layouts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tests.chaos.checkouts import SEALED, missing
from tests.chaos.faults import versions

FAULT = replace(
    versions.FAULT,
    name="versions-sealed",
    row="the version before this one, both, this one; then the one before on a copy of Redis",
    setting=replace(versions.FAULT.setting, former=SEALED),
    missing=partial(missing, SEALED),
)
