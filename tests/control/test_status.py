"""Laws of :mod:`poller.control.status`: the status of a feed shows what its state holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from redis.asyncio import Redis

from poller.changes.full_readings import Confirmation, confirmation_mark
from poller.control.problems import confirmation_text, progress_text
from poller.control.status import FeedStatus, feed_status
from poller.redis.client import commands
from poller.source.feed import Progress
from poller.source.paging import DetectedCapabilities
from poller.store.commands import FeedPause, pause
from poller.store.feed_state import (
    CONFIRMATION,
    HELD,
    HELD_AT,
    LEARNT,
    LOST,
    LOST_AT,
    NEXT_AT,
    OLDEST,
    PROGRESS,
    REFUSALS,
    ROUND,
    TOMBSTONES,
)
from poller.store.keys import FeedKeys
from poller.store.stats import feed_stats

KEYS = FeedKeys.of("poller", "acme/achievements")
NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as one:
        yield one


async def status_of(client: Redis) -> FeedStatus:
    found = await feed_stats(client, "poller", ["acme/achievements"])
    return feed_status(found["acme/achievements"], now=NOW)


async def test_a_feed_that_was_never_read_has_nothing_to_say(client: Redis) -> None:
    """Without a state the status is "never read", and no error."""
    status = await status_of(client)
    assert (status.state, status.paging, status.refused, status.listings, status.oldest_seconds) == (
        "never read",
        None,
        (),
        0,
        None,
    )


async def test_who_polls_is_named_and_nothing_that_proves_it(client: Redis) -> None:
    """The owner is shown by its name, never by its token; a lease of another form is held by an unknown owner."""
    for value, owner in (("web1-7-ab12/5ec2e7", "web1-7-ab12"), ("5ec2e7", None)):
        await client.set(KEYS.lease, value, px=600_000)
        status = await status_of(client)
        assert (status.lease, status.owner) == ("held", owner)
        assert b"5ec2e7" not in msgspec.json.encode(status)
    await client.delete(KEYS.lease)
    status = await status_of(client)
    assert (status.lease, status.owner) == ("free", None)


async def test_what_the_api_refused_and_how_it_lists_is_shown(client: Redis) -> None:
    """Refused parameters, the accepted limit, the paging and the age of the oldest substream are shown."""
    learnt = DetectedCapabilities("q", limit=250, no_fields=True, paging="an empty page", delta_token="the first page")  # noqa: S106 -- a place
    fields = {
        "generation": "g",
        "sequence": "0",
        LEARNT: msgspec.json.encode(learnt).decode(),
        OLDEST: (NOW - timedelta(minutes=2)).isoformat(),
        REFUSALS: "3",
    }
    for name, value in fields.items():
        await client.hset(KEYS.state, name, value)
    await client.hset(KEYS.listings, mapping={"q1": b"", "q2": b""})
    status = await status_of(client)
    assert status.refused == ("limit (taken: 250)", "fields", "sinceDeltaToken")
    assert (status.paging, status.delta_token_on) == ("an empty page", "the first page")
    assert (status.listings, status.oldest_seconds) == (2, 120.0)


async def test_what_was_lost_is_shown_with_its_age(client: Redis) -> None:
    """A loss is shown in words with its age; without a loss nothing is."""
    await client.hset(KEYS.state, mapping={"generation": "g", "sequence": "0"})
    status = await status_of(client)
    assert (status.lost, status.lost_at, status.lost_age_seconds) == (None, None, None)
    at = NOW - timedelta(minutes=1)
    await client.hset(KEYS.state, mapping={LOST: "its state", LOST_AT: at.isoformat()})
    status = await status_of(client)
    assert (status.lost, status.lost_age_seconds) == ("its state", 60.0)
    assert status.lost_at == at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_the_next_round_is_known_while_somebody_polls(client: Redis) -> None:
    """The next round is shown as its owner stored it; without an owner it is unknown."""
    at = NOW + timedelta(seconds=12)
    await client.hset(KEYS.state, mapping={"generation": "g", "sequence": "0", NEXT_AT: at.isoformat()})
    assert (await status_of(client)).next_at is None
    await client.set(KEYS.lease, "web1-7-ab12/5ec2e7", px=600_000)
    status = await status_of(client)
    assert (status.next_seconds, status.next_at) == (12.0, "2026-03-02T08:15:12.000Z")


async def test_what_is_held_outlives_a_good_round(client: Redis) -> None:
    """Held removals are shown with reason and age after a good round, until the mark is gone."""
    good = '{"mode":"delta","ok":true}'
    since = NOW - timedelta(hours=2)
    await client.hset(KEYS.state, mapping={ROUND: good, HELD: "12 of 60 are missing", HELD_AT: since.isoformat()})
    status = await status_of(client)
    assert (status.state, status.error) == ("held", None)
    assert (status.held_reason, status.held_age_seconds) == ("12 of 60 are missing", 7200.0)
    assert status.held_at == "2026-03-02T06:15:00.000Z"
    await client.hdel(KEYS.state, HELD)
    over = await status_of(client)
    assert (over.state, over.held_reason, over.held_at, over.held_age_seconds) == ("ok", None, None, None)


async def test_a_pause_is_told_before_all_else(client: Redis) -> None:
    """A pause is shown with who, why and since when, without a next round; held removals are shown, too."""
    held = {"generation": "g", "sequence": "0", "held": "x", NEXT_AT: NOW.isoformat()}
    for name, value in held.items():
        await client.hset(KEYS.state, name, value)
    await client.set(KEYS.lease, "web1-7-ab12/5ec2e7", px=600_000)
    await pause(client, KEYS, FeedPause("anna", "moving", NOW - timedelta(hours=1)))
    status = await status_of(client)
    assert (status.state, status.next_at, status.next_seconds) == ("paused", None, None)
    assert (status.paused_by, status.paused_reason, status.paused_age_seconds) == ("anna", "moving", 3600.0)
    assert status.paused_at == "2026-03-02T07:15:00.000Z"
    assert status.held_reason == "x"


async def test_a_feed_that_is_being_confirmed_says_so(client: Redis) -> None:
    """A confirmation is shown with its late records; once given up, the text says that more may be missing."""
    for kept, expected in (
        (None, (False, 0, 0)),
        (Confirmation(), (True, 0, 0)),
        (Confirmation(2, 7), (True, 2, 7)),
        (Confirmation(5, 17), (False, 5, 17)),
        (Confirmation(5, 0), (False, 5, 0)),
    ):
        await client.hset(KEYS.state, mapping={"generation": "g", CONFIRMATION: confirmation_mark(kept) or ""})
        status = await status_of(client)
        assert (status.confirming, status.confirmations, status.late) == expected
        words = confirmation_text(status) or ""
        assert words.startswith("being confirmed") is status.confirming
        assert ("7 records late" in words) is (status.late > 0)
        assert words.startswith("not confirmed") is (status.confirmations == 5)
        assert ("could not tell" in words) is ((status.confirmations, status.late) == (5, 0))


async def test_how_far_a_round_has_come_is_shown_while_somebody_polls(client: Redis) -> None:
    """The progress of a round is shown while its lease lasts, and not after its process died."""
    progress = Progress("baseline", 40, 4000, 75.0)
    await client.hset(KEYS.state, mapping={"generation": "g", PROGRESS: msgspec.json.encode(progress)})
    assert (await status_of(client)).progress is None
    await client.set(KEYS.lease, "web1/5ec2e7", px=600_000)
    status = await status_of(client)
    assert status.progress == progress
    assert progress_text(status) == "a round has run for 1 min (baseline): 40 pages, 4000 records so far"


async def test_removed_records_are_not_counted(client: Redis) -> None:
    """Removed records are not counted, unless the state has no count of them yet."""
    await client.hset(KEYS.snapshots, mapping={"a": b"x", "b": b"x", "c": b"x"})
    assert (await status_of(client)).records == 3
    await client.hset(KEYS.state, TOMBSTONES, "2")
    assert (await status_of(client)).records == 1
