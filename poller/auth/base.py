"""Credentials: where the token of a request comes from, and how it is sent.

**Invariants**

* A credential is asked for each request, so a token that is replaced is used from then on. When the API refuses a token
  with 401, the credential is asked once for each request whether there is another one.
* A token that has to be fetched is fetched when it is first needed, again some time before it expires, and immediately
  when the API refuses it; never twice at the same time. While it is still good, a fetch that fails is no failure: it is
  repeated a little later, and the old token serves.
* Concurrent calls that want the same thing share one piece of work and its result, the error too. A caller that is
  cancelled leaves the others undisturbed; when the last one has left, the work is cancelled.
* A file that every user of the machine can read or write holds no secret, so it is refused; the group may read, as
  where containers mount secrets. What counts is the file that a link leads to: Kubernetes replaces secrets by moving
  links.
* The value of a credential is never part of a message.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from poller.clock import Clock
from poller.errors import CredentialUnusable, SourceUnavailable
from poller.lifecycle import ended
from poller.text import looks_secret


class AppliedCredential(msgspec.Struct, frozen=True):
    """What of a credential goes with one request.

    Attributes:
        headers: of the request.
        params: of its query, behind those that it has.
        secrets: what no message may repeat, although an answer may.
    """

    headers: Mapping[str, str] = {}
    params: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Without what is secret."""
        return "AppliedCredential(…)"


class Credential(ABC):
    """Something that gives a token for each request, or none where the API needs none.

    Attributes:
        origin: where it comes from, in words fit for a message.
        needs_restart: whether the token stays the same for as long as the process lives.
    """

    origin: str
    needs_restart: bool = False

    @abstractmethod
    async def token(self) -> str | None:
        """The token now.

        Raises:
            CredentialUnusable: it cannot be had.
            SourceUnavailable: it cannot be had now; later it may.
        """

    @abstractmethod
    async def renew(self, rejected: str) -> bool:
        """Whether :meth:`token` gives another one than this, which the API has just refused with 401.

        Calls for the same token share one attempt to get another.

        Raises:
            CredentialUnusable, SourceUnavailable: as :meth:`token`.
        """

    def apply(self, token: str | None) -> AppliedCredential:
        """How this token, which :meth:`token` has given, is sent: as a bearer token (RFC 6750)."""
        if not token:
            return AppliedCredential()
        return AppliedCredential({"Authorization": f"Bearer {token}"}, secrets=(token,))

    async def check(self) -> None:  # noqa: B027 -- some have nothing to check
        """Check what can be checked before it is needed, without a program or another server.

        Raises:
            CredentialUnusable: it cannot be had as things are.
        """


class NoCredential(Credential):
    """For an API that asks for none."""

    origin = "a request without a credential"

    async def token(self) -> str | None:
        """None."""
        return None

    async def renew(self, rejected: str) -> bool:  # noqa: ARG002 -- the interface's signature
        """No: there is nothing to renew."""
        return False


class EnvironmentToken(Credential):
    """A token in an environment variable."""

    needs_restart = True

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """Take the variable's name and the environment to look in."""
        shown = "…" if name != name.upper() and looks_secret(name) else name  # a secret, where its name is expected
        self.origin = f"the environment variable {shown}"
        self._name = name
        self._environ = environ

    async def token(self) -> str | None:
        """The variable's value."""
        return checked(self._environ.get(self._name, ""), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Whether the variable has another value by now."""
        return await self.token() != rejected

    async def check(self) -> None:
        """Whether the variable holds a token."""
        await self.token()


class FileToken(Credential):
    """A token in a file, read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Take the file's path; it is read when the first token is asked for."""
        self._file = SecretFile(path, "token")
        self.origin = self._file.origin

    async def token(self) -> str | None:
        """The file's content without surrounding white space."""
        return checked(self._file.text(), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Whether the file, read again, holds another token.

        A rotation may have been quicker than the clock's tick.
        """
        return checked(self._file.text(reread=True), self.origin) != rejected

    async def check(self) -> None:
        """Whether the file holds a token."""
        await self.token()


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


T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Work that concurrent callers share: a call starts it or joins it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Take the work."""
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def __call__(self) -> T:
        """The work's result.

        Raises:
            Exception: whatever the work raises.
        """
        if self._task is None:
            self._task, self._waiting = asyncio.create_task(self._work()), 0
            self._task.add_done_callback(self._landed)
        task = self._task
        self._waiting += 1
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._left(task)
            raise
        return task.result()

    async def _left(self, task: asyncio.Task[T]) -> None:
        if task is not self._task:
            return  # it has landed
        self._waiting -= 1
        if not self._waiting:
            self._task = None
            await ended(task)

    def _landed(self, task: asyncio.Task[T]) -> None:
        if task is self._task:
            self._task = None
        if not task.cancelled():
            task.exception()  # seen, even where all who asked were cancelled meanwhile


_LARGEST: Final = 64 * 1024  # bytes; no token or client secret comes near
_OTHERS: Final = 0o007
_Stamp = tuple[int, int, int, int]


NO_FILE: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG, errno.ENOTDIR})
"""Errors that say that there is no such file."""


def may_be_secret(path: Path) -> bool:
    """Whether a secret may have been written where a path is expected; "/" in one makes directories of its parts."""
    return looks_secret(path.name) or any(part.isalnum() and looks_secret(part) for part in path.parts)


class SecretFile:
    """The file's text, which a rotation replaces at any time."""

    def __init__(self, path: Path, what: str) -> None:
        """Take the file's path and the word for what it holds; it is read when the text is first asked for."""
        self.origin = f"the file {path}"
        self._path = path
        self._what = what
        self._seen: _Stamp | None = None
        self._text = ""

    def text(self, *, reread: bool = False) -> str:
        """The content without surrounding white space; read again when the file has changed.

        Args:
            reread: read the file even if it looks unchanged.

        Raises:
            CredentialUnusable: it is missing, unreadable, open to every user, too large, not UTF-8 or empty.
        """
        try:
            seen = self._stamp(os.stat(self._path))  # noqa: PTH116 -- microseconds on a local file, for each request
            if reread or seen != self._seen:
                self._text, self._seen = self._read()
        except (OSError, UnicodeDecodeError) as error:
            self._seen = None  # the next file may look like the last one, down to its inode
            if isinstance(error, OSError) and error.errno in NO_FILE and may_be_secret(self._path):
                raise CredentialUnusable(
                    f"the {self._what} cannot be read: there is no such file; what stands in place of its path looks "
                    "like a secret and is not shown"
                ) from None
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


_NEXT_TRY: Final = timedelta(seconds=5)  # between fetches that fail while the old token is still good


class Issued(msgspec.Struct, frozen=True):
    """A token, and how long after it was asked for it is to be renewed, and cannot be used any more."""

    value: str
    renew_after: timedelta
    valid_for: timedelta


class Issuer(ABC):
    """Something that makes tokens.

    Attributes:
        origin: what it is, in words fit for a message.
    """

    origin: str

    @abstractmethod
    async def issue(self) -> Issued:
        """A new token.

        Raises:
            CredentialUnusable: there is none to be had.
            SourceUnavailable: there is none now; later there may be.
        """

    def check(self) -> None:  # noqa: B027 -- some have nothing to check
        """As :meth:`Credential.check`."""


class _Held(msgspec.Struct, frozen=True):
    token: str
    renew_at: float
    expires_at: float


class IssuedToken(Credential):
    """The credential of an issuer: the token that it made last, for as long as that is good."""

    def __init__(self, issuer: Issuer, *, clock: Clock) -> None:
        """Take the issuer and the clock of this process."""
        self.origin = issuer.origin
        self._issuer = issuer
        self._clock = clock
        self._held: _Held | None = None
        self._fetch = SingleFlight(self._fetched)

    async def token(self) -> str | None:
        """The token held, or a new one.

        Raises:
            CredentialUnusable, SourceUnavailable: see :meth:`Issuer.issue`.
        """
        if self._held is not None and self._clock.monotonic() < self._held.renew_at:
            return self._held.token
        try:
            return await self._fetch()
        except SourceUnavailable:
            held, now = self._held, self._clock.monotonic()
            if held is None or now >= held.expires_at:
                raise
            later = now + _NEXT_TRY.total_seconds()
            self._held = msgspec.structs.replace(held, renew_at=max(held.renew_at, later))
            return held.token

    async def renew(self, rejected: str) -> bool:
        """Whether there is another token than the one that the API refused.

        Raises:
            CredentialUnusable, SourceUnavailable: see :meth:`Issuer.issue`.
        """
        if self._held is not None and self._held.token != rejected:
            return True  # another request that was refused has renewed it already
        self._held = None
        return await self._fetch() != rejected

    async def check(self) -> None:
        """Check what the issuer needs; no token is made."""
        self._issuer.check()

    async def _fetched(self) -> str:
        asked_at = self._clock.monotonic()
        issued = await self._issuer.issue()
        self._held = _Held(
            issued.value,
            renew_at=asked_at + issued.renew_after.total_seconds(),
            expires_at=asked_at + issued.valid_for.total_seconds(),
        )
        return issued.value
