"""The table ``subscriptions``: which events are delivered to which sink, and how.

**Invariants**

- A subscription that could only fail is refused at start. A sink's host is checked here as written; the addresses it
  resolves to are checked by the address guard at each connection.
- A filter is exactly one dialect of CloudEvents Subscriptions: exact, prefix, suffix, all, any or not. Only its shape
  is checked here; what events have is :mod:`poller.config.event_choice`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from poller.config.event_choice import EVENT_ATTRIBUTES, CauseName
from poller.config.http import (
    CaFile,
    ClientCertFile,
    ClientKeyFile,
    HostOrNetwork,
    SinkAuthSettings,
    SinkHeaders,
    auth_kinds_of,
    check_url,
    split_url,
)
from poller.config.types import (
    Between,
    Concurrency,
    Duration,
    FeedId,
    FilePath,
    Flag,
    Pointer,
    Rate,
    Real,
    Size,
    SubscriptionId,
    Table,
    Text,
    Whole,
    distinct,
)
from poller.http.ssrf import AddressPolicy, forbidden
from poller.text import SIGNING_SECRETS


def _attributes(compared: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in compared.items():
        if not (name.isascii() and name.isalnum() and name == name.lower()):
            raise ValueError("expected names of CloudEvents attributes: lower-case letters and digits")
        if not value:
            raise ValueError(f"expected text for {name} that is not empty")
    return compared


Compared = Annotated[
    Mapping[str, str],
    Field(min_length=1, json_schema_extra={"propertyNames": {"enum": list(EVENT_ATTRIBUTES)}}),
    AfterValidator(_attributes),
]


def _dialects(schema: dict[str, Any]) -> None:
    schema.update(minProperties=1, maxProperties=1)


class FilterSettings(Table):
    """A filter: exactly one dialect."""

    model_config = ConfigDict(json_schema_extra=_dialects)

    exact: Compared | None = Field(default=None, description="Attributes that must have exactly these values.")
    prefix: Compared | None = Field(default=None, description="Attributes whose values must begin with these texts.")
    suffix: Compared | None = Field(default=None, description="Attributes whose values must end with these texts.")
    all: Annotated[tuple[FilterSettings, ...], Field(min_length=1)] | None = Field(
        default=None, description="Filters that must all hold."
    )
    any: Annotated[tuple[FilterSettings, ...], Field(min_length=1)] | None = Field(
        default=None, description="Filters of which one at least must hold."
    )
    not_: FilterSettings | None = Field(default=None, alias="not", description="A filter that must not hold.")

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("expected exactly one of exact, prefix, suffix, all, any, not; join several with all")
        return self


MOST_POINTERS: Final = 256

Pointers = Annotated[tuple[Pointer, ...], Field(min_length=1, max_length=MOST_POINTERS), AfterValidator(distinct)]


def _pick_or_drop(schema: dict[str, Any]) -> None:
    schema.update(minProperties=1, maxProperties=1)


class FieldsSettings(Table):
    """The part of a record that is sent: ``pick`` or ``drop``."""

    model_config = ConfigDict(json_schema_extra=_pick_or_drop)

    pick: Pointers | None = Field(
        default=None,
        description="JSON pointers of what is sent of record, previous and changed; the record's id always is. Arrays "
        "count as a whole: of a pointer into one nothing is sent. Default: all.",
    )
    drop: Pointers | None = Field(
        default=None,
        description="JSON pointers of what is not sent of record, previous and changed; never the record's id. Of a "
        "pointer into an array the whole array is not sent. Default: none.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.pick is None) == (self.drop is None):
            raise ValueError("expected exactly one of pick and drop")
        return self


Causes = Annotated[tuple[CauseName, ...], AfterValidator(distinct)]


class WhenSettings(Table):
    """Which changes are sent; all keys must hold, and an empty list holds always."""

    changed: Annotated[tuple[Pointer, ...], Field(max_length=MOST_POINTERS), AfterValidator(distinct)] = Field(
        default=(),
        description="JSON pointers: a modified record is sent only if one of them changed, or something below or above "
        "it. Created and removed records are sent all the same; types chooses among them. Default: any.",
    )
    cause: Causes = Field(
        default=(),
        description="The causes of events that are sent: baseline, delta, full, reconcile, resync, backfill. "
        "Default: all.",
    )
    not_cause: Causes = Field(default=(), description="The causes of events that are not sent. Default: none.")


SCHEDULE = tuple(
    timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600)
)


class BatchSettings(Table):
    """How events are batched with mode ``batch``; the first limit reached sends them."""

    max_events: Annotated[Whole, Field(ge=1, le=10_000)] = Field(
        default=100, description="The highest number of events in one request. Default: 100."
    )
    max_bytes: Annotated[Size, Between("1KiB", "64MiB")] = Field(
        default=256 * 1024,
        description="The largest body of one request, a size; a larger event is sent alone. Default: 256KiB.",
    )
    linger: Annotated[Duration, Between("0s", "1m")] = Field(
        default=timedelta(milliseconds=200), description="How long to wait for more events, a duration. Default: 200ms."
    )


class RetrySettings(Table):
    """When a failed delivery is retried."""

    schedule: Annotated[tuple[Annotated[Duration, Between("1ms", "365d")], ...], Field(min_length=1)] = Field(
        default=SCHEDULE,
        description="The wait before each further attempt, durations; after the last one the event is a dead letter. "
        "Default: 5s, 30s, 2m, 10m, 1h, 3h, 6h, 12h, 24h.",
    )
    jitter: Annotated[Real, Field(ge=0, le=1)] = Field(
        default=0.2,
        description="Each wait is made longer by a random part of itself, at most this, 0 to 1. Default: 0.2.",
    )


class SubscriptionProtocol(StrEnum):
    """The protocol of a sink, as the Subscriptions API names it."""

    HTTP = "HTTP"
    NATS = "NATS"


class SinkKind(NamedTuple):
    """What the program knows of a kind of sink before it loads the module of it.

    Attributes:
        module: of :mod:`poller.delivery.sinks`.
        protocol: for the Subscriptions API.
        tls: its scheme with TLS, or of one that connects to no host; "": it has no TLS.
        plain: its scheme without TLS, which is for allowed addresses alone; "": there is none.
        check: of a URL; ValueError: it cannot be used.
        refuses: keys of a subscription, after ``sink``, that it has no use for.
        auth: the kinds of ``auth`` that it takes.
        reach: why a URL that passed ``check`` may not be reached, fit to follow "expected …"; None: it may. Left out,
            the address guard says it; one that connects to no host has to say it itself.
    """

    module: str
    protocol: SubscriptionProtocol
    tls: str
    plain: str
    check: Callable[[str], str]
    refuses: frozenset[str] = frozenset()
    auth: frozenset[str] = frozenset({"none"})
    reach: Callable[[str, AddressPolicy], str | None] | None = None

    @property
    def is_local(self) -> bool:
        """Whether its URLs name a file or a program of this machine, and no host: no request may contain one."""
        return self.reach is not None

    @property
    def scheme(self) -> str:
        """The scheme that messages name it by."""
        return self.tls or self.plain

    def forbidden(self, url: str, allowed: AddressPolicy) -> str | None:
        """Why this URL may not be reached; None: it may."""
        if self.reach:
            return self.reach(url, allowed)
        return forbidden(url, allowed, tls=self.tls, plain=self.plain)


_SUBJECT: Final = re.compile(r"[^*>/%\\]{1,255}")


def check_nats_url(value: str) -> str:
    """A URL of NATS, ``nats://HOST:PORT/SUBJECT`` or ``tls://…``, as written.

    Raises:
        ValueError: anything else; user and password; a subject that cannot be published to, or one of the server's own.
    """
    parts = split_url(value, ("nats", "tls"))
    subject = parts.path.removeprefix("/")
    if not _SUBJECT.fullmatch(subject) or "" in subject.split(".") or "?" in value:
        raise ValueError("expected nats://HOST:PORT/SUBJECT or tls://…, with a subject without wildcards")
    if subject.startswith(("$", "_INBOX.")):
        raise ValueError("expected a subject that is not one of the server's own ($…, _INBOX)")
    return value


_WEBHOOK: Final = SinkKind(
    "webhook", SubscriptionProtocol.HTTP, "https", "http", check_url, auth=auth_kinds_of("webhook")
)
_NATS: Final = SinkKind(
    "nats",
    SubscriptionProtocol.NATS,
    "tls",
    "nats",
    check_nats_url,
    refuses=frozenset({"mode", "batch", "secret_files", "headers", "handshake"}),
    auth=auth_kinds_of("nats"),
)
SINKS: Final[Mapping[str, SinkKind]] = {"https": _WEBHOOK, "http": _WEBHOOK, "tls": _NATS, "nats": _NATS}
"""The kinds of sinks by the scheme of their URL."""


def sink_kind_of(url: str) -> SinkKind:
    """The kind of sink that a URL names; of one that names none, a webhook."""
    return SINKS.get(url.partition("://")[0].lower(), _WEBHOOK)


def _schemes(takes: Callable[[SinkKind], bool]) -> list[str]:
    return [f"{scheme}://" for scheme, kind in SINKS.items() if scheme == kind.scheme and takes(kind)]


def _check_sink(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.lower() not in SINKS:
        *others, last = (f"{one}://" for one in SINKS)
        raise ValueError(f"expected a URL that begins with {', '.join(others)} or {last} and a host, in ASCII")
    return SINKS.get(scheme, _WEBHOOK).check(url)


SinkUrl = Annotated[
    str,
    AfterValidator(_check_sink),
    WithJsonSchema({"type": "string", "format": "uri", "pattern": f"^({'|'.join(SINKS)})://[^@#]+$"}),
]


_SECRETS: Final = " or ".join(f"{prefix}… ({scheme})" for prefix, scheme in SIGNING_SECRETS.items())


class SubscriptionSettings(Table):
    """One sink and the events it receives."""

    id: SubscriptionId = Field(description="The subscription's id: lower-case letters, digits and -, at most 64.")
    allow_private: Flag = Field(
        default=False,
        description="true: the sink may have a private, loopback or link-local address, and http://. Default: false.",
    )
    allow_hosts: Annotated[tuple[HostOrNetwork, ...], AfterValidator(distinct)] = Field(
        default=(),
        description="Host names, addresses and networks (CIDR) at which the sink may be although they are not public, "
        "also with http://. Default: none.",
    )
    sink: SinkUrl = Field(
        description="Where events are sent: an https URL, or tls://HOST:PORT/SUBJECT for NATS JetStream; http and nats "
        "only with allow_private, or to one of allow_hosts."
    )
    feeds: Annotated[tuple[FeedId, ...], Field(min_length=1), AfterValidator(distinct)] | None = Field(
        default=None, description="The feeds whose events are delivered, as SOURCE/NAME. Default: all."
    )
    types: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(distinct)] | None = Field(
        default=None,
        description='The event types that are delivered: types, patterns such as "*.removed.v1", or created, modified, '
        "removed; one that no feed publishes is refused. Default: all.",
    )
    filters: tuple[FilterSettings, ...] = Field(
        default=(),
        description="CloudEvents filters; all of them must hold. One for an attribute that no event has is refused. "
        "Default: none.",
    )
    when: WhenSettings = Field(
        default=WhenSettings(), description="Which changes are sent, by what changed and how it was found."
    )
    fields: FieldsSettings | None = Field(
        default=None, description="The part of a record that is sent. Default: the whole record."
    )
    thin: Flag = Field(
        default=False,
        description="true: ids, revision, cause and changed pointers are sent, but neither record nor previous; the "
        "receiver asks GET /feeds/SOURCE/NAME/records/ID. Default: false.",
    )
    mode: Literal["structured", "binary", "batch"] = Field(
        default="structured", description="The form of a request in CloudEvents over HTTP. Default: structured."
    )
    batch: BatchSettings = Field(default=BatchSettings(), description="How events are gathered where mode is batch.")
    start: Literal["now", "earliest", "snapshot"] = Field(
        default="now",
        description='Where a new subscription begins: "now", with new events and without those of first readings; '
        '"earliest", with all that the stream holds; or "snapshot", with every record that there is, then new events. '
        "Default: now.",
    )
    secret_files: Annotated[tuple[FilePath, ...], AfterValidator(distinct)] = Field(
        default=(),
        description=f"Files with signing secrets, {_SECRETS}; several: all sign. Default: unsigned.",
    )
    headers: SinkHeaders = Field(
        default_factory=dict,
        description=(
            "Extra request headers; none that the program sets (Host, Connection, Content-Type, ce-…, webhook-… and "
            "the like), and no credential, which goes into auth. Default: none."
        ),
    )
    auth: SinkAuthSettings = Field(
        default_factory=lambda: SinkAuthSettings(none=True),
        description="Where the sink's credential is kept. Default: none is sent.",
    )
    ca_file: CaFile = None
    client_cert_file: ClientCertFile = None
    client_key_file: ClientKeyFile = None
    rate: Rate | None = Field(default=None, description="Requests a second. Default: unlimited.")
    concurrency: Concurrency = Field(default=8, description="Requests in flight, one at most per record. Default: 8.")
    timeout: Annotated[Duration, Between("10ms", "10m")] = Field(
        default=timedelta(seconds=15), description="The longest time for one attempt, a duration. Default: 15s."
    )
    retry: RetrySettings = Field(default=RetrySettings(), description="When a failed delivery is retried.")
    disable_after: Annotated[Duration, Between("1s", "3650d")] = Field(
        default=timedelta(days=5),
        description="A subscription whose deliveries have all failed for this duration is paused; its events are kept. "
        "Default: 5d.",
    )
    handshake: Flag = Field(
        default=False,
        alias="validate",  # a name that pydantic has taken
        description="true: the CloudEvents webhook handshake (OPTIONS) before the first delivery. Default: false.",
    )

    @field_validator("ca_file", "client_cert_file")
    @classmethod
    def _over_tls(cls, file: Path | None, given: ValidationInfo) -> Path | None:
        url = str(given.data.get("sink", "https://"))
        if file is not None and urlsplit(url).scheme == (kind := sink_kind_of(url)).plain:
            secure = f" that is {kind.tls}://" if kind.tls else " with TLS"
            raise ValueError(f"expected only with a sink{secure}")
        return file

    @field_validator("*")
    @classmethod
    def _of_its_kind(cls, value: Any, given: ValidationInfo) -> Any:
        name, kind = given.field_name or "", sink_kind_of(str(given.data.get("sink", "https://")))
        default = cls.model_fields[name].get_default(call_default_factory=True) if name in kind.refuses else value
        if value != default:
            takers = " or ".join(_schemes(lambda one: name not in one.refuses))
            raise ValueError(f"expected only with a sink that is {takers}; one that is {kind.scheme}:// takes none")
        return value

    @field_validator("auth")
    @classmethod
    def _auth_of_its_kind(cls, auth: SinkAuthSettings, given: ValidationInfo) -> SinkAuthSettings:
        kind = sink_kind_of(str(given.data.get("sink", "https://")))
        if auth.kind in kind.auth:
            return auth
        if kind.auth <= {"none"}:
            raise ValueError(f"expected none: a sink that is {kind.scheme}:// takes no credential")
        takers = sorted(f"{scheme}://" for scheme, one in SINKS.items() if auth.kind in one.auth) or ["sources"]
        raise ValueError(f"expected another kind than {auth.kind}, which is for {' and '.join(takers)} alone")

    @property
    def is_signed(self) -> bool:
        """Whether its kind of sink takes signing secrets."""
        return "secret_files" not in sink_kind_of(self.sink).refuses

    @field_validator("sink")
    @classmethod
    def _reachable(cls, sink: str, given: ValidationInfo) -> str:
        if {"allow_private", "allow_hosts"} <= given.data.keys():  # else they are wrong themselves
            allowed = AddressPolicy.of(given.data["allow_hosts"], private=given.data["allow_private"])
            expected = sink_kind_of(sink).forbidden(sink, allowed)
            if expected:
                raise ValueError(f"expected {expected}")
        return sink
