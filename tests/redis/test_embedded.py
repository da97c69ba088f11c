"""Laws of :mod:`poller.redis.embedded`: one server per directory. With real processes, really killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # has no types of its own
import pytest

from poller.clock import Clock
from poller.config.load import load
from poller.errors import ConfigurationError, StoreUnavailable
from poller.redis.client import commands
from poller.redis.embedded import (
    LOG_LIMIT_BYTES,
    LONGEST_SOCKET_PATH,
    EmbeddedServer,
    _taken,
    attempted,
    complaints,
    disk_shortage,
    last_words,
    pause_before,
    until_gone,
)
from poller.store.session import clock_of, opened_store, ready_store, until_ready
from tests.harness.forks import forks_for
from tests.harness.waiting import Deadline, limited, turns, until
from tests.programs import Running, for_the_block
from tests.stores import clients_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


def test_only_one_has_it(tmp_path: Path) -> None:
    """While one holder has the lock another gets None, even in the same process; afterwards the lock is free."""
    path = tmp_path / "lock"
    with attempted(path) as first, attempted(path) as second:
        assert first is not None
        assert second is None
    with attempted(path) as third:
        assert third is not None


def test_it_lives_as_long_as_the_process_that_got_it(tmp_path: Path) -> None:
    """A lock that is passed to a child and closed here is held until the child has ended."""
    path = tmp_path / "lock"
    with attempted(path) as lock:
        assert lock is not None
        waiting = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=(lock,))
    try:
        with attempted(path) as other:
            assert other is None
    finally:
        child.kill()
        child.communicate()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel may need a moment
    with attempted(path) as free:
        assert free is not None


def test_a_removed_file_is_not_a_lock(tmp_path: Path) -> None:
    """A lock on a file that was removed or replaced does not count, since others would lock the new file."""
    path = tmp_path / "lock"
    with path.open("w") as opened:
        path.unlink()
        assert not _taken(opened.fileno(), path)
        path.touch()
        assert not _taken(opened.fileno(), path)
    with attempted(path) as lock:
        assert lock is not None


# One server on a directory, whatever happens to the processes that use it.

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Owner:
    """A process that uses the server on a directory."""

    process: Running
    orders: int

    async def ready(self) -> tuple[int, str]:
        """The next server that it reports: its process id, and ``own`` or ``shared``."""
        word, pid, whose = (await self.line()).split()
        assert word == "ready"
        return int(pid), whose

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with limited(20):
            return (await self.process.stdout.readline()).decode().strip()

    async def write(self, name: str, value: str) -> None:
        os.write(self.orders, f"{name} {value}\n".encode())
        assert await self.line() == "written"

    async def killed(self, name: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(name)
        await self.process.wait()


@asynccontextmanager
async def owner(directory: Path) -> AsyncIterator[Owner]:
    forks = forks_for({})
    assert forks is not None
    theirs, ours = os.pipe()
    try:
        process = await forks.start(
            [str(directory)], cwd=ROOT, environ=os.environ, piped=(1,), module="tests.store.owner", stdin=theirs
        )
        async with for_the_block(process):
            yield Owner(process, ours)
    finally:
        os.close(theirs)
        os.close(ours)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A data directory; after the test its server is killed."""
    place = tmp_path / "d"
    yield place
    for pid in _servers(place):
        with suppress(ProcessLookupError):  # it was about to end
            os.kill(pid, signal.SIGKILL)
    _until_free(place)


def _until_free(directory: Path) -> None:
    """Wait until no server holds the directory."""
    if (directory / "lock").is_file():
        with (directory / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


async def _until_free_soon(directory: Path) -> None:
    async with limited(10):
        await asyncio.to_thread(_until_free, directory)


def _servers(directory: Path) -> list[int]:
    """Process ids of all servers on the directory."""
    lines = [(process.pid, " ".join(process.info["cmdline"] or ())) for process in psutil.process_iter(["cmdline"])]
    return [pid for pid, line in lines if "valkey-server" in line and str(directory) in line]


def _starts(directory: Path) -> int:
    """How many servers have been started on the directory."""
    return (directory / "valkey.log").read_text().count("Server initialized")


def _modes(directory: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {"dir": set(), "file": set()}
    for path in (directory, *directory.rglob("*")):
        found["dir" if path.is_dir() else "file"].add(stat.S_IMODE(path.lstat().st_mode))
    return found


def _files(directory: Path, pattern: str) -> list[Path]:
    return list(directory.glob(pattern))


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[EmbeddedServer]:
    """A server object in this process, which is stopped however the test ends."""
    server = EmbeddedServer(directory, clock=Clock())
    try:
        yield server
    finally:
        await server.stop()


async def _value(server: EmbeddedServer, name: str) -> bytes | None:
    async with commands(server.url) as client:
        value = await client.get(name)
        assert not isinstance(value, str)
        return value


async def test_nothing_acknowledged_is_lost_with_the_parent(directory: Path) -> None:
    """After the server's owner is killed the next owner finds every acknowledged write."""
    async with owner(directory) as first:
        pid, whose = await first.ready()
        assert whose == "own"
        await first.write("key", "value")
        await first.killed()
    async with owner(directory) as second:
        while (seen := await second.ready()) == (pid, "shared"):  # the first owner's server is about to end
            pass
        assert (seen[0] != pid, seen[1]) == (True, "own")
        assert await _value(EmbeddedServer(directory, clock=Clock()), "key") == b"value"
    assert _starts(directory) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_a_server_ends_with_its_parent(directory: Path) -> None:
    """A server shuts down in order when its only parent is killed."""
    async with owner(directory) as first:
        await first.ready()
        await first.killed()
        await _until_free_soon(directory)
    assert "ready to exit" in (directory / "valkey.log").read_text()


async def test_the_server_is_killed_and_comes_back(directory: Path) -> None:
    """A killed server is started again by its owner within a second, with its data."""
    async with owner(directory) as only:
        pid, _ = await only.ready()
        await only.write("key", "value")
        soon = Deadline(1)
        os.kill(pid, signal.SIGKILL)
        again, whose = await only.ready()
        assert soon.left > 0
        assert (again != pid, whose) == (True, "own")
        assert await _value(EmbeddedServer(directory, clock=Clock()), "key") == b"value"


async def test_a_server_that_loads_for_long_is_waited_for(directory: Path) -> None:
    """A server that reports LOADING is given minutes, and no second server is tried."""
    os.mkdir(directory, 0o700)  # noqa: PTH102 -- as elsewhere here, it blocks for no time
    loop, ahead = asyncio.get_running_loop(), 0.0
    real, answers = loop.time, [b"-LOADING it reads\r\n", b"-LOADING it reads\r\n", b"+PONG\r\n"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ahead
        await reader.readline()
        writer.write(answers.pop(0))
        writer.close()
        if len(answers) == 1:
            ahead = 60.0

    with attempted(directory / "lock") as held:
        assert held is not None
        there = await asyncio.start_unix_server(answer, directory / "valkey.sock")
        loop.time = lambda: real() + ahead  # type: ignore[method-assign] # asyncio's loop
        try:
            async with there:
                await EmbeddedServer(directory, clock=Clock()).ensure()
        finally:
            loop.time = real  # type: ignore[method-assign] # put back
    assert answers == []


@pytest.mark.parametrize("later", [1, 2, 3, 5, 8])
async def test_a_stop_in_the_middle_of_a_start_leaves_no_server(directory: Path, later: int) -> None:
    """A stop at any step of a start leaves no server."""
    server = EmbeddedServer(directory, clock=Clock())
    starting = asyncio.create_task(server.ensure())
    await turns(later)
    await server.stop()
    with suppress(StoreUnavailable):
        await starting
    assert not server.running_here
    assert _servers(directory) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_the_owner_leaves_and_another_brings_it_back(directory: Path, how: signal.Signals) -> None:
    """When the owner of a shared server stops or is killed, the other process starts the server within a second."""
    async with owner(directory) as first, owner(directory) as second:
        seen = [await first.ready(), await second.ready()]
        assert len({pid for pid, _ in seen}) == 1
        assert sorted(whose for _, whose in seen) == ["own", "shared"]
        leaving, staying = (first, second) if seen[0][1] == "own" else (second, first)
        await leaving.write("key", "value")
        soon = Deadline(1)
        await leaving.killed(how)
        pid, whose = await staying.ready()
        assert soon.left > 0
        assert (pid != seen[0][0], whose) == (True, "own")
        assert await _value(EmbeddedServer(directory, clock=Clock()), "key") == b"value"
        assert _servers(directory) == [pid]


async def test_four_processes_race_for_one_directory(directory: Path) -> None:
    """Four processes that start together share one server, and one again after each kill, never two."""
    async with AsyncExitStack() as stack:
        owners = await asyncio.gather(*(stack.enter_async_context(owner(directory)) for _ in range(4)))
        for generation in (1, 2, 3):
            seen = await asyncio.gather(*(each.ready() for each in owners))
            assert len({pid for pid, _ in seen}) == 1
            assert sorted(whose for _, whose in seen) == ["own", *["shared"] * 3]
            assert _servers(directory) == [seen[0][0]]
            assert _starts(directory) == generation
            os.kill(seen[0][0], signal.SIGKILL)


async def test_the_lock_lives_as_long_as_the_server(directory: Path) -> None:
    """While a stopped server outlives its killed parent, no other server can start on its directory."""
    async with owner(directory) as first:
        pid, _ = await first.ready()
        os.kill(pid, signal.SIGSTOP)
        await first.killed()
    with attempted(directory / "lock") as lock:
        assert lock is None
    os.kill(pid, signal.SIGTERM)  # while it is surely there
    os.kill(pid, signal.SIGCONT)
    await _until_free_soon(directory)
    with attempted(directory / "lock") as lock:
        assert lock is not None


async def test_ctrl_c_leaves_the_server_to_the_daemon(directory: Path) -> None:
    """SIGINT to the foreground group does not end the server: the daemon can still write and then stops it."""
    async with owner(directory) as first:
        await first.ready()
        os.killpg(first.process.pid, signal.SIGINT)
        assert [await first.line(), await first.line()] == ["written", "left"]
        assert await first.process.wait() == 0
    assert not _servers(directory)
    assert "SIGINT" not in (directory / "valkey.log").read_text()
    async with embedded(directory) as server:
        await server.ensure()
        assert await _value(server, "last") == b"words"


def _environment(process: int) -> dict[str, str]:
    named = Path(f"/proc/{process}/environ").read_text("utf-8").split("\0")
    return dict(one.split("=", 1) for one in named if one)


async def test_what_a_server_is(directory: Path) -> None:
    """The server has the settings that the promises rest on, no secrets, and files that only this user can access."""
    async with embedded(directory) as server:
        await server.ensure()
        expected = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "aof-use-rdb-preamble": "no",
            "aof-load-truncated": "no",
            "save": "",
            "port": "0",
            "unixsocketperm": "600",
        }
        async with commands(server.url) as client:
            reported = await client.config_get(*expected)
            process = (await client.info("server"))["process_id"]
        assert reported == expected
        environment = _environment(process)
        assert environment["GLIBC_TUNABLES"] == "glibc.malloc.tcache_count=1000"
        assert environment.keys() <= {"GLIBC_TUNABLES", "LD_LIBRARY_PATH", "TZ"}
        assert _modes(directory) == {"dir": {0o700}, "file": {0o600}}


async def test_stop_is_for_ones_own_only(directory: Path) -> None:
    """``stop`` leaves a sibling's server alone, and does nothing before the start or the second time."""
    async with embedded(directory) as ours, embedded(directory) as sibling:
        await sibling.stop()
        await ours.ensure()
        await sibling.ensure()
        assert not sibling.running_here
        await sibling.stop()
        assert ours.running_here
        await ours.stop()
    assert not _servers(directory)


async def test_a_stopped_server_is_not_brought_back_by_its_keeper(directory: Path) -> None:
    """``keep`` ends after ``stop`` and does not start the server again."""
    async with embedded(directory) as server:
        await server.ensure()
        keeper = asyncio.create_task(server.keep())
        async with commands(server.url) as client:

            async def watched() -> bool:
                return await clients_of(client, "connected") > 1

            await until(watched, "the keeper to connect")
    await keeper
    assert not _servers(directory)
    assert _starts(directory) == 1


async def test_a_server_that_does_not_stop_is_killed(directory: Path) -> None:
    """A server that ignores SIGTERM is killed as soon as the caller stops waiting."""
    server = EmbeddedServer(directory, clock=Clock())
    await server.ensure()
    os.kill(_servers(directory)[0], signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await server.stop()
    assert not server.running_here
    assert not _servers(directory)


async def test_a_socket_that_nobody_serves_is_replaced(directory: Path) -> None:
    """A socket file that a killed server left behind is replaced."""
    directory.mkdir()  # noqa: ASYNC240 — a test may block its loop for that long
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "valkey.sock"))
    async with embedded(directory) as server:
        await server.ensure()
        assert server.running_here


async def test_an_answering_socket_is_adopted_and_loading_is_waited_for(directory: Path) -> None:
    """A server that answers on the socket is used, after it has loaded, and no second one is started."""
    answers = [b"-LOADING Valkey is loading the dataset in memory\r\n"] * 3 + [b"+PONG\r\n"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answers.pop(0))
        writer.close()

    directory.mkdir()  # noqa: ASYNC240 — a test may block its loop for that long
    async with await asyncio.start_unix_server(answer, directory / "valkey.sock"):
        server = EmbeddedServer(directory, clock=Clock())
        await server.ensure()
        assert not answers
        assert not server.running_here
    assert not (directory / "lock").exists()


async def test_a_torn_end_of_the_log_is_dropped(directory: Path) -> None:
    """Half a command at the end of the append-only file is dropped, and all data before it is kept."""
    async with embedded(directory) as server:
        await server.ensure()
        async with commands(server.url) as client:
            await client.set("key", "value")
        await server.stop()
        (tail,) = _files(directory, "appendonlydir/*.incr.aof")
        with tail.open("ab") as file:
            file.write(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\noth")
        await server.ensure()
        assert await _value(server, "key") == b"value"


async def test_a_server_that_cannot_start_says_why(directory: Path) -> None:
    """If the data cannot be read, the error has the server's last words on one line."""
    broken = directory / "appendonlydir"
    broken.mkdir(parents=True)
    (broken / "appendonly.aof.manifest").write_text("file appendonly.aof.1.base.rdb seq 1 type b\n")
    with pytest.raises(StoreUnavailable, match=r"left immediately.*appendonly.aof.1.base.rdb") as failure:
        await EmbeddedServer(directory, clock=Clock()).ensure()
    assert "\n" not in str(failure.value)


def test_who_goes_again_and_again_is_started_less_and_less_often() -> None:
    """A server that keeps exiting is restarted after pauses that double up to ten seconds."""
    pauses = [0.0]
    for _ in range(7):
        pauses.append(pause_before(0.3, pauses[-1]))
    assert pauses == [0, 0.02, 0.5, 1, 2, 4, 8, 10]
    assert pause_before(10, 8) == 0.02


def test_the_last_words_are_complaints(tmp_path: Path) -> None:
    """The last words are the warnings since the server's last start, or else all lines since then."""
    log, stamp = tmp_path / "log", "M 21 Nov 2026 17:12:22.802"
    start = f"7:{stamp} * oO0OoO0OoO0Oo Valkey is starting oO0OoO0OoO0Oo"
    before = f"6:{stamp} # an older complaint"
    log.write_text("\n".join([before, start, f"7:{stamp} # Error writing", f"7:{stamp} * x", "no line of the log"]))
    assert last_words(log) == complaints(log) == "Error writing | no line of the log"
    log.write_text("\n".join([before, start, f"7:{stamp} * Ready", f"7:{stamp} # Valkey is now ready to exit, bye"]))
    assert complaints(log) == ""
    assert last_words(log).endswith("Ready | Valkey is now ready to exit, bye")
    assert "cannot be read" in last_words(tmp_path / "none")


async def test_the_log_is_bounded(directory: Path) -> None:
    """A log above 8 MiB is put aside at the next start; one old log is kept."""
    directory.mkdir()  # noqa: ASYNC240 — a test may block its loop for that long
    (directory / "valkey.log").write_bytes(b"x" * (LOG_LIMIT_BYTES + 1))
    async with embedded(directory) as server:
        await server.ensure()
    assert (directory / "valkey.log").stat().st_size < LOG_LIMIT_BYTES
    assert (directory / "valkey.log.1").stat().st_size == LOG_LIMIT_BYTES + 1


@pytest.mark.parametrize(
    ("name", "reason"), [("file", "is a file"), ("file/d", "cannot be made"), ("d", "cannot be written")]
)
async def test_a_directory_that_cannot_be_used(tmp_path: Path, name: str, reason: str) -> None:
    """A path that is or passes through a file, or that cannot be written, is refused with the remedy."""
    (tmp_path / "file").touch()
    (tmp_path / "d" / "lock").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=f"{reason}.*name a directory that this user may write to"):
        await EmbeddedServer(tmp_path / name, clock=Clock()).ensure()


async def test_the_longest_path_works_and_the_next_does_not(tmp_path: Path) -> None:
    """A directory works up to the longest socket path; one byte more is refused with the remedy."""
    room = LONGEST_SOCKET_PATH - len(os.fsencode(tmp_path / "valkey.sock")) - 1
    longest = tmp_path / ("ü'" + " " * (room - 4) + "d")  # bytes count, not characters; no character needs quoting
    async with embedded(longest) as server:
        await server.ensure()
        assert await _value(server, "key") is None
    with pytest.raises(ConfigurationError, match=r"too long by 1 bytes.*choose a shorter path"):
        await EmbeddedServer(tmp_path / ("d" * (room + 1)), clock=Clock()).ensure()


async def test_gone_is_told_at_once_where_nobody_is(tmp_path: Path) -> None:
    """Waiting for a server to end returns if there is none."""
    await until_gone(tmp_path / "valkey.sock")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "none", str(disk)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


async def test_a_full_disk_is_named_and_waited_for(small_disk: Path) -> None:
    """A command that meets a full disk names it; a daemon that starts then waits until there is space again."""
    settings = load(None, {"POLLER_BASE_URL": "http://127.0.0.1:9", "POLLER_DATA_DIR": str(small_disk)})
    async with ready_store(settings) as store:
        await store.client.set("kept", "1")
    assert disk_shortage(small_disk) == ""
    base, filler = small_disk / "appendonlydir" / "appendonly.aof.1.base.aof", small_disk / "filler"
    whole = base.read_bytes()
    base.write_bytes(bytes(90))  # a server on a full disk leaves at its first write; this one at its start
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(StoreUnavailable, match="its disk is full, 0 B are left"):
        async with ready_store(settings):
            pass
    async with limited(), opened_store(settings, clock=clock_of(settings, Clock()), waits_for_disk=True) as store:
        filler.unlink()
        base.write_bytes(whole)
        await until_ready(store, patience=None)
        assert await store.client.get("kept") == b"1"
