"""The configuration: one frozen value, made of a TOML file with the environment laid over it.

Law: :func:`load` is the only way in from outside. It says everything that is wrong at once and never shows a secret.
Nothing here reads a secret, resolves a name or connects; nothing is read when the package is imported.

The stages: ``file`` (text to values), ``overlay`` (the environment over them), ``settings`` and the tables beneath it
(values to frozen settings), ``paths`` (what relative ones are relative to), ``relations`` (what holds between tables),
``wording`` and ``showing`` (what is wrong, in plain words).
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
from poller.config.types import RESOURCES, Threshold

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
