"""An unreadable snapshot affects only its own record: on the simulated store, Valkey and Redis."""

from __future__ import annotations

import json
from typing import cast

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from poller.changes.diff import Snapshot
from poller.changes.events import EventFrame, event_schemas
from poller.changes.plan import plan_removals
from poller.errors import StoreError
from poller.store.feed import MANY
from poller.store.snapshots import SAMPLES, SnapshotCodec, name_of
from tests.store.records import unavailability
from tests.store.test_feed import FRAME, KEYS, Open, begun, entries, events, opened, read, write

__all__ = ["opened"]

COUNT = SAMPLES + 10  # the last ones are written with a dictionary


def key_of(number: int) -> str:
    record = read(unavailability(number))
    return str(getattr(record, "key", ""))


def valid(event: object) -> bool:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # noqa: PLC0415 -- it brings no types

    kind = cast("dict[str, str]", event)["type"]
    schema = event_schemas([("org.example.api.employmentUnavailability", "id")])[kind]
    return bool(Draft202012Validator(schema).is_valid(json.loads(json.dumps(event))))


def cut(stored: bytes) -> bytes:
    return stored[:-9]


def nothing(stored: bytes) -> bytes:
    return stored[:0]


def no_head(stored: bytes) -> bytes:
    return b"\xff" * 9 + stored[9:]


def absurd_revision(stored: bytes) -> bytes:
    return stored[:1] + b"\xff\xff\x7f" + stored[2:-9]


def unknown_dictionary(stored: bytes) -> bytes:
    return stored[:7] + b"\x09" + stored[8:]


def no_json(_: bytes) -> bytes:
    return b"\x00\x01\x01{not json"


@pytest.mark.parametrize("damage", [cut, nothing, no_head, absurd_revision, unknown_dictionary, no_json])
async def test_its_record_is_published_as_modified_and_the_round_goes_on(
    store_client: Redis, opened: Open, damage: object
) -> None:
    """Law: the record is published once as ``modified`` with a new revision; the old bytes are quarantined."""
    store = opened("a")
    for first in (0, SAMPLES):
        await write(store, [unavailability(number) for number in range(first, min(first + SAMPLES, COUNT))])
    victim, other = COUNT - 1, COUNT - 2
    stored = cast("bytes", await store_client.hget(KEYS.snapshots, name_of(key_of(victim))))
    broken = damage(stored)  # type: ignore[operator]  # one of the above
    await store_client.hset(KEYS.snapshots, name_of(key_of(victim)), broken)
    with capture_logs() as logs:
        await write(store, [unavailability(victim), unavailability(other), unavailability(1, reason="sick")])
    *_, lost, changed = await events(store_client)
    assert [str(event["type"]).split(".")[-2] for event in (lost, changed)] == ["modified", "modified"]
    data = cast("dict[str, object]", lost["data"])
    assert (data["changed"], data["omitted"], "previous" in data) == ([""], ["previous"], False)
    assert data["revision"] == (2 if damage in {cut, unknown_dictionary, no_json} else COUNT + 1)
    assert data["record"] == json.loads(unavailability(victim))
    assert valid(lost)
    (entry,) = await entries(store_client, KEYS.quarantine)
    assert entry[b"raw"] == broken.removeprefix(b"\x00\x01\x01")  # without the head, if that is readable
    assert b"cannot be read" in entry[b"reason"]
    if damage is not no_json:
        (said,) = [one for one in logs if one["event"] == "snapshots unreadable"]
        assert (said["records"], said["count"]) == ([key_of(victim)], 1)
    before = len(await events(store_client))
    await write(store, [unavailability(victim), unavailability(other)])
    assert len(await events(store_client)) == before


async def test_a_tombstone_that_cannot_be_read_is_one_still(store_client: Redis, opened: Open) -> None:
    """Law: a record that returns after an unreadable tombstone is ``created``, and its revision goes on."""
    store = opened("a")
    state = await begun(store)
    await write(store, [unavailability(1)], state)
    gone = {key_of(1): ("subject", (await store.known([key_of(1)]))[key_of(1)])}
    removal, _ = plan_removals(
        gone, {key_of(1): FRAME}, generation=state.generation, sequence=1, recorded="2026-01-02T03:04:05.678Z"
    )
    await store.commit(removal)
    stored = cast("bytes", await store_client.hget(KEYS.snapshots, name_of(key_of(1))))
    await store_client.hset(KEYS.snapshots, name_of(key_of(1)), stored[:-9])
    await write(store, [unavailability(1)])
    last = (await events(store_client))[-1]
    assert str(last["type"]).endswith("created.v1")
    assert cast("dict[str, object]", last["data"])["revision"] == 3


async def test_most_of_many_stop_the_round(store_client: Redis, opened: Open) -> None:
    """Law: if most of many snapshots are unreadable, the round fails and nothing is published."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(2 * MANY)])
    for number in range(MANY + 1):
        await store_client.hset(KEYS.snapshots, name_of(key_of(number)), b"\xff")
    before = await events(store_client)
    with pytest.raises(StoreError, match=r"snapshots that cannot be read.*--anew"):
        await write(store, [unavailability(number, reason="x") for number in range(2 * MANY)])
    assert await events(store_client) == before


@pytest.mark.parametrize("broken", [b"\x00\x01\x01{not json", b"\x02\x01\x01cut"])
async def test_its_removal_is_published_without_what_it_was(store_client: Redis, opened: Open, broken: bytes) -> None:
    """Law: a record with an unreadable snapshot is removed only if it is gone; its event omits ``previous``."""
    store = opened("a")
    state = await begun(store)
    await write(store, [unavailability(1), unavailability(2)], state)
    await store_client.hset(KEYS.snapshots, name_of(key_of(1)), broken)
    absent = await store.absent({key_of(2)}, most=9)
    assert (absent.live, absent.missing) == (2, 1)
    snapshot = absent.some[key_of(1)]
    assert snapshot.unreadable
    frame: EventFrame = FRAME
    gone = {key_of(1): (key_of(1), snapshot)}
    commit, tally = plan_removals(
        gone, {key_of(1): frame}, generation=state.generation, sequence=2, recorded="2026-01-02T03:04:05.678Z"
    )
    await store.commit(commit)
    last = (await events(store_client))[-1]
    assert (tally.removed, last["data"]) == (1, {"omitted": ["previous"], "revision": 2, "cause": "delta"})
    assert valid(last)
    assert len(await entries(store_client, KEYS.quarantine)) == 1
    assert (await store.known([key_of(1)]))[key_of(1)] == Snapshot(2, 3, b"", removed=True, changed_at=1767323045)


async def test_another_process_dictionary_is_no_damage(store_client: Redis, opened: Open) -> None:
    """Law: a snapshot with a dictionary of another process is read once that dictionary is loaded."""
    one, two = opened("a"), opened("b")
    await write(one, [unavailability(number) for number in range(SAMPLES)])
    await one.release()
    await write(two, [unavailability(SAMPLES)])
    one._codec = SnapshotCodec()
    found = await one.known([key_of(SAMPLES)])
    assert [snapshot.unreadable for snapshot in found.values()] == [""]
