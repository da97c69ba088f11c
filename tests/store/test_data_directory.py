"""The embedded server's directory: whose may be used, and where the data is. Real owners, real servers."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from poller.config.settings import Settings
from poller.errors import ConfigurationError, StoreUnavailable
from poller.service.checking import check
from poller.store.connection import commands, translated
from poller.store.data_directory import located, prepared
from poller.store.directory_lock import attempted
from poller.store.embedded import EmbeddedServer

STRANGER = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")

FOREIGN_SERVER = """
import os, socket, sys
place, user = sys.argv[1], int(sys.argv[2])
with socket.socket(socket.AF_UNIX) as server:
    server.bind(place)
    os.setuid(user)
    server.listen()
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            if heard := connection.recv(100):
                print("heard", heard, flush=True)
                connection.sendall(b"+PONG\\r\\n")
"""


@contextmanager
def foreign_server(socket: Path) -> Iterator[subprocess.Popen[str]]:
    """A server of another user, who prints what is said to it."""
    command = [sys.executable, "-c", FOREIGN_SERVER, str(socket), str(STRANGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield process
        finally:
            process.kill()


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(directory)
    try:
        yield server
    finally:
        await server.stop()


def made(path: Path, mode: int, owner: int | None = None) -> Path:
    path.mkdir(parents=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


def foreign(tmp: Path) -> Path:
    return made(tmp / "d", 0o700, STRANGER)


def for_everybody(tmp: Path) -> Path:
    return made(tmp / "d", 0o777)


def sticky(tmp: Path) -> Path:
    return made(tmp / "d", 0o1777)


def below_foreign(tmp: Path) -> Path:
    return made(made(tmp / "p", 0o755, STRANGER) / "d", 0o700)


def below_one_for_everybody(tmp: Path) -> Path:
    return made(tmp / "p", 0o777) / "d"


def link_of_a_stranger(tmp: Path) -> Path:
    made(tmp / "own", 0o700)
    (made(tmp / "p", 0o1777) / "d").symlink_to(tmp / "own")
    os.chown(tmp / "p" / "d", STRANGER, STRANGER, follow_symlinks=False)
    return tmp / "p" / "d"


def link_to_a_stranger(tmp: Path) -> Path:
    foreign(tmp)
    (tmp / "l").symlink_to("d")
    return tmp / "l"


def private_of_a_stranger(tmp: Path) -> Path:
    made(made(tmp / "d", 0o775) / "private", 0o700, STRANGER)
    return tmp / "d"


def private_is_a_link(tmp: Path) -> Path:
    made(tmp / "own", 0o700)
    (made(tmp / "d", 0o775) / "private").symlink_to(tmp / "own")
    return tmp / "d"


def _names(place: Path) -> list[str]:
    return sorted(map(str, place.rglob("*")))


def _settings(directory: Path) -> Settings:
    tables = {"http": {"bind": "off"}, "embedded": {"data_dir": directory}}
    source = {"name": "a", "base_url": "http://127.0.0.1:9", "auth": {"none": True}}
    return Settings.model_validate({**tables, "sources": [{**source, "feeds": [{"resource": "contractTypes"}]}]})


@as_root
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, r"/d belongs to user nobody, who could .*run poller as its owner"),
        (for_everybody, r"every user may write to .*/d.*: run chmod o-w .*/d, or name another"),
        (sticky, r"every user may write to .*/d"),
        (below_foreign, r"/p belongs to user nobody"),
        (below_one_for_everybody, r"every user may write to .*/p"),
        (link_of_a_stranger, r"/p/d belongs to user nobody"),
        (link_to_a_stranger, r"/d belongs to user nobody"),
        (private_of_a_stranger, r"/private belongs to user nobody"),
        (private_is_a_link, r"has a private"),
    ],
)
async def test_a_directory_that_others_rule_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    """Theirs, or one that they may write to or exchange on the way: no server is started, nothing is made in it."""
    directory = make(tmp_path)
    before = _names(tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        await EmbeddedServer(directory).ensure()
    assert _names(tmp_path) == before
    (said,) = [one async for one in check(_settings(directory), {}) if one.subject == "store"]
    assert said.severity == "error"


@pytest.mark.parametrize(
    ("parent", "mode", "place"),
    [
        (0o1777, None, "."),  # as in /tmp
        (0o755, 0o700, "."),
        (0o755, 0o755, "private"),
        (0o755, 0o2775, "private"),  # a volume of a group's
        (0o775, 0o755, "private"),
    ],
)
async def test_the_server_lives_where_only_this_user_enters(
    tmp_path: Path, parent: int, mode: int | None, place: str
) -> None:
    """In the directory itself, or in one of mode 0700 in it; its socket is found under the same name either way."""
    directory = made(tmp_path / "p", parent) / "d"
    if mode is not None:
        made(directory, mode)
    async with embedded(directory) as server:
        await server.ensure()
        home = located(directory)
        assert home == directory / place
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        async with commands(f"unix://{directory}/valkey.sock") as client:
            assert await client.ping()
    assert prepared(directory) == home


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that another user can reach, as none below pytest's own can be."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@as_root
async def test_a_directory_of_roots_is_used(reachable: Path) -> None:
    """A volume is root's, and its group's: another user has a directory of its own in it."""
    directory = made(reachable / "d", 0o770)
    os.chown(directory, 0, STRANGER)
    lines = f"import os; os.setgid({STRANGER}); os.setuid({STRANGER}); from pathlib import Path"
    lines += f"; from poller.store.data_directory import prepared; print(prepared(Path({str(directory)!r})))"
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import poller.store.data_directory\n{lines}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await done.communicate()
    assert out.decode().strip() == str(directory / "private")
    found = (directory / "private").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (STRANGER, 0o700)


async def test_what_a_mount_has_opened_is_closed_again(tmp_path: Path) -> None:
    """Kubernetes gives a volume and all in it to a group whenever it is mounted: the group is shut out again."""
    directory = made(tmp_path / "d", 0o2775)
    assert prepared(directory) == directory / "private"
    (directory / "private").chmod(0o2770)
    assert prepared(directory) == directory / "private"
    assert stat.S_IMODE((directory / "private").stat().st_mode) == 0o700


async def _with_data(directory: Path) -> None:
    """As the version before has left it."""
    directory.mkdir(mode=0o700)  # noqa: ASYNC240 — a test may block its loop for that long
    async with embedded(directory) as server:
        await server.ensure()
        async with commands(server.url) as client:
            await client.set("key", "value")


async def _kept(server: EmbeddedServer) -> bool:
    await server.ensure()
    async with commands(server.url) as client:
        return await client.get("key") == b"value"


async def test_data_is_found_where_it_is(tmp_path: Path) -> None:
    """A directory of before that others may read but not write keeps its data in its place."""
    await _with_data(tmp_path / "d")
    (tmp_path / "d").chmod(0o755)
    async with embedded(tmp_path / "d") as server:
        assert await _kept(server)
    assert located(tmp_path / "d") == tmp_path / "d"


async def test_data_of_before_moves(tmp_path: Path) -> None:
    """From a group's volume into the private directory; the earlier version can start no second server beside it."""
    directory = tmp_path / "d"
    await _with_data(directory)
    directory.chmod(0o2775)
    for _ in range(2):
        async with embedded(directory) as server:
            assert await _kept(server)
            with attempted(directory / "lock") as lock:
                assert lock is None
    assert located(directory) == directory / "private"
    assert not (directory / "appendonlydir").exists()


async def test_data_does_not_move_under_a_server(tmp_path: Path) -> None:
    """While the earlier version's server has the directory, its data stays and no other server starts."""
    directory = tmp_path / "d"
    await _with_data(directory)
    directory.chmod(0o2775)
    server = EmbeddedServer(directory)
    with attempted(directory / "lock") as lock:
        assert lock is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await server.ensure()
        assert (directory / "appendonlydir").exists()
        assert not server.running_here
    async with embedded(directory) as after:
        assert await _kept(after)


async def test_data_in_two_places_is_refused(tmp_path: Path) -> None:
    """Nothing is overwritten and nothing ignored: an operator says which one counts."""
    directory = tmp_path / "d"
    await _with_data(directory)
    directory.chmod(0o2775)
    made(directory / "private" / "appendonlydir", 0o700)
    with pytest.raises(ConfigurationError, match=r"data both in .* and in .*: stop all processes"):
        await EmbeddedServer(directory).ensure()


@as_root
async def test_a_server_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    """It listens on the very socket: refused by its user, at the start, by ``check`` and by each new connection."""
    directory = made(tmp_path / "d", 0o700)
    with ExitStack() as stack:
        process = stack.enter_context(foreign_server(directory / "valkey.sock"))
        with pytest.raises(ConfigurationError, match="is user nobody's and would be given all records"):
            await EmbeddedServer(directory).ensure()
        async with commands(EmbeddedServer(directory).url) as client:
            with pytest.raises(StoreUnavailable, match="is user nobody's; nothing was sent"), translated(client):
                await client.set("record", "secret")
        (said,) = [one async for one in check(_settings(directory), {}) if one.subject == "store"]
        assert "user nobody's" in said.text
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == ""
