"""A newcomer's paths: what the README tells to paste leads to the first event and to the first webhook."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests import readme
from tests.newcomer import Route, shell, to_the_first_event, to_the_first_webhook, walk
from tests.programs import bare_environ
from tests.servers import free_port


def installed(route: Route) -> Route:
    """The route without its first command, which installs."""
    first, _, rest = route.script.partition("\n")
    assert "pip install" in first
    return replace(route, script=rest)


def checkout(directory: Path) -> Path:
    """The README and what runs these tests, as if it had been installed there."""
    programs = Path(sys.executable).parent
    here = directory / ".venv" / "bin"
    here.mkdir(parents=True)
    (here / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    (here / "poller").symlink_to(programs / "poller")
    shutil.copy(readme.FILE, directory)
    return directory


def environ() -> dict[str, str]:
    """The one of these tests, without what it knows of poller; HTTP is served wherever there is room."""
    return bare_environ() | {"POLLER_HTTP_BIND": f"127.0.0.1:{free_port()}"}


async def test_the_first_event(tmp_path: Path) -> None:
    """The second of two commands shows it."""
    route = installed(to_the_first_event())
    async with shell(checkout(tmp_path), environ()) as terminal:
        assert len(await walk(terminal, route)) == 1


async def test_the_first_webhook(tmp_path: Path) -> None:
    """But for its ports it leads to an event whose signature the README's receiver has verified.

    A second terminal, to which nothing was exported, sees the same world.
    """
    directory, route = checkout(tmp_path), installed(to_the_first_webhook())
    sandbox, receiver = str(free_port()), str(free_port())
    copy = directory / readme.FILE.name
    copy.write_text(copy.read_text("utf-8").replace("8000", receiver), "utf-8")
    script = route.script.replace("8000", receiver).replace("8090", sandbox)
    route = replace(route, script=script.replace("poller sandbox", f"poller sandbox --port {sandbox}"))
    here = environ() | {"XDG_STATE_HOME": str(elsewhere := tmp_path / "elsewhere")}
    async with shell(directory, here) as terminal, shell(directory, here) as second:
        assert len(await walk(terminal, route)) == len(route.commands())
        for command in ("cd trial", "source ../.venv/bin/activate", "poller status"):
            await second.run(command)
        assert re.search("acme/employmentUnavailabilities +(ok|reading) ", second.screen)
    assert not elsewhere.exists()


async def test_what_is_pasted_again_does_no_harm(tmp_path: Path) -> None:
    """From the checkout as from within: nothing but one directory comes, what it keeps is its owner's, secrets stay."""
    directory, commands = checkout(tmp_path), installed(to_the_first_webhook()).commands()
    there, kept = sorted(one.name for one in directory.iterdir()), directory / "trial"
    nothing = directory / ".venv" / "nothing"
    nothing.mkdir()
    for name in ("poller", "pip", "python"):
        (nothing / name).symlink_to("/bin/true")
    (directory / ".venv" / "bin" / "activate").write_text(f'PATH="{nothing}:$PATH"\n')
    secrets = set()
    async with shell(directory, environ()) as terminal:
        for where in (directory, directory, kept):
            for command in (f"cd '{where}'", *commands):
                await terminal.run(command)
            secrets.add((kept / "secret").read_text())
    assert len(secrets) == 1
    assert sorted(one.name for one in directory.iterdir()) == [*there, "trial"]
    assert {one.name for one in kept.iterdir() if one.stat().st_mode & 0o077 == 0} == {"secret", "token"}
    assert kept.stat().st_mode & 0o077 == 0
    assert not (kept / "trial").exists()


async def test_what_fails_ends_the_walk(tmp_path: Path) -> None:
    """What comes after it is not run."""
    async with shell(tmp_path, environ()) as terminal:
        with pytest.raises(AssertionError, match="false"):
            await walk(terminal, Route("false\ntouch ran\ntrue", re.compile("never"), "never"))
    assert not (tmp_path / "ran").exists()


async def test_an_address_that_is_taken_is_not_walked_to(tmp_path: Path) -> None:
    """Else somebody else's sandbox would answer in the place of one's own."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with shell(tmp_path, environ()) as terminal:
            with pytest.raises(AssertionError, match="taken"):
                await walk(terminal, Route(f"touch ran {url}\ntrue", re.compile("never"), "never"))
    assert not (tmp_path / "ran").exists()


def test_the_table_has_the_commands_as_they_are() -> None:
    """``python -m tests.newcomer`` writes it: what is pasted today has been walked."""
    rows = [row.split(" | ")[0].removeprefix("| ") for row in readme.table("newcomer").splitlines()[2:]]
    assert rows == [*to_the_first_event().cells(), *to_the_first_webhook().cells()]
