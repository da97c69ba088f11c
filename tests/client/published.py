"""Events of a feed as the daemon publishes them, with chosen sequences and revisions."""

from __future__ import annotations

import json
from typing import Any, Final

FEED: Final = "acme/contractTypes"
STREAM: Final = f"poller:{{{FEED}}}:events"
STATE: Final = f"poller:{{{FEED}}}:group:state:g"
SOURCE: Final = "https://api.example.org/v1/contractTypes"
STEM: Final = "org.example.api.contractType"


def event_of(sequence: int, *, subject: str = "K", revision: int | None = None, event_id: str = "") -> bytes:
    """An event; its revision is its sequence, if not said otherwise."""
    number = sequence if revision is None else revision
    return json.dumps(
        {
            "specversion": "1.0",
            "id": event_id or f"{sequence:032x}",
            "source": SOURCE,
            "type": f"{STEM}.{'created' if number == 1 else 'modified'}.v1",
            "subject": subject,
            "partitionkey": subject,
            "time": "2026-03-02T08:15:00.000Z",
            "recordedtime": "2026-03-02T08:15:00.000Z",
            "sequence": f"{sequence:020d}",
            "datacontenttype": "application/json",
            "data": {"record": {"id": subject}, "revision": number, "cause": "delta"},
        },
        separators=(",", ":"),
    ).encode()


def publish(store: Any, *sequences: int, stream: str = STREAM, subjects: int = 1) -> list[str]:
    """Add these events, of this many records in turn, by a blocking client; the ids of their entries."""
    added = []
    for sequence in sequences:
        revision = (sequence - 1) // subjects + 1
        content = event_of(sequence, subject=f"K{sequence % subjects}", revision=revision)
        added.append(store.xadd(stream, {"data": content}).decode())
    return added


def number_of(event: Any) -> int:
    """An event's sequence."""
    return int(event.get_extension("sequence"))
