"""What a feed's state hash holds, read into one value.

The fields are written by commits only (``Commit.marks``), together with the events they belong to. All of them are
text; a field that is missing or unreadable counts as absent, for the state may have been written by another version.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

# The marks: names of fields that a round sets.
DELTA_TOKEN: Final = "delta_token"  # noqa: S105 -- a field's name
QUERY: Final = "query"
READ_AT: Final = "read_at"
ROUND: Final = "round"
GOOD_AT: Final = "good_at"


class FeedState(msgspec.Struct, frozen=True):
    """What was true of a feed when its lease was taken.

    Attributes:
        generation: drawn once when the state was created; a part of every event's id.
        sequence: the number of the last event; 0 where there was none yet.
        delta_token: where the next delta starts; None before the first complete reading and where the API has none.
        query: hash of the query that the token belongs to.
        read_at: when the last complete full reading began; None before the first.
        good_at: when the last good round ended.
        round: the last round's result as JSON, as ``poller once --json`` prints it.
    """

    generation: str
    sequence: int
    delta_token: str | None = None
    query: str | None = None
    read_at: datetime | None = None
    good_at: datetime | None = None
    round: str | None = None


def state_of(fields: Mapping[bytes, bytes]) -> FeedState:
    """The state from the hash as Redis answers it."""
    text = {name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()}
    return FeedState(
        generation=text.get("generation", ""),
        sequence=int(text.get("sequence", "0")),
        delta_token=text.get(DELTA_TOKEN) or None,
        query=text.get(QUERY),
        read_at=_moment(text.get(READ_AT)),
        good_at=_moment(text.get(GOOD_AT)),
        round=text.get(ROUND),
    )


def _moment(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
