"""The tables of the daemon itself, the whole configuration, and its JSON Schema.

**Invariants**

- Every table of the daemon may be left out; the defaults run on one machine with nothing installed.
- A value of :class:`Settings` is usable: every key is checked, every relation between tables holds, every default is
  filled in. The process's environment is never read.
- What the JSON Schema refuses, loading refuses. Loading refuses more: a schema cannot express what holds between
  keys.
- Relations look only at names and pass over what is no name, so they can report on a file that is wrong elsewhere
  too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticCustomError

from poller.config.errors import ConfigProblem, Key, shown_key
from poller.config.event_choice import (
    CAUSES,
    DROPPED_ID,
    IMPOSSIBLE,
    NOT_BASELINE,
    NOTHING_BACKFILLED,
    NOTHING_BUT_BASELINES,
    dropped_ids,
    is_possible,
    outer_pointers,
    unknown_attribute,
    unknown_attributes,
    unknown_cause,
    within_record,
)
from poller.config.event_types import (
    MOST_REPORTED,
    event_source,
    published_types,
    required_values,
    unknown_source,
    unknown_type,
    unmatched_types,
)
from poller.config.http import RedisUrl, Url, reversed_host
from poller.config.sources import FeedSettings, SourceSettings
from poller.config.subscriptions import SubscriptionSettings
from poller.config.types import (
    Between,
    Duration,
    FilePath,
    Matching,
    Size,
    Table,
    Threshold,
    did_you_mean,
    format_duration,
    format_share,
)
from poller.errors import ConfigurationError


class ListenAddress(NamedTuple):
    """Where to listen. Port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> ListenAddress | None:
    if value is None or value == "off":
        return None
    if isinstance(value, ListenAddress):
        return value
    match = (
        re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004  # the largest port
        raise ValueError('expected HOST:PORT such as "127.0.0.1:8080" or "[::1]:8080", or "off"')
    return ListenAddress(match[1] or match[2], int(match[3]))


def _state_directory() -> Path:
    from platformdirs import user_state_path  # noqa: PLC0415  # read only where nothing else was said

    return user_state_path("poller")


Bind = Annotated[
    ListenAddress | None,
    PlainValidator(_address),
    PlainSerializer(lambda address: "off" if address is None else str(address), when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^(off|.+:[0-9]{1,5})$"}),
]
Prefix = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", "1 to 64 letters, digits and any of _ . : -")]


class RedisSettings(Table):
    """The Redis or Valkey server for streams and state."""

    url: RedisUrl | None = Field(
        default=None,
        repr=False,
        description="The URL: redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://. "
        "$REDIS_URL overrides it, "
        "and only that may hold a password. Default: none, an embedded Valkey server is used.",
    )
    prefix: Prefix = Field(default="poller", description="The prefix of all keys. Default: poller.")
    durability: Literal["require", "warn", "ignore"] = Field(
        default="warn",
        description='"require": refuse to start unless AOF is on and maxmemory-policy is noeviction; "warn": log '
        'a warning; "ignore". '
        "Default: warn.",
    )


class EmbeddedSettings(Table):
    """The embedded Valkey server, which runs if no Redis is configured."""

    data_dir: FilePath = Field(
        default_factory=_state_directory,
        description="The data directory of the embedded server. $POLLER_DATA_DIR overrides it. Default: the platform's "
        'state directory for "poller".',
    )


class LeaseSettings(Table):
    """The lease of a feed, which lets one process write it."""

    ttl: Annotated[Duration, Between("500ms", "10m")] = Field(
        default=timedelta(seconds=10),
        description="How long a lease lasts after its last renewal, a duration: after a crash, another process takes "
        "over when it has passed. Leases are renewed every third of it. Default: 10s.",
    )


class HttpSettings(Table):
    """The service for health, metrics, API and pages."""

    bind: Bind = Field(
        default=ListenAddress("127.0.0.1", 8080),
        description='HOST:PORT to listen on, or "off". $POLLER_HTTP_BIND overrides it, and so does $PORT. Default: '
        "127.0.0.1:8080.",
    )
    public_url: Url | None = Field(
        default=None,
        description="The URL by which others reach this service, e.g. https://poller.example.org: its host is the "
        "origin of handshakes with sinks, and sinks may call it back. Default: none; the machine's name is the "
        "origin, and no callback is offered.",
    )
    read_token_file: FilePath | None = Field(
        default=None,
        description="The file that holds the bearer token for everything that shows records, events, feeds or "
        "subscriptions. $POLLER_READ_TOKEN_FILE and $POLLER_READ_TOKEN override it. Default: none, such calls answer "
        "403 unless bind is a loopback address.",
    )
    open_reads: bool = Field(
        default=False,
        description="true: without a read token, everyone who can reach the port may read, on any address. "
        "Default: false.",
    )
    admin_token_file: FilePath | None = Field(
        default=None,
        description="The file that holds the bearer token for everything that changes something; it also reads. "
        "$POLLER_ADMIN_TOKEN_FILE and $POLLER_ADMIN_TOKEN override it. Default: none, such calls answer 403.",
    )


class RetentionSettings(Table):
    """How long events stay in the streams."""

    age: Annotated[Duration, Between("1s", "3650d")] = Field(
        default=timedelta(days=7),
        description="Events older than this duration are deleted, but none that a subscription still needs. "
        "Default: 7d.",
    )
    max_bytes: Annotated[Size, Between("1KiB", "1024TiB")] = Field(
        default=1024**3,
        description="A stream larger than this size loses its oldest events, even if they are still needed. The loss "
        "is reported and counted. Default: 1GiB.",
    )
    removed: Annotated[Duration, Between("0s", "3650d")] = Field(
        default=timedelta(0),
        description="How long the content of a removed record is kept. Its id and revision stay. Default: 0s, none is "
        "kept.",
    )


def source_relations(source: SourceSettings) -> dict[str, Any]:
    """The names of a source that :func:`broken_relations` compares."""
    feeds = [
        {
            "name": feed.name,
            "resource": feed.resource,
            "type_name": feed.type_name,
            "path": feed.path,
            "id_field": feed.id_field,
            "fields": feed.fields,
        }
        for feed in source.feeds
    ]
    return {
        "name": source.name,
        "type_prefix": source.type_prefix,
        "event_source": source.event_source,
        "feeds": feeds,
    }


def subscription_relations(subscription: SubscriptionSettings) -> dict[str, Any]:
    """The choices of a subscription that :func:`broken_relations` compares."""
    compared = {"id", "feeds", "start", *CHOICES}
    return subscription.model_dump(include=compared, by_alias=True, exclude_none=True, exclude_defaults=True)


class Settings(Table):
    """Everything that can be configured."""

    redis: RedisSettings = Field(
        default=RedisSettings(), description="The Redis or Valkey server for streams and state."
    )
    embedded: EmbeddedSettings = Field(
        default_factory=EmbeddedSettings,
        description="The embedded Valkey server, which runs if no Redis is configured.",
    )
    lease: LeaseSettings = Field(
        default=LeaseSettings(), description="The lease of a feed, which lets one process write it."
    )
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
        default=(), description="The sinks that events are delivered to, one table each. Default: none."
    )

    def types_of(self, feeds: Collection[str] | None = None) -> frozenset[str]:
        """The event types that these feeds (``SOURCE/NAME``) publish; None: all feeds."""
        return frozenset(
            one
            for source in self.sources
            for feed in source.feeds
            if feeds is None or source.feed_id(feed) in feeds
            for one in published_types(source.type_prefix, feed.resource, feed.type_name)
        )

    def event_sources_of(self, feeds: Collection[str] | None = None) -> frozenset[str]:
        """The event sources of these feeds (``SOURCE/NAME``); None: all feeds.

        ``{id}`` in a source stands for any id.
        """
        return frozenset(
            event_source(source.event_source, feed.resource, feed.path)
            for source in self.sources
            for feed in source.feeds
            if feeds is None or source.feed_id(feed) in feeds
        )

    def events_of(self, feeds: Collection[str] | None = None) -> Iterator[tuple[str, str]]:
        """Type and source of each kind of event of these feeds (``SOURCE/NAME``); None: of all feeds."""
        for source in self.sources:
            for feed in source.feeds:
                if feeds is None or source.feed_id(feed) in feeds:
                    origin = event_source(source.event_source, feed.resource, feed.path)
                    for one in published_types(source.type_prefix, feed.resource, feed.type_name):
                        yield one, origin

    @property
    def id_fields(self) -> Mapping[str, str]:
        """The key of a record that identifies it, by feed (``SOURCE/NAME``)."""
        return {source.feed_id(feed): feed.id_field for source in self.sources for feed in source.feeds}

    def named_fields(self, feeds: Collection[str] | None = None) -> frozenset[str]:
        """The names that ``fields`` of these feeds (``SOURCE/NAME``) list; None: of all feeds."""
        pairs = [(source, feed) for source in self.sources for feed in source.feeds]
        chosen = [feed for source, feed in pairs if feeds is None or source.feed_id(feed) in feeds]
        return frozenset(name for feed in chosen for name in feed.fields or ())

    @property
    def feed_ids(self) -> tuple[str, ...]:
        """Every feed as ``SOURCE/NAME``, in the order of the file."""
        return tuple(source.feed_id(feed) for source in self.sources for feed in source.feeds)

    def find_feed(self, text: str) -> tuple[SourceSettings, FeedSettings]:
        """The feed with this id (``SOURCE/NAME``) or with this unique name.

        Raises:
            ConfigurationError: none or several; the message lists the feeds.
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
            "sources": [source_relations(source) for source in self.sources],
            "subscriptions": [subscription_relations(wanted) for wanted in self.subscriptions],
        }
        problems = broken_relations(names)
        if problems:
            raise PydanticCustomError("relations", "{text}", {"text": "; ".join(one.expected for one in problems)})
        return self


DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


class _AsWritten(GenerateJsonSchema):
    """Writes defaults as in the file; a table's defaults are those of its keys."""

    def encode_default(self, dft: Any) -> Any:
        match dft:
            case timedelta():
                return format_duration(dft)
            case Threshold():
                return format_share(dft)
            case ListenAddress():
                return str(dft)
            case BaseModel():
                return None
            case tuple():
                return [self.encode_default(one) for one in dft]
            case _:
                return super().encode_default(dft)


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the file, with a description for every key."""
    schema: dict[str, Any] = _as_toml(Settings.model_json_schema(mode="validation", schema_generator=_AsWritten))
    return {"$schema": DIALECT} | schema | {"title": "poller.toml", "description": "The configuration of poller."}


def _as_toml(schema: Any) -> Any:
    """The schema without null, which TOML does not have."""
    if isinstance(schema, list):
        return [_as_toml(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: _as_toml(value) for key, value in schema.items() if key != "title" and (key, value) != ("default", None)
    }
    alternatives = kept.get("anyOf", [])
    if {"type": "null"} in alternatives:
        kept["anyOf"] = [one for one in alternatives if one != {"type": "null"}]
    if len(kept.get("anyOf", [])) == 1:
        (only,) = kept.pop("anyOf")
        return only | kept
    return kept


CHOICES: Final = ("types", "filters", "when", "fields")
"""The keys of a subscription that are compared with what its feeds publish."""

_OF_START: Final = {"now": (NOT_BASELINE, NOTHING_BUT_BASELINES), "snapshot": (("backfill",), NOTHING_BACKFILLED)}

NO_SOURCE: Final = (
    "no source: give a file with [[sources]] (--config FILE, $POLLER_CONFIG or ./poller.toml), "
    "or set POLLER_BASE_URL, or try `poller demo`"
)


def broken_relations(values: Mapping[str, Any]) -> list[ConfigProblem]:
    """The problems between tables of ``values``, which have the shape of the file."""
    if values.get("sources", []) in ([], ()):
        return [ConfigProblem((), NO_SOURCE)]
    sources = list(_tables(values.get("sources"), ("sources",)))
    subscriptions = list(_tables(values.get("subscriptions"), ("subscriptions",)))
    problems = list(_repeated(sources, "name"))
    for key, source in sources:
        problems += _repeated(_feeds(key, source), "name")
    problems += _repeated(subscriptions, "id")
    if problems or not all(isinstance(source.get("name"), str) for _, source in sources):
        return problems  # which feed is meant cannot be said
    feeds = [f"{source['name']}/{feed.get('name')}" for key, source in sources for _, feed in _feeds(key, source)]
    known = dict.fromkeys(feeds)
    problems = [
        problem for key, table in subscriptions for problem in islice(_unknown_feeds(key, table, known), MOST_REPORTED)
    ]
    choosing = [(key, table) for key, table in subscriptions if any(table.get(name) for name in CHOICES)]
    if choosing:
        types, of_feeds, ids = _published(sources), _event_sources(sources), _id_fields(sources)
        for key, table in choosing:
            found = [*_unmatched_values(key, table, types, of_feeds), *_unknown_attributes(key, table)]
            problems += found or _impossible(key, table, types, of_feeds)
            problems += [*_dropped_ids(key, table, ids), *_outer_pointers(key, table, _named_fields(sources))]
    return problems


def _tables(value: Any, key: Key) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    for at, table in enumerate(value if isinstance(value, list | tuple) else ()):
        if isinstance(table, Mapping):
            yield (*key, at), table


def _feeds(key: Key, source: Mapping[str, Any]) -> list[tuple[Key, Mapping[str, Any]]]:
    """The feeds of a source, each with the name that it has by default."""
    return [
        (at, {"name": feed.get("name", feed.get("resource")), "table": feed})
        for at, feed in _tables(source.get("feeds"), (*key, "feeds"))
    ]


def _repeated(tables: list[tuple[Key, Mapping[str, Any]]], name: str) -> Iterator[ConfigProblem]:
    first: dict[str, Key] = {}
    for key, table in tables:
        value = table.get(name)
        if not isinstance(value, str):
            continue
        if value in first:
            yield ConfigProblem((*key, name), f"expected another {name}: {shown_key(first[value])} has this one", value)
        first.setdefault(value, key)


def _unknown_feeds(key: Key, subscription: Mapping[str, Any], known: Collection[str]) -> Iterator[ConfigProblem]:
    feeds = subscription.get("feeds")
    for at, feed in enumerate(feeds if isinstance(feeds, list | tuple) else ()):
        if isinstance(feed, str) and "/" in feed and feed not in known:
            hint = did_you_mean(feed, list(known)) or f"; there are {', '.join(known)}"
            yield ConfigProblem((*key, "feeds", at), f"expected a feed that exists{hint}", feed)


def _published(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]] | None:
    """The types of each feed; None: one of them is configured wrongly."""
    found = {}
    for key, source in sources:
        prefix = _prefix(source)
        for _, feed in _feeds(key, source):
            resource, type_name = feed["table"].get("resource"), feed["table"].get("type_name")
            if prefix is None or not isinstance(resource, str) or not isinstance(type_name, str | None):
                return None
            found[f"{source['name']}/{feed['name']}"] = published_types(prefix, resource, type_name)
    return found


def _event_sources(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]] | None:
    """The source of each feed's events; None: one of them is configured wrongly."""
    found: dict[str, tuple[str, ...]] = {}
    for key, source in sources:
        url = source.get("base_url")
        prefix = source.get("event_source", url.rstrip("/") if isinstance(url, str) else None)
        for _, feed in _feeds(key, source):
            resource, path = feed["table"].get("resource"), feed["table"].get("path")
            if not isinstance(prefix, str) or not isinstance(resource, str) or not isinstance(path, str | None):
                return None
            found[f"{source['name']}/{feed['name']}"] = (event_source(prefix, resource, path),)
    return found


def _id_fields(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """The id field of each feed."""
    return {
        f"{source['name']}/{feed['name']}": (str(feed["table"].get("id_field", "id")),)
        for key, source in sources
        for _, feed in _feeds(key, source)
    }


def _named_fields(sources: list[tuple[Key, Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """The names in ``fields`` of each feed."""
    found: dict[str, tuple[str, ...]] = {}
    for key, source in sources:
        for _, feed in _feeds(key, source):
            names = feed["table"].get("fields")
            names = names if isinstance(names, list | tuple) else ()
            found[f"{source['name']}/{feed['name']}"] = tuple(name for name in names if isinstance(name, str))
    return found


def _prefix(source: Mapping[str, Any]) -> str | None:
    prefix, url = source.get("type_prefix"), source.get("base_url")
    if prefix is None and isinstance(url, str):
        try:
            return reversed_host(url)
        except ValueError:
            return None
    return prefix if isinstance(prefix, str) else None


_OfFeeds = Mapping[str, tuple[str, ...]]


def _unmatched_values(
    key: Key, subscription: Mapping[str, Any], types: _OfFeeds | None, of_feeds: _OfFeeds | None
) -> Iterator[ConfigProblem]:
    """Types, sources and causes that no event of the subscription's feeds has."""
    if types is not None:
        yield from _unmatched_types(key, subscription, types)
        yield from islice(_unmatched(key, subscription, types, "type", unknown_type), MOST_REPORTED)
    if of_feeds is not None:
        yield from islice(_unmatched(key, subscription, of_feeds, "source", unknown_source), MOST_REPORTED)
    for place, wanted in required_values(subscription.get("filters"), "cause"):
        if expected := unknown_cause(wanted):
            yield ConfigProblem((*key, "filters", *place), expected, wanted)


def _unknown_attributes(key: Key, subscription: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    for place, name in islice(unknown_attributes(subscription.get("filters")), MOST_REPORTED):
        yield ConfigProblem((*key, "filters", *place), unknown_attribute(name))


def _impossible(
    key: Key, subscription: Mapping[str, Any], types: _OfFeeds | None, of_feeds: _OfFeeds | None
) -> Iterator[ConfigProblem]:
    """Whether no event can meet the subscription's choices, which are usable each by itself."""
    if types is None or of_feeds is None:
        return
    feeds = subscription.get("feeds")
    chosen = [feed for feed in (feeds if isinstance(feeds, list | tuple) else types) if feed in types]
    pairs = [(one, source) for feed in chosen for source in of_feeds[feed] for one in types[feed]]
    named = next(name for name in ("when", "filters", "types", "fields") if subscription.get(name))
    among, nothing = _OF_START.get(str(subscription.get("start") or "now"), (CAUSES, IMPOSSIBLE))
    if chosen and not is_possible(subscription, pairs):
        yield ConfigProblem((*key, named), IMPOSSIBLE)
    elif chosen and not is_possible(subscription, pairs, among=among):
        yield ConfigProblem((*key, named), nothing)


def _outer_pointers(key: Key, subscription: Mapping[str, Any], named: _OfFeeds) -> Iterator[ConfigProblem]:
    for place, pointer in islice(outer_pointers(subscription, _of_chosen(subscription, named)), MOST_REPORTED):
        yield ConfigProblem((*key, *place), within_record(pointer), pointer)


def _dropped_ids(key: Key, subscription: Mapping[str, Any], ids: _OfFeeds) -> Iterator[ConfigProblem]:
    for place, pointer in dropped_ids(subscription.get("fields"), _of_chosen(subscription, ids)):
        yield ConfigProblem((*key, "fields", *place), DROPPED_ID, pointer)


def _unmatched_types(
    key: Key, subscription: Mapping[str, Any], types: Mapping[str, tuple[str, ...]]
) -> Iterator[ConfigProblem]:
    """The entries of ``types`` that match no event of the subscription's feeds."""
    wanted = subscription.get("types")
    if not isinstance(wanted, list | tuple) or not all(isinstance(one, str) for one in wanted):
        return
    there = _of_chosen(subscription, types)
    for place, entry, expected in unmatched_types(wanted, there) if there else ():
        yield ConfigProblem((*key, "types", place), expected, entry)


def _unmatched(
    key: Key,
    subscription: Mapping[str, Any],
    of_feeds: Mapping[str, tuple[str, ...]],
    attribute: str,
    expected_of: Callable[[str, Collection[str]], str | None],
) -> Iterator[ConfigProblem]:
    """The values of an attribute in ``filters`` that no event of the subscription's feeds has."""
    there = _of_chosen(subscription, of_feeds)
    for place, wanted in required_values(subscription.get("filters"), attribute) if there else ():
        expected = expected_of(wanted, there)
        if expected:
            yield ConfigProblem((*key, "filters", *place), expected, wanted)


def _of_chosen(subscription: Mapping[str, Any], of_feeds: Mapping[str, tuple[str, ...]]) -> set[str]:
    """What the subscription's feeds have; of all feeds if it names none."""
    feeds = subscription.get("feeds")
    chosen = feeds if isinstance(feeds, list | tuple) else of_feeds
    return {one for feed in chosen if isinstance(feed, str) for one in of_feeds.get(feed, ())}
