"""What rounds and requests tell of themselves, and what the events of a traced round carry."""

from __future__ import annotations

import json

import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from poller.credentials.issued import IssuedToken
from poller.errors import SourceRefused, SourceUnavailable
from poller.source.result import RoundResult
from poller.source.traced import round_of, tell_round
from tests.source.api import http, serving
from tests.source.clients import client_of
from tests.source.round_sides import DOWN, FEED, Round, Script, records
from tests.source.test_client_renewal import Issuer, accepting
from tests.telemetry.recording import parent, recorded, told, traceparent

SECRET = (("sinceDeltaToken", "s3cret"),)


async def traced(feed: Round, script: Script) -> RoundResult:
    with round_of(FEED.id) as span:
        result = await feed(script)
        tell_round(span, result)
    return result


async def test_a_round_tells_what_it_did() -> None:
    """Law: feed, mode and every count of its result."""
    with recorded() as spans:
        await traced(Round(), Script().on([*records("a", "b"), 7], delta="d1"))
    span = spans.one("round")
    counts = {"pages": 1, "records": 3, "created": 2, "modified": 0, "removed": 0, "unchanged": 0, "quarantined": 1}
    assert told(span) == {
        "poller.feed": "acme/contractTypes",
        "poller.round.mode": "baseline",
        "poller.round.ok": True,
        **{f"poller.round.{name}": count for name, count in counts.items()},
    }
    assert (span.kind, span.status.status_code, parent(span)) == (SpanKind.INTERNAL, StatusCode.UNSET, None)


async def test_a_round_that_failed_says_why() -> None:
    """Law: its error is the span's."""
    with recorded() as spans:
        result = await traced(Round(), Script().on(DOWN))
    span = spans.one("round")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, result.error)
    assert told(span)["poller.round.ok"] is False


async def test_its_events_carry_it() -> None:
    """Law: as CloudEvents' distributed tracing has it, on what is removed too; any reader of CloudEvents takes it."""
    feed = Round()
    with recorded() as spans:
        await traced(feed, Script().on(records("a", "b")))
    assert {event["traceparent"] for event in feed.store.events} == {traceparent(spans.one("round"))}
    assert not [event for event in feed.store.events if "tracestate" in event]
    for commit in feed.store.commits:
        for event in commit.events:
            read = JSONFormat().read(CloudEvent, event)
            assert read.get_extension("traceparent") == traceparent(spans.one("round"))


async def test_it_is_carried_where_it_is_not_sampled() -> None:
    """Law: with the flag that says so, for W3C Trace Context hands on the decision along with the name."""
    feed = Round()
    with recorded(ALWAYS_OFF):
        await traced(feed, Script().on(records("a")))
    [event] = feed.store.events
    assert int(event["traceparent"][-2:], 16) & 1 == 0


async def test_ids_and_commits_are_the_same_without() -> None:
    """Law: a change is the same whoever traced the round that found it, and so is the commit's name."""
    plain, seen, again = Round(), Round(), Round()
    await traced(plain, Script().on(records("a", "b")))
    with recorded():
        await traced(seen, Script().on(records("a", "b")))
        await traced(again, Script().on(records("a", "b")))
    assert [event.pop("traceparent", None) is None for event in plain.store.events] == [True, True]
    first, second = ([event.pop("traceparent") for event in one.store.events] for one in (seen, again))
    assert first != second
    assert json.dumps(plain.store.events) == json.dumps(seen.store.events) == json.dumps(again.store.events)
    digests = [[commit.digest for commit in one.store.commits] for one in (plain, seen, again)]
    assert digests[0] == digests[1] == digests[2]
    assert any(digests[0])


async def test_requests_are_told_one_by_one() -> None:
    """Law: repetitions are numbered, each has its status; the query and the credential are nowhere; nobody is told."""
    async with serving([http(503), http(404), http(200, b"ok")]) as api, client_of(api.url) as client:
        with recorded() as spans, round_of(FEED.id):
            with pytest.raises(SourceRefused):
                await client.get("/things", SECRET)
            await client.get("/things", SECRET)
    first, second, third = spans.named("GET")
    assert [told(one).get("http.response.status_code") for one in (first, second, third)] == [503, 404, 200]
    assert [told(one).get("http.request.resend_count") for one in (first, second, third)] == [None, 1, None]
    assert [told(one).get("error.type") for one in (first, second, third)] == ["503", "404", None]
    assert {told(one)["url.full"] for one in (first, second, third)} == {f"{api.url}/things"}
    assert {one.kind for one in (first, second, third)} == {SpanKind.CLIENT}
    ours = spans.one("round").get_span_context()
    assert ours is not None
    assert {parent(one) for one in (first, second, third)} == {f"{ours.span_id:016x}"}
    assert "s3cret" not in "".join(one.to_json() for one in spans.all)
    assert not [name for request in api.requests for name in request.headers if name.startswith("trace")]


async def test_a_repetition_with_a_fresh_token_is_a_request_of_its_own() -> None:
    """Law: what was refused is seen beside it."""
    async with serving(accepting("t2")) as api, client_of(api.url, credential=IssuedToken(Issuer())) as client:
        with recorded() as spans, round_of(FEED.id):
            await client.get("/x")
    said = [told(one) for one in spans.named("GET")]
    assert [one["http.response.status_code"] for one in said] == [401, 200]
    assert [one.get("http.request.resend_count") for one in said] == [None, 1]


async def test_no_answer_is_told_as_one() -> None:
    """Law: without a status there is a word for the failure, and the line that the log has."""
    async with serving(b"") as api, client_of(api.url) as client:
        with recorded() as spans, round_of(FEED.id), pytest.raises(SourceUnavailable) as failed:
            await client.get("/x")
    last = spans.named("GET")[-1]
    assert told(last)["error.type"] == "_OTHER"
    assert str(failed.value).startswith(str(last.status.description))


async def test_outside_a_round_requests_are_no_traces() -> None:
    """Law: what ``check`` asks, say, begins none."""
    async with serving(http(200, b"ok")) as api, client_of(api.url) as client:
        with recorded() as spans:
            await client.get("/x")
    assert not spans.all
