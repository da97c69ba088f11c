"""Laws of :mod:`poller.sandbox.seed` and of the records it is made of."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.model import History
from poller.sandbox.resources import RESOURCES
from poller.sandbox.seed import seed, shared, shares

if TYPE_CHECKING:
    from datetime import datetime

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def seeded(number: int, at: datetime, records: int = 600) -> History:
    history = History()
    seed(history, Random(number), records=records, at=at)
    return history


def records_of(history: History) -> list[tuple[str, dict[str, Any]]]:
    return [(version.resource, msgspec.json.decode(version.record or b"")) for version in history.since(0)]


def test_the_same_seed_gives_the_same_bytes(at: datetime) -> None:
    """Two histories of one seed are equal in every byte; of two seeds they are not."""
    assert list(seeded(1, at).since(0)) == list(seeded(1, at).since(0))
    assert list(seeded(1, at).since(0)) != list(seeded(2, at).since(0))


@given(st.integers(0, 1_000_000))
def test_shares_add_up(total: int) -> None:
    """Every record asked for is made; from 20 on every resource has some, and qualifications stay few."""
    count = shares(total)
    made = [count.contract_types, count.evidence_variants, count.achievements, count.unavailabilities]
    assert sum(made) == total
    assert min(made) >= (3 if total >= 20 else 0)
    assert count.qualifications <= min(200, count.evidence_variants)
    assert count.unavailabilities * 2 >= total


def test_few_records_can_be_seeded(at: datetime) -> None:
    """Any small number works, and none at all."""
    for total in range(40):
        assert seeded(1, at, records=total).version == total


def test_records_have_every_field_of_the_reference(at: datetime) -> None:
    """A seeded record has its resource's fields, all of them, and ids and instants in the reference's shapes."""
    for resource, record in records_of(seeded(1, at)):
        assert record.keys() == RESOURCES[resource].fields
        assert all(UUID.fullmatch(value) for name, value in record.items() if name == "id" or name.endswith("ID"))
        assert INSTANT.fullmatch(record["createdAt"])
        assert record["createdAt"] <= record["lastModifiedAt"] < at.isoformat()


def test_references_hold(at: datetime) -> None:
    """Achievements name variants of their own qualification; employments have several unavailabilities."""
    made = records_of(seeded(1, at))
    variants = {record["id"]: record["qualificationID"] for name, record in made if name == "evidenceVariants"}
    for name, record in made:
        if name == "achievements":
            assert variants[record["evidenceVariantID"]] == record["qualificationID"]
    employments = Counter(record["employmentID"] for name, record in made if name == "employmentUnavailabilities")
    assert employments.total() > 2 * len(employments)


def test_text_is_not_all_ascii(at: datetime) -> None:
    """Some of the text is outside ASCII, and is written as UTF-8."""
    assert any(not (version.record or b"").isascii() for version in seeded(1, at).since(0))


@pytest.mark.parametrize("total", [0, 1, 5, 6, 20, 500])
def test_what_is_said_of_the_records_is_all_of_them(total: int) -> None:
    """The numbers of all resources together are the number that was asked for."""
    assert sum(int(part.split()[0]) for part in shared(shares(total)).split(", ")) == total
