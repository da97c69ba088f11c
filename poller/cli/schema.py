"""``poller schema``: the documents that describe events, streams and configuration to other programs."""

from __future__ import annotations

import os

import msgspec

from poller.changes.schemas import events_document
from poller.cli.options import Asked
from poller.cli.output import say
from poller.config.load import load
from poller.config.settings import Settings, config_schema
from poller.control.asyncapi import EXAMPLE, asyncapi, schemas_of


def schema(asked: Asked, document: str) -> None:
    """Print a document as JSON: ``asyncapi``, ``events`` or ``config``.

    Raises:
        ConfigurationError: there is a configuration and it cannot be used.
    """
    asked.set_up_logs("error")
    if document == "config":
        shown = config_schema()
    else:
        settings = _settings(asked)
        shown = asyncapi(settings) if document == "asyncapi" else events_document(schemas_of(settings))
    say(msgspec.json.format(msgspec.json.encode(shown), indent=2).decode())


def _settings(asked: Asked) -> Settings:
    """The configuration; where there is none, an example of a source."""
    if asked.file() is None and not os.environ.get("POLLER_BASE_URL"):
        return load(None, {**os.environ, **EXAMPLE})
    return asked.settings()
