"""An answer that is a JSON object and no list envelope: which keys it has instead.

Law: what is not ours to read may echo what we sent, the credential too, and a key may as well as a value. So of its
keys only those are repeated that lists are commonly wrapped in; all others are counted.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_COMMON: Final = re.compile(
    "data|items?|records?|results?|values?|entries|elements|contents?|list|rows|objects|hits|documents|resources|"
    "response|payload|body|embedded|pages?|paging|pagination|meta|metadata|links?|previous|cursor|"
    "next(?:cursor|page|link|(?:page|delta)?token)?|pagetoken|delta(?:token|link)|(?:total)?count|total|limit|offset|"
    "size|errors?|message|status|code|title|detail|type"
)
_JOINING_MARKS: Final = str.maketrans("", "", "_-@$.")  # what these words are joined or begun with, here and there
_LONGEST: Final = 24  # characters
_SHOWN: Final = 6
_keys: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def keys_instead(body: bytes, wanted: str) -> str | None:
    """``data, next and 2 others``, or ``none``; None where the body is no JSON object, or has the key ``wanted``."""
    try:
        found = list(_keys(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if wanted in found:
        return None
    known = [key for key in found if _COMMON.fullmatch(_plain(key))][:_SHOWN]
    others = len(found) - len(known)
    more = [f"{others} other{'s' if others > 1 else ''}"] if others else []
    named = [", ".join(known)] if known else []
    return " and ".join((*named, *more)) or "none"


def _plain(key: str) -> str:
    return key.lower().translate(_JOINING_MARKS) if len(key) <= _LONGEST else ""
