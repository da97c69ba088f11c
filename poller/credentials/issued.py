"""A token that has to be fetched: from an authorization server, from a command.

Law: it is fetched when it is first needed, again some time before it expires, and at once when the API refuses it;
never twice at the same time. While it is still good, a fetch that fails for now is no failure: it is tried again a
little later, and meanwhile the old token serves.

Knows nothing of how a token is fetched, only how long each one is good for. The clock is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from poller.credentials.single_flight import SingleFlight
from poller.errors import SourceUnavailable

_NEXT_TRY: Final = timedelta(seconds=5)  # between fetches that fail while the old token is still good


class Issued(msgspec.Struct, frozen=True):
    """A token, and how long after it was asked for it is to be renewed, and cannot be used any more."""

    value: str
    renew_after: timedelta
    valid_for: timedelta


class Issuer(Protocol):
    """Something that makes tokens."""

    @property
    def origin(self) -> str:
        """What it is, in words fit for a message."""
        ...

    async def issue(self) -> Issued:
        """A new token.

        Raises:
            CredentialUnusable: there is none to be had.
            SourceUnavailable: there is none now; later there may be.
        """
        ...


class _Held(msgspec.Struct, frozen=True):
    token: str
    renew_at: float
    expires_at: float


class IssuedToken:
    """The credential of an issuer: the token that it made last, for as long as that is good."""

    def __init__(self, issuer: Issuer, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the issuer and a clock that only moves forward, in seconds."""
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
        if self._held is not None and self._clock() < self._held.renew_at:
            return self._held.token
        try:
            return await self._fetch()
        except SourceUnavailable:
            held, now = self._held, self._clock()
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
            return True  # whoever else was refused has renewed it already
        self._held = None
        return await self._fetch() != rejected

    async def _fetched(self) -> str:
        asked_at = self._clock()
        issued = await self._issuer.issue()
        self._held = _Held(
            issued.value,
            renew_at=asked_at + issued.renew_after.total_seconds(),
            expires_at=asked_at + issued.valid_for.total_seconds(),
        )
        return issued.value
