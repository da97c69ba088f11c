"""The introductions of the README lead to the first event and to the first webhook."""

from __future__ import annotations

import re
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests import documents
from tests.newcomer import Route, shell, to_the_first_event, to_the_first_webhook, walk
from tests.programs import bare_environ
from tests.servers import free_port


def installed(route: Route) -> Route:
    """The route without its first command, the installation."""
    first, _, rest = route.script.partition("\n")
    assert "pip install" in first
    return replace(route, script=rest)


def checkout(directory: Path) -> Path:
    """The README and the test environment, as if the program had been installed there."""
    programs = Path(sys.executable).parent
    here = directory / ".venv" / "bin"
    here.mkdir(parents=True)
    (here / "poller").symlink_to(programs / "poller")
    (here / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (here / "python").chmod(0o755)
    shutil.copy(documents.README, directory)
    return directory


@pytest.mark.thorough  # `.ci/run` takes the same route, and the route to the webhook begins like it
async def test_the_first_event(tmp_path: Path) -> None:
    """The second of the two commands shows an event."""
    route = installed(to_the_first_event())
    async with shell(checkout(tmp_path), bare_environ()) as terminal:
        assert len(await walk(terminal, route)) == 1


async def test_the_first_webhook(tmp_path: Path) -> None:
    """With other ports the route leads to an event whose signature ``poller receive`` has verified.

    Commands in a second terminal, without exported variables, use the same store.
    """
    directory, route = checkout(tmp_path), installed(to_the_first_webhook())
    demo, *others = route.commands()
    ports = {port: str(free_port()) for port in route.ports}
    here = bare_environ() | {"XDG_STATE_HOME": str(elsewhere := tmp_path / "elsewhere")}
    async with shell(directory, here) as terminal, shell(directory, here) as second:
        await terminal.run(demo)
        kept = directory / "trial" / "poller.toml"
        kept.write_text(with_ports(kept.read_text("utf-8"), ports), "utf-8")
        elsewhere_listening = {
            "poller sandbox": f" --port {ports['8090']}",
            "poller receive": f" --port {ports['8000']}",
        }
        script = "\n".join(
            command + "".join(option for part, option in elsewhere_listening.items() if part in command)
            for command in others
        )
        going_on = replace(route, script=script, ports=tuple(ports.values()))
        assert len(await walk(terminal, going_on)) == len(others)
        await second.run(".venv/bin/poller status -c trial/poller.toml")
        await second.run(".venv/bin/poller check -c trial/poller.toml")
        assert re.search("acme/employmentUnavailabilities +(ok|reading) ", second.screen)
    assert not elsewhere.exists()


def with_ports(text: str, ports: Mapping[str, str]) -> str:
    """The text with these ports in place of the route's ports, each of which must occur."""
    for usual, port in ports.items():
        assert f":{usual}" in text
        text = text.replace(f":{usual}", f":{port}")
    return text


@pytest.mark.thorough
async def test_what_is_pasted_again_does_no_harm(tmp_path: Path) -> None:
    """The demo creates one directory, private to its owner, and a second run changes nothing."""
    directory, demo = checkout(tmp_path), installed(to_the_first_webhook()).commands()[0]
    demo = demo.replace("--seconds 5", "--seconds 0")
    there, kept = sorted(one.name for one in directory.iterdir()), directory / "trial"
    async with shell(directory, bare_environ()) as terminal:
        await terminal.run(demo)
        left = {one.name: one.read_bytes() for one in kept.iterdir()}
        with pytest.raises(AssertionError, match=r"poller\.toml is there already"):
            await terminal.run(demo)
    assert {one.name: one.read_bytes() for one in kept.iterdir()} == left
    assert sorted(left) == ["poller.toml", "receiver.py", "secret", "token"]
    assert sorted(one.name for one in directory.iterdir()) == sorted([*there, "trial"])
    assert all(one.stat().st_mode & 0o077 == 0 for one in (kept, *kept.iterdir()))


async def test_what_fails_ends_the_walk(tmp_path: Path) -> None:
    """A failing command ends the route, and later commands do not run."""
    async with shell(tmp_path, bare_environ()) as terminal:
        with pytest.raises(AssertionError, match="false"):
            await walk(terminal, Route("false\ntouch ran\ntrue", re.compile("never"), "never"))
    assert not (tmp_path / "ran").exists()


async def test_an_address_that_is_taken_is_not_walked_to(tmp_path: Path) -> None:
    """A route whose port is in use is not started, because another sandbox would answer there."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with shell(tmp_path, bare_environ()) as terminal:
            with pytest.raises(AssertionError, match="taken"):
                await walk(terminal, Route("touch ran\ntrue", re.compile("never"), "never", (port,)))
    assert not (tmp_path / "ran").exists()


def test_the_table_has_the_commands_as_they_are() -> None:
    """The table written by ``python -m tests.newcomer`` has the present commands of both routes."""
    rows = [row.split(" | ")[0].removeprefix("| ") for row in documents.table("newcomer").splitlines()[2:]]
    assert rows == [*to_the_first_event().cells(), *to_the_first_webhook().cells()]
