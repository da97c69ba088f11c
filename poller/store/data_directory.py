"""Who may be trusted with the embedded server's directory, and where in it the server lives.

Invariants:

* Every directory on the way to the data belongs to this user, to root or to the owner of ``/``. So does each symbolic
  link on it. None of them may be written by every user, unless its sticky bit is set; the last one not even then.
* Only this user can enter the directory that holds socket, lock, log and data. It is ``data_dir`` itself where that is
  such a directory, or was used by a server already and no other user may write to it; else ``private`` in it.
* Data is never in two places. What an earlier version left in ``data_dir`` moves to ``private`` under both locks.
* A process of another user that answers on the socket is never talked to.

What holds the directory (locks, servers) is :mod:`poller.store.embedded`'s.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from poller.errors import ConfigurationError

DATA: Final = "appendonlydir"
PRIVATE: Final = "private"

_TRACES: Final = (DATA, "lock", "valkey.sock", "valkey.log")
_LINKS: Final = 40  # as many as the kernel follows
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


def trusted_users() -> frozenset[int]:
    """This user, root, and the owner of ``/``: root's number in a user namespace that has no root."""
    return frozenset({os.geteuid(), 0, os.stat("/").st_uid})  # noqa: PTH116 -- no path is built here


def prepared(directory: Path) -> Path:
    """Make what is missing and return the server's directory.

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
        _missing(directory)  # what was made meanwhile, by another
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
    """
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
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
    """Have the directory's names on disk.

    Raises:
        OSError: they cannot be written.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
