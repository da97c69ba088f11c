"""The tables ``sources`` and ``sources.feeds``: APIs, and what is polled of them.

**Invariants**

- What contradicts itself is refused at start, at the key that has to change. Each relation is a validator of the
  later of its keys, so it is checked even if other keys are wrong.
- Of ``interval`` and ``cron`` exactly one is not None; ``jitter`` never is.
- Defaults that follow from other keys (``event_source``, ``type_prefix``) are filled in.
- Paths, type names and delta support of known resources are not here but in the source.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from poller.config.http import (
    AuthSettings,
    BaseUrl,
    CaFile,
    ClientCertFile,
    ClientKeyFile,
    Headers,
    ProxyUrl,
    no_credential,
    reversed_host,
)
from poller.config.types import (
    Between,
    Concurrency,
    DetailPath,
    Duration,
    DurationOrOff,
    FeedName,
    Flag,
    ListPath,
    Matching,
    Pointer,
    Qualifications,
    Rate,
    ShareOrOff,
    Size,
    SourceName,
    Table,
    Text,
    Threshold,
    TypePrefix,
    Whole,
    check_cron,
    did_you_mean,
    distinct,
    format_duration,
)
from poller.resources import ACHIEVEMENTS, RESOURCES

MINUTE = timedelta(seconds=60)
_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def _interval(given: dict[str, Any]) -> timedelta | None:
    return None if given.get("cron") else MINUTE


def _jitter(given: dict[str, Any]) -> timedelta:
    interval: timedelta | None = given.get("interval")
    return interval / 10 if interval else timedelta(0)


class FeedSettings(Table):
    """One resource of one source, and how it is polled."""

    resource: FeedName = Field(
        description=f"What is polled: one of {', '.join(RESOURCES)}, or any other name together with path."
    )
    name: FeedName = Field(
        default_factory=lambda given: given["resource"],
        description="The feed's name within its source. Default: resource.",
    )
    path: ListPath | None = Field(
        default=None,
        validate_default=True,
        description="The list endpoint, relative to base_url. Default: that of the resource, if it is one of those "
        "above.",
    )
    detail_path: DetailPath | None = Field(
        default=None,
        description="The endpoint of one record, with {id}, to confirm removals. Default: that of the resource.",
    )
    id_field: Annotated[
        str, Matching(r'[^\x00-\x1f\x7f"\\]+', "text without quotation marks, backslashes and control characters")
    ] = Field(default="id", description="The key of a record that identifies it. Default: id.")
    type_name: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]*", "letters, digits, - and _")] | None = Field(
        default=None, description="The name of a record in event types. Default: resource without a plural s."
    )
    cron: Annotated[str, AfterValidator(check_cron)] | None = Field(
        default=None, description="When to poll, as five cron fields in UTC; instead of interval. Default: none."
    )
    interval: Annotated[Duration, Between("100ms", "366d")] | None = Field(
        default_factory=_interval,
        description="How often to poll, a duration; instead of cron. A turn is left out while the feed is still being "
        "read. Default: 60s.",
    )
    jitter: Duration = Field(
        default_factory=_jitter,
        description="The longest random delay of a poll, a duration below interval, or below the time between two "
        "polls of cron. Polls of an interval that is a multiple of 0.1s are due at whole tenths of a second. If it is "
        "one of 0.25s and 5s or more, and jitter 0s, or 0.5s or more, they are due at whole quarters. Default: a tenth "
        "of interval; with cron, 0s.",
    )
    limit: Annotated[Whole, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None, description="The page size to request, in records. Default: none is requested."
    )
    fields: Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(distinct)] | None = Field(
        default=None,
        description="The fields to request; the id field is always added, and for achievements qualificationID. "
        "Default: all.",
    )
    fields_style: Literal["repeat", "comma", "brackets"] = Field(
        default="repeat",
        description='"repeat": fields=a&fields=b; "comma": fields=a,b; "brackets": fields[]=a&fields[]=b. '
        "Default: repeat.",
    )
    delta: Literal["on", "off", "auto"] = Field(
        default="auto",
        description='Whether to read only what changed: "on", "off", or "auto": where the API takes it. Default: auto.',
    )
    delta_token: Literal["first", "last"] = Field(
        default="first",
        description="Which delta token of a round is kept; empty ones do not count. Default: first.",
    )
    page_params: Literal["all", "token-only"] = Field(
        default="all",
        description='What is sent with a page token: "all" other parameters again, or "token-only". Default: all.',
    )
    expired_statuses: Annotated[tuple[Annotated[Whole, Field(ge=400, le=599)], ...], AfterValidator(distinct)] = Field(
        default=(400, 404, 409, 410, 412),
        description='HTTP statuses that mean "token no longer valid" if the same request without it works. '
        "Default: 400, 404, 409, 410, 412.",
    )
    max_pages: Annotated[Whole, Field(ge=1, le=2**31 - 1)] = Field(
        default=100_000, description="A round with more pages than this is given up. Default: 100000."
    )
    max_round: Annotated[Duration, Between("100ms", "366d")] = Field(
        default=timedelta(hours=1),
        description="A round that takes longer is given up, a duration; its events stay published, but a first "
        "reading, a resync or a reconcile starts again at its first page, so max_round has to be longer than that "
        "takes. Default: 1h.",
    )
    versions: Literal["last", "newest"] = Field(
        default="last",
        description='"newest": a version that is older than the known one by its lastModifiedAt is held back until two '
        'full readings at least a minute apart show it; "last": the version that came last counts. Default: last.',
    )
    reconcile: DurationOrOff = Field(
        default=timedelta(hours=24),
        description='How often a feed with deltas is read in full to find what they missed, a duration or "off". '
        "Default: 24h.",
    )
    removals: Literal["confirm", "off"] = Field(
        default="confirm",
        description='"confirm": a record gone from a full reading is checked and then removed; "off". Default: '
        "confirm.",
    )
    max_removals: ShareOrOff = Field(
        default=Threshold(percent=10.0),
        description="A round that would remove more than this share, and more than 50 records, is held until released; "
        'also a number of records, or "off". Default: 10%.',
    )
    baseline: Literal["emit", "silent"] = Field(
        default="emit",
        description='What the first reading does: "emit" created events, or stay "silent". Default: emit.',
    )
    ignore: Annotated[tuple[Pointer, ...], AfterValidator(distinct)] = Field(
        default=(), description="JSON pointers of values that are left out when records are compared. Default: none."
    )
    partial: Flag = Field(
        default=False,
        description="true: records of a delta may have only some of their keys; the other keys are kept as they are. "
        "Default: false.",
    )
    qualifications: Qualifications = Field(
        default=("auto",),
        description='Whose achievements are listed: "auto", every qualificationID of letters, digits and - . _ ~ that '
        "the source's other feeds name; a list of ids; or both in one list. Default: auto.",
    )

    @field_validator("path")
    @classmethod
    def _path_where_unknown(cls, path: str | None, given: ValidationInfo) -> str | None:
        resource = given.data.get("resource", ACHIEVEMENTS)
        if resource == ACHIEVEMENTS and path is not None:
            raise ValueError("expected no path: achievements are listed per qualification")
        if resource not in RESOURCES and path is None:
            raise ValueError(
                f'expected a path such as "/positions" for the resource "{resource}", '
                f"which is none of {', '.join(RESOURCES)}{did_you_mean(resource, list(RESOURCES))}"
            )
        return path

    @field_validator("detail_path")
    @classmethod
    def _none_where_list_only(cls, path: str | None, given: ValidationInfo) -> str | None:
        if path is not None and given.data.get("resource") == ACHIEVEMENTS:
            raise ValueError("expected no detail_path: achievements are list-only")
        return path

    @field_validator("interval")
    @classmethod
    def _not_with_cron(cls, interval: timedelta | None, given: ValidationInfo) -> timedelta | None:
        if interval is not None and given.data.get("cron"):
            raise ValueError("expected either interval or cron, not both")
        return interval

    @field_validator("jitter")
    @classmethod
    def _below_interval(cls, jitter: timedelta, given: ValidationInfo) -> timedelta:
        interval = given.data.get("interval")
        if interval is not None and jitter >= interval:
            raise ValueError(f"expected less than the interval of {format_duration(interval)}")
        if interval is None and given.data.get("cron"):
            from poller.config.cron import shortest_gap  # noqa: PLC0415 -- slow, and few feeds have an expression

            gap = shortest_gap(given.data["cron"], _ANY_DAY)
            if jitter >= gap:
                raise ValueError(f"expected less than {format_duration(gap)}, the time between two polls of cron")
        return jitter

    @field_validator("delta")
    @classmethod
    def _possible(cls, delta: str, given: ValidationInfo) -> str:
        if delta == "on" and given.data.get("resource") == ACHIEVEMENTS:
            raise ValueError('expected "auto" or "off": achievements have no delta')
        return delta

    @field_validator("qualifications")
    @classmethod
    def _of_achievements(cls, listed: tuple[str, ...], given: ValidationInfo) -> tuple[str, ...]:
        if given.data.get("resource", ACHIEVEMENTS) != ACHIEVEMENTS:
            raise ValueError("expected only where resource is achievements")
        return listed


_REFERENCE = r"(?!.*@)[!-\x22$->@-~]*[!-\x22$-.0->@-~]"  # for JSON Schema: \" is an error in ECMA-262
EventSource = Annotated[str, Matching(_REFERENCE, "a URI without user, query, fragment and a slash at its end")]


class SourceSettings(Table):
    """One API, read as one user."""

    name: SourceName = Field(description="The source's name: lower-case letters, digits and -, at most 32.")
    base_url: BaseUrl = Field(
        description="The address of the API, an http or https URL; all paths are relative to it. $POLLER_BASE_URL "
        "overrides it if there is one source."
    )
    event_source: EventSource = Field(
        default_factory=lambda given: given["base_url"],
        description="The prefix of the CloudEvents attribute source. Default: base_url.",
    )
    type_prefix: TypePrefix = Field(
        default_factory=lambda given: reversed_host(given["base_url"]),
        description="The prefix of event types. Default: the host of base_url, reversed; for localhost and "
        'addresses "poller".',
    )
    auth: AuthSettings = Field(
        default_factory=no_credential,
        description="Where the credential is kept. $POLLER_TOKEN or $POLLER_TOKEN_FILE overrides it where there is one "
        "source. Default: none is sent.",
    )
    rate: Rate | None = Field(
        default=None, description="Requests a second, shared by the source's feeds. Default: unlimited."
    )
    concurrency: Concurrency = Field(default=4, description="The highest number of requests in flight. Default: 4.")
    timeout: Annotated[Duration, Between("10ms", "1h")] = Field(
        default=timedelta(seconds=30),
        description="The time limit of one request, its answer included, a duration. Default: 30s.",
    )
    max_page_bytes: Annotated[Size, Between("1KiB", "4GiB")] = Field(
        default=64 * 1024**2,
        description="The largest answer that is accepted, after decompression, a size. Default: 64MiB.",
    )
    headers: Headers = Field(
        default_factory=dict,
        description=(
            "Extra request headers; none that the program sets (Host, Connection, Content-Type and the like), and no "
            "credential, which goes into auth. Default: none."
        ),
    )
    ca_file: CaFile = None
    client_cert_file: ClientCertFile = None
    client_key_file: ClientKeyFile = None
    proxy: ProxyUrl | None = Field(
        default=None, description="The http or https proxy to go through, without credentials. Default: none."
    )
    feeds: Annotated[tuple[FeedSettings, ...], Field(min_length=1)] = Field(
        description="What is polled, one table each."
    )

    def feed_id(self, feed: FeedSettings) -> str:
        """``SOURCE/NAME``, the feed's id in commands, keys and subscriptions."""
        return sys.intern(f"{self.name}/{feed.name}")  # a dozen parts of a daemon have it
