"""``poller subscriptions list`` and ``show``.

Law: of settings nothing is shown that may be a secret: no header's value, no place of a secret, no path of a sink.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from poller.cli.escaping import escaped
from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say, say_json, say_styled, width
from poller.cli.subscription_lines import backlog_lines, list_lines, reasons
from poller.config.errors import sounds_secret
from poller.config.http import host_only, redacted
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.control.sinks import public_keys_of
from poller.control.status import SubscriptionStatus, subscription_statuses
from poller.control.subscriptions import registry_of, settings_of
from poller.errors import SubscriptionUnknown
from poller.store.session import STORE_PATIENCE, opened_store, until_ready
from poller.store.subscriptions import Subscriptions, require_registered

_ALWAYS: Final = ("id", "sink", "feeds", "types", "filters", "rate")
_NONE: Final = {"feeds": "all", "types": "all", "rate": "unlimited"}


def show_list(asked: Asked, *, json: bool) -> None:
    """Show all of them.

    JSON: one object a line with the keys of :class:`~poller.control.status.SubscriptionStatus`.

    Raises:
        ConfigurationError: something is set up wrongly.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    found, _, now = run(_read(asked.settings()))
    if json:
        for one in found:
            say_json(one)
    elif found:
        for line in list_lines(found, now, width()):
            say_styled(line)
    else:
        say("no subscriptions")


def show_one(asked: Asked, subscription: str) -> None:
    """Show what is set and how it does.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such subscription.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    found, kept, now = run(_read(settings))
    status = next((one for one in found if one.subscription == subscription), None)
    if status is None:
        require_registered(kept, subscription)
        raise SubscriptionUnknown(f'there is no subscription "{subscription}"')
    one = settings_of(kept, settings, subscription)
    for name, text in _settings_lines(one):
        say(f"{name:<14}  {escaped(text)}")
    for key in public_keys_of(one, kept.secrets.get(subscription, ())):
        say(f"{'public key':<14}  {key} (verifies v1a signatures)")
    say("")
    for name, text in _state_lines(status, kept, now, files=len(one.secret_files)):
        say(f"{name:<14}  {text}")
    say("")
    for line in backlog_lines(status.feeds, width()):
        say_styled(line)


async def _read(settings: Settings) -> tuple[list[SubscriptionStatus], Subscriptions, datetime]:
    """How they do, what is kept of them, and when that was so by the store's clock."""
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        now = store.clock.now()
        found = await subscription_statuses(store.client, settings, now=now)
        return found, await registry_of(settings, store.client).all(), now


def _settings_lines(one: SubscriptionSettings) -> Iterator[tuple[str, str]]:
    values: Mapping[str, Any] = one.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in dict.fromkeys((*_ALWAYS, *values)):
        yield name, _shown(name, values.get(name), one)


def _shown(name: str, value: Any, one: SubscriptionSettings) -> str:
    if value in (None, [], {}):
        return _NONE.get(name, "none")
    if name == "auth":
        return f"by {one.auth.kind}" if one.auth.kind != "none" else "none"
    if name == "headers" or sounds_secret(name):
        hidden = f"{len(value)}, not shown" if isinstance(value, list) else "…"
        return ", ".join(f"{header}: …" for header in value) if name == "headers" else hidden
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return ", ".join(value)
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return host_only(value) if name == "sink" else redacted(value)


def _state_lines(
    status: SubscriptionStatus, kept: Subscriptions, now: datetime, *, files: int
) -> Iterator[tuple[str, str]]:
    registered = kept.registered.get(status.subscription)
    yield "from", "the configuration file" if status.origin == "file" else "added at run time"
    yield "since", "-" if registered is None else f"{registered.since:%Y-%m-%dT%H:%M:%SZ}"
    yield "state", status.state
    for reason in reasons(status, now):
        yield "", reason
    own = len(kept.secrets.get(status.subscription, ()))
    secrets = [f"{own} made here"] if own else []
    secrets += [f"{files} in {'files' if files > 1 else 'a file'}"] if files else []
    yield "secrets", ", ".join(secrets) or "none, its requests are not signed"
    if status.subscription in kept.credentials:
        yield "credential", "brought by a request, not shown"
    yield "handshake", status.handshake or "not asked for"
    if status.subscription in kept.health:
        yield "attempts", f"{status.delivered} delivered, {status.failed} failed, when last noted"
