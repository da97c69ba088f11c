"""Searches a text for secrets, in any spelling in which a secret may appear. Pure."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHORTEST = 12
"""Characters; shorter texts would be found by chance."""


def leaks(secrets: Mapping[str, str], text: str) -> list[str]:
    """The names of the secrets in the text, each with the spelling that was found.

    Args:
        secrets: by name.
        text: to search.
    """
    found = ((name, how) for name, secret in secrets.items() for how, one in spellings(secret).items() if one in text)
    return [f"{name}, {how}" for name, how in found]


def spellings(secret: str) -> dict[str, str]:
    """A secret as it is, as URLs, JSON, headers and signatures hold it, and its halves, in case it is truncated."""
    assert len(secret) >= 2 * _SHORTEST, "a part of the secret would be found by chance"
    raw = secret.encode()
    half = len(secret) // 2
    return {
        "as it is": secret,
        "its first half": secret[:half],
        "its second half": secret[half:],
        "in a URL": quote(secret, safe=""),
        "in a form": quote_plus(secret),
        "in JSON": json.dumps(secret)[1:-1],
        "in base64": base64.b64encode(raw).decode().rstrip("="),
        "in base64 after a user": base64.b64encode(b"xx:" + raw)[4:].decode().rstrip("="),
        "in hexadecimal": raw.hex(),
    }
