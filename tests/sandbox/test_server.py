"""Laws of :mod:`poller.sandbox.server` as a separate process."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise, product
from typing import TYPE_CHECKING

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.errors import ConfigurationError
from poller.http.server import listener as listener_on
from poller.resources import RESOURCES
from poller.sandbox.api import SandboxRequest, SandboxResponse, answer
from poller.sandbox.data import seed
from poller.sandbox.history import History
from poller.sandbox.server import application, repeat, serving
from tests.harness.waiting import PATIENCE, strain
from tests.sandbox.conftest import NOON, client_of
from tests.sandbox.faults.stage import LIST, stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random


PROGRAM = """
import asyncio, functools
from poller.sandbox.server import run_sandbox
asyncio.run(run_sandbox(port=0, records=50, changes_per_second={rate}, seed=5, token="t",
    say=functools.partial(print, flush=True)))
print("stopped")
"""


@contextmanager
def sandbox(rate: float = 0) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM.format(rate=rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            told = re.fullmatch(r"sandbox API on (http://127\.0\.0\.1:\d+) \(token: t\); .*/_sandbox/log\n", line)
            assert told is not None, line
            headers = {"authorization": "Bearer t"}
            with httpx.Client(
                base_url=told[1], headers=headers, trust_env=False, timeout=PATIENCE * strain()
            ) as client:
                yield process, client
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_well(number: signal.Signals) -> None:
    """The first line names the address, and a signal ends the sandbox silently with 0, even under load."""
    with sandbox(rate=50) as (process, client):
        assert len(client.get("/employmentUnavailabilities").json()["results"]) > 20
        process.send_signal(number)
        out, err = process.communicate(timeout=10 * strain())
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_the_same_seed_at_every_start() -> None:
    """Two starts with one seed serve the same bytes."""
    logs = []
    for _ in range(2):
        with sandbox() as (_, client):
            logs.append(client.get("/_sandbox/log").content)
    assert logs[0] == logs[1]
    assert logs[0].count(b"\n") == 52


# Laws of :mod:`poller.sandbox.server`, on a fake clock.


class Enough(Exception):
    """Ends an endless loop."""


class Clock:
    """A clock that moves only in ``sleep``, each time by the next of ``overruns`` longer than requested."""

    def __init__(self, overruns: list[float]) -> None:
        self.now = 1000.0
        self.overruns = overruns

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self.overruns:
            raise Enough
        self.now += seconds + self.overruns.pop(0)


def run(clock: Clock, per_second: float) -> list[float]:
    done: list[float] = []
    with pytest.raises(Enough):
        asyncio.run(repeat(lambda: done.append(clock.now), per_second=per_second, clock=clock.time, sleep=clock.sleep))
    return done


@given(st.lists(st.floats(0, 0.5), max_size=30), st.floats(0.1, 300))
def test_each_is_done_when_due(overruns: list[float], rate: float) -> None:
    """However late the loop wakes up, every due action is done, none early and none skipped."""
    clock = Clock(overruns)
    done = run(clock, rate)
    elapsed = clock.now - 1000
    assert len(done) == pytest.approx(elapsed * rate, abs=1.001)
    for number, when in enumerate(done, start=1):
        assert (when - 1000) * rate >= number - 1e-6


def test_they_are_evenly_spaced() -> None:
    """On a punctual loop the actions are 1 / rate seconds apart."""
    done = run(Clock([0.0] * 8), 4)
    assert [later - earlier for earlier, later in pairwise(done)] == [0.25] * 7


def test_a_long_absence_is_caught_up_in_portions() -> None:
    """After a long delay the missed actions are done in portions, between which other tasks run."""
    clock = Clock([10.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    done = run(clock, 100)
    assert len(done) >= 1000
    assert clock.now == pytest.approx(1010.0, abs=0.05)


async def test_no_rate_does_nothing() -> None:
    """At a rate of zero ``repeat`` returns without acting."""
    await repeat(lambda: pytest.fail("acted"), per_second=0)


# Laws of :mod:`poller.sandbox.server`: the endpoints and their refusals, over a socket.

LISTS = ("evidenceVariants", "employmentUnavailabilities", "contractTypes")


@pytest.fixture
def seeded(history: History, rng: Random) -> None:
    seed(history, rng, records=300, at=NOON)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("name", LISTS)
async def test_a_list_and_its_singles(api: httpx.AsyncClient, history: History, name: str) -> None:
    """Paging lists each record once, each can be read by its id, and the following delta is empty."""
    path, query = RESOURCES[name].path, {"limit": "7"}
    seen = []
    while True:
        page = (await api.get(path, params=query)).json()
        seen += page["results"]
        if "pageToken" not in page:
            break
        query["pageToken"] = page["pageToken"]
    assert len({record["id"] for record in seen}) == len(seen) == history.count(name)
    assert (await api.get(f"{path}/{seen[-1]['id'].upper()}")).json() == seen[-1]
    delta = await api.get(path, params={"sinceDeltaToken": page["deltaToken"]})
    assert delta.json()["results"] == []
    assert delta.headers["content-type"] == "application/json"


@pytest.mark.usefixtures("seeded")
async def test_the_achievements_of_all_qualifications(api: httpx.AsyncClient, history: History) -> None:
    """The achievements are found under the qualifications that evidence variants name, and nowhere else."""
    variants = (await api.get("/evidenceVariants", params={"limit": 5000})).json()["results"]
    found = 0
    for qualification in {variant["qualificationID"] for variant in variants}:
        listed = (await api.get(f"/qualifications/{qualification}/achievements", params={"limit": 5000})).json()
        assert {record["qualificationID"] for record in listed["results"]} <= {qualification}
        found += len(listed["results"])
    assert found == history.count("achievements") > 0
    assert (await api.get("/achievements")).status_code == 404


@pytest.mark.usefixtures("seeded")
async def test_fields_over_http(api: httpx.AsyncClient) -> None:
    """The three encodings of ``fields`` give the same page."""
    pages = [
        (await api.get(f"/contractTypes?{query}")).json()["results"]
        for query in ("fields=name&fields=code", "fields=name,code", "fields[]=name&fields%5B%5D=code")
    ]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0][0].keys() == {"id", "name", "code"}


@pytest.mark.usefixtures("seeded")
async def test_every_refusal_is_json(api: httpx.AsyncClient, history: History, rng: Random) -> None:
    """400, 404 and 405 are JSON with a code and a message; 405 names the allowed methods."""
    achievement = history.pick("achievements", rng)
    assert achievement is not None
    refused = {
        400: [
            "/contractTypes?limit=0",
            "/contractTypes?fields=colour",
            "/contractTypes?pageToken=nonsense",
            f"/qualifications/{achievement.qualification}/achievements?sinceDeltaToken=x",
        ],
        404: ["/contractTypes/none", "/contractTypes/", "/positions", f"/qualifications/{achievement.id}/achievements"],
    }
    for status, paths in refused.items():
        for path in paths:
            said = await api.get(path)
            assert (said.status_code, said.json()["error"].keys()) == (status, {"code", "message"}), path
            assert said.headers["content-type"] == "application/json"
    not_allowed = await api.post("/contractTypes")
    assert (not_allowed.status_code, not_allowed.json()["error"]["code"]) == (405, "methodNotAllowed")
    assert "GET" in not_allowed.headers["allow"]


@pytest.mark.usefixtures("seeded")
async def test_a_wrong_credential_is_refused(api: httpx.AsyncClient) -> None:
    """Without the right bearer token every endpoint answers 401 with a challenge and no record."""
    del api.headers["authorization"]
    wrong = [{}, *({"authorization": value} for value in ("Bearer wrong", "Basic sandbox", "sandbox", "Bearer"))]
    paths = ("/evidenceVariants", "/contractTypes/x", "/qualifications/x/achievements")
    for path, headers in product(paths, wrong):
        said = await api.get(path, headers=headers)
        assert (said.status_code, said.json()["error"]["code"]) == (401, "unauthorized")
        assert said.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.usefixtures("seeded")
async def test_the_scheme_has_no_case(api: httpx.AsyncClient) -> None:
    """The scheme may be written ``bearer``."""
    assert (await api.get("/contractTypes", headers={"authorization": "bearer sandbox"})).status_code == 200


@pytest.mark.usefixtures("seeded")
async def test_head_has_no_body(api: httpx.AsyncClient) -> None:
    """HEAD answers as GET does, without the body."""
    said = await api.head("/contractTypes")
    assert (said.status_code, said.content) == (200, b"")
    assert int(said.headers["content-length"]) == len((await api.get("/contractTypes")).content)


@pytest.mark.usefixtures("seeded")
async def test_answers_can_be_replaced(history: History, rng: Random) -> None:
    """The endpoints return the answer of ``respond``."""

    def teapot_after_the_first(history: History, ask: SandboxRequest) -> SandboxResponse:
        return SandboxResponse(418, b"short") if ask.query else answer(history, ask)

    app = application(history, token="t", rng=rng, now=lambda: NOON, respond=teapot_after_the_first)  # noqa: S106 - a test's
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://sandbox", headers={"authorization": "Bearer t"}
    ) as client:
        assert (await client.get("/contractTypes")).status_code == 200
        assert (await client.get("/contractTypes?limit=1")).status_code == 418


# Laws of :mod:`poller.sandbox.server`.


async def test_nothing_is_left_behind(history: History, rng: Random) -> None:
    """After the block no task is left and the port refuses connections, even with a client still connected."""
    before = asyncio.all_tasks()
    async with client_of("http://unused") as client:
        async with serving(history, rng=rng, changes_per_second=100) as url:
            assert (await client.get(f"{url}/contractTypes")).status_code == 200
        assert asyncio.all_tasks() == before
        with pytest.raises(httpx.TransportError):
            await client.get(f"{url}/contractTypes")


def test_small_answers_do_not_wait() -> None:
    """The listening socket lets asyncio disable Nagle's algorithm on its connections."""
    with listener_on("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_signals_are_left_alone(history: History, rng: Random) -> None:
    """Serving changes no signal handler, neither while it runs nor afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    async with serving(history, rng=rng):
        assert [signal.getsignal(number) for number in numbers] == before
    assert [signal.getsignal(number) for number in numbers] == before


async def test_an_error_in_the_block_passes_through(history: History, rng: Random) -> None:
    """An error of the block passes through unchanged, and the server is stopped."""
    before = asyncio.all_tasks()
    with pytest.raises(LookupError, match="mine"):
        async with serving(history, rng=rng):
            raise LookupError("mine")
    assert asyncio.all_tasks() == before


async def test_a_busy_port_is_the_operators(history: History, rng: Random) -> None:
    """A port in use is a configuration error that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=str(port)):
            async with serving(history, rng=rng, port=port):
                pytest.fail("served on a port in use")


async def test_changes_happen_by_themselves(history: History, rng: Random) -> None:
    """With a rate the version rises by itself, never faster than the rate, and stops with the server."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with serving(history, rng=rng, changes_per_second=400) as url, client_of(url) as client:
        version = 0
        while version < 40:
            version = (await client.get("/_sandbox/version")).json()["version"]
            assert version <= (loop.time() - start) * 400
    assert len(list(history.since(0))) == history.version


async def test_the_token_can_be_chosen(history: History, rng: Random) -> None:
    """Another token than the default opens the API, and the default does not."""
    async with serving(history, rng=rng, token="other") as url:  # noqa: S106 - a test's
        async with client_of(url, "other") as client:
            assert (await client.get("/contractTypes")).status_code == 200
        async with client_of(url) as client:
            assert (await client.get("/contractTypes")).status_code == 401


async def test_requests_side_by_side(history: History, rng: Random) -> None:
    """Concurrent requests over many connections are all answered."""
    async with serving(history, rng=rng) as url, client_of(url) as client:
        answers = await asyncio.gather(*(client.get("/contractTypes") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}


# Laws of :mod:`poller.sandbox.server`, over a socket; the profiles' own tests show what is sent.


@pytest.mark.parametrize("name", ["drip", "reset", "cut-with-length", "cut-without-length", "cut-chunked"])
async def test_nothing_is_left_of_a_broken_answer(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """However a connection ends, the server logs no warning and leaves no task."""
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
    """A dripping or reset connection does not affect other connections."""
    profiles = ("drip@contractTypes", "reset@employmentUnavailabilities")
    async with stage(*profiles) as api, api.client.stream("GET", LIST) as dripping:
        assert dripping.status_code == 200
        with pytest.raises(httpx.TransportError):
            await api.get("/employmentUnavailabilities")
        assert (await api.get("/evidenceVariants")).json()["results"] == []


async def test_a_reader_that_leaves_ends_a_drip() -> None:
    """A drip ends when its reader disconnects, so the sandbox stops without delay."""
    loop = asyncio.get_running_loop()
    async with stage("drip") as api:
        async with api.client.stream("GET", LIST) as said:
            assert int(said.headers["content-length"]) > 300
        start = loop.time()
    assert loop.time() - start < 2 * strain()  # how long uvicorn would wait for a running task
