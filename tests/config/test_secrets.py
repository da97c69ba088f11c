"""No message and no printed form of the settings shows a secret, wherever it was written by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as runs
from hypothesis import strategies as st

from poller.config.load import load
from poller.delivery.signing import SCHEMES, new_secret
from poller.errors import ConfigurationError
from poller.text import SIGNING_SECRETS
from tests.config.conftest import FEED, SOURCE, SUBSCRIPTION, Complaints, Loader

LITERALS = [
    ("[http]\nadmin_token = {}", "", "", "http.admin_token: ", 'admin_token_file = "…"'),
    ("[redis]\npassword = {}", "", "", "redis.password: ", "REDIS_URL"),
    ("", "token = {}", "", "sources[0].token: ", 'auth = { token_file = "…" } or { token_env = "NAME" }'),
    (
        "",
        "auth = {{ token = {} }}",
        "",
        "sources[0].auth.token: ",
        'auth = { token_file = "…" } or { token_env = "NAME" }',
    ),
    (
        "",
        "auth = {{ password = {} }}",
        "",
        "sources[0].auth.password: ",
        'auth = { token_file = "…" } or { token_env = "NAME" }',
    ),
    ("", "", "secret = {}", "subscriptions[0].secret: ", 'auth = { token_file = "…" }'),
    ("", "", "secrets = [{}]", "subscriptions[0].secrets: ", 'auth = { token_file = "…" }'),
]


@pytest.mark.parametrize(("texts", "begin", "end"), [(case[:3], *case[3:]) for case in LITERALS])
def test_literal_secrets(texts: tuple[str, str, str], begin: str, end: str, complaints: Complaints) -> None:
    """A secret in the file is refused, with the place where it belongs."""
    top, source, subscription = texts
    text = f"{top}\n{SOURCE}{source}\n{FEED}{SUBSCRIPTION}{subscription}".replace("{}", '"hunter2"').replace("{{", "{")
    (line,) = complaints(text.replace("}}", "}"))
    assert line.startswith(f"poller.toml: {begin}a secret has no place in the file: put ")
    assert line.endswith(end)
    assert "hunter2" not in line


def test_literal_client_secret(complaints: Complaints) -> None:
    """A literal client secret is refused, with the key of its file."""
    oauth2 = 'auth = { oauth2 = { token_url = "https://h/t", client_id = "a", client_secret = "hunter2" } }\n'
    lines = complaints(SOURCE + oauth2 + FEED)
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "sources[0].auth.oauth2.client_secret_file", "sources[0].auth.oauth2.client_secret",
    ]  # fmt: skip
    assert lines[1].endswith('client_secret_file = "…"')


@pytest.mark.parametrize("url", ["redis://:hunter2@h/0", "redis://u:hunter2@h", "unix:///run/s?password=hunter2"])
def test_a_password_of_redis(url: str, complaints: Complaints, loaded: Loader) -> None:
    """A Redis URL with a password is accepted from the environment only, and is not printed."""
    (line,) = complaints(f'[redis]\nurl = "{url}"\n{SOURCE}{FEED}')
    expected = "expected a URL without a password: put the whole URL into the environment as REDIS_URL"
    assert line == f"poller.toml: redis.url: {expected}"
    settings = loaded(SOURCE + FEED, {"REDIS_URL": url})
    assert settings.redis.url == url
    assert "hunter2" not in repr(settings)


def test_headers_are_not_printed(loaded: Loader) -> None:
    """Extra headers, which may hold an API key, are not printed."""
    assert "hunter2" not in repr(loaded(SOURCE + 'headers = { X-Key = "hunter2" }\n' + FEED))


@pytest.mark.parametrize("name", ["Authorization", "cookie", "Proxy-Authorization"])
def test_credentials_are_no_headers(name: str, complaints: Complaints) -> None:
    """A credential as a header is refused, since it is a literal secret."""
    (line,) = complaints(SOURCE + f'headers = {{ {name} = "Bearer hunter2" }}\n' + FEED)
    assert line.endswith(f"expected no {name}: a credential goes into auth, by file, environment or command")


SPOTS = [
    *(f"auth = {{ {kind} = SECRET }}" for kind in ("token_file", "token_env", "oauth2", "command", "none", "token")),
    *(
        f"{key} = SECRET"
        for key in ("auth", "token", "password", "headers", "tokn", "rate", "proxy", "ca_file", "name")
    ),
    *("base_url = URL", "event_source = URL", "proxy = URL", "headers = { X = [SECRET] }", "timeout = URL"),
]
SECRETS = [
    *(f"{prefix}c2VjcmV0c2VjcmV0" for prefix in SIGNING_SECRETS),
    "eyJhbGciOiJIUzI1NiJ9.e30.x",
    "ghp_0123456789abcdef",
    "Bearer 12345",
    "a1" * 16,
]


@pytest.mark.parametrize("spot", SPOTS)
@pytest.mark.parametrize("table", ["[[sources]]", "[[sources.feeds]]", "[[subscriptions]]", "[redis]", "[http]"])
def test_a_secret_in_a_wrong_place(table: str, spot: str, tmp_path: Path) -> None:
    """No message shows a secret written as a value, in a URL or under a misspelt key."""
    start = {"[[sources.feeds]]": "[[sources]]\n"}.get(table, "")
    path = tmp_path / "poller.toml"
    for secret in SECRETS:
        line = spot.replace("SECRET", f'"{secret}"').replace("URL", f'"http://u:{secret.replace(" ", "")}@h"')
        path.write_text(f"{start}{table}\n{line}\n", encoding="utf-8")
        with pytest.raises(ConfigurationError) as refused:
            load(path, {})
        assert secret.replace("Bearer ", "") not in str(refused.value)


@pytest.mark.parametrize("key", ["path", "detail_path", "resource", "interval"])
@pytest.mark.parametrize("path", ["/things?token=hunter2", "/things/{id}?a=1&key=hunter2?", "/?hunter2"])
def test_the_query_of_a_path_is_not_shown(key: str, path: str, complaints: Complaints) -> None:
    """Nothing after the question mark of a path is shown, as of a URL, whichever key has it."""
    lines = complaints(f'{SOURCE}{FEED}{key} = "{path}"\n')
    assert "hunter2" not in "".join(lines)
    if key.endswith("path"):
        (line,) = lines
        shown = path.partition("?")[0]
        assert line.startswith(f'poller.toml: sources[0].feeds[0].{key} = "{shown}?…": expected a path ')


@pytest.mark.parametrize("path", ["things?token=hunter2", "things/?hunter2"])
def test_the_query_of_what_should_be_a_path_is_not_shown(path: str, complaints: Complaints) -> None:
    """That holds for a path without its first slash, too."""
    (line,) = complaints(f'{SOURCE}{FEED}path = "{path}"\n')
    assert "hunter2" not in line
    assert '?…": expected a path ' in line


@pytest.mark.parametrize("scheme", [scheme.name for scheme in SCHEMES])
def test_a_signing_secret_is_no_path(scheme: str, complaints: Complaints) -> None:
    """A signing secret in place of its file is refused at loading, for a path would be shown."""
    secret = new_secret(bytes(32), scheme)
    (line,) = complaints(f'{SOURCE}{FEED}{SUBSCRIPTION}secret_files = ["{secret}"]\n')
    assert line.endswith("expected the path of a file or directory")
    assert secret[6:] not in line


@pytest.mark.parametrize("key", ["token_file", "oauth2", "user", "credentials_file"])
@pytest.mark.parametrize("secret", [one for one in SECRETS if one != "a1" * 16])
def test_no_other_secret_is_a_path(key: str, secret: str, complaints: Complaints) -> None:
    """Text with the form of a secret is refused where a file is expected."""
    inner = {
        "oauth2": f'{{ token_url = "https://a.example.org", client_id = "a", client_secret_file = "{secret}" }}',
        "user": f'{{ name = "a", password_file = "{secret}" }}',
    }.get(key, f'"{secret}"')
    sink = SUBSCRIPTION.replace("https://r.example.org/hooks", "tls://r.example.org/hooks")
    (line,) = complaints(f"{SOURCE}{FEED}{sink}auth = {{ {key} = {inner} }}\n")
    assert line.endswith("expected the path of a file or directory")
    assert secret not in line


@pytest.mark.parametrize("path", ["/run/secrets/whsec_acme", "./eyJ.pem", "sk-prod.pem", "pk_client.crt", "bearer"])
def test_paths_that_only_begin_like_one_are_paths(path: str, loaded: Loader) -> None:
    """A path that only starts like a secret is accepted."""
    settings = loaded(f'{SOURCE}auth = {{ token_file = "{path}" }}\n{FEED}')
    assert str(settings.sources[0].auth.token_file).endswith(path.removeprefix("./"))


@runs(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.text(alphabet="abcdef:/@?#", min_size=8, max_size=20), st.sampled_from(["POLLER_BASE_URL", "REDIS_URL", "PORT"])
)
@example("hunter2", "POLLER_HTTP_BIND")
def test_the_token_elsewhere(secret: str, name: str) -> None:
    """The value of POLLER_TOKEN is not shown, even where another variable holds it."""
    environ = {"POLLER_BASE_URL": "http://localhost", "POLLER_TOKEN": secret} | {name: f"x{secret}"}
    with pytest.raises(ConfigurationError) as refused:
        load(None, environ)
    assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    ['token = "hunter2', "token = hunter2", '"hunter2" = 1\n"hunter2" = 2', "[hunter2]\n[hunter2]",
     "a = { hunter2 = 1, hunter2 = 2 }"],
)  # fmt: skip
def test_broken_toml(text: str, complaints: Complaints) -> None:
    """A file that is not TOML is refused by line and column, without its text."""
    (line,) = complaints(text)
    assert line.startswith("poller.toml: line ")
    assert "hunter2" not in line


@pytest.mark.parametrize("key", ["whsec_c2VjcmV0c2VjcmV0", "whsk_c2VjcmV0c2VjcmV0", '"hunter2@x"'])
def test_a_secret_as_a_key(key: str, complaints: Complaints) -> None:
    """A key that looks like a secret is not shown."""
    (line,) = complaints(SOURCE + f"auth = {{ {key} = true, none = true }}\n" + FEED)
    assert line.startswith("poller.toml: sources[0].auth.…: unknown key")
    assert "hunter2" not in line
    assert "c2Vj" not in line
