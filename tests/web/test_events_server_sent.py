"""Laws of :mod:`poller.web.events`: what a browser makes of the bytes."""

from __future__ import annotations

import json

import pytest
from httpx_sse._decoders import SSEDecoder

from poller.web.events import AWAY, BEAT_COMMENT, event, gap, greeting, moved
from tests.web.sse import messages_of


@pytest.mark.parametrize("content", [b'{"a":1}', b'{\n"a":\r\n1}', b'{"a":\r1}\n', b""])
def test_line_breaks_do_not_end_an_event(content: bytes) -> None:
    """However the API breaks its lines, the JSON arrives whole and means the same."""
    (message,) = messages_of(event("P", content))
    assert message.id == "P"
    assert message.data.split() == content.decode().split()
    assert message.kind == "message"


ALL = (
    greeting("A", again_milliseconds=5),
    BEAT_COMMENT,
    moved("B"),
    AWAY,
    BEAT_COMMENT,
    gap("acme/x", after=3, before=7),
    AWAY,
    event("C", b"{}"),
)


def test_what_is_no_event_is_named() -> None:
    """Law: a place and a gap are of kinds of their own, a gap moves no id; comments and the greeting raise nothing."""
    place, told, last = messages_of(b"".join(ALL))
    assert (place.kind, place.id, told.kind, told.id, last.kind, last.id) == ("place", "B", "gap", "B", "message", "C")
    assert json.loads(place.data) == {"place": "B"}
    assert json.loads(told.data) == {"feed": "acme/x", "after": 3, "before": 7, "missing": 3}


def test_each_empty_line_ends_a_message_with_data() -> None:
    """Law: a client that hands out something for each empty line, as httpx-sse does, gets no message without data."""
    decoder = SSEDecoder()
    found = [one for line in b"".join(ALL).decode().splitlines() if (one := decoder.decode(line)) is not None]
    assert [(one.event, one.id, one.retry, type(one.json())) for one in found] == [
        ("place", "B", 5, dict),
        ("gap", "B", None, dict),
        ("message", "C", None, dict),
    ]
