"""The judge of deliveries reports each kind of fault, and nothing on correct deliveries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING

import pytest

from tests.harness.delivered import Asked, OnRecord
from tests.harness.deliveries import judge_deliveries
from tests.harness.requests import Arrived, Ended

if TYPE_CHECKING:
    from tests.harness.delivered import Deliveries, Entry
    from tests.harness.requests import Line

_SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def _event(number: int, key: str) -> bytes:
    return json.dumps({"id": f"e{number}", "type": "t", "partitionkey": key, "data": {"n": number}}).encode()


_ENTRIES: list[Entry] = [
    ("1-0", _event(1, "A")),
    ("2-0", _event(2, "B")),
    ("3-0", _event(3, "A")),
    ("4-0", _event(4, "A")),
]
_EVENTS = {entry[0]: body for entry, (_, body) in zip("1234", _ENTRIES, strict=True)}


class _Log:
    """A sink's log under construction; each request starts at ``at`` seconds and takes 10 ms."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def request(
        self,
        *numbers: int,
        at: float,
        status: int | None = 204,
        pause: float | None = None,
        webhook_id: str = "",
        body: bytes = b"",
        takes: float = 0.01,
        connection: int = 1,
    ) -> _Log:
        number = len(self.lines) + 1
        events = [_EVENTS[str(one)] for one in numbers]
        batch = len(events) > 1
        content = body or (b"[" + b",".join(events) + b"]" if batch else events[0])
        headers = {
            "content-type": "application/cloudevents-batch+json" if batch else "application/cloudevents+json",
            "webhook-id": webhook_id or ("batch" if batch else f"e{numbers[0]}"),
        }
        self.lines.append(Arrived(number, "a", at, headers, content, connection))
        self.lines.append(Ended(number, "a", at + takes, status, pause))
        self.lines.sort(key=lambda line: line.at)
        return self

    def judged(self, asked: Asked | None = None) -> Deliveries:
        return judge_deliveries(self.lines, {"f": _ENTRIES}, asked)


def _good() -> _Log:
    return _Log().request(1, at=1).request(2, at=1.001).request(3, at=2).request(4, at=3)


def _kinds(found: Deliveries) -> set[str]:
    return {name for name, faults in found.faults().items() if faults}


def test_each_once_and_in_order_is_clean() -> None:
    """Events of different records may overlap, and those of one record must follow each other."""
    found = _good().judged()
    assert found.clean, found
    assert (found.requests, found.events, found.repeats) == (4, 4, [])


def test_what_failed_may_be_sent_again() -> None:
    """After a refusal, no answer or a lost 2xx the event may be repeated before the record's next one."""
    log = _Log().request(1, at=1, status=500).request(1, at=2, status=None).request(1, at=3).request(1, at=4)
    found = log.request(2, at=4).request(3, at=5).request(4, at=6).judged()
    assert found.clean, found
    assert len(found.repeats) == 3
    assert len(found.after_success) == 1


def test_what_was_never_taken_is_lost() -> None:
    """An event that was only refused is lost, and one that is not due yet is not."""
    log = _Log().request(1, at=1).request(2, at=1).request(3, at=2, status=500)
    assert _kinds(log.judged()) == {"lost"}
    assert len(log.judged().lost) == 2
    assert log.judged(Asked(due={"f": 2})).clean


def test_before_its_predecessor_is_out_of_order() -> None:
    """An event sent before its record's previous one was accepted is out of order; the previous one is then late."""
    log = _Log().request(1, at=1, status=500).request(3, at=2).request(1, at=3).request(2, at=3).request(4, at=4)
    assert _kinds(log.judged()) == {"out_of_order", "late"}


def test_what_was_refused_together_is_sent_again_from_the_first_on() -> None:
    """A refused batch may be repeated one by one in order, but not the first event after the second."""
    log = _Log().request(1, 2, 3, at=1, status=500).request(1, at=2).request(2, at=2.5).request(3, at=3)
    assert log.request(4, at=4).judged().clean
    assert _kinds(log.request(1, at=5).judged()) == {"late"}


def test_an_old_one_again_is_late() -> None:
    """An event repeated after a later one of its record is late."""
    assert _kinds(_good().request(1, at=9).judged()) == {"late"}
    assert _good().request(2, at=9).judged().clean


def test_two_at_once_of_a_record_are_crowded() -> None:
    """A request with an event of a record while another with that record is open is crowded."""
    found = _Log().request(1, at=1, takes=1).request(1, at=1.5).request(2, at=1).request(3, at=3).request(4, at=4)
    assert _kinds(found.judged()) == {"crowded"}


def test_a_batch_keeps_the_order_within() -> None:
    """A batch may hold several events of one record, in order."""
    assert _Log().request(1, 3, 2, at=1).request(4, at=2).judged().clean
    assert _kinds(_Log().request(3, 1, 2, at=1).request(4, at=2).judged()) == {"out_of_order", "late"}


def test_another_name_and_other_content_are_seen() -> None:
    """A wrong webhook-id, two ids for one batch, and content that differs from the stream are reported."""
    assert _kinds(_good().request(4, at=9, webhook_id="x").judged()) == {"altered", "renamed"}
    twice = _Log().request(1, 2, at=1, status=500).request(1, 2, at=2, webhook_id="x").request(3, at=3).request(4, at=4)
    assert _kinds(twice.judged()) == {"renamed"}
    other = _EVENTS["4"].replace(b'"n": 4', b'"n": 5')
    assert _kinds(_good().request(4, at=9, body=other).judged()) == {"altered"}


def test_what_nobody_wants_is_unwanted() -> None:
    """An event that the subscription's filters exclude is unwanted."""
    assert _kinds(_good().judged(Asked(wants=lambda event: event["partitionkey"] == "A"))) == {"unwanted"}


def test_inside_a_pause_is_early() -> None:
    """A request inside a pause is early, unless the answer was just written or lost, or its reader killed or asleep."""
    log = _Log().request(1, at=1, status=429, pause=2.0).request(2, at=1.1).request(2, at=2.0).request(1, at=3.02)
    found = log.request(3, at=4).request(4, at=5).judged()
    assert _kinds(found) == {"early"}
    assert len(found.early) == len(found.underway) == 1
    for unheard, late in ((Asked(kills=[1.2]), Asked(kills=[1.9])), (Asked(losses=[1.2]), Asked(losses=[0.9, 1.9]))):
        found = log.judged(unheard)
        assert found.clean, found
        assert len(found.unheard) == 1
        assert _kinds(log.judged(late)) == {"early"}
    for suspensions, clean in (([(0.5, 1.5)], True), ([(1.2, 1.5)], True), ([(0.2, 0.9), (2.2, 3.0)], False)):
        found = log.judged(Asked(suspensions=suspensions))
        assert (bool(found.unheard), found.clean) == (clean, clean)
    assert log.judged(Asked(resumed=[1.9])).clean  # to resume a subscription ends what its sink has asked for
    assert _kinds(log.judged(Asked(resumed=[0.1, 2.1]))) == {"early"}


@pytest.mark.parametrize(
    ("outages", "at", "connection", "kinds"),
    [
        pytest.param([(0.5, 3.0)], 2.9, 2, set(), id="another process, while the store is away"),
        pytest.param([(0.5, 3.0)], 3.2, 2, set(), id="another one, before it has heard"),
        pytest.param([(0.5, 3.0)], 3.4, 2, {"early"}, id="another one, once it has heard"),
        pytest.param([(1.2, 3.0)], 2.9, 2, set(), id="an outage before the pause was heard of"),
        pytest.param([(3.2, 4.0), (0.5, 3.0)], 4.2, 2, set(), id="two outages, and no time to hear between them"),
        pytest.param([(3.4, 5.0), (0.5, 3.0)], 4.2, 2, {"early"}, id="two, and time between them"),
        pytest.param([(0.5, 3.0)], 1.2, 1, set(), id="the same process, before it has read the answer"),
        pytest.param([(0.5, 3.0)], 1.4, 1, {"early"}, id="the same process, while the store is away"),
        pytest.param([(0.2, 0.9)], 1.4, 2, {"early"}, id="an outage that was over"),
        pytest.param([(1.4, 3.0)], 1.5, 2, {"early"}, id="an outage after the pause was heard of"),
        pytest.param([], 1.4, 2, {"early"}, id="no outage, another process"),
        pytest.param([], 1.2, 2, set(), id="no outage, before it was heard of"),
    ],
)
def test_a_pause_that_cannot_be_stored_binds_who_was_asked(
    outages: list[tuple[float, float]], at: float, connection: int, kinds: set[str]
) -> None:
    """Law: until the store is back and the others have had time to hear of it, it binds only who has the answer."""
    log = _Log().request(1, at=0.99, status=429, pause=5.0).request(2, at=at, connection=connection)
    found = log.request(1, at=6.1).request(3, at=7).request(4, at=8).judged(Asked(outages=outages))
    assert _kinds(found) == kinds
    assert len(found.early) + len(found.underway) == 1


def test_time_to_hear_is_not_what_an_answer_takes_to_be_read() -> None:
    """In an outage the process that was asked has the time to read an answer, and others that to hear of the pause."""
    for at, connection, clean in ((1.4, 1, False), (3.9, 2, True), (4.1, 2, False)):
        log = _Log().request(1, at=0.99, status=429, pause=5.0).request(2, at=at, connection=connection)
        log.request(1, at=6.1).request(3, at=7).request(4, at=8)
        assert log.judged(Asked(heard=1.0, outages=[(0.5, 3.0)])).clean is clean
    log = _Log().request(1, at=0.99, status=429, pause=5.0).request(2, at=1.4)
    assert log.request(1, at=6.1).request(3, at=7).request(4, at=8).judged(Asked(heard=1.0)).clean


@pytest.mark.parametrize("status", [410, 415])
def test_after_the_last_word_is_uncalled(status: int) -> None:
    """A request after 410 or 415 is uncalled until the subscription is resumed."""
    log = _Log().request(1, at=1, status=status).request(1, at=3).request(2, at=4).request(3, at=5).request(4, at=6)
    assert len(log.judged().uncalled) == 4
    assert log.judged(Asked(resumed=[2])).clean


def test_what_was_on_record_needs_no_repeat() -> None:
    """Repeating an event that was settled at a kill is needless; repeating an unsettled one is not."""
    log = _good().request(4, at=9)
    assert _kinds(log.judged(Asked(on_record=[OnRecord(8, {"f": "4-0"}, {})]))) == {"needless"}
    assert log.judged(Asked(on_record=[OnRecord(8, {"f": "4-0"}, {"f": frozenset({"4-0"})})])).clean
    assert log.judged(Asked(on_record=[OnRecord(8, {"f": "3-0"}, {})])).clean


def test_a_signature_is_of_what_was_sent() -> None:
    """Only a matching signature is accepted, and none without a secret."""
    sent = {"content-type": "application/cloudevents+json", "webhook-id": "e1", "webhook-timestamp": "1"}
    digest = hmac.digest(b"k" * 32, b"e1.1." + _EVENTS["1"], hashlib.sha256)
    for signature, secret, right in (
        ("v1,x v1," + base64.b64encode(digest).decode(), _SECRET, True),
        ("v1,x", _SECRET, False),
        (None, _SECRET, False),
        ("v1,x", None, False),
        (None, None, True),
    ):
        headers = sent | ({"webhook-signature": signature} if signature else {})
        log: list[Line] = [Arrived(1, "a", 1, headers, _EVENTS["1"]), Ended(1, "a", 1, 204)]
        found = judge_deliveries(log, {"f": _ENTRIES[:1]}, Asked(secret=secret))
        assert found.clean is right


def test_binary_requests_are_read_from_their_headers() -> None:
    """A binary request has percent-decoded attributes in its headers and the data as its body."""
    event = {"id": "e1", "type": "t ä", "partitionkey": "A", "datacontenttype": "application/json", "data": {"n": 1}}
    headers = {"content-type": "application/json", "webhook-id": "e1", "ce-id": "e1", "ce-partitionkey": "A"}
    for spelled, right in (("t%20%C3%A4", True), ("t%20a", False)):
        log: list[Line] = [Arrived(1, "a", 1, headers | {"ce-type": spelled}, b'{"n": 1.0}'), Ended(1, "a", 1, 204)]
        found = judge_deliveries(log, {"f": [("1-0", json.dumps(event).encode())]})
        assert found.clean is right


def test_who_wakes_while_sending_may_finish_and_no_more() -> None:
    """A resumed process may finish as many requests as were in flight, with no new and no lost event."""
    assert _good().request(1, at=9).judged().kept_in_takeover(1)
    assert not _good().request(1, at=9).request(1, at=10).judged().kept_in_takeover(1)
    assert not _Log().request(1, at=1, status=500).request(3, at=2).judged().kept_in_takeover(8)
