"""Laws of :mod:`poller.delivery.operational_events`, compared with the ``cloudevents`` SDK."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from cloudevents.core.exceptions import CloudEventValidationError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.cloudevent import Envelope, envelope_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announcement_bytes, operational_event

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
BASE = OperationalEvent(OperationType.SUBSCRIPTION_DISABLED, "rostering", NOON, "nothing but failures", {"failed": 9})


def written(**changed: Any) -> bytes:
    return announcement_bytes(msgspec.structs.replace(BASE, **changed))


def content(event: bytes) -> dict[str, Any]:
    read = JSONFormat().read(CloudEvent, event).get_data()
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize("kind", OperationType)
def test_an_announcement_is_a_cloud_event(kind: OperationType) -> None:
    """The SDK reads an operational event, and this program decodes it in one pass."""
    event = written(kind=kind)
    read = JSONFormat().read(CloudEvent, event)
    assert (read.get_type(), read.get_source(), read.get_subject()) == (kind, "poller", "rostering")
    assert read.get_time() == NOON
    assert content(event) == {"failed": 9, "reason": "nothing but failures"}
    ours = envelope_of(event)
    assert type(ours) is Envelope
    assert ours.attribute("partitionkey") == "rostering"
    assert re.fullmatch("[0-9a-f]{32}", ours.id)
    assert re.fullmatch(r"poller\.(subscription|feed|record)\.[a-z]+\.v1", ours.type)


@pytest.mark.parametrize("kind", OperationType)
def test_the_sdk_writes_the_same_bytes(kind: OperationType) -> None:
    """What the SDK reads of an operational event, it writes again byte for byte."""
    event = written(kind=kind, reason="caf\xe9 \u2192 \U0001f600")
    assert JSONFormat().write(JSONFormat().read(CloudEvent, event)) == event


def test_the_sdk_refuses_what_is_no_cloud_event() -> None:
    """What CloudEvents does not allow is not written, for the SDK is what writes."""
    with pytest.raises(CloudEventValidationError):
        operational_event(type_="poller.test.v1", subject="", event_id="1", at=NOON, data={})


def test_the_same_announcement_has_the_same_id_and_any_other_has_another() -> None:
    """The id depends on kind, subject, time, reason and details, but not on the order of the details."""
    details = {"a": 1, "b": "2"}
    assert written(details=details) == written(details=dict(reversed(details.items())))
    others = [
        written(),
        written(kind=OperationType.SUBSCRIPTION_PAUSED),
        written(subject="other"),
        written(at=NOON + timedelta(milliseconds=1)),
        written(reason="another"),
        written(details={"failed": 10}),
    ]
    assert len({envelope_of(event).id for event in others}) == len(others)


@given(st.text(max_size=400))
def test_any_reason_is_one_short_line(reason: str) -> None:
    """Any reason becomes one short printable line."""
    shown = content(written(reason=reason))["reason"]
    assert shown.isprintable()
    assert len(shown) <= 201


def test_no_credential_is_announced() -> None:
    """A reason that contains credentials is announced without them."""
    reason = "GET https://me:hunter2@example.org/?key=hunter2 Bearer hunter2hunter2 whsec_hunter2hunter2"
    event = written(reason=reason)
    assert b"hunter2" not in event
    assert b"example.org" in event
