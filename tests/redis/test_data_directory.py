"""Laws of :mod:`poller.redis.data_directory`: files after a power cut, and safe directories. On a real server."""

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
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control.diagnostics import check
from poller.errors import ConfigurationError, StoreUnavailable
from poller.redis.client import commands
from poller.redis.data_directory import Extent, extent, files, located, prepared, torn_end
from poller.redis.embedded import EmbeddedServer, attempted
from poller.redis.errors import translated
from tests.harness.waiting import until

ZEROS = bytes(4096)


def command(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(directory, clock=Clock())
    try:
        yield server
    finally:
        await server.stop()


async def written(directory: Path, count: int = 3) -> Path:
    """Write keys ``0`` … with a server on this directory; return the last file with data."""
    async with embedded(directory) as server:
        await server.ensure()
        async with commands(server.url) as client:
            for number in range(count):
                await client.set(str(number), "v" * 100)
    return files(directory / "appendonlydir")[-1]


async def keys(directory: Path) -> set[bytes]:
    async with embedded(directory) as server:
        await server.ensure()
        async with commands(server.url) as client:
            return {name for name in await client.keys("*") if isinstance(name, bytes)}


@pytest.mark.parametrize(
    "tail",
    [
        ZEROS,
        b"\r\n",
        command("SET", "new", "x")[:20],
        command("SET", "new", "x")[:20] + ZEROS,
        command("MULTI") + command("SET", "new", "x"),
        command("MULTI") + command("SET", "new", "x") + ZEROS,
        command("multi") + command("SET", "new", "x")[:20],
        b"*3\r\n$3\r\nSET\r\n$9999999\r\n",
    ],
    ids=["zeros", "line", "half", "half and zeros", "multi", "multi and zeros", "half a multi", "length"],
)
async def test_a_torn_end_is_cut_and_kept(tmp_path: Path, tail: bytes) -> None:
    """A torn end is cut after the last whole command or transaction and kept in a file; the server starts."""
    file = await written(tmp_path / "d")
    before = file.read_bytes()
    file.write_bytes(before + tail)
    with capture_logs() as logs:
        assert await keys(tmp_path / "d") == {b"0", b"1", b"2"}
    (kept,) = file.parent.glob("*.cut")
    assert kept.read_bytes() == tail
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert file.read_bytes().startswith(before)
    (said,) = [one for one in logs if one["event"] == "embedded data cut"]
    assert (said["file"], said["at"], said["bytes"]) == (str(file), len(before), len(tail))
    assert said["kept"] == str(kept)


async def test_what_is_cut_twice_is_kept_twice(tmp_path: Path) -> None:
    """A second part that is cut at the same byte does not replace the first one."""
    file = await written(tmp_path / "d")
    before = file.read_bytes()
    for tail in (ZEROS, b"torn"):
        file.write_bytes(before + tail)
        await keys(tmp_path / "d")
    assert sorted(path.read_bytes() for path in file.parent.glob("*.cut")) == [ZEROS, b"torn"]


def hole(whole: bytes) -> bytes:
    return whole[:150] + bytes(20) + whole[170:]


def swallowing(whole: bytes) -> bytes:
    """A length that exceeds the file, which Valkey itself would take for a torn end and cut."""
    return whole.replace(b"$100\r\n", b"$999999\r\n", 1)


def hole_and_torn_end(whole: bytes) -> bytes:
    return hole(whole) + ZEROS


@pytest.mark.parametrize("damage", [hole, swallowing, hole_and_torn_end])
async def test_damage_in_the_middle_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Damage before whole commands is refused and nothing is cut; the error names the place and the remedy."""
    file = await written(tmp_path / "d", 20)
    damaged = damage(file.read_bytes())
    file.write_bytes(damaged)
    with pytest.raises(
        StoreUnavailable, match=r"damaged at byte \d+ of \d+, and whole commands follow.*truncate -s"
    ) as no:
        await keys(tmp_path / "d")
    assert "check-aof" not in str(no.value)
    assert file.read_bytes() == damaged
    assert not list(file.parent.glob("*.cut"))
    advised = int(str(no.value).partition("truncate -s ")[2].split()[0])
    file.write_bytes(damaged[:advised])
    assert await keys(tmp_path / "d") <= {str(number).encode() for number in range(20)}


async def test_only_the_last_file_is_cut(tmp_path: Path) -> None:
    """Only the last file of a manifest is cut; an earlier file with a torn end is refused unchanged."""
    file = await written(tmp_path / "d")
    manifest = file.parent / "appendonly.aof.manifest"
    later = file.with_name("appendonly.aof.2.incr.aof")
    later.write_bytes(command("SELECT", "0") + command("SET", "later", "x"))
    manifest.write_text(manifest.read_text() + f"file {later.name} seq 2 type i\n")
    assert files(file.parent) == [file, later]
    assert await keys(tmp_path / "d") == {b"0", b"1", b"2", b"later"}
    whole, second = file.read_bytes(), later.read_bytes()
    file.write_bytes(whole + ZEROS)
    with pytest.raises(StoreUnavailable, match=r"1.incr.aof is damaged .*not the last of its files; nothing was cut"):
        await keys(tmp_path / "d")
    assert file.read_bytes() == whole + ZEROS
    file.write_bytes(whole)
    later.write_bytes(second + ZEROS)
    assert await keys(tmp_path / "d") == {b"0", b"1", b"2", b"later"}
    assert [path.name.partition("aof.")[2][:1] for path in file.parent.glob("*.cut")] == ["2"]


async def test_other_damage_names_no_tool_that_is_not_here(tmp_path: Path) -> None:
    """If the server exits because of a whole but unknown command, the error has the server's own words."""
    file = await written(tmp_path / "d")
    file.write_bytes(file.read_bytes() + command("NOSUCH", "x") + command("SET", "new", "x"))
    with pytest.raises(StoreUnavailable, match=r"left immediately.*unknown command 'NOSUCH'"):
        await keys(tmp_path / "d")


def test_a_file_is_whole_up_to_its_last_command_wherever_it_ends(tmp_path: Path) -> None:
    """For a file cut at any byte, with or without zeros, the whole part ends after a command outside a transaction."""
    parts = [
        command("SELECT", "0"),
        b"#TS:1700000000\r\n",
        command("SET", "a", "\r\n*1\r\n"),
        command("MULTI") + command("SET", "b", "x") + command("DEL", "a") + command("EXEC"),
        command("SET", "c", ""),
    ]
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + len(part))
    whole, path = b"".join(parts), tmp_path / "f"
    for size in range(len(whole) + 1):
        expected = max(end for end in ends if end <= size)
        for tail in (b"", ZEROS):
            path.write_bytes(whole[:size] + tail)
            read = extent(path)
            assert (read.whole, read.size, read.followed) == (expected, size + len(tail), False), size
    path.write_bytes(b"")
    assert extent(path) == Extent(0, 0, 0, followed=False)


REMEDY = r"restore it, or the whole directory, from a backup; or, .*, move .*appendonlydir away"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (None, "is missing, and appendonly.aof.1.incr.aof beside it has data"),
        (lambda _: b"", "is empty"),
        (lambda whole: bytes(len(whole)), "is damaged"),
        (lambda whole: whole[:-20], "is damaged"),
        (lambda whole: whole[: whole.index(b"\n") + 1], "does not name appendonly.aof.1.incr.aof"),
    ],
    ids=["missing", "empty", "zeros", "torn", "without its last line"],
)
async def test_data_that_the_manifest_does_not_name_is_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None, says: str
) -> None:
    """Data that the manifest does not name is refused and unchanged; both remedies in the error work."""
    file = await written(tmp_path / "d")
    manifest = file.parent / "appendonly.aof.manifest"
    whole, data = manifest.read_bytes(), file.read_bytes()
    manifest.unlink()
    if damage is not None:
        manifest.write_bytes(damage(whole))
    with pytest.raises(StoreUnavailable, match=f"appendonly.aof.manifest {says}.*: {REMEDY}"):
        await keys(tmp_path / "d")
    assert file.read_bytes() == data
    manifest.write_bytes(whole)
    assert await keys(tmp_path / "d") == {b"0", b"1", b"2"}
    file.parent.rename(tmp_path / "away")
    assert await keys(tmp_path / "d") == set()


async def test_a_base_file_that_a_rewrite_made_is_data_too(tmp_path: Path) -> None:
    """A base file counts as data even when the incremental file after it is empty."""
    async with embedded(tmp_path / "d") as server:
        await server.ensure()
        async with commands(server.url) as client:
            await client.set("0", "v")
            await client.bgrewriteaof()
            data = tmp_path / "d" / "appendonlydir"
            await until(lambda: not (data / "appendonly.aof.1.incr.aof").exists(), "the rewrite")
    manifest = data / "appendonly.aof.manifest"
    whole = manifest.read_bytes()
    assert not files(data)[-1].stat().st_size
    manifest.unlink()
    with pytest.raises(StoreUnavailable, match=r"is missing, and appendonly.aof.2.base.aof beside it has data"):
        await keys(tmp_path / "d")
    manifest.write_bytes(whole)
    assert await keys(tmp_path / "d") == {b"0"}


@pytest.mark.parametrize("left", [(), (".base.rdb",), (".base.rdb", ".incr.aof")])
async def test_a_first_start_that_was_interrupted_is_begun_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    """Files of a first start that was interrupted before the manifest was written are no reason to refuse."""
    file = await written(tmp_path / "d", 0)
    for path in file.parent.iterdir():
        if not path.name.endswith(left):
            path.unlink()
    assert await keys(tmp_path / "d") == set()
    assert files(file.parent)


def test_a_directory_without_files_has_no_torn_end(tmp_path: Path) -> None:
    """Without a readable manifest no torn end is found, so that the server reports the fault."""
    assert torn_end(tmp_path) is None
    (tmp_path / "appendonly.aof.manifest").write_bytes(b"\xff nonsense")
    assert torn_end(tmp_path) is None


# Which directories are safe to use, and where the data is, with real owners and real servers.

STRANGER = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of another user")

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
    """A server of another user that prints what it receives."""
    command = [sys.executable, "-c", FOREIGN_SERVER, str(socket), str(STRANGER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield process
        finally:
            process.kill()


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
    """A directory that other users own, write to or can replace is refused, and nothing is created in it."""
    directory = make(tmp_path)
    before = _names(tmp_path)
    with pytest.raises(ConfigurationError, match=words):
        await EmbeddedServer(directory, clock=Clock()).ensure()
    assert _names(tmp_path) == before
    (said,) = [one async for one in check(_settings(directory), {}, clock=Clock()) if one.subject == "store"]
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
    """The server uses the directory, or a private one of mode 0700 in it; its socket's path is the same either way."""
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
    """A directory that another user can reach, unlike those of pytest."""
    with TemporaryDirectory(dir="/var/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@as_root
async def test_a_directory_of_roots_is_used(reachable: Path) -> None:
    """In a directory that root owns and a group may write to, another user gets a private directory."""
    directory = made(reachable / "d", 0o770)
    os.chown(directory, 0, STRANGER)
    lines = f"import os; os.setgid({STRANGER}); os.setuid({STRANGER}); from pathlib import Path"
    lines += f"; from poller.redis.data_directory import prepared; print(prepared(Path({str(directory)!r})))"
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-c", f"import poller.redis.data_directory\n{lines}", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await done.communicate()
    assert out.decode().strip() == str(directory / "private")
    found = (directory / "private").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (STRANGER, 0o700)


async def test_what_a_mount_has_opened_is_closed_again(tmp_path: Path) -> None:
    """Kubernetes opens a volume to a group at each mount; the private directory is closed to the group again."""
    directory = made(tmp_path / "d", 0o2775)
    assert prepared(directory) == directory / "private"
    (directory / "private").chmod(0o2770)
    assert prepared(directory) == directory / "private"
    assert stat.S_IMODE((directory / "private").stat().st_mode) == 0o700


async def _with_data(directory: Path) -> None:
    """A directory with data as an earlier version left it."""
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
    """An earlier version's directory that others can read but not write keeps its data in place."""
    await _with_data(tmp_path / "d")
    (tmp_path / "d").chmod(0o755)
    async with embedded(tmp_path / "d") as server:
        assert await _kept(server)
    assert located(tmp_path / "d") == tmp_path / "d"


async def test_data_of_before_moves(tmp_path: Path) -> None:
    """Data in a group's volume moves to the private directory, and the old place stays locked for earlier versions."""
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
    """While another server holds the directory, its data stays and no second server starts."""
    directory = tmp_path / "d"
    await _with_data(directory)
    directory.chmod(0o2775)
    server = EmbeddedServer(directory, clock=Clock())
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
    """Data in both places is refused, so that an operator decides which one counts."""
    directory = tmp_path / "d"
    await _with_data(directory)
    directory.chmod(0o2775)
    made(directory / "private" / "appendonlydir", 0o700)
    with pytest.raises(ConfigurationError, match=r"data both in .* and in .*: stop all processes"):
        await EmbeddedServer(directory, clock=Clock()).ensure()


@as_root
async def test_a_server_of_another_user_is_told_nothing(tmp_path: Path) -> None:
    """A server of another user on the socket receives nothing: the start, ``check`` and each connection refuse it."""
    directory = made(tmp_path / "d", 0o700)
    with ExitStack() as stack:
        process = stack.enter_context(foreign_server(directory / "valkey.sock"))
        with pytest.raises(ConfigurationError, match="is user nobody's and would be given all records"):
            await EmbeddedServer(directory, clock=Clock()).ensure()
        async with commands(EmbeddedServer(directory, clock=Clock()).url) as client:
            with pytest.raises(StoreUnavailable, match="is user nobody's; nothing was sent"), translated(client):
                await client.set("record", "secret")
        (said,) = [one async for one in check(_settings(directory), {}, clock=Clock()) if one.subject == "store"]
        assert "user nobody's" in said.text
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == ""
