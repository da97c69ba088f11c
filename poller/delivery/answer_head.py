"""The head of a sink's answer, read from the raw bytes where the HTTP parser refuses them.

**Invariants**

* Once a whole status line has arrived its status stands, whatever follows: headers that are too long or none, a body
  where there must be none, chunks that break off, data after ``Connection: close``.
* Interim answers (1xx but 101) are passed over; they are no answer.
* Headers count up to the first line that is none; so ``Retry-After`` before the fault is still honoured.

Pure: bytes in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from multidict import CIMultiDict

READ_HEAD: Final = 16 * 1024
"""Bytes of an answer that are kept for this."""

_STATUS_LINE: Final = re.compile(rb"[\r\n]*HTTP/\d\.\d ([1-9]\d\d)(?: [^\n]*)?\n|[\r\n]*HTTP/\d\.\d ([1-9]\d\d)\r\n")
_HEADER: Final = re.compile(rb"([!#-'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*)\r?\n")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_SWITCHING: Final = 101
_FINAL: Final = 200

# Frame of length below 64 KiB, type SETTINGS or GOAWAY, any flags, stream 0: what an HTTP/2 server sends first.
_HTTP2: Final = re.compile(rb"\x00..[\x04\x07].\x00\x00\x00\x00", re.DOTALL)
_TLS: Final = re.compile(rb"[\x14-\x16]\x03[\x00-\x04]")

HTTP2_ONLY: Final = "the sink speaks HTTP/2 only; enable HTTP/1.1 at the sink, or put a proxy in front of it"
_HTTP2_TEXT: Final = f"the answer is not HTTP/1.1: {HTTP2_ONLY}"
_TLS_TEXT: Final = "the answer is not HTTP: the sink speaks TLS; write https:// in the subscription's sink"


class AnswerHead(msgspec.Struct, frozen=True):
    """Status, readable headers, and the first bytes of the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def head_in(received: bytes) -> AnswerHead | None:
    """The head of the final answer; None where its status line has not arrived or is none."""
    at = 0
    while line := _STATUS_LINE.match(received, at):
        status = int(line[1] or line[2])
        blank = _BLANK_LINE.search(received, line.end() - 1)
        if status >= _FINAL or status == _SWITCHING:
            body = received[blank.end() :] if blank and len(received) < READ_HEAD else b""  # one that is cut is no body
            return AnswerHead(status, _headers(received, line.end()), body)
        if blank is None:
            return None
        at = blank.end()
    return None


def other_protocol(received: bytes) -> str | None:
    """What the sink speaks instead of HTTP/1.1, with the remedy; None where that is not known."""
    if _HTTP2.match(received):
        return _HTTP2_TEXT
    if _TLS.match(received):
        return _TLS_TEXT
    return None


def _headers(received: bytes, at: int) -> Mapping[str, str]:
    headers: CIMultiDict[str] = CIMultiDict()
    while line := _HEADER.match(received, at):
        headers.add(line[1].decode("ascii"), line[2].rstrip(b" \t").decode("utf-8", "surrogateescape"))
        at = line.end()
    return headers
