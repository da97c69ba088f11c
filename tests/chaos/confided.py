"""The secrets of a scene, and a search for them in everything the program outputs."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp

from tests.harness.leaks import leaks
from tests.harness.subscribed import OPERATIONS, SECRET

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.chaos.stage import Stage

SOURCE: Final = "the source's token"
_PASSWORD: Final = "the store's password"  # noqa: S105 -- its name, not the password
SECRETS: Final = {
    SOURCE: "tok-5d2c8e4f1ab94d07/for+the~source=",
    _PASSWORD: "pw-91f0ce7723684a5cb of the store",
    "the sinks' token": "sink-0e6ab8d25c1f4a03/for+sinks=",
    "the operator's token": "adm-c34b7f10d9e24867/for+operators=",
    "the signing secret": SECRET,
}
USER: Final = "program"
PATHS: Final = ("livez", "readyz", "metrics", "feeds", "subscriptions", "", "openapi.json", "asyncapi.json")


def file_of(directory: Path, whose: str) -> Path:
    """A file with one of the secrets, for the configuration."""
    path = directory / whose.replace(" ", "-").replace("'", "")
    path.write_text(SECRETS[whose])
    path.chmod(0o600)
    return path


def confided(config: Path, store: str) -> dict[str, str]:
    """Add the files of all secrets to a configuration; the environment that it also needs.

    Args:
        config: the file.
        store: the URL of the store, which knows the program's user; empty for an embedded store.
    """
    directory, text = config.parent, config.read_text()
    admin, sinks = (file_of(directory, whose) for whose in ("the operator's token", "the sinks' token"))
    text = text.replace('bind = "off"\n', f'bind = "127.0.0.1:0"\nadmin_token_file = "{admin}"\n')
    text = text.replace("allow_private = true\n", f'allow_private = true\nauth = {{ token_file = "{sinks}" }}\n')
    (directory / "token").write_text(SECRETS[SOURCE])
    config.write_text(text)
    if not store:
        return {}
    parts = urlsplit(store)
    login = f"{USER}:{quote(SECRETS[_PASSWORD], safe='')}@"
    return {"REDIS_URL": urlunsplit(parts._replace(netloc=login + parts.netloc))}


def users(directory: Path) -> Path:
    """The store's users: one without a password for the tests, and the program's own."""
    path = directory / "users.acl"
    digest = hashlib.sha256(SECRETS[_PASSWORD].encode()).hexdigest()
    path.write_text(f"user default on nopass ~* &* +@all\nuser {USER} on #{digest} ~* &* +@all\n")
    return path


async def told_secrets(stage: Stage) -> list[str]:
    """Each secret that was found in an output, with the place."""
    return [f"{where} tells {one}" async for where, text in _told(stage) for one in leaks(SECRETS, text)]


async def _told(stage: Stage) -> AsyncIterator[tuple[str, str]]:
    for number, one in enumerate(stage.replicas.started, start=1):
        yield f"the log of process {number}", json.dumps(one.lines, ensure_ascii=False)
    client = stage.scene.played.client
    for feed in stage.scene.feeds:
        for key in (f"poller:{{acme/{feed}}}:events", f"poller:{{acme/{feed}}}:quarantine", OPERATIONS):
            yield key, repr(await client.xrange(key))
        for wish in stage.cast.wishes:
            key = f"poller:{{acme/{feed}}}:sub:{wish.sink}:letters"
            yield key, repr(await client.hgetall(key))
    async for said in _served(stage):
        yield said


async def _served(stage: Stage) -> AsyncIterator[tuple[str, str]]:
    async with aiohttp.ClientSession() as asking:
        for one in stage.replicas.running:
            urls = [str(line["page"]).rstrip("/") for line in one.lines if line.get("event") == "listening"]
            for url in [f"{urls[-1].rstrip('/')}/{path}" for path in PATHS] if urls else ():
                with suppress(aiohttp.ClientError):  # the process has just ended
                    async with asking.get(url) as answer:
                        yield url, await answer.text()
