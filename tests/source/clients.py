"""A client for tests, and the checks that hold for each of its errors."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from poller.auth.base import EnvironmentToken
from poller.clock import Clock
from poller.errors import SourceError
from poller.source.client import ApiClient
from tests.harness.waiting import turns

TOKEN = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
CREDENTIAL = EnvironmentToken("TOKEN", {"TOKEN": TOKEN})


class _Even(random.Random):
    """Random factors that leave each pause unchanged, unless a test sets another factor."""

    def __init__(self, factor: float) -> None:
        super().__init__(0)
        self.factor = factor

    def uniform(self, a: float, b: float) -> float:
        assert a <= self.factor <= b
        return self.factor


class Time(Clock):
    """The clock of a client: it moves only by its sleeps, which return at once and are recorded."""

    def __init__(self, *, jitter: float = 1.0) -> None:
        self.random = _Even(jitter)
        self.passed = timedelta(0)
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.passed.total_seconds()

    def now(self) -> datetime:
        return datetime(2025, 3, 1, 12, tzinfo=UTC) + self.passed

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.passed + timedelta(seconds=seconds)
        await turns()
        self.passed = max(self.passed, until)

    def pass_by(self, seconds: float) -> None:
        self.passed += timedelta(seconds=seconds)


@asynccontextmanager
async def client_of(url: str, time: Time | None = None, **options: Any) -> AsyncIterator[ApiClient]:
    """An open client with a clock of its own."""
    given = {"credential": CREDENTIAL, "clock": time or Time(), **options}
    async with ApiClient(url, **given) as client:
        yield client


async def failure_of(client: ApiClient, path: str = "/x", **options: Any) -> SourceError:
    """The error of a request, after the checks that hold for each error: one line, and no part of the token."""
    with pytest.raises(SourceError) as failed:
        await client.get(path, **options)
    text = str(failed.value)
    assert text.isprintable()
    assert len(text) < 500
    assert not any(TOKEN[start : start + 8] in text for start in range(len(TOKEN) - 7))
    assert failed.value.__cause__ is None
    return failed.value


def keep(path: Path, secret: str | bytes, *, mode: int = 0o600) -> Path:
    """A file that holds a secret, readable by its owner alone unless the test sets another mode."""
    path.write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    path.chmod(mode)
    return path
