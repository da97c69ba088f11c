"""Laws of the search for secrets: it finds them in every spelling, and reports nothing else."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from tests.harness.leaks import leaks

SECRETS = {"token": "s3cret/of the+source äöü", "other": "0123456789abcdef0123456789"}


@pytest.mark.parametrize(
    "text",
    [
        f"GET /?token={SECRETS['token']} failed",
        quote(SECRETS["token"], safe=""),
        json.dumps({"error": SECRETS["token"]}),
        base64.b64encode(SECRETS["token"].encode()).decode(),
        SECRETS["token"][:12],
        f"…{SECRETS['token'][12:]}",
    ],
)
def test_each_spelling_is_found(text: str) -> None:
    """A secret is found and named in any spelling, whole or truncated."""
    assert {one.partition(",")[0] for one in leaks(SECRETS, text)} == {"token"}
    assert leaks({"other": SECRETS["other"]}, text) == []


def test_what_cannot_be_told_from_words_is_no_secret() -> None:
    """A secret too short to be distinguished from words is refused."""
    with pytest.raises(AssertionError):
        leaks({"token": "sandbox"}, "")
