"""What a power cut leaves of the embedded server's files, and what becomes of it. Real files of a real server."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from poller.errors import StoreUnavailable
from poller.store.append_only_file import Extent, extent, files, torn_end
from poller.store.connection import commands
from poller.store.embedded import EmbeddedServer
from tests.harness.waiting import until

ZEROS = bytes(4096)


def command(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(directory)
    try:
        yield server
    finally:
        await server.stop()


async def written(directory: Path, count: int = 3) -> Path:
    """A server's directory with keys ``0`` … in it; gives the file that has them last."""
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
    """Behind the last whole command; no transaction in part. The server starts; what was cut is beside."""
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
    """At the same byte: the second part does not replace the first."""
    file = await written(tmp_path / "d")
    before = file.read_bytes()
    for tail in (ZEROS, b"torn"):
        file.write_bytes(before + tail)
        await keys(tmp_path / "d")
    assert sorted(path.read_bytes() for path in file.parent.glob("*.cut")) == [ZEROS, b"torn"]


def hole(whole: bytes) -> bytes:
    return whole[:150] + bytes(20) + whole[170:]


def swallowing(whole: bytes) -> bytes:
    """A length that reaches beyond the end: what Valkey itself takes for an end that is torn, and cuts."""
    return whole.replace(b"$100\r\n", b"$999999\r\n", 1)


def hole_and_torn_end(whole: bytes) -> bytes:
    return hole(whole) + ZEROS


@pytest.mark.parametrize("damage", [hole, swallowing, hole_and_torn_end])
async def test_damage_in_the_middle_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    """Whole commands follow, which were acknowledged: nothing is cut, and the words say where, and what can be done."""
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
    """Of several files in a manifest, an earlier one with a torn end is no work of a power cut: refused, unchanged."""
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
    """A command that the server does not know is whole: the server's own words say why it left."""
    file = await written(tmp_path / "d")
    file.write_bytes(file.read_bytes() + command("NOSUCH", "x") + command("SET", "new", "x"))
    with pytest.raises(StoreUnavailable, match=r"left at once.*unknown command 'NOSUCH'"):
        await keys(tmp_path / "d")


def test_a_file_is_whole_up_to_its_last_command_wherever_it_ends(tmp_path: Path) -> None:
    """Cut at each byte, with and without zeros behind it: the whole part ends with a command and in no transaction."""
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
    """No server starts as new beside it and appends to it: the words say what to do, and both remedies work."""
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
    """Where nothing was written since a rewrite, the incremental file is empty and the base file has all."""
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
    with pytest.raises(StoreUnavailable, match=r"is missing, and appendonly.aof.2.base.rdb beside it has data"):
        await keys(tmp_path / "d")
    manifest.write_bytes(whole)
    assert await keys(tmp_path / "d") == {b"0"}


@pytest.mark.parametrize("left", [(), (".base.rdb",), (".base.rdb", ".incr.aof")])
async def test_a_first_start_that_was_interrupted_is_begun_again(tmp_path: Path, left: tuple[str, ...]) -> None:
    """The manifest is written last: what there is before holds nothing, and is no reason to refuse."""
    file = await written(tmp_path / "d", 0)
    for path in file.parent.iterdir():
        if not path.name.endswith(left):
            path.unlink()
    assert await keys(tmp_path / "d") == set()
    assert files(file.parent)


def test_a_directory_without_files_has_no_torn_end(tmp_path: Path) -> None:
    """No manifest, or one that cannot be read: it is the server that says so."""
    assert torn_end(tmp_path) is None
    (tmp_path / "appendonly.aof.manifest").write_bytes(b"\xff nonsense")
    assert torn_end(tmp_path) is None
