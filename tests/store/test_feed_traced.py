"""What commits tell of themselves."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from redis.asyncio import Redis

from poller.errors import Fenced, Stale
from poller.telemetry import tracing
from tests.store.records import unavailability
from tests.store.test_feed import begun, opened_by, write
from tests.telemetry.recording import parent, recorded, told


async def test_a_commit_tells_what_it_writes_and_what_became_of_it(fake: Redis) -> None:
    """Law: sizes, and the script's own word: written, written before, not on this state, not ours any more.

    A process that begins on records that were never counted notes their number first, in a commit of its own.
    """
    ours = opened_by(fake)("ours")
    with recorded() as spans, tracing.root("round") as span:
        state = await begun(ours)
        commit = await write(ours, [unavailability(1), unavailability(2)], state)
        await ours.commit(commit)
        with pytest.raises(Stale):
            await write(ours, [unavailability(3)], state)
        await ours.release()
        await begun(opened_by(fake)("theirs"))
        with pytest.raises(Fenced):
            await ours.commit(commit)
    said = [told(one) for one in spans.named("commit")]
    assert [one["poller.commit.result"] for one in said] == ["ok", "already", "stale", "ok", "fenced"]
    assert {key: said[0][f"poller.commit.{key}"] for key in ("events", "snapshots", "rejected", "marks")} == {
        "events": 2,
        "snapshots": 2,
        "rejected": 0,
        "marks": 0,
    }
    codes = [one.status.status_code for one in spans.named("commit")]
    assert codes == [StatusCode.ERROR if one in {2, 4} else StatusCode.UNSET for one in range(5)]
    assert {(one.kind, parent(one)) for one in spans.named("commit")} == {
        (SpanKind.CLIENT, tracing.ids_of(span.carried)[1])
    }
