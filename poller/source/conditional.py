"""Which listings need not be read again: those that the API itself calls unchanged since they were last committed.

Theory of operation
-------------------
A full reading of a listing that is one page long may ask for it on condition. A 304 then means that nothing changed
since the answer that carried the validators, *if* what that answer held is what the store holds now. So validators are
kept only when their round ended well and its end is committed, and they are sent only while the feed's state in the
store is still the one which that commit left: no other process wrote, nothing was rolled back or flushed, no delta
brought anything since.

Two kinds of listing are never asked for on condition. One of several pages: its first page says nothing of the others.
And one that lacks a known record which is not removed yet: whether it is gone the next reading decides, and for that
it has to be a reading.

What is kept is kept in memory, for one feed, by one process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Protocol

import msgspec

from poller.http.transport import http_date
from poller.source.paging import Get, Params

# What an answer says of its own version, to be sent back: ``ETag`` and ``Last-Modified``.
#
# The law: a 304 may never hide a change. An ``ETag`` names one version. ``Last-Modified`` names a second, and a
# record
# that changes later in that second would be hidden; so it counts only where the answer came long enough after it.

# What RFC 9110 calls an entity tag, in ASCII and with something in it; others are not sent back.
_ETAG: Final = re.compile(r'(W/)?"[!#-~]{1,1024}"')
_SETTLED: Final = timedelta(seconds=60)


class Validators(msgspec.Struct, frozen=True):
    """The one header that a later request for the same may carry; both are None in an answer that has no version."""

    etag: str | None = None
    modified: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What makes the request a conditional one."""
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
    """What a feed's state was: ``read_at`` is the mark that each full reading leaves, so no two of them are equal."""

    generation: str
    sequence: int
    read_at: str


class ConditionalResponse(msgspec.Struct, frozen=True):
    """A body, None where the API says "unchanged"; and what the answer says of its version."""

    body: bytes | None
    validators: Validators = Validators()


class ConditionalRequest(Protocol):
    """One exchange with the API, on condition that the listing is another than the validators say."""

    async def __call__(self, path: str, params: Params, *, unless: Validators) -> ConditionalResponse:
        """The answer; errors as :meth:`poller.source.client.ApiClient.get`."""
        ...


class ConditionalReader:
    """The listings of one feed, round after round: ``begin``, any number of ``get``, then ``keep`` if it went well."""

    def __init__(self, ask: ConditionalRequest) -> None:
        """Take the way to the API."""
        self.ask = ask
        self._left: FeedPosition | None = None
        self._kept: dict[tuple[str, Params], Validators] = {}
        self._full = self._usable = False
        self._asked: dict[str, tuple[Params, Validators] | None] = {}  # None: in more than one request

    def start_round(self, position: FeedPosition | None) -> None:
        """A round begins; ``position`` is what its feed's state is, None where it has to read whatever there is."""
        self._full = position is not None
        self._usable = self._full and position == self._left
        self._asked = {}

    async def get(self, path: str, params: Params) -> bytes | None:
        """The body; None where the whole listing is as it was. Errors as :meth:`poller.source.client.ApiClient.get`."""
        known = self._kept.get((path, params), Validators()) if self._usable else Validators()
        answer = await self.ask(path, params, unless=known)
        if self._full and answer.body is not None:
            self._left = None  # the store is about to hold something else, and until keep nobody knows what
        current = known if answer.body is None else answer.validators
        self._asked[path] = None if path in self._asked else (params, current)
        return answer.body

    def finish_round(self, position: FeedPosition | None) -> None:
        """The round read all listings and its end is committed; that left this position.

        None: there is something that the next full reading has to look at, though the listings may be as they were.
        """
        self._left = position
        single = ((path, *asked) for path, asked in self._asked.items() if asked)
        self._kept = {(path, params): validators for path, params, validators in single if validators.headers}


def unconditional(get: Get) -> ConditionalRequest:
    """A way to ask that knows no conditions."""

    async def ask(path: str, params: Params, *, unless: Validators) -> ConditionalResponse:  # noqa: ARG001 -- there is no condition
        return ConditionalResponse(await get(path, params))

    return ask
