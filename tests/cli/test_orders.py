"""Orders to a feed by the command line: what is left for its next round, and what makes no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poller.store.keys import FeedKeys
from tests.stores import looking

if TYPE_CHECKING:
    from tests.cli.conftest import Called

STATE = FeedKeys.of("poller", "default/contractTypes").state


def test_a_feed_is_read_again_or_anew(called: Called, store_url: str) -> None:
    """Law: each order says what its next round does with it, and is refused where there is nothing to read again."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    assert called("resync", "contractTypes", "--anew", **environ).code == 1
    with looking(store_url) as client:
        client.hset(STATE, "generation", "g")
        for arguments, field in (((), "resync"), (("--anew",), "anew")):
            done = called("resync", "contractTypes", *arguments, **environ)
            assert (done.code, done.out.startswith("default/contractTypes: its next round ")) == (0, True), done
            assert client.hget(STATE, field) == b"1"
