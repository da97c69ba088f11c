"""A command belongs to the server that has the slot of its first key."""

from __future__ import annotations

from typing import Any

import pytest
from redis.crc import key_slot

from poller.store.slots import Address, slot_of, slots_of

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "k"), "k"),
        (("get", b"k"), "k"),
        (("HSET", "{a}b", "f", "v"), "a"),
        (("XINFO GROUPS", "k"), "k"),
        (("XGROUP CREATE", "k", "g", "$"), "k"),
        (("MEMORY USAGE", "k"), "k"),
        (("OBJECT", "ENCODING", "k"), "k"),
        (("EVAL", "return 1", 2, "{k}1", "{k}2", "v"), "k"),
        (("EVALSHA", "0" * 40, "1", "k"), "k"),
        (("XREAD", "COUNT", 1, b"STREAMS", "k", "0"), "k"),
        (("XREADGROUP", "GROUP", "streams", "c", "streams", "k", ">"), "k"),
        (("DEL", 7), "7"),
    ],
)
def test_what_has_a_key_goes_by_it(command: tuple[Any, ...], key: str) -> None:
    """However it is written, and wherever in the command it stands."""
    assert slot_of(command) == key_slot(key.encode())


@pytest.mark.parametrize(
    "command",
    [("PING",), ("INFO", "server"), ("CONFIG GET", "*"), ("EVAL", "return 1", 0), ("XREAD", "STREAMS"), ("SCAN", 0)]
)  # fmt: skip
def test_what_has_no_key_goes_anywhere(command: tuple[Any, ...]) -> None:
    """Also where it has other arguments."""
    assert slot_of(command) is None


def test_who_has_which_slots() -> None:
    """As told, in any order; a server that does not know its own host has that by which it was reached."""
    answer = [[10, 20, [b"127.0.0.1", 2, b"id"], [b"127.0.0.1", 3, b"id"]], [0, 9, [b"", 1, b"id", []]], [21, 21]]
    slots = slots_of(answer, A)
    assert [slots.primary_of(slot) for slot in (0, 9, 10, 20, 21, 16383)] == [A, A, B, B, None, None]
    assert slots.primaries == [A, B]
    assert slots.known == [A, B, C]


@pytest.mark.parametrize(
    "answer", [[[0]], [[0, 1, 2]], [[0, 1, [b"h"]]], [["x", 1, [b"h", 1]]], [[0, 1, [b"\xff", 1]]]]
)
def test_what_is_no_answer_is_refused(answer: list[Any]) -> None:
    """With one kind of error."""
    with pytest.raises(ValueError):  # noqa: PT011 -- whichever it is
        slots_of(answer, A)
