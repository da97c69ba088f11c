"""Unusable records: each is quarantined alone, and the rest of its page is published.

The profiles of the sandbox are the cases. A record that only looks odd is published as received.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from poller.sandbox.api import SandboxRequest, SandboxResponse
from poller.sandbox.faults.base import ProfileKind, SandboxScene, Switches
from poller.sandbox.faults.registry import PROFILES
from poller.sandbox.history import History
from tests.harness.reading import reading

FEED: Final = ("employmentUnavailabilities",)
BAD: Final = [name for name, profile in PROFILES.items() if profile.kind is ProfileKind.RECORD]
COSTLY: Final = {"deep"}
"""Looked at only in a thorough run: 100 000 levels take seconds of CPU."""

LONGEST_KEPT: Final = 64 * 1024

ODD: Final = {
    "id-number": [("number 1", b'{"id":1}'), ("1", b'{"id":"1"}')],
    "id-nfc-nfd": [("\u00e9", '{"id":"\u00e9"}'.encode()), ("e\u0301", '{"id":"e\u0301"}'.encode())],
}
"""Odd but usable records: what is published of them, by id."""


def sent(name: str) -> bytes:
    """The records that a profile adds to an empty page, as bytes with commas between them."""
    empty = SandboxResponse(200, b'{"results":[]}')
    layer = PROFILES[name].make(SandboxScene(Switches(""), lambda: datetime.now(UTC)))
    said = layer(lambda _history, _ask: empty)(History(), SandboxRequest(FEED[0]))
    return said.body.removeprefix(b'{"results":[').removesuffix(b"]}")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in COSTLY else ()) for name in BAD]
)
async def test_a_bad_record_costs_itself_alone(name: str, tmp_path: Path, store: str) -> None:
    """A bad record is quarantined once, up to 64 KiB and with a reason, and all other records are published."""
    async with reading(tmp_path, store, name, resources=FEED) as read:
        await read.good_rounds()
        kept = await read.quarantine()
        if name not in ODD:
            rejoined = b",".join(raw for raw, _ in kept)
            assert rejoined == sent(name)[:LONGEST_KEPT] if len(kept) == 1 else rejoined == sent(name)
        assert bool(kept) is (name not in ODD)
        assert all(reason.isprintable() and 0 < len(reason) < 500 for _, reason in kept)
        for _ in range(2):
            verdict = await read.verdict(made_up=ODD.get(name, ()))
            assert verdict.clean, verdict
            read.source.change(30)
            await read.good_rounds()
        assert await read.quarantine() == kept
