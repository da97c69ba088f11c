"""No secret is shown: all output of the real program and all files of its store are searched."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from poller.sandbox.data import seed
from poller.sandbox.history import History
from poller.sandbox.server import SEEDED_AT, serving
from tests.cli.commands import Ended
from tests.cli.conftest import Poller
from tests.source import api
from tests.source.clients import keep

CLIENT_SECRET = "cl1ent/s3cret+&=%"  # noqa: S105 -- of no use anywhere
ISSUED = "issued-t0ken.8f3a"
STALE = "stale-t0ken.77aa"
BASIC = b64encode(f"me:{quote_plus(CLIENT_SECRET)}".encode()).decode()
SECRETS = (CLIENT_SECRET, quote_plus(CLIENT_SECRET), quote(CLIENT_SECRET), BASIC, ISSUED, STALE)
FEEDS = ("contractTypes", "evidenceVariants")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for the embedded store's socket."""
    with TemporaryDirectory(prefix="ps-") as short:
        keep(Path(short) / "secret", CLIENT_SECRET)
        yield Path(short)


@asynccontextmanager
async def sandbox() -> AsyncIterator[str]:
    """An API that accepts only the issued token."""
    history, rng = History(), Random(5)
    seed(history, rng, records=20, at=SEEDED_AT)
    async with serving(history, rng=rng, token=ISSUED) as url:
        yield url


def configured(place: Path, url: str, auth: str) -> Path:
    lines = [f'embedded = {{ data_dir = "{place}/data" }}', 'http = { bind = "off" }']
    lines += ["[[sources]]", 'name = "acme"', f'base_url = "{url}"', f"auth = {{ {auth} }}"]
    for resource in FEEDS:
        lines += ["[[sources.feeds]]", f'resource = "{resource}"', 'interval = "1h"']
    file = place / "poller.toml"
    file.write_text("\n".join(lines), "utf-8")
    return file


def oauth2(place: Path, url: str) -> str:
    return f'oauth2 = {{ token_url = "{url}/token", client_id = "me", client_secret_file = "{place}/secret" }}'


def nothing_shown(ended: Ended, place: Path) -> None:
    """No secret is in the output or in any file of the store."""
    stored = [path for path in (place / "data").rglob("*") if path.is_file()]
    texts = [ended.out.encode(), ended.err.encode(), *(path.read_bytes() for path in stored)]
    for secret in SECRETS:
        assert not any(secret.encode() in text for text in texts), secret


def token(value: str) -> bytes:
    return api.http(200, json.dumps({"access_token": value, "token_type": "Bearer", "expires_in": 3600}).encode())


async def test_a_round_by_oauth_shows_no_secret(poller: Poller, place: Path) -> None:
    """A round that renews a stale token once, with log level debug, shows no secret."""
    async with sandbox() as url, api.serving([token(STALE), token(ISSUED)]) as server:
        file = configured(place, url, oauth2(place, server.url))
        ended = await poller("--log-level", "debug", "-c", str(file), "once", "--json")
        assert ended.code == 0, ended
        assert [json.loads(line)["ok"] for line in ended.out.splitlines()] == [True, True]
        nothing_shown(ended, place)
        assert server.requests[0].headers["authorization"] == f"Basic {BASIC}"
        assert len(server.requests) == 2


async def test_an_echoing_token_endpoint_shows_no_secret(poller: Poller, place: Path) -> None:
    """A token endpoint that echoes the secret anywhere in its answer gets it shown nowhere."""

    async def echo(request: api.Request, _: Any) -> bytes:
        said = f"{request.headers.get('authorization')} {request.body.decode()} {CLIENT_SECRET} {ISSUED}"
        told = {"error": "invalid_client", "error_description": said, "access_token": ISSUED}
        return api.http(401, json.dumps(told).encode(), f"X-Echo: {quote(said)}")

    async with sandbox() as url, api.serving(echo) as server:
        file = configured(place, url, oauth2(place, server.url))
        ended = await poller("--log-level", "debug", "-c", str(file), "once", "--json")
        assert ended.code == 1
        errors = [json.loads(line)["error"] for line in ended.out.splitlines()]
        assert all(f"the token endpoint {server.url}/token has answered 401: invalid_client" in one for one in errors)
        nothing_shown(ended, place)
        nothing_shown(status := await poller("-c", str(file), "status", "--json"), place)
        assert "invalid_client" in status.out


async def test_an_api_that_refuses_and_echoes_a_token_shows_no_secret(poller: Poller, place: Path) -> None:
    """An API that refuses and echoes the stale and the fresh token gets neither shown."""

    async def echo(request: api.Request, _: Any) -> bytes:
        return api.http(401, f"no {request.headers['authorization']}, nor {request.headers}".encode())

    async with api.serving(echo) as refusing, api.serving([token(STALE), token(ISSUED)]) as server:
        file = configured(place, refusing.url, oauth2(place, server.url))
        ended = await poller("--log-level", "debug", "-c", str(file), "once")
        assert ended.code == 1
        assert "does not accept a fresh token of the token endpoint" in ended.out
        nothing_shown(ended, place)


async def test_an_echoing_command_shows_no_secret(poller: Poller, place: Path) -> None:
    """The token of a command that prints it and fails is not in the error."""
    async with sandbox() as url:
        script = f"echo {ISSUED}; echo 'cannot store {ISSUED}: disk full' >&2; exit 4"
        file = configured(place, url, f'command = ["sh", "-c", "{script}"]')
        ended = await poller("--log-level", "debug", "-c", str(file), "once")
        assert ended.code == 1
        assert "the command sh failed with exit code 4; its standard error may hold a secret" in ended.out
        nothing_shown(ended, place)


async def test_check_reports_a_token_file_that_others_can_read(poller: Poller, place: Path) -> None:
    """``check`` reports a token file that others can read, with the chmod command as the remedy."""
    async with sandbox() as url:
        path = keep(place / "token", ISSUED, mode=0o644)
        file = configured(place, url, f'token_file = "{path}"')
        checked = await poller("-c", str(file), "check")
        assert checked.code == 1
        refused = [line for line in checked.out.splitlines() if f"chmod 600 {path}" in line]
        assert [line.split()[0] for line in refused] == ["error"] * len(FEEDS)
        nothing_shown(checked, place)
        keep(path, ISSUED)
        assert (await poller("-c", str(file), "check")).code == 0
