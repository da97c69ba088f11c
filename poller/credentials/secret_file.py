"""A secret in a file: read again whenever the file changes, and only where nobody else can read it.

Law: a file that every user of the machine can read or write holds no secret, so it is refused and not only warned
about; the group may read, as it does where containers mount secrets. What counts is the file that a link leads to:
Kubernetes replaces secrets by moving links.

Knows nothing of what the secret is for beyond a word for messages, and never shows it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from poller.errors import CredentialUnusable

_LARGEST: Final = 64 * 1024  # bytes; no token or client secret comes near
_OTHERS: Final = 0o007
_Stamp = tuple[int, int, int, int]


class SecretFile:
    """The file's text, which a rotation replaces at any time."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the file's path and the word for what it holds; it is read when the text is first asked for."""
        self.origin = f"the file {path}"
        self._path = path
        self._what = what
        self._seen: _Stamp | None = None
        self._text = ""

    def text(self, *, anew: bool = False) -> str:
        """The content without surrounding white space; looks at the file each time, reads it when it changed.

        Args:
            anew: read it even if it looks unchanged.

        Raises:
            CredentialUnusable: it is missing, unreadable, open to every user, too large, not UTF-8 or empty.
        """
        try:
            seen = self._stamp(os.stat(self._path))  # noqa: PTH116 -- microseconds on a local file, for each request
            if anew or seen != self._seen:
                self._text, self._seen = self._read()
        except (OSError, UnicodeDecodeError) as error:
            self._seen = None  # the next file may look like the last one, down to its inode
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise self._unusable(str(reason)) from None
        if not self._text:
            raise CredentialUnusable(f"{self.origin} holds no {self._what}")
        return self._text

    def _read(self) -> tuple[str, _Stamp]:
        with self._path.open("rb") as file:
            seen = self._stamp(os.fstat(file.fileno()))  # of what was opened, whatever the path leads to by now
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise self._unusable(f"it is larger than {_LARGEST} bytes")
        return content.decode("utf-8").strip(), seen

    def _stamp(self, found: os.stat_result) -> _Stamp:
        if not stat.S_ISREG(found.st_mode):
            raise self._unusable("it is not a regular file")
        if os.name == "posix" and found.st_mode & _OTHERS:
            raise self._unusable(
                f"every user of this machine may use it (mode {stat.S_IMODE(found.st_mode):04o}); "
                f"chmod 600 {self._path} (or 640; for a container's secret, mount it with mode 0440)"
            )
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size

    def _unusable(self, reason: str) -> CredentialUnusable:
        return CredentialUnusable(f"the {self._what} cannot be read from {self.origin}: {reason}")
