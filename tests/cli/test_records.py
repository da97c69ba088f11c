"""``poller records`` on a real store and a sandbox: what it lists, shows, looks for and asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import pytest
from redis.asyncio import Redis

from poller.cli.records import _lines
from poller.clock import Clock
from poller.config.load import load
from poller.control.records import FeedRecords
from poller.errors import PollerError
from poller.redis.client import commands
from poller.sandbox.history import History
from poller.sandbox.server import SANDBOX_TOKEN, SEEDED_AT, serving
from poller.store.feed_state import FORMS
from tests.cli.commands import Ended
from tests.cli.conftest import Poller, started
from tests.harness.waiting import patience
from tests.store.test_feed import KEYS, write
from tests.store.test_records import opened, remove

FEED = "acme/employmentUnavailabilities"
WRONG = "not-the-token"
ID = "0B8E7C5E-9D4A-4D9F-8A55-6C1F3F0E2A11"
OTHER = "1B8E7C5E-9D4A-4D9F-8A55-6C1F3F0E2A11"


class Scene(NamedTuple):
    """A store whose records the test writes, and a sandbox that need not agree with it."""

    poller: Poller
    file: Path
    store: Redis
    history: History

    async def run(self, *arguments: str) -> Ended:
        found: Ended = await self.poller("records", *arguments, "--config", str(self.file), API_TOKEN=SANDBOX_TOKEN)
        return found

    async def rows(self, *arguments: str) -> list[Any]:
        ended = await self.run(*arguments, "--json")
        assert (ended.code, ended.err) == (0, ""), ended
        return [json.loads(line) for line in ended.out.splitlines()]


@pytest.fixture
async def scene(poller: Poller, tmp_path: Path, store_url: str) -> AsyncIterator[Scene]:
    history, rng = History(), Random(5)
    async with serving(history, rng=rng) as url, commands(store_url) as client:
        lines = [f'redis = {{ url = "{store_url}", durability = "ignore" }}', 'http = { bind = "off" }', "[[sources]]"]
        lines += ['name = "acme"', f'base_url = "{url}"', 'auth = { token_env = "API_TOKEN" }']
        for resource in ("employmentUnavailabilities", "achievements"):
            lines += ["[[sources.feeds]]", f'resource = "{resource}"', 'ignore = ["/lastModifiedAt"]']
        file = tmp_path / "poller.toml"
        file.write_text("\n".join(lines), "utf-8")
        yield Scene(poller, file, client, history)


def a_record(key: str | int, reason: str, **more: Any) -> dict[str, Any]:
    return {"id": key, "reason": reason, **more}


def raw(key: str | int, reason: str, **more: Any) -> bytes:
    return json.dumps(a_record(key, reason, **more)).encode()


async def test_all_records_are_listed(scene: Scene) -> None:
    """Law: each live record is listed once, with its id, revision and bytes as received, and no removed one."""
    store = opened(scene.store)
    await write(store, [raw(ID, "holiday"), raw(7, "x" * 200), raw("a/b?", "1.50"), raw("gone", "")])
    await write(store, [b'{"id": "spread",\n\r "number": 1.500}', raw(ID, "sick \x1b[31m\u202e")])
    await remove(store, "gone")
    rows = {row["id"]: row for row in await scene.rows("list", FEED)}
    assert {name: row["revision"] for name, row in rows.items()} == {ID: 2, "7": 1, "a/b?": 1, "spread": 1}
    assert rows["7"]["record"] == a_record(7, "x" * 200)
    assert rows[ID]["changed_at"] == "2026-01-02T03:04:05Z"
    assert '"number":1.500}' in (await scene.run("list", FEED, "--json")).out
    shown = await scene.run("list", "employmentUnavailabilities")
    assert (shown.code, len(shown.out.splitlines()), shown.err) == (0, 4, "")
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out
    assert (await scene.run("list", "achievements")).out == "acme/achievements: no records\n"
    assert (await scene.run("list", "other")).code == 2


async def test_a_reader_that_leaves_ends_the_list(scene: Scene, tmp_path: Path) -> None:
    """Law: a list is written while it is read, and a pipe that is closed ends it without an error."""
    await write(opened(scene.store), [raw(f"r{number}", "x" * 1000) for number in range(900)])
    command = ("records", "list", FEED, "--json", "--config", str(scene.file))
    async with started(*command, cwd=tmp_path) as process:
        assert process.stdout is not None
        async with patience("a first line"):
            assert (await process.stdout.readline()).startswith(b'{"id":"r')
        process.stdout._transport.close()  # type: ignore[attr-defined]  # as a pipe into `head -1`
        async with patience("its end"):
            assert await process.wait() == 0


async def test_a_list_of_a_feed_that_was_reset_is_an_error(scene: Scene) -> None:
    """Law: a list that goes on after a conversion is complete; one whose feed was reset ends with an error."""
    await write(opened(scene.store), [raw(f"r{number}", "x") for number in range(900)])
    records = FeedRecords(scene.store, load(scene.file, {}), FEED, clock=Clock())
    async with aclosing(_lines(records, Clock())) as lines:
        seen = {(await anext(lines)).id}
        await scene.store.hset(KEYS.state, cast("Any", FORMS), "2 after 1")
        seen |= {line.id async for line in lines}
    assert len(seen) == 900
    async with aclosing(_lines(records, Clock())) as lines:
        await anext(lines)
        await scene.store.hset(KEYS.state, "generation", "other")
        with pytest.raises(PollerError, match="was reset meanwhile"):
            assert [line async for line in lines] == []


async def test_one_record_is_shown(scene: Scene) -> None:
    """Law: a record is found by its id as received, a UUID in any case, an integer by its digits."""
    store = opened(scene.store)
    await write(store, [raw(ID, "holiday"), raw(7, "seven"), raw("gone", "")])
    await remove(store, "gone")
    [row] = await scene.rows("get", FEED, ID.lower())
    assert (row["id"], row["revision"], row["sequence"]) == (ID, 1, 1)
    assert row["record"] == a_record(ID, "holiday")
    assert (row["changed_at"], row["seen_at"], row["removed"]) == (
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:04:05Z",
        False,
    )
    assert row["as_of"]["sequence"] == 4
    [row] = await scene.rows("get", FEED, "7")
    assert (row["id"], row["record"]) == ("7", a_record(7, "seven"))
    [row] = await scene.rows("get", FEED, "gone")
    assert (row["removed"], row["revision"], row["record"], row["seen_at"]) == (True, 2, None, None)
    assert row["erased"] is False
    shown = await scene.run("get", FEED, "gone")
    assert (shown.code, "revision 2" in shown.out, "removed  2026-01-02T03:04:05Z" in shown.out) == (0, True, True)
    shown = await scene.run("get", FEED, ID)
    assert '"reason": "holiday"' in shown.out
    unknown = await scene.run("get", FEED, "no\x1b[31mne")
    assert (unknown.code, unknown.out, "\x1b" in unknown.err) == (1, "", False)
    assert f'{FEED} has no record with the id "no[31mne"' in unknown.err


async def test_what_is_known_of_its_readings_is_shown(scene: Scene) -> None:
    """Law: a later full reading counts as seen; the next readings are those of the feed."""
    store = opened(scene.store)
    await write(store, [raw(ID, "holiday")])
    moments: dict[Any, Any] = {
        "read_at": "2026-01-03T00:00:00+00:00",
        "next_at": "2026-01-03T01:00:00+00:00",
        "delta_token": "t",
    }
    await scene.store.hset(KEYS.state, mapping=moments)
    [row] = await scene.rows("get", FEED, ID)
    assert (row["seen_at"], row["next_round_at"]) == ("2026-01-03T00:00:00Z", "2026-01-03T01:00:00Z")
    assert row["next_full_reading_at"] == "2026-01-04T00:00:00Z"
    shown = await scene.run("get", FEED, ID)
    assert "next     2026-01-03T01:00:00Z, in full by 2026-01-04T00:00:00Z" in shown.out


async def test_the_history_of_a_record(scene: Scene) -> None:
    """Law: all events of the record that the stream holds, the latest first, each with the values that differ."""
    store = opened(scene.store)
    others = [b'{"id":"r%d","of":{"subject":"%b"}}' % (number, ID.encode()) for number in range(300)]
    await write(store, [raw(ID, "holiday", note=1), *others[:150]])
    await write(store, [raw(ID, "sick"), *others[150:]])
    await remove(store, ID.lower())
    await write(store, [raw(ID, "sick")])
    rows = await scene.rows("history", FEED, ID.lower())
    assert [(row["change"], row["revision"]) for row in rows] == [
        ("created", 4),
        ("removed", 3),
        ("modified", 2),
        ("created", 1),
    ]
    assert rows[2]["changes"] == [
        {"pointer": "/note", "before": 1},
        {"pointer": "/reason", "before": "holiday", "after": "sick"},
    ]
    assert (rows[3]["record"], rows[1]["previous"]) == (a_record(ID, "holiday", note=1), a_record(ID, "sick"))
    assert [row["revision"] for row in await scene.rows("history", FEED, ID, "--limit", "2")] == [4, 3]
    shown = await scene.run("history", FEED, ID)
    assert '  /reason\n    - "holiday"\n    + "sick"\n' in shown.out
    await scene.store.xtrim(KEYS.events, maxlen=2, approximate=False)
    trimmed = await scene.run("history", FEED, ID)
    assert (len(trimmed.out.splitlines()), "were trimmed" in trimmed.err) == (4, True)
    await scene.store.xtrim(KEYS.events, maxlen=0, approximate=False)
    none = await scene.run("history", FEED, ID)
    assert (none.code, none.out, "holds no event of it" in none.err, "4" in none.err) == (0, "", True, True)
    unknown = await scene.run("history", FEED, "nope")
    assert (unknown.code, "has no record" in unknown.err) == (1, True)


async def test_the_api_is_asked(scene: Scene) -> None:
    """Law: the answer is compared with what is known, but for what is ignored; a 404 is an answer; nothing changes."""
    record = a_record(ID, "sick", lastModifiedAt="2026-02-01T00:00:00Z")
    scene.history.put("employmentUnavailabilities", record, SEEDED_AT)
    store = opened(scene.store)
    await write(store, [raw(ID, "holiday", lastModifiedAt="2026-01-01T00:00:00Z"), raw("gone", "away")])
    before = await scene.store.hgetall(KEYS.state), await scene.store.xlen(KEYS.events)
    [row] = await scene.rows("ask", FEED, ID)
    assert (row["answer"], row["known"], row["revision"], row["record"]["reason"]) == ("there", "live", 1, "sick")
    [change] = row["changes"]
    assert change == {"pointer": "/reason", "before": "holiday", "after": "sick"}
    shown = await scene.run("ask", FEED, ID)
    assert '  /reason\n    - "holiday"\n    + "sick"\n' in shown.out
    [row] = await scene.rows("ask", FEED, "gone")
    assert (row["answer"], row["status"], row["known"], row["record"]) == ("gone", 404, "live", None)
    assert "the API has no such record (status 404)" in (await scene.run("ask", FEED, "gone")).out
    assert (await scene.rows("ask", FEED, "never"))[0]["known"] == "unknown"
    await remove(store, ID.lower())
    shown = await scene.run("ask", FEED, ID)
    assert "known as removed, revision 2" in shown.out
    assert (await scene.store.hgetall(KEYS.state) != before[0], await scene.store.xlen(KEYS.events)) == (True, 3)
    no_endpoint = await scene.run("ask", "achievements", ID)
    assert (no_endpoint.code, "has no endpoint for a single record" in no_endpoint.err) == (1, True)
    assert "poller resync acme/achievements" in no_endpoint.err
    refused = await scene.poller("records", "ask", FEED, ID, "--config", str(scene.file), API_TOKEN=WRONG)
    assert (refused.code, "401" in refused.err) == (1, True)
    assert WRONG not in refused.err


async def test_a_record_is_erased_only_when_the_api_has_it_no_more(scene: Scene) -> None:
    """Law: one that is still there needs ``--force``; then nothing of it is shown, and what is left says so."""
    await write(opened(scene.store), [raw(ID, "private"), raw("other", "x")])
    scene.history.put("employmentUnavailabilities", a_record(ID, "private"), SEEDED_AT)
    refused = await scene.run("erase", FEED, ID, "--yes")
    assert (refused.code, "is still there" in refused.err, "(--force)" in refused.err) == (1, True, True), refused
    assert len(await scene.rows("history", FEED, ID)) == 1
    (result,) = await scene.rows("erase", FEED, ID, "--yes", "--force", "--reason", "why")
    assert (result["snapshots"], result["events"], result["sequences"], result["is_rewriting"]) == (1, 1, "1", None)
    shown = await scene.run("get", FEED, ID)
    assert [name in shown.out for name in ("erased   20", " ago)", "removed", "private")] == [True, True, False, False]
    (row,) = await scene.rows("get", FEED, ID)
    assert (row["removed"], row["erased"], row["changed_at"] is None) == (True, True, False)
    assert (await scene.run("history", FEED, ID)).out == ""
    again = await scene.run("erase", FEED, ID, "--yes", "--force")
    assert (again.code, "revision 2" in again.out, "BGREWRITEAOF" in again.out) == (0, True, True), again
    assert "nothing of it was stored any more" in again.out
    assert (await scene.rows("ask", FEED, ID))[0]["known"] == "erased"
    assert "erased here, revision 1" in (await scene.run("ask", FEED, ID)).out
    assert [row["id"] for row in await scene.rows("list", FEED)] == ["other"]


async def test_a_record_is_erased_and_announced_once(scene: Scene) -> None:
    """Law: erased twice, it takes one number and makes one event; if it came back in between, it is erased anew."""
    for times in (1, 2):
        await write(opened(scene.store), [raw(ID, f"private {times}")])
        counts = []
        for _ in range(2):
            (result,) = await scene.rows("erase", FEED, ID, "--yes", "--force")
            counts.append((result["snapshots"], result["events"], result["revision"]))
        assert counts == [(1, 1, times), (0, 0, times)]
        assert await scene.store.hget(KEYS.state, "sequence") == b"%d" % (2 * times)
        announced: Any = await scene.store.xrange("poller:{operations}:events")
        assert sum(b"poller.record.erased.v1" in fields[b"data"] for _, fields in announced) == times


async def test_a_copy_with_an_unusable_id_is_erased(scene: Scene) -> None:
    """Law: a record that was only ever quarantined is found by its id as it was received, and announced."""
    await write(opened(scene.store), [b'{"id":1.5,"reason":"private"}', b'{"id":" k","reason":"x","reason":"y"}'])
    assert await scene.store.xlen(KEYS.quarantine) == 2
    for number, record in enumerate(("1.5", "K"), 1):
        (result,) = await scene.rows("erase", FEED, record, "--yes", "--force")
        assert (result["quarantined"], result["snapshots"], result["events"]) == (1, 0, 0)
        assert await scene.store.xlen(KEYS.quarantine) == 2 - number
        announced: Any = await scene.store.xrange("poller:{operations}:events")
        assert json.loads(announced[-1][1][b"data"])["subject"] == record


async def test_an_empty_id_is_refused_before_anything_is_erased(scene: Scene) -> None:
    """Law: quarantined records without an id are no record's, and stay."""
    await write(opened(scene.store), [raw(ID, "x")])
    await scene.store.xadd(KEYS.quarantine, {"raw": '{"id":"","reason":"x"}', "reason": "no id"})
    for more in (["--force"], []):
        refused = await scene.run("erase", FEED, "", "--yes", *more)
        assert (refused.code, "the id is empty" in refused.err, "Traceback" in refused.err) == (1, True, False), refused
    assert await scene.store.xlen(KEYS.quarantine) == 1


async def test_an_erasure_asks_first(scene: Scene) -> None:
    """Law: without ``--yes`` and without a terminal nothing is erased; of an unknown record there is nothing to erase.

    Where the API has no endpoint for one record, or does not answer, ``--force`` is needed.
    """
    await write(opened(scene.store), [raw(ID, "private")])
    asked = await scene.run("erase", FEED, ID)
    assert (asked.code, "--yes" in asked.err) == (2, True), asked
    unknown = await scene.run("erase", FEED, "unknown", "--yes", "--force")
    assert (unknown.code, "holds nothing of" in unknown.err) == (1, True), unknown
    assert await scene.store.hget(KEYS.state, "sequence") == b"1"
    lists = await scene.run("erase", "acme/achievements", "a", "--yes")
    assert (lists.code, "no endpoint for a single record" in lists.err) == (1, True), lists
    wrong = await scene.poller("records", "erase", FEED, ID, "--yes", "--config", str(scene.file), API_TOKEN=WRONG)
    assert (wrong.code, "did not say whether it is gone" in wrong.err) == (1, True), wrong
    assert len(await scene.rows("list", FEED)) == 1


async def test_what_is_left_of_a_forgotten_record_is_erased(scene: Scene) -> None:
    """Law: also where its snapshot is gone already, as after a reset: its events and quarantined copies go."""
    await write(opened(scene.store), [raw("a-record", "private"), b'{"id":"a-record","x":1,"x":2}'])
    await scene.store.hdel(KEYS.snapshots, "a-record")
    (result,) = await scene.rows("erase", FEED, "a-record", "--yes", "--force")
    assert (result["snapshots"], result["events"]) == (0, 1)


@pytest.mark.parametrize("feed", [FEED, "acme/achievements"])
async def test_an_erased_record_that_is_still_listed_is_published_again(scene: Scene, feed: str) -> None:
    """Law: by the next full reading, though the API's answer is the same as before, digest and version included."""
    resource = feed.partition("/")[2]
    qualification = {"qualificationID": "11111111-1111-4111-8111-111111111111"}
    for key in (ID, OTHER):
        scene.history.put(resource, a_record(key, "x", **qualification), SEEDED_AT)
    with scene.file.open("a", encoding="utf-8") as file:
        file.write(f'\nqualifications = ["{qualification["qualificationID"]}"]\n')

    async def once() -> dict[str, Any]:
        ended = await scene.poller("once", feed, "--json", "--config", str(scene.file), API_TOKEN=SANDBOX_TOKEN)
        assert ended.code == 0, ended
        counted: dict[str, Any] = json.loads(ended.out)
        return counted

    assert (await once())["created"] == 2
    for _ in range(3):
        assert (await once())["created"] == 0
    (result,) = await scene.rows("erase", feed, ID, "--yes", "--force")
    assert (result["snapshots"], result["events"]) == (1, 1)
    rounds = [await once() for _ in range(2)]
    if feed == FEED and not any(one["created"] for one in rounds):  # a delta shows no record that has not changed
        resync = await scene.poller("resync", feed, "--config", str(scene.file), API_TOKEN=SANDBOX_TOKEN)
        assert resync.code == 0, resync
        rounds = [await once(), await once()]
    assert [one["created"] for one in rounds] == [1, 0]
    shown = await scene.run("history", feed, ID, "--json")
    event = json.loads(shown.out)
    assert (event["change"], event["revision"], "or erased" in shown.err) == ("created", 2, True)
