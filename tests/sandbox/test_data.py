"""Laws of :mod:`poller.sandbox.data`."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.data import completed, instant, mutate, seed, shared, shares
from poller.sandbox.history import RESOURCES, History, UnusableRecord, Version
from tests.sandbox.conftest import NOON

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
    """Each call adds a version with the current time: a new record, or a change of one or two fields."""
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
    """Over time every resource is modified and extended, modified more often."""
    fresh, modified, known = Counter[str](), Counter[str](), set[tuple[str, str]]()
    for version in mutated(at, 1000).since(0):
        kind = modified if (version.resource, version.id) in known else fresh
        kind[version.resource] += version.number > 40
        known.add((version.resource, version.id))
    assert fresh.keys() == modified.keys() == RESOURCES.keys()
    assert modified.total() > 2 * fresh.total()


def test_the_same_seed_makes_the_same_changes(at: datetime) -> None:
    """The same seed makes the same changes, byte for byte."""
    assert list(mutated(at, 200).since(0)) == list(mutated(at, 200).since(0))


def test_an_empty_history_fills(history: History, rng: Random, at: datetime) -> None:
    """Starting without records, changes create some of every resource."""
    for _ in range(300):
        mutate(history, rng, at)
    assert all(history.count(resource) for resource in RESOURCES)


@pytest.mark.parametrize("resource", RESOURCES)
def test_odd_records_keep_their_oddities(history: History, rng: Random, at: datetime, resource: str) -> None:
    """An implausible posted record is changed like any other, and its other members keep their bytes."""
    history.put(resource, b'{"id":"x","qualificationID":"q","employmentID":7,"n":1.0,"big":123456789012345678901}', at)
    for _ in range(200):
        mutate(history, rng, at)
    version = history.find(resource, "x")
    assert version is not None
    assert version.number > 1
    assert b'"employmentID":7,"n":1.0,"big":123456789012345678901' in (version.record or b"")


# Laws of :mod:`poller.sandbox.data`.

STAMPS = b'"createdAt":"2025-03-01T12:00:00.000Z","lastModifiedAt":"2025-03-01T12:00:00.000Z"'


def complete(body: bytes, rng: Random, present: bytes | None = None) -> bytes:
    return completed(body, present=lambda _: present, rng=rng, at=NOON)


def test_a_complete_record_is_not_touched(rng: Random) -> None:
    """A complete record is unchanged, including blanks, order and spellings of numbers."""
    body = b' {"lastModifiedAt":1.0, "id":"x" ,"createdAt":12345678901234567890123,"a":[ ]}\n'
    assert complete(body, rng) == body


def test_what_is_missing_stands_in_front(rng: Random) -> None:
    """Missing members are added in front; the posted members follow with their own bytes."""
    assert complete(b'{"id":"x","n":1.0}', rng) == b"{" + STAMPS + b',"id":"x","n":1.0}'


def test_an_empty_object_becomes_a_record(rng: Random) -> None:
    """An object without members gets an id and its stamps."""
    record = msgspec.json.decode(complete(b" { } ", rng))
    assert record.keys() == {"id", "createdAt", "lastModifiedAt"}


def test_a_replaced_record_keeps_its_creation(rng: Random) -> None:
    """A replacement without a creation time takes the previous record's, literally."""
    record = complete(b'{"id":"x"}', rng, present=b'{"createdAt": "long ago","id":"x"}')
    assert b'"createdAt":"long ago"' in record
    assert complete(b'{"id":"x"}', rng, present=b'{"id":"x"}') == b"{" + STAMPS + b',"id":"x"}'


@given(
    record=st.dictionaries(st.text(st.characters(codec="utf-8")), st.none() | st.integers() | st.text()),
    rng=st.randoms(use_true_random=False),
)
def test_members_posted_are_members_served(record: dict[str, object], rng: Random) -> None:
    """Completing a record adds members and changes none."""
    record.pop("id", None)
    made = msgspec.json.decode(complete(msgspec.json.encode(record), rng))
    assert {name: made[name] for name in record} == record
    assert made.keys() == record.keys() | {"id", "createdAt", "lastModifiedAt"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"x"',
        b'{"id":"x"',
        b'{"a":NaN}',
        b'{"id":null}',
        b'{"id":7}',
        b'{"a":"\xff"}',
        b'\xef\xbb\xbf{"id":"x"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_record_is_refused(body: bytes, rng: Random) -> None:
    """Only a JSON object in UTF-8 whose id is a string is accepted as a record."""
    with pytest.raises(UnusableRecord):
        complete(body, rng)


# Laws of :mod:`poller.sandbox.data` and of the records it is made of.

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def seeded(number: int, at: datetime, records: int = 600) -> History:
    history = History()
    seed(history, Random(number), records=records, at=at)
    return history


def records_of(history: History) -> list[tuple[str, dict[str, Any]]]:
    return [(version.resource, msgspec.json.decode(version.record or b"")) for version in history.since(0)]


def test_the_same_seed_gives_the_same_bytes(at: datetime) -> None:
    """One seed gives the same history byte for byte, and another seed a different one."""
    assert list(seeded(1, at).since(0)) == list(seeded(1, at).since(0))
    assert list(seeded(1, at).since(0)) != list(seeded(2, at).since(0))


@given(st.integers(0, 1_000_000))
def test_shares_add_up(total: int) -> None:
    """The shares add up to the requested total; from 20 on every resource has some, and qualifications stay few."""
    count = shares(total)
    made = count.records.values()
    assert count.records.keys() == RESOURCES.keys()
    assert sum(made) == total
    assert min(made) >= (2 if total >= 20 else 0)
    assert count.qualifications <= min(200, count.records["evidenceVariants"])
    assert count.records["employmentUnavailabilities"] * 2 >= total


def test_few_records_can_be_seeded(at: datetime) -> None:
    """Any small number of records can be seeded, including none."""
    for total in range(40):
        assert seeded(1, at, records=total).version == total


def test_records_have_every_field_of_the_reference(at: datetime) -> None:
    """A seeded record has all fields of its resource, with ids and instants in the reference's formats."""
    for resource, record in records_of(seeded(1, at)):
        assert record.keys() == RESOURCES[resource].fields
        assert all(UUID.fullmatch(value) for name, value in record.items() if name == "id" or name.endswith("ID"))
        assert INSTANT.fullmatch(record["createdAt"])
        assert record["createdAt"] <= record["lastModifiedAt"] < at.isoformat()


def test_references_hold(at: datetime) -> None:
    """Achievements refer to variants of their own qualification; employments have several unavailabilities."""
    made = records_of(seeded(1, at))
    variants = {record["id"]: record["qualificationID"] for name, record in made if name == "evidenceVariants"}
    for name, record in made:
        if name == "achievements":
            assert variants[record["evidenceVariantID"]] == record["qualificationID"]
    employments = Counter(record["employmentID"] for name, record in made if name == "employmentUnavailabilities")
    assert employments.total() > 2 * len(employments)


def test_text_is_not_all_ascii(at: datetime) -> None:
    """Some seeded text is outside ASCII and written as UTF-8."""
    assert any(not (version.record or b"").isascii() for version in seeded(1, at).since(0))


@pytest.mark.parametrize("total", [0, 1, 5, 6, 20, 500])
def test_what_is_said_of_the_records_is_all_of_them(total: int) -> None:
    """The numbers of the resources in the summary add up to the requested number."""
    assert sum(int(part.split()[0]) for part in shared(shares(total)).split(", ")) == total
