"""A sandbox with profiles on a real socket, and a client that follows page tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import httpx

from poller.sandbox.faults.registry import chosen
from poller.sandbox.history import History
from poller.sandbox.server import serving
from tests.sandbox.conftest import NOON, client_of

LIST = "/contractTypes"
RECORDS = 7
ACHIEVEMENTS = "/qualifications/q/achievements"

Envelope = dict[str, Any]


class Stage:
    """A served history of seven contract types, ``c0`` to ``c6``, and one achievement, with an authorized client."""

    def __init__(self, history: History, client: httpx.AsyncClient, pages: aiohttp.ClientSession) -> None:
        self.history = history
        self._pages = pages
        self.client = client
        self.url = str(client.base_url).rstrip("/")

    async def get(self, path: str = LIST, **query: str | int) -> httpx.Response:
        return await self.client.get(path, params=query)

    async def page(self, **query: str | int) -> Envelope:
        """A page of contract types, by aiohttp because httpx sends no URL beyond 64 KiB."""
        async with self._pages.get(f"{self.url}{LIST}", params=query) as said:
            assert said.status == 200, await said.text()
            page: Envelope = await said.json()
            return page

    async def pages(self, *, most: int = 20, **query: str | int) -> list[Envelope]:
        """The pages of one round, three records each, at most ``most`` of them."""
        query = {"limit": 3, **query}
        pages = [await self.page(**query)]
        while pages[-1].get("pageToken") and len(pages) < most:
            pages.append(await self.page(**{**query, "pageToken": pages[-1]["pageToken"]}))
        return pages

    def change(self, *numbers: int, code: str = "new") -> None:
        for number in numbers:
            self.history.put("contractTypes", {"id": f"c{number}", "code": code, "name": f"n{number}"}, NOON)


Law = Callable[[Stage], Awaitable[None]]
"""Checks that a stage with a profile behaves as the profile's description says."""


@asynccontextmanager
async def stage(*profiles: str, faults: tuple[str, ...] = ()) -> AsyncIterator[Stage]:
    history = History()
    for number in range(RECORDS):
        history.put("contractTypes", {"id": f"c{number}", "code": "old", "name": f"n{number}"}, NOON)
    history.put("achievements", {"id": "a", "qualificationID": "q"}, NOON)
    choices = chosen(profiles, faults)
    async with (
        serving(history, rng=Random(7), now=lambda: NOON, choices=choices) as url,
        client_of(url) as client,
        aiohttp.ClientSession(headers={"authorization": "Bearer sandbox"}) as pages,
    ):
        yield Stage(history, client, pages)


async def shown(laws: Mapping[str, Law]) -> None:
    """Check each law on a stage with the profile of its name; concurrently, because a stage closes slowly."""

    async def show(name: str) -> None:
        try:
            async with stage(name) as api:
                await laws[name](api)
        except Exception as error:
            error.add_note(f"profile {name}")
            raise

    async with asyncio.TaskGroup() as group:
        for name in laws:
            group.create_task(show(name))


def ids(page: Envelope) -> list[str]:
    return [record["id"] for record in page["results"]]
