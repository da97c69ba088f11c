"""Pages of a listing: requests in order, the envelope of an answer, and what it shows of the API.

Theory of operation
-------------------
A listing is read by one first request and any number of further ones. The first carries ``sinceDeltaToken`` in a
delta and not otherwise; each further one carries the ``pageToken`` of the page before it. A page without a page token
is the last. Each page is requested while the one before it is being committed.

A listing that is refused (:data:`REFUSING`) may be refused because of its ``limit``, of its ``fields``, or of neither.
The same request without both, and once more with both, decides whether they are to blame; if so, each is left out by
itself, and a limit that is too large is halved until it is accepted. The result holds for this configured query only,
until ``poller resync``.

A page is read as one JSON text with its records as received. If that fails, it is cut along its brackets, commas and
strings, and each record is judged later. The envelope around the records has to be JSON; a page that was cut off is
none.

**Invariants**

- The size of a page means nothing.
- Of a round's delta tokens the first is kept, unless configured otherwise: the earlier the token, the more the next
  delta repeats, and the diff drops what it repeats.
- Some APIs never leave the page token out and repeat the last page. So a page that names the token it was requested
  with is requested once more: the same records again end the listing.
- Any other token that comes a second time is an error, and so is a page that repeats the records of an earlier one
  under a new token, and a listing that does not end within ``max_pages``.
- How listings end and where delta tokens are is only observed and shown; no decision depends on it.
- A single bad record (nested too deep, ``NaN``, half a surrogate) does not cost its page.
- An unescaped quotation mark shifts where strings end, so that one element may hold several records; see
  :func:`poller.changes.records.is_single`.
- No part of an unknown answer is repeated in an error, because it may echo what was sent, even the credential. Of its
  keys only those are named that lists are commonly wrapped in; all others are counted.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal, TypeVar

import msgspec

from poller.changes.canonical import MAX_DEPTH, TOO_DEEP, deeper_than, own_members
from poller.changes.full_readings import page_digest
from poller.changes.records import Record, Rejected
from poller.errors import SourceNonsense
from poller.lifecycle import at_once, ended, in_turns

R = TypeVar("R", bound=Record | Rejected)
Params = tuple[tuple[str, str], ...]
SINCE: Final = "sinceDeltaToken"
"""The parameter of a delta's first request."""

Ending = Literal["no pageToken", "pageToken null", "pageToken empty", "an empty page", "the last page again"]
"""How a listing shows that it ends; all but the last two are seen on its last page alone."""


class ListQuery(msgspec.Struct, frozen=True):
    """How a listing is requested, the same in every round.

    Attributes:
        limit: the page size to ask for; None: none.
        fields: the fields to ask for, the id field among them; empty: all.
        style: how the fields are written into the query string.
        page_params: whether further pages repeat the other parameters or carry the page token alone.
        keep: which of a round's delta tokens is kept.
        max_pages: the largest number of pages of one listing.
    """

    limit: int | None = None
    fields: tuple[str, ...] = ()
    style: Literal["repeat", "comma", "brackets"] = "repeat"
    page_params: Literal["all", "token-only"] = "all"
    keep: Literal["first", "last"] = "first"
    max_pages: int = 100_000

    def first(self, since: str | None) -> Params:
        """The parameters of a listing's first request."""
        return (*self._base(), *(((SINCE, since),) if since else ()))

    def further(self, since: str | None, page_token: str) -> Params:
        """The parameters of the request for the page that ``page_token`` names."""
        return (*(self.first(since) if self.page_params == "all" else ()), ("pageToken", page_token))

    def fingerprint(self, path: str) -> str:
        """A hash of everything that a delta token may be bound to.

        When it changes, the listing must be read in full.
        """
        return _fingerprint(path, self._base())

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


@lru_cache(maxsize=1024)
def _fingerprint(path: str, params: Params) -> str:
    bound = "\0".join((path, *(f"{name}={value}" for name, value in params)))
    return blake2b(bound.encode(), digest_size=8).hexdigest()


class ListingReader:
    """Reads one listing: is given each page and returns the next request.

    Attributes:
        pages: how many were given.
        filled: how many of them had records; the last one, repeated, does not count.
        delta_token: the one to keep.
        content: the digest of the last page's records.
        ending: how the listing ended; None: it has not.
        tokens_on: the number of pages with a delta token; ``token_first``, ``token_last``: whether that page had one.
    """

    def __init__(self, query: ListQuery, since: str | None = None) -> None:
        self.pages = self.filled = 0
        self.delta_token: str | None = None
        self.content = b""
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

    def first_request(self) -> Params:
        """The first request."""
        return self._query.first(self._since)

    def next_request(self, page: Page) -> Params | None:
        """The request after this page; None: it was the last.

        Raises:
            SourceNonsense: the listing goes in a circle or does not end.
        """
        self.pages += 1
        self.token_last = page.delta_token is not None
        self.token_first |= self.token_last and self.pages == 1
        self.tokens_on += self.token_last
        if page.delta_token and (self.delta_token is None or self._query.keep == "last"):
            self.delta_token = page.delta_token
        self.content = content = page_digest(page.results)
        itself, again = page.page_token == self._current, content == self._last
        self._last = content
        self.filled += bool(page.results) and not again
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
        if page.results:  # several empty pages in a row are allowed
            self._contents.add(content)


def _ending(page: Page, pages: int) -> Ending:
    if page.page_token is not None:
        return "the last page again"
    return "an empty page" if pages > 1 and not page.results else page.ending


# A slice is small enough that its commit keeps the store busy for a few milliseconds only. A commit without any record
# would cost as much as thirty records do, so a page of a thousand is committed in two.
SLICE_RECORDS: Final = 500
SLICE_BYTES: Final = 256 * 1024

Get = Callable[[str, Params], Awaitable[bytes | None]]
"""One exchange: path and parameters to body; None where the API says that the whole listing is unchanged."""


async def read_pages(get: Get, path: str, drain: ListingReader) -> AsyncGenerator[Page]:
    """The pages of one listing, in order. Close it (``contextlib.aclosing``): a page may be in flight.

    An unchanged listing has none.

    Raises:
        SourceError: a request failed, or the listing does not end. All pages before that were given out.
    """

    async def fetch(params: Params) -> Page | None:
        body = await get(path, params)
        try:
            return None if body is None else await in_turns(decode_page(body))
        except SourceNonsense as error:
            if not drain.pages:
                raise
            raise SourceNonsense(f"page {drain.pages + 1}: {error}") from None

    ahead: asyncio.Task[Page | None] | None = asyncio.create_task(fetch(drain.first_request()))
    try:
        while ahead is not None:
            page = await ahead
            ahead = None
            if page is None:
                return
            try:
                further = drain.next_request(page)
            except SourceNonsense:
                yield page  # its records count, though the listing leads nowhere
                raise
            if further is not None:
                ahead = asyncio.create_task(fetch(further))
                await asyncio.sleep(0)  # it is sent now: nothing else may be waited for until this page is done
            yield page
    finally:
        if ahead is not None:
            await ended(ahead)


def slices(records: Sequence[R]) -> Iterator[Sequence[R]]:
    """The records in slices that are small enough for one commit."""
    start, lengths = 0, [len(record.raw) for record in records]
    while start < len(records):
        end = min(start + SLICE_RECORDS, len(records))
        size = sum(lengths[start:end])
        while size > SLICE_BYTES and end > start + 1:
            end -= 1
            size -= lengths[end]
        yield records[start:end]
        start = end


# Answers by which an API may refuse a parameter: bad request, too large, URI too long, unprocessable.
REFUSING: Final = frozenset({400, 413, 414, 422})

TokenPlacement = Literal["every page", "the first page", "the last page", "some pages", "none"]


_LATELY_MS: Final = 24 * 3600 * 1000


class DetectedCapabilities(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one feed's list endpoint.

    Attributes:
        query: fingerprint of the configured query that the refusals are about.
        limit: the page size that the API accepts after it refused the configured one; 0: it accepts none.
        no_fields: whether it refused ``fields``.
        paging: how its listings ended; None: none has ended yet.
        delta_token: on which pages of a listing a delta token was; None: likewise.
        expired: statuses, not among the configured ones, by which it refuses a delta token that is no longer valid.
        lacking_at: when its single-record endpoint last answered 404 for a record that was listed, milliseconds of the
            store's clock; None: it never did.
    """

    query: str = ""
    limit: int | None = None
    no_fields: bool = False
    paging: Ending | None = None
    delta_token: TokenPlacement | None = None
    expired: tuple[int, ...] = ()
    lacking_at: int | None = None

    def lacks_listed(self, now_ms: int) -> bool:
        """Whether the single-record endpoint has lacked a listed record lately. One may just have been deleted."""
        return self.lacking_at is not None and abs(now_ms - self.lacking_at) < _LATELY_MS

    def applied(self, query: ListQuery) -> ListQuery:
        """The query without what the API refused."""
        limit = query.limit if self.limit is None else (self.limit or None)
        return msgspec.structs.replace(query, limit=limit, fields=() if self.no_fields else query.fields)

    def refusing(self, asked: ListQuery, taken: ListQuery) -> DetectedCapabilities:
        """The same, with what was left out of ``asked`` to get ``taken`` accepted."""
        limit = None if taken.limit == asked.limit else (taken.limit or 0)
        return msgspec.structs.replace(self, limit=limit, no_fields=bool(asked.fields) and not taken.fields)

    def seeing(self, drain: ListingReader) -> DetectedCapabilities:
        """The same after a listing was read to its end.

        One page says less than several pages have said before.
        """
        if drain.pages == 1 and self.paging is not None:
            return self
        return msgspec.structs.replace(self, paging=drain.ending, delta_token=_place(drain))

    def expiring(self, status: int) -> DetectedCapabilities:
        """The same, and that this status means that the delta token is no longer valid."""
        return msgspec.structs.replace(self, expired=tuple(sorted({*self.expired, status})))

    def about(self, query: str) -> DetectedCapabilities:
        """The same if it is about the query with this fingerprint, else nothing."""
        return self if self.query == query else DetectedCapabilities(query)

    @property
    def refused(self) -> tuple[str, ...]:
        """The parameters that the API refused, in words."""
        limit = () if self.limit is None else (f"limit (taken: {self.limit})" if self.limit else "limit",)
        return (*limit, *(("fields",) if self.no_fields else ()))


def capabilities_of(text: str | None) -> DetectedCapabilities:
    """Decode what an earlier round left in the feed's state; nothing from an unknown version."""
    try:
        return msgspec.json.decode(text, type=DetectedCapabilities) if text else DetectedCapabilities()
    except msgspec.MsgspecError:
        return DetectedCapabilities()


async def accepted_query(query: ListQuery, takes: Callable[[ListQuery], Awaitable[bool]]) -> ListQuery | None:
    """The nearest query that is accepted after a refusal; None: there is none.

    Args:
        query: was refused.
        takes: sends another query to the API; whether it was accepted.
    """
    limit, fields = query.limit, query.fields

    async def without(size: int | None, names: tuple[str, ...]) -> ListQuery | None:
        candidate = msgspec.structs.replace(query, limit=size, fields=names)
        return candidate if await takes(candidate) else None

    bare = await without(None, ()) if limit is not None or fields else None
    if bare is None:
        return None
    if await takes(query):
        return query  # it was refused for a reason that has passed
    if limit is None:
        return bare
    if fields and not await without(None, fields):
        fields = ()  # they are refused whatever the limit is
        if found := await without(limit, fields):
            return found
    while limit := limit // 2:
        if found := await without(limit, fields):
            return found
    return msgspec.structs.replace(query, limit=None, fields=fields)


def _place(drain: ListingReader) -> TokenPlacement:
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


# The envelope of an answer: ``results``, ``deltaToken``, ``pageToken``.

MAX_TOKEN_LENGTH: Final = 64 * 1024
MAX_RECORDS: Final = 1_000_000
"""In one page. An answer of zeros or of empty objects holds millions, and each takes more memory than it has bytes."""

_RESULTS: Final = "results"
_OTHER_MARKS: Final = (BOM_UTF16_BE, BOM_UTF16_LE)


class Page(msgspec.Struct, frozen=True):
    """One answer of a list endpoint. Tokens are opaque; empty ones count as absent.

    Attributes:
        results: the array of records as received, without its brackets; empty: there are none.
        delta_token: for a later delta.
        page_token: for the next page; None: it is the last one.
        ending: how the absence of a page token is expressed; None: there is one.
        pieces: the records, where the array is no JSON.
    """

    results: bytes
    delta_token: str | None
    page_token: str | None
    ending: Ending = "no pageToken"
    pieces: list[bytes] | None = None

    @property
    def records(self) -> list[bytes]:
        """Each record's bytes, in the order received. They are cut out each time: a known page needs none of them."""
        if self.pieces is not None:
            return self.pieces
        try:
            return list(map(bytes, _elements(b"[%b]" % self.results))) if self.results else []
        except RecursionError:  # there were levels enough when the answer was decoded
            parts = at_once(split_results(b'{"results":[%b]}' % self.results))
            return parts[0] if parts is not None else []


class _Envelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    results: list[msgspec.Raw]
    delta_token: str | None = None
    page_token: str | msgspec.UnsetType | None = msgspec.UNSET


_decode: Final = msgspec.json.Decoder(_Envelope).decode
_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def decode_page(body: bytes, *, most: int = MAX_RECORDS) -> Generator[None, None, Page]:
    """Read an answer. Records that are no JSON stay in it and are rejected later.

    For :func:`~poller.lifecycle.in_turns`: yields where the answer has to be cut piece by piece.

    Raises:
        SourceNonsense: the body is not JSON, not the envelope, has one of its keys twice, is nested too deep around
            the records, has more than ``most``, or holds a token that cannot be sent back.
    """
    if body.startswith(_OTHER_MARKS):
        raise SourceNonsense("the answer begins with the byte order mark of UTF-16; JSON is UTF-8")
    body = body.removeprefix(BOM_UTF8)  # RFC 8259, section 8.1: a reader may ignore it
    if len(body) >= 2 * most and body.count(b",") >= most:
        envelope, pieces = yield from _counted(body, most)
        results = b",".join(pieces)
    else:
        try:
            (envelope, results), pieces = _read(body), None
        except SourceNonsense as whole:
            parts = (yield from split_results(body, most)) if len(body) <= LONGEST else None
            if parts is None:
                raise
            pieces, around = parts
            results = b",".join(pieces)
            try:
                envelope, _ = _read(around)
            except SourceNonsense:
                raise whole from None
    further = envelope.page_token
    return Page(
        results,
        _token(envelope.delta_token, "deltaToken"),
        _token(further or None, "pageToken"),
        "pageToken null" if further is None else "pageToken empty" if further == "" else "no pageToken",
        pieces,
    )


def _counted(body: bytes, most: int) -> Generator[None, None, tuple[_Envelope, list[bytes]]]:
    """The parts of an answer that may have too many records.

    Made in one piece, each zero of them would take 100 bytes.
    """
    parts = yield from split_results(body, most)
    if parts is None:
        raise SourceNonsense(f"the answer is not a list envelope, or not whole ({_kind_of(body)})")
    records, around = parts
    if around.count(b",") >= most:
        raise SourceNonsense(f"the answer is not a list envelope: it has {len(around)} bytes around its records")
    return _read(around)[0], records


def _read(body: bytes) -> tuple[_Envelope, bytes]:
    """The envelope without its records, and the array of these without its brackets."""
    try:
        members, repeated = own_members(body)
        results = members.get(_RESULTS, b"")
        if not results.startswith(b"["):
            _decode(body)  # which says what there is instead
        envelope = _decode(b"{%b}" % b",".join([b'"results":[]', *_tokens_in(members)]))
        _refuse_ambiguous(members, repeated)
        return envelope, results[1:-1].strip()
    except msgspec.ValidationError as error:
        found = keys_instead(body, _RESULTS)
        what = str(error) if found is None else f"expected the key {_RESULTS}, found {found}"
        raise SourceNonsense(f"the answer is not a list envelope: {what}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # None of the body is shown: an unknown answer may echo the request, even the credential.
        raise SourceNonsense(f"the answer is not JSON ({_kind_of(body)}): {error}") from None
    except RecursionError:
        raise SourceNonsense(f"the answer is {TOO_DEEP}") from None


def _tokens_in(members: Mapping[str, bytes]) -> Iterator[bytes]:
    """The tokens among the members of an envelope, as they stand there."""
    names = [name for name in _Envelope.__struct_encode_fields__ if name in members and name != _RESULTS]
    return (b'"%b":%b' % (name.encode(), members[name]) for name in names)


def _refuse_ambiguous(members: Mapping[str, bytes], repeated: Collection[str]) -> None:
    """Refuse an ambiguous envelope; the records are judged one by one, later."""
    if twice := set(repeated).intersection(_Envelope.__struct_encode_fields__):
        raise SourceNonsense(f"the answer is not a list envelope: {', '.join(sorted(twice))} stands in it twice")
    if any(deeper_than(value, MAX_DEPTH - 1) for name, value in members.items() if name != _RESULTS):
        raise SourceNonsense(f"the answer is {TOO_DEEP}")


def _kind_of(body: bytes) -> str:
    return f"{len(body)} bytes" + (" of markup" if body.lstrip().startswith(b"<") else "")


def _token(token: str | None, name: str) -> str | None:
    if not token:
        return None
    if len(token) > MAX_TOKEN_LENGTH or not token.isprintable():
        raise SourceNonsense(f"the answer's {name} cannot be sent back: {len(token)} characters, {token[:20]!r}…")
    return token


_COMMON: Final = re.compile(
    "data|items?|records?|results?|values?|entries|elements|contents?|list|rows|objects|hits|documents|resources|"
    "response|payload|body|embedded|pages?|paging|pagination|meta|metadata|links?|previous|cursor|"
    "next(?:cursor|page|link|(?:page|delta)?token)?|pagetoken|delta(?:token|link)|(?:total)?count|total|limit|offset|"
    "size|errors?|message|status|code|title|detail|type"
)
_JOINING_MARKS: Final = str.maketrans("", "", "_-@$.")  # prefixes and separators of these words in some APIs
_LONGEST: Final = 24  # characters
_SHOWN: Final = 6
_keys: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def keys_instead(body: bytes, wanted: str) -> str | None:
    """The keys of another envelope, such as ``data, next and 2 others``, or ``none``.

    None: the body is no JSON object, or has the key ``wanted``.
    """
    try:
        found = list(_keys(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if wanted in found:
        return None
    known = [key for key in found if _COMMON.fullmatch(_plain(key))][:_SHOWN]
    others = len(found) - len(known)
    more = [f"{others} other{'s' if others > 1 else ''}"] if others else []
    named = [", ".join(known)] if known else []
    return " and ".join((*named, *more)) or "none"


def _plain(key: str) -> str:
    return key.lower().translate(_JOINING_MARKS) if len(key) <= _LONGEST else ""


LONGEST: Final = 8 * 1024 * 1024  # bytes; cutting is slow, and a page like that is no accident
_AT_ONCE: Final = 10_000  # brackets and the like; some milliseconds
# An array or object without others in it is one mark. The last alternative is a string that does not end. What follows
# it is not looked at: trying each later quotation mark in the same way would take a time that grows with the square of
# the length.
_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRUCTURE: Final = re.compile(
    rb'[\[{](?:[^"\[\]{}]++|%b)*+[\]}]|%b|[\[\]{},]|"' % (_STRING, _STRING),
    re.DOTALL,
)
_UNENDED: Final = b'"'
_OPENING: Final = re.compile(rb"\s*+:\s*+\[")
_OPEN, _CLOSE = (b"[", b"{"), (b"]", b"}")
_LONGEST_KEY: Final = 6 * len(_RESULTS) + 2  # as written: each of its letters may be an escape


def split_results(body: bytes, most: int = MAX_RECORDS) -> Generator[None, None, tuple[list[bytes], bytes] | None]:
    """The elements of the envelope's ``results`` as bytes, and the envelope without them.

    None: there is no such array, or it does not end.

    Raises:
        SourceNonsense: they are more than ``most``.
    """
    start = yield from _start(body)
    if start is None:
        return None
    elements: list[bytes] = []
    depth, begun = 0, start
    for count, mark in enumerate(_STRUCTURE.finditer(body, start), start=1):
        if not count % _AT_ONCE:
            yield
        found = mark[0]
        if found == _UNENDED:
            return None
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE and depth:
            depth -= 1
        elif not depth and found in (b",", b"]"):
            elements.append(body[begun : mark.start()].strip())
            begun = mark.end()
            if found == b"]":
                return ([] if elements == [b""] else elements), body[:start] + body[mark.start() :]
            if len(elements) >= most:
                raise SourceNonsense(f"the answer has more than {most} records in a page; set limit, or a smaller one")
    return None


def _start(body: bytes) -> Generator[None, None, int | None]:
    """Where the first element of ``results`` begins.

    The key is that of the envelope itself, not of a record.
    """
    depth = 0
    for count, mark in enumerate(_STRUCTURE.finditer(body), start=1):
        if not count % _AT_ONCE:
            yield
        found = mark[0]
        if found == _UNENDED:
            return None
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE:
            depth -= 1
        elif depth == 1 and len(found) <= _LONGEST_KEY and _is_results(found):
            opening = _OPENING.match(body, mark.end())
            if opening:
                return opening.end()
    return None


def _is_results(found: bytes) -> bool:
    if b"\\" not in found:
        return found == b'"results"'
    try:
        return found.startswith(b'"') and msgspec.json.decode(found) == _RESULTS
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
