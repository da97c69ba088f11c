"""Profiles of answers: records left out, altered or unusable, broken bodies, refused requests, ETags.

Unusable records are put at the front of every page, byte for byte.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime
from functools import cache
from hashlib import blake2b
from http import HTTPStatus
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw

from poller.sandbox.api import Respond, SandboxRequest, SandboxResponse, WireMode, refusal
from poller.sandbox.faults.base import (
    Layer,
    PageEnvelope,
    Profile,
    ProfileKind,
    SandboxScene,
    asking,
    changed,
    encoded,
    id_of,
    is_page,
    layering,
    members,
    of_answers,
    of_asks,
    of_pages,
    on_answers,
    on_asks,
    on_pages,
    opened,
    page_of,
    parameter,
)

if TYPE_CHECKING:
    from poller.sandbox.history import History


_FORGOTTEN_SHARE: Final = 10
_ALWAYS: Final = frozenset({"id", "lastModifiedAt"})


def _earlier(history: History, resource: str, records: list[Raw]) -> dict[str, bytes]:
    """The previous versions of these records, by id."""
    present: dict[str, bytes | None] = dict.fromkeys(map(id_of, records))
    before: dict[str, bytes] = {}
    for version in history.since(0):
        id_ = version.id.lower()
        if version.resource != resource or id_ not in present or version.record is None:
            continue
        older, present[id_] = present[id_], version.record
        if older is not None:
            before[id_] = older
    return before


def _newer_before_older(history: History, ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    before = _earlier(history, ask.resource, page.results)
    return changed(page, results=[*page.results, *map(Raw, before.values())])


def _partial(history: History, ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    if parameter(ask, "sinceDeltaToken") is None:
        return page
    return changed(page, results=[_part(history, ask.resource, record) for record in page.results])


def _part(history: History, resource: str, record: Raw) -> Raw:
    """The part of a record that a delta with partial records holds."""
    own, id_ = members(record), id_of(record)
    versions = (past for past in history.since(0) if past.resource == resource and past.id.lower() == id_)
    known = [members(past.record) for past in versions if past.record is not None and past.record != bytes(record)]
    if not known:
        return record
    return encoded({n: v for n, v in own.items() if n in _ALWAYS or any(past.get(n) != v for past in known)})


def _respelling(_scene: SandboxScene) -> Layer:
    answers = count()

    def edit(_history: History, _ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
        if next(answers) % 2 == 0:
            return page
        return changed(page, results=[_otherwise(record) for record in page.results])

    return on_pages(edit)


def _otherwise(record: bytes) -> Raw:
    value = msgspec.json.decode(record, type=dict[str, Any])
    fractions = {name: float(item) if type(item) is int else item for name, item in reversed(value.items())}
    return Raw(json.dumps(fractions, indent=1, ensure_ascii=True).encode())


def _forgetful(_ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    kept = [record for record in page.results if crc32(id_of(record).encode()) % _FORGOTTEN_SHARE]
    return changed(page, results=kept)


def _two_backends(_scene: SandboxScene) -> Layer:
    def layer(respond: Respond) -> Respond:
        requests = count(1)

        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            said, behind = respond(history, ask), next(requests) % 2 == 0
            if not behind or said.status != HTTPStatus.OK:
                return said
            if ask.id is not None:
                before = _earlier(history, ask.resource, [Raw(said.body)])
                return msgspec.structs.replace(said, body=before.get(ask.id.lower(), said.body))
            page = opened(said)
            before = _earlier(history, ask.resource, page.results)
            return page_of(changed(page, results=[Raw(before.get(id_of(one), one)) for one in page.results]))

        return call

    return layer


def _same_delta(ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    since = parameter(ask, "sinceDeltaToken")
    return page if since is None else changed(page, delta_token=since)


def _parent_gone(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
    return ask if ask.qualification is None else refusal(404, "notFound", "no such qualification")


def _alternating_case(_scene: SandboxScene) -> Layer:
    def layer(respond: Respond) -> Respond:
        answers = count()

        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            said, upper = respond(history, ask), next(answers) % 2 == 0
            if not is_page(ask, said):
                return said
            page = opened(said)
            return page_of(changed(page, results=[_spelled(record, upper=upper) for record in page.results]))

        return call

    return layer


def _spelled(record: bytes, *, upper: bool) -> Raw:
    id_ = id_of(record)
    return encoded({**members(record), "id": id_.upper() if upper else id_})


CONTENT_PROFILES: Final = (
    layering(
        "partial-deltas",
        "records of a delta hold id, lastModifiedAt and the members that differ from any version before",
        on_pages(_partial),
    ),
    of_pages(
        "same-delta", "a delta gives back the delta token that it was asked with: the same delta again", _same_delta
    ),
    layering(
        "newer-before-older",
        "after a page's records come the versions before theirs, of those that have one",
        on_pages(_newer_before_older),
    ),
    of_pages(
        "repeated-record",
        "a page's first record comes again at the page's end",
        lambda _ask, page: changed(page, results=[*page.results, *page.results[:1]]),
    ),
    of_pages(
        "forgets-records",
        "listings leave out about each tenth record; GET by id still knows it",
        _forgetful,
        ProfileKind.LACK,
    ),
    Profile(
        "two-backends",
        "every other answer has records that were changed as they were before their last change",
        _two_backends,
        ProfileKind.STALE,
    ),
    of_pages(
        "empty-listings",
        "every listing is empty, with a delta token",
        lambda _ask, page: changed(page, results=[], page_token=UNSET),
        ProfileKind.LACK,
    ),
    Profile(
        "respelled",
        r"records in every other page have other white space, order of keys and \u escapes, and 1.0 for 1",
        _respelling,
    ),
    Profile("alternating-case", "ids in upper case in every other page, in lower case in the rest", _alternating_case),
    of_asks("parent-gone", "404 for the achievements of every qualification", _parent_gone, ProfileKind.LACK),
)


_RESULTS: Final = b'"results":['
_DEPTH: Final = 100_000
_DIGITS: Final = 5_000
_MEBIBYTE: Final = 2**20
_NO_IDS: Final = (b'"id":null', b'"id":true', b'"id":{}')
_IDS: Final = "00000000-0000-4000-8000-0000000000"


def _with_records(*records: bytes) -> Callable[[SandboxRequest, SandboxResponse], SandboxResponse]:
    def edit(ask: SandboxRequest, said: SandboxResponse) -> SandboxResponse:
        before, found, after = said.body.partition(_RESULTS)
        if not (is_page(ask, said) and found):
            return said
        end = b"" if after.startswith(b"]") else b","
        return SandboxResponse(said.status, before + found + b",".join(records) + end + after, said.headers)

    return edit


def _record(number: int, value: bytes) -> bytes:
    return b'{"id":"%b%02d","name":%b}' % (_IDS.encode(), number, value)


def _identified(escape: bytes) -> bytes:
    return rb'{"id":"a\u%bb"}' % escape


def _adding(name: str, does: str, *records: bytes) -> Profile:
    return layering(name, f"every page also has {does}", on_answers(_with_records(*records)), ProfileKind.RECORD)


RECORD_PROFILES: Final = (
    _adding("id-number", 'a record with the id 1 and one with the id "1"', b'{"id":1}', b'{"id":"1"}'),
    _adding(
        "id-nfc-nfd",
        "two records with the id é, composed and decomposed",
        '{"id":"\u00e9"}'.encode(),
        '{"id":"e\u0301"}'.encode(),
    ),
    _adding("id-empty", "a record with an empty id", b'{"id":""}'),
    _adding("id-1mb", "a record with an id of 1 MiB", b'{"id":"%b"}' % (b"i" * _MEBIBYTE)),
    _adding("deep", "a record nested 100 000 deep", _record(1, b"[" * _DEPTH + b"]" * _DEPTH)),
    _adding("big-integer", "a record with an integer of 5 000 digits", _record(2, b"7" * _DIGITS)),
    _adding("nan", "a record with NaN in it, which is not JSON", _record(3, b"NaN")),
    _adding("duplicate-keys", "a record with a key that stands in it twice", _record(4, b'"a","name":"b"')),
    _adding("not-utf-8", "a record with a byte that is no UTF-8", _record(6, b'"\xff"')),
    _adding("not-an-object", "null, a number, a text and a list in place of records", b"null", b"7", b'"x"', b'["id"]'),
    _adding("no-id", "records whose id is absent, null, true, an object", *(b"{%b}" % i for i in (b"", *_NO_IDS))),
    _adding(
        "id-control", "a record with a NUL in its id and one with a line break", *map(_identified, (b"0000", b"000a"))
    ),
    _adding("lone-surrogate", r"a record with \ud800 in a string", _record(5, rb'"\ud800"')),
)


_CHUNK: Final = b" " * 2**20
_CHUNKS: Final = 300
_MORE_THAN_A_PAGE: Final = 70
_GZIP: Final = 31  # zlib's window size for the gzip format
_DEFLATE: Final = -15  # for deflate without head and check
_GZIP_HEAD: Final = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # RFC 1952: deflate, no name, no time, unknown system
_JSON: Final = (("content-type", "application/json"),)
_SIGN_IN: Final = b"<!doctype html><html><head><title>Sign in</title></head><body>Please sign in.</body></html>"


def _instead(name: str, does: str, body: bytes, content_type: str = "application/json") -> Profile:
    said = SandboxResponse(HTTPStatus.OK, body, (("content-type", content_type),))
    return of_answers(name, f"200 with {does} for every request", lambda _said: said, ProfileKind.ANSWER)


def _bom(said: SandboxResponse) -> SandboxResponse:
    return msgspec.structs.replace(said, body=b"\xef\xbb\xbf" + said.body)


def _utf_16(said: SandboxResponse) -> SandboxResponse:
    headers = tuple(pair for pair in said.headers if pair[0] != "content-type")
    body = said.body.decode("utf-8", "replace").encode("utf-16")
    return SandboxResponse(said.status, body, (*headers, ("content-type", "application/json; charset=utf-8")))


@cache
def _bomb() -> bytes:
    """An empty envelope in 300 MiB of white space, as gzip: about 300 KB.

    After a full flush the same input gives the same bytes, so one piece is compressed for all.
    """
    head, tail, packing = b'{"results":[', b'],"deltaToken":"bomb"}', zlib.compressobj(wbits=_DEFLATE)
    start, piece = (packing.compress(text) + packing.flush(zlib.Z_FULL_FLUSH) for text in (head, _CHUNK))
    end = packing.compress(tail) + packing.flush()
    check = zlib.crc32(head)
    for text in (*repeat(_CHUNK, _CHUNKS), tail):
        check = zlib.crc32(text, check)
    size = len(head) + _CHUNKS * len(_CHUNK) + len(tail)
    return _GZIP_HEAD + start + piece * _CHUNKS + end + struct.pack("<II", check, size)


def _bombed(_said: SandboxResponse) -> SandboxResponse:
    return SandboxResponse(HTTPStatus.OK, _bomb(), (*_JSON, ("content-encoding", "gzip")))


def _half(said: SandboxResponse) -> SandboxResponse:
    return msgspec.structs.replace(said, body=said.body[: len(said.body) // 2])


def _long(said: SandboxResponse) -> SandboxResponse:
    return msgspec.structs.replace(said, body=said.body + _CHUNK * _MORE_THAN_A_PAGE)


def _and_header(name: str, value: str) -> Callable[[SandboxResponse], SandboxResponse]:
    return lambda said: msgspec.structs.replace(said, headers=(*said.headers, (name, value)))


def _packed(said: SandboxResponse) -> SandboxResponse:
    packed = zlib.compress(said.body, wbits=_GZIP)
    return msgspec.structs.replace(said, body=packed, headers=(*said.headers, ("content-encoding", "gzip")))


def _with_more(ask: SandboxRequest, said: SandboxResponse) -> SandboxResponse:
    """The envelope with members around its records that mislead a text search."""
    if not is_page(ask, said):
        return said
    page = msgspec.json.decode(said.body, type=dict[str, msgspec.Raw])
    results = page.pop("results")
    more = {"count": 7, "links": {"results": ["]", {"pageToken": "no"}]}, **page, "results": results, "warnings": []}
    return msgspec.structs.replace(said, body=msgspec.json.encode(more))


def _by(name: str, does: str, wire: WireMode) -> Profile:
    return of_answers(name, does, lambda said: msgspec.structs.replace(said, wire=wire), ProfileKind.ANSWER)


BODY_PROFILES: Final = (
    _instead("html-200", "an HTML page", _SIGN_IN, "text/html; charset=utf-8"),
    _instead("empty-200", "an empty body", b""),
    _instead("null-200", "null", b"null"),
    _instead("list-200", "an empty JSON array in place of an object", b"[]"),
    of_answers(
        "gzip-bomb", "200 with 300 KB of gzip that are 300 MB of JSON, for every request", _bombed, ProfileKind.ANSWER
    ),
    _instead("object-200", "an object without members", b"{}"),
    _instead("error-200", "an error", b'{"error":{"code":"internal","message":"try later"}}'),
    _instead("results-null", "null in place of the records", b'{"results":null,"deltaToken":"t"}'),
    _instead("token-number", "numbers for tokens", b'{"results":[],"deltaToken":7,"pageToken":8}'),
    _instead("deep-200", "JSON nested 100 000 deep", b'{"results":[],"more":%b%b}' % (b"[" * _DEPTH, b"]" * _DEPTH)),
    layering(
        "unknown-members",
        "the envelope has its tokens before its records, and unknown members",
        on_answers(_with_more),
    ),
    of_answers("half-json", "bodies are whole, and only the first half of the JSON", _half, ProfileKind.ANSWER),
    of_answers("huge-page", "bodies end with 70 MiB of white space", _long, ProfileKind.ANSWER),
    of_answers(
        "long-header", "answers have a header of 128 KiB", _and_header("x-long", "x" * 2**17), ProfileKind.ANSWER
    ),
    of_answers(
        "not-gzip",
        "bodies are said to be gzip and are not",
        _and_header("content-encoding", "gzip"),
        ProfileKind.ANSWER,
    ),
    of_answers(
        "brotli", "bodies are said to be brotli, unasked", _and_header("content-encoding", "br"), ProfileKind.ANSWER
    ),
    of_answers("gzip", "bodies are gzip", _packed),
    of_answers("bom", "bodies begin with a byte order mark", _bom),
    of_answers("wrong-charset", "bodies are UTF-16 and said to be UTF-8", _utf_16, ProfileKind.ANSWER),
)
"""Profiles of bodies that are something else."""

BROKEN: Final = (
    _by("drip", "bodies come one byte every half second", WireMode.DRIP),
    _by(
        "cut-with-length",
        "bodies end after half of their Content-Length, with the connection",
        WireMode.CUT_WITH_LENGTH,
    ),
    _by(
        "cut-without-length", "bodies have no length and end half way, with the connection", WireMode.CUT_WITHOUT_LENGTH
    ),
    _by(
        "cut-chunked", "chunked bodies end half way, with the connection and without a last chunk", WireMode.CUT_CHUNKED
    ),
    _by("endless-body", "after the body comes white space without end", WireMode.ENDLESS),
    _by("silent", "no answer to any request, and the connection stays", WireMode.SILENT),
    _by("not-http", "the greeting of a mail server and rubbish in place of every answer", WireMode.NOT_HTTP),
    _by("reset", "the connection is reset in place of every answer", WireMode.RESET),
)
"""Profiles of bodies that do not arrive whole."""


# Refused requests: parameters, limits, credentials, errors; and ETags.

MAX_LIMIT: Final = 50
_PARAMETERS: Final = {
    "no-delta": ("sinceDeltaToken",),
    "no-limit": ("limit",),
    "no-fields": ("fields", "fields[]"),
}
_SPELLINGS: Final[dict[str, Callable[[list[tuple[str, str]]], bool]]] = {
    "repeat": lambda asked: all(name == "fields" and "," not in value for name, value in asked),
    "comma": lambda asked: len(asked) <= 1 and all(name == "fields" for name, _ in asked),
    "brackets": lambda asked: all(name == "fields[]" and "," not in value for name, value in asked),
}
_STATUSES: Final = (408, 425, 429, 500, 502, 503, 504)
_REDIRECT: Final = SandboxResponse(HTTPStatus.FOUND, b"", (("location", "?"),))
_TOO_LARGE: Final = (400, 413, 422)
_PATIENCE: Final[dict[str, tuple[str, Callable[[datetime], str]]]] = {
    "seconds": ("one second", lambda _now: "1"),
    "date": ("a date two seconds ahead", lambda now: format_datetime(now + timedelta(seconds=2), usegmt=True)),
    "nonsense": ("soon", lambda _now: "soon"),
    "zero": ("0", lambda _now: "0"),
    "negative": ("-5", lambda _now: "-5"),
    "years": ("10⁹ seconds", lambda _now: "1000000000"),
}


def _without(names: tuple[str, ...]) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if any(name in names for name, _ in ask.query):
            return refusal(HTTPStatus.BAD_REQUEST, "unknownParameter", f"there is no parameter {names[0]}")
        return ask

    return edit


def _accepting(
    takes: Callable[[list[tuple[str, str]]], bool],
) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if takes([pair for pair in ask.query if pair[0] in _PARAMETERS["no-fields"]]):
            return ask
        return refusal(HTTPStatus.BAD_REQUEST, "invalidFields", "fields are spelled in another way")

    return edit


def _alone(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
    if parameter(ask, "pageToken") is None or len(ask.query) == 1:
        return ask
    return refusal(HTTPStatus.BAD_REQUEST, "invalidPageToken", "pageToken stands alone")


def _at_most(status: int) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        limit = parameter(ask, "limit") or ""
        if limit.isdecimal() and int(limit[:9]) > MAX_LIMIT:
            return refusal(status, "limitTooLarge", f"limit must be at most {MAX_LIMIT}")
        return ask

    return edit


def _always(status: int) -> Callable[[SandboxRequest], SandboxRequest | SandboxResponse]:
    return lambda _ask: refusal(status, "unavailable", HTTPStatus(status).phrase)


def _busy(status: int, after: Callable[[datetime], str]) -> Callable[[SandboxScene], Layer]:
    def make(scene: SandboxScene) -> Layer:
        return on_asks(lambda _ask: refusal(status, "busy", "try later", (("retry-after", after(scene.now())),)))

    return make


def _unauthorized(scene: SandboxScene) -> Layer:
    def edit(ask: SandboxRequest) -> SandboxRequest | SandboxResponse:
        if parameter(ask, "pageToken") is None or scene.switches.token_changes:
            return ask
        challenge = ("www-authenticate", 'Bearer error="invalid_token"')
        return refusal(HTTPStatus.UNAUTHORIZED, "unauthorized", "the bearer token has expired", (challenge,))

    return on_asks(edit)


def _echoing(scene: SandboxScene) -> Layer:
    return on_asks(lambda _ask: refusal(HTTPStatus.BAD_REQUEST, "bad", f"what is Bearer {scene.switches.token}?"))


def _bare(status: int) -> Callable[[SandboxRequest], SandboxResponse]:
    return lambda _ask: SandboxResponse(status, b"", ())


def _tagged(ask: SandboxRequest, said: SandboxResponse) -> SandboxResponse:
    if said.status != HTTPStatus.OK:
        return said
    tag = f'"{blake2b(said.body, digest_size=8).hexdigest()}"'
    if ask.if_none_match == tag:
        return SandboxResponse(HTTPStatus.NOT_MODIFIED, b"", (("etag", tag),))
    return SandboxResponse(said.status, said.body, (*said.headers, ("etag", tag)))


ASKED: Final = (
    *(of_asks(name, f"400 for a request with {names[0]}", _without(names)) for name, names in _PARAMETERS.items()),
    *(of_asks(f"limit-{status}", f"{status} for a limit above {MAX_LIMIT}", _at_most(status)) for status in _TOO_LARGE),
    *(
        of_asks(
            f"fields-{style}", f"400 for fields that are not spelled as fields_style {style} does", _accepting(takes)
        )
        for style, takes in _SPELLINGS.items()
    ),
    of_asks("page-token-alone", "400 for a request with pageToken and any other parameter", _alone),
    of_asks(
        "delta-ignored",
        "sinceDeltaToken is ignored: everything comes, with another delta token",
        lambda ask: asking(ask, sinceDeltaToken=None),
    ),
    Profile(
        "echoes-token", "400 for every request, with the bearer token in the message", _echoing, ProfileKind.ANSWER
    ),
    of_asks("redirect", "302 to the same place for every request", lambda _ask: _REDIRECT, ProfileKind.ANSWER),
    *(
        of_asks(f"status-{status}", f"{status} for every request, unasked", _bare(status), ProfileKind.ANSWER)
        for status in (204, 304)
    ),
    Profile(
        "401-mid-round",
        "401 for a request with a page token, until POST /_sandbox/token changes the token",
        _unauthorized,
        ProfileKind.MANNERS,
    ),
    *(
        of_asks(f"status-{status}", f"{status} for every request", _always(status), ProfileKind.MANNERS)
        for status in _STATUSES
    ),
    *(
        Profile(
            f"{status}-{kind}",
            f"{status} for every request, Retry-After: {shown}",
            _busy(status, after),
            ProfileKind.MANNERS,
        )
        for status in (429, 503)
        for kind, (shown, after) in _PATIENCE.items()
    ),
)
"""Profiles that decide by the request, before anything is read."""

TAGGED: Final = (
    layering("etag", "answers have an ETag; 304 for a request that sends it as If-None-Match", on_answers(_tagged)),
)
"""Profiles that decide by the body, so after everything that changes it."""
