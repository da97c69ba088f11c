"""What a daemon reports when it starts: an empty store, a store filled under another prefix, missing credentials."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
from fakeredis import FakeAsyncRedis
from structlog.testing import capture_logs

from poller.app import report_missing_credentials, run
from poller.clock import Clock
from poller.config.load import load
from poller.control.factories import keys_of
from poller.control.orphans import prefixes_of, report_empty_store
from poller.store.keys import ConsumerKeys, FeedKeys, remembered_key
from tests.control.subscribed import FEEDS, configured
from tests.harness.clock import StubClock
from tests.harness.waiting import patience
from tests.test_app import now, settings

SOURCE = '[[sources]]\nname = "acme"\nbase_url = "http://127.0.0.1:9"\nauth = {auth}\n'
FEED = '[[sources.feeds]]\nresource = "contractTypes"\n'
OAUTH2 = '{{ oauth2 = {{ token_url = "http://127.0.0.1:9", client_id = "me", client_secret_file = "{secret}" }} }}'


async def told(directory: Path, auth: str, **environ: str) -> list[tuple[str, str, str]]:
    """Level, error and advice of each line that is logged about a source with this ``auth``."""
    file = directory / "poller.toml"
    file.write_text(SOURCE.format(auth=auth) + FEED, "utf-8")
    with capture_logs() as said:
        await report_missing_credentials(load(file, {}).sources, environ, Clock())
    assert all(line["source"] == "acme" for line in said)
    return [(line["log_level"], line["error"], line["advice"]) for line in said]


async def test_a_variable_that_is_not_set(tmp_path: Path) -> None:
    """A missing or blank environment variable is named, and the advice is to restart."""
    for environ in ({}, {"ACME_TOKEN": " "}):
        ((level, error, advice),) = await told(tmp_path, '{ token_env = "ACME_TOKEN" }', **environ)
        assert (level, error) == ("error", "the environment variable ACME_TOKEN holds no token")
        assert "start poller again" in advice


@pytest.mark.parametrize(("auth", "what"), [('{{ token_file = "{secret}" }}', "token"), (OAUTH2, "client secret")])
async def test_a_file_that_cannot_be_used(tmp_path: Path, auth: str, what: str) -> None:
    """A credential file that is missing or readable by others is named with the reason, and no restart is needed."""
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
    """Nothing is reported for a source that needs no credential, or whose credential comes from a command."""
    assert await told(tmp_path, auth) == []


async def test_the_daemon_says_it_first(tmp_path: Path) -> None:
    """A polling daemon logs a missing credential before it reaches the store and runs on; other roles log none."""
    wanted = settings(tmp_path, url="http://127.0.0.1:9", store='redis = { url = "unix:///nowhere" }')
    for roles, events in ((frozenset({"poll"}), ["source without a credential"]), (frozenset({"deliver"}), [])):
        stop = asyncio.Event()
        stop.set()
        with capture_logs() as said:
            async with patience("the daemon to stop"):
                await run(wanted, {}, stop=stop, clock=StubClock(now=now), roles=roles)
        assert [line["event"] for line in said if line["log_level"] == "error"] == events
        assert [line["event"] for line in said][: len(events)] == events


# Laws of an empty store and of a changed prefix.


async def test_an_empty_store_is_a_first_start(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A store without any feed's state is logged as a first start, at level ``info``, despite other programs' keys."""
    await client.set("session:{a/b}:state", "of somebody else")
    with capture_logs() as said:
        await report_empty_store(client, configured(tmp_path))
    assert [(line["event"], line["log_level"]) for line in said] == [
        ("first start: the store has no state of any feed", "info")
    ]


async def test_a_store_that_knows_a_feed_is_not_talked_about(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A store with a feed's state, or with its high-water mark alone, is not reported; the round reports the loss."""
    settings = configured(tmp_path)
    await client.hset(keys_of(settings, FEEDS[1]).state, "generation", "g")
    with capture_logs() as said:
        await report_empty_store(client, settings)
        await client.flushall()
        await client.hset(remembered_key("poller"), FEEDS[0], "{}")
        await report_empty_store(client, settings)
    assert said == []


async def test_the_feeds_under_another_prefix_are_named(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """When the feeds have state under another prefix, a warning names that prefix."""
    await client.hset(FeedKeys.of("staging:one", FEEDS[0]).state, "generation", "g")
    await client.hset(ConsumerKeys.of("other", FEEDS[0], "a").state, "place", "0-0")
    with capture_logs() as said:
        await report_empty_store(client, configured(tmp_path))
    (line,) = said
    assert (line["log_level"], line["prefix"], line["others"]) == ("warning", "poller", ["staging:one"])


class Endless:
    """A store whose scan never ends."""

    async def scan_iter(self, **_: object) -> AsyncIterator[bytes]:
        yield FeedKeys.of("there", FEEDS[0]).state.encode()
        await asyncio.Event().wait()


async def test_the_search_ends_in_time() -> None:
    """The search for prefixes stops at its time limit and returns what it has found."""
    assert await prefixes_of(cast("Any", Endless()), FEEDS, within=0.01) == {"there"}


# Laws of what a start imports.


def _imported(statements: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after these statements."""
    code = f"import sys\n{statements}\nprint(*{{name.partition('.')[0] for name in sys.modules if sys.modules[name]}})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    return set(done.stdout.split())


def test_status_needs_no_http_client() -> None:
    """Law: what ``poller status`` reads the store with imports no HTTP client: that would take half of its time."""
    found = _imported("import poller.cli.status, poller.control.status, poller.store.session")
    assert "redis" in found
    assert found.isdisjoint({"aiohttp", "httpx", "uvicorn", "prometheus_client", "apscheduler"})


def test_the_decoration_of_terminals_is_left_out() -> None:
    """Law: structlog and httpx work without rich and click if these are absent at their first import."""
    found = _imported(
        "from poller.telemetry import absent\n"
        "with absent('rich'): import structlog.dev\n"
        "with absent('click'): import httpx\n"
        "assert 'rich' not in sys.modules and 'click' not in sys.modules"
    )
    assert {"structlog", "httpx"} <= found
    assert found.isdisjoint({"rich", "click", "pygments"})


def test_a_module_that_was_absent_can_be_imported_afterwards() -> None:
    """Law: absence lasts for its block alone, and one that is imported already is not taken away."""
    found = _imported(
        "from poller.telemetry import absent\nwith absent('rich'): pass\nimport rich\nwith absent('rich'): import rich"
    )
    assert "rich" in found


def test_the_http_library_loads_no_authorities() -> None:
    """Law: aiohttp's own contexts, which nothing uses, trust no server, and the environment is as it was."""
    found = _imported(
        "import os\n"
        "os.environ['SSL_CERT_DIR'] = '/mine'\n"
        "os.environ.pop('SSL_CERT_FILE', None)\n"
        "import poller.app, aiohttp.connector as connector\n"
        "assert not connector._SSL_CONTEXT_VERIFIED.get_ca_certs()\n"
        "assert connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509'] == 0\n"
        "assert os.environ['SSL_CERT_DIR'] == '/mine' and 'SSL_CERT_FILE' not in os.environ\n"
    )
    assert "aiohttp" in found


def test_authorities_are_loaded_for_tls_alone() -> None:
    """Law: a source without TLS needs none, and one with TLS loads them at its first request, not at the start."""
    found = _imported(
        "import asyncio\n"
        "from contextlib import aclosing\n"
        "from datetime import timedelta\n"
        "from poller.clock import Clock\n"
        "from poller.errors import SourceError\n"
        "from poller.http import transport\n"
        "from poller.source.client import ApiClient\n"
        "loaded = lambda: transport._system_tls.cache_info().currsize\n"
        "async def asked(url, expected):\n"
        "    async with aclosing(transport.SharedConnections()) as shared:\n"
        "        async with ApiClient(url, clock=Clock(), shared=shared) as client:\n"
        "            assert loaded() == 0, url\n"
        "            try: await client.get('/x', patience=timedelta())\n"
        "            except SourceError: pass\n"
        "            assert loaded() == expected, url\n"
        "asyncio.run(asked('http://127.0.0.1:9', 0))\n"
        "asyncio.run(asked('https://127.0.0.1:9', 1))\n"
    )
    assert "aiohttp" in found
