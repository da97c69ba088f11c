"""The environment overrides the file: what each variable does, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config.load import load
from poller.config.settings import ListenAddress
from poller.errors import ConfigurationError
from poller.resources import RESOURCES
from tests.config.conftest import FEED, SOURCE, Complaints, Loader

BIND = 'expected HOST:PORT such as "127.0.0.1:8080" or "[::1]:8080", or "off"'
LOCAL = {"POLLER_BASE_URL": "http://localhost:8081/"}
TWO = SOURCE + FEED + SOURCE.replace("acme", "beta") + "auth = { none = true }\n" + FEED  # fmt: skip


def test_a_base_url_is_enough() -> None:
    """Without a file POLLER_BASE_URL gives one source, default, with the four resources at 60 s and no credential."""
    (source,) = load(None, LOCAL).sources
    assert (source.name, source.base_url, source.type_prefix) == ("default", "http://localhost:8081", "poller")
    assert source.auth.kind == "none"
    assert [(feed.name, feed.interval and feed.interval.total_seconds()) for feed in source.feeds] == [
        (name, 60) for name in RESOURCES
    ]


def test_a_file_without_sources(loaded: Loader) -> None:
    """A file may leave the source to the environment and configure everything else."""
    settings = loaded('[lease]\nttl = "5s"\n', LOCAL)
    assert settings.feed_ids == tuple(f"default/{name}" for name in RESOURCES)
    assert settings.lease.ttl.total_seconds() == 5


def test_environment_beats_file(loaded: Loader) -> None:
    """REDIS_URL, POLLER_HTTP_BIND and POLLER_DATA_DIR replace their key and leave the rest of the table."""
    text = '[redis]\nurl = "redis://a"\nprefix = "p"\n[http]\nbind = "off"\n[embedded]\ndata_dir = "/a"\n'
    environ = {"REDIS_URL": "redis://b", "POLLER_HTTP_BIND": "[::1]:9", "POLLER_DATA_DIR": "/b", "PORT": "7"}
    settings = loaded(text + SOURCE + FEED, environ)
    assert (settings.redis.url, settings.redis.prefix) == ("redis://b", "p")
    assert (settings.http.bind, settings.embedded.data_dir) == (ListenAddress("::1", 9), Path("/b"))


def test_port_means_all_interfaces() -> None:
    """PORT binds to every interface, as platforms that run a Procfile expect."""
    assert load(None, LOCAL | {"PORT": "5000"}).http.bind == ListenAddress("0.0.0.0", 5000)  # noqa: S104  # that is the law


@pytest.mark.parametrize("port", ["0", "65536", "-1", "5 ", "٣", "http", "1" * 5000])
def test_a_wrong_port(port: str) -> None:
    """An invalid PORT is refused, with the name of the variable."""
    with pytest.raises(ConfigurationError, match=r"^environment PORT = .*: expected a port, 1 to 65535$"):
        load(None, LOCAL | {"PORT": port})


def test_the_end_of_a_line_is_no_part_of_a_value() -> None:
    """A line break at the end of a variable, as from a file, is not part of its value."""
    settings = load(None, {"POLLER_BASE_URL": "https://api.example.org\n", "REDIS_URL": "redis://db:6379/0\r\n"})
    assert (settings.sources[0].base_url, settings.redis.url) == ("https://api.example.org", "redis://db:6379/0")


def test_empty_is_not_set(loaded: Loader) -> None:
    """An empty variable, as compose files set it, changes nothing."""
    names = "REDIS_URL POLLER_BASE_URL POLLER_TOKEN POLLER_TOKEN_FILE POLLER_HTTP_BIND PORT POLLER_DATA_DIR"
    tokens = [f"POLLER_{who}_TOKEN{kind}" for who in ("READ", "ADMIN") for kind in ("", "_FILE")]
    assert loaded(SOURCE + FEED, dict.fromkeys([*names.split(), *tokens], "")) == loaded(SOURCE + FEED)


@pytest.mark.parametrize("who", ["read", "admin"])
def test_tokens_of_the_http_service(who: str, loaded: Loader) -> None:
    """A token file in the environment beats the file's; file and token together are refused, without the token."""
    variable, key = f"POLLER_{who.upper()}_TOKEN", f"{who}_token_file"
    text = f'[http]\n{key} = "a"\n{SOURCE}{FEED}'
    assert getattr(loaded(text, {f"{variable}_FILE": "/b"}).http, key) == Path("/b")
    assert (
        getattr(loaded(text, {variable: "s3cret"}).http, key).name == "a"
    )  # the token itself is read where it is used
    with pytest.raises(ConfigurationError, match=f"{variable}.*not both") as refused:
        loaded(text, {variable: "s3cret", f"{variable}_FILE": "/b"})
    assert "s3cret" not in str(refused.value)


def test_base_url_of_the_only_source(loaded: Loader) -> None:
    """With one source POLLER_BASE_URL replaces its base_url, also a missing one, and the defaults follow it."""
    for text in (SOURCE, SOURCE.replace("base_url", "# base_url")):
        (source,) = loaded(text + FEED, LOCAL).sources
        assert (source.name, source.base_url, source.event_source) == ("acme", *["http://localhost:8081"] * 2)


def test_base_url_of_several_sources(complaints: Complaints) -> None:
    """With several sources POLLER_BASE_URL is an error that says so."""
    expected = (
        "environment POLLER_BASE_URL: expected only with one source: the file has 2, and each has its own base_url"
    )
    assert complaints(TWO, LOCAL) == [expected]


@pytest.mark.parametrize(
    ("environ", "kind"), [({"POLLER_TOKEN": "abc"}, "token_env"), ({"POLLER_TOKEN_FILE": "/t"}, "token_file")]
)
def test_the_credential(environ: dict[str, str], kind: str, loaded: Loader) -> None:
    """With one source the environment's token is its credential, whatever auth the file has."""
    for auth in ("", "auth = { none = true }\n", 'auth = { token_env = "OTHER" }\n', "auth = {}\n"):
        (source,) = loaded(SOURCE + auth + FEED, environ).sources
        assert source.auth.kind == kind
        assert "abc" not in repr(source)
    assert load(None, LOCAL | environ).sources[0].auth.kind == kind


@pytest.mark.parametrize("environ", [{"POLLER_TOKEN": "abc"}, {"POLLER_TOKEN_FILE": "/t"}])
def test_the_credential_of_several_sources(environ: dict[str, str], loaded: Loader, complaints: Complaints) -> None:
    """With several sources the environment's token is not used, and a source without auth is an error."""
    own = TWO.replace(FEED, 'auth = { token_env = "A" }\n' + FEED, 1)
    assert loaded(own, environ) == loaded(own)
    expected = "expected only with one source: the file has 2, and each needs its own auth; none in sources[0]"
    assert complaints(TWO, environ) == [f"environment {next(iter(environ))}: {expected}"]


def test_two_credentials(complaints: Complaints) -> None:
    """POLLER_TOKEN and POLLER_TOKEN_FILE together are an error."""
    lines = complaints(TWO, {"POLLER_TOKEN": "a", "POLLER_TOKEN_FILE": "b"})
    assert lines == ["environment POLLER_TOKEN: expected either POLLER_TOKEN or POLLER_TOKEN_FILE, not both"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("REDIS_URL", "localhost", ('REDIS_URL = "localhost": expected redis://HOST:PORT/DB, rediss://…, unix:///PATH, '
         "redis+sentinel://H:PORT,H2:PORT/SERVICE/DB or redis+cluster://H:PORT,H2:PORT")),
        ("POLLER_BASE_URL", "ftp://h", (
         'POLLER_BASE_URL = "ftp://h": expected a URL that begins with http:// or https:// and a '
         "host, in ASCII")),
        ("POLLER_HTTP_BIND", "x", f'POLLER_HTTP_BIND = "x": {BIND}'),
        ("POLLER_TOKEN_FILE", "a\nb", "POLLER_TOKEN_FILE: expected the path of a file or directory"),
    ],
)  # fmt: skip
def test_a_variable_is_named(name: str, value: str, line: str, complaints: Complaints) -> None:
    """An error in the environment names the variable, not the file."""
    assert complaints(SOURCE + FEED, {name: value}) == [f"environment {line}"]


def test_the_real_environment_is_not_read(monkeypatch: pytest.MonkeyPatch, loaded: Loader) -> None:
    """Only the given environment counts, not the variables of the process."""
    for name in ("redis", "REDIS", "POLLER_redis", "POLLER_REDIS", "REDIS_URL"):
        monkeypatch.setenv(name, '{"url": "redis://elsewhere"}')
    assert loaded(SOURCE + FEED).redis.url is None


def test_wrong_files_stay_wrong(complaints: Complaints) -> None:
    """Variables do not hide errors of the tables that they override."""
    lines = complaints("sources = 1\n", LOCAL | {"POLLER_TOKEN": "a"})
    assert lines == ["poller.toml: sources = 1: expected a list"]
    lines = complaints("sources = [1]\n", LOCAL | {"POLLER_TOKEN": "a"})
    assert lines == ["poller.toml: sources[0] = 1: expected a table"]
