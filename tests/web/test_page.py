"""Laws of the page: it says in words how things are, runs no script, and escapes foreign text."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from poller.control.status import feed_statuses, subscription_statuses
from poller.daemon.health import Readiness, StoreMonitor
from poller.web.status import FRESH, Overview, OverviewCache, page
from tests.harness.clock import StubClock
from tests.web.served import FEEDS, NOW, Served, configured, served

EVIL = "<script>alert(1)</script>\"'&"


class Read(HTMLParser):
    """The tags of a page, and its text outside the style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(not name.startswith("on") and name != "style" for name, _ in attrs)
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.text += f"{data} "


async def seen_of(given: Served, **differing: object) -> Overview:
    feeds = await feed_statuses(given.store, given.settings, now=NOW)
    found = await subscription_statuses(given.store, given.settings, now=NOW)
    one = Overview(NOW, ready=True, feeds=tuple(feeds), subscriptions=tuple(found))
    return msgspec.structs.replace(one, **differing)


async def test_it_says_how_it_is(given: Served) -> None:
    """The title and the rows of the page describe problems in words, or say that there are none."""
    one = await seen_of(given)
    assert "all is well" in Read(page(one)).text
    failing = msgspec.structs.replace(one.feeds[0], state="failing", error="status 500", good_age_seconds=300.0)
    (active,) = one.subscriptions
    paused = msgspec.structs.replace(active, state="paused", paused_by="sink", reason="410", lag_entries=3)
    text = Read(page(msgspec.structs.replace(one, feeds=(failing,), subscriptions=(paused,)))).text
    for word in ("2 problems", "failing", "status 500", "5 min ago", "paused", "paused by its sink: 410", "3"):
        assert word in text
    ailing = msgspec.structs.replace(active, state="failing", since="2026-03-02T08:15:00Z", error="no such file")
    text = Read(page(msgspec.structs.replace(one, subscriptions=(ailing,)))).text
    assert "failing for 0 s; last error: no such file" in text
    reason = "12 of 60 are missing; poller release acme/x"
    held = msgspec.structs.replace(one.feeds[0], state="held", held_reason=reason, held_age_seconds=7200.0)
    for error in (None, reason):
        held = msgspec.structs.replace(held, error=error)
        text = Read(page(msgspec.structs.replace(one, feeds=(held,)))).text
        assert f"held for 2 h: {reason}" in text
        assert text.count(reason) == 1
    away = Read(page(Overview(NOW, ready=False, reasons=("store: away",)))).text
    assert "not ready" in away
    assert "store: away" in away


async def test_nothing_breaks_out(given: Served) -> None:
    """Foreign text is escaped wherever it comes from."""
    one = await seen_of(given)
    feed, _ = one.feeds
    feed = msgspec.structs.replace(feed, feed=EVIL, state="failing", error=EVIL, lost=EVIL, lost_age_seconds=1.0)
    subscription = msgspec.structs.replace(
        one.subscriptions[0], subscription=EVIL, state="paused", paused_by="sink", reason=EVIL
    )
    html = page(msgspec.structs.replace(one, feeds=(feed,), subscriptions=(subscription,), reasons=(EVIL,)))
    assert "script" not in Read(html).tags
    assert Read(html).text.count("alert(1)") >= 6


async def test_its_policy(given: Served) -> None:
    """The policy allows no script, no fetch, and the one style by its hash; the page has marks for screen readers."""
    status, headers, html = await given.ask("/", token=None)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style
    policy = headers["content-security-policy"]
    assert f"'sha256-{b64encode(hashlib.sha256(style[1].encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    kept = ('<html lang="en">', 'name="viewport"', 'http-equiv="refresh"', 'scope="col"', 'scope="row"', "<main>")
    assert all(needed in html for needed in kept)
    assert "s3cret" not in html
    assert all(feed in html for feed in FEEDS)


async def test_it_is_there_while_the_store_is_away(tmp_path: Path, store_url: str) -> None:
    """The page is served while the store is unavailable, and says so."""
    async with served(configured(tmp_path, store_url), store=False) as given:
        status, _, html = await given.ask("/")
        assert status == 200
        assert "has not answered yet" in html


async def test_however_many_look(given: Served) -> None:
    """The store is queried once for all readers of the page at a moment, and again when that answer is old."""
    now = [0.0]
    readiness = Readiness(StoreMonitor("warn", clock=StubClock(now=lambda: NOW, monotonic=lambda: 0.0)))
    glances = OverviewCache(given.backing, readiness, clock=StubClock(monotonic=lambda: now[0]))
    first = await glances.latest()
    assert await glances.latest() is first
    now[0] += FRESH
    assert await glances.latest() is not first
