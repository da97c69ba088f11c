"""Laws of :mod:`poller.delivery.sinks.webhook`: signing secrets from files."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path

import pytest
from standardwebhooks import Webhook

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


def test_subscriptions_with_the_same_secrets_share_a_request(tmp_path: Path) -> None:
    """A request of the same events, in the same second, with the same secrets is made and signed once.

    Another second, event, secret, mode or origin makes another one, and so does a secret file that changes.
    """
    secret, other = new_secret(b"s" * 32), new_secret(b"t" * 32)
    batch, later = [SinkEvent(*pair(spelled()))], [SinkEvent(*pair(spelled(id="a2")))]
    file = written(tmp_path / "secret", secret)
    filed = SignedRequests(files=[SecretFile(file, "signing secret")])
    one = SignedRequests(secrets=(secret,))
    first = one.request(batch, 7)
    same = [SignedRequests(secrets=(secret,)), filed]
    assert all(requests.request([SinkEvent(*pair(spelled()))], 7) is first for requests in same)
    others = [
        filed.request(batch, 8),
        filed.request(later, 7),
        SignedRequests(secrets=(other,)).request(batch, 7),
        SignedRequests(secrets=(secret, other)).request(batch, 7),
        SignedRequests("binary", secrets=(secret,)).request(batch, 7),
        SignedRequests("batch", secrets=(secret,)).request(batch, 7),
        SignedRequests(secrets=(secret,), origin="acme.example").request(batch, 7),
        SignedRequests().request(batch, 7),
    ]
    assert not any(request.headers == first.headers for request in others)
    written(file, other)
    assert filed.request(batch, 7).headers == SignedRequests(secrets=(other,)).request(batch, 7).headers
    assert filed.request(batch, 7).headers != first.headers


def test_batches_share_a_request_only_if_all_their_events_are_the_same() -> None:
    """Batches that begin alike, as of a subscription with a filter beside one without, have their own events each."""
    secret = new_secret(b"s" * 32)
    events = [SinkEvent(*pair(spelled(id=f"a{number}"))) for number in range(3)]
    batches = [[events[place] for place in places] for places in ((0,), (0, 1), (0, 2), (0, 1, 2), (1, 0), (2, 1, 0))]
    now = int(time.time())
    subscriptions = [SignedRequests("batch", secrets=(secret,)) for _ in range(2)]
    for batch, requests in product(batches, subscriptions):
        request = requests.request(batch, now)
        assert request.body == b"[%b]" % b",".join(one.data for one in batch)
        Webhook(secret).verify(request.body, dict(request.headers))


def test_a_request_that_others_share_has_the_right_signature() -> None:
    """Whoever has made it first, a shared request verifies with the secret of the subscription that sends it."""
    secrets = [new_secret(bytes([number]) * 32) for number in range(3)]
    forms = [SignedRequests(secrets=(secret,)) for secret in (*secrets, *secrets)]
    batches = [[SinkEvent(*pair(spelled(id=f"a{number}")))] for number in range(5)]
    now = int(time.time())
    for batch in batches:
        for requests, secret in zip(forms, (*secrets, *secrets), strict=True):
            request = requests.request(batch, now)
            assert request.body == batch[0].data
            Webhook(secret).verify(request.body, dict(request.headers))
