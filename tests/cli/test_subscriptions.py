"""``poller subscriptions`` and its part of ``status``: the real program on a real store."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from poller.clock import moment_of, rfc3339
from poller.delivery.delivery_codec import Delivery, encode
from poller.delivery.signing import new_secret, public_key
from poller.resources import RESOURCES
from poller.store.keys import ConsumerKeys
from poller.store.subscriptions import PARTS
from tests.cli.commands import environment, on_terminal
from tests.cli.conftest import Poller
from tests.harness.waiting import patience, strain, until
from tests.programs import for_the_block
from tests.proxy import proxied
from tests.receiver import Reply, receiving
from tests.stores import looking

LONG = "https://sink.example.org/a/rather/long/path/to/the/hook?key=hush-hush-hush"


@pytest.fixture
def url(store_url: str) -> str:
    """An empty store."""
    return store_url


@pytest.fixture
def configured(tmp_path: Path, url: str) -> dict[str, str]:
    """One source with the four feeds, and a subscription in the file."""
    file = tmp_path / "poller.toml"
    file.write_text(f'[[subscriptions]]\nid = "filed"\nsink = "{LONG}"\nfeeds = ["default/achievements"]\n', "utf-8")
    return {"POLLER_BASE_URL": "http://127.0.0.1:1", "REDIS_URL": url, "POLLER_CONFIG": str(file)}


async def test_from_added_to_removed(poller: Poller, configured: dict[str, str], url: str) -> None:
    """A subscription is added, listed, tested, paused, resumed, removed; its secret is shown once."""

    async def subscriptions(*arguments: str, code: int = 0) -> str:
        ended = await poller("subscriptions", *arguments, **configured)
        assert (ended.code, ended.err) == (code, ""), arguments
        return ended.out

    async with receiving([Reply(200, body=b"\x1b[1m\xc2\x9b31mthanks"), Reply(500)]) as receiver:
        sink = f"{receiver.url}/hook?key=hush"
        given = ["--allow-private", "--feed", "contractTypes", "--filter", '{"exact": {"subject": "7"}}']
        told = await subscriptions("add", "a", sink, *given, "--header", "X-Key: hush-hush", "--rate", "5")
        first, secret = told.replace("\nsecret  ", "\n").splitlines()[:2]
        assert (first, secret[:6]) == (
            f"a: added; no daemon delivers now; `poller run` does, to {receiver.url}/…",
            "whsec_",
        )
        shown = await subscriptions("show", "a")
        assert "default/contractTypes" in shown
        assert (f"\nsink            {receiver.url}/…\n" in shown, "/hook" in shown) == (True, False)
        assert "\nsecrets         1 generated\n" in shown
        assert '"exact": {"subject": "7"}' in shown
        assert "X-Key: …" in shown

        with looking(url) as store:
            brought = {"credentialtype": "PLAIN", "identifier": "me", "secret": "hush-hush"}
            store.hset("poller:{subscriptions}:credentials", "a", json.dumps(brought))
        assert "\ncredential      from the subscription request, not shown\n" in await subscriptions("show", "a")

        tried = await subscriptions("test", "a")
        assert "\nAuthorization: …\n" in tried
        assert receiver.requests[0].header("authorization") == "Basic bWU6aHVzaC1odXNo"
        assert "\nX-Key: …\n" in tried
        assert "\nthe sink accepts it: status 200 after " in tried
        assert "\\x9b31mthanks" in tried
        assert "\x1b" not in tried
        signature = receiver.requests[0].header("webhook-signature")
        assert signature is not None
        assert f"webhook-signature: {signature[:10]}…\n" in tried
        assert "\nthe sink does not accept it: status 500 after " in await subscriptions("test", "a", code=1)

        paused, resumed = await subscriptions("pause", "a", "--reason", "why"), await subscriptions("resume", "a")
        assert paused.startswith("a: paused")
        assert "resumed where it stopped" in resumed
        assert "operator): why" in resumed
        status = await poller("status", "--json", **configured)
        *lines, last = [json.loads(line) for line in status.out.splitlines()]
        assert list(last) == ["store"]
        assert ["feed" in line for line in lines] == [True] * len(RESOURCES) + [False] * 2
        assert [(line["subscription"], line["state"]) for line in lines[len(RESOURCES) :]] == [
            ("a", "active"),
            ("filed", "new"),
        ]
        assert lines[-2]["sink"] == f"{receiver.url}/…"

        with looking(url) as store:
            store.xgroup_create("poller:{default/contractTypes}:events", "sub:a", mkstream=True)
        assert await subscriptions("remove", "a", "--yes") == "a: removed\n"
    with looking(url) as store:
        assert not any(store.exists(f"poller:{{subscriptions}}:{part}") for part in PARTS)
        assert store.xinfo_groups("poller:{default/contractTypes}:events") == []
    for text in (shown, tried, paused, resumed, status.out):
        assert "hush" not in text
        assert secret not in text


async def test_resume_says_when_the_next_attempt_comes(poller: Poller, configured: dict[str, str], url: str) -> None:
    """Retries keep their schedule when a subscription is resumed, and the command says when the first is due."""
    added = await poller("subscriptions", "add", "a", "https://sink.example.org", "--no-secret", **configured)
    assert (added.code, "whsec_" in added.out) == (0, False)
    with looking(url) as store:
        due = int(store.time()[0] + 3600) * 1000
        parked = ConsumerKeys.of("poller", "default/contractTypes", "a").parked
        store.hset(parked, mapping={"1-0": encode(Delivery("K", due=due)), "2-0": encode(Delivery("L", due=due + 9))})
    text = "2 events wait for their next attempt by the retry schedule; the first is due in "
    assert (await poller("subscriptions", "pause", "a", **configured)).code == 0
    resumed = await poller("subscriptions", "resume", "a", **configured)
    assert resumed.out.splitlines()[1].startswith(f"a: {text}")
    assert f"({rfc3339(moment_of(due))})" in resumed.out
    shown = await poller("subscriptions", "show", "a", **configured)
    assert f"\nnext attempt    {text}" in shown.out
    assert "\nsecrets         none, requests are not signed\n" in shown.out
    with looking(url) as store:
        store.delete(parked)
    assert (await poller("subscriptions", "resume", "a", **configured)).out == "a: was not paused\n"


async def test_what_is_sent_is_shown(poller: Poller, configured: dict[str, str], tmp_path: Path) -> None:
    """``show`` says which changes are sent and what is sent of them; without settings, all."""
    values = {"id": "b", "sink": "https://sink.example.org", "thin": True}
    chosen = {"when": {"not_cause": ["baseline"]}, "fields": {"drop": ["/reason"]}}
    file = tmp_path / "b.json"
    file.write_text(json.dumps(values | chosen), "utf-8")
    assert (await poller("subscriptions", "add", "a", "https://sink.example.org", **configured)).code == 0
    assert (await poller("subscriptions", "add", "--from-json", str(file), **configured)).code == 0
    shown = (await poller("subscriptions", "show", "a", **configured)).out
    for line in ("when            always", "fields          all", "thin            false"):
        assert f"\n{line}\n" in shown
    shown = (await poller("subscriptions", "show", "b", **configured)).out
    assert '"not_cause": ["baseline"]' in shown
    assert '\nfields          {"drop": ["/reason"]}\nthin            true\n' in shown


WRONG: tuple[tuple[list[str], str], ...] = (
    (["add", "filed", "https://sink.example.org"], '"filed" is in the configuration file'),
    (["add", "x", "http://127.0.0.1:1"], 'subscription: sink = "http://127.0.0.1:1": expected a host that'),
    (["add", "x", "https://10.0.0.1"], "a private address; --allow-private or allow_hosts lets it through"),
    (["add", "x", "http://sink.example.org"], "http:// only with --allow-private, or"),
    (["add", "x", "https://sink.example.org", "--feed", "contractType"], 'did you mean "contractTypes"?'),
    (["add", "x", "https://sink.example.org", "--type", "creatd"], 'types[0] = "creatd": expected a type that a feed'),
    (["add", "x", "https://sink.example.org", "--mode", "odd"], 'mode = "odd": expected "structured"'),
    (["add", "x", "--from-json", "-"], "or --from-json FILE alone"),
    (["add", "--from-json", "nowhere.json"], "nowhere.json: cannot be read"),
    (["add", "--from-json", "-"], "standard input: expected a JSON object"),
    (["add", "x", "https://x.example/", "--filter", "\udcff"], "--filter: expected a JSON object"),
    (["add", "x", "https://x.example/", "--filter", f'{{"exact": {"1" * 5000}}}'], "--filter: expected a JSON object"),
    (
        ["add", "x", "https://sink.example.org", "--filter", '{"exact": {"subject": "1", "subject": "2"}}'],
        "--filter: exact.subject: expected once",
    ),
    (["remove", "filed"], "remove it there"),
    (["show", "x"], 'there is no subscription "x"'),
)


async def test_wrong_use(poller: Poller, configured: dict[str, str], url: str) -> None:
    """Wrong usage is reported in one paragraph with exit code 2, and nothing is written."""
    for arguments, says in WRONG:
        ended = await poller("subscriptions", *arguments, **configured)
        assert (ended.code, ended.out) == (2, ""), arguments
        assert says in ended.err, arguments
        assert "Traceback" not in ended.err
        assert "hush" not in ended.err
    with looking(url) as store:
        assert store.keys() == []


async def test_removal_needs_a_yes(poller: Poller, configured: dict[str, str], tmp_path: Path, url: str) -> None:
    """Given secret files are checked and no secret is generated; without a yes nothing is removed.

    A relative path is stored as an absolute one.
    """
    file, secret = tmp_path / "one.json", tmp_path / "secret"
    file.write_text('{"id": "a", "sink": "https://sink.example.org", "secret_files": ["secret"]}', "utf-8")
    refused = await poller("subscriptions", "add", "--from-json", str(file), **configured)
    assert (refused.code, "signing secret cannot be read" in refused.err) == (1, True)
    secret.write_text("whsec_" + "A" * 32, "utf-8")
    secret.chmod(0o600)
    told = await poller("subscriptions", "add", "--from-json", str(file), **configured)
    assert (told.code, "whsec_" in told.out) == (0, False)
    private = new_secret(b"s" * 32, "ed25519")
    secret.write_text(private, "utf-8")
    shown = await poller("subscriptions", "show", "a", **configured)
    assert f"\npublic key      {public_key(private)} (verifies v1a signatures)\n" in shown.out
    assert private not in shown.out
    assert "sink            https://sink.example.org\n" in shown.out
    assert "\nsecrets         1 in a file\n" in shown.out
    with looking(url) as store:
        kept = json.loads(store.hget("poller:{subscriptions}:registry", "a"))
    assert kept["settings"]["secret_files"] == [str(secret)]
    ended = await poller("subscriptions", "remove", "a", **configured)
    assert ended.code == 2
    assert "[y/N]:\npoller: " in ended.err
    assert "--yes" in ended.err
    asked = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "poller", "subscriptions", "remove", "a"),
        env=environment(configured),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with for_the_block(asked), patience("the process to end"):
        assert asked.stderr is not None
        await asked.stderr.readuntil(b"[y/N]")
        await until(lambda: _waits(asked.pid), "the prompt to wait")  # it misses a signal just before that
        ending = asyncio.create_task(asked.communicate())
        # It may have waited for something else. A second signal while it ends would kill it.
        await until(lambda: _interrupted(asked), "the process to end", every=5 * strain())
        _, told_last = await ending
    assert (asked.returncode, b"--yes" in told_last) == (130, False)
    assert "\na " in (await poller("subscriptions", "list", **configured)).out


def _interrupted(process: asyncio.subprocess.Process) -> bool:
    """Whether a process has ended; if not, it is interrupted."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    return process.returncode is not None


def _waits(pid: int) -> bool:
    """Whether the kernel reports the process as sleeping."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "S"


async def test_what_could_not_be_delivered_is_said_when_it_is_added(
    poller: Poller, configured: dict[str, str], tmp_path: Path
) -> None:
    """A subscription with a file that cannot be used here is added with a warning: the daemon may run elsewhere."""
    file = tmp_path / "one.json"
    file.write_text('{"id": "a", "sink": "https://h.example.org", "ca_file": "/nowhere/ca.pem"}')
    told = await poller("subscriptions", "add", "--from-json", str(file), **configured)
    assert told.code == 0
    assert "a: a daemon beside this command could not deliver to it: the certificates of a sink" in told.err


async def test_a_subscription_whose_secret_was_not_shown_is_named(
    poller: Poller, configured: dict[str, str], url: str
) -> None:
    """If the store's reply to ``add`` is lost, the error says what to do, for the secret is known to no one."""
    async with proxied(url) as proxy:
        proxy.lose_reply(to=b"lost.example.org")
        environ = configured | {"REDIS_URL": proxy.url}
        told = await poller("subscriptions", "add", "rostering", "https://lost.example.org/hooks", **environ)
    assert (told.code, told.out) == (1, "")
    assert "may have been added" in told.err
    assert "poller subscriptions show rostering" in told.err
    assert (await poller("subscriptions", "show", "rostering", **configured)).code == 0


def test_the_table_fits_a_terminal(configured: dict[str, str]) -> None:
    """On a terminal of 80 columns no line is longer; the reason of a failing subscription is below the table."""
    lines = on_terminal(["subscriptions", "list"], configured | {"TERM": "xterm"}, 80)
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "filed: no daemon has started with it yet"
    assert "hush" not in "".join(lines)
