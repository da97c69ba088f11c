"""The demo's configuration: the one that runs, and the one that ``--keep`` leaves to go on with.

**Invariants**

- Both are the same text with other addresses, loaded as any configuration is.
- Nothing that exists is overwritten. Files that hold a secret are their owner's alone.
"""

from __future__ import annotations

import secrets
from importlib.resources import files
from pathlib import Path
from typing import Final

from poller.config.load import load
from poller.config.settings import Settings
from poller.delivery.signing import new_secret
from poller.errors import ConfigurationError
from poller.sandbox.history import RESOURCES
from poller.sandbox.server import SANDBOX_TOKEN

_SECRET_BYTES: Final = 32
_CONFIGURATION: Final = """\
# `poller sandbox` plays the API, `python receiver.py` takes the webhooks, `poller schema config` describes every key.

[embedded]
data_dir = "data"                        # an embedded Valkey keeps its data here; or: [redis] url = "redis://..."

[http]
bind = "{bind}"                  # the page, health, metrics

[[sources]]
name = "acme"
base_url = "{url}"       # the address of your API
auth = {{ token_file = "token" }}          # its bearer token

[[subscriptions]]
id = "rostering"
sink = "{sink}"
allow_hosts = ["127.0.0.1"]              # else a sink on this machine is refused
secret_files = ["secret"]                # signs the webhooks
start = "earliest"                       # what is there already comes first
"""
_FEED: Final = """
[[sources.feeds]]
resource = "{resource}"
interval = "{seconds}s"
"""
_KEPT_FILES: Final = ("poller.toml", "token", "secret", "receiver.py", "data")


def secret_of(directory: Path) -> Path:
    """Make the file with the secret that signs webhooks."""
    return _write(directory / "secret", new_secret(secrets.token_bytes(_SECRET_BYTES)))


def settings_of(directory: Path, *, url: str, sink: str, bind: str) -> Settings:
    """The configuration of the demo that runs.

    Args:
        directory: for its files and all that the daemon keeps; :func:`secret_of` has been there.
        url: of the sandbox.
        sink: of the receiver.
        bind: where the page is served.
    """
    return load(_configure(directory, url=url, sink=sink, bind=bind, achievements=2, others=1), {})


def keep(directory: Path) -> None:
    """Leave a configuration, a token, a secret and a receiver for the sandbox at its usual address.

    Raises:
        ConfigurationError: one of the files exists, or the directory cannot be written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in _KEPT_FILES:
            if (directory / name).exists():
                raise ConfigurationError(f"--keep {directory}: {name} is there already; name a directory without it")
        secret_of(directory)
        receiver = files("poller.sandbox").joinpath("sample_receiver.py").read_text("utf-8")
        _write(directory / "receiver.py", receiver)
        _configure(
            directory,
            url="http://127.0.0.1:8090",
            sink="http://127.0.0.1:8000/",
            bind="127.0.0.1:8080",
            achievements=10,
            others=5,
        )
    except OSError as error:
        raise ConfigurationError(f"--keep {directory}: {error.strerror or error}") from error


def _configure(directory: Path, *, url: str, sink: str, bind: str, achievements: int, others: int) -> Path:
    _write(directory / "token", SANDBOX_TOKEN)
    text = _CONFIGURATION.format(url=url, sink=sink, bind=bind)
    head, subscriptions, rest = text.partition("\n[[subscriptions]]")
    for resource, what in RESOURCES.items():
        head += _FEED.format(resource=resource, seconds=achievements if what.of_qualification else others)
    return _write(directory / "poller.toml", head + subscriptions + rest)


def _write(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text, "utf-8")
    return file
