"""``poller subscriptions add``, ``remove``, ``pause`` and ``resume``: changes that a running daemon takes over."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import typer

from poller.cli.escaping import escaped
from poller.cli.loop import run
from poller.cli.options import Asked, named_feeds
from poller.cli.output import say
from poller.config.errors import shown_key
from poller.config.http import host_only
from poller.config.load import based
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import repeated_keys, subscription_of
from poller.control import subscriptions as subscribing
from poller.control.status import SubscriptionStatus, subscription_statuses
from poller.control.subscriptions import registry_of
from poller.delivery.signing import new_secret
from poller.errors import ConfigurationError, PollerError
from poller.http.ssrf import PRIVATE
from poller.store.session import STORE_PATIENCE, OpenStore, opened_store, until_ready
from poller.store.subscriptions import Paused

_SECRET_BYTES: Final = 32

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options of ``add`` say, as they were typed.

    Attributes:
        values: keys of the table whose value is the option's; None where nothing was said.
        feeds: ``SOURCE/NAME`` or ``NAME``.
        filters: each a JSON object.
        headers: each ``NAME: VALUE``.
        secret_files: relative ones are meant from here.
    """

    values: Mapping[str, Any]
    feeds: Sequence[str]
    filters: Sequence[str]
    headers: Sequence[str]
    secret_files: Sequence[Path]

    @property
    def anything(self) -> bool:
        """Whether anything was said."""
        some = (self.feeds, self.filters, self.headers, self.secret_files)
        return any(some) or any(value is not None for value in self.values.values())


def add_one(asked: Asked, wanted: Wanted, *, from_json: str | None, unsigned: bool) -> None:
    """Add it, and show the secret that was made for it, where one was.

    Raises:
        ConfigurationError: something is set up wrongly, the subscription cannot be used, or there is one of its id.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    if from_json is None:
        one = _of_options(wanted, settings)
    else:
        where = "standard input" if from_json == "-" else from_json
        one = subscription_of(_of_json(_text(from_json), where), settings, where=where)
    one = based(one, Path.cwd())  # whoever reads it in the registry was started elsewhere
    made = [] if unsigned or one.secret_files else [new_secret(secrets.token_bytes(_SECRET_BYTES))]
    run(_add(settings, one, made))
    say(f"{one.id}: added; a running daemon begins to deliver to {host_only(one.sink)}")
    for secret in made:
        say(f"secret  {secret}")
        say("It signs each request. Keep it now: it is not shown again.")


def remove_one(asked: Asked, subscription: str, *, sure: bool) -> None:
    """Delete one and all that waits for it, if whoever is asked agrees.

    Raises:
        ConfigurationError: something is set up wrongly, there is no such subscription, it is in the file, or nobody is
            there to be asked.
        PollerError: whoever was asked said no, or the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    status = run(_removable(settings, subscription))
    if not sure and not _confirmed(status):
        raise PollerError(f"{subscription}: not removed")
    run(_with_store(settings, lambda store: subscribing.remove(store.client, settings, subscription)))
    say(f"{subscription}: removed")


def pause_one(asked: Asked, subscription: str, *, reason: str) -> None:
    """Pause it.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such subscription.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    before = run(
        _with_store(
            settings,
            lambda store: subscribing.pause(store.client, settings, subscription, reason=reason, now=store.clock.now()),
        )
    )
    if before is None:
        say(f"{subscription}: paused; its events wait until `poller subscriptions resume {subscription}`")
    else:
        say(f"{subscription}: was paused already, {_why(before)}")


def resume_one(asked: Asked, subscription: str) -> None:
    """Let it go on.

    Raises:
        ConfigurationError: something is set up wrongly, there is no such subscription, or the file has it no more.
        StoreError: the store is away.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    before = run(
        _with_store(
            settings, lambda store: subscribing.resume(store.client, settings, subscription, now=store.clock.now())
        )
    )
    if before is None:
        say(f"{subscription}: was not paused")
    else:
        say(f"{subscription}: goes on where it was; it had been paused {_why(before)}")


def _of_options(wanted: Wanted, settings: Settings) -> SubscriptionSettings:
    """The subscription that they make; what is wrong with it is said in the words of a command line."""
    try:
        return subscription_of(_table(wanted, settings), settings, where="subscription")
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace(PRIVATE, "--allow-private")) from None


def _table(wanted: Wanted, settings: Settings) -> dict[str, Any]:
    table = {name: value for name, value in wanted.values.items() if value is not None}
    more: dict[str, Any] = {
        "feeds": list(named_feeds(settings, list(wanted.feeds))) if wanted.feeds else [],
        "filters": [_of_json(text, "--filter") for text in wanted.filters],
        "headers": dict(map(_header, wanted.headers)),
        "secret_files": [str(file) for file in wanted.secret_files],
    }
    return table | {name: value for name, value in more.items() if value}


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigurationError('--header: expected "NAME: VALUE"')
    return name.strip(), value.strip()


def _text(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{source}: expected text in UTF-8") from None


def _of_json(text: str, where: str) -> Any:
    try:
        made = msgspec.json.decode(text)
        twice = [shown_key(key) for key in repeated_keys(text)]
    except (msgspec.DecodeError, RecursionError):
        raise ConfigurationError(f"{where}: expected a JSON object") from None
    if twice:
        raise ConfigurationError(f"{where}: {', '.join(twice)}: expected once: this key stands twice")
    return made


def _confirmed(status: SubscriptionStatus) -> bool:
    waiting = (status.lag_entries or 0) + status.parked
    what = f"{waiting} events that are not delivered and {status.dead_letters} dead letters"
    try:
        return typer.confirm(f"{status.subscription}: remove it, with {what}?", err=True)
    except typer.Abort as aborted:
        if not isinstance(aborted.__context__, EOFError):
            raise  # Ctrl-C: whoever was asked is there, and wants out
        raise ConfigurationError("nobody is there to be asked; --yes removes it without") from None


def _why(pause: Paused) -> str:
    return f"{pause.at:%Y-%m-%d %H:%M} UTC ({pause.by}): {escaped(pause.reason)}"


async def _add(settings: Settings, one: SubscriptionSettings, made: Sequence[str]) -> None:
    await _with_store(
        settings,
        lambda store: subscribing.add(
            registry_of(settings, store.client), settings, one, secrets=made, now=store.clock.now()
        ),
    )


async def _removable(settings: Settings, subscription: str) -> SubscriptionStatus:
    async def look(store: OpenStore) -> SubscriptionStatus:
        subscribing.refuse_filed(await registry_of(settings, store.client).all(), settings, subscription)
        found = await subscription_statuses(store.client, settings, now=store.clock.now())
        return next(one for one in found if one.subscription == subscription)

    return await _with_store(settings, look)


async def _with_store(settings: Settings, ask: Callable[[OpenStore], Awaitable[T]]) -> T:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        return await ask(store)
