"""Laws of :mod:`poller.telemetry.metrics`: a subscription has series only while this process delivers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from redis.asyncio import Redis

from poller.changes.plan import KINDS, Commit, RoundCounts
from poller.clock import Clock
from poller.errors import Fenced, Stale, StoreRefused
from poller.redis.client import commands
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import FeedState
from poller.store.keys import FeedKeys
from poller.telemetry.metrics import (
    STEPS,
    MetricDescription,
    ProcessMetrics,
    RoundMetrics,
    SourceSeries,
    attempts_of,
    commit_timed,
    committed,
    counted,
    counting_in,
    declared,
    described,
    labelled,
    no_attempts_of,
    process_metrics,
    requested,
    retried,
)
from tests.document_tables import declared_metrics
from tests.harness.waiting import turns
from tests.telemetry.series import Key, grown, key, value, values


def test_all_steps_are_there_from_the_start() -> None:
    """The series of all steps start at 0, so that the first of each is seen as an increase."""
    attempts_of("begun")
    assert {value("poller_attempts_total", subscription="begun", outcome=step) for step in STEPS} == {0}
    assert value("poller_delivery_delay_seconds_count", subscription="begun") == 0
    no_attempts_of("begun")


def test_one_that_is_gone_has_none() -> None:
    """A removed subscription's series are removed and start from 0 later; removing an unknown one does nothing."""
    attempts_of("gone").attempted("delivered", 1)
    assert attempts_of("gone") is attempts_of("gone")
    for _ in range(2):
        no_attempts_of("gone")
    assert value("poller_attempts_total", subscription="gone", outcome="delivered") is None
    assert value("poller_attempt_duration_seconds_count", subscription="gone") is None
    attempts_of("gone").attempted("delivered", 1)
    assert value("poller_attempts_total", subscription="gone", outcome="delivered") == 1
    no_attempts_of("gone")


@pytest.mark.parametrize("openmetrics", [False, True])
def test_durations_are_exported_as_the_library_does(*, openmetrics: bool) -> None:
    """A subscription's histograms have the series and values that one of the library has, bounds included."""
    own, registry = ProcessMetrics(), CollectorRegistry()
    bounds = next(one.bounds for one in described() if one.name == "poller_delivery_delay_seconds")
    of_library = Histogram(
        "poller_delivery_delay_seconds", "x", ["subscription"], registry=registry, buckets=bounds
    ).labels("one")
    series = own.attempts_of("one")
    for seconds in (0.0, 0.005, 0.0051, 0.3, 1, 86400, 1e9, *bounds):
        of_library.observe(seconds)
        series.delayed(seconds)
    expected = values(generate_latest(registry))
    found = values("".join(own.blocks(openmetrics=openmetrics)))
    assert {one: value for one, value in found.items() if one[0].startswith("poller_delivery_delay")} == expected


@pytest.mark.parametrize("openmetrics", [False, True])
def test_sources_are_exported_as_the_library_does(*, openmetrics: bool) -> None:
    """Rounds and requests of a source have the series and values that the library would give them."""
    own, registry = ProcessMetrics(), CollectorRegistry()
    known = {one.name: one for one in described()}
    requests = known["poller_source_requests_total"].counter(registry)
    durations = known["poller_source_request_duration_seconds"].histogram(registry)
    rounds = known["poller_round_duration_seconds"].histogram(registry)
    with counting_in(own):
        for source in ("one", 'tw"o'):
            series = SourceSeries(source)
            durations.labels(source)
            for seconds in (0.0, 0.005, 0.3, 1, 1e9):
                series.ended(200, seconds)
                requests.labels(source, "200").inc()
                durations.labels(source).observe(seconds)
                process_metrics().rounds.ended(f"{source}/x", RoundCounts(seconds=seconds), mode="delta", result="ok")
                rounds.labels(source, "delta").observe(seconds)
        SourceSeries("three")
        durations.labels("three")
        process_metrics().rounds.ended("one/x", RoundCounts(seconds=1), mode="skipped", result="skipped")
    found = values("".join(own.blocks(openmetrics=openmetrics)))
    names = ("poller_source_request", "poller_round_duration")
    assert {one: value for one, value in found.items() if one[0].startswith(names)} == values(generate_latest(registry))


async def test_daemons_in_one_process_count_apart() -> None:
    """What a task counts goes to the metrics of the daemon that has started it, and to no other's."""
    before, own = grown("poller_commits_total", result="written"), ProcessMetrics()

    async def count() -> None:
        committed("written", 0.1)
        attempts_of("apart").attempted("delivered", 1)
        process_metrics().rounds.ended("a/apart", RoundCounts(), mode="delta", result="ok")

    with counting_in(own):
        counting = asyncio.create_task(count())
    await counting
    assert own.registry.get_sample_value("poller_commits_total", {"result": "written"}) == 1
    labels = {"subscription": "apart", "outcome": "delivered"}
    text = "".join(own.blocks(openmetrics=False))
    assert values(text)[key("poller_attempts_total", **labels)] == 1
    assert "a/apart" in text
    assert grown("poller_commits_total", result="written") == before
    assert value("poller_attempts_total", **labels) is None
    assert "a/apart" not in "".join(process_metrics().blocks(openmetrics=False))


# Declared metrics: each name once.


def test_names_say_the_unit_and_the_kind() -> None:
    """Only counters end in ``_total``, and histograms end in ``_seconds``."""
    for one in declared_metrics():
        assert one.name.startswith("poller_")
        assert one.name.endswith("_total") == (one.kind == "counter")
        assert (one.kind != "histogram") or one.name.endswith("_seconds")


def test_a_name_is_given_once() -> None:
    """Declaring a metric twice is an error."""
    name = declared_metrics()[0].name
    with pytest.raises(ValueError, match="declared twice"):
        declared(name, "gauge", "another meaning")


def test_whatever_a_label_holds_it_is_read_as_it_was() -> None:
    """Label values with quotes, backslashes and line breaks are escaped; no metric's own text needs escapes."""
    strange = 'a"b\\c\nd'
    one = MetricDescription("poller_x_total", "counter", ("feed",), "text")
    assert values(one.block([(labelled(feed=strange), 2)], openmetrics=False)) == {
        key("poller_x_total", feed=strange): 2
    }
    assert one.block([], openmetrics=True) == "# HELP poller_x text\n# TYPE poller_x counter\n"
    assert not any(set(known.text) & set('"\\\n') for known in declared_metrics())


# Commits: each is counted once, by its result, on a real store.

KEYS = FeedKeys.of("poller", "acme/contractTypes")
RESULTS = ("written", "repeated", "fenced", "stale", "failed")


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as one:
        yield one


def opened(client: Redis, nonce: str, *, lease: timedelta = timedelta(seconds=60)) -> FeedStore:
    return FeedStore(client, FeedScripts(client), KEYS, nonce=nonce, lease=lease, clock=Clock())


def ended() -> dict[str, float]:
    return {result: grown("poller_commits_total", result=result) for result in RESULTS}


async def begun(store: FeedStore) -> FeedState:
    state = await store.open_round()
    assert isinstance(state, FeedState)
    return state


def planned(state: FeedState, text: str = "x") -> Commit:
    event = json.dumps({"sequence": f"{state.sequence + 1:020}", "text": text}).encode()
    return Commit(state.generation, state.sequence, events=(event,), digest=text)


@pytest.fixture
def count() -> Callable[[], dict[str, float]]:
    """Commits by result since the test began, without the zeros."""
    before = ended()
    return lambda: {result: n - before[result] for result, n in ended().items() if n != before[result]}


async def test_each_end_has_its_series(client: Redis, count: Callable[[], dict[str, float]]) -> None:
    """Each commit is timed and counted by its result: written, repeated, stale, fenced or failed."""
    seconds = grown("poller_commit_duration_seconds_count")
    store = opened(client, "me")
    state = await begun(store)
    with counted() as costs:
        await store.commit(planned(state))
        await store.commit(planned(state))
    assert count() == {"written": 1, "repeated": 1}
    assert (costs.commits, costs.commit_seconds > 0) == (2, True)
    with pytest.raises(Stale):
        await store.commit(planned(state, "another"))
    state = await begun(store)
    await client.delete(KEYS.lease)
    await begun(opened(client, "another"))
    with pytest.raises(Fenced):
        await store.commit(planned(state))
    await client.delete(KEYS.lease)
    state = await begun(store)
    await client.delete(KEYS.events)
    await client.set(KEYS.events, "no stream")
    with pytest.raises(StoreRefused):
        await store.commit(planned(state))
    assert count() == {"written": 1, "repeated": 1, "stale": 1, "fenced": 1, "failed": 1}
    assert grown("poller_commit_duration_seconds_count") == seconds + 5


# Costs of a round: its own and those of the tasks that it starts.


async def test_rounds_side_by_side_pay_for_themselves() -> None:
    """Concurrent rounds count their own requests and commits, those of their tasks included, and no others."""

    async def spend(requests: int) -> dict[str, int | float]:
        with counted() as costs:
            for _ in range(requests):
                await asyncio.create_task(one_request())
            retried()
            commit_timed(0.25)
        return costs.public

    async def one_request() -> None:
        await turns()
        requested(0.5, 100)

    requested(9.0, 9)
    few, many = await asyncio.gather(spend(1), spend(3))
    shared = {"retries": 1, "commits": 1, "commit_seconds": 0.25}
    assert few == shared | {"requests": 1, "bytes": 100, "source_seconds": 0.5}
    assert many == shared | {"requests": 3, "bytes": 300, "source_seconds": 1.5}
    commit_timed(1.0)
    with counted() as costs:
        pass
    assert set(costs.public.values()) == {0}


# Requests: counted by source and status, with a bounded number of series.


def test_a_status_that_http_does_not_know_is_another() -> None:
    """All statuses that HTTP does not define share one series."""
    series = SourceSeries("hostile")
    for status in (200, 200, 999, 299, 600):
        series.ended(status, 0.1)
    series.ended("timeout", 30.0)
    counts = {
        status: grown("poller_source_requests_total", source="hostile", status=status)
        for status in ("200", "other", "timeout", "999", "299", "600")
    }
    assert counts == {"200": 2, "other": 3, "timeout": 1, "999": 0, "299": 0, "600": 0}
    assert grown("poller_source_request_duration_seconds_count", source="hostile") == 6


def test_whether_it_is_left_alone_is_looked_up_when_somebody_asks() -> None:
    """Whether a source is paused is read at each export, and has no series after the source is closed."""
    series, paused = SourceSeries("busy"), False
    series.opened(lambda: paused)
    assert value("poller_source_paused", source="busy") == 0
    paused = True
    assert value("poller_source_paused", source="busy") == 1
    series.closed()
    assert value("poller_source_paused", source="busy") is None


# Rounds: counted by feed while this process polls the feed.


def end_round(
    rounds: RoundMetrics, feed: str, result: str = "ok", *, mode: str = "delta", pages: int = 1, **kinds: int
) -> None:
    rounds.ended(feed, RoundCounts(pages=pages, seconds=0.1, **kinds), mode=mode, result=result)


def exported(rounds: RoundMetrics) -> dict[Key, float]:
    return values("".join(rounds.blocks(openmetrics=False)))


def test_rounds_add_up() -> None:
    """Rounds are counted by feed, mode and result, and records by kind, with all kinds from the first round on."""
    rounds = RoundMetrics()
    end_round(rounds, "a/x", pages=2, created=3, unchanged=4)
    end_round(rounds, "a/x", created=1, quarantined=1)
    end_round(rounds, "a/x", "failed", pages=0)
    end_round(rounds, "a/y", "skipped", mode="skipped", pages=0)
    found = exported(rounds)
    kinds = {kind: found[key("poller_records_total", feed="a/x", kind=kind)] for kind in KINDS}
    assert kinds == {"created": 4, "modified": 0, "removed": 0, "unchanged": 4, "quarantined": 1}
    assert found[key("poller_pages_total", feed="a/x")] == 3
    assert found[key("poller_rounds_total", feed="a/x", mode="delta", result="ok")] == 2
    assert found[key("poller_rounds_total", feed="a/x", mode="delta", result="failed")] == 1
    assert found[key("poller_rounds_total", feed="a/y", mode="skipped", result="skipped")] == 1


def test_a_feed_that_went_to_another_process_has_no_series_here() -> None:
    """A feed that moves to another process loses its series, which start from 0 when the feed is back."""
    rounds = RoundMetrics()
    end_round(rounds, "a/x", created=3)
    end_round(rounds, "a/y")
    rounds.gone("a/x")
    rounds.gone("a/never")
    assert {dict(labels).get("feed", "a/y") for _, labels in exported(rounds)} == {"a/y"}
    end_round(rounds, "a/x", created=1)
    assert exported(rounds)[key("poller_records_total", feed="a/x", kind="created")] == 1
