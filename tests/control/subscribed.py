"""A configuration with two feeds and some subscriptions, for tests of commands and statuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from poller.config.load import load
from poller.config.settings import Settings
from poller.config.validation import subscription_of
from poller.control import subscriptions as subscribing
from poller.control.subscriptions import registry_of

NOW: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
FEEDS: Final = ("acme/contractTypes", "acme/evidenceVariants")
SINK: Final = "https://sink.example.org/hook"
_SOURCE: Final = '[[sources]]\nname = "acme"\nbase_url = "https://api.example.org"\nauth = { none = true }\n'


def configured(tmp_path: Path, *ids: str) -> Settings:
    """A configuration with two feeds and these subscriptions."""
    file = tmp_path / "poller.toml"
    feeds = [f'[[sources.feeds]]\nresource = "{feed.partition("/")[2]}"' for feed in FEEDS]
    tables = [f'[[subscriptions]]\nid = "{one}"\nsink = "{SINK}"' for one in ids]
    file.write_text(_SOURCE + "\n".join([*feeds, *tables]), "utf-8")
    return load(file, {})


async def added(client: Redis, settings: Settings, subscription: str, *, since: datetime = NOW) -> None:
    """Add a subscription at run time, to the first feed, with a secret."""
    wanted = subscription_of({"id": subscription, "sink": SINK, "feeds": FEEDS[:1]}, settings, where="x")
    await subscribing.add(registry_of(settings, client), settings, wanted, secrets=["whsec_x"], now=since)
