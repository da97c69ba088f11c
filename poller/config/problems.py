"""One thing that is wrong with a configuration, and where.

Law: a problem says where, and what is expected there. It carries the value only to have it shown by ``showing``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Key = tuple[str | int, ...]
"""A key path: ``("sources", 0, "feeds", 1, "interval")``."""

ABSENT: Final = object()
"""No value to be shown: there is none, or it is nobody's business."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at ``key``; () stands for the whole.

    Attributes:
        expected: what the operator should do, without the value.
        value: as in the file or the environment; ``ABSENT`` where it is not to be shown.
    """

    key: Key
    expected: str
    value: Any = ABSENT
