"""Laws of :mod:`poller.config.paths`: what a relative path is relative to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from pydantic import BaseModel

from poller.config import Settings, load
from poller.config.paths import based
from poller.config.subscribing import kept_subscription, subscription_of, written
from tests.config.conftest import FEED, SOURCE, SUBSCRIPTION, Loader

EVERY = """
embedded = { data_dir = "down/data" }
http = { admin_token_file = "admin", read_token_file = "read" }
[[sources]]
name = "a"
base_url = "https://api.example.org"
auth = { token_file = "token" }
ca_file = "tls/ca"
client_cert_file = "tls/cert"
client_key_file = "./tls/key"
feeds = [{ resource = "contractTypes" }]
[[sources]]
name = "b"
base_url = "https://api.example.org"
auth = { oauth2 = { token_url = "https://id.example.org", client_id = "c", client_secret_file = "../client" } }
feeds = [{ resource = "contractTypes" }]
[[subscriptions]]
id = "a"
sink = "https://a.example.org"
secret_files = ["new", "old"]
auth = { token_file = "token" }
ca_file = "sinks/ca"
client_cert_file = "sinks/cert"
client_key_file = "sinks/key"
[[subscriptions]]
id = "b"
sink = "https://b.example.org"
auth = { oauth2 = { token_url = "https://id.example.org", client_id = "c", client_secret_file = "client" } }
"""


def keys_of_paths(kind: Any, at: str = "") -> set[str]:
    """By the types: the key of every value that is a path."""
    if kind is Path:
        return {at}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = {(name, field.annotation) for name, field in kind.model_fields.items() if name != "filters"}
        return {key for name, one in inner for key in keys_of_paths(one, f"{at}.{name}".lstrip("."))}
    return {key for one in get_args(kind) for key in keys_of_paths(one, at)}


def keys(at: str = "", kind: Any = Settings) -> set[str]:
    """By the names: every key that sounds like one of a path."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        found = {f"{at}.{name}".lstrip(".") for name in kind.model_fields if name.endswith(("_file", "_files", "_dir"))}
        inner = ((name, field.annotation) for name, field in kind.model_fields.items() if name != "filters")
        return found.union(*(keys(f"{at}.{name}".lstrip("."), one) for name, one in inner))
    return set[str]().union(*(keys(at, one) for one in get_args(kind)))


def texts(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Key and text of each value of a file."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from texts(one, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, at)
    elif isinstance(value, str):
        yield at, value


def paths(value: Any, at: str = "") -> Iterator[tuple[str, Path]]:
    """Key and path, of the settings."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from paths(getattr(value, name), f"{at}.{name}".lstrip("."))
    elif isinstance(value, tuple):
        for one in value:
            yield from paths(one, at)
    elif isinstance(value, Path):
        yield at, value


def test_every_path_of_a_file_is_relative_to_its_directory(loaded: Loader, tmp_path: Path) -> None:
    """Law: each key that there is, by the settings' own types; the file that is loaded here has one of every kind."""
    wanted = keys_of_paths(Settings)
    assert wanted == keys()
    meant = sorted((key, tmp_path / text) for key, text in texts(tomllib.loads(EVERY)) if key in wanted)
    assert {key for key, _ in meant} == wanted
    found = sorted(paths(loaded(EVERY)))
    assert found == meant
    assert all(path.is_absolute() for _, path in found)


def test_wherever_the_program_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a file that is named relative to the working directory means the same as by its whole name."""
    (tmp_path / "trial").mkdir()
    file = tmp_path / "trial" / "poller.toml"
    file.write_text(EVERY, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert load(Path("trial/poller.toml"), {}) == load(file, {})


def test_what_is_absolute_stays(loaded: Loader) -> None:
    """Law: and so does what names no file: a program that is looked for on the PATH, the arguments of one."""
    text = f'{SOURCE}auth = {{ command = ["print", "./acme"] }}\nca_file = "/etc/ca"\n{FEED}'
    (source,) = loaded(text).sources
    assert (source.ca_file, source.auth.command) == (Path("/etc/ca"), ("print", "./acme"))


def test_a_program_with_a_slash_is_a_path(loaded: Loader, tmp_path: Path) -> None:
    """Law: as a shell has it."""
    (source,) = loaded(f'{SOURCE}auth = {{ command = ["./bin/print", "acme"] }}\n{FEED}').sources
    assert source.auth.command == (f"{tmp_path}/bin/print", "acme")


def test_the_files_of_a_redis_url(loaded: Loader, tmp_path: Path) -> None:
    """Law: the options that name files are relative to it as well, and nothing else of the URL is touched."""
    text = '[redis]\nurl = "rediss://h:1/2?ssl_ca_certs=tls/a%20ca.pem&protocol=3&ssl_keyfile=/k"\n' + SOURCE + FEED
    path = f"{tmp_path}/tls/a%20ca.pem"
    assert loaded(text).redis.url == f"rediss://h:1/2?ssl_ca_certs={path}&protocol=3&ssl_keyfile=/k"


def test_the_environment_is_not_the_file(loaded: Loader, tmp_path: Path) -> None:
    """Law: what it names is relative to the working directory, as it is for every other program; the rest as ever."""
    url = "rediss://h?ssl_ca_certs=ca.pem"
    environ = {"POLLER_TOKEN_FILE": "token", "POLLER_DATA_DIR": "data", "REDIS_URL": url}
    settings = loaded(f'[embedded]\ndata_dir = "other"\n{SOURCE}ca_file = "ca"\n{FEED}', environ)
    (source,) = settings.sources
    assert (source.auth.token_file, settings.embedded.data_dir, settings.redis.url) == (
        Path("token"),
        Path("data"),
        url,
    )
    assert source.ca_file == tmp_path / "ca"


def test_what_is_kept_names_the_same_file_for_everybody(loaded: Loader, tmp_path: Path) -> None:
    """Law: what goes into the registry is absolute, by the file and by the command line; what was not said stays so."""
    settings = loaded(SOURCE + FEED + SUBSCRIPTION + 'secret_files = ["secret"]')
    (one,) = settings.subscriptions
    kept = msgspec.json.decode(written(one))
    assert kept == {"id": "r", "sink": "https://r.example.org/hooks", "secret_files": [f"{tmp_path}/secret"]}
    assert kept_subscription(written(one)) == one
    typed = subscription_of(kept | {"secret_files": ["secret"], "auth": {"token_file": "t"}}, settings, where="x")
    after = msgspec.json.decode(written(based(typed, here := tmp_path / "here")))
    assert after == kept | {"secret_files": [f"{here}/secret"], "auth": {"token_file": f"{here}/t"}}
