"""Laws of the README: what it shows does what it says. Programs and tables are taken from it as they stand there."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest
from redis import Redis

from poller.changes.records import Record, record_reader
from poller.config.load import load
from poller.delivery.formats import RequestForm
from poller.delivery.outcome import Failure, Outcome
from poller.delivery.signing import Signer, new_secret
from poller.delivery.sink import Sink
from poller.http.addresses import Allowance
from poller.source.envelope import decode_page
from tests.delivery.events import entry, pair
from tests.node import needs_node
from tests.readme import block, table
from tests.readme_tables import TABLES
from tests.receiver import receiving
from tests.servers import running

SECRET: Final = new_secret(b"s" * 32)
OTHER: Final = new_secret(b"o" * 32)
EVENT: Final = entry(b'{"id":"K","name":"caf\xc3\xa9"}', key="K")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def program(*command: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """It runs while the block does."""
    environ = {name: os.environ[name] for name in ("PATH", "NODE_PATH") if name in os.environ} | environ
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=pipe, stderr=nowhere, env=environ, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def answer_to(url: str, *secrets: str) -> Outcome:
    """What a receiver that is about to listen says to an event signed with these."""
    request = RequestForm("structured", signer=Signer(secrets), user_agent="poller").request(
        [pair(EVENT)], timestamp=int(time.time())
    )
    allowed = Allowance.of(("127.0.0.1",))
    async with Sink(url, timeout=timedelta(seconds=20), concurrency=1, allowed=allowed) as sink, asyncio.timeout(20):
        while (outcome := await sink.post(tuple(request.headers.items()), request.body)).failure is Failure.REFUSED:
            pass  # it does not listen yet; each attempt is a turn of the loop
        return outcome


@pytest.mark.parametrize(
    ("name", "interpreter"),
    [
        ("receiver.py", (sys.executable, "-u")),
        pytest.param("receiver.js", ("node",), marks=needs_node("standardwebhooks")),
    ],
)
async def test_the_receivers(name: str, interpreter: tuple[str, ...], tmp_path: Path) -> None:
    """A receiver refuses what another secret has signed, and takes an event, whichever of two secrets is its own."""
    port = free_port()
    assert block(name).count("8000") == 1
    assert len([line for line in block(name).splitlines() if line]) <= 15
    file = tmp_path / name
    file.write_text(block(name).replace("8000", str(port)), "utf-8")
    with program(*interpreter, str(file), SECRET=SECRET) as receiver:
        url = f"http://127.0.0.1:{port}/"
        assert (await answer_to(url, OTHER)).status == 401
        assert (await answer_to(url, OTHER, SECRET)).status == 204
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "org.example.api.contractType.created.v1 K 1\n"


def test_the_consumer(tmp_path: Path) -> None:
    """It reads what was published before it came, one entry after the other, and acknowledges each."""
    stream = "poller:{acme/employmentUnavailabilities}:events"
    with running("valkey", tmp_path, tcp=True) as server, Redis.from_url(server.url) as store:
        for _ in range(2):
            store.xadd(stream, {"data": EVENT})
        file = tmp_path / "consumer.py"
        file.write_text(block("consumer.py").replace("redis://127.0.0.1:6379/0", server.url), "utf-8")
        with program(sys.executable, "-u", str(file)) as consumer:
            assert consumer.stdout is not None
            read = [consumer.stdout.readline().split() for _ in range(2)]
        assert read == [["org.example.api.contractType.created.v1", "K"]] * 2
        assert store.xpending(stream, "rostering")["pending"] <= 1  # the second may have been read and no more


def test_the_traces(tmp_path: Path) -> None:
    """What is to show spans shows them; a round that cannot even ask has one."""
    command = block("tracing").splitlines()[0].partition("#")[0]
    with running("valkey", tmp_path, tcp=True) as server:
        environ = {"REDIS_URL": server.url, "POLLER_BASE_URL": "http://127.0.0.1:9", "POLLER_TOKEN_FILE": "/nowhere"}
        said = subprocess.run(
            ["sh", "-c", command.replace("poller", f"{sys.executable} -m poller")],
            cwd=Path(__file__).parent.parent,
            env={"PATH": os.environ["PATH"]} | environ,
            capture_output=True,
            text=True,
            check=False,
        )
    assert said.stderr.count('"name": "round"') == 4, said.stderr


async def test_the_request() -> None:
    """A webhook has the headers that are shown, in their order."""
    shown = [line.partition(":")[0] for line in block("request").partition("\n\n")[0].splitlines()[1:]]
    async with receiving() as sink:
        await answer_to(f"{sink.url}/hooks", SECRET)
    assert [name for name, _ in sink.requests[0].headers] == shown


def test_the_page() -> None:
    """It is a list envelope with everything that one may have, and its record can be used."""
    page = decode_page(block("page").encode())
    assert page.page_token
    assert page.delta_token
    (record,) = map(record_reader("id"), page.records)
    assert isinstance(record, Record)
    assert record.modified is not None


def test_the_configuration(tmp_path: Path) -> None:
    """The tables are one valid configuration."""
    file = tmp_path / "poller.toml"
    file.write_text(block("poller.toml") + block("subscription.toml"), "utf-8")
    assert [one.id for one in load(file, {}).subscriptions] == ["rostering"]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables(name: str) -> None:
    """They say what the code says; ``python -m tests.readme_tables`` writes them."""
    assert table(name) == TABLES[name]()
