"""Laws of :mod:`poller.text`."""

from __future__ import annotations

import pytest

from poller.text import SHOWN, gist, hidden, one_line, without_credentials, without_suspects


def test_known_secrets_are_taken_out_wherever_they_stand() -> None:
    """Every place of each, the longer first, for one may be a part of another; nothing is no secret."""
    assert hidden("abc x abc", "abc") == "[redacted] x [redacted]"
    assert hidden("abcdef abc", "abc", "abcdef") == "[redacted] [redacted]"
    assert hidden("abc", None, "") == "abc"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sent Authorization: Bearer s3cret", "sent Authorization: Bearer [redacted]"),
        ("basic czNjcmV0OnB3", "basic [redacted]"),
        ("at https://me:s3cret@host/path?key=s3cret", "at https://[redacted]@host/path?[redacted]"),
        ("TOKEN=s3cret is wrong", "TOKEN=[redacted] is wrong"),
        ('{"client_secret": "s3cret"}', '{"client_secret": [redacted]'),
        ("--api-key:s3cret", "--api-key:[redacted]"),
        ("passwd = s3cret", "passwd = [redacted]"),
        ("got eyJhbGciOi.eyJzdWIi.s3cret-x", "got [redacted]"),
        ("s3cret0123456789abcdefghijk", "[redacted]"),
        ("whsec_s3cret", "[redacted]"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_foreign_text(text: str, shown: str) -> None:
    """By its name, by its form, by its length."""
    assert without_suspects(text) == shown


@pytest.mark.parametrize("text", ["vault: permission denied", "no such file: /etc/poller/print-token.d/acme.json"])
def test_plain_words_stay(text: str) -> None:
    """An operator still reads what is wrong."""
    assert without_suspects(text) == without_credentials(text) == text


def test_a_line_is_one_line_and_short() -> None:
    """White space is joined, what cannot be printed goes, the end is marked where it is cut."""
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
    """The rest is for a browser."""
    assert gist(body) == ("a page of markup, " + shown if shown else "a page of markup")


@pytest.mark.parametrize("body", ['{"error":"<html>"}', "<?xml version='1.0'?><Error><Code>Gone</Code></Error>", ""])
def test_what_is_no_page_is_told_as_it_is(body: str) -> None:
    """An error in JSON, in XML or in words says what is wrong."""
    assert gist(body) == one_line(body)
