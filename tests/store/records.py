"""Sample records as the API lists them, for tests that need many similar ones."""

from __future__ import annotations

import json
import random
from uuid import UUID


def unavailability(number: int, *, reason: str = "holiday") -> bytes:
    """A made-up record; the same number gives the same bytes."""
    rng = random.Random(number)

    def an_id() -> str:
        return str(UUID(int=rng.getrandbits(128)))

    return json.dumps(
        {
            "id": an_id(),
            "employmentID": an_id(),
            "reason": reason,
            "interval": {"start": f"2026-{number % 12 + 1:02d}-03T08:00:00Z", "end": "2026-12-24T17:00:00Z"},
            "createdAt": "2026-01-02T10:11:12.131Z",
            "lastModifiedAt": f"2026-01-{number % 28 + 1:02d}T10:11:12.{number % 1000:03d}Z",
        },
        separators=(",", ":"),
    ).encode()
