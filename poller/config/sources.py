"""The table ``sources``: one API user of one API, and its feeds.

Law: a source can be read with what stands here and nothing else; defaults that follow from other keys
(``event_source``, ``type_prefix``) are filled in, so that nobody later has to know how.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from poller.config.auth import AuthSettings, no_credential
from poller.config.feeds import FeedSettings
from poller.config.headers import Headers
from poller.config.scalars import Between, Concurrency, Duration, FilePath, Matching, Rate, Size, Table
from poller.config.spelling import SourceName, TypePrefix
from poller.config.urls import BaseUrl, ProxyUrl, reversed_host

_REFERENCE = r"(?!.*@)[!-\x22$->@-~]*[!-\x22$-.0->@-~]"  # for JSON Schema: \" is an error in ECMA-262
EventSource = Annotated[str, Matching(_REFERENCE, "a URI without user, query, fragment and a slash at its end")]


class SourceSettings(Table):
    """One API, read as one user."""

    name: SourceName = Field(description="The source's name: lower-case letters, digits and -, at most 32.")
    base_url: BaseUrl = Field(
        description="What all paths are relative to: an http or https URL. $POLLER_BASE_URL beats it where there "
        "is one source."
    )
    event_source: EventSource = Field(
        default_factory=lambda given: given["base_url"],
        description="What the CloudEvents attribute source begins with. Default: base_url.",
    )
    type_prefix: TypePrefix = Field(
        default_factory=lambda given: reversed_host(given["base_url"]),
        description="What event types begin with. Default: the host of base_url, reversed; for localhost and "
        'addresses "poller".',
    )
    auth: AuthSettings = Field(
        default_factory=no_credential,
        description="Where the credential is kept. $POLLER_TOKEN or $POLLER_TOKEN_FILE beats it where there is one "
        "source. Default: none is sent.",
    )
    rate: Rate | None = Field(
        default=None, description="Requests a second, shared by the source's feeds. Default: unlimited."
    )
    concurrency: Concurrency = Field(default=4, description="Requests in flight at most. Default: 4.")
    timeout: Annotated[Duration, Between("10ms", "1h")] = Field(
        default=timedelta(seconds=30), description="For one whole exchange, body included, a duration. Default: 30s."
    )
    max_page_bytes: Annotated[Size, Between("1KiB", "4GiB")] = Field(
        default=64 * 1024**2, description="The largest answer that is read, decoded, a size. Default: 64MiB."
    )
    headers: Headers = Field(default_factory=dict, description="Extra request headers. Default: none.")
    ca_file: FilePath | None = Field(
        default=None, description="Certificates (PEM) that the API's must lead to. Default: the system's."
    )
    client_cert_file: FilePath | None = Field(
        default=None, description="The client's certificate (PEM). Default: none."
    )
    client_key_file: FilePath | None = Field(
        default=None, description="The key of client_cert_file (PEM). Default: it is in that file too."
    )
    proxy: ProxyUrl | None = Field(
        default=None, description="The http or https proxy to go through, without credentials. Default: none."
    )
    feeds: Annotated[tuple[FeedSettings, ...], Field(min_length=1)] = Field(
        description="What is polled, one table each."
    )

    @field_validator("client_key_file")
    @classmethod
    def _with_certificate(cls, key: Path | None, given: ValidationInfo) -> Path | None:
        if key is not None and given.data.get("client_cert_file", key) is None:
            raise ValueError("expected only together with client_cert_file")
        return key

    def feed_id(self, feed: FeedSettings) -> str:
        """``SOURCE/NAME``, as the command line, the keys and the subscriptions name a feed."""
        return f"{self.name}/{feed.name}"
