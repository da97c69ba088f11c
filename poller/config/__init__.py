"""The configuration: one frozen value from a TOML file and the environment.

Start at :func:`poller.config.load.load`, the only way in, and :class:`poller.config.settings.Settings`, the result.

**Invariants**

- All problems are reported together, and none shows a secret.
- Nothing here reads a secret, resolves a name or connects. Nothing is read when the package is imported.
"""

from __future__ import annotations

from poller.config.http import AuthSettings, OAuth2Settings
from poller.config.load import find_file, load
from poller.config.settings import (
    EmbeddedSettings,
    HttpSettings,
    LeaseSettings,
    ListenAddress,
    RedisSettings,
    RetentionSettings,
    Settings,
    config_schema,
)
from poller.config.sources import FeedSettings, SourceSettings
from poller.config.subscriptions import BatchSettings, FilterSettings, RetrySettings, SubscriptionSettings
from poller.config.types import Threshold
from poller.resources import RESOURCES

__all__ = [
    "RESOURCES",
    "AuthSettings",
    "BatchSettings",
    "EmbeddedSettings",
    "FeedSettings",
    "FilterSettings",
    "HttpSettings",
    "LeaseSettings",
    "ListenAddress",
    "OAuth2Settings",
    "RedisSettings",
    "RetentionSettings",
    "RetrySettings",
    "Settings",
    "SourceSettings",
    "SubscriptionSettings",
    "Threshold",
    "config_schema",
    "find_file",
    "load",
]
