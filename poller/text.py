"""Text for people: secrets removed, foreign text shortened, times and sizes formatted.

**Invariants**

* Secrets are hidden in every usual spelling, and before a text is cut: half a secret would not be recognised.
* The time is linear in the length of the text, even for hostile text. So a pattern begins at rare characters (``://``),
  not at a run of letters, and never backtracks over what it has read.
* Pure: this module knows neither the source of secrets nor the destination of the text.

If the secrets are known, :func:`hidden` removes exactly these; if not, :func:`without_credentials` removes everything
that looks like one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from html import unescape
from pathlib import Path
from typing import Final

SHOWN: Final = 200  # characters of foreign text that a message repeats
_INSTEAD: Final = "[redacted]"

SIGNING_SECRETS: Final[Mapping[str, str]] = {"whsec_": "HMAC", "whsk_": "ed25519"}
"""The prefixes of signing secrets, and what each secret is for. What hides, refuses or describes them reads this."""

SIGNING_SECRET: Final = re.compile("|".join(map(re.escape, SIGNING_SECRETS)), re.IGNORECASE)
"""The beginning of a signing secret."""


def _without_query(address: re.Match[str]) -> str:
    return f"{address[1]}?{_INSTEAD}" if address[2] else address[0]


_CREDENTIALS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), r"\1 [redacted]"),
    (re.compile(r"(\w://)[^\s/@]*@"), r"\1[redacted]@"),
    # The query is optional, so that a URL without one is matched as a whole.
    (re.compile(r"(\w://[^\s?#]+)(\?[^\s#'\")]*)?"), _without_query),
    # With "%" and "\\", for in a URL or in JSON "/" and "=" may be escaped.
    (re.compile(rf"(?:{SIGNING_SECRET.pattern})[\w+/=%\\-]+", re.IGNORECASE), _INSTEAD),
)

_MARKUP: Final = re.compile(r"(?i)[\s\ufeff]*<(?:(?:!doctype html|html|head|body)\b|!--)")
_TITLE: Final = re.compile(r"(?i)<title[^<>]{0,200}>")
_TITLE_END: Final = re.compile(r"(?i)</title>")
_LONGEST_TITLE: Final = 1000


def hidden(text: str, *secrets: str | None) -> str:
    """The text without these secrets, which a server may have echoed; None and "" are no secrets."""
    bare = without = _UNSEEN.sub("", text)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):  # one may be a part of another
        without = _echo_of(secret).sub(_INSTEAD, without)
        if "%" in without:
            without = _url_echo_of(secret).sub(_INSTEAD, without)
    return text if without == bare else without  # what holds no secret stays as it is, control characters included


# Servers echo secrets in the spelling of their framework: in JSON, where some escape "/", "=" and "&"; in HTML; in a
# URL; in UTF-16, which puts a NUL beside each letter. A character that needs no escape has one spelling.

_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_UNSEEN: Final = re.compile("[\x00-\x08\x0e-\x1b\x7f\xad\u200b-\u200f\u2060-\u2064\ufeff]+")
_ENTITIES: Final = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos", "/": "sol", "=": "equals", "+": "plus"}


@lru_cache(maxsize=256)
def _echo_of(secret: str) -> re.Pattern[str]:
    """A pattern that matches a secret in every usual spelling, in linear time."""
    return re.compile("".join(map(_spellings, secret)))


@lru_cache(maxsize=256)
def _url_echo_of(secret: str) -> re.Pattern[str]:
    """What matches a secret in a URL, where any character may be percent-encoded, letters too, once or twice."""
    return re.compile("".join(f"(?:{_encoded(character)}|{re.escape(character)})" for character in secret))


def _encoded(character: str) -> str:
    octets = character.encode("utf-8", "surrogatepass")
    return "".join(f"%(?:25)?{_hex(f'{octet:02x}')}" for octet in octets)


def _spellings(character: str) -> str:
    if character in _PLAIN:
        return character if character.isalnum() else re.escape(character)
    number = ord(character)
    units = character.encode("utf-16-be", "surrogatepass")
    octets = character.encode("utf-8", "surrogatepass")
    found = [
        r"\\{1,3}u" + r"\\{1,3}u".join(_hex(units[at : at + 2].hex()) for at in range(0, len(units), 2)),
        _encoded(character),
        "".join(f"={_hex(f'{octet:02x}')}" for octet in octets),
        f"&(?:amp;)?#(?:0{{0,4}}{number}|[xX]0{{0,4}}{_hex(f'{number:x}')});",
    ]
    if name := _ENTITIES.get(character):
        found.append(f"&(?:amp;)?{name};")
    if character == " ":
        found.append(r"\+")
    found.append(rf"\\{{0,3}}{re.escape(character)}")  # last, because others may begin with it
    return f"(?:{'|'.join(found)})"


def _hex(digits: str) -> str:
    return "".join(digit if digit.isdigit() else f"[{digit}{digit.upper()}]" for digit in digits)


def without_credentials(text: str) -> str:
    """The text without ``Authorization`` values, user information and queries of URLs, and signing secrets."""
    for pattern, instead in _CREDENTIALS:
        text = pattern.sub(instead, text)
    return text


_SECRET_LOOK: Final = re.compile(
    SIGNING_SECRET.pattern
    + r"|-----BEGIN|\b(?:bearer|basic) |\beyJ|(?<![A-Za-z])(?:gh[opusr]_|glpat-|sk-|sk_|pk_|xox[abp]-|AKIA)",
    re.IGNORECASE,
)
_SECRET_BEGINS: Final = re.compile(
    SIGNING_SECRET.pattern
    + r"|-----BEGIN|(?:bearer|basic) |eyJ[\w-]{10}|(?:gh[opusr]_|glpat-|sk[-_]|pk_|xox[abp]-|AKIA)[\w-]{12,}\Z",
    re.IGNORECASE,
)
_RUN: Final = re.compile(r"[A-Za-z0-9_+/=-]{20,}")
_LONG_PART: Final = re.compile(r"(?:^|/)[A-Za-z0-9_+=-]{20,}")
_DIGIT: Final = re.compile(r"[0-9]")
_LETTER: Final = re.compile(r"[A-Za-z]")


def looks_secret(text: str) -> bool:
    """Whether something in it has the form of a secret, or is long and looks drawn at random."""
    return bool(_SECRET_LOOK.search(text)) or any(_looks_random(run[0]) for run in _RUN.finditer(text))


_NO_FILE: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG, errno.ENOTDIR})


def is_secret_path(path: Path, error: OSError) -> bool:
    """Whether the error says that there is no such file, and the path may be a secret in the place of a path.

    A "/" in a secret makes directories of its parts.
    """
    looks = looks_secret(path.name) or any(part.isalnum() and looks_secret(part) for part in path.parts)
    return error.errno in _NO_FILE and looks


def shown_path(path: Path, error: OSError) -> str:
    """The path of a file that cannot be used, for a message; see :func:`is_secret_path`."""
    return "…, which looks like a secret and is not shown" if is_secret_path(path, error) else str(path)


def is_secret(text: str) -> bool:
    """Whether all of it has the form of a secret that nothing else has."""
    return bool(_SECRET_BEGINS.match(text.strip()))


def _looks_random(run: str) -> bool:
    """Whether it has a long part, with letters and digits from there on.

    One pattern that looks ahead from each character would take time by the square of the length.
    """
    part = _LONG_PART.search(run)
    return part is not None and bool(_DIGIT.search(run, part.start()) and _LETTER.search(run, part.start()))


def one_line(text: str) -> str:
    """Foreign text fit for a message: white space joined, printable, at most :data:`SHOWN` characters and a mark."""
    text = "".join(filter(str.isprintable, " ".join(text[: 4 * SHOWN].split())))
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def gist(text: str) -> str:
    """A short form of a body for a message: the title of an HTML page, else :func:`one_line`."""
    if not _MARKUP.match(text):
        return one_line(text)
    begins = _TITLE.search(text)
    ends = begins and _TITLE_END.search(text, begins.end(), begins.end() + _LONGEST_TITLE)
    title = one_line(unescape(text[begins.end() : ends.start()])) if begins and ends else ""
    return f'an HTML page, "{title}"' if title else "an HTML page"


# Spans of time, and sizes, for people.

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES: Final = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def ago(seconds: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``2 d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """``512 B``, ``4.0 KiB``, ``1.2 GiB``."""
    for unit, name in _SIZES:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


_MILLION: Final = 1_000_000


def short_number(number: int) -> str:
    """``12345``, ``1.2 M``."""
    return str(number) if number < _MILLION else f"{number / _MILLION:.1f} M"
