from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from poller.config.load import load
from poller.config.settings import Settings
from poller.errors import ConfigurationError

SOURCE = '[[sources]]\nname = "acme"\nbase_url = "https://api.example.org/v1"\n'
FEED = '[[sources.feeds]]\nresource = "contractTypes"\n'
SUBSCRIPTION = '[[subscriptions]]\nid = "r"\nsink = "https://r.example.org/hooks"\n'

Loader = Callable[..., Settings]
Complaints = Callable[..., list[str]]


@pytest.fixture
def loaded(tmp_path: Path) -> Loader:
    """Loads a text as a configuration file."""

    def load_text(text: str, environ: Mapping[str, str] | None = None) -> Settings:
        path = tmp_path / "poller.toml"
        path.write_text(text, encoding="utf-8")
        return load(path, environ or {})

    return load_text


@pytest.fixture
def complaints(loaded: Loader, tmp_path: Path) -> Complaints:
    """The error lines for a text, with the path of the file shortened to ``poller.toml``."""

    def refused(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(ConfigurationError) as raised:
            loaded(text, environ)
        return str(raised.value).replace(f"{tmp_path}/", "").split("\n")

    return refused
