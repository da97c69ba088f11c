"""Profiles of bodies that are something else than promised, and of ones that do not arrive."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import Final

import msgspec

from poller.sandbox.answer import Answer, Ask, Wire
from poller.sandbox.layers import is_page, on_answers
from poller.sandbox.profiles.profile import Kind, Profile, layering, of_answers

_CHUNK: Final = b" " * 2**20
_CHUNKS: Final = 300
_MORE_THAN_A_PAGE: Final = 70
_GZIP: Final = 31  # zlib's window size for the gzip format
_DEPTH: Final = 100_000
_JSON: Final = (("content-type", "application/json"),)
_SIGN_IN: Final = b"<!doctype html><html><head><title>Sign in</title></head><body>Please sign in.</body></html>"


def _instead(name: str, does: str, body: bytes, content_type: str = "application/json") -> Profile:
    said = Answer(HTTPStatus.OK, body, (("content-type", content_type),))
    return of_answers(name, f"200 with {does} for every request", lambda _said: said, Kind.ANSWER)


def _bom(said: Answer) -> Answer:
    return msgspec.structs.replace(said, body=b"\xef\xbb\xbf" + said.body)


def _utf_16(said: Answer) -> Answer:
    headers = tuple(pair for pair in said.headers if pair[0] != "content-type")
    body = said.body.decode("utf-8", "replace").encode("utf-16")
    return Answer(said.status, body, (*headers, ("content-type", "application/json; charset=utf-8")))


@cache
def _bomb() -> bytes:
    """An empty envelope in 300 MiB of white space, as gzip: about 300 KB."""
    gzip = zlib.compressobj(wbits=_GZIP)
    parts = [gzip.compress(b'{"results":[')]
    parts += [gzip.compress(_CHUNK) for _ in range(_CHUNKS)]
    parts += [gzip.compress(b'],"deltaToken":"bomb"}'), gzip.flush()]
    return b"".join(parts)


def _bombed(_said: Answer) -> Answer:
    return Answer(HTTPStatus.OK, _bomb(), (*_JSON, ("content-encoding", "gzip")))


def _half(said: Answer) -> Answer:
    return msgspec.structs.replace(said, body=said.body[: len(said.body) // 2])


def _long(said: Answer) -> Answer:
    return msgspec.structs.replace(said, body=said.body + _CHUNK * _MORE_THAN_A_PAGE)


def _and_header(name: str, value: str) -> Callable[[Answer], Answer]:
    return lambda said: msgspec.structs.replace(said, headers=(*said.headers, (name, value)))


def _packed(said: Answer) -> Answer:
    packed = zlib.compress(said.body, wbits=_GZIP)
    return msgspec.structs.replace(said, body=packed, headers=(*said.headers, ("content-encoding", "gzip")))


def _with_more(ask: Ask, said: Answer) -> Answer:
    """The members around the records are a decoy for whoever looks for ``results`` in the text."""
    if not is_page(ask, said):
        return said
    page = msgspec.json.decode(said.body, type=dict[str, msgspec.Raw])
    results = page.pop("results")
    more = {"count": 7, "links": {"results": ["]", {"pageToken": "no"}]}, **page, "results": results, "warnings": []}
    return msgspec.structs.replace(said, body=msgspec.json.encode(more))


def _by(name: str, does: str, wire: Wire) -> Profile:
    return of_answers(name, does, lambda said: msgspec.structs.replace(said, wire=wire), Kind.ANSWER)


BODY_PROFILES: Final = (
    _instead("html-200", "an HTML page", _SIGN_IN, "text/html; charset=utf-8"),
    _instead("empty-200", "an empty body", b""),
    _instead("null-200", "null", b"null"),
    _instead("list-200", "an empty JSON array in place of an object", b"[]"),
    of_answers("gzip-bomb", "200 with 300 KB of gzip that are 300 MB of JSON, for every request", _bombed, Kind.ANSWER),
    _instead("object-200", "an object without members", b"{}"),
    _instead("error-200", "an error", b'{"error":{"code":"internal","message":"try later"}}'),
    _instead("results-null", "null in place of the records", b'{"results":null,"deltaToken":"t"}'),
    _instead("token-number", "numbers for tokens", b'{"results":[],"deltaToken":7,"pageToken":8}'),
    _instead("deep-200", "JSON nested 100 000 deep", b'{"results":[],"more":%b%b}' % (b"[" * _DEPTH, b"]" * _DEPTH)),
    layering(
        "unknown-members",
        "the envelope has its tokens before its records, and members that nobody knows",
        on_answers(_with_more),
    ),
    of_answers("half-json", "bodies are whole, and only the first half of the JSON", _half, Kind.ANSWER),
    of_answers("huge-page", "bodies end with 70 MiB of white space", _long, Kind.ANSWER),
    of_answers("long-header", "answers have a header of 128 KiB", _and_header("x-long", "x" * 2**17), Kind.ANSWER),
    of_answers(
        "not-gzip", "bodies are said to be gzip and are not", _and_header("content-encoding", "gzip"), Kind.ANSWER
    ),
    of_answers("brotli", "bodies are said to be brotli, unasked", _and_header("content-encoding", "br"), Kind.ANSWER),
    of_answers("gzip", "bodies are gzip", _packed),
    of_answers("bom", "bodies begin with a byte order mark", _bom),
    of_answers("wrong-charset", "bodies are UTF-16 and said to be UTF-8", _utf_16, Kind.ANSWER),
)
"""Bodies that are something else."""

BROKEN: Final = (
    _by("drip", "bodies come one byte every half second", Wire.DRIP),
    _by("cut-with-length", "bodies end after half of their Content-Length, with the connection", Wire.CUT_WITH_LENGTH),
    _by("cut-without-length", "bodies have no length and end half way, with the connection", Wire.CUT_WITHOUT_LENGTH),
    _by("cut-chunked", "chunked bodies end half way, with the connection and without a last chunk", Wire.CUT_CHUNKED),
    _by("endless-body", "after the body comes white space without end", Wire.ENDLESS),
    _by("silent", "no answer to any request, and the connection stays", Wire.SILENT),
    _by("not-http", "the greeting of a mail server and rubbish in place of every answer", Wire.NOT_HTTP),
    _by("reset", "the connection is reset in place of every answer", Wire.RESET),
)
"""Bodies that do not arrive as a whole."""
