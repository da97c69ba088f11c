"""The whole configuration as one frozen value.

Law: a value of this type is usable as it is: every key is checked, every relation holds, every default is filled in.
It comes from the layers that it is given, or from arguments; the process's environment is never read behind the
caller's back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from poller.config.daemon import EmbeddedSettings, HttpSettings, LeaseSettings, RedisSettings, RetentionSettings
from poller.config.event_sources import event_source
from poller.config.event_types import published
from poller.config.feeds import FeedSettings
from poller.config.relations import broken_relations
from poller.config.sources import SourceSettings
from poller.config.spelling import did_you_mean
from poller.config.subscriptions import SubscriptionSettings
from poller.errors import ConfigurationError

_LAYERS = "layers"


def related(source: SourceSettings) -> dict[str, Any]:
    """What :func:`~poller.config.relations.broken_relations` has to know of a source."""
    feeds = [
        {"name": feed.name, "resource": feed.resource, "type_name": feed.type_name, "path": feed.path}
        for feed in source.feeds
    ]
    return {
        "name": source.name,
        "type_prefix": source.type_prefix,
        "event_source": source.event_source,
        "feeds": feeds,
    }


def chosen(subscription: SubscriptionSettings) -> dict[str, Any]:
    """What it has to know of a subscription: which events it wants."""
    return subscription.model_dump(include={"id", "feeds", "types", "filters"}, by_alias=True, exclude_none=True)


class Settings(BaseSettings):
    """Everything that can be configured."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, case_sensitive=True)

    redis: RedisSettings = Field(default=RedisSettings(), description="Which Redis or Valkey holds streams and state.")
    embedded: EmbeddedSettings = Field(
        default_factory=EmbeddedSettings, description="The server of its own that runs where no Redis is configured."
    )
    lease: LeaseSettings = Field(default=LeaseSettings(), description="Who may write a feed.")
    http: HttpSettings = Field(default=HttpSettings(), description="The service for health, metrics, API and pages.")
    retention: RetentionSettings = Field(
        default=RetentionSettings(), description="How long events stay in the streams."
    )
    sources: tuple[SourceSettings, ...] = Field(
        default=(),
        validate_default=True,
        description="The APIs that are polled, one table for each API user. Default: one, named default, of "
        "$POLLER_BASE_URL.",
    )
    subscriptions: tuple[SubscriptionSettings, ...] = Field(
        default=(), description="Who gets events by webhook, one table each. Default: nobody."
    )

    @classmethod
    def layered(cls, *layers: PydanticBaseSettingsSource) -> Self:
        """The settings of several layers; an earlier one beats a later one.

        Raises:
            pydantic.ValidationError: they cannot be used.
        """
        asked: dict[str, Any] = {_LAYERS: layers}
        return cls(**asked)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # given by keyword
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # given by keyword
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # given by keyword
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # given by keyword
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The layers where there are some, else the arguments; never the library's own reading of the environment."""
        layers: tuple[PydanticBaseSettingsSource, ...] | None = init_settings().get(_LAYERS)
        return (init_settings,) if layers is None else layers

    def types_of(self, feeds: Collection[str] | None = None) -> frozenset[str]:
        """The event types that these feeds publish, given as ``SOURCE/NAME``; None for all."""
        return frozenset(
            one
            for source in self.sources
            for feed in source.feeds
            if feeds is None or source.feed_id(feed) in feeds
            for one in published(source.type_prefix, feed.resource, feed.type_name)
        )

    def event_sources_of(self, feeds: Collection[str] | None = None) -> frozenset[str]:
        """The sources of these feeds' events, given as ``SOURCE/NAME``; None for all. ``{id}`` in one is any id."""
        return frozenset(
            event_source(source.event_source, feed.resource, feed.path)
            for source in self.sources
            for feed in source.feeds
            if feeds is None or source.feed_id(feed) in feeds
        )

    @property
    def feed_ids(self) -> tuple[str, ...]:
        """Every feed as ``SOURCE/NAME``, in the order of the file."""
        return tuple(source.feed_id(feed) for source in self.sources for feed in source.feeds)

    def find_feed(self, text: str) -> tuple[SourceSettings, FeedSettings]:
        """The feed that ``text`` names: ``SOURCE/NAME``, or ``NAME`` where only one source has it.

        Raises:
            ConfigurationError: none or several; the message lists what there is.
        """
        pairs = [(source, feed) for source in self.sources for feed in source.feeds]
        found = [(source, feed) for source, feed in pairs if text in (source.feed_id(feed), feed.name)]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(source.feed_id(feed) for source, feed in found)
            raise ConfigurationError(f'feed "{text}" is in several sources: say which, {several}')
        names = [*self.feed_ids, *(feed.name for _, feed in pairs)]
        raise ConfigurationError(
            f'there is no feed "{text}"{did_you_mean(text, names) or "."} There are {", ".join(self.feed_ids)}'
        )

    @model_validator(mode="after")
    def _related(self) -> Self:
        names = {
            "sources": [related(source) for source in self.sources],
            "subscriptions": [chosen(wanted) for wanted in self.subscriptions],
        }
        problems = broken_relations(names)
        if problems:
            raise PydanticCustomError("relations", "{text}", {"text": "; ".join(one.expected for one in problems)})
        return self
