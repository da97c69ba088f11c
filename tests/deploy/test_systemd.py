"""Systemd accepts the unit, and its restrictions do not affect the daemon."""

from __future__ import annotations

import asyncio
import configparser
import ctypes
import os
import re
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from poller.auth.base import SecretFile
from poller.daemon.subscription_runner import END_WITHIN
from poller.redis.embedded import STOP_LIMIT
from poller.store.feed import LAST_WAIT
from tests.deploy.files import DEPLOY, ROOT, roles_of
from tests.harness.processes import SANDBOX_TOKEN, sandbox

UNIT: Final = DEPLOY / "systemd" / "poller.service"
TEXT: Final = UNIT.read_text("utf-8")
_DENY: Final = "import ctypes, os, sys; sys.exit(77) if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) else None; "

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on the PATH (Debian: systemd)"
)


class _Unit(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def setting(name: str) -> str:
    """The value of a key that occurs once in [Service]."""
    unit = _Unit(strict=False)
    unit.read_string(TEXT)
    return unit["Service"][name]


@needs_systemd
def test_systemd_takes_it(tmp_path: Path) -> None:
    """Systemd accepts every line of the unit, with the program's path replaced by this installation's."""
    there = Path(sys.executable).with_name("poller")
    unit = tmp_path / UNIT.name
    unit.write_text(TEXT.replace("/opt/poller/bin/poller", str(there)), "utf-8")
    command = ("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_installed() -> None:
    """The documented command installs the checkout where the unit expects it."""
    (place, what) = re.findall(r"(/\S+)/pip install (\S+)", TEXT)[0]
    assert what == "."
    assert setting("ExecStart").startswith(f"{place}/poller ")
    (unit,) = re.findall(r"#   cp (\S+) /etc/systemd/system/", TEXT)
    assert ROOT / unit == UNIT


@needs_systemd
def test_how_exposed_it_is() -> None:
    """The exposure that systemd computes is at most 2.0 of 10."""
    command = ("systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", str(UNIT))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


async def test_without_memory_that_is_written_and_run(tmp_path: Path) -> None:
    """With MemoryDenyWriteExecute the daemon polls into an embedded server."""
    assert setting("MemoryDenyWriteExecute") == "yes"
    libc = ctypes.CDLL(None)
    if libc.prctl(66, 0, 0, 0, 0) < 0:
        pytest.skip("this kernel cannot deny writable executable memory (before Linux 6.3)")
    program = _DENY + "os.execv(sys.executable, [sys.executable, '-m', 'poller', 'once', '--json'])"
    async with sandbox(records=20, changes_per_second=0, seed=1) as source:
        environ = {"POLLER_BASE_URL": source, "POLLER_TOKEN": SANDBOX_TOKEN, "POLLER_DATA_DIR": str(tmp_path / "d")}
        started = (sys.executable, "-c", program)
        done = await asyncio.to_thread(
            subprocess.run, started, check=False, env=os.environ | environ, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"ok":true') == 4


def test_its_command() -> None:
    """The unit's command is valid and has all roles."""
    _, *arguments = setting("ExecStart").split()
    assert roles_of(arguments) == {"poll", "deliver", "serve"}


@pytest.mark.parametrize("mode", [0o400, 0o440])
def test_a_credential_is_accepted(mode: int, tmp_path: Path) -> None:
    """A file from LoadCredential= is accepted as a token file."""
    found = re.findall(r"^LoadCredential=([\w-]+):(/\S+)$", TEXT, re.MULTILINE)
    assert found == [(name, f"/etc/poller/credentials/{name}") for name in ("acme", "read")]
    assert "\nEnvironment=POLLER_READ_TOKEN_FILE=/run/credentials/poller.service/read\n" in TEXT
    file = tmp_path / "acme"
    file.write_text("token\n")
    file.chmod(mode)
    assert SecretFile(file, "bearer token").text() == "token"


def test_it_waits_for_an_end_in_order() -> None:
    """The longest orderly stop fits into TimeoutStopSec, and only the daemon gets the signal.

    Its embedded server must not get it, because the daemon needs the server to the end.
    """
    longest = END_WITHIN + LAST_WAIT + STOP_LIMIT.total_seconds()
    assert timedelta(seconds=longest) < timedelta(seconds=int(setting("TimeoutStopSec").removesuffix("s")))
    assert setting("KillMode") == "mixed"
