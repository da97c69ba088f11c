"""Where the ``Authorization`` header of a request comes from.

A credential is asked anew for each request, so a token that is replaced in its file is used from then on. Its value is
never part of a message, and :func:`hidden` takes it out of text that came from outside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from poller.errors import CredentialUnusable


class Credential(Protocol):
    """Something that gives a bearer token, or none where the API needs none."""

    @property
    def origin(self) -> str:
        """Where it comes from, in words fit for a message."""
        ...

    async def token(self) -> str | None:
        """The token now.

        Raises:
            CredentialUnusable: it cannot be had.
        """
        ...


class NoCredential:
    """For an API that asks for none."""

    origin = "no credential"

    async def token(self) -> str | None:
        """None."""
        return None


class EnvironmentToken:
    """A token in an environment variable."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """Take the variable's name and the environment to look in."""
        self.origin = f"the environment variable {name}"
        self._name = name
        self._environ = environ

    async def token(self) -> str | None:
        """The variable's value."""
        return _checked(self._environ.get(self._name, ""), self.origin)


class FileToken:
    """A token in a file, read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Take the file's path; it is read when the first token is asked for."""
        self.origin = f"the file {path}"
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    async def token(self) -> str | None:
        """The file's content without surrounding white space."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 -- one call of microseconds on a local file, before each request
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self._token, self._seen = self._path.read_text("utf-8"), seen
        except (OSError, UnicodeDecodeError) as error:
            self._seen = None  # the next file may look like the last one, down to its inode
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise CredentialUnusable(f"the token cannot be read from {self.origin}: {reason}") from None
        return _checked(self._token, self.origin)


def _checked(text: str, origin: str) -> str:
    token = text.strip()
    if not token:
        raise CredentialUnusable(f"{origin} holds no token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialUnusable(f"{origin} does not hold a token: only printable ASCII without spaces can be one")
    return token


def hidden(text: str, token: str | None) -> str:
    """The text with the token taken out, should somebody have echoed it."""
    return text.replace(token, "[redacted]") if token else text
