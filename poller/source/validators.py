"""What an answer says of its own version, to be sent back: ``ETag`` and ``Last-Modified``.

The law: a 304 may never hide a change. An ``ETag`` names one version. ``Last-Modified`` names a second, and a record
that changes later in that second would be hidden; so it counts only where the answer came long enough after it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from poller.retry_after import http_date

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
