"""One subscription that stands in no file: given on the command line or by a request, and kept as JSON.

Law: it is held to the same rules as one in the file, and what is wrong with it is said in the same words. What is kept
is what was written, without the defaults; equal settings are equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from poller.config.problems import Problem
from poller.config.relations import broken_relations
from poller.config.scalars import SLOWEST, Table
from poller.config.settings import Settings, chosen, related
from poller.config.showing import shown_problem
from poller.config.subscriptions import SubscriptionSettings
from poller.config.wording import problems_of
from poller.errors import ConfigurationError

_WITHIN = 2  # keys that lead to the one table: "subscriptions", 0


class _Within(Table):
    """Where a subscription stands in the file, so that its keys have the paths that the wording knows."""

    subscriptions: tuple[SubscriptionSettings, ...]


def subscription_of(values: Any, settings: Settings, *, where: str) -> SubscriptionSettings:
    """The subscription that these values make.

    Args:
        values: the keys and values of a ``[[subscriptions]]`` table.
        settings: the configuration, for which feeds there are.
        where: what the values came by, as a message names it.

    Raises:
        ConfigurationError: it cannot be used. The message has a line for each problem and shows no secret.
    """
    made = subscription_or_problems(values, settings)
    if isinstance(made, SubscriptionSettings):
        return made
    lines = [shown_problem(one, where=where, name=None, secrets=()) for one in made]
    raise ConfigurationError("\n".join(dict.fromkeys(lines)))


def subscription_or_problems(values: Any, settings: Settings) -> SubscriptionSettings | list[Problem]:
    """As :func:`subscription_of`; where it cannot be used, what is wrong with it, each by its key."""
    try:
        subscription = _read(values)
    except ValidationError as invalid:
        problems = [*problems_of(invalid), *_unrelated(values, settings)]
    else:
        problems = _unrelated(chosen(subscription), settings)
        if not problems:
            return subscription
    return [Problem(one.key[_WITHIN:], one.expected, one.value) for one in problems]


def kept_subscription(kept: bytes) -> SubscriptionSettings:
    """The subscription that was kept.

    Raises:
        ConfigurationError: this version cannot use it.
    """
    try:
        return _read(_audible(msgspec.json.decode(kept)))
    except (ValidationError, msgspec.DecodeError, RecursionError) as wrong:
        which = "; ".join(one.expected for one in problems_of(wrong)) if isinstance(wrong, ValidationError) else "JSON"
        raise ConfigurationError(f"a subscription is kept that this version cannot use: {which}") from None


def _audible(kept: Any) -> Any:
    """What an earlier version has kept may have a rate that is refused by now."""
    rate = kept.get("rate") if isinstance(kept, dict) else None
    return {**kept, "rate": SLOWEST} if isinstance(rate, int | float) and 0 < rate < SLOWEST else kept


def written(subscription: SubscriptionSettings) -> bytes:
    """As it is kept: the keys that were set, as in the file, in JSON."""
    return subscription.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _read(values: Any) -> SubscriptionSettings:
    return _Within.model_validate({"subscriptions": [values]}).subscriptions[0]


def _unrelated(values: Any, settings: Settings) -> list[Problem]:
    """Feeds, types and event sources that the configuration does not have."""
    named = {key: values.get(key) for key in ("feeds", "types", "filters")} if isinstance(values, Mapping) else {}
    return broken_relations({"sources": [related(one) for one in settings.sources], "subscriptions": [named]})
