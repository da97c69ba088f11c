"""Credentials: tokens from files and environment variables, and tokens that an issuer makes.

**Invariants**

* Each request gets the credential's present token, so a replaced token is used immediately. If the API refuses a token
  with 401, the request asks the credential once for another one.
* An issued token is fetched when it is first needed, again before it expires, and immediately when the API refuses it;
  never twice at the same time. While the old token is valid, a failed fetch is no failure: it is repeated a little
  later. A slow fetch continues in the background, and requests use the old token until it expires.
* Concurrent calls for the same token share one fetch and its result, errors included. A cancelled caller does not
  disturb the others; when the last one is cancelled, so is the fetch.
* A file that every user of the machine can read or write is refused; the group may read it, as in containers. The
  permissions of a link's target count: Kubernetes replaces secrets by moving links.
* The value of a credential is never part of a message.
"""

from __future__ import annotations

import asyncio
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from poller.clock import Clock
from poller.errors import CredentialUnusable, SourceUnavailable
from poller.lifecycle import ended
from poller.text import is_secret_path, looks_secret

if TYPE_CHECKING:  # the HTTP client is slow to import, and commands about the store need none
    from poller.http.transport import Transport


class AppliedCredential(msgspec.Struct, frozen=True):
    """The parts of a credential that a request sends.

    Attributes:
        headers: of the request.
        params: added to its query.
        secrets: must not appear in messages, although a response may repeat them.
    """

    headers: Mapping[str, str] = {}
    params: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The names without the values."""
        return "AppliedCredential(…)"


class Credential(ABC):
    """Gives a token for each request; None: the API needs none.

    Attributes:
        origin: where the token comes from, for messages.
        needs_restart: whether a new token requires a restart of the process.
    """

    origin: str
    needs_restart: bool = False

    @abstractmethod
    async def token(self) -> str | None:
        """The present token.

        Raises:
            CredentialUnusable: there is no usable token.
            SourceUnavailable: there is none now; a later call may succeed.
        """

    @abstractmethod
    async def renew(self, rejected: str) -> bool:
        """Get another token after a 401. False: :meth:`token` still returns the refused one.

        Calls with the same token share one attempt.

        Raises:
            CredentialUnusable, SourceUnavailable: as :meth:`token`.
        """

    def apply(self, token: str | None) -> AppliedCredential:
        """The parts of a request that send this token: by default a bearer token (RFC 6750)."""
        if not token:
            return AppliedCredential()
        return AppliedCredential({"Authorization": f"Bearer {token}"}, secrets=(token,))

    async def close(self) -> None:  # noqa: B027 -- most have nothing to end
        """End what goes on in the background."""

    async def check(self) -> None:  # noqa: B027 -- some have nothing to check
        """Check the configuration of the credential, without running a program or contacting a server.

        Raises:
            CredentialUnusable: the credential cannot be used.
        """


class CredentialParts(NamedTuple):
    """What a credential is made of beside its setting.

    Attributes:
        environ: of the process.
        transport: for requests to another server than the one that gets the token.
        within: the time limit of one exchange with such a server.
        clock: of this process.
    """

    environ: Mapping[str, str]
    transport: Transport
    within: timedelta
    clock: Clock


MakeCredential = Callable[[str, Any, CredentialParts], Credential]
"""The function ``make_credential`` of a module here: takes the kind of ``auth`` and the value of its setting.

Which module has which kind stands in ``AUTH_KINDS`` of :mod:`poller.config.http`.
"""


class NoCredential(Credential):
    """The credential for an API that needs none."""

    origin = "a request without a credential"

    async def token(self) -> str | None:
        """None."""
        return None

    async def renew(self, rejected: str) -> bool:  # noqa: ARG002 -- the interface's signature
        """False: there is no other token."""
        return False


class EnvironmentToken(Credential):
    """A token in an environment variable."""

    needs_restart = True

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        """Read this variable of this environment."""
        shown = "…" if name != name.upper() and looks_secret(name) else name  # a secret, where its name is expected
        self.origin = f"the environment variable {shown}"
        self._name = name
        self._environ = environ

    async def token(self) -> str | None:
        """The variable's value."""
        return checked(self._environ.get(self._name, ""), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Whether the variable has another value now."""
        return await self.token() != rejected

    async def check(self) -> None:
        """Whether the variable holds a token."""
        await self.token()


class FileToken(Credential):
    """A token in a file, read again whenever the file changes."""

    def __init__(self, path: Path) -> None:
        """Read this file when the first token is needed."""
        self._file = SecretFile(path, "token")
        self.origin = self._file.origin

    async def token(self) -> str | None:
        """The file's content without surrounding white space."""
        return checked(self._file.text(), self.origin)

    async def renew(self, rejected: str) -> bool:
        """Read the file again. True: it holds another token.

        The file is read even if it looks unchanged: a rotation may be faster than the clock's resolution.
        """
        return checked(self._file.text(reread=True), self.origin) != rejected

    async def check(self) -> None:
        """Whether the file holds a token."""
        await self.token()


def make_credential(kind: str, setting: Any, parts: CredentialParts) -> Credential:
    """The credential of the kinds that need no module of their own."""
    match kind:
        case "token_file":
            return FileToken(setting)
        case "token_env":
            return EnvironmentToken(setting, parts.environ)
    return NoCredential()  # also of "user" and "credentials_file": with these the sink of NATS logs in itself


def checked(text: str, origin: str) -> str:
    """The text as a token, without surrounding white space.

    Raises:
        CredentialUnusable: the text is not fit for a header; it is not shown.
    """
    token = text.strip()
    if not token:
        raise CredentialUnusable(f"{origin} holds no token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialUnusable(f"{origin} does not hold a token: only printable ASCII without spaces can be one")
    return token


T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Shares one run of some work between concurrent callers."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Share this work."""
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def __call__(self) -> T:
        """The work's result.

        Raises:
            Exception: that the work raises.
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
            return  # the work has ended
        self._waiting -= 1
        if not self._waiting:
            self._task = None
            await ended(task)

    def _landed(self, task: asyncio.Task[T]) -> None:
        if task is self._task:
            self._task = None
        if not task.cancelled():
            task.exception()  # retrieve the error, even if all callers were cancelled


_LARGEST: Final = 64 * 1024  # bytes; far more than any token or client secret
_OTHERS: Final = 0o007
_Stamp = tuple[int, int, int, int]


class SecretFile:
    """A file with a secret, which may be replaced at any time."""

    def __init__(self, path: Path, what: str) -> None:
        """Read this file when its text is first needed; ``what``: its content, for messages."""
        self.origin = f"the file {path}"
        self._path, self._name = path, os.fspath(path)
        self._what = what
        self._seen: _Stamp | None = None
        self._text = ""

    def text(self, *, reread: bool = False) -> str:
        """The content without surrounding white space; a changed file is read again.

        Args:
            reread: read the file even if it looks unchanged.

        Raises:
            CredentialUnusable: the file is missing, unreadable, open to every user, too large, not UTF-8 or empty.
        """
        try:
            seen = self._stamp(os.stat(self._name))  # noqa: PTH116 -- microseconds on a local file, for each request
            if reread or seen != self._seen:
                self._text, self._seen = self._read()
        except (OSError, UnicodeDecodeError) as error:
            self._seen = None  # the next file may have the same size, times and inode
            if isinstance(error, OSError) and is_secret_path(self._path, error):
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
            seen = self._stamp(os.fstat(file.fileno()))  # of the opened file, even if the path leads elsewhere by now
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


_NEXT_TRY: Final = timedelta(seconds=5)  # between failing fetches while the old token is valid
_PATIENCE: Final = 1.0  # seconds that requests wait for a fetch while the old token is valid


class Issued(msgspec.Struct, frozen=True):
    """An issued token, with the times after its request when it is renewed and when it expires."""

    value: str
    renew_after: timedelta
    valid_for: timedelta


class Issuer(ABC):
    """Issues tokens.

    Attributes:
        origin: the issuer, for messages.
    """

    origin: str

    @abstractmethod
    async def issue(self) -> Issued:
        """A new token.

        Raises:
            CredentialUnusable: no token can be issued.
            SourceUnavailable: none can be issued now; a later call may succeed.
        """

    def check(self) -> None:  # noqa: B027 -- some have nothing to check
        """As :meth:`Credential.check`."""


class _Held(msgspec.Struct, frozen=True):
    token: str
    renew_at: float
    expires_at: float


class IssuedToken(Credential):
    """The credential of an issuer: its last token, as long as that is valid."""

    def __init__(self, issuer: Issuer, *, clock: Clock, patience: float = _PATIENCE) -> None:
        """Use this issuer and the clock of this process; ``patience``: as :data:`_PATIENCE`."""
        self.origin = issuer.origin
        self._issuer = issuer
        self._clock = clock
        self._held: _Held | None = None
        self._fetch = SingleFlight(self._fetched)
        self._renewal: asyncio.Task[str] | None = None
        self._patience = patience

    async def token(self) -> str | None:
        """The held token, or a new one.

        Raises:
            CredentialUnusable, SourceUnavailable: see :meth:`Issuer.issue`.
        """
        held, now = self._held, self._clock.monotonic()
        if held is None or now >= held.expires_at:
            return await self._fetch()
        if now < held.renew_at:
            return held.token
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._fetch())
            self._renewal.add_done_callback(self._renewed)
        return await self._renewed_soon(self._renewal)

    async def close(self) -> None:
        """End a renewal."""
        if self._renewal is not None:
            await ended(self._renewal)

    async def _renewed_soon(self, renewal: asyncio.Task[str]) -> str:
        """The new token, or the old one while that is valid and the new one cannot be had soon."""
        await asyncio.wait({renewal}, timeout=self._patience)
        held, now = self._held, self._clock.monotonic()
        if held is None or now >= held.expires_at:  # refused or expired meanwhile
            return await self._fetch()
        if not renewal.done():
            self._held = msgspec.structs.replace(held, renew_at=held.expires_at)  # no request waits for it again
        elif not renewal.cancelled():
            with suppress(SourceUnavailable):
                return renewal.result()
        return held.token

    def _renewed(self, renewal: asyncio.Task[str]) -> None:
        self._renewal = None
        failed = not renewal.cancelled() and renewal.exception() is not None
        if failed and self._held is not None:
            later = self._clock.monotonic() + _NEXT_TRY.total_seconds()
            self._held = msgspec.structs.replace(self._held, renew_at=later)

    async def renew(self, rejected: str) -> bool:
        """Get another token than the refused one. True: there is one.

        Raises:
            CredentialUnusable, SourceUnavailable: see :meth:`Issuer.issue`.
        """
        if self._held is not None and self._held.token != rejected:
            return True  # another refused request has renewed it already
        self._held = None
        return await self._fetch() != rejected

    async def check(self) -> None:
        """Check the issuer; no token is issued."""
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
