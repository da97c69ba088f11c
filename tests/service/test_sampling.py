"""Laws of :mod:`poller.service.sampling`: what is sent is what the subscription's own events would be sent as."""

from __future__ import annotations

import base64
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from poller.config.subscribing import subscription_of
from poller.delivery.handshake import Granted, Refused, encoded
from poller.delivery.outcome import Failure
from poller.delivery.signing import new_secret
from poller.errors import ConfigurationError
from poller.service.sampling import TYPE, NotGranted, Sampled, sample
from tests.receiver import Reply, receiving
from tests.service.subscribed import NOW, configured

KEY = bytes(range(32))


async def sampled(
    tmp_path: Path, url: str, handshake: bytes | None = None, brought: bytes | None = None, **more: Any
) -> Sampled:
    values = {"id": "a", "sink": url, "allow_private": True, **more}
    one = subscription_of(values, configured(tmp_path), where="x")
    secrets = (new_secret(KEY),)
    return await sample(
        one,
        secrets=secrets,
        handshake=handshake,
        environ={"TOKEN": "t0ken-t0ken"},
        event_id="e1",
        now=NOW,
        brought=brought,
    )


async def test_the_sample_is_sent_as_events_are(tmp_path: Path) -> None:
    """Its headers, its credential and a signature that verifies; the event says that it is a test, and of whom."""
    async with receiving(Reply(200, body=b"thanks")) as receiver:
        more: dict[str, Any] = {"headers": {"X-Tenant": "seven"}, "auth": {"token_env": "TOKEN"}}
        found = await sampled(tmp_path, f"{receiver.url}/hook", **more)
        (request,) = receiver.requests
    assert (found.outcome.status, found.outcome.excerpt) == (200, b"thanks")
    assert request.body == found.request.body
    assert (request.header("x-tenant"), request.header("authorization")) == ("seven", "Bearer t0ken-t0ken")
    event = json.loads(request.body)
    assert (event["type"], event["subject"], event["id"], event["source"]) == (TYPE, "a", "e1", "poller")
    signed = b"e1.%d." % NOW.timestamp() + request.body
    signature = base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
    assert request.header("webhook-signature") == f"v1,{signature}"


async def test_the_sample_has_what_a_request_has_brought(tmp_path: Path) -> None:
    """Of a token that has expired it is told where the sink refuses it; one that cannot be read is an error."""
    kept = b'{"credentialtype":"ACCESSTOKEN","accesstoken":"brought","accesstokenexpiresutc":"2026-03-02T08:14:00Z"}'
    async with receiving(Reply(401)) as receiver:
        found = await sampled(tmp_path, receiver.url, brought=kept)
        assert receiver.requests[0].header("authorization") == "Bearer brought"
        assert found.outcome.text == "the sink answered 401; the access token expired at 2026-03-02T08:14:00Z"
        with pytest.raises(ConfigurationError, match="bring it anew"):
            await sampled(tmp_path, receiver.url, brought=b"brought")
        assert receiver.count == 1


@pytest.mark.parametrize("mode", ["binary", "batch"])
async def test_in_its_own_mode(tmp_path: Path, mode: str) -> None:
    """Binary: the attributes are headers; batch: a list of one."""
    async with receiving() as receiver:
        await sampled(tmp_path, receiver.url, mode=mode)
        (request,) = receiver.requests
    if mode == "binary":
        assert request.header("ce-type") == TYPE
    else:
        assert [event["type"] for event in json.loads(request.body)] == [TYPE]


async def test_without_a_grant_nothing_is_sent(tmp_path: Path) -> None:
    """A sink that has to grant events first gets one only when it has, under the origin that it has granted."""
    async with receiving() as receiver:
        for kept in (None, encoded(Refused("no")), b"[]"):
            with pytest.raises(NotGranted):
                await sampled(tmp_path, receiver.url, kept, validate=True)
        assert not receiver.requests
        await sampled(tmp_path, receiver.url, encoded(Granted("poller.example.org")), validate=True)
        assert receiver.requests[0].header("webhook-request-origin") == "poller.example.org"


async def test_a_sink_that_is_not_there(tmp_path: Path) -> None:
    """Is an outcome and no error."""
    async with receiving() as receiver:
        url = receiver.url
    assert (await sampled(tmp_path, url)).outcome.failure is Failure.REFUSED
