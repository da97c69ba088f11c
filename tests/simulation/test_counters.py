"""What a simulated daemon has counted is compared with what others have seen of it."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha1

from poller.store.scripts import COMMIT, SHEBANG
from tests.simulation.counters import Counters
from tests.simulation.store import Executed

_SHA = sha1((SHEBANG + COMMIT).encode(), usedforsecurity=False).hexdigest().encode()


def _commit(answer: bytes, number: int = 0, *, token: bytes = b"daemon-1-105-ab94/00ff") -> Executed:
    words = (b"EVALSHA", _SHA, b"1", b"poller:{acme/x}:lease", token, b"%d" % number)
    return Executed(datetime(2026, 3, 1, tzinfo=UTC), "10.0.0.11", "poller", words, (), answer)


def test_commits() -> None:
    """Law: each answer to a commit is counted once, but for those that failed or were under way."""
    counters = Counters()
    metrics = counters.started("daemon-1", 105)
    counters.started("daemon-1", 106)
    for number, answer in enumerate((b"$2\r\nOK\r\n", b"$2\r\nOK\r\n", b"$7\r\nALREADY\r\n", b"-NOSCRIPT no\r\n")):
        counters.executed(_commit(answer, number))
    counters.executed(_commit(b"$2\r\nOK\r\n", token=b"daemon-1-107-ab94/00ff"))
    metrics.commits["written"].inc(2)
    assert len(list(counters.ended("daemon-1", 105, under_way=0))) == 1
    assert not list(counters.ended("daemon-1", 105, under_way=1))
    metrics.commits["failed"].inc()
    assert not list(counters.ended("daemon-1", 105, under_way=0))
    metrics.commits["written"].inc()
    assert len(list(counters.ended("daemon-1", 105, under_way=9))) == 1
    assert not list(counters.ended("daemon-1", 106, under_way=0))


def test_a_commit_that_was_sent_again() -> None:
    """Law: the client sends a commit again when its connection is lost, and the process counts one answer."""
    counters = Counters()
    metrics = counters.started("daemon-1", 105)
    for number in (1, 1, 2):
        counters.executed(_commit(b"$2\r\nOK\r\n", number))
    metrics.commits["written"].inc(2)
    assert not list(counters.ended("daemon-1", 105, under_way=0))


def test_requests_to_the_source() -> None:
    """Law: the daemons of a machine count together what the source has answered it, but for what they gave up."""
    counters = Counters()
    one, other = counters.started("daemon-1", 105), counters.started("daemon-1", 106)
    for _ in range(20):
        counters.served("daemon-1", 200)
    one.source_requests["acme", "200"] += 10
    assert len(list(counters.requested(cancelled=0))) == 1
    assert not list(counters.requested(cancelled=1))
    assert not list(counters.requested(cancelled=None))
    other.source_requests["acme", "200"] += 11
    assert len(list(counters.requested(cancelled=None))) == 1


def test_deliveries() -> None:
    """Law: what was delivered stays counted when a daemon has left the subscription, and comes back to it."""
    counters = Counters()
    metrics = counters.started("daemon-1", 105)
    for events in (3, 4):
        metrics.attempts_of("one").attempted("delivered", events)
        metrics.no_attempts_of("one")
    assert not list(counters.delivered("one", 7, under_way=0))
    assert not list(counters.delivered("one", 9, under_way=2))
    assert len(list(counters.delivered("one", 9, under_way=1))) == 1
    assert not list(counters.delivered("one", 9, under_way=None))
    assert len(list(counters.delivered("one", 6, under_way=None))) == 1
