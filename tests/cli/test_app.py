"""The program from the outside: exit codes, and one paragraph on standard error; standard streams that are closed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import Ended
from tests.cli.conftest import Called, Poller

GONE = "redis://127.0.0.1:1"  # nothing listens there


def paragraph(err: str) -> bool:
    return err.startswith("poller: ") and "Traceback" not in err and "\n\n" not in err.strip()


OF_A_PROCESS = [
    (["--version"], {}, 0, ""),
    (["once"], {}, 2, "no source"),
    (["status"], {"POLLER_BASE_URL": "http://127.0.0.1:1", "REDIS_URL": GONE}, 1, "refused; `poller check` says more"),
    (["once"], {"POLLER_FAILPOINT": "nowhere"}, 2, "POLLER_FAILPOINT"),
]
IN_THIS_ONE = [
    *OF_A_PROCESS[1:3],
    (["once", "--nonsense"], {}, 2, "--nonsense"),
    (["sandbox", "--port", "70000"], {}, 2, "--port"),
    (["sandbox", "--profile", "end-nul"], {}, 2, 'no profile "end-nul"; did you mean "end-null"?'),
    (["sandbox", "--faults", "reset=often"], {}, 2, '--faults reset is "often"'),
    (["-c", "absent.toml", "once"], {}, 2, "absent.toml: there is no such file"),
    (["once", "-c", "absent.toml"], {}, 2, "absent.toml: there is no such file"),
    (["once", "nix"], {"POLLER_BASE_URL": "http://127.0.0.1:1"}, 2, 'no feed "nix"'),
    (["tail", "--from", "soon"], {"POLLER_BASE_URL": "http://127.0.0.1:1"}, 2, '--from is "soon"'),
    (["check"], {"POLLER_BASE_URL": "http://127.0.0.1:1", "REDIS_URL": "redis://127.0.0.1:1/abc"}, 2, "abc"),
    (["run", "--only", "dance"], {}, 2, 'no role "dance"'),
    (["schema", "nope"], {}, 2, "Invalid value for '[DOCUMENT]': 'nope' is not one of"),
    (["tail"], {"POLLER_BASE_URL": "http://127.0.0.1:1", "REDIS_URL": GONE}, 1, "127.0.0.1:1"),
]


@pytest.mark.parametrize(("arguments", "environ", "code", "says"), OF_A_PROCESS)
async def test_exit_codes(poller: Poller, arguments: list[str], environ: dict[str, str], code: int, says: str) -> None:
    """Wrong usage and configuration end with 2, failures with 1, each with one paragraph that names what is wrong."""
    _as_expected(await poller(*arguments, **environ), code, says)


@pytest.mark.parametrize(("arguments", "environ", "code", "says"), IN_THIS_ONE)
def test_other_mistakes(called: Called, arguments: list[str], environ: dict[str, str], code: int, says: str) -> None:
    """Other mistakes end in the same way; the test above proves that the process ends as the call does."""
    _as_expected(called(*arguments, **environ), code, says)


def _as_expected(ended: Ended, code: int, says: str) -> None:
    assert ended.code == code, ended
    assert says in ended.err
    assert paragraph(ended.err) if code else not ended.err


async def test_without_a_command_the_help_is_shown(started_poller: Poller, poller: Poller) -> None:
    """Without a command the program prints the page of ``--help`` and nothing else, with exit code 2."""
    ended, asked = await started_poller(), await poller("--help")
    assert (ended.code, ended.out, ended.err.strip()) == (2, "", asked.out.strip())


async def test_traceback_on_demand(poller: Poller, tmp_path: Path) -> None:
    """``--log-level debug`` shows where an error comes from."""
    ended = await poller("--log-level", "debug", "-c", str(tmp_path / "absent.toml"), "once")
    assert ended.code == 2
    assert "Traceback" in ended.err


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.thorough) for one in ("<&-", ">&-", "2>&-")), "<&- >&- 2>&-"]
)
def test_a_closed_stream_does_not_fail(closed: str) -> None:
    """Law: a standard stream that is closed does not change the exit code."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m poller schema events {closed}', sys.executable],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_is_full_is_named() -> None:
    """Law: output that cannot be written ends with 1 and one line that says so."""
    done = subprocess.run(
        ["sh", "-c", '"$0" -m poller schema events >/dev/full', sys.executable],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        1,
        "poller: standard output cannot be written: No space left on device\n",
    )


_SIGNALLED = """
import os, signal, sys

class Stopped:
    def find_spec(self, name, *_):
        if name == "poller.cli.app":
            os.kill(os.getpid(), signal.{name})
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stopped())
from poller.cli import main

main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize(
    ("line", "is_daemon"),
    [
        ("run", True),
        ("run --only poll", True),
        ("-c other.toml --log-format json run", True),
        ("-cother.toml --log-level=debug run", True),
        ("tail acme/contractTypes", True),
        ("demo", True),
        ("sandbox --records 5", True),
        ("status --watch", True),
        ("status --json --watch=5", True),
        ("status", False),
        ("-c run status", False),
        ("--config run once", False),
        ("pause run", False),
        ("--version", False),
        ("", False),
    ],
)
def test_a_signal_before_the_commands_are_imported_ends_a_daemon_in_order(
    line: str, *, is_daemon: bool, name: str
) -> None:
    """A daemon exits with 0 at a signal that comes before its imports; other commands end by the signal."""
    done = subprocess.run([sys.executable, "-c", _SIGNALLED.format(name=name), *line.split()], check=False)
    by_itself = 130 if name == "SIGINT" else -signal.Signals[name]
    assert done.returncode == (0 if is_daemon else by_itself)
