"""Laws of :mod:`poller.delivery.sinks.webhook`: signing secrets from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.auth.base import SecretFile
from poller.delivery.signing import SecretUnusable, new_secret
from poller.delivery.sinks.base import SinkEvent
from poller.delivery.sinks.webhook import SignedRequests
from poller.errors import CredentialUnusable
from tests.delivery.events import pair, spelled


def written(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    return path


def test_which_file_holds_no_secret_is_said(tmp_path: Path) -> None:
    """Law: an unusable secret file is named at each request without its content; once corrected, all secrets sign."""
    good, bad = written(tmp_path / "good", new_secret(b"s" * 32)), written(tmp_path / "bad", "whsec_c2VjcmV0")
    requests = SignedRequests(files=[SecretFile(file, "signing secret") for file in (good, bad)])
    batch = [SinkEvent(*pair(spelled()))]
    for _ in range(2):
        with pytest.raises(SecretUnusable) as refused:
            requests.request(batch, 0)
        assert str(refused.value).startswith(f"the file {bad} holds no signing secret: expected 24 to 64 bytes")
        assert "c2VjcmV0" not in str(refused.value)
    bad.unlink()
    with pytest.raises(
        CredentialUnusable, match=f"the signing secret cannot be read from the file {bad}: No such file"
    ):
        requests.request(batch, 0)
    written(bad, new_secret(b"t" * 32))
    assert requests.request(batch, 0).headers["webhook-signature"].count("v1,") == 2
