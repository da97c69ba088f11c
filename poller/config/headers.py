"""Extra request headers: which names and values may be written into a request.

Law: no value can begin a header of its own (no CR, no LF), no header that the program itself sets can be set twice,
and a credential is not a header but ``auth``. A refusal names the header and never shows its value.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
OWN: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?|")
_LONGEST: Final = 8192


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, as given.

    Raises:
        ValueError: a name that is no HTTP token or that is given twice (case does not count), a value that is no HTTP
            field value, a credential, a header that the program sets itself.
    """
    seen: set[str] = set()
    for name, value in headers.items():
        _check_name(name, seen)
        if len(value) > _LONGEST or not _VALUE.fullmatch(value):
            raise ValueError(f"expected a value of {name} without line breaks, control characters or spaces around it")
        seen.add(name.lower())
    return headers


def check_sink_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """As :func:`check_headers`, and none that belongs to CloudEvents or to Standard Webhooks.

    Raises:
        ValueError: as there.
    """
    check_headers(headers)
    for name in headers:
        if name.lower().startswith(("ce-", "webhook-")):
            raise ValueError(f"expected no {name}: the delivery sets it")
    return headers


def _check_name(name: str, seen: set[str]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("expected header names of letters, digits and hyphens")
    if name.lower() in seen:
        raise ValueError(f"expected {name} once; upper and lower case do not differ")
    if name.lower() in CREDENTIALS:
        raise ValueError(f"expected no {name}: a credential goes into auth, by file, environment or command")
    if name.lower() in OWN:
        raise ValueError(f"expected no {name}: the program sets it")


Headers = Annotated[Mapping[str, str], AfterValidator(check_headers), Field(repr=False)]
SinkHeaders = Annotated[Mapping[str, str], AfterValidator(check_sink_headers), Field(repr=False)]
