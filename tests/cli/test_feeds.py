"""Commands to a feed: what they store for its next round, and what they refuse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from poller.store.keys import FeedKeys
from tests.cli.commands import called_at, on_terminal
from tests.stores import looking

if TYPE_CHECKING:
    from tests.cli.conftest import Called


STATE = FeedKeys.of("poller", "default/contractTypes").state


def test_resync(called: Called, store_url: str) -> None:
    """Law: ``resync`` says what the next round does, and is refused for a feed that was never read."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    assert called("resync", "contractTypes", "--anew", "--yes", **environ).code == 1
    with looking(store_url) as client:
        client.hset(STATE, "generation", "g")
        for arguments, field in (((), "resync"), (("--anew", "--yes"), "anew")):
            done = called("resync", "contractTypes", *arguments, **environ)
            assert (done.code, done.out.startswith("default/contractTypes: the next round ")) == (0, True), done
            assert client.hget(STATE, field) == b"1"


def test_anew_without_a_terminal_needs_yes(called: Called, store_url: str) -> None:
    """Law: without a terminal ``--anew`` needs ``--yes``; else nothing is stored."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    with looking(store_url) as client:
        client.hset(STATE, "generation", "g")
        refused = called("resync", "contractTypes", "--anew", **environ)
        assert (refused.code, "add --yes" in refused.err) == (2, True)
        assert "publish all its records again on its stream (a subscription gets them by poller replay)" in refused.err
        assert client.hget(STATE, "anew") is None


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, b"1"), ("n", 1, None)])
def test_anew_asks_on_a_terminal(tmp_path: Path, store_url: str, answer: str, code: int, left: bytes | None) -> None:
    """Law: on a terminal ``--anew`` asks first, and only "y" requests the reset."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}
    with looking(store_url) as client:
        client.hset(STATE, "generation", "g")
        ours, theirs = os.openpty()
        try:
            os.write(ours, f"{answer}\n".encode())
            done = called_at(("resync", "contractTypes", "--anew"), cwd=tmp_path, extra=environ, stdin=theirs)
        finally:
            os.close(ours)
            os.close(theirs)
        assert (done.code, client.hget(STATE, "anew")) == (code, left), done
        assert ("nothing was changed" in done.err) == (answer == "n")


def test_a_paused_feed_is_skipped(called: Called, store_url: str) -> None:
    """Law: ``once`` skips a paused feed, even if it is named, and exits with 0; so does a second pause."""
    environ = {"REDIS_URL": store_url, "POLLER_BASE_URL": "http://127.0.0.1:1", "POLLER_TOKEN": "x"}
    paused = called("pause", "contractTypes", "--reason", "moving\x1b[31m house\udcff", **environ)
    assert (paused.code, paused.out.count("\n"), paused.err) == (0, 1, "")
    assert called("pause", "evidenceVariants", "--wait", **environ).code == 0
    assert "no daemon polls now" in paused.out
    again = called("pause", "contractTypes", **environ)
    assert (again.code, "was paused by" in again.out, "\x1b" in again.out) == (0, True, False)
    once = called("once", "contractTypes", **environ)
    assert (once.code, once.out.splitlines()[-1].endswith("house?; poller resume default/contractTypes")) == (0, True)
    (problem,) = [line for line in called("status", **environ).out.splitlines() if "moving" in line]
    assert problem.endswith("; poller resume default/contractTypes")  # in a pipe it is one line
    shown = on_terminal(["status"], environ | {"TERM": "xterm"}, 80)
    assert "poller resume default/contractTypes" in " ".join(" ".join(shown).split())
    assert max(map(len, shown)) <= 80
    waited = called("resume", "contractTypes", "--wait", **environ)
    assert (waited.code, "it had been paused by" in waited.out, waited.err) == (0, True, "")  # needs no daemon
    assert "the next daemon polls it" in waited.out
    assert called("resume", "contractTypes", **environ).out == "default/contractTypes: it was not paused\n"
