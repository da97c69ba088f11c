"""Laws of :mod:`poller.cli.event_lines`: what a line shows of an event, and which events are chosen."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from poller.cli.event_lines import (
    EventChoice,
    EventData,
    Unreadable,
    compact,
    event_line,
    read_event,
    readable,
    what_changed,
)


def modified(old: bytes, new: bytes, *changed: str) -> EventData:
    return EventData(2, "delta", msgspec.Raw(new), msgspec.Raw(old), changed)


def event(**other: object) -> bytes:
    stamps = dict.fromkeys(("time", "recordedtime"), "2026-03-02T08:15:00.000Z")
    data = {"revision": 1, "cause": "delta", "record": {"id": "1"}}
    return msgspec.json.encode(
        {"id": "0" * 32, "type": "org.example.x.created.v1", "subject": "1", **stamps, "data": data, **other}
    )


@pytest.mark.parametrize("number", ["123456789012345678901234567890", "1.0", "1e400", "0.10000000000000000000001"])
def test_numbers_stay(number: str) -> None:
    """Compact JSON has no white space, and every number keeps the digits that were received."""
    assert compact(f'{{ "a" :\n {number} , "b": "x  y"}}'.encode()) == f'{{"a":{number},"b":"x  y"}}'
    assert what_changed(modified(b'{"a":1}', f'{{"a":{number}}}'.encode(), "/a")) == f"a: 1 → {number}"


def test_pointers() -> None:
    """Pointers are followed through objects, escapes undone; a side that lacks the key is absent."""
    old, new = b'{"a/b":{"~":"x"},"lastModifiedAt":"1"}', b'{"a/b":{"~":null,"c":[1, 2]},"lastModifiedAt":"2"}'
    content = modified(old, new, "/a~1b/c", "/a~1b/~0", "/lastModifiedAt")
    assert what_changed(content) == 'a~1b/c: absent → [1,2], a~1b/~0: "x" → null'


def test_terminal_is_safe() -> None:
    """Nothing in a record can control the terminal."""
    assert "\u202e" not in what_changed(modified('{"a":"\u202eX"}'.encode(), '{"a":"\x9b2J"}'.encode(), "/a"))
    assert "\x9b" not in what_changed(modified(b"{}", '{"a":"\x9b2J"}'.encode(), "/a"))


def test_a_created_record_shows_members_that_matter() -> None:
    """A new record is shown by members that mean something, not by ids and timestamps."""
    record = msgspec.Raw(b'{"id":"1","qualificationID":"2","name":"First aid","lastModifiedAt":"x"}')
    assert what_changed(EventData(1, "delta", record)) == 'name: "First aid"'


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (b"", "no field data"),
        (b"{", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"id":"\xff"}', "not JSON"),
        (b'{"x":' + b"[" * 5000, "not JSON"),
        (b"[]", "not an event"),
        (b'{"id":"1"}', "not an event"),
        (event(type="x"), "not an event"),
        (event(data={"revision": 1, "cause": "delta", "record": 5}), "not an event"),
    ],
)
def test_an_entry_that_is_no_event_is_unreadable(event: bytes, reason: str) -> None:
    """An entry that another program wrote is reported as unreadable, with its id and the reason."""
    told = f"^entry 1-0 of a/b is unreadable: {reason}"
    with pytest.raises(Unreadable, match=told), readable(event, feed="a/b", entry_id="1-0"):
        event_line(read_event(event), "a/b")


def test_another_day_is_shown() -> None:
    """An event of today shows its time alone, an older one its date as well."""
    one = read_event(event())
    assert event_line(one, "a/b", today="2026-03-02")[0][0] == "08:15:00.000"
    assert event_line(one, "a/b", today="2026-03-03")[0][0] == "2026-03-02 08:15:00.000"


def test_an_event_is_readable() -> None:
    """An event of this program is readable."""
    with readable(event(), feed="a/b", entry_id="1-0"):
        assert "created" in "".join(text for text, _ in event_line(read_event(event()), "a/b"))


EVENT = json.dumps(
    {
        "type": "org.example.api.contractType.modified.v1",
        "subject": "7d9f[3]-6a0e",
        "data": {"changed": ["/address/city", "/reason"], "revision": 2},
    }
).encode()


@pytest.mark.parametrize(
    ("choice", "taken"),
    [
        ({}, True),
        ({"types": ("org.example.api.contractType.modified.v1",)}, True),
        ({"types": ("*.modified.v1",)}, True),
        ({"types": ("*.contractType.*",)}, True),
        ({"types": ("modified",)}, True),
        ({"types": ("removed", "modified")}, True),
        ({"types": ("removed",)}, False),
        ({"types": ("contractType",)}, False),
        ({"types": ("ORG.*",)}, False),
        ({"subjects": ("7d9f*",)}, True),
        ({"subjects": ("other",)}, False),
        ({"subjects": ("7d9f[3]-",)}, True),
        ({"subjects": ("7d9f[3]",)}, False),
        ({"subjects": ("7d9f[3]-6b",)}, False),
        ({"changed": ("/reason",)}, True),
        ({"changed": ("reason",)}, True),
        ({"changed": ("/address",)}, True),
        ({"changed": ("/addr",)}, False),
        ({"changed": ("/address/city/name",)}, False),
        ({"types": ("modified",), "changed": ("/other",)}, False),
        ({"types": ("modified",), "subjects": ("7*",), "changed": ("/other", "/reason")}, True),
    ],
)
def test_each_kind_that_is_given_must_match(choice: dict[str, Any], *, taken: bool) -> None:
    """Values of one kind are alternatives; each kind that is given must match."""
    assert EventChoice(**choice).matches(EVENT) is taken


def test_an_operational_event_has_a_type_and_a_subject() -> None:
    """An operational event is chosen by type and subject; it has no changes, so no pointer matches."""
    event = b'{"type":"poller.feed.held.v1","subject":"acme/x","data":{"reason":"r"}}'
    assert EventChoice(types=("poller.feed.*",), subjects=("acme/*",)).matches(event)
    assert not EventChoice(changed=("/reason",)).matches(event)


@pytest.mark.parametrize("event", [b"", b"no", b"[]", b"\xff", b"[" * 100_000])
def test_an_entry_that_is_no_event_matches(event: bytes) -> None:
    """An entry that is no event matches every choice, so that it is reported."""
    assert EventChoice(types=("removed",)).matches(event)
