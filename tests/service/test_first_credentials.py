"""Laws of :mod:`poller.service.first_credentials`: what is missing is told at once, by its name alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from poller.config.load import load
from poller.service.daemon import run
from poller.service.first_credentials import look_for_credentials
from tests.harness.waiting import patience
from tests.service.test_daemon import now, settings

SOURCE = '[[sources]]\nname = "acme"\nbase_url = "http://127.0.0.1:9"\nauth = {auth}\n'
FEED = '[[sources.feeds]]\nresource = "contractTypes"\n'
OAUTH2 = '{{ oauth2 = {{ token_url = "http://127.0.0.1:9", client_id = "me", client_secret_file = "{secret}" }} }}'


async def told(directory: Path, auth: str, **environ: str) -> list[tuple[str, str, str]]:
    """Level, error and advice of each line about a source with this ``auth``."""
    file = directory / "poller.toml"
    file.write_text(SOURCE.format(auth=auth) + FEED, "utf-8")
    with capture_logs() as said:
        await look_for_credentials(load(file, {}).sources, environ)
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
                await run(wanted, {}, stop=stop, now=now, roles=roles)
        assert [line["event"] for line in said if line["log_level"] == "error"] == events
        assert [line["event"] for line in said][: len(events)] == events
