"""Laws of :mod:`poller.source.validators`."""

from __future__ import annotations

import httpx
import pytest

from poller.source.validators import validators_of

CHANGED = "Sat, 01 Mar 2025 12:00:00 GMT"
MINUTE_LATER = "Sat, 01 Mar 2025 12:01:00 GMT"
TOO_SOON = "Sat, 01 Mar 2025 12:00:59 GMT"
MODIFIED = {"Last-Modified": CHANGED, "Date": MINUTE_LATER}


@pytest.mark.parametrize(
    ("sent", "condition"),
    [
        ({"ETag": '"a"'}, {"If-None-Match": '"a"'}),
        ({"ETag": 'W/"a!#~"'}, {"If-None-Match": 'W/"a!#~"'}),
        ({"ETag": '"a"', **MODIFIED}, {"If-None-Match": '"a"'}),
        (MODIFIED, {"If-Modified-Since": CHANGED}),
        ({"ETag": "bare", **MODIFIED}, {"If-Modified-Since": CHANGED}),
        ({}, {}),
        ({"ETag": ""}, {}),
        ({"ETag": '""'}, {}),
        ({"ETag": 'W/""'}, {}),
        ({"ETag": "*"}, {}),
        ({"ETag": '"a", "b"'}, {}),
        ({"ETag": '"a b"'}, {}),
        ({"ETag": '"' + "a" * 1025 + '"'}, {}),
        ({"Last-Modified": CHANGED}, {}),
        ({"Last-Modified": CHANGED, "Date": TOO_SOON}, {}),
        ({"Last-Modified": MINUTE_LATER, "Date": CHANGED}, {}),
        ({"Last-Modified": "lately", "Date": CHANGED}, {}),
        ({"Date": CHANGED}, {}),
    ],
)
def test_what_an_answer_says_of_its_version(sent: dict[str, str], condition: dict[str, str]) -> None:
    """An entity tag as it is; else a date that is long past; else nothing, for a 304 may never hide a change."""
    assert validators_of(httpx.Headers(sent)).headers == condition
