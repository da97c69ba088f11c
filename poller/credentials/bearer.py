"""Where the ``Authorization`` header of a request comes from.

A credential is asked anew for each request, so a token that is replaced is used from then on. When the API does not
accept a token any more, the credential is told which, once for each request, and says whether there is another one.

Its value is never part of a message. Tokens that have to be fetched are in :mod:`poller.credentials.issued`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from poller.credentials.secret_file import SecretFile
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
            SourceUnavailable: it cannot be had now; later it may.
        """
        ...

    async def renew(self, rejected: str) -> bool:
        """Whether :meth:`token` gives another one than this, which the API has just refused with 401.

        Calls for the same token share one attempt to get another.

        Raises:
            CredentialUnusable, SourceUnavailable: as :meth:`token`.
        """
        ...


class NoCredential:
    """For an API that asks for none."""

    origin = "a request without a credential"

    async def token(self) -> str | None:
        """None."""
        return None

    async def renew(self, rejected: str) -> bool:  # noqa: ARG002 -- the protocol's signature
        """No: there is nothing to renew."""
        return False


class EnvironmentToken:
    """A token in an environment variable."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """Take the variable's name and the environment to look in."""
        self.origin = f"the environment variable {name}"
        self._name = name
        self._environ = environ

    async def token(self) -> str | None:
        """The variable's value."""
        return checked(self._environ.get(self._name, ""), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Whether the variable has another value by now."""
        return await self.token() != rejected


class FileToken:
    """A token in a file, read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Take the file's path; it is read when the first token is asked for."""
        self._file = SecretFile(path, "token")
        self.origin = self._file.origin

    async def token(self) -> str | None:
        """The file's content without surrounding white space."""
        return checked(self._file.text(), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Whether the file, read again, holds another token: a rotation may have been quicker than the clock's tick."""
        return checked(self._file.text(anew=True), self.origin) != rejected


def checked(text: str, origin: str) -> str:
    """The token that this text is, without surrounding white space.

    Raises:
        CredentialUnusable: it is none, for it could not stand in a header; the text is not shown.
    """
    token = text.strip()
    if not token:
        raise CredentialUnusable(f"{origin} holds no token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialUnusable(f"{origin} does not hold a token: only printable ASCII without spaces can be one")
    return token
