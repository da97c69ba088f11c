"""Laws of the documents: programs and tables work as printed, and links resolve."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Final

import pytest
from redis import Redis
from redis.exceptions import RedisError

from poller.changes.records import Record, record_reader
from poller.clock import Clock
from poller.config.load import load
from poller.delivery.signing import new_secret
from poller.delivery.sinks.base import Failure, Outcome, SinkEvent
from poller.delivery.sinks.webhook import SignedRequests, WebhookSink
from poller.http.ssrf import AddressPolicy
from poller.lifecycle import at_once
from poller.source.paging import decode_page
from tests.delivery.events import entry, pair
from tests.document_tables import TABLES
from tests.documents import DOCUMENTS, MANUAL, README, ROOT, anchors, block, prose, table
from tests.harness.waiting import blocking_until, strain, until
from tests.node import needs_node
from tests.programs import bare_environ
from tests.receiver import receiving
from tests.servers import free_port, running

SECRET: Final = new_secret(b"s" * 32)
OTHER: Final = new_secret(b"o" * 32)
EVENT: Final = entry(b'{"id":"K","name":"caf\xc3\xa9"}', key="K")


@contextmanager
def program(*command: str, cwd: Path | None = None, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs during the block."""
    environ = {name: os.environ[name] for name in ("PATH", "NODE_PATH") if name in os.environ} | environ
    environ = {"PYTHONPATH": str(ROOT)} | environ  # a program of the documents stands in another directory
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=pipe, stderr=nowhere, env=environ, cwd=cwd, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until_killed(process: subprocess.Popen[str], count: int, begins: str = "") -> list[str]:
    """Kill it after this many lines that match; all matching lines, including those written before it died."""
    assert process.stdout is not None
    lines = (line for line in iter(process.stdout.readline, "") if re.match(begins, line))
    found = list(islice(lines, count))
    process.kill()
    return [*found, *lines]


async def answer_to(url: str, *secrets: str, event: bytes = EVENT) -> Outcome:
    """The outcome of an event signed with these secrets at a receiver that is about to listen."""
    requests, allowed = SignedRequests(secrets=secrets), AddressPolicy.of(("127.0.0.1",))
    limit = timedelta(minutes=2)
    async with WebhookSink(
        url, requests=requests, timeout=limit, concurrency=1, allowed=allowed, clock=Clock()
    ) as sink:

        async def answer() -> Outcome | None:
            outcome = await sink.send([SinkEvent(*pair(event))])
            return None if outcome.failure is Failure.REFUSED else outcome

        return await until(answer, "the receiver to listen and to answer", every=0.1)


@needs_node("lossless-json")
def test_what_the_document_says_of_large_integers_in_javascript_is_true() -> None:
    """``JSON.parse`` rounds an integer beyond 2^53; the library that the document names keeps it."""
    assert "`lossless-json`" in MANUAL.read_text("utf-8")
    large = str(2**53 + 1)
    shown = "JSON.parse(text).id + ' ' + require('lossless-json').parse(text).id"
    script = f"const text = '{{\"id\":{large}}}'; process.stdout.write({shown})"
    with program("node", "-e", script) as node:
        assert node.stdout is not None
        assert node.stdout.read() == f"{2**53} {large}"


RUN: Final = ("run", "--port", "8000")
FLASK: Final = (sys.executable, "-m", "flask", "--app")
FASTAPI: Final = (sys.executable, "-m", "uvicorn", "--log-level=error", "--port=8000")


@pytest.mark.parametrize(
    ("name", "command", "path"),
    [
        ("receiver.py", (sys.executable, "receiver.py"), ""),
        ("receiver_mounted.py", (*FASTAPI, "receiver_mounted:app"), "hooks/"),
        ("receiver_mounted_flask.py", (*FLASK, "receiver_mounted_flask", *RUN), "hooks"),
        ("receiver_verify.py", (*FLASK, "receiver_verify", *RUN), "hooks"),
        ("receiver_flask.py", (*FLASK, "receiver_flask", *RUN), ""),
        ("receiver_fastapi.py", (*FASTAPI, "receiver_fastapi:app"), ""),
        pytest.param("receiver.js", ("node", "receiver.js"), "", marks=needs_node("standardwebhooks")),
        pytest.param(
            "receiver.express.js", ("node", "receiver.express.js"), "", marks=needs_node("standardwebhooks", "express")
        ),
    ],
)
async def test_the_receivers(name: str, command: tuple[str, ...], path: str, tmp_path: Path) -> None:
    """A receiver refuses an event signed with another secret, and accepts one signed with its own among others."""
    port = str(free_port())
    assert len([line for line in block(name).splitlines() if line]) <= 18
    (tmp_path / name).write_text(block(name).replace("8000", port), "utf-8")
    command = tuple(word.replace("8000", port) for word in command)
    with program(*command, cwd=tmp_path, SECRET=SECRET) as receiver:
        url = f"http://127.0.0.1:{port}/{path}"
        assert (await answer_to(url, OTHER)).status == 401
        assert (await answer_to(url, OTHER, SECRET)).status == 204
        assert receiver.stdout is not None
        lines = iter(receiver.stdout.readline, "")
        assert "org.example.api.contractType.created.v1 K 1\n" in lines


def test_a_receiver_without_a_secret_ends_at_once(tmp_path: Path) -> None:
    """A receiver without a secret exits with an error that names the secret."""
    file = tmp_path / "receiver.py"
    file.write_text(block(file.name).replace("8000", str(free_port())), "utf-8")
    ended = subprocess.run(
        [sys.executable, str(file)],
        env=bare_environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * strain(),
    )
    assert (ended.returncode, "SECRET" in ended.stderr) == (1, True)


async def test_the_receiver_writes_whole_lines(tmp_path: Path) -> None:
    """With many concurrent requests the receiver still prints each event on a line of its own, and each once."""
    port = str(free_port())
    file = tmp_path / "receiver.py"
    file.write_text(block(file.name).replace("8000", port), "utf-8")
    with program(sys.executable, "-u", str(file), SECRET=SECRET) as receiver:
        url = f"http://127.0.0.1:{port}/"
        await answer_to(url, SECRET, event=entry(key="K0"))
        events = [entry(key=f"K{number}") for number in range(40)] * 2
        outcomes = await asyncio.gather(*(answer_to(url, SECRET, event=event) for event in events))
        assert {outcome.status for outcome in outcomes} == {204}
        assert receiver.stdout is not None
        lines = [receiver.stdout.readline() for _ in range(40)]
        receiver.kill()
        assert receiver.stdout.read() == ""
    assert sorted(lines) == sorted(f"org.example.api.contractType.created.v1 K{number} 1\n" for number in range(40))


async def test_the_receiver_survives_kills(tmp_path: Path) -> None:
    """A receiver that is killed repeatedly shows each of forty events whose sender tries until it is acknowledged."""
    port = str(free_port())
    file = tmp_path / "receiver.py"
    file.write_text(block(file.name).replace("8000", port), "utf-8")
    url, shown, missing = f"http://127.0.0.1:{port}/", set[str](), [f"K{number:02}" for number in range(40)]
    while missing:
        with program(sys.executable, "-u", str(file), SECRET=SECRET) as receiver:
            await answer_to(url, OTHER)  # it listens
            sent = {key: asyncio.create_task(answer_to(url, SECRET, event=entry(key=key))) for key in missing}
            lines = await asyncio.to_thread(until_killed, receiver, min(9, len(missing)))
            shown |= {line.split()[1] for line in lines if line.endswith("\n")}  # else the kill has cut it
            for task in sent.values():
                task.cancel()
            await asyncio.wait(sent.values())
        ended = {key: task for key, task in sent.items() if not task.cancelled() and not task.exception()}
        done = {key for key, task in ended.items() if task.result().status == 204}
        assert done <= shown  # what was acknowledged was shown before
        missing = [key for key in missing if key not in done]
    assert len(shown) == 40


STREAM: Final = "poller:{acme/employmentUnavailabilities}:events"
LEASE: Final = "__import__('datetime').timedelta(seconds=2)"
"""A shorter one than that of the document: the next consumer waits for it after each kill."""


@pytest.mark.parametrize("name", ["consumer.py", "consumer_redis.py"])
def test_the_consumer_survives_kills(name: str, tmp_path: Path) -> None:
    """A consumer that is killed five times shows each of forty entries and leaves none pending.

    It also claims the entries of two consumers that died before it started.
    """
    subjects = [f"K{number:02}" for number in range(40)]
    with running("valkey", tmp_path, tcp=True) as server, Redis.from_url(server.url) as store:
        for subject in subjects:
            store.xadd(STREAM, {"data": entry(b'{"id":"%b"}' % subject.encode(), key=subject)})
        store.xgroup_create(STREAM, "rostering", id="0")
        for dead in ("dead-1", "dead-2"):
            ((_, entries),) = store.xreadgroup("rostering", dead, {STREAM: ">"}, count=3)
            store.xclaim(STREAM, "rostering", dead, 0, [entry_id for entry_id, _ in entries], idle=120_000)
        file = tmp_path / name
        text = block(name).replace("redis://127.0.0.1:6379/0", server.url)
        file.write_text(text.replace('"consumer-1") as', f'"consumer-1", lease={LEASE}) as'), "utf-8")
        seen: list[str] = []
        for _ in range(5):
            if len(set(seen)) <= len(subjects) - 9:  # else it may have shown all, and shows nothing more
                with program(sys.executable, str(file), PYTHONPATH=str(ROOT)) as consumer:
                    seen += [line.split()[1] for line in until_killed(consumer, 9)]
        with program(sys.executable, str(file), PYTHONPATH=str(ROOT)) as consumer:
            blocking_until(lambda: _is_settled(store), "every acknowledgement")
            seen += [line.split()[1] for line in until_killed(consumer, 0)]
        assert set(seen) == set(subjects)


def _is_settled(store: Redis) -> bool:
    (group,) = store.xinfo_groups(STREAM)
    return bool(group["lag"] == 0 and group["pending"] == 0)


FORMS: Final = ("one", "many")


@pytest.mark.thorough
def test_faststream_reads_the_stream(tmp_path: Path) -> None:
    """Each of the two forms gets every later event, although it is killed twice."""
    subjects = [f"K{number:02}" for number in range(40)]
    with running("valkey", tmp_path, tcp=True) as server, Redis.from_url(server.url) as store:
        file = tmp_path / "faststream_app.py"
        text = block(file.name).replace("redis://127.0.0.1:6379/0", server.url)
        assert text.count("60_000") == 1
        file.write_text(text.replace("60_000", "500"), "utf-8")
        run = "import asyncio, faststream_app; asyncio.run(faststream_app.app.run())"
        missing = {
            f"{form} org.example.api.contractType.created.v1 {subject}\n" for form in FORMS for subject in subjects
        }
        for added in (subjects[:20], subjects[20:]):  # each reader has something to read when it is killed
            with program(sys.executable, "-c", run, cwd=tmp_path) as reader:
                blocking_until(lambda: len(store.xinfo_groups(STREAM)) == 2, "both groups", despite=(RedisError,))
                for subject in added:
                    store.xadd(STREAM, {"data": entry(b'{"id":"%b"}' % subject.encode(), key=subject)})
                missing -= {*until_killed(reader, 5, "one|many")}
        with program(sys.executable, "-c", run, cwd=tmp_path) as reader:
            assert reader.stdout is not None
            while missing:
                missing.discard(reader.stdout.readline())


@pytest.mark.thorough
def test_the_traces(tmp_path: Path) -> None:
    """The documented command prints a span for each round, even for one that cannot send a request."""
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
    """A webhook has the documented headers, in order."""
    shown = [line.partition(":")[0] for line in block("request").partition("\n\n")[0].splitlines()[1:]]
    async with receiving() as sink:
        await answer_to(f"{sink.url}/hooks", SECRET)
    assert [name for name, _ in sink.requests[0].headers] == shown


def test_the_page() -> None:
    """The documented page is a valid list envelope with both tokens, and its record is usable."""
    page = at_once(decode_page(block("page").encode()))
    assert page.page_token
    assert page.delta_token
    (record,) = map(record_reader("id"), page.records)
    assert isinstance(record, Record)
    assert record.modified is not None


def test_the_configuration(tmp_path: Path) -> None:
    """The documented tables form one valid configuration."""
    file = tmp_path / "poller.toml"
    file.write_text(block("poller.toml") + block("subscription.toml"), "utf-8")
    assert [one.id for one in load(file, {}).subscriptions] == ["rostering"]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables(name: str) -> None:
    """The generated tables are up to date; ``python -m tests.document_tables`` writes them."""
    assert table(name) == TABLES[name]()


_LINK: Final = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_CODE_SPAN: Final = re.compile(r"`([^`\n]+)`")
_PATH: Final = re.compile(r"\w[\w.-]*(?:/[\w.-]+)*\.(?:py|md|yml|yaml|toml|json|conf|acl|lua|service)")
_LONGEST_README: Final = 300
_NOT_OURS: Final = {"trial/poller.toml", "trial/receiver.py", "cli/tools.py"}
"""Files that the reader makes, and a module path of the architecture."""


def links(file: Path) -> list[str]:
    """The targets of a document's links."""
    return _LINK.findall(_CODE_SPAN.sub("code", prose(file)))


def test_the_readme_is_short() -> None:
    """The README is short, because operators and developers have documents of their own."""
    assert len(README.read_text("utf-8").splitlines()) <= _LONGEST_README


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_links(file: Path) -> None:
    """A link within the checkout leads to an existing file and an existing heading."""
    found = links(file)
    assert found
    for link in found:
        target, _, anchor = link.partition("#")
        if target.startswith("https://"):
            continue
        there = (file.parent / target).resolve() if target else file
        assert there.is_file(), link
        assert there.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(there), link


def test_the_readme_can_be_read_on_a_package_index() -> None:
    """The README has only internal and absolute links, and its anchors exist once it is rendered."""
    assert [link for link in links(README) if not link.startswith(("#", "https://"))] == []
    markdown = pytest.importorskip("readme_renderer.markdown", reason="needs readme_renderer, of the extra test")
    html = markdown.render(README.read_text("utf-8"))
    wanted = set(re.findall(r'href="#([^"]+)"', html))
    assert len(wanted) > len({link for link in links(README) if link.startswith("#")})  # and the headings' own
    assert wanted <= set(re.findall(r'id="([^"]+)"', html))


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_files_that_are_named(file: Path) -> None:
    """Every project file that a document names exists, relative to the root or to the document."""
    named = {span for span in _CODE_SPAN.findall(prose(file)) if "/" in span and _PATH.fullmatch(span)}
    assert {name for name in named - _NOT_OURS if not any((at / name).exists() for at in (ROOT, file.parent))} == set()
