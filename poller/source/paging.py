"""What to ask next: the parameters of a listing's requests, and when a listing is drained.

Theory of operation
-------------------
A listing is read by one first request and any number of further ones. The first carries ``sinceDeltaToken`` in a
delta and not otherwise; each further one carries the ``pageToken`` of the page before it. A page without a page token
is the last. The size of a page means nothing.

Which of a round's delta tokens is kept is a matter of safety, not of taste. A token stands for a moment; the earlier
the moment, the more the next delta repeats, and the diff drops what it repeats. So the first one is kept unless the
configuration says otherwise.

Some APIs never leave the page token out and repeat the last page instead. So a page that names the very token it was
asked with is asked for once more: the same records again end the listing. Any other token that comes a second time
would lead in a circle for ever: that is an error, and so is a page that repeats the records of an earlier one under a
new token, and a listing that does not end within ``max_pages``.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

import msgspec

from poller.errors import SourceNonsense
from poller.source.envelope import Ending, Page

Params = tuple[tuple[str, str], ...]


class Query(msgspec.Struct, frozen=True):
    """How a listing is asked for, the same in every round.

    Attributes:
        limit: the page size to ask for; None asks for none.
        fields: the fields to ask for, the id field among them; empty asks for all.
        style: how the fields are written into the query string.
        page_params: whether further pages repeat the other parameters or carry the page token alone.
        keep: which of a round's delta tokens is kept.
        max_pages: more than so many in one listing is an error.
    """

    limit: int | None = None
    fields: tuple[str, ...] = ()
    style: Literal["repeat", "comma", "brackets"] = "repeat"
    page_params: Literal["all", "token-only"] = "all"
    keep: Literal["first", "last"] = "first"
    max_pages: int = 100_000

    def first(self, since: str | None) -> Params:
        """The parameters of a listing's first request."""
        return (*self._base(), *((("sinceDeltaToken", since),) if since else ()))

    def further(self, since: str | None, page_token: str) -> Params:
        """The parameters of the request for the page that ``page_token`` names."""
        return (*(self.first(since) if self.page_params == "all" else ()), ("pageToken", page_token))

    def fingerprint(self, path: str) -> str:
        """A hash of all that a delta token may be bound to; when it changes the listing must be read in full."""
        bound = "\0".join((path, *(f"{name}={value}" for name, value in self._base())))
        return blake2b(bound.encode(), digest_size=8).hexdigest()

    def _base(self) -> Params:
        limit = (("limit", str(self.limit)),) if self.limit is not None else ()
        return (*limit, *self._fields())

    def _fields(self) -> Params:
        if not self.fields:
            return ()
        if self.style == "comma":
            return (("fields", ",".join(self.fields)),)
        name = "fields[]" if self.style == "brackets" else "fields"
        return tuple((name, field) for field in self.fields)


class Drain:
    """One listing while it is being read: takes each page, says what to ask next.

    Attributes:
        pages: how many were taken.
        delta_token: the one to keep.
        ending: how the listing showed that it ends; None before it did.
        tokens_on: on how many pages a delta token stood; ``token_first``, ``token_last``: whether on that one.
    """

    def __init__(self, query: Query, since: str | None = None) -> None:
        self.pages = 0
        self.delta_token: str | None = None
        self.ending: Ending | None = None
        self.tokens_on = 0
        self.token_first = self.token_last = False
        self._query = query
        self._since = since
        self._current: str | None = None
        self._last: bytes | None = None
        self._once_more = False
        self._contents: set[bytes] = set()
        self._asked: set[bytes] = set()  # digests, for tokens may be long and pages many

    def start(self) -> Params:
        """The first request."""
        return self._query.first(self._since)

    def take(self, page: Page) -> Params | None:
        """The request after this page; None where it was the last.

        Raises:
            SourceNonsense: the listing goes in a circle or does not end.
        """
        self.pages += 1
        self.token_last = page.delta_token is not None
        self.token_first |= self.token_last and self.pages == 1
        self.tokens_on += self.token_last
        if page.delta_token and (self.delta_token is None or self._query.keep == "last"):
            self.delta_token = page.delta_token
        content = blake2b(b"\0".join(page.records), digest_size=8).digest()
        itself, again = page.page_token == self._current, content == self._last
        self._last = content
        if page.page_token is None or (itself and again):
            self.ending = _ending(page, self.pages)
            return None
        self._refuse_circles(page, content, asked_once_more=itself and not self._once_more)
        self._once_more = itself
        self._current = page.page_token
        return self._query.further(self._since, page.page_token)

    def _refuse_circles(self, page: Page, content: bytes, *, asked_once_more: bool) -> None:
        token = blake2b((page.page_token or "").encode(), digest_size=8).digest()
        if token in self._asked and not asked_once_more:
            raise SourceNonsense(f"paging goes in a circle: page {self.pages} names a page that was read already")
        if content in self._contents:
            raise SourceNonsense(f"paging goes in a circle: page {self.pages} repeats the records of an earlier page")
        if self.pages >= self._query.max_pages:
            raise SourceNonsense(f"paging does not end: {self.pages} pages were read (max_pages)")
        self._asked.add(token)
        if page.records:  # several empty pages in a row are allowed
            self._contents.add(content)


def _ending(page: Page, pages: int) -> Ending:
    if page.page_token is not None:
        return "the last page again"
    return "an empty page" if pages > 1 and not page.records else page.ending
