"""Laws of :mod:`poller.text`."""

from __future__ import annotations

import json
import quopri
import re
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from poller.text import SHOWN, SIGNING_SECRETS, gist, hidden, one_line, without_credentials
from tests.harness.growth import LINEAR, growth


def test_known_secrets_are_taken_out_wherever_they_stand() -> None:
    """Every occurrence of each secret is redacted, longer ones first; an empty secret redacts nothing."""
    assert hidden("abc x abc", "abc") == "[redacted] x [redacted]"
    assert hidden("abcdef abc", "abc", "abcdef") == "[redacted] [redacted]"
    assert hidden("abc", None, "") == "abc"


SECRET = "Zq8x+Lm3/Rt7k&Yh9 <é>\U0001f600cD4f=="  # noqa: S105 -- of no use anywhere


@pytest.mark.parametrize(
    "echo",
    [
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False).replace("/", "\\/"),
        json.dumps(json.dumps(SECRET).replace("/", "\\/")),
        json.dumps(SECRET).replace("=", "\\u003D").replace("&", "\\u0026").replace("/", "\\u002f"),
        quote(SECRET, safe=""),
        quote(quote(SECRET)),
        "".join(f"%{octet:02x}" for octet in SECRET.encode()),
        "Z%71" + quote(SECRET)[2:],
        re.sub("%..", lambda found: found[0].lower(), quote_plus(SECRET)),
        escape(SECRET),
        escape(escape(SECRET)),
        SECRET.replace("=", "&#61;").replace("+", "&#x2B;").replace("/", "&#x2f;"),
        quopri.encodestring(SECRET.encode()).decode(),
        "\x00".join(SECRET),
        "\u200b".join(SECRET),
    ],
)
def test_known_secrets_are_taken_out_as_frameworks_spell_them(echo: str) -> None:
    """A secret echoed in JSON, HTML, a URL or UTF-16 is redacted completely, and the rest stays."""
    told = hidden(f"no such token: {echo}, sorry", SECRET)
    assert re.fullmatch(r'no such token: [\\"]*\[redacted\][\\"]*, sorry', told)


@pytest.mark.parametrize("text", ["%5B\u200b", "a\\/b &amp; c", "=3D", "\x1b[31mred"])
def test_what_is_no_secret_stays_as_it_is_spelled(text: str) -> None:
    """A text without a secret is unchanged, including invisible characters."""
    assert hidden(text, SECRET) == text
    assert hidden(text) == text


@pytest.mark.parametrize("repeated", [SECRET[:-1], SECRET[0], "\x00", "%5C", "\\"])
def test_looking_for_a_secret_takes_time_by_the_length_of_the_text_alone(repeated: str) -> None:
    """The search for a secret is linear in the text, even one made of the secret's beginnings."""
    assert growth(lambda size: hidden(repeated * (size // len(repeated)), SECRET), 64 * 1024) < LINEAR


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sent Authorization: Bearer s3cret", "sent Authorization: Bearer [redacted]"),
        ("basic czNjcmV0OnB3", "basic [redacted]"),
        ("at https://me:s3cret@host/path?key=s3cret", "at https://[redacted]@host/path?[redacted]"),
        ("//me:s3cret@host and http:me@host", "//me:s3cret@host and http:me@host"),  # no scheme, no URL
        ("a://b/c d://e?s3cret,f://g?s3cret", "a://b/c d://e?[redacted]"),
        ("https://x?a=s3cret'https://y?b=s3cret", "https://x?[redacted]'https://y?[redacted]"),
        ("whsec_s3cret", "[redacted]"),
        *((f'\\n{prefix}s3\\/cret%3D"', '\\n[redacted]"') for prefix in SIGNING_SECRETS),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_foreign_text(text: str, shown: str) -> None:
    """Credentials are redacted by their form; URLs without a separator count as one."""
    assert without_credentials(text) == shown


@pytest.mark.parametrize("text", ["vault: permission denied", "no such file: /etc/poller/print-token.d/acme.json"])
def test_plain_words_stay(text: str) -> None:
    """Plain words are not redacted, so an operator can read the reason."""
    assert without_credentials(text) == text


def test_a_line_is_one_line_and_short() -> None:
    """White space is joined, unprintable characters are dropped, and a cut is marked."""
    assert one_line(" a\n\tb\x00\x1b[1m ") == "a b[1m"
    assert one_line("y" * 10_000) == "y" * SHOWN + "…"


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("<!DOCTYPE html><html><head><title>\n 503 &amp; so on </title></head><body>x</body>", '"503 & so on"'),
        ("\ufeff  <HTML><body>" + "<p>text</p>" * 500, ""),
        ("<!-- a --><html></html>", ""),
    ],
)
def test_of_a_page_of_markup_the_title_alone_is_told(body: str, shown: str) -> None:
    """Of an HTML page only the title is shown."""
    assert gist(body) == ("an HTML page, " + shown if shown else "an HTML page")


@pytest.mark.parametrize("begins", ["a", "a://", "a://b", "bearer ", "whsec_", "whsk_", "a://b?", "basic \t", "a://b@"])
def test_hiding_takes_time_by_the_length_of_the_text_alone(begins: str) -> None:
    """Redacting by form is linear in the text, even in one long word."""
    assert growth(lambda size: without_credentials(begins * (size // len(begins))), 2 * 1024) < LINEAR


@pytest.mark.parametrize("repeated", ["<title>", "<title", "<title>x", "<title " + "x" * 100])
def test_a_title_takes_time_by_the_length_of_the_page_alone(repeated: str) -> None:
    """The search for a title is linear in the page, even one made of title beginnings."""
    assert growth(lambda size: gist("<html>" + repeated * (size // len(repeated))), 64 * 1024) < LINEAR


@pytest.mark.parametrize("body", ['{"error":"<html>"}', "<?xml version='1.0'?><Error><Code>Gone</Code></Error>", ""])
def test_what_is_no_page_is_told_as_it_is(body: str) -> None:
    """An error in JSON, XML or words is shown as it is."""
    assert gist(body) == one_line(body)
