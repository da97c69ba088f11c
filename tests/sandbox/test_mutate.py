"""Laws of :mod:`poller.sandbox.mutate`."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from poller.sandbox.model import History, Version
from poller.sandbox.mutate import mutate
from poller.sandbox.records import instant
from poller.sandbox.resources import RESOURCES
from poller.sandbox.seed import seed

if TYPE_CHECKING:
    from datetime import datetime


def decoded(version: Version | None) -> dict[str, Any]:
    assert version is not None
    record: dict[str, Any] = msgspec.json.decode(version.record or b"")
    return record


def mutated(at: datetime, count: int) -> History:
    rng = Random(3)
    history = History()
    seed(history, rng, records=40, at=at)
    for number in range(count):
        mutate(history, rng, at + timedelta(seconds=number))
    return history


def test_a_call_is_one_version_of_now(at: datetime) -> None:
    """Each call adds one version; it is no removal, is stamped with the time, and differs from the one before."""
    history = mutated(at, 0)
    rng = Random(5)
    for number in range(500):
        now = at + timedelta(seconds=number)
        before = {(version.resource, version.id): version for version in history.since(0)}
        version = mutate(history, rng, now)
        record = decoded(version)
        assert history.version == 41 + number
        assert record["lastModifiedAt"] == instant(now)
        earlier = before.get((version.resource, version.id))
        if earlier is None:
            assert record.keys() == RESOURCES[version.resource].fields
        else:
            old = decoded(earlier)
            changed = {name for name in record if record[name] != old[name]} - {"lastModifiedAt"}
            assert 1 <= len(changed) <= 2


def test_all_resources_are_touched(at: datetime) -> None:
    """Over time every resource sees modifications and new records, modifications more often."""
    fresh, modified, known = Counter[str](), Counter[str](), set[tuple[str, str]]()
    for version in mutated(at, 1000).since(0):
        kind = modified if (version.resource, version.id) in known else fresh
        kind[version.resource] += version.number > 40
        known.add((version.resource, version.id))
    assert fresh.keys() == modified.keys() == RESOURCES.keys()
    assert modified.total() > 2 * fresh.total()


def test_the_same_seed_makes_the_same_changes(at: datetime) -> None:
    """Changes are reproducible, byte for byte."""
    assert list(mutated(at, 200).since(0)) == list(mutated(at, 200).since(0))


def test_an_empty_history_fills(history: History, rng: Random, at: datetime) -> None:
    """With no records to begin with, changes make some of every resource."""
    for _ in range(300):
        mutate(history, rng, at)
    assert all(history.count(resource) for resource in RESOURCES)


@pytest.mark.parametrize("resource", RESOURCES)
def test_odd_records_keep_their_oddities(history: History, rng: Random, at: datetime, resource: str) -> None:
    """A posted record that is not plausible is altered all the same, and its other members keep their bytes."""
    history.put(resource, b'{"id":"x","qualificationID":"q","employmentID":7,"n":1.0,"big":123456789012345678901}', at)
    for _ in range(200):
        mutate(history, rng, at)
    version = history.find(resource, "x")
    assert version is not None
    assert version.number > 1
    assert b'"employmentID":7,"n":1.0,"big":123456789012345678901' in (version.record or b"")
