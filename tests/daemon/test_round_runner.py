"""Laws of :mod:`poller.daemon.round_runner`: failed rounds are retried soon, but not too often; reports of rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec
from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.daemon.health import Readiness, StoreMonitor
from poller.daemon.round_runner import RoundObserver, polled_feeds
from poller.source.feed import RoundMode, RoundResult
from poller.store.commands import FeedPause, pause
from poller.store.feed_state import FeedState
from poller.store.keys import operations_key
from poller.telemetry.metrics import process_metrics
from tests.control.subscribed import FEEDS, configured
from tests.telemetry.series import Key, key, values


def result(*, away: bool = False, error: str | None = None, wait: timedelta | None = None) -> RoundResult:
    ok = error is None and not away
    return RoundResult(feed="acme/a", mode=RoundMode.DELTA, ok=ok, away=away, error=error, wait=wait)


async def test_a_store_that_is_away_is_tried_again_less_and_less_often() -> None:
    """Retries wait from one second up to ten, and one second again after a round that reached the store."""
    watch = StoreMonitor("warn", clock=Clock())
    after = RoundObserver(watch, Readiness(watch))
    pauses = [after(result(away=True, error="away")) for _ in range(6)]
    assert pauses == [timedelta(seconds=count) for count in (1, 2, 4, 8, 10, 10)]
    assert [reason.text for reason in watch.reasons()] == ["away"]
    assert after(result()) is None
    assert [reason.text for reason in watch.reasons()] == ["has not answered yet"]
    assert after(result(away=True)) == timedelta(seconds=1)


async def test_a_store_that_lets_a_round_begin_is_there() -> None:
    """A store counts as available as soon as a round has started, not only when a long round ends."""
    watch = StoreMonitor("warn", clock=Clock())
    after = RoundObserver(watch, Readiness(watch))
    after(result(away=True, error="away"))
    after.began("acme/a")
    assert [reason.text for reason in watch.reasons()] == ["has not answered yet"]
    assert after(result(away=True, error="away")) == timedelta(seconds=2)  # the wait goes on growing


async def test_a_source_that_fails_is_no_matter_of_the_store() -> None:
    """A failing feed is reported while its rounds fail; neither its next round nor the store's state changes."""
    watch = StoreMonitor("warn", clock=Clock())
    readiness = Readiness(watch)
    after = RoundObserver(watch, readiness)
    assert after(result(error="status 500 of http://u:p@host/a?b=c")) is None
    assert (await readiness.report()).failing == {"acme/a": "status 500 of http://[redacted]@host/a?[redacted]"}
    assert not watch.away
    assert after(result(wait=timedelta(seconds=3))) == timedelta(seconds=3)
    assert (await readiness.report()).failing == {}


async def test_rounds_are_counted_while_the_feed_is_polled_here() -> None:
    """Rounds are counted by mode and result, skipped ones too; a feed that is gone leaves no series."""
    watch = StoreMonitor("warn", clock=Clock())
    after = RoundObserver(watch, Readiness(watch))
    feed = "counted/a"
    after(msgspec.structs.replace(result(), feed=feed, created=2, records=2))
    after(msgspec.structs.replace(result(error="no"), feed=feed))
    after(RoundResult(feed=feed, mode=RoundMode.SKIPPED, ok=True))
    found = {name: value for name, value in counted().items() if ("feed", feed) in name[1]}
    assert found[key("poller_rounds_total", feed=feed, mode="delta", result="ok")] == 1
    assert found[key("poller_rounds_total", feed=feed, mode="delta", result="failed")] == 1
    assert found[key("poller_rounds_total", feed=feed, mode="skipped", result="skipped")] == 1
    assert found[key("poller_records_total", feed=feed, kind="created")] == 2
    after.gone(feed)
    assert not any(("feed", feed) in labels for _, labels in counted())


def counted() -> dict[Key, float]:
    return values("".join(process_metrics().rounds.blocks(openmetrics=False)))


async def test_a_pause_that_came_back_with_an_older_store_is_named_once(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A feed that is silent because the store went back to a pause is logged with what to do, and announced."""
    async with polled_feeds(configured(tmp_path), {}, client, shebang="", clock=Clock(), only=frozenset(FEEDS[:1])) as (
        polled,
    ):
        assert isinstance(await polled.store.open_round(), FeedState)
        await pause(
            client, polled.store.keys, FeedPause("anna", "moving house", datetime.now(UTC) - timedelta(hours=1))
        )
        with capture_logs() as said:
            assert [(await polled.round()).mode for _ in range(2)] == [RoundMode.SKIPPED, RoundMode.SKIPPED]
    (line,) = [line for line in said if line["log_level"] == "warning"]
    assert (line["event"], line["feed"]) == ("feed paused again", FEEDS[0])
    assert f"poller resume {FEEDS[0]}" in line["advice"]
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(operations_key("poller")))
    (event,) = [msgspec.json.decode(fields[b"data"]) for _, fields in entries]
    assert (event["type"], event["subject"], event["data"]["by"]) == ("poller.feed.paused.v1", FEEDS[0], "anna")
    assert "went back" in event["data"]["reason"]
