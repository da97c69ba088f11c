"""Conditional requests for listings that the API may call unchanged since they were last committed.

Theory of operation
-------------------
A full reading of a listing of one page may be conditional. A 304 then means that nothing changed since the answer
with these validators, *if* the store still holds what that answer held. So validators are kept only when their round
ended well and its end is committed. They are sent only while the feed's state in the store is the one which that
commit left: no other process wrote, nothing was rolled back or flushed, no delta brought anything since.

**Invariants**

- A 304 never hides a change. An ``ETag`` names one version. ``Last-Modified`` names a second, and a record may change
  later in that second: it is used only if the answer came long enough after it.
- A listing of several pages is never requested conditionally: its first page says nothing of the others.
- Nor is a listing that lacks a known record which is not removed yet: the next reading has to decide about it.
- Validators are kept in memory, for one feed, by one process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from poller.http.transport import http_date
from poller.source.paging import Get, Params

# What RFC 9110 calls an entity tag, in ASCII and with something in it; others are not sent back.
_ETAG: Final = re.compile(r'(W/)?"[!#-~]{1,1024}"')
_SETTLED: Final = timedelta(seconds=60)


class Validators(msgspec.Struct, frozen=True):
    """The validator of an answer; both are None if it has no version."""

    etag: str | None = None
    modified: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a conditional request."""
        if self.etag is not None:
            return {"If-None-Match": self.etag}
        return {"If-Modified-Since": self.modified} if self.modified is not None else {}


def validators_of(headers: Mapping[str, str]) -> Validators:
    """The validators of an answer, from its headers (names in any case)."""
    etag = headers.get("etag", "")
    if _ETAG.fullmatch(etag):
        return Validators(etag=etag)
    modified = headers.get("last-modified", "")
    changed, sent = http_date(modified), http_date(headers.get("date"))
    if changed and sent and sent - changed >= _SETTLED:
        return Validators(modified=modified)
    return Validators()


class FeedPosition(msgspec.Struct, frozen=True):
    """The state of a feed between rounds.

    ``read_at`` is the mark that each full reading leaves, so no two positions are equal.
    """

    generation: str
    sequence: int
    read_at: str


class ConditionalResponse(msgspec.Struct, frozen=True):
    """A body and its validators; a body of None means "unchanged"."""

    body: bytes | None
    validators: Validators = Validators()


class ConditionalRequest(Protocol):
    """One exchange with the API, conditional on these validators."""

    async def __call__(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        """The answer; errors as :meth:`poller.source.client.ApiClient.get`."""
        ...


class ConditionalReader:
    """Reads one feed's listings conditionally, round after round.

    In each round: :meth:`start_round`, any number of :meth:`get`, then :meth:`finish_round` if it went well.
    """

    def __init__(self, ask: ConditionalRequest) -> None:
        """Start without validators."""
        self.ask = ask
        self._left: FeedPosition | None = None
        self._kept: dict[tuple[str, Params], Validators] = {}
        self._full = self._usable = False
        self._asked: dict[str, tuple[Params, Validators] | None] = {}  # None: in more than one request

    def start_round(self, position: FeedPosition | None) -> None:
        """Start a round at this position; None: it has to read everything."""
        self._full = position is not None
        self._usable = self._full and position == self._left
        self._asked = {}

    async def get(self, path: str, params: Params) -> bytes | None:
        """The body; None: the whole listing is unchanged.

        Errors as of :meth:`poller.source.client.ApiClient.get`.
        """
        known = self._kept.get((path, params), Validators()) if self._usable else Validators()
        answer = await self.ask(path, params, unless=known)
        if self._full and answer.body is not None:
            self._left = None  # the store is about to change; until the round has finished its state is unknown
        current = known if answer.body is None else answer.validators
        self._asked[path] = None if path in self._asked else (params, current)
        return answer.body

    def finish_round(self, position: FeedPosition | None) -> None:
        """Keep the validators of a round that read all listings and committed its end.

        Args:
            position: what it left; None: the next full reading has something to settle, even in unchanged listings.
        """
        self._left = position
        single = ((path, *asked) for path, asked in self._asked.items() if asked)
        self._kept = {(path, params): validators for path, params, validators in single if validators.headers}


def unconditional(get: Get) -> ConditionalRequest:
    """Requests without conditions, in the form of conditional ones."""

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG001 -- there is no condition
        return ConditionalResponse(await get(path, params))

    return ask
