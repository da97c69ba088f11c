"""The demo's configuration, by the same way as any other: a file and its secrets, loaded."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from poller.config.load import load
from poller.config.settings import Settings
from poller.delivery.signing import new_secret
from poller.sandbox.resources import RESOURCES
from poller.sandbox.serving import SANDBOX_TOKEN

_SECRET_BYTES: Final = 32
_CONFIGURATION: Final = """
embedded = {{ data_dir = "{directory}/data" }}
http = {{ bind = "off" }}
[[subscriptions]]
id = "demo"
sink = "{sink}"
secret_files = ["{directory}/secret"]
allow_hosts = ["127.0.0.1"]
start = "earliest"
[[sources]]
name = "demo"
base_url = "{url}"
auth = {{ token_file = "{directory}/token" }}
"""
_FEED: Final = """
[[sources.feeds]]
resource = "{resource}"
interval = "{seconds}s"
"""


def secret_of(directory: Path) -> Path:
    """The file with the secret that webhooks are signed with; made here."""
    return _kept(directory / "secret", new_secret(secrets.token_bytes(_SECRET_BYTES)))


def settings_of(directory: Path, *, url: str, sink: str) -> Settings:
    """The configuration.

    Args:
        directory: for its files and all that the daemon keeps; :func:`secret_of` has been there.
        url: of the sandbox.
        sink: of the receiver.
    """
    _kept(directory / "token", SANDBOX_TOKEN)
    text = _CONFIGURATION.format(directory=directory, url=url, sink=sink)
    for resource, what in RESOURCES.items():
        text += _FEED.format(resource=resource, seconds=2 if what.of_qualification else 1)
    return load(_kept(directory / "poller.toml", text), {})


def _kept(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text, "utf-8")
    return file
