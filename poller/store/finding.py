"""What looking at a store can find: one thing looked at, and how it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    Attributes:
        severity: ``ok``; ``warning``: works, a promise is weaker or unknown; ``error``: does not work, or will lose.
        name: ``version``, ``role``, ``replicas``, ``clock``, ``eviction``, ``memory``, ``nodes``, ``aof``, ``fsync``
            or ``disk``.
        text: what is so and, unless it is ok, how to mend it. One line.
    """

    severity: Severity
    name: str
    text: str
