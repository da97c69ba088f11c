"""``poller receive``: what it prints, what it refuses, and its end."""

from __future__ import annotations

import json
import re
import signal
from asyncio import StreamReader
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from poller.delivery.signing import public_key
from tests.cli.conftest import Called, Poller, started
from tests.client.webhooks import BATCH, OTHER, PRIVATE, SECRET, batch, event, post, request_of
from tests.harness.waiting import limited
from tests.programs import Running


class Receiving(NamedTuple):
    """A running command."""

    process: Running
    url: str
    head: list[str]

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await self.process.stdout.readline()).decode().rstrip("\n")

    async def complaint(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.readline()).decode().rstrip("\n")

    async def ended(self) -> str:
        """Interrupt it; it ends with 0. The rest of its output."""
        self.process.send_signal(signal.SIGINT)
        out, _ = await self.process.communicate()
        assert self.process.returncode == 0
        return out.decode()


@asynccontextmanager
async def receiving(directory: Path, *options: str, secret: str | None = SECRET) -> AsyncIterator[Receiving]:
    """``poller receive`` on any port, with a file that holds this secret."""
    if secret is not None:
        file = directory / "secret"
        file.write_text(f"{secret}\n", "utf-8")
        file.chmod(0o600)
        options = (*options, "--secret-file", str(file))
    async with limited(), started("receive", "--port", "0", *options, cwd=directory) as process:
        reader: StreamReader | None = process.stderr if "--json" in options else process.stdout
        assert reader is not None
        head = [(await reader.readline()).decode().strip().removeprefix("poller: ") for _ in range(2)]
        yield Receiving(process, head[0], head)


async def test_it_prints_one_line_an_event(tmp_path: Path) -> None:
    """It prints its URL, how to subscribe, then a line for each new event; Ctrl-C ends it with 0."""
    async with receiving(tmp_path) as command:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", command.url)
        subscribe = f"poller subscriptions add receiver {command.url} --allow-private --secret-file {tmp_path}/secret"
        assert command.head[1] == f"To subscribe: {subscribe}"
        for mode in ("structured", "binary", "batch"):
            headers, body = request_of(mode, f"key-of-{mode}")
            for _ in range(2):
                assert (await post(command.url, body, headers=headers)).status == 204
            shown = f"contractTypes  created   {f'key-of-{mode}'[:8]}  r1  big: 123456789012345678901234567890"
            assert (await command.line()).endswith(f"12:00:00.125  {shown}")
        assert await command.ended() == ""


async def test_other_events_have_a_line_too(tmp_path: Path) -> None:
    """Events of other programs are shown by type and subject; what a terminal might obey is escaped."""
    async with receiving(tmp_path) as command:
        body = event("a", source="/x/orders", type="t.\x1b[2J", subject="s\n")
        assert (await post(command.url, body)).status == 204
        assert (await command.line()).endswith(r"  orders  t.\x1b[2J  s\n")


async def test_json(tmp_path: Path) -> None:
    """``--json`` prints each event as it was received, on a line, and nothing else on standard output."""
    written = (
        b'{ "specversion": "1.0", "id": "a", "source": "/s", "type": "t",\n "data": {"n": 0.10, "s": "\xc3\xa9"} }'
    )
    async with receiving(tmp_path, "--json") as command:
        assert (await post(command.url, written)).status == 204
        assert (await post(command.url, event("b", subject="\\ud800"))).status == 204
        assert await command.line() == (
            '{"specversion":"1.0","id":"a","source":"/s","type":"t","data":{"n":0.10,"s":"é"}}'
        )
        assert json.loads(await command.line())["id"] == "b"
        assert await command.ended() == ""


async def test_what_is_not_signed_is_refused(tmp_path: Path) -> None:
    """An event with another signature is refused, not printed, and standard error says why."""
    async with receiving(tmp_path) as command:
        answer = await post(command.url, event("a", subject="hidden"), OTHER)
        assert answer.status == 401
        complaint = await command.complaint()
        assert complaint.startswith("poller: a request was refused with 401: no signature matches")
        assert (await post(command.url, batch("b"), content_type=BATCH)).status == 204
        assert "t  b" in await command.line()
        assert "hidden" not in await command.ended()


async def test_without_a_secret_it_says_so(tmp_path: Path) -> None:
    """Without a secret everything is accepted, which standard error says, and the subscription has none."""
    async with receiving(tmp_path, secret=None) as command:
        assert command.head[1].endswith("--allow-private --no-secret")
        assert (await command.complaint()).startswith("poller: NOT VERIFIED: ")
        answer = await post(command.url, event("a"), headers={"Content-Type": "application/cloudevents+json"})
        assert answer.status == 204
        assert "t  a" in await command.line()


async def test_a_public_key_verifies(tmp_path: Path) -> None:
    """With a public key it verifies what the private key signs, and does not name its file for the subscription."""
    async with receiving(tmp_path, secret=public_key(PRIVATE)) as command:
        assert command.head[1].endswith("--secret-file FILE")
        assert (await post(command.url, event("a"), PRIVATE)).status == 204
        assert (await post(command.url, event("b"), SECRET)).status == 401


async def test_nothing_is_acknowledged_that_was_not_printed(tmp_path: Path) -> None:
    """When the reader of its output has left, it acknowledges nothing more and ends with 0, without a traceback."""
    async with receiving(tmp_path) as command:
        assert command.process.stdout is not None
        command.process.stdout._transport.close()  # type: ignore[attr-defined] # as `| head` does
        with pytest.raises(Exception, match=r".*"):  # the connection ends without an answer
            await post(command.url, event("a"))
        assert await command.process.wait() == 0
        assert command.process.stderr is not None
        assert (await command.process.stderr.read()).decode() == ""


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("whsec_c2hvcnQ=", 0o600, "24 to 64 bytes"),
        ("hello", 0o600, "begins with whsec_"),
        ("", 0o600, "holds no signing secret"),
        (SECRET, 0o644, "chmod 600"),
        (None, 0, "No such file"),
    ],
)
def test_a_secret_that_cannot_be_used(called: Called, tmp_path: Path, text: Any, mode: int, says: str) -> None:
    """A file without a usable secret is a wrong configuration: it is named, and its content is not shown."""
    file = tmp_path / "signing"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    ended = called("receive", "--port", "0", "--secret-file", str(file))
    assert (ended.code, str(file) in ended.err, says in ended.err) == (2, True, True), ended.err
    assert not text or text not in ended.err


async def test_a_port_that_is_taken(poller: Poller, tmp_path: Path) -> None:
    """A port in use is an error that names the option for another one."""
    async with receiving(tmp_path) as command:
        port = command.url.rpartition(":")[2].strip("/")
        ended = await poller("receive", "--port", port)
        assert (ended.code, "--port chooses another port" in ended.err) == (2, True), ended.err
