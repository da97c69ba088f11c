"""One line of what ``poller check`` finds."""

from __future__ import annotations

import msgspec

from poller.store.checks import Severity


class Checked(msgspec.Struct, frozen=True):
    """How it is, what was looked at, what was found."""

    severity: Severity
    subject: str
    text: str
