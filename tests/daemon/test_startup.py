"""Laws of :mod:`poller.daemon.startup`: what is missing is told at once, by its name alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.app import run
from poller.clock import Clock
from poller.config.load import load
from poller.control.factories import keys_of
from poller.daemon.startup import prefixes_of, report_empty_store, report_missing_credentials
from poller.store.keys import ConsumerKeys, FeedKeys, remembered_key
from tests.control.subscribed import FEEDS, configured
from tests.harness.clock import StubClock
from tests.harness.waiting import patience
from tests.test_app import now, settings

SOURCE = '[[sources]]\nname = "acme"\nbase_url = "http://127.0.0.1:9"\nauth = {auth}\n'
FEED = '[[sources.feeds]]\nresource = "contractTypes"\n'
OAUTH2 = '{{ oauth2 = {{ token_url = "http://127.0.0.1:9", client_id = "me", client_secret_file = "{secret}" }} }}'


async def told(directory: Path, auth: str, **environ: str) -> list[tuple[str, str, str]]:
    """Level, error and advice of each line about a source with this ``auth``."""
    file = directory / "poller.toml"
    file.write_text(SOURCE.format(auth=auth) + FEED, "utf-8")
    with capture_logs() as said:
        await report_missing_credentials(load(file, {}).sources, environ, Clock())
    assert all(line["source"] == "acme" for line in said)
    return [(line["log_level"], line["error"], line["advice"]) for line in said]


async def test_a_variable_that_is_not_set(tmp_path: Path) -> None:
    """It is named, and that a restart is needed; one that is empty is as good as none."""
    for environ in ({}, {"ACME_TOKEN": " "}):
        ((level, error, advice),) = await told(tmp_path, '{ token_env = "ACME_TOKEN" }', **environ)
        assert (level, error) == ("error", "the environment variable ACME_TOKEN holds no token")
        assert "start poller again" in advice


@pytest.mark.parametrize(("auth", "what"), [('{{ token_file = "{secret}" }}', "token"), (OAUTH2, "client secret")])
async def test_a_file_that_cannot_be_used(tmp_path: Path, auth: str, what: str) -> None:
    """It is named with the reason, be it that it is missing or that everybody may read it."""
    secret = tmp_path / "secret"
    ((_, missing, advice),) = await told(tmp_path, auth.format(secret=secret))
    secret.write_text("hush")
    secret.chmod(0o644)
    ((_, for_all, _),) = await told(tmp_path, auth.format(secret=secret))
    assert missing == f"the {what} cannot be read from the file {secret}: No such file or directory"
    assert "chmod 600" in for_all
    assert "hush" not in for_all
    assert "without a restart" in advice
    secret.chmod(0o600)
    assert await told(tmp_path, auth.format(secret=secret)) == []


@pytest.mark.parametrize("auth", ["{ none = true }", '{ command = ["/nowhere"] }'])
async def test_what_is_not_ours_to_look_at(tmp_path: Path, auth: str) -> None:
    """Where none is needed, or a program has to be run for it, nothing is said."""
    assert await told(tmp_path, auth) == []


async def test_the_daemon_says_it_first(tmp_path: Path) -> None:
    """Before the store has answered, and it runs on; a process that does not poll needs none."""
    wanted = settings(tmp_path, url="http://127.0.0.1:9", store='redis = { url = "unix:///nowhere" }')
    for roles, events in ((frozenset({"poll"}), ["source without a credential"]), (frozenset({"deliver"}), [])):
        stop = asyncio.Event()
        stop.set()
        with capture_logs() as said:
            async with patience("the daemon to stop"):
                await run(wanted, {}, stop=stop, clock=StubClock(now=now), roles=roles)
        assert [line["event"] for line in said if line["log_level"] == "error"] == events
        assert [line["event"] for line in said][: len(events)] == events


# Laws of :mod:`poller.daemon.startup`: an empty store is told of, and a prefix that was changed.


async def test_an_empty_store_is_a_first_start(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """It is told as what it is, and is no warning; what others keep there does not matter."""
    await client.set("session:{a/b}:state", "of somebody else")
    with capture_logs() as said:
        await report_empty_store(client, configured(tmp_path))
    assert [(line["event"], line["log_level"]) for line in said] == [
        ("first start: the store has no state of any feed", "info")
    ]


async def test_a_store_that_knows_a_feed_is_not_talked_about(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Neither one that knows it, nor one that only remembers it: then the round tells what is lost."""
    settings = configured(tmp_path)
    await client.hset(keys_of(settings, FEEDS[1]).state, "generation", "g")
    with capture_logs() as said:
        await report_empty_store(client, settings)
        await client.flushall()
        await client.hset(remembered_key("poller"), FEEDS[0], "{}")
        await report_empty_store(client, settings)
    assert said == []


async def test_the_feeds_under_another_prefix_are_named(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Who changed the prefix by mistake reads the one that it was."""
    await client.hset(FeedKeys.of("staging:one", FEEDS[0]).state, "generation", "g")
    await client.hset(ConsumerKeys.of("other", FEEDS[0], "a").state, "place", "0-0")
    with capture_logs() as said:
        await report_empty_store(client, configured(tmp_path))
    (line,) = said
    assert (line["log_level"], line["prefix"], line["others"]) == ("warning", "poller", ["staging:one"])


class Endless:
    """A store in which the search never comes to an end."""

    async def scan_iter(self, **_: object) -> AsyncIterator[bytes]:
        yield FeedKeys.of("there", FEEDS[0]).state.encode()
        await asyncio.Event().wait()


async def test_the_search_ends_in_time() -> None:
    """However much there is, it takes no longer than it may; what was found by then counts."""
    assert await prefixes_of(cast("Any", Endless()), FEEDS, within=0.01) == {"there"}
