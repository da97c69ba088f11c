"""Laws of a sink's path: it may be a secret, as in chat webhooks, so no error or log shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config.http import host_only, path_secrets
from poller.config.load import load
from poller.errors import ConfigurationError
from tests.delivery.sinks import posted
from tests.receiver import Reply, receiving

TOKEN = "xoxHookToken0123456789ab"  # noqa: S105 -- of this test alone
PATH = f"/services/T0123/B0123/{TOKEN}"


@pytest.mark.parametrize(
    ("sink", "shown"),
    [
        (f"https://hooks.example.org{PATH}", "https://hooks.example.org/…"),
        (f"https://hooks.example.org:8443/x?key={TOKEN}", "https://hooks.example.org:8443/…"),
        (f"https://hooks.example.org?key={TOKEN}", "https://hooks.example.org/…"),
        ("https://hooks.example.org/", "https://hooks.example.org/"),
        ("https://hooks.example.org", "https://hooks.example.org"),
        (f"https://u:{TOKEN}@hooks.example.org/x", "https://…"),
        ("?", "?"),
    ],
)
def test_what_everybody_is_shown(sink: str, shown: str) -> None:
    """Scheme, host and port are shown; an ellipsis stands for what may be a secret."""
    assert host_only(sink) == shown


def test_short_parts_are_no_secrets() -> None:
    """Short parts of a path are not redacted, because they occur in other texts."""
    assert path_secrets("https://hooks.example.org/hook") == ()
    assert TOKEN in path_secrets(f"https://hooks.example.org{PATH}")
    assert PATH in path_secrets(f"https://hooks.example.org{PATH}")
    assert "a b c d e f g h i" in path_secrets("https://hooks.example.org/x?k=a%20b%20c%20d%20e%20f%20g%20h%20i")


@pytest.mark.parametrize("status", [200, 404])
async def test_what_a_sink_echoes_is_hidden(status: int) -> None:
    """A path, or a token of it, that the sink echoes is hidden in the error and the stored answer."""
    body = f"Cannot POST {PATH} ({TOKEN})".encode()
    async with receiving() as receiver:
        receiver.answer = Reply(status, body=body)
        outcome = await posted(receiver.url + PATH)
        assert receiver.requests[0].target == PATH
    assert outcome.status == status
    assert TOKEN not in outcome.error
    assert TOKEN.encode() not in outcome.excerpt
    assert b"[redacted]" in outcome.excerpt


def test_a_file_with_a_sink_that_cannot_be_used_does_not_show_its_path(tmp_path: Path) -> None:
    """A configuration error about a sink names the key and the host, but not the path."""
    file = tmp_path / "poller.toml"
    text = """
[[sources]]
name = "a"
base_url = "https://api.example.org"
[[sources.feeds]]
resource = "contractTypes"
[[subscriptions]]
id = "s"
sink = "http://hooks.example.org/x/part"
"""
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigurationError) as refused:
        load(file, {})
    assert 'sink = "http://hooks.example.org/…": expected' in str(refused.value)
