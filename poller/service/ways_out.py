"""What an operator can do about what a source, or the store, has answered.

The messages are those of this program, as rounds leave them in the state and ``poller check`` finds them; each way out
goes by the words that one of them is known to hold. What is not known has none.

Pure.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

CLOCK_APART: Final = 60.0
"""Seconds. ``Date`` is of whole ones, and a proxy may have kept the answer for a while."""

_SOURCE: Final[tuple[tuple[str, str], ...]] = (
    (r"the API answered 401\b", "is the credential in auth right, and not expired?"),
    (r"the API answered 403\b", "the credential is known, and may not read this: ask the API's owner for the right"),
    (r"the API answered 404\b", "is base_url right, and path, if it is set? Does the API have this resource?"),
    (r"the API answered 30[12378]\b", "redirects are not followed: set base_url to where this one leads"),
    (r"the API answered 407\b", "the proxy wants a credential: proxy = http://USER:PASSWORD@HOST:PORT"),
    (r"the API answered 4(?:00|13|14|22)\b", "it does not take the request: look at limit, fields and fields_style"),
    (r"the API answered 429\b", "it is asked too often: set rate, or a longer interval"),
    (r"the API answered 5\d\d\b", "it fails by itself: nothing is to be done here; the next round tries again"),
    (
        r"of markup|<html|<!doctype",
        "a page for people, not the API: is base_url right, or is a login or proxy in between?",
    ),
    (
        r"expected the key results",
        'no {"results": […], "pageToken": "…", "deltaToken": "…"}: are lists wrapped otherwise here, or is path wrong?',
    ),
    (r"not JSON|not a list envelope", "this is no list of records: is base_url right, and path, if it is set?"),
    (r"(?i)certificate|self.signed", "set ca_file to the authority's certificate, or correct the name in base_url"),
    (r"(?i)wrong version number|record layer", "no TLS is spoken there: is it http://, or another port?"),
    (r"(?i)name or service|getaddrinfo|resolve|nodename|DNS", "is the host's name in base_url right, and known here?"),
    (
        r"(?i)server disconnected",
        "it hangs up without an answer: is it https://, or another port? Does it want a client certificate?",
    ),
    (r"the answer is not HTTP\b", "no web server answers there: are scheme, host and port in base_url right?"),
    (r"the proxy answered 407\b", "the proxy wants a credential: proxy = http://USER:PASSWORD@HOST:PORT"),
    (r"(?i)connection refused|connect call failed", "nothing listens there: are host and port in base_url right?"),
    (r"(?i)no complete answer|timeout|timed out", "raise timeout, or look whether a firewall drops what is sent"),
    (r"max_page_bytes", "set a smaller limit, or a larger max_page_bytes"),
)
_KNOWN: Final = tuple((re.compile(pattern), text) for pattern, text in _SOURCE)


def way_out(message: str, *, proxied: bool = False) -> str | None:
    """What can be done about the failure of a round, or of a first page; None where nothing more is known.

    Args:
        message: of the failure.
        proxied: whether the source is known to be asked through a proxy.
    """
    if proxied and "cannot connect to" in message:
        return "is proxy right, and does it run and let this machine through?"
    return next((text for pattern, text in _KNOWN if pattern.search(message)), None)


def clock_apart(date: str | None, *, now: datetime) -> str | None:
    """The words where an answer's ``Date`` and our clock are far apart; None where they are not, or nobody can tell."""
    try:
        sent = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    seconds = ((sent if sent.tzinfo else sent.replace(tzinfo=UTC)) - now).total_seconds()
    if abs(seconds) <= CLOCK_APART:
        return None
    which = "ahead of" if seconds > 0 else "behind"
    return f"its clock is {abs(seconds):.0f} s {which} this machine's (by the Date of its answer): set both by NTP"
