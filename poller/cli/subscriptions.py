"""``poller subscriptions``: lists, shows, adds, removes, pauses, resumes and tests subscriptions.

A running daemon applies each change.

**Invariants**

- No setting that may be secret is shown: no header's value, no location of a secret, no path of a sink, no credential,
  no signature as a whole.
- Foreign text (what a sink answers) cannot control the terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from poller.cli.options import (
    CommandLine,
    GlobalOptions,
    Json,
    Yes,
    complete_feeds,
    complete_subscriptions,
    confirm,
    named_feeds,
    run_loop,
    text_of,
)
from poller.cli.output import count, escaped, legible, warn, width, write_json, write_line, write_styled
from poller.cli.status import backlog_lines, list_lines
from poller.errors import ConfigurationError, PollerError, StoreUnavailable, SubscriptionUnknown

if TYPE_CHECKING:
    from poller.config.settings import Settings
    from poller.config.subscriptions import SubscriptionSettings
    from poller.control.status import SubscriptionStatus
    from poller.control.subscriptions import ScheduledAttempts
    from poller.delivery.sinks.base import Outcome
    from poller.store.session import OpenStore
    from poller.store.subscriptions import Paused, Subscriptions

_ALWAYS: Final = ("id", "sink", "feeds", "types", "filters", "when", "fields", "thin", "rate")
_NONE: Final = {"feeds": "all", "types": "all", "when": "always", "fields": "all", "rate": "unlimited"}
_SECRET_BYTES: Final = 32
_PERHAPS: Final = (
    "the store became unavailable, and the subscription may have been added: {error}. If `poller subscriptions show "
    "{id}` knows it, remove it before you add it again: a secret is shown only once, and was not shown"
)

_Id = Annotated[str, typer.Argument(metavar="ID", help="The subscription's id.", autocompletion=complete_subscriptions)]
_Texts = list[str] | None

app = CommandLine(name="subscriptions", help="List, add, change and test webhook subscriptions.")


@app.command("list", example="subscriptions list --json")
async def list_(options: GlobalOptions, *, json: Json = False) -> None:
    """List them with state, lag and sink."""
    from poller.control.problems import unmatched_stored
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        found, kept, now = await _read(settings, store)
    if json:
        for one in found:
            write_json(one)
    elif found:
        for line in list_lines(found, now, width(), unmatched_stored(settings, kept)):
            write_styled(line)
    else:
        write_line("no subscriptions")


@app.command(example="subscriptions show rostering")
async def show(options: GlobalOptions, subscription: _Id) -> None:
    """Show one: its settings, its state, and what waits at each feed."""
    from poller.control.factories import public_keys_of
    from poller.control.problems import subscription_problems, unmatched_choices
    from poller.control.subscriptions import scheduled_attempts, settings_of
    from poller.store.session import ready_store
    from poller.store.subscriptions import require_registered

    settings = options.settings()
    async with ready_store(settings) as store:
        found, kept, now = await _read(settings, store)
        known = subscription in kept.registered
        waiting = await scheduled_attempts(store.client, settings, kept, subscription, now=now) if known else None
    status = next((one for one in found if one.subscription == subscription), None)
    if status is None:
        require_registered(kept, subscription)
        raise SubscriptionUnknown(f'there is no subscription "{subscription}"')
    one = settings_of(kept, settings, subscription)
    for name, text in _settings_lines(one):
        write_line(f"{name:<14}  {escaped(text)}")
    for key in public_keys_of(one, kept.secrets.get(subscription, ())):
        write_line(f"{'public key':<14}  {key} (verifies v1a signatures)")
    write_line("")
    problems = [*subscription_problems(status, now), *unmatched_choices(settings, one)]
    for name, text in _state_lines(status, kept, problems, files=len(one.secret_files)):
        write_line(f"{name:<14}  {text}")
    if waiting is not None:
        write_line(f"{'next attempt':<14}  {_waiting_text(waiting, now)}")
    write_line("")
    for line in backlog_lines(status.feeds, width()):
        write_styled(line)


async def _read(settings: Settings, store: OpenStore) -> tuple[list[SubscriptionStatus], Subscriptions, datetime]:
    """The states, the registry, and the store's time."""
    from poller.control.status import subscription_statuses
    from poller.control.subscriptions import registry_of

    now = store.clock.now()
    kept = await registry_of(settings, store.client).all()
    return await subscription_statuses(store.client, settings, now=now, kept=kept), kept, now


def _settings_lines(one: SubscriptionSettings) -> Iterator[tuple[str, str]]:
    values: Mapping[str, Any] = one.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in dict.fromkeys((*_ALWAYS, *values)):
        yield name, _shown(name, values.get(name), one)


def _shown(name: str, value: Any, one: SubscriptionSettings) -> str:
    import json

    from poller.config.errors import sounds_secret
    from poller.config.http import host_only, redacted

    if value in (None, [], {}) or (name == "when" and not any(value.values())):
        return _NONE.get(name, "none")
    if name == "auth":
        return f"by {one.auth.kind}" if one.auth.kind != "none" else "none"
    if name == "headers":
        return ", ".join(f"{header}: …" for header in value)
    if sounds_secret(name):
        return f"{len(value)}, not shown" if isinstance(value, list) else "…"
    if isinstance(value, str):
        return host_only(value) if name == "sink" else redacted(value)
    is_texts = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return ", ".join(value) if is_texts else json.dumps(value, ensure_ascii=False)


def _state_lines(
    status: SubscriptionStatus, kept: Subscriptions, problems: Sequence[str], *, files: int
) -> Iterator[tuple[str, str]]:
    registered = kept.registered.get(status.subscription)
    yield "from", "the configuration file" if status.origin == "file" else "added at run time"
    yield "since", "-" if registered is None else f"{registered.since:%Y-%m-%dT%H:%M:%SZ}"
    yield "state", status.state
    for problem in problems:
        yield "", escaped(problem)
    if status.backfill_text:
        yield "backfill", status.backfill_text
    generated = len(kept.secrets.get(status.subscription, ()))
    secrets = [f"{generated} generated"] if generated else []
    secrets += [f"{files} in {'files' if files > 1 else 'a file'}"] if files else []
    yield "secrets", ", ".join(secrets) or "none, requests are not signed"
    if status.subscription in kept.credentials:
        yield "credential", "from the subscription request, not shown"
    yield "handshake", status.handshake or "not required"
    if status.subscription in kept.health:
        yield "attempts", f"{status.delivered} delivered, {status.failed} failed, at the last update"


@dataclass(frozen=True, slots=True)
class _NewSubscription:
    """The options of ``add``, as they were typed.

    Attributes:
        values: options that are keys of a subscription's table; None where an option is absent.
        feeds: ``SOURCE/NAME`` or ``NAME``.
        filters: each a JSON object.
        headers: each ``NAME: VALUE``.
        secret_files: relative to the working directory.
    """

    values: Mapping[str, Any]
    feeds: Sequence[str]
    filters: Sequence[str]
    headers: Sequence[str]
    secret_files: Sequence[Path]

    @property
    def is_empty(self) -> bool:
        """Whether no option was given."""
        lists = (self.feeds, self.filters, self.headers, self.secret_files)
        return not any(lists) and all(value is None for value in self.values.values())


@app.command(example="subscriptions add rostering https://rostering.example.org/hooks --type removed")
async def add(
    options: GlobalOptions,
    subscription: Annotated[
        str | None, typer.Argument(metavar="ID", help="Lower-case letters, digits and -.", show_default=False)
    ] = None,
    sink: Annotated[
        str | None, typer.Argument(metavar="SINK", help="The URL to send events to.", show_default=False)
    ] = None,
    *,
    feed: Annotated[
        _Texts,
        typer.Option(
            metavar="FEED",
            help="Its events; may be repeated. Default: all.",
            show_default=False,
            autocompletion=complete_feeds,
        ),
    ] = None,
    type_: Annotated[
        _Texts,
        typer.Option(
            "--type", metavar="TYPE", help="Events of this type; may be repeated. Default: all.", show_default=False
        ),
    ] = None,
    filter_: Annotated[
        _Texts,
        typer.Option(
            "--filter", metavar="JSON", help='Such as {"prefix": {"subject": "7"}}; all must hold.', show_default=False
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="structured, binary or batch. Default: structured.", show_default=False)
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="now, earliest or snapshot. Default: now.", show_default=False)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Requests a second. Default: unlimited.", show_default=False)
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests in flight. Default: 8.", show_default=False)] = None,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Allow a sink at a private address, and http://.")
    ] = False,
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Holds a signing secret. Default: a secret is generated.", show_default=False
        ),
    ] = None,
    no_secret: Annotated[bool, typer.Option("--no-secret", help="Do not sign requests.")] = False,
    header: Annotated[
        _Texts, typer.Option(metavar="NAME: VALUE", help="Sent with each request; may be repeated.", show_default=False)
    ] = None,
    from_json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|-", help="Everything from a JSON object, keys as in the configuration.", show_default=False
        ),
    ] = None,
) -> None:
    """Add one, also while the daemon runs; its signing secret is shown once."""
    import secrets

    from poller.config.http import host_only
    from poller.config.load import with_absolute_paths
    from poller.config.validation import subscription_of
    from poller.control import subscriptions as registry
    from poller.control.factories import sink_of
    from poller.delivery.signing import new_secret
    from poller.store.keys import MemberKeys
    from poller.store.members import is_any_there
    from poller.store.session import ready_store

    values = {
        "id": subscription,
        "sink": sink,
        "types": type_ or None,
        "mode": mode,
        "start": start,
        "rate": rate,
        "concurrency": concurrency,
        "allow_private": allow_private or None,
    }
    new = _NewSubscription(values, feed or (), filter_ or (), header or (), secret_file or ())
    if from_json is not None and not new.is_empty:
        raise options.usage_error("expected ID SINK and options, or --from-json FILE alone")
    settings = options.settings()
    if from_json is None:
        one = _from_options(new, settings)
    else:
        where = "standard input" if from_json == "-" else from_json
        one = subscription_of(_decoded(_text(from_json), where), settings, where=where)
    one = with_absolute_paths(one, Path.cwd())  # the daemon that reads it has another working directory
    unsigned = no_secret or one.secret_files or not one.is_signed
    generated = [] if unsigned else [new_secret(secrets.token_bytes(_SECRET_BYTES))]
    async with ready_store(settings) as store:
        all_of = registry.registry_of(settings, store.client)
        try:
            await registry.add(all_of, settings, one, secrets=generated, now=store.clock.now())
        except StoreUnavailable as error:
            raise PollerError(_PERHAPS.format(error=error, id=one.id)) from None
        is_delivered = await is_any_there(store.client, MemberKeys.of(settings.redis.prefix), role="deliver")
    who = "the running daemon delivers" if is_delivered else "no daemon delivers now; `poller run` does,"
    write_line(f"{one.id}: added; {who} to {host_only(one.sink)}")
    for secret in generated:
        write_line(f"secret  {secret}")
        write_line("It signs each request. Store it now: it is not shown again.")
    try:
        sink_of(one, os.environ, secrets=generated, clock=store.clock)
    except ConfigurationError as error:
        warn(f"{one.id}: a daemon beside this command could not deliver to it: {error}")


def _from_options(new: _NewSubscription, settings: Settings) -> SubscriptionSettings:
    """The subscription; errors name options, not keys.

    Raises:
        ConfigurationError: it cannot be used.
    """
    from poller.config.validation import subscription_of
    from poller.http.ssrf import PRIVATE

    table = {name: value for name, value in new.values.items() if value is not None}
    more: dict[str, Any] = {
        "feeds": list(named_feeds(settings, new.feeds)) if new.feeds else [],
        "filters": [_decoded(text, "--filter") for text in new.filters],
        "headers": dict(map(_header, new.headers)),
        "secret_files": [str(file) for file in new.secret_files],
    }
    table |= {name: value for name, value in more.items() if value}
    try:
        return subscription_of(table, settings, where="subscription")
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace(PRIVATE, "--allow-private")) from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigurationError('--header: expected "NAME: VALUE"')
    return name.strip(), value.strip()


def _text(source: str) -> str:
    where = "standard input" if source == "-" else source
    try:
        return sys.stdin.buffer.read().decode() if source == "-" else Path(source).read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"{where}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where}: expected text in UTF-8") from None


def _decoded(text: str, where: str) -> Any:
    import msgspec

    from poller.config.errors import shown_key
    from poller.config.validation import repeated_keys

    try:
        value = msgspec.json.decode(text)
        repeated = [shown_key(key) for key in repeated_keys(text)]
    except (msgspec.DecodeError, RecursionError, ValueError):  # ValueError: no text, or a number of very many digits
        raise ConfigurationError(f"{where}: expected a JSON object") from None
    if repeated:
        raise ConfigurationError(f"{where}: {', '.join(repeated)}: expected once: this key occurs twice")
    return value


@app.command(example="subscriptions remove rostering --yes")
def remove(options: GlobalOptions, subscription: _Id, *, yes: Yes = False) -> None:
    """Delete one that was added at run time. Everything that waits for it is deleted, too."""
    settings = options.settings()
    status = run_loop(_removable(settings, subscription))
    if not yes and not _removal_confirmed(status):
        raise PollerError(f"{subscription}: not removed")
    run_loop(_remove(settings, subscription))
    write_line(f"{subscription}: removed")


async def _removable(settings: Settings, subscription: str) -> SubscriptionStatus:
    from poller.control.status import subscription_statuses
    from poller.control.subscriptions import refuse_filed, registry_of
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        kept, only = await registry_of(settings, store.client).all(), [subscription]
        await refuse_filed(store.client, kept, settings, subscription)
        (found,) = await subscription_statuses(store.client, settings, now=store.clock.now(), only=only, kept=kept)
        return found


async def _remove(settings: Settings, subscription: str) -> None:
    from poller.control import subscriptions as registry
    from poller.store.session import ready_store

    async with ready_store(settings) as store:
        await registry.remove(store.client, settings, subscription, clock=store.clock)


def _removal_confirmed(status: SubscriptionStatus) -> bool:
    waiting = count((status.lag_entries or 0) + status.parked, "undelivered event")
    question = f"{status.subscription}: remove it, with {waiting} and {count(status.dead_letters, 'dead letter')}?"
    return confirm(question, "there is no terminal to ask on; --yes removes it without asking")


@app.command(example='subscriptions pause rostering --reason "moving house"')
async def pause(
    options: GlobalOptions,
    subscription: _Id,
    *,
    reason: Annotated[str, typer.Option(help="Shown by poller status.")] = "by command",
) -> None:
    """Pause deliveries until resumed; events wait."""
    from poller.control import subscriptions as registry
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        now = store.clock.now()
        before = await registry.pause(store.client, settings, subscription, reason=text_of(reason), now=now)
    if before is None:
        write_line(f"{subscription}: paused; its events wait until `poller subscriptions resume {subscription}`")
    else:
        write_line(f"{subscription}: was paused already, {_pause_text(before)}")


@app.command(example="subscriptions resume rostering")
async def resume(options: GlobalOptions, subscription: _Id) -> None:
    """Resume deliveries where they stopped, whatever paused them."""
    from poller.control import subscriptions as registry
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        now = store.clock.now()
        before = await registry.resume(store.client, settings, subscription, now=now)
        kept = await registry.registry_of(settings, store.client).all()
        waiting = await registry.scheduled_attempts(store.client, settings, kept, subscription, now=now)
    if before is None:
        write_line(f"{subscription}: was not paused")
    else:
        write_line(f"{subscription}: resumed where it stopped; it had been paused {_pause_text(before)}")
    if waiting is not None:
        write_line(f"{subscription}: {_waiting_text(waiting, now)}")


def _waiting_text(waiting: ScheduledAttempts, now: datetime) -> str:
    from poller.clock import rfc3339
    from poller.text import ago

    events = "1 event waits for its" if waiting.count == 1 else f"{waiting.count} events wait for their"
    which = "it" if waiting.count == 1 else "the first"
    seconds = (waiting.first - now).total_seconds()
    return f"{events} next attempt by the retry schedule; {which} is due in {ago(seconds)} ({rfc3339(waiting.first)})"


def _pause_text(pause: Paused) -> str:
    return f"{pause.at:%Y-%m-%d %H:%M} UTC ({pause.by}): {escaped(pause.reason)}"


@app.command("test", example="subscriptions test rostering")
async def send_sample(options: GlobalOptions, subscription: _Id) -> bool:
    """Send one sample event and show the exchange. Exit code 1 unless the sink accepts it."""
    from poller.control.subscriptions import registry_of, sample, settings_of
    from poller.store.session import ready_store

    settings = options.settings()
    async with ready_store(settings) as store:
        kept = await registry_of(settings, store.client).all()
    sampled = await sample(
        settings_of(kept, settings, subscription),
        secrets=kept.secrets.get(subscription, ()),
        handshake=kept.handshakes.get(subscription),
        environ=os.environ,
        clock=store.clock,
        brought=kept.credentials.get(subscription),
    )
    for line in sampled.sent.head:
        write_line(escaped(line))
    write_line("")
    write_line(legible(sampled.sent.body))
    write_line("")
    write_line(_outcome_line(sampled.outcome))
    if sampled.outcome.excerpt:
        write_line("")
        write_line(legible(sampled.outcome.excerpt))
    return sampled.outcome.is_delivered


def _outcome_line(outcome: Outcome) -> str:
    seconds = f"after {outcome.seconds * 1000:.0f} ms"
    if outcome.status is not None:
        said = "the sink accepts it" if outcome.is_delivered else "the sink does not accept it"
        return f"{said}: status {outcome.status} {seconds}"
    if outcome.is_delivered:
        return f"delivered {seconds}"
    return f"no answer ({outcome.failure}) {seconds}: {escaped(outcome.error)}"
