"""A subscription outside the file follows the file's rules and messages, and is stored as it was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poller.config.load import load
from poller.config.settings import Settings
from poller.config.types import SLOWEST
from poller.config.validation import MOST_PROBLEMS, decode_subscription, encode_subscription, subscription_of
from poller.errors import ConfigurationError
from tests.harness.growth import LINEAR, growth

BASE = {"id": "a", "sink": "https://sink.example.org/hook"}
WHOLE = BASE | {
    "feeds": ["default/contractTypes"],
    "types": ["org.example.api.contractType.created.v1"],
    "filters": [{"prefix": {"type": "org."}}, {"not": {"any": [{"exact": {"subject": "x"}}]}}],
    "mode": "batch",
    "batch": {"max_events": 7, "max_bytes": "64KiB", "linger": "1.5s"},
    "start": "earliest",
    "secret_files": ["/run/secrets/a"],
    "headers": {"X-Env": "prod"},
    "auth": {"oauth2": {"token_url": "https://t.example.org", "client_id": "me", "client_secret_file": "/run/s"}},
    "rate": 50,
    "concurrency": 3,
    "timeout": 0.25,
    "retry": {"schedule": ["5s", "30s"], "jitter": 0.5},
    "disable_after": "5d",
    "allow_private": True,
    "validate": True,
}


@pytest.fixture
def settings() -> Settings:
    return load(None, {"POLLER_BASE_URL": "https://api.example.org"})


@pytest.mark.parametrize("values", [BASE, WHOLE])
def test_what_is_kept_is_what_was_given(settings: Settings, values: dict[str, Any]) -> None:
    """A stored subscription reads back the same and encodes to the same bytes, without defaults."""
    given = subscription_of(values, settings, where="x")
    kept = encode_subscription(given)
    assert set(json.loads(kept)) == set(values)
    assert decode_subscription(kept) == given
    assert encode_subscription(decode_subscription(kept)) == kept
    assert encode_subscription(subscription_of(dict(reversed(values.items())), settings, where="x")) == kept


def test_of_a_subscription_that_is_wrong_everywhere_the_first_problems_are_told(settings: Settings) -> None:
    """Of a subscription with thousands of mistakes only the first ones are reported."""
    for many in (
        {"filters": [{f"unknown{number}": 0 for number in range(2_000)}]},
        {"filters": [{"exact": {"source": f"none{number}"}} for number in range(2_000)]},
        {"feeds": [f"default/none{number}" for number in range(2_000)]},
        {"types": [f"none{number}" for number in range(2_000)]},
    ):
        with pytest.raises(ConfigurationError) as wrong:
            subscription_of(BASE | many, settings, where="x")
        assert 0 < str(wrong.value).count("\n") < MOST_PROBLEMS


def test_a_long_value_is_looked_at_in_time_by_its_length_alone(settings: Settings) -> None:
    """The check whether a wrong value looks like a secret takes linear time."""
    for word in ("a", "a/", "-", "aaaaaaaaaaaaaaaaaaaa/"):

        def wrong(size: int, word: str = word) -> None:
            with pytest.raises(ConfigurationError):
                subscription_of(BASE | {"mode": word * (size // len(word))}, settings, where="x")

        assert growth(wrong, 4 * 1024) < LINEAR


WRONG: tuple[tuple[Any, str], ...] = (
    ({"sink": BASE["sink"]}, "id: expected a value: this key is required"),
    (BASE | {"sink": "http://sink.example.org"}, 'sink = "http://sink.example.org": expected https://'),
    (BASE | {"rate": "4"}, 'rate = "4": expected a number'),
    (BASE | {"rat": 4}, 'rat: unknown key; did you mean "rate"?'),
    (BASE | {"feeds": ["default/contractType"]}, 'expected a feed that exists; did you mean "default/contractTypes"?'),
    (BASE | {"feeds": ["default/contractType"], "rate": 0}, "expected a feed that exists"),
    (BASE | {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "a secret has no place in the file"),
    ([], "expected a table"),
    ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "expected a table"),
)


@pytest.mark.parametrize(("values", "says"), WRONG, ids=str)
def test_what_is_wrong_is_said_as_of_the_file(settings: Settings, values: object, says: str) -> None:
    """Each line names the origin, the key and what is expected, and shows no secret."""
    with pytest.raises(ConfigurationError) as caught:
        subscription_of(values, settings, where="--from-json")
    assert says in str(caught.value)
    assert all(line.startswith("--from-json: ") for line in str(caught.value).splitlines())
    assert "MfKQ" not in str(caught.value)


def test_the_same_as_in_a_file(settings: Settings, tmp_path: Path) -> None:
    """A table of the file and the same values given otherwise are stored as the same bytes."""
    file = tmp_path / "poller.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in BASE.items()]
    file.write_text('[[subscriptions]]\nrate = 50\nretry = { schedule = ["300s"] }\n' + "\n".join(lines), "utf-8")
    (one,) = load(file, {"POLLER_BASE_URL": "https://api.example.org"}).subscriptions
    asked = BASE | {"rate": 50.0, "retry": {"schedule": ["5m"]}}
    assert encode_subscription(one) == encode_subscription(subscription_of(asked, settings, where="x"))


def test_what_this_version_cannot_use_is_told() -> None:
    """Unusable settings of another version are refused, and nothing of them is repeated."""
    later = b'{"id":"a","sink":"https://s.example.org","later":"secret"}'
    for kept in (later, b"secret", b'"secret \xff"', b"[" * 100_000):
        with pytest.raises(ConfigurationError, match="this version cannot use") as caught:
            decode_subscription(kept)
        assert "secret" not in str(caught.value)


def test_a_rate_that_was_kept_and_is_refused_by_now_is_the_slowest() -> None:
    """A stored rate that is now too low is read as the slowest rate."""
    assert decode_subscription(json.dumps(BASE | {"rate": 1e-300}).encode()).rate == SLOWEST
    assert decode_subscription(json.dumps(BASE | {"rate": 0.5}).encode()).rate == 0.5
