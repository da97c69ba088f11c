"""What the API's answers say of the API: which parameters it takes, how its listings end, where the delta token stands.

Theory of operation
-------------------
A listing that is refused as it is asked for (:data:`REFUSING`) may be refused for its ``limit``, for its ``fields``,
or for neither. The same request without both decides whether they are to blame at all; if they are, each is left out by
itself, and a limit that is too large is halved until it is taken. What is found holds from then on, for the query that
the configuration asks for and no other, until an operator has the feed read anew (``poller resync``).

The rest is only seen and shown: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from poller.source.envelope import Ending
from poller.source.paging import Drain, Query

# Answers by which an API may refuse a parameter: bad request, too large, URI too long, unprocessable.
REFUSING: Final = frozenset({400, 413, 414, 422})

Place = Literal["every page", "the first page", "the last page", "some pages", "none"]


class Learnt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one feed's list endpoint.

    Attributes:
        query: fingerprint of the configured query that the refusals are about.
        limit: the page size that the API takes where it refused the configured one; 0: it takes none.
        no_fields: whether it refused ``fields``.
        paging: how its listings ended; None before one did.
        delta_token: on which pages of a listing a delta token stood; None likewise.
    """

    query: str = ""
    limit: int | None = None
    no_fields: bool = False
    paging: Ending | None = None
    delta_token: Place | None = None

    def applied(self, query: Query) -> Query:
        """The query without what the API refused."""
        limit = query.limit if self.limit is None else (self.limit or None)
        return msgspec.structs.replace(query, limit=limit, fields=() if self.no_fields else query.fields)

    def refusing(self, asked: Query, taken: Query) -> Learnt:
        """The same, and that the API takes ``taken`` of what is ``asked`` for."""
        limit = None if taken.limit == asked.limit else (taken.limit or 0)
        return msgspec.structs.replace(self, limit=limit, no_fields=bool(asked.fields) and not taken.fields)

    def seeing(self, drain: Drain) -> Learnt:
        """The same after a listing was read to its end. A single page says less than several have said before."""
        if drain.pages == 1 and self.paging is not None:
            return self
        return msgspec.structs.replace(self, paging=drain.ending, delta_token=_place(drain))

    def about(self, query: str) -> Learnt:
        """The same if it is about the query with this fingerprint, else nothing yet."""
        return self if self.query == query else Learnt(query)

    @property
    def refused(self) -> tuple[str, ...]:
        """The parameters that the API refused, in words."""
        limit = () if self.limit is None else (f"limit (taken: {self.limit})" if self.limit else "limit",)
        return (*limit, *(("fields",) if self.no_fields else ()))


def learnt_of(text: str | None) -> Learnt:
    """What an earlier round left in the feed's state; nothing where another version wrote it."""
    try:
        return msgspec.json.decode(text, type=Learnt) if text else Learnt()
    except msgspec.MsgspecError:
        return Learnt()


async def taken(query: Query, takes: Callable[[Query], Awaitable[bool]]) -> Query | None:
    """The query that comes nearest to a refused one and is taken; None where its parameters are not to blame.

    Args:
        query: was refused.
        takes: asks the API with another one.
    """
    limit, fields = query.limit, query.fields

    async def without(size: int | None, names: tuple[str, ...]) -> Query | None:
        candidate = msgspec.structs.replace(query, limit=size, fields=names)
        return candidate if await takes(candidate) else None

    bare = await without(None, ()) if limit is not None or fields else None
    if bare is None or limit is None:
        return bare
    if fields and not await without(None, fields):
        fields = ()  # they are refused whatever the limit is
        if found := await without(limit, fields):
            return found
    while limit := limit // 2:
        if found := await without(limit, fields):
            return found
    return msgspec.structs.replace(query, limit=None, fields=fields)


def _place(drain: Drain) -> Place:
    stood = drain.tokens_on
    if not stood:
        return "none"
    if stood == drain.pages:
        return "every page"
    if stood > 1:
        return "some pages"
    if drain.token_first:
        return "the first page"
    return "the last page" if drain.token_last else "some pages"
