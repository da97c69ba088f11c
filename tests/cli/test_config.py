"""Laws of ``poller config``: the example that it prints is a configuration that the program takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config import load
from tests.cli.conftest import Called


def test_the_example_can_be_used(called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: saved as a file it loads as it stands, and a broken poller.toml in the directory is no obstacle."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "poller.toml").write_text("this is no TOML", "utf-8")
    ended = called("config", "example")
    assert (ended.code, ended.err) == (0, "")
    file = tmp_path / "example.toml"
    file.write_text(ended.out, "utf-8")
    assert load(file, {}).feed_ids[0] == "acme/employmentUnavailabilities"


def test_the_example_is_the_file_of_the_package(called: Called) -> None:
    """Law: it is printed byte for byte, comments included."""
    packaged = Path(__file__).parents[2] / "poller" / "config" / "example.toml"
    assert called("config", "example").out == packaged.read_text("utf-8")
