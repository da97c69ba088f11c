"""Loading the configuration: which file is read, how errors are reported, and what relative paths mean."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from pydantic import BaseModel

from poller.config.http import AUTH_KINDS
from poller.config.load import LARGEST, find_file, load, read_file, with_absolute_paths
from poller.config.settings import Settings
from poller.config.subscriptions import SINKS
from poller.config.validation import decode_subscription, encode_subscription, subscription_of
from poller.errors import ConfigurationError
from tests.config.conftest import FEED, SOURCE, SUBSCRIPTION, Complaints, Loader


def test_which_file(tmp_path: Path) -> None:
    """--config beats $POLLER_CONFIG beats ./poller.toml, which counts only if it exists."""
    environ = {"POLLER_CONFIG": "b.toml"}
    assert find_file(None, {}, tmp_path) is None
    (tmp_path / "poller.toml").touch()
    assert find_file(None, {"POLLER_CONFIG": ""}, tmp_path) == tmp_path / "poller.toml"
    assert find_file(None, environ, tmp_path) == tmp_path / "b.toml"
    assert find_file(Path("a.toml"), environ, tmp_path) == tmp_path / "a.toml"
    assert find_file(Path("/etc/a.toml"), environ, tmp_path) == Path("/etc/a.toml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = \n", "line 2, column 5: not valid TOML: invalid value"),
        (b"a = [1", "line 1, column 7: not valid TOML: unclosed array"),
        (b"a = 1\n\xff = 2", "line 2: expected text in UTF-8"),
        (b"a = " + b"[" * 5000, "expected tables, lists and numbers of a reasonable depth and length"),
        (b"a = " + b"1" * 5000, "expected tables, lists and numbers of a reasonable depth and length"),
        (b"#" * (LARGEST + 1), "expected a TOML file of at most 4 MiB"),
    ],
    ids=range(6),
)
def test_unreadable_content(content: bytes, message: str, tmp_path: Path) -> None:
    """A file that is not TOML is refused with file, line and column."""
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refused:
        read_file(path)
    assert str(refused.value) == f"{path}: {message}"


def test_unreadable_places(tmp_path: Path) -> None:
    """A missing file, a directory and an invalid path are different errors."""
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    for path, message in (
        (tmp_path / "no.toml", "there is no such file"),
        (tmp_path, "this is a directory; expected a TOML file"),
        (loop, "cannot be read: Too many levels of symbolic links"),
        (Path("a\0b"), "cannot be read: not a path"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            read_file(path)
        assert str(refused.value) == f"{path}: {message}"


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """A byte order mark at the start of a file is skipped."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_file(path) == {"a": 1}


# Errors: all problems are reported at once, each with its place and what is expected.

S, F = "sources[0]", "sources[0].feeds[0]"
DURATION = 'expected a duration such as "500ms", "30s", "5m", "24h" or "7d", or a number of seconds'
KIND = (
    'expected exactly one of { token_file = "…" }, { token_env = "NAME" }, { oauth2 = { … } }, { command = ["…"] } '
    "or { none = true }"
)
BIND = 'expected HOST:PORT such as "127.0.0.1:8080" or "[::1]:8080", or "off"'
EITHER_DAY = (
    "expected either a day of the month or a weekday, the other of them *: for days that fit either, use two feeds"
)
CRON = 'expected five cron fields (minute, hour, day, month, weekday; UTC) that come due, such as "*/5 * * * *"'
HTTP = "expected a URL that begins with http:// or https:// and a host, in ASCII"
ONE = "expected exactly one of exact, prefix, suffix, all, any, not; join several with all"
HOUSEKEEPING = [
    ('[lease]\nttl = "100ms"', 'lease.ttl = "100ms": expected 500ms to 10m'),
    ('[lease]\nttl = "11m"', 'lease.ttl = "11m": expected 500ms to 10m'),
    ("[lease]\nttl = nan", f"lease.ttl: {DURATION}"),
    ('[redis]\nprefix = "{x}"', 'redis.prefix = "{x}": expected 1 to 64 letters, digits and any of _ . : -'),
    ('[redis]\ndurability = "yes"', 'redis.durability = "yes": expected "require", "warn" or "ignore"'),
    ('[http]\nbind = "8080"', 'http.bind = "8080": ' + BIND),
    ('[http]\nbind = "h:70000"', 'http.bind = "h:70000": ' + BIND),
    ("[retention]\nage = 0", "retention.age = 0: expected 1s to 3650d"),
    ('[retention]\nmax_bytes = "1XB"', (
     'retention.max_bytes = "1XB": expected a size such as "64KiB", "16MiB" or "1GiB", '
     "or a number of bytes")),
    ("http = 1", "http = 1: expected a table"),
    ("[embedded]\ndata_dir = ''", 'embedded.data_dir = "": expected the path of a file or directory'),
    ("retension = {}", 'retension: unknown key; did you mean "retention"?'),
    ("zzz = 1", "zzz: unknown key; known are redis, embedded, lease, http, retention, sources, subscriptions"),
]  # fmt: skip
SOURCES = [
    ("rate = 0", f"{S}.rate = 0: expected more than 0"),
    ("rate = inf", f"{S}.rate: expected a number"),
    ("rate = 1e-300", f"{S}.rate = 1e-300: expected 0.0001 or more: a request in three hours"),
    ("rate = 1e300", f"{S}.rate: expected 1000000 or less"),
    ("concurrency = 10001", f"{S}.concurrency = 10001: expected 10000 or less"),
    ("concurrency = 0", f"{S}.concurrency = 0: expected 1 or more"),
    ("concurrency = true", f"{S}.concurrency = true: expected a whole number"),
    ('timeout = "0s"', f'{S}.timeout = "0s": expected 10ms to 1h'),
    ("type_prefix = ''", f'{S}.type_prefix = "": expected words joined by dots, such as "org.example.api"'),
    ('proxy = "socks://h"', f'{S}.proxy = "socks://h": {HTTP}'),
    ('client_key_file = "k"', f"{S}.client_key_file: expected only together with client_cert_file"),
    ("auth = {}", f"{S}.auth: {KIND}"),
    ('auth = { token_file = "a", none = true }', f"{S}.auth: {KIND}"),
    ("auth = { none = false }", f"{S}.auth.none: expected true; leave none out where there is another kind"),
    ("auth = { command = [] }", f"{S}.auth.command: expected at least one entry"),
    ('auth = { oauth2 = { client_id = "a", client_secret_file = "b" } }',
     f"{S}.auth.oauth2.token_url: expected a value: this key is required"),
    ('headers = { "a b" = "c" }', f"{S}.headers: expected header names of letters, digits and hyphens"),
    ('headers = { a = "b\\r\\nc: d" }',
     f"{S}.headers: expected a value of a without line breaks, control characters or spaces around it"),
    ('headers = { Host = "b" }', f"{S}.headers: expected no Host: the program sets it"),
    ('interval = "30s"', f"{S}.interval: unknown key; it belongs in [[sources.feeds]]"),
]  # fmt: skip
FEEDS = [
    ('interval = "5 parsecs"', f'{F}.interval = "5 parsecs": {DURATION}'),
    ('interval = "50ms"', f'{F}.interval = "50ms": expected 100ms to 366d'),
    ('interval = "1m"\ncron = "* * * * *"', f'{F}.interval = "1m": expected either interval or cron, not both'),
    ('cron = "61 * * * *"', f'{F}.cron = "61 * * * *": ' + CRON),
    ('cron = "0 0 31 2 *"', f'{F}.cron = "0 0 31 2 *": ' + CRON),
    ('cron = "0 0 13 * 5"', f'{F}.cron = "0 0 13 * 5": ' + EITHER_DAY),
    ('interval = "3s"\njitter = "3s"', f'{F}.jitter = "3s": expected less than the interval of 3s'),
    ('jitter = "1m"', f'{F}.jitter = "1m": expected less than the interval of 1m'),
    ('cron = "*/5 8 * * *"\njitter = "300d"', (
     f'{F}.jitter = "300d": expected less than 5m, the time between two polls of cron')),
    ('cron = "0 8 * * 1"\njitter = "7d"', (
     f'{F}.jitter = "7d": expected less than 7d, the time between two polls of cron')),
    ("limit = 0", f"{F}.limit = 0: expected 1 or more"),
    ("limit = 2147483648", f"{F}.limit = 2147483648: expected 2147483647 or less"),
    ('limit = "5"', f'{F}.limit = "5": expected a whole number'),
    ("fields = []", f"{F}.fields = []: expected at least one entry"),
    ('fields = ["a", "a"]', f'{F}.fields = ["a", "a"]: expected no entry twice'),
    ('fields = "id"', f'{F}.fields = "id": expected a list'),
    ('delta = "always"', f'{F}.delta = "always": expected "on", "off" or "auto"'),
    ("partial = 1", f"{F}.partial = 1: expected true or false"),
    ("expired_statuses = [200]", f"{F}.expired_statuses[0] = 200: expected 400 or more"),
    ('max_removals = "0%"', f'{F}.max_removals = "0%": expected a share of more than 0% and at most 100%'),
    ("reconcile = true", f'{F}.reconcile = true: {DURATION}, or "off"'),
    ('ignore = ["a"]', f'{F}.ignore[0] = "a": expected a JSON pointer (RFC 6901) such as "/lastModifiedAt"'),
    ('ignore = ["/~2"]', f'{F}.ignore[0] = "/~2": expected a JSON pointer (RFC 6901) such as "/lastModifiedAt"'),
    ('path = "/../x"', f'{F}.path = "/../x": expected a path such as "/positions", without a query and without {{…}}'),
    ('path = "/%2e./x"',
     f'{F}.path = "/%2e./x": expected a path such as "/positions", without a query and without {{…}}'),
    ('detail_path = "/x"', f'{F}.detail_path = "/x": expected a path with {{id}} in it, such as "/positions/{{id}}"'),
    ('qualifications = "auto"', f'{F}.qualifications = "auto": expected only where resource is achievements'),
    ("intervall = 3", f'{F}.intervall: unknown key; did you mean "interval"?'),
    ("concurrency = 4", f"{F}.concurrency: unknown key; it belongs in [[sources]] or [[subscriptions]]"),
    ("id_field = 'a\"b'",
     rf'{F}.id_field = "a\"b": expected text without quotation marks, backslashes and control characters'),
    (r"id_field = 'a\b'",
     rf'{F}.id_field = "a\\b": expected text without quotation marks, backslashes and control characters'),
    ('[[sources.feeds]]\nresource = "positions"',
     ('sources[0].feeds[1].path: expected a path such as "/positions" for the resource "positions", which is none of '
     "evidenceVariants, employmentUnavailabilities, contractTypes, achievements")),
    ('[[sources.feeds]]\nresource = "achievments"',
     ('sources[0].feeds[1].path: expected a path such as "/positions" for the resource "achievments", which is none of '
      'evidenceVariants, employmentUnavailabilities, contractTypes, achievements; did you mean "achievements"?')),
    ('[[sources.feeds]]\nresource = "achievements"\npath = "/x"',
     'sources[0].feeds[1].path = "/x": expected no path: achievements are listed per qualification'),
    ('[[sources.feeds]]\nresource = "achievements"\ndetail_path = "/{id}"',
     'sources[0].feeds[1].detail_path = "/{id}": expected no detail_path: achievements are list-only'),
    ('[[sources.feeds]]\nresource = "achievements"\ndelta = "on"',
     'sources[0].feeds[1].delta = "on": expected "auto" or "off": achievements have no delta'),
    ('[[sources.feeds]]\nresource = "achievements"\nqualifications = ["a/b"]',
     ('sources[0].feeds[1].qualifications = ["a/b"]: '
      'expected ids of 1 to 128 letters, digits and - . _ ~, no "." or ".."')),
    ('[[sources.feeds]]\nresource = "achievements"\nqualifications = [".."]',
     ('sources[0].feeds[1].qualifications = [".."]: '
      'expected ids of 1 to 128 letters, digits and - . _ ~, no "." or ".."')),
    (FEED, 'sources[0].feeds[1].name = "contractTypes": expected another name: sources[0].feeds[0] has this one'),
    (SOURCE + FEED, 'sources[1].name = "acme": expected another name: sources[0] has this one'),
]  # fmt: skip
R = "subscriptions[0]"
SUBSCRIPTIONS = [
    ('feeds = ["acme/contractType"]', (f'{R}.feeds[0] = "acme/contractType": expected a feed that exists; '
     'did you mean "acme/contractTypes"?')),
    ('feeds = ["zzz/1"]', f'{R}.feeds[0] = "zzz/1": expected a feed that exists; there are acme/contractTypes'),
    ('feeds = ["contractTypes"]', f'{R}.feeds[0] = "contractTypes": expected a feed as SOURCE/NAME'),
    ("feeds = []", f"{R}.feeds = []: expected at least one entry"),
    ("filters = [{}]", f"{R}.filters[0]: {ONE}"),
    ('filters = [{ exact = { subject = "a" }, prefix = { type = "a" } }]',
     f"{R}.filters[0]: {ONE}"),
    ('filters = [{ not = { any = [{ exakt = { type = "a" } }] } }]',
     f'{R}.filters[0].not.any[0].exakt: unknown key; did you mean "exact"?'),
    ('filters = [{ sql = "x" }]', f"{R}.filters[0].sql: unknown key; known are exact, prefix, suffix, all, any, not"),
    ('filters = [{ exact = { Type = "a" } }]',
     f"{R}.filters[0].exact: expected names of CloudEvents attributes: lower-case letters and digits"),
    ("filters = [{ all = [] }]", f"{R}.filters[0].all = []: expected at least one entry"),
    ('mode = "btach"', f'{R}.mode = "btach": expected "structured", "binary" or "batch"'),
    ("batch = { max_events = 0 }", f"{R}.batch.max_events = 0: expected 1 or more"),
    ("rate = 5e-324", f"{R}.rate = 5e-324: expected 0.0001 or more: a request in three hours"),
    ("rate = nan", f"{R}.rate: expected a number"),
    ("batch = { max_events = 10001 }", f"{R}.batch.max_events = 10001: expected 10000 or less"),
    ("retry = { jitter = 2 }", f"{R}.retry.jitter = 2: expected 1 or less"),
    ('retry = { schedule = ["5s", "-1s"] }', f'{R}.retry.schedule[1] = "-1s": {DURATION}'),
    ('headers = { webhook-id = "1" }', f"{R}.headers: expected no webhook-id: the delivery sets it"),
    ('allow_hosts = ["10.1.2.3/16"]',
     f'{R}.allow_hosts[0] = "10.1.2.3/16": expected a host name, an IP address or a network such as "10.1.0.0/16"'),
    ('[[subscriptions]]\nid = "f"\nsink = "ftp://f.example.org/x"',
     ('subscriptions[1].sink = "ftp://f.example.org/…": expected a URL that begins with https://, http://, tls:// or '
      "nats:// and a host, in ASCII")),
    ("validate = 1", f"{R}.validate = 1: expected true or false"),
    ("handshake = true", (
     f"{R}.handshake: unknown key; known are id, allow_private, allow_hosts, sink, feeds, types, filters, when, "
     "fields, thin, mode, batch, start, secret_files, headers, auth, ca_file, client_cert_file, client_key_file, rate, "
     "concurrency, timeout, retry, disable_after, validate")),
    ('[[subscriptions]]\nid = "r"\nsink = "http://r.example.org/hooks"',
     ('subscriptions[1].sink = "http://r.example.org/…": expected https://; http:// only with allow_private '
      "= true, or to a host of allow_hosts"),
     'subscriptions[1].id = "r": expected another id: subscriptions[0] has this one'),
]  # fmt: skip
CASES = [
    *((text + "\n" + SOURCE + FEED, lines) for text, *lines in HOUSEKEEPING),
    *((SOURCE + text + "\n" + FEED, lines) for text, *lines in SOURCES),
    *((SOURCE + FEED + text, lines) for text, *lines in FEEDS),
    *((SOURCE + FEED + SUBSCRIPTION + text, lines) for text, *lines in SUBSCRIPTIONS),
    (SOURCE, [f"{S}.feeds: expected a value: this key is required"]),
    (SOURCE + "feeds = []", [f"{S}.feeds = []: expected at least one entry"]),
    ('[[sources]]\nname = "Acme"\nbase_url = "/"\n' + FEED, [
        f'{S}.name = "Acme": expected 1 to 32 lower-case letters, digits and -, the first not a -',
        f'{S}.base_url = "/": expected a URL that begins with http:// or https:// and a host, in ASCII']),
]  # fmt: skip


@pytest.mark.parametrize(("text", "lines"), CASES, ids=[str(at) for at in range(len(CASES))])
def test_every_problem_has_its_line(text: str, lines: list[str], complaints: Complaints) -> None:
    """Each problem has one line with file, key path, value and what is expected; there are no other lines."""
    assert complaints(text) == [f"poller.toml: {line}" for line in lines]


def test_all_problems_at_once(complaints: Complaints) -> None:
    """Problems within and between tables, of file and environment, are reported together."""
    text = (
        SOURCE
        + "rate = 0\n"
        + FEED
        + 'limit = 0\nintervall = 1\njitter = "2m"\n'
        + SUBSCRIPTION * 2
        + 'feeds = ["x/y"]'
    )
    found = complaints(text, {"PORT": "x"})
    keys = [": ".join(line.split(": ")[: 1 if line.startswith("env") else 2]).partition(" = ")[0] for line in found]
    assert keys == [
        "environment PORT",
        *(f"poller.toml: {key}" for key in (f"{S}.rate", f"{F}.jitter", f"{F}.limit")),
        f"poller.toml: {F}.intervall",
        "poller.toml: subscriptions[1].id",
    ]  # fmt: skip


def test_no_source() -> None:
    """Without any configuration the message names the three ways to begin."""
    with pytest.raises(
        ConfigurationError, match=r"^configuration: no source: .*\[\[sources\]\].*POLLER_BASE_URL.*`poller demo`$"
    ):
        load(None, {})


@pytest.mark.parametrize("text", ["", "[redis]\n", "sources = []"])
def test_a_file_without_sources(text: str, complaints: Complaints) -> None:
    """The error for a file without a source names the file."""
    assert [line[:24] for line in complaints(text)] == ["poller.toml: no source: "]


def test_no_jargon(complaints: Complaints) -> None:
    """No message names the validation library or its terms."""
    text = "\n".join(complaints(text)[0] for text, _ in CASES)
    for word in ("Input should", "pydantic", "errors.", "validation", "Value error", "None", "dict", "str", "tuple"):
        assert word not in text.replace("string", "").replace("structured", "")


def test_defaults(loaded: Loader) -> None:
    """A minimal feed gets every default of the contract."""
    settings = loaded(SOURCE + FEED + SUBSCRIPTION)
    (source,), (wanted,) = settings.sources, settings.subscriptions
    (feed,) = source.feeds
    assert (source.event_source, source.type_prefix, source.auth.kind) == (source.base_url, "org.example.api", "none")
    assert feed.interval is not None
    assert (feed.name, feed.interval.total_seconds(), feed.jitter.total_seconds()) == ("contractTypes", 60, 6)
    assert (wanted.feeds, wanted.types, wanted.auth.kind, wanted.handshake, wanted.rate) == (
        None,
        None,
        "none",
        False,
        None,
    )


def test_cron_takes_the_place_of_the_interval(loaded: Loader) -> None:
    """With cron there is no interval, and no jitter unless configured."""
    feed = loaded(SOURCE + FEED + 'cron = "*/5 * * * *"').sources[0].feeds[0]
    assert (feed.cron, feed.interval, feed.jitter.total_seconds()) == ("*/5 * * * *", None, 0)


def test_a_path_is_required_to_exist(tmp_path: Path) -> None:
    """A given file that does not exist is an error, not an empty configuration."""
    with pytest.raises(ConfigurationError, match=r"no\.toml: there is no such file$"):
        load(tmp_path / "no.toml", {"POLLER_BASE_URL": "http://localhost"})


# Relative paths.

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

[[subscriptions]]
id = "n"
sink = "tls://nats.example.org/a"
auth = { user = { name = "u", password_file = "password" } }

[[subscriptions]]
id = "o"
sink = "tls://nats.example.org/a"
auth = { credentials_file = "poller.creds" }
"""


def keys_of_paths(kind: Any, at: str = "") -> set[str]:
    """The key of every value that is a path by its type."""
    if kind is Path:
        return {at}
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        inner = {(name, field.annotation) for name, field in kind.model_fields.items() if name != "filters"}
        return {key for name, one in inner for key in keys_of_paths(one, f"{at}.{name}".lstrip("."))}
    return {key for one in get_args(kind) for key in keys_of_paths(one, at)}


def keys(at: str = "", kind: Any = Settings) -> set[str]:
    """Every key that names a path by its ending."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        found = {f"{at}.{name}".lstrip(".") for name in kind.model_fields if name.endswith(("_file", "_files", "_dir"))}
        inner = ((name, field.annotation) for name, field in kind.model_fields.items() if name != "filters")
        return found.union(*(keys(f"{at}.{name}".lstrip("."), one) for name, one in inner))
    return set[str]().union(*(keys(at, one) for one in get_args(kind)))


def texts(value: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Key and text of each string in a file."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from texts(one, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, at)
    elif isinstance(value, str):
        yield at, value


def paths(value: Any, at: str = "") -> Iterator[tuple[str, Path]]:
    """Key and path of each path in the settings."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from paths(getattr(value, name), f"{at}.{name}".lstrip("."))
    elif isinstance(value, tuple):
        for one in value:
            yield from paths(one, at)
    elif isinstance(value, Path):
        yield at, value


def test_every_path_of_a_file_is_relative_to_its_directory(loaded: Loader, tmp_path: Path) -> None:
    """Each path of a file, by the settings' own types, is relative to the file's directory."""
    wanted = keys_of_paths(Settings)
    assert wanted == keys()
    of_sinks = set[str]().union(*(sink.auth for sink in SINKS.values()))
    wanted -= {f"subscriptions.auth.{kind}" for kind in AUTH_KINDS.keys() - of_sinks}
    meant = sorted((key, tmp_path / text) for key, text in texts(tomllib.loads(EVERY)) if key in wanted)
    assert {key for key, _ in meant} == wanted
    found = sorted(paths(loaded(EVERY)))
    assert found == meant
    assert all(path.is_absolute() for _, path in found)


def test_wherever_the_program_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file named relative to the working directory loads as by its absolute path."""
    (tmp_path / "trial").mkdir()
    file = tmp_path / "trial" / "poller.toml"
    file.write_text(EVERY, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert load(Path("trial/poller.toml"), {}) == load(file, {})


def test_what_is_absolute_stays(loaded: Loader) -> None:
    """Absolute paths, programs of the PATH and their arguments stay unchanged."""
    text = f'{SOURCE}auth = {{ command = ["print", "./acme"] }}\nca_file = "/etc/ca"\n{FEED}'
    (source,) = loaded(text).sources
    assert (source.ca_file, source.auth.command) == (Path("/etc/ca"), ("print", "./acme"))


def test_a_program_with_a_slash_is_a_path(loaded: Loader, tmp_path: Path) -> None:
    """A program with a slash is a path relative to the file, as in a shell."""
    (source,) = loaded(f'{SOURCE}auth = {{ command = ["./bin/print", "acme"] }}\n{FEED}').sources
    assert source.auth.command == (f"{tmp_path}/bin/print", "acme")


def test_the_files_of_a_redis_url(loaded: Loader, tmp_path: Path) -> None:
    """File options of a Redis URL are relative to the file; the rest of the URL stays."""
    text = '[redis]\nurl = "rediss://h:1/2?ssl_ca_certs=tls/a%20ca.pem&protocol=3&ssl_keyfile=/k"\n' + SOURCE + FEED
    path = f"{tmp_path}/tls/a%20ca.pem"
    assert loaded(text).redis.url == f"rediss://h:1/2?ssl_ca_certs={path}&protocol=3&ssl_keyfile=/k"


def test_the_environment_is_not_the_file(loaded: Loader, tmp_path: Path) -> None:
    """Paths in the environment are relative to the working directory, those in the file to the file."""
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
    """Stored subscriptions have absolute paths, from file or command line, and no default values."""
    settings = loaded(SOURCE + FEED + SUBSCRIPTION + 'secret_files = ["secret"]')
    (one,) = settings.subscriptions
    kept = msgspec.json.decode(encode_subscription(one))
    assert kept == {"id": "r", "sink": "https://r.example.org/hooks", "secret_files": [f"{tmp_path}/secret"]}
    assert decode_subscription(encode_subscription(one)) == one
    typed = subscription_of(kept | {"secret_files": ["secret"], "auth": {"token_file": "t"}}, settings, where="x")
    after = msgspec.json.decode(encode_subscription(with_absolute_paths(typed, here := tmp_path / "here")))
    assert after == kept | {"secret_files": [f"{here}/secret"], "auth": {"token_file": f"{here}/t"}}
