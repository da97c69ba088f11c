"""Laws of :mod:`poller.service.web.server_sent`: what a browser makes of the bytes."""

from __future__ import annotations

import json

import pytest

from poller.service.web.server_sent import beat, event, gap, greeting
from tests.service.web.sse import messages_of


@pytest.mark.parametrize("content", [b'{"a":1}', b'{\n"a":\r\n1}', b'{"a":\r1}\n', b""])
def test_line_breaks_do_not_end_an_event(content: bytes) -> None:
    """However the API breaks its lines, the JSON arrives whole and means the same."""
    (message,) = messages_of(event("P", content))
    assert message.id == "P"
    assert message.data.split() == content.decode().split()
    assert message.kind == "message"


def test_what_is_no_event_raises_none() -> None:
    """A beat and the greeting move the id and raise nothing; a gap is of a kind of its own and moves none."""
    content = greeting("A", again_milliseconds=5) + beat("B") + gap("acme/x", after=3, before=7) + event("C", b"{}")
    told, last = messages_of(content)
    assert (told.kind, told.id, last.id) == ("gap", "B", "C")
    assert json.loads(told.data) == {"feed": "acme/x", "after": 3, "before": 7, "missing": 3}
