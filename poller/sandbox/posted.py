"""A record as posted to the sandbox, made complete.

Law: what was posted stays as it was posted, byte for byte; what is missing is written in front of it. So a test can
post numbers, spellings and orders that no encoder would write, and have them served literally.

It does not know: resources, HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from poller.sandbox.model import UnusableRecord
from poller.sandbox.records import instant, new_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from random import Random

_WHITESPACE = b" \t\r\n"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def completed(body: bytes, *, present: Callable[[str], bytes | None], rng: Random, at: datetime) -> bytes:
    """The record that a posted body stands for.

    Args:
        body: what was posted.
        present: the record that an id names now, if any; a replaced record keeps its ``createdAt``.
        rng: where an id comes from if there is none.
        at: ``createdAt`` and ``lastModifiedAt`` if there are none, UTC.

    Raises:
        UnusableRecord: the body is not one JSON object in UTF-8, or its id is not a string.
    """
    members = _decoded(body)
    missing = _missing(members, present=present, rng=rng, at=at)
    if not missing:
        return body
    added = msgspec.json.encode(missing).removesuffix(b"}")
    rest = body.lstrip(_WHITESPACE).removeprefix(b"{")
    return added + (b"," if members else b"") + rest


def _decoded(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        body.decode()  # the decoder below does not look inside the strings that it passes on
        return _members.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableRecord(f"the body must be one JSON object in UTF-8: {error}") from error


def _missing(
    members: dict[str, msgspec.Raw], *, present: Callable[[str], bytes | None], rng: Random, at: datetime
) -> dict[str, msgspec.Raw]:
    missing = {}
    if "id" not in members:
        missing["id"] = _raw(new_id(rng))
    elif "createdAt" not in members:
        replaced = present(_text(members["id"]))
        if replaced is not None and "createdAt" in (kept := _members.decode(replaced)):
            missing["createdAt"] = kept["createdAt"]
    for name in {"createdAt", "lastModifiedAt"} - members.keys() - missing.keys():
        missing[name] = _raw(instant(at))
    return {name: missing[name] for name in ("id", "createdAt", "lastModifiedAt") if name in missing}


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _text(value: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableRecord(f"id: {error}") from error
