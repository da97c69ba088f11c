"""Profiles of bodies that are something else than promised, and of ones that do not arrive."""

from __future__ import annotations

import zlib
from functools import cache
from http import HTTPStatus
from typing import Final

import msgspec

from poller.sandbox.answer import Answer, Wire
from poller.sandbox.profiles.profile import Kind, Profile, of_answers

_CHUNK: Final = b" " * 2**20
_CHUNKS: Final = 300
_GZIP: Final = 31  # zlib's window size for the gzip format
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


def _by(name: str, does: str, wire: Wire) -> Profile:
    return of_answers(name, does, lambda said: msgspec.structs.replace(said, wire=wire), Kind.ANSWER)


PROFILES: Final = (
    _instead("html-200", "an HTML page", _SIGN_IN, "text/html; charset=utf-8"),
    _instead("empty-200", "an empty body", b""),
    _instead("null-200", "null", b"null"),
    _instead("list-200", "an empty JSON array in place of an object", b"[]"),
    of_answers("gzip-bomb", "200 with 300 KB of gzip that are 300 MB of JSON, for every request", _bombed, Kind.ANSWER),
    of_answers("bom", "bodies begin with a byte order mark", _bom, Kind.ANSWER),
    of_answers("wrong-charset", "bodies are UTF-16 and said to be UTF-8", _utf_16, Kind.ANSWER),
)
"""Bodies that are something else."""

BROKEN: Final = (
    _by("drip", "bodies come one byte every half second", Wire.DRIP),
    _by("cut-with-length", "bodies end after half of their Content-Length, with the connection", Wire.CUT_WITH_LENGTH),
    _by("cut-without-length", "bodies have no length and end half way, with the connection", Wire.CUT_WITHOUT_LENGTH),
    _by("cut-chunked", "chunked bodies end half way, with the connection and without a last chunk", Wire.CUT_CHUNKED),
    _by("reset", "the connection is reset in place of every answer", Wire.RESET),
)
"""Bodies that do not arrive as a whole."""
