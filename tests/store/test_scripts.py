"""A script that is sent again until it is answered."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from fakeredis import FakeAsyncRedis
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import ResponseError

from poller.errors import StoreRefused, StoreUnavailable
from poller.redis.client import until_answered
from poller.store import scripts
from poller.store.scripts import lua
from tests.harness.clock import StubClock

SCRIPTS = sorted(Path(scripts.__file__).parent.glob("lua/*.lua"))


class Sent:
    """Breaks so often before it is answered; notes each pause."""

    def __init__(self, breaks: int) -> None:
        self.times = 0
        self.pauses: list[float] = []
        self._breaks = breaks

    async def send(self) -> str:
        self.times += 1
        if self.times <= self._breaks:
            raise Broken("the reply was lost")
        return "OK"

    @property
    def clock(self) -> StubClock:
        return StubClock(sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def test_it_is_sent_until_it_is_answered() -> None:
    """With pauses that double up to a second."""
    sent = Sent(breaks=7)
    answer = await until_answered(FakeAsyncRedis(), sent.send, within=timedelta(minutes=1), clock=sent.clock)
    assert (answer, sent.times) == ("OK", 8)
    assert sent.pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_it_is_not_sent_when_the_lease_may_be_over() -> None:
    """Another may have it then."""
    sent = Sent(breaks=9)
    with pytest.raises(StoreUnavailable):
        await until_answered(FakeAsyncRedis(), sent.send, within=timedelta(milliseconds=40), clock=sent.clock)
    assert sent.times == 1


async def test_what_is_refused_is_not_sent_again() -> None:
    """The server will say the same."""
    times = 0

    async def send() -> None:
        nonlocal times
        times += 1
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    with pytest.raises(StoreRefused):
        await until_answered(FakeAsyncRedis(), send, within=timedelta(minutes=1), clock=StubClock())
    assert times == 1


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_each_script_says_what_it_takes_and_answers(path: Path) -> None:
    """Law: a head of a sentence, the KEYS and ARGV that the script uses, and what it answers; parts say whose."""
    text = path.read_text("utf-8")
    head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("--"))
    assert re.match(r"-- [A-Z].*\.\n", head)
    if head.startswith("-- Part of"):
        return
    body = text.removeprefix(head)
    assert not [name for name in ("KEYS", "ARGV") if f"{name}[" in body and name not in head]
    assert "return" not in body or "Answers" in head
    assert "include" not in lua(path.stem)
