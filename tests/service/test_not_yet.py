"""What is configured and not done is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config.load import load
from poller.service.checking import check
from poller.service.not_yet import not_yet
from tests.config.conftest import FEED, SOURCE, SUBSCRIPTION

HTTP, RETENTION = '[http]\nadmin_token_file = "/t"\n', '[retention]\nage = "1d"\n'


def tables(directory: Path, text: str) -> list[str]:
    file = directory / "poller.toml"
    file.write_text(text, "utf-8")
    return [found.table for found in not_yet(load(file, {}))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", []),
        ('[http]\nbind = "off"\n', []),
        ("[http]\n[retention]\n", []),
        (HTTP, ["http"]),
        ('[http]\nbind = "127.0.0.1:1"\n', []),
        (RETENTION, []),
        (RETENTION + HTTP + SUBSCRIPTION, ["http"]),
    ],
)
def test_what_is_set_and_not_done(text: str, said: list[str], tmp_path: Path) -> None:
    """Law: each table that was set and does nothing is told once, and nothing that nobody set."""
    assert tables(tmp_path, text + SOURCE + FEED) == said


async def test_check_says_it(tmp_path: Path) -> None:
    """Law: ``check`` has a warning for each such table, whatever else is wrong."""
    file = tmp_path / "poller.toml"
    embedded = f'[embedded]\ndata_dir = "{tmp_path}/data"\n'
    unusable = f'ca_file = "{tmp_path}/absent"\n'  # so that nothing is asked
    file.write_text(embedded + RETENTION + HTTP + SOURCE + unusable + FEED, "utf-8")
    found = [(one.severity, one.subject) async for one in check(load(file, {}), {})]
    assert found[-2:] == [
        ("error", "source acme"),
        ("warning", "http"),
    ]
