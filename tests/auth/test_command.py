"""Laws of :mod:`poller.auth.command`, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest

from poller.auth.base import IssuedToken
from poller.auth.command import KEPT, KEPT_FOR, TokenCommand, run
from poller.errors import CredentialUnusable
from tests.harness.clock import StubClock
from tests.harness.waiting import limited, strain, turns

LONG = timedelta(seconds=20)


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """A named pipe, by which a test waits for a program's output and for the end of all that have it open."""
    os.mkfifo(tmp_path / "line")
    return tmp_path / "line"


async def test_output_and_exit_code_come_back() -> None:
    """A run returns both outputs separately, and its exit code or minus the number of the signal that ended it."""
    ended = await run(["sh", "-c", "echo out; echo err >&2; exit 3"], within=LONG)
    assert (ended.code, ended.out, ended.err) == (3, b"out\n", b"err\n")
    assert (await run(["sh", "-c", "kill -9 $$"], within=LONG)).code == -signal.SIGKILL


async def test_there_is_no_shell_and_no_input() -> None:
    """The command gets its arguments unchanged, no shell, and an empty standard input."""
    ended = await run(["printf", "%s", "$HOME; `id` *"], within=LONG)
    assert ended.out == b"$HOME; `id` *"
    assert (await run(["cat"], within=LONG)).out == b""


async def test_output_is_bounded() -> None:
    """The beginning of stdout and the end of stderr are kept, and a program that floods both still ends."""
    flood = "import sys; sys.stdout.write('a' + 'o' * 10**6); sys.stderr.write('e' * 10**6 + 'z')"
    ended = await run([sys.executable, "-c", flood], within=LONG)
    assert (len(ended.out), len(ended.err)) == (KEPT, KEPT)
    assert ended.out.startswith(b"a")
    assert ended.err.endswith(b"z")


@pytest.mark.parametrize("ending", ["timeout", "cancelled"])
async def test_nothing_survives_a_run_that_is_broken_off(ending: str, line: Path) -> None:
    """A cancelled run leaves neither the program nor its children, even if they ignore SIGTERM."""
    script = f"trap '' TERM; exec 3>{line}; sleep 100 & echo started >&3; wait; sleep 100"
    within = timedelta(seconds=1.5 * strain()) if ending == "timeout" else LONG
    running = asyncio.create_task(run(["sh", "-c", script], within=within))
    reader = await asyncio.to_thread(line.open)
    with reader:
        assert await asyncio.to_thread(reader.readline) == "started\n"
        if ending == "cancelled":
            running.cancel()
        with pytest.raises(TimeoutError if ending == "timeout" else asyncio.CancelledError):
            await running
        async with limited(10):
            assert await asyncio.to_thread(reader.read) == ""  # end of file once no process has the pipe open


async def test_a_descendant_that_got_away_does_not_hold_us_up(line: Path) -> None:
    """A descendant in its own session that holds the pipe delays no timeout and leaks no descriptor."""
    away = "import subprocess as s; print(s.Popen(['sleep', '100'], start_new_session=True).pid, file=open({!r}, 'w'))"
    us = psutil.Process()
    before = us.num_fds()
    within = timedelta(seconds=1.5 * strain())
    running = asyncio.create_task(run([sys.executable, "-c", away.format(str(line))], within=within))
    escaped = int(await asyncio.to_thread(line.read_text))
    try:
        with pytest.raises(TimeoutError):
            await running
        await turns()  # closing a pipe takes a turn
        assert us.num_fds() <= before
    finally:
        os.kill(escaped, signal.SIGKILL)


async def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    """A missing or non-executable command raises the matching OSError."""
    (tmp_path / "plain").write_text("x")
    with pytest.raises(FileNotFoundError):
        await run([str(tmp_path / "absent")], within=LONG)
    with pytest.raises(PermissionError):
        await run([str(tmp_path / "plain")], within=LONG)


async def test_a_run_that_is_broken_off_has_ended_when_it_says_so(line: Path) -> None:
    """When a cancelled run returns, none of its processes is left, not even a zombie."""
    script = f"echo $$ >{line}; exec sleep 100"
    running = asyncio.create_task(run(["sh", "-c", script], within=LONG))
    started = int(await asyncio.to_thread(line.read_text))
    running.cancel()
    await asyncio.wait({running})
    assert not psutil.pid_exists(started)


# Laws of :mod:`poller.auth.command`, with real commands.


async def failure_of(*command: str, within: timedelta = timedelta(seconds=20)) -> str:
    with pytest.raises(CredentialUnusable) as failed:
        await TokenCommand(command, within=within).issue()
    text = str(failed.value)
    assert text.isprintable()
    assert len(text) < 400
    assert "s3cret" not in text
    assert failed.value.__cause__ is None
    return text


@pytest.mark.parametrize("printed", ["abc.def", " abc.def \\r\\n", "abc.def\\nexpires tomorrow\\n\\377"])
async def test_the_first_line_is_the_token(printed: str) -> None:
    """The token is the first line without surrounding white space; further lines are ignored."""
    assert (await TokenCommand(["printf", printed]).issue()).value == "abc.def"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "the command sh failed with exit code 3"),
        ("kill -15 $$", "the command sh was ended by signal 15"),
        ("echo 's3cret of before' >&2; exit 1", "exit code 1; its standard error may hold a secret"),
        ("echo s3cret-a; exit 1", "the command sh failed with exit code 1"),
        ("true", "the command sh has printed no token"),
        ("echo; echo s3cret", "the command sh has printed no token"),
        ("echo 's3cret: log in first' >&2", "has printed no token; its standard error"),
        ("echo two s3cret", "the first line that the command sh has printed does not hold a token"),
        ("printf 's3cret\\377'", "does not hold a token"),
    ],
)
async def test_a_command_that_gives_no_token_is_told_in_one_line(script: str, says: str) -> None:
    """A failed command is reported by how it ended, without its output, which may hold a token."""
    assert says in await failure_of("sh", "-c", script)


async def test_a_command_that_takes_too_long_is_killed() -> None:
    """A command that exceeds the limit is killed, and the error names the limit."""
    assert "has not ended within 0.2 s and was killed" in await failure_of(
        "sleep", "100", within=timedelta(seconds=0.2)
    )


async def test_a_command_that_cannot_be_run_is_named_without_its_arguments(tmp_path: Path) -> None:
    """A missing, non-executable or invalid program is named without its arguments."""
    (tmp_path / "plain").write_text("x")
    assert "the command absent cannot be run: No such file" in await failure_of(str(tmp_path / "absent"), "s3cret")
    assert "the command plain cannot be run: Permission denied" in await failure_of(str(tmp_path / "plain"), "s3cret")
    (tmp_path / "plain").chmod(0o700)
    assert "the command plain cannot be run: Exec format error" in await failure_of(str(tmp_path / "plain"), "s3cret")


async def test_a_token_is_kept_for_five_minutes_or_until_it_is_refused(tmp_path: Path) -> None:
    """The command runs again after five minutes or a refusal, not for each request."""
    runs = tmp_path / "runs"
    now = [0.0]
    script = f"echo x >> {runs}; printf 'token-%s' $(wc -l < {runs})"
    credential = IssuedToken(TokenCommand(["sh", "-c", script]), clock=StubClock(monotonic=lambda: now[0]))
    assert [await credential.token() for _ in range(3)] == ["token-1"] * 3
    now[0] = KEPT_FOR.total_seconds() - 1
    assert await credential.token() == "token-1"
    now[0] = 300
    assert await credential.token() == "token-2"
    assert await credential.renew("token-2")
    assert await credential.token() == "token-3"
