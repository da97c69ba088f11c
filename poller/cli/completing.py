"""What the shell offers after the Tab key where a feed or a subscription is meant.

Law: an answer within a blink, or none. The file is read without being checked, a store is asked once with a short
patience, and whatever goes wrong offers nothing and says nothing: the terminal belongs to the line being typed.

So it imports next to nothing, not even the configuration's own modules, which take longer than all else here.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

RESOURCES: Final = ("contractTypes", "evidenceVariants", "employmentUnavailabilities", "achievements")
"""Of the source that the environment alone makes."""

PATIENCE_SECONDS: Final = 0.1


def feeds(context: typer.Context, incomplete: str) -> list[str]:
    """Feeds as ``SOURCE/NAME``, and as ``NAME`` where that is what was begun."""
    return _offered(lambda: _feeds(configuration(context)), incomplete)


def subscriptions(context: typer.Context, incomplete: str) -> list[str]:
    """Ids of subscriptions, of the file and added at run time."""
    return _offered(lambda: _subscriptions(configuration(context)), incomplete)


def _offered(found: Callable[[], Iterator[str]], incomplete: str) -> list[str]:
    try:
        return sorted({name for name in found() if name.startswith(incomplete)})
    except Exception:  # noqa: BLE001 -- see above: nothing is said
        return []


def _feeds(file: Mapping[str, Any]) -> Iterator[str]:
    sources = file.get("sources") or []
    if not sources and os.environ.get("POLLER_BASE_URL"):
        sources = [{"name": "default", "feeds": [{"resource": name} for name in RESOURCES]}]
    for source in sources:
        for feed in source.get("feeds") or []:
            name = feed.get("name") or feed["resource"]
            yield f"{source['name']}/{name}"
            yield str(name)


def _subscriptions(file: Mapping[str, Any]) -> Iterator[str]:
    for one in file.get("subscriptions") or []:
        yield str(one["id"])
    yield from _registered(file)


def _registered(file: Mapping[str, Any]) -> Iterator[str]:
    """Those that a single server knows; whoever has Sentinels or a Cluster is offered those of the file."""
    table = file.get("redis") or {}
    url = os.environ.get("REDIS_URL") or table.get("url") or _embedded(file)
    if not str(url).startswith(("redis://", "rediss://", "unix://")):
        return
    from redis import Redis  # noqa: PLC0415 -- late: it takes longer than all else here
    from redis.exceptions import RedisError  # noqa: PLC0415 -- likewise

    patience = {"socket_timeout": PATIENCE_SECONDS, "socket_connect_timeout": PATIENCE_SECONDS}
    try:
        with Redis.from_url(str(url), retry=None, **patience) as client:
            key = f"{table.get('prefix') or 'poller'}:{{subscriptions}}:registry"
            names: Any = client.hkeys(key)
    except (RedisError, OSError, ValueError):
        return
    yield from (name.decode() for name in names)


def _embedded(file: Mapping[str, Any]) -> str | None:
    """Where the embedded server listens, if its directory was said."""
    directory = os.environ.get("POLLER_DATA_DIR") or (file.get("embedded") or {}).get("data_dir")
    return f"unix://{Path(directory).absolute() / 'valkey.sock'}" if directory else None


def configuration(context: typer.Context) -> dict[str, Any]:
    """The file that the line names, else that which counts, its directory made absolute; empty where there is none."""
    named = context.params.get("config") or (context.parent and context.parent.params.get("config"))
    path = Path(str(named or os.environ.get("POLLER_CONFIG") or "poller.toml"))
    file = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    embedded = file.get("embedded")
    if isinstance(embedded, dict) and isinstance(embedded.get("data_dir"), str):
        embedded["data_dir"] = str(path.absolute().parent / embedded["data_dir"])
    return file
