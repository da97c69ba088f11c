"""The embedded server's directory: its location, its trusted users and its files.

**Invariants**

* Every directory on the way to the data belongs to this user, to root or to the owner of ``/``. So does each symbolic
  link on it. None of them may be written by every user, unless its sticky bit is set; the last one not even then.
* Only this user can enter the directory that holds socket, lock, log and data. It is ``data_dir`` itself where that is
  such a directory, or was used by a server already and no other user may write to it; else ``private`` in it.
* Data is never in two places. What an earlier version left in ``data_dir`` moves to ``private`` under both locks.
* Nothing is sent to a process of another user that answers on the socket.

Locks and servers: :mod:`poller.redis.embedded`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pwd
import re
import shutil
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from poller.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence


DATA: Final = "appendonlydir"
PRIVATE: Final = "private"

_TRACES: Final = (DATA, "lock", "valkey.sock", "valkey.log")
_LINKS: Final = 40  # as many as the kernel follows
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def trusted_users() -> frozenset[int]:
    """This user, root, and the owner of ``/``: root's number in a user namespace that has no root."""
    return frozenset({os.geteuid(), 0, os.stat("/").st_uid})  # noqa: PTH116 -- no path is built here


def prepared(directory: Path) -> Path:
    """Create what is missing and return the server's directory.

    Raises:
        ConfigurationError: it cannot be made, or others could read or change what is in it.
    """
    if _missing(directory):
        try:
            for each in reversed((directory, *directory.parents)):
                if not each.exists():
                    each.mkdir(mode=0o700, exist_ok=True)
        except OSError as failure:
            raise unusable(directory, f"cannot be made ({failure.strerror})") from failure
        _missing(directory)  # created meanwhile by another process
    home = located(directory)
    try:
        if home != directory:
            home.mkdir(mode=0o700, exist_ok=True)
            located(directory)
            home.chmod(0o700)  # a volume's permissions are opened again for its group whenever it is mounted
    except OSError as failure:
        raise unusable(directory, f"cannot be written ({failure.strerror})") from failure
    return home


def located(directory: Path) -> Path:
    """The server's directory, which may not exist yet; nothing is changed.

    Raises:
        ConfigurationError: others could read or change what is in it.
    """
    if _missing(directory):
        return directory
    private = directory / PRIVATE
    found = _looked(directory, private)
    if found is not None:
        _judge(directory, private, found, last=True)
        if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
            raise unusable(directory, f"has a {PRIVATE} of {_name(found.st_uid)}")
        return private
    own = directory.stat()
    if own.st_uid == os.geteuid():
        if not own.st_mode & 0o077:
            return directory
        if not own.st_mode & 0o022 and any(_looked(directory, directory / name) for name in _TRACES):
            return directory
    return private


def moved(directory: Path, home: Path) -> None:
    """Bring the data that an earlier version left in ``directory`` to ``home``. To be called with both locks held.

    Raises:
        ConfigurationError: there is data in both, or it belongs to another user.
    """
    left = directory / DATA
    found = _looked(directory, left) if home != directory else None
    if found is None:
        return
    if (home / DATA).exists():
        raise ConfigurationError(
            f"embedded.data_dir {directory}: data both in {left} and in {home / DATA}: stop all processes, keep "
            "the one that counts as the second, and move the other elsewhere"
        )
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        raise unusable(directory, f"has a {DATA} of {_name(found.st_uid)}")
    try:
        left.rename(home / DATA)
        for changed in (home, directory):
            synced(changed)
    except OSError as failure:
        raise unusable(directory, f"has data that cannot be moved to {home} ({failure.strerror})") from failure


def linked(directory: Path, socket_path: Path) -> None:
    """A link of the socket's name in ``directory``, for readers of the streams: its place does not depend on ``home``.

    Best effort: a directory that is root's alone has none.
    """
    link = directory / socket_path.name
    if socket_path.parent == directory or (link.is_symlink() and link.readlink() == socket_path):
        return
    with contextlib.suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(socket_path)


def foreign_peer(connected: socket.socket) -> str | None:
    """The user at the other end of a unix socket, in words, if it is none of :func:`trusted_users`.

    None where the system does not tell: there the directory's permissions alone protect.

    Raises:
        OSError: the socket is closed.
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    try:
        _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    except ValueError as error:  # uvloop's word for a closed socket
        raise ConnectionResetError(str(error)) from None
    return None if user in trusted_users() else _name(user)


def unusable(directory: Path, why: str) -> ConfigurationError:
    """The refusal of a directory, with what to do."""
    return ConfigurationError(
        f"embedded.data_dir {directory} {why}: name a directory that this user may write to, or set redis.url"
    )


def _missing(directory: Path) -> bool:
    """Whether a part of the path does not exist; what exists is judged, symbolic links included."""
    here, todo, links = Path("/"), list(reversed(directory.absolute().parts[1:])), 0
    _judge(directory, here, here.stat(), last=not todo)
    while todo:
        part = todo.pop()
        if part == "..":
            here = here.parent
            continue
        step = here / part
        found = _looked(directory, step)
        if found is None:
            return True
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                raise unusable(directory, "cannot be made (too many symbolic links)")
            _judge(directory, step, found, last=False)
            target = step.readlink()
            todo.extend(reversed([name for name in target.parts if name != "/"]))
            here = Path("/") if target.is_absolute() else here
        elif not stat.S_ISDIR(found.st_mode):
            raise unusable(directory, f"cannot be made ({step} is a file)" if todo else "is a file")
        else:
            _judge(directory, step, found, last=not todo)
            here = step
    return False


def _judge(directory: Path, place: Path, found: os.stat_result, *, last: bool) -> None:
    if found.st_uid not in trusted_users():
        raise ConfigurationError(
            f"embedded.data_dir {directory}: {place} belongs to {_name(found.st_uid)}, who could read and change "
            "what is stored: name a directory of this user or of root, or run poller as its owner"
        )
    if stat.S_ISLNK(found.st_mode) or not found.st_mode & 0o002:
        return
    if last or not found.st_mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"embedded.data_dir {directory}: every user may write to {place}, and could read and change what is "
            f"stored: run chmod o-w {place}, or name another directory"
        )


def _looked(directory: Path, place: Path) -> os.stat_result | None:
    try:
        return place.lstat()
    except FileNotFoundError:
        return None
    except OSError as failure:
        raise unusable(directory, f"cannot be read ({place}: {failure.strerror})") from failure


def _name(user: int) -> str:
    try:
        return f"user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"user {user}"


def synced(directory: Path) -> None:
    """Sync the directory's entries to disk.

    Raises:
        OSError: they cannot be written.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The append-only files of the embedded server: checking the manifest and repairing the last file.
#
# * Only the end of the last file is ever cut, behind its last whole command; of a transaction, behind EXEC or before
#   MULTI. What is cut is kept beside the file and on disk before the file is made shorter.
# * Where a whole command follows the damage, nothing is cut: it was acknowledged, and is for an operator to judge.
#   That is why Valkey's own ``aof-load-truncated`` is off: a length that was damaged in the middle swallows all that
#   follows, to the file's end, and looks to it like an end that is torn.
# * No server starts beside data that the manifest does not name: it would append new data to the old, and the start
#   after that would read both. An interrupted first start leaves a base file without records and an empty incremental
#   file, because the manifest is written last; these do not count as data.
# * The caller holds the directory's lock, and no server runs.

MANIFEST: Final = "appendonly.aof.manifest"

_LINE_LIMIT: Final = 1026  # of an annotation; a length is shorter
_COMMAND: Final = re.compile(rb"\*[1-9]\d{0,6}\r\n\$\d")
_BACKUP: Final = "restore its directory from a backup"
_NUMBERED: Final = re.compile(r"appendonly\.aof\.(?P<number>\d+)\.(?P<kind>base|incr)\.\w+")
_NO_RECORDS_BYTES: Final = 512  # more than a base file without records has: about 90
_TYPES: Final = frozenset("bhi")


class Extent(msgspec.Struct, frozen=True):
    """The readable part of a file, in bytes.

    Attributes:
        whole: the end of the last complete command or transaction.
        failed: where reading ends: at ``size``, or before something that is no command.
        size: of the file.
        followed: whether a whole command follows that.
    """

    whole: int
    failed: int
    size: int
    followed: bool


class Cut(msgspec.Struct, frozen=True):
    """The result of cutting a file.

    Attributes:
        file: that was cut.
        at: its size now, in bytes.
        size: how many bytes were cut.
        kept: the file that holds them.
    """

    file: Path
    at: int
    size: int
    kept: Path


class _Named(msgspec.Struct, frozen=True):
    """A line of the manifest: a file, its number, and whether it is a base, a former or an incremental file."""

    file: str
    number: int
    kind: str


def files(directory: Path) -> Sequence[Path]:
    """The incremental files that the manifest in ``directory`` names, in order; empty where it cannot be read."""
    try:
        lines = (directory / MANIFEST).read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    found = [one for one in map(_named, lines) if one is not None and one.kind == "i"]
    return [directory / one.file for one in sorted(found, key=lambda one: one.number)]


def check_manifest(directory: Path) -> None:
    """Refuse data that the manifest does not name, and a manifest that is damaged. Reads no file but the manifest.

    Raises:
        StoreUnavailable: a server must not start on these files; the message says what to do.
    """
    manifest = directory / MANIFEST
    remedy = (
        f"restore it, or the whole directory, from a backup; or, to begin with an empty store, move {directory} away"
    )
    try:
        content = manifest.read_bytes() if manifest.exists() else None
        there = _numbered(directory)
    except OSError as failure:
        raise StoreUnavailable(f"{failure.filename or directory} cannot be read ({failure.strerror})") from failure
    if content is None:
        data = [path for kind, number, path, size in there if size and (kind == "incr" or _has_records(number, size))]
        if data:
            raise StoreUnavailable(f"{manifest} is missing, and {data[-1].name} beside it has data: {remedy}")
        return
    named = [_named(line) for line in content.decode(errors="replace").split("\n")[:-1] if line[:1] != "#"]
    lines = [one for one in named if one is not None]
    if not lines or len(lines) < len(named) or not content.endswith(b"\n"):
        raise StoreUnavailable(f"{manifest} is {'damaged' if content else 'empty'}: {remedy}")
    last = max((one.number for one in lines if one.kind == "i"), default=0)
    later = [path for kind, number, path, size in there if kind == "incr" and number > last and size]
    if later:
        raise StoreUnavailable(f"{manifest} does not name {later[-1].name}, which is later and has data: {remedy}")


def looks_torn(directory: Path) -> bool:
    """Whether the last file's last two bytes cannot be the end of a command. Seen without reading it."""
    try:
        with files(directory)[-1].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2))
            return size > 0 and file.read() != b"\r\n"
    except (IndexError, OSError):
        return False


def torn_end(directory: Path) -> Extent | None:
    """How much of the last file is intact, if its end must be cut off. Reads all files, and changes none.

    Raises:
        StoreUnavailable: a file is damaged in the middle, or is not the last one; the message says what to do.
    """
    found = files(directory)
    for path in found:
        try:
            read = extent(path)
        except OSError as failure:
            raise StoreUnavailable(f"{path} cannot be read ({failure.strerror})") from failure
        if read.whole == read.size:
            continue
        damaged = f"{path} is damaged at byte {read.failed} of {read.size}"
        if path != found[-1]:
            raise StoreUnavailable(f"{damaged}, and is not the last of its files; nothing was cut: {_BACKUP}")
        if read.followed:
            raise StoreUnavailable(
                f"{damaged}, and whole commands follow, so its end is not torn; nothing was cut: {_BACKUP}, or copy it "
                f"and give up all that follows the damage with: truncate -s {read.whole} '{path}'"
            )
        return read
    return None


def cut(directory: Path, found: Extent) -> Cut:
    """Cut the end that :func:`torn_end` found off the last file, and keep it beside.

    Raises:
        StoreUnavailable: what is cut cannot be kept; the file is as it was.
    """
    path = files(directory)[-1]
    try:
        with path.open("r+b") as file:
            kept = _kept(path, found.whole)
            file.seek(found.whole)
            with os.fdopen(os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                shutil.copyfileobj(file, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
            synced(path.parent)
            file.truncate(found.whole)
            os.fsync(file.fileno())
    except OSError as failure:
        raise StoreUnavailable(
            f"{path} is torn at byte {found.whole} and cannot be mended ({failure.strerror}): make room, or see to its "
            "permissions"
        ) from failure
    return Cut(path, found.whole, found.size - found.whole, kept)


def extent(path: Path) -> Extent:
    """Read a file to its end, or to what is no command.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return Extent(0, 0, 0, followed=False)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            whole, failed = _read(data, size)
            return Extent(whole, failed, size, followed=failed < size and _followed(data, failed, size))


def _named(line: str) -> _Named | None:
    words = line.split()
    said = dict(zip(words[::2], words[1::2], strict=False))
    name, number, kind = said.get("file", ""), said.get("seq", ""), said.get("type")
    if kind not in _TYPES or not name or "/" in name or not number.isdecimal():
        return None
    return _Named(name, int(number), kind)


def _numbered(directory: Path) -> list[tuple[str, int, Path, int]]:
    """The files that are here, named or not: kind, number, path, size in bytes; by kind and number."""
    found = [(_NUMBERED.fullmatch(path.name), path) for path in directory.iterdir()] if directory.exists() else []
    return sorted(
        (matched["kind"], int(matched["number"]), path, path.stat().st_size) for matched, path in found if matched
    )


def _has_records(number: int, size: int) -> bool:
    """Whether a base file is none of a first start: later ones are made only where there was a manifest."""
    return number > 1 or size > _NO_RECORDS_BYTES


def _read(data: mmap.mmap, size: int) -> tuple[int, int]:
    here = whole = 0
    within = False
    while here < size:
        if data[here : here + 1] == b"#":
            after, name = _line_end(data, here, size), b""
        else:
            after, name = _command(data, here, size)
        if after is None:
            break
        here = after
        if name == b"MULTI":
            within = True
        elif name == b"EXEC":
            within = False
        if not within:
            whole = here
    return whole, here


def _command(data: mmap.mmap, here: int, size: int) -> tuple[int | None, bytes]:
    """Where the command that begins at ``here`` ends, and its name if it is a short one; None: it does not."""
    count, here = _number(data, here, size, b"*")
    if count < 1:
        return None, b""
    name = b""
    for argument in range(count):
        length, here = _number(data, here, size, b"$")
        end = here + length
        if length < 0 or end + 2 > size or data[end : end + 2] != b"\r\n":
            return None, b""
        if argument == 0 and length < len(b"discard"):
            name = data[here:end].upper()
        here = end + 2
    return here, name


def _number(data: mmap.mmap, here: int, size: int, mark: bytes) -> tuple[int, int]:
    """The number of a line ``mark``, digits, and where the next line begins; -1 where there is none."""
    end = data.find(b"\r\n", here, min(here + 24, size))
    digits = data[here + 1 : end] if end > here else b""
    if data[here : here + 1] != mark or not digits.isdigit():
        return -1, here
    return int(digits), end + 2


def _line_end(data: mmap.mmap, here: int, size: int) -> int | None:
    end = data.find(b"\r\n", here, min(here + _LINE_LIMIT, size))
    return end + 2 if end >= 0 else None


def _followed(data: mmap.mmap, failed: int, size: int) -> bool:
    return any(_command(data, found.start(), size)[0] for found in _COMMAND.finditer(data, failed + 1))


def _kept(path: Path, at: int) -> Path:
    """A name that is free, for one place can be cut twice."""
    number = 1
    while (named := path.with_name(f"{path.name}.{at}.{number}.cut")).exists():
        number += 1
    return named
