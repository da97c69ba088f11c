"""Laws of :mod:`poller.credentials.token_command`, with real commands."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from poller.credentials.issued import IssuedToken
from poller.credentials.token_command import KEPT_FOR, TokenCommand
from poller.errors import CredentialUnusable


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
    """Without surrounding white space, with whatever stands below it ignored."""
    assert (await TokenCommand(["printf", printed]).issue()).value == "abc.def"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 3", "the command sh failed with exit code 3"),
        ("kill -15 $$", "the command sh was ended by signal 15"),
        ("echo 's3cret of before' >&2; exit 1", "exit code 1; what it says on standard error may hold a secret"),
        ("echo s3cret-a; exit 1", "the command sh failed with exit code 1"),
        ("true", "the command sh has printed no token"),
        ("echo; echo s3cret", "the command sh has printed no token"),
        ("echo 's3cret: log in first' >&2", "has printed no token; what it says"),
        ("echo two s3cret", "the first line that the command sh has printed does not hold a token"),
        ("printf 's3cret\\377'", "does not hold a token"),
    ],
)
async def test_a_command_that_gives_no_token_is_told_in_one_line(script: str, says: str) -> None:
    """How it ended; nothing of what it printed, for a complaint may quote a token that this process never saw."""
    assert says in await failure_of("sh", "-c", script)


async def test_a_command_that_takes_too_long_is_killed() -> None:
    """The limit is in the message."""
    assert "has not ended within 0.2 s and was killed" in await failure_of(
        "sleep", "100", within=timedelta(seconds=0.2)
    )


async def test_a_command_that_cannot_be_run_is_named_without_its_arguments(tmp_path: Path) -> None:
    """Not there, not executable, not a program."""
    (tmp_path / "plain").write_text("x")
    assert "the command absent cannot be run: No such file" in await failure_of(str(tmp_path / "absent"), "s3cret")
    assert "the command plain cannot be run: Permission denied" in await failure_of(str(tmp_path / "plain"), "s3cret")
    (tmp_path / "plain").chmod(0o700)
    assert "the command plain cannot be run: Exec format error" in await failure_of(str(tmp_path / "plain"), "s3cret")


async def test_a_token_is_kept_for_five_minutes_or_until_it_is_refused(tmp_path: Path) -> None:
    """The command runs when it has to and not for each request."""
    runs = tmp_path / "runs"
    now = [0.0]
    script = f"echo x >> {runs}; printf 'token-%s' $(wc -l < {runs})"
    credential = IssuedToken(TokenCommand(["sh", "-c", script]), clock=lambda: now[0])
    assert [await credential.token() for _ in range(3)] == ["token-1"] * 3
    now[0] = KEPT_FOR.total_seconds() - 1
    assert await credential.token() == "token-1"
    now[0] = 300
    assert await credential.token() == "token-2"
    assert await credential.renew("token-2")
    assert await credential.token() == "token-3"
