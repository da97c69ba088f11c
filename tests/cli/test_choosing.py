"""Laws of :mod:`poller.cli.choosing`: of each kind of choice one must hold, and what cannot be judged is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poller.cli.choosing import Choice

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
def test_each_kind_that_is_given_must_hold(choice: dict[str, Any], *, taken: bool) -> None:
    """One of several of a kind suffices."""
    assert Choice(**choice).takes(EVENT) is taken


def test_an_announcement_has_a_type_and_a_subject_as_well() -> None:
    """Its data has no changes, so it is not among those that have some."""
    event = b'{"type":"poller.feed.held.v1","subject":"acme/x","data":{"reason":"r"}}'
    assert Choice(types=("poller.feed.*",), subjects=("acme/*",)).takes(event)
    assert not Choice(changed=("/reason",)).takes(event)


@pytest.mark.parametrize("event", [b"", b"no", b"[]", b"\xff", b"[" * 100_000])
def test_what_is_no_event_is_taken(event: bytes) -> None:
    """Whoever shows it says what is wrong with it."""
    assert Choice(types=("removed",)).takes(event)
