"""The whole program as the user of ``deploy/redis/users.acl``, on a server of ``deploy/redis/redis.conf``."""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from poller.redis.client import commands
from tests.acl import Guarded, running_with_acl
from tests.cli.commands import Program
from tests.cli.conftest import started
from tests.harness.processes import sandbox
from tests.harness.waiting import patience
from tests.programs import Running
from tests.receiver import Receiver, Reply, receiving
from tests.servers import NotStarted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

SECRET = "whsec_Y2hhb3MgaXMgYSBsYWRkZXIsIG5vdCBhIHBpdA=="  # noqa: S105 -- of no use anywhere
CONFIG = """
http = {{ bind = "off" }}
lease = {{ ttl = "1s" }}
[[sources]]
name = "acme"
base_url = "{api}"
auth = {{ token_env = "API_TOKEN" }}
[[sources.feeds]]
resource = "contractTypes"
interval = "200ms"
[[sources.feeds]]
resource = "evidenceVariants"
interval = "200ms"
reconcile = "300ms"
[[sources.feeds]]
resource = "achievements"
interval = "200ms"
[[subscriptions]]
id = "good"
sink = "{sink}/good"
start = "earliest"
allow_private = true
secret_files = ["{secret}"]
feeds = ["acme/contractTypes"]
[[subscriptions]]
id = "bad"
sink = "{sink}/bad"
start = "earliest"
allow_private = true
feeds = ["acme/contractTypes"]
retry = {{ schedule = ["10ms"], jitter = 0 }}
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """Debian's Redis over TLS, or the Valkey of the wheel if that Redis is missing or has no TLS."""
    authority, certificate = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    tls = {"cert": certificate, "key": certificate, "ca": tmp_path / "ca.pem"}
    try:
        with running_with_acl("redis", tmp_path / "s", tls=tls) as server:
            yield server
    except (NotStarted, pytest.skip.Exception):
        with running_with_acl("valkey", tmp_path / "v") as server:
            yield server


@asynccontextmanager
async def run(config: Path, **environ: str) -> AsyncIterator[Running]:
    """The daemon while the block runs; stopped in order."""
    async with started("run", "-c", str(config), cwd=config.parent, **environ) as daemon:
        try:
            yield daemon
        finally:
            daemon.send_signal(signal.SIGTERM)
            async with patience("the daemon to leave"):
                _, log = await daemon.communicate()
            assert daemon.returncode == 0, log.decode()
            assert b"NOPERM" not in log, log.decode()


def sink(bad: list[int]) -> Any:
    """Answers 204, and on ``/bad`` the status in its path."""

    def answer(request: Any) -> Reply:
        return Reply(bad[-1] if request.target == "/bad" else 204)

    return answer


@pytest.mark.thorough
async def test_the_whole_program_needs_what_is_granted(guarded: Guarded, tmp_path: Path) -> None:
    """All commands and the daemon's work need no right beyond those granted: ACL LOG stays empty."""
    bad = [500]
    environ = {"REDIS_URL": guarded.url, "API_TOKEN": "sandbox"}
    program = Program(**environ)
    async with (
        commands(guarded.admin) as admin,
        sandbox(records=60, changes_per_second=20, seed=1, profile="no-id@contractTypes") as api,
        receiving() as receiver,
    ):
        receiver.answer = sink(bad)
        config, secret = tmp_path / "poller.toml", tmp_path / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        config.write_text(CONFIG.format(api=api, sink=receiver.url, secret=secret))

        async def told(*arguments: str, code: int = 0) -> str:
            ended = await program.run(*arguments, "-c", str(config))
            assert ended.code == code, (arguments, ended)
            assert "NOPERM" not in ended.out + ended.err
            return ended.out

        assert "unknown" not in await told("check")
        await told("once")
        async with run(config, **environ):
            await _delivered(receiver, "/good", 5, since=0)  # so the daemon knows what is subscribed
            await _tailed(config, environ)
            await told("resync", "evidenceVariants")
            await told("release", "evidenceVariants", code=1)  # nothing is held
            added = await told("subscriptions", "add", "late", f"{receiver.url}/late", "--allow-private")
            assert added.startswith("late: added; the running daemon delivers to ")
            for name in ("list", "test good", "pause good", "resume good", "show bad"):
                await told("subscriptions", *name.split())
            letters = await _letters(told)
            bad.append(204)
            await told("dead-letters", "show", letters["events"][0])
            await told("dead-letters", "show", letters["records"][0])
            await told("dead-letters", "drop", letters["records"][0])
            await told("dead-letters", "drop", letters["events"][1])
            await told("dead-letters", "redeliver", letters["events"][0])
            await told("dead-letters", "redeliver", "--subscription", "bad", "--all")
            await told("replay", "good", "--from", "earliest", "--wait")
            await told("subscriptions", "pause", "good")
            await told("replay", "good", "--from", "1h")
            await told("replay", "good", "--cancel")
            await told("subscriptions", "resume", "good")
            await told("subscriptions", "remove", "late", "--yes")
            await _delivered(receiver, "/bad", 5, since=receiver.count)
            await told("status")
        assert await admin.acl_log() == []


async def _delivered(receiver: Receiver, path: str, count: int, *, since: int) -> None:
    """Wait until a sink has received this many requests after an earlier total."""
    requests = receiver.requests
    await receiver.until(lambda: sum(one.target == path for one in requests[since:]) >= count, f"{count} at {path}")


async def _tailed(config: Path, environ: dict[str, str]) -> None:
    """``tail`` shows existing events and new ones."""
    async with (
        started("tail", "--from", "earliest", "--json", "-c", str(config), cwd=config.parent, **environ) as tail,
        patience("events"),
    ):
        assert tail.stdout is not None
        for _ in range(25):
            assert json.loads(await tail.stdout.readline())["specversion"] == "1.0"


async def _letters(told: Any) -> dict[str, list[str]]:
    """The ids of the dead letters, once there are some of both kinds."""
    async with patience("dead letters of both kinds"):
        while True:
            found = [json.loads(line)["id"] for line in (await told("dead-letters", "list", "--json")).splitlines()]
            kinds = {
                "events": [one for one in found if one.count(":") == 2],
                "records": [one for one in found if one.count(":") == 1],
            }
            if len(kinds["events"]) > 1 and kinds["records"]:
                return kinds
