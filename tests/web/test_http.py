"""Laws of :mod:`poller.web.http`: refusals have one form, and internal errors show no details."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from poller.clock import Clock
from poller.errors import StoreRefused, StoreUnavailable
from poller.http.server import listening
from poller.web.app import application
from poller.web.http import PROBLEM, InvalidParameter, PauseRequest, RequestRefused, at, decoded
from poller.web.subscription_schema import SubscriptionRequest
from tests.harness.growth import LINEAR, growth

SECRET = "s3cret"  # noqa: S105 -- of this test alone


def failing(error: Exception) -> BaseRoute:
    async def endpoint(_: Request) -> Response:
        raise error

    return at(f"/{type(error).__name__}", GET=endpoint)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_every_failure_is_a_problem() -> None:
    """Every failure is a problem document with its status and no secret; an internal error says no more than that."""
    errors = {
        RequestRefused(409, f"see redis://user:{SECRET}@db/0", errors=[InvalidParameter("a", "expected b")]): 409,
        StoreUnavailable(f"redis://user:{SECRET}@db/0 is away"): 503,
        StoreRefused("no"): 503,
        RuntimeError(SECRET): 500,
    }
    async with (
        listening(application(*map(failing, errors)), "127.0.0.1", 0, clock=Clock()) as url,
        aiohttp.ClientSession() as http,
    ):
        for error, status in errors.items():
            async with http.get(f"{url}/{type(error).__name__}") as answer:
                said = await answer.json(content_type=PROBLEM)
                assert (answer.status, said["status"]) == (status, status)
                assert said["title"]
                assert SECRET not in str(said)
                assert answer.headers["x-content-type-options"] == "nosniff" or status == 500
                assert ("retry-after" in answer.headers) is (status == 503)
        async with http.get(f"{url}/none") as answer:
            assert (answer.status, answer.content_type) == (404, PROBLEM)


@pytest.mark.parametrize("text", [" - at `$", "Object contains unknown field `", "`", "\n"])
def test_an_unknown_key_is_told_in_time_by_its_length(text: str) -> None:
    """A key that imitates the end of the decoder's message is reported in time linear in its length."""

    def told(size: int) -> None:
        body = msgspec.json.encode({text * (size // len(text)) + "\n": 1})
        assert isinstance(decoded(body, PauseRequest), list)

    assert growth(told, 8 * 1024) < LINEAR


def test_where_a_value_is_wrong_is_told() -> None:
    """A wrong value is reported by its path in the object."""
    assert decoded(b'{"reason":1}', PauseRequest) == [InvalidParameter("reason", "Expected `str`, got `int`")]
    headers = b'{"sink":"x","protocolsettings":{"headers":{"a":"b","X-Key":1,"c":2}}}'
    wrong = InvalidParameter("protocolsettings.headers.X-Key", "Expected `str`, got `int`")
    assert decoded(headers, SubscriptionRequest) == [wrong]
    assert decoded(b'{"x":1}', PauseRequest) == [InvalidParameter("x", "unknown key; known are reason")]
