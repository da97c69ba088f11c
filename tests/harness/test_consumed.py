"""The judge of a consumer group: what fell, and what a member that had been stopped handled late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tests.harness.consumed import GROUP, ConsumerGroup
from tests.harness.received import Handled

if TYPE_CHECKING:
    from pathlib import Path

_RECORD = msgspec.Raw(b'{"n":1}')


def test_a_revision_that_falls_is_found_unless_it_is_late(tmp_path: Path) -> None:
    """A lower revision counts, but for an event that a member had at hand while it was stopped."""
    ledger = tmp_path / "ledger"
    lines = [
        Handled(GROUP, "1", "a", 2, _RECORD),
        Handled(GROUP, "2", "a", 1, _RECORD, late=True),
        Handled(GROUP, "3", "b", 2, _RECORD, late=True),
        Handled(GROUP, "4", "b", 1, _RECORD),
    ]
    ledger.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + b'{"sink":"cl')
    group = ConsumerGroup(ledger)
    assert [line.id for line in group.fallen()] == ["4"]
    assert {one: revision for one, (revision, _) in group.state().items()} == {"a": 2, "b": 2}
