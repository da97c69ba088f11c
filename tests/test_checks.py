"""The checks that every file must pass run with the tests."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

_SLEEP = r"\basyncio\.sleep\((?!0\))|(?<!await )\btime\.sleep\(|^from (?:asyncio|time) import .*\bsleep\b"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="ruff"),
        pytest.param(["ruff", "format", "--check", "."], id="format"),
        pytest.param(["mypy"], id="mypy", marks=pytest.mark.thorough),
    ],
)
def test_check(command: list[str]) -> None:
    """Lint, format and types are clean."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


_SLEEPING = {
    "harness/waiting.py": 2,  # the one place that waits for conditions
    "harness/wire.py": 1,  # a slow network as a fault
    "harness/sinks.py": 1,  # a slow sink as a fault
    "harness/consumed.py": 3,  # members that stall and die as faults
    "receiver.py": 1,  # a dripping answer as a fault
    "harness/naive_dispatcher.py": 1,  # the retry delay of a naive program
    "bench/idle.py": 2,  # measured spans
    "bench/scale.py": 3,  # measured spans, and paces
    "bench/delivering.py": 1,  # a pace
    "bench/fanout.py": 1,  # the time in which a bare client gathers a batch
    "bench/metering.py": 1,  # a measured span
    "bench/pulse.py": 1,  # a pace
}
"""Files that sleep, how often, and why."""


def test_nothing_sleeps_to_wait() -> None:
    """Tests wait for conditions in one place; a sleep is only a fault or a measured span."""
    found = {
        str(file.relative_to(ROOT / "tests")): len(re.findall(_SLEEP, file.read_text("utf-8"), re.MULTILINE))
        for file in (ROOT / "tests").rglob("*.py")
        if file.parent.name != "simulation"  # its time is virtual: a sleep takes no time
    }
    assert {name: count for name, count in found.items() if count} == _SLEEPING


_OWN_TIME = {
    "clock.py": {
        "datetime.now",
        "loop.time",
        "time.monotonic",
        "time.clock_gettime",
        "time.CLOCK_BOOTTIME",
        "asyncio.sleep",
        "random.Random",
        "random.SystemRandom",
    },
    "client/receiver.py": {"datetime.now", "time.monotonic"},  # a library in programs that have no such clock
    "client/repeats.py": {"time.monotonic"},  # as above
    "cli/demo.py": {"random.Random", "secrets.token_bytes"},  # generated records; the secret of the demo
    "cli/options.py": {"datetime.now"},  # a command is a process of its own
    "cli/subscriptions.py": {"secrets.token_bytes"},  # a signing secret
    "cli/tools.py": {"secrets.token_bytes"},  # a signing secret, too
    # The client library runs in other people's programs, and shares nothing with the daemon.
    "client/consumer.py": {"asyncio.sleep", "secrets.token_hex"},
    "client/feed_reader.py": {"random.uniform", "time.CLOCK_BOOTTIME", "time.clock_gettime", "time.monotonic"},
    "client/record_pages.py": {"datetime.now"},
}
"""The modules that use the system's clock or randomness directly: a clock, a command, or a secret."""

_OWN_CLOCKS = {
    "cli/demo.py",  # a command is a process of its own
    "cli/receive.py",
    "cli/run.py",
    "cli/status.py",
    "store/session.py",  # for a command
    "redis/client.py",  # if the caller has none
    "daemon/schedule.py",  # for APScheduler, which reads the system's clock
}
"""The modules that create a clock instead of taking one."""

_DRAWING = {"random", "secrets", "time"}
_NAMED = {
    "asyncio.sleep",
    "asyncio.timeout_at",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "os.urandom",
    "uuid.uuid1",
    "uuid.uuid4",
}


def test_time_and_chance_come_from_a_clock() -> None:
    """Only the clock module reads time, sleeps or draws random values, so that several daemons fit in one process.

    The sandbox is a separate program. A sleep of 0 only lets other tasks run.
    """
    files = [file for file in sorted((ROOT / "poller").rglob("*.py")) if "sandbox" not in file.parts]
    used = {file.relative_to(ROOT / "poller").as_posix(): set(_outside_of_clocks(file)) for file in files}
    assert {name: found - {"Clock"} for name, found in used.items() if found - {"Clock"}} == _OWN_TIME
    assert {name for name, found in used.items() if "Clock" in found} == _OWN_CLOCKS


def _outside_of_clocks(file: Path) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    spared = {node.func for node in nodes if isinstance(node, ast.Call) and _is_turn(node)}
    names: dict[str, str] = {}  # names in the file, and what they refer to
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in nodes:
        name = _dotted(node, names).removeprefix("datetime.datetime")
        name = f"datetime{name}" if name.startswith(".") else name
        if node not in spared and (name in _NAMED or ("." in name and name.partition(".")[0] in _DRAWING)):
            yield name
        if isinstance(node, ast.Attribute) and node.attr == "time" and "loop" in ast.unparse(node.value):
            yield "loop.time"
        if isinstance(node, ast.Call) and _dotted(node.func, names) == "poller.clock.Clock":
            yield "Clock"


def _is_turn(call: ast.Call) -> bool:
    return [ast.unparse(one) for one in call.args] == ["0"] and ast.unparse(call.func) == "asyncio.sleep"


def _dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of an imported object; empty for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        of = _dotted(node.value, names)
        return f"{of}.{node.attr}" if of else ""
    return ""


def test_the_top_level_holds_nothing_else() -> None:
    """The project's root has exactly these visible entries."""
    listed = subprocess.run(["git", "ls-files"], check=False, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    visible = {name.split("/")[0] for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert visible == {"pyproject.toml", "README.md", "Procfile", "poller", "tests", "deploy"}
