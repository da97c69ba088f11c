"""The tables of the daemon itself: redis, embedded, lease, http, retention.

Law: every one of them may be left out; the defaults run on one machine with nothing installed.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from poller.config.scalars import Between, Duration, FilePath, Matching, Size, Table
from poller.config.urls import RedisUrl, Url


class Address(NamedTuple):
    """Where to listen. Port 0: any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> Address | None:
    if value is None or value == "off":
        return None
    if isinstance(value, Address):
        return value
    match = (
        re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if match is None or int(match[3]) > 65535:  # noqa: PLR2004  # the largest port
        raise ValueError('expected HOST:PORT such as "127.0.0.1:8080" or "[::1]:8080", or "off"')
    return Address(match[1] or match[2], int(match[3]))


def _state_directory() -> Path:
    from platformdirs import user_state_path  # noqa: PLC0415  # read only where nothing else was said

    return user_state_path("poller")


Bind = Annotated[
    Address | None,
    PlainValidator(_address),
    PlainSerializer(lambda address: "off" if address is None else str(address), when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^(off|.+:[0-9]{1,5})$"}),
]
Prefix = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}", "1 to 64 letters, digits and any of _ . : -")]


class RedisSettings(Table):
    """Which Redis or Valkey holds streams and state."""

    url: RedisUrl | None = Field(
        default=None,
        repr=False,
        description="Where it is: redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster://. "
        "$REDIS_URL beats it, "
        "and only that may hold a password. Default: none, an embedded Valkey server is used.",
    )
    prefix: Prefix = Field(default="poller", description="What all keys begin with. Default: poller.")
    durability: Literal["require", "warn", "ignore"] = Field(
        default="warn",
        description='"require": refuse to start unless AOF is on and maxmemory-policy is noeviction; "warn": say '
        'so; "ignore". '
        "Default: warn.",
    )


class EmbeddedSettings(Table):
    """The Valkey server of its own that runs where no Redis is configured."""

    data_dir: FilePath = Field(
        default_factory=_state_directory,
        description="The directory of its data. $POLLER_DATA_DIR beats it. Default: the platform's state "
        'directory for "poller".',
    )


class LeaseSettings(Table):
    """Who may write a feed."""

    ttl: Annotated[Duration, Between("500ms", "10m")] = Field(
        default=timedelta(seconds=10),
        description="How long after a crash another process may take over, a duration; renewed every third of it."
        " Default: 10s.",
    )


class HttpSettings(Table):
    """The service for health, metrics, API and pages."""

    bind: Bind = Field(
        default=Address("127.0.0.1", 8080),
        description='HOST:PORT to listen on, or "off". $POLLER_HTTP_BIND beats it, and so does $PORT. Default: '
        "127.0.0.1:8080.",
    )
    public_url: Url | None = Field(
        default=None,
        description="The URL by which others reach this service, e.g. https://poller.example.org: its host is the "
        "origin of handshakes with sinks, and they may call it back. Default: none; the machine's name is the origin, "
        "and no callback is offered.",
    )
    read_token_file: FilePath | None = Field(
        default=None,
        description="The file that holds the bearer token for everything that shows records, events, feeds or "
        "subscriptions. $POLLER_READ_TOKEN_FILE and $POLLER_READ_TOKEN beat it. Default: none, such calls answer 403 "
        "unless bind is a loopback address.",
    )
    open_reads: bool = Field(
        default=False,
        description="true: without a read token everybody reads who reaches the port, on any address. Default: false.",
    )
    admin_token_file: FilePath | None = Field(
        default=None,
        description="The file that holds the bearer token for everything that changes something; it also reads. "
        "$POLLER_ADMIN_TOKEN_FILE and $POLLER_ADMIN_TOKEN beat it. Default: none, such calls answer 403.",
    )


class RetentionSettings(Table):
    """How long events stay in the streams."""

    age: Annotated[Duration, Between("1s", "3650d")] = Field(
        default=timedelta(days=7),
        description="Events older than this duration go, but never one that a live subscription still needs. "
        "Default: 7d.",
    )
    max_bytes: Annotated[Size, Between("1KiB", "1024TiB")] = Field(
        default=1024**3,
        description="A stream larger than this size loses its oldest events even where they are still needed; "
        "that is announced "
        "and counted. Default: 1GiB.",
    )
