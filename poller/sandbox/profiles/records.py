"""Profiles of records that no API should send. Each puts its own at the front of every page, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from poller.sandbox.answer import Answer, Ask
from poller.sandbox.layers import is_page, on_answers
from poller.sandbox.profiles.profile import Kind, Profile, layering

_RESULTS: Final = b'"results":['
_DEPTH: Final = 100_000
_DIGITS: Final = 5_000
_MEBIBYTE: Final = 2**20
_NO_IDS: Final = (b'"id":null', b'"id":true', b'"id":{}')
_IDS: Final = "00000000-0000-4000-8000-0000000000"


def _with_records(*records: bytes) -> Callable[[Ask, Answer], Answer]:
    def edit(ask: Ask, said: Answer) -> Answer:
        before, found, after = said.body.partition(_RESULTS)
        if not (is_page(ask, said) and found):
            return said
        end = b"" if after.startswith(b"]") else b","
        return Answer(said.status, before + found + b",".join(records) + end + after, said.headers)

    return edit


def _record(number: int, value: bytes) -> bytes:
    return b'{"id":"%b%02d","name":%b}' % (_IDS.encode(), number, value)


def _identified(escape: bytes) -> bytes:
    return rb'{"id":"a\u%bb"}' % escape


def _adding(name: str, does: str, *records: bytes) -> Profile:
    return layering(name, f"every page also has {does}", on_answers(_with_records(*records)), Kind.RECORD)


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
