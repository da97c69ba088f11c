"""A client for tests of one, and its errors held to what is promised of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from poller.errors import SourceError
from poller.source.client import ApiClient
from poller.source.credentials import EnvironmentToken

TOKEN = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
CREDENTIAL = EnvironmentToken("TOKEN", {"TOKEN": TOKEN})


@asynccontextmanager
async def client_of(url: str, **options: Any) -> AsyncIterator[ApiClient]:
    """An open client that never waits between attempts."""

    async def at_once(_: float) -> None:
        return None

    async with ApiClient(url, **{"credential": CREDENTIAL, "sleep": at_once, **options}) as client:
        yield client


async def failure_of(client: ApiClient, path: str = "/x") -> SourceError:
    """The error that a request ends in, with what holds for each: one line, and no part of the token."""
    with pytest.raises(SourceError) as failed:
        await client.get(path)
    text = str(failed.value)
    assert text.isprintable()
    assert len(text) < 500
    assert not any(TOKEN[start : start + 8] in text for start in range(len(TOKEN) - 7))
    assert failed.value.__cause__ is None
    return failed.value


def keep(path: Path, secret: str | bytes, *, mode: int = 0o600) -> Path:
    """A file with a secret in it, as it has to be unless told otherwise: for its owner alone."""
    path.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    path.chmod(mode)
    return path
