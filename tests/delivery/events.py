"""Events for delivery tests: entries as the stream holds them, and arbitrary CloudEvents."""

from __future__ import annotations

import json
from typing import Any, Final

from hypothesis import strategies as st

from poller.changes.canonical import canonical
from poller.changes.diff import Change, ChangeKind
from poller.changes.events import Cause, EventFrame
from poller.delivery.cloudevent import Envelope, envelope_of

SOURCE: Final = "https://api.example.org/v1/contractTypes"
TYPE: Final = "org.example.api.contractType.created.v1"
RECORDED: Final = "2025-03-01T12:00:00.125Z"

_FRAME: Final = EventFrame(
    feed="acme/contractTypes",
    generation="g1",
    source=SOURCE,
    type_stem="org.example.api.contractType",
    cause=Cause.DELTA,
)


def entry(raw: bytes = b'{"id":"K","big":123456789012345678901234567890}', *, key: str = "K", number: int = 1) -> bytes:
    """An event as this program writes it."""
    change = Change(ChangeKind.CREATED, key.lower(), key, None, raw, canonical(raw), None, (), 1)
    return _FRAME.encode(change, event_id=_FRAME.event_id(change), sequence=number, recorded=RECORDED)


def spelled(**members: Any) -> bytes:
    """An event of another producer: the required attributes and those given."""
    return json.dumps({"specversion": "1.0", "id": "a1", "source": "/s", "type": "t"} | members).encode()


def pair(written: bytes) -> tuple[Envelope, bytes]:
    """The envelope and the bytes of an entry, as requests take them."""
    return envelope_of(written), written


# Small alphabets, so that random texts are sometimes equal or share a prefix or suffix.
WORDS: Final = st.text(alphabet="abA.é %\"'", min_size=1, max_size=6)
NAMES: Final = st.sampled_from(["subject", "dataschema", "partitionkey", "sequence", "shard", "x1", "id", "type"])
VALUES: Final = WORDS | st.integers(-(2**31), 2**31 - 1) | st.booleans()
_OWN: Final = st.dictionaries(st.sampled_from(["shard", "x1"]), VALUES)
_KNOWN: Final = st.dictionaries(
    st.sampled_from(["subject", "dataschema", "partitionkey", "sequence", "id", "type"]), WORDS
)
MEMBERS: Final[st.SearchStrategy[dict[str, Any]]] = st.builds(lambda own, known: own | known, _OWN, _KNOWN)


def string_form(value: object) -> str:
    """An attribute's value as CloudEvents writes it in text; a second implementation, for comparison."""
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
