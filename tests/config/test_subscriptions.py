"""A subscription as it is stored between processes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from poller.config.subscriptions import SubscriptionSettings

EXAMPLE = Path(__file__).parents[2] / "poller" / "config" / "example.toml"


def test_a_subscription_reads_as_it_was_written() -> None:
    """A subscription with every key set reads back from JSON as the same value."""
    oauth = {"token_url": "https://a.example/token", "client_id": "a", "client_secret_file": "/run/secrets/b"}
    (given,) = tomllib.loads(EXAMPLE.read_text("utf-8"))["subscriptions"]
    files = {name: f"/etc/ssl/{name}.pem" for name in ("ca_file", "client_cert_file", "client_key_file")}
    whole = SubscriptionSettings.model_validate(given | {"auth": {"oauth2": oauth}} | files)
    assert whole.secret_files
    assert whole.model_fields_set == SubscriptionSettings.model_fields.keys()
    kept = whole.model_dump_json(by_alias=True, exclude_unset=True)
    assert SubscriptionSettings.model_validate_json(kept) == whole


def test_certificates_that_could_serve_nothing_are_refused() -> None:
    """A client key without its certificate, or a certificate for a sink without TLS, is refused."""
    given = {"id": "a", "sink": "https://sink.example.org", "client_key_file": "/k.pem"}
    with pytest.raises(ValidationError, match="only together with client_cert_file"):
        SubscriptionSettings.model_validate(given)
    plain = {"id": "a", "sink": "http://127.0.0.1:1", "allow_private": True, "ca_file": "/ca.pem"}
    with pytest.raises(ValidationError, match="only with a sink that is https"):
        SubscriptionSettings.model_validate(plain)
