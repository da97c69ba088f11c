"""Laws of :mod:`poller.sandbox.wire`, over a socket; the profiles' own tests show what is sent."""

from __future__ import annotations

import asyncio
import logging

import httpx
import pytest

from tests.harness.waiting import strain
from tests.sandbox.profiles.stage import LIST, stage


@pytest.mark.parametrize("name", ["drip", "reset", "cut-with-length", "cut-without-length", "cut-chunked"])
async def test_nothing_is_left_of_a_broken_answer(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """However a connection ends, the server has nothing to complain about and no task stays behind."""
    before = asyncio.all_tasks()
    with caplog.at_level(logging.WARNING):
        async with stage(name) as api:
            try:
                async with api.client.stream("GET", LIST) as said:
                    async for _ in said.aiter_raw():
                        break  # the reader leaves after the first bytes
            except httpx.TransportError:
                assert name == "reset"
            async with api.client.stream("POST", "/_sandbox/expire") as said:
                assert said.status_code == 204
    assert caplog.records == []
    assert asyncio.all_tasks() == before


async def test_a_broken_answer_breaks_its_own_connection_only() -> None:
    """Requests on other connections are answered while one is dripping, and after one was reset."""
    profiles = ("drip@contractTypes", "reset@employmentUnavailabilities")
    async with stage(*profiles) as api, api.client.stream("GET", LIST) as dripping:
        assert dripping.status_code == 200
        with pytest.raises(httpx.TransportError):
            await api.get("/employmentUnavailabilities")
        assert (await api.get("/evidenceVariants")).json()["results"] == []


async def test_a_reader_that_leaves_ends_a_drip() -> None:
    """The sandbox stops at once although a drip has minutes to go: its reader is gone."""
    loop = asyncio.get_running_loop()
    async with stage("drip") as api:
        async with api.client.stream("GET", LIST) as said:
            assert int(said.headers["content-length"]) > 300
        start = loop.time()
    assert loop.time() - start < 2 * strain()  # uvicorn would wait so long for a task that goes on
