"""The file: which one is taken, and how one that cannot be read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config.file import LARGEST, find_file, read
from poller.errors import ConfigurationError


def test_which_file(tmp_path: Path) -> None:
    """--config beats $POLLER_CONFIG beats ./poller.toml; the last counts only if it is there."""
    environ = {"POLLER_CONFIG": "b.toml"}
    assert find_file(None, {}, tmp_path) is None
    (tmp_path / "poller.toml").touch()
    assert find_file(None, {"POLLER_CONFIG": ""}, tmp_path) == tmp_path / "poller.toml"
    assert find_file(None, environ, tmp_path) == tmp_path / "b.toml"
    assert find_file(Path("a.toml"), environ, tmp_path) == tmp_path / "a.toml"
    assert find_file(Path("/etc/a.toml"), environ, tmp_path) == Path("/etc/a.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = \n", "line 2, column 5: not valid TOML: invalid value"),
        (b"a = [1", "line 1, column 7: not valid TOML: unclosed array"),
        (b"a = 1\n\xff = 2", "line 2: expected text in UTF-8"),
        (b"a = " + b"[" * 5000, "expected tables, lists and numbers of a reasonable depth and length"),
        (b"a = " + b"1" * 5000, "expected tables, lists and numbers of a reasonable depth and length"),
        (b"#" * (LARGEST + 1), "expected a TOML file of at most 4 MiB"),
    ],
    ids=range(6),
)
def test_unreadable_content(content: bytes, message: str, tmp_path: Path) -> None:
    """What is not TOML is refused with file, line and column."""
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read(path)
    assert str(refused.value) == f"{path}: {message}"


def test_unreadable_places(tmp_path: Path) -> None:
    """A file that is not there, a directory and a path that is none are told apart."""
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    for path, message in (
        (tmp_path / "no.toml", "there is no such file"),
        (tmp_path, "this is a directory; expected a TOML file"),
        (loop, "cannot be read: Too many levels of symbolic links"),
        (Path("a\0b"), "cannot be read: not a path"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            read(path)
        assert str(refused.value) == f"{path}: {message}"


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors that begin a file with a byte order mark are forgiven."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read(path) == {"a": 1}
