"""``check``, ``once``, ``status`` and ``tail`` on a real sandbox and the embedded store."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # ships no types

from poller.sandbox.api import SandboxRequest, SandboxResponse, answer
from poller.sandbox.data import mutate
from poller.sandbox.history import RESOURCES, History
from poller.sandbox.server import serving
from tests.cli.commands import on_terminal
from tests.cli.conftest import Poller, Site, started
from tests.harness.waiting import limited
from tests.harness.wire import wired
from tests.stores import looking

COUNTS = ["records", "created", "modified", "removed", "unchanged", "quarantined"]
KEYS = ["feed", "mode", "ok", "pages", *COUNTS, "seconds", "error"]
TOKEN = {"API_TOKEN": "sandbox"}


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


async def test_from_check_to_tail(poller: Poller, site: Site, tmp_path: Path) -> None:
    """``check``, ``once``, ``status`` and ``tail`` agree: every record once, valid by its schema, then changes."""
    config = ("-c", str(site.file))
    checked = await poller("check", *config, **TOKEN)
    assert checked.code == 0
    assert "will be started in" in checked.out
    assert not (site.file.parent / "data").exists()
    assert all(line.startswith(("ok ", "warning ")) for line in checked.out.splitlines())

    first = await poller("once", "--json", *config, **TOKEN)
    assert first.code == 0
    assert [list(result) for result in lines(first.out)] == [KEYS] * 4
    assert sum(result["created"] for result in lines(first.out)) == 60

    status = await poller(*config, "status", "--json", **TOKEN)
    *feeds, last = lines(status.out)
    assert {one["feed"]: one["state"] for one in feeds} == {f"acme/{name}": "ok" for name in RESOURCES}
    assert sum(one["events"] for one in feeds) == 60
    assert {one["lease"] for one in feeds} == {"free"}
    assert last["store"]["ok"]
    assert {one["severity"] for one in last["store"]["checks"]} == {"ok"}
    assert "no problems" in (await poller(*config, "status", **TOKEN)).out.splitlines()[-1]

    schema = lines((await poller("schema", "events", *config)).out.replace("\n", ""))[0]
    validator = Draft202012Validator(schema)
    async with started("tail", "--from", "earliest", "--json", *config, cwd=tmp_path) as tail, limited(20):
        assert tail.stdout is not None
        events = [await tail.stdout.readline() for _ in range(60)]
        for event in events:
            validator.validate(json.loads(event))
        version = mutate(site.history, Random(1), datetime.now(UTC))
        again = await poller("once", *config, **TOKEN)
        assert again.code == 0
        changed = await tail.stdout.readline()
        validator.validate(json.loads(changed))
        assert version.record is not None
        assert msgspec.json.format(version.record, indent=-1) in changed
        tail.send_signal(signal.SIGINT)
        assert await tail.wait() == 0


async def test_tail_continues_after_foreign_entries(tmp_path: Path, store_url: str) -> None:
    """Entries that are no events are reported on standard error by id; later events are shown, as text and as JSON.

    No character of an event controls the terminal.
    """
    stream, event = "poller:{default/contractTypes}:events", {"id": "1", "type": "a.created.v1", "subject": "s"}
    stamps = dict.fromkeys(("time", "recordedtime"), "2026-03-02T08:15:00.000Z")
    data = {"revision": 1, "cause": "delta", "record": {"id": "s", "note": "\x9b31m"}}
    whole = json.dumps({**event, **stamps, "data": data}, ensure_ascii=False)
    with looking(store_url) as store:
        store.xadd(stream, {"other": "x"}, id="1-0")
        store.xadd(stream, {"data": "no JSON"}, id="2-0")
        store.xadd(stream, {"data": whole}, id="3-0")
    environ = {"POLLER_BASE_URL": "http://127.0.0.1:1", "REDIS_URL": store_url}
    for form, shown in ((["--json"], b'"id":"1"'), ([], b"created")):
        async with (
            started("tail", "--from", "earliest", *form, cwd=tmp_path, **environ) as tail,
            limited(20),
        ):
            assert tail.stdout is not None
            assert tail.stderr is not None
            line = await tail.stdout.readline()
            assert shown in line
            assert "\x9b" not in line.decode()
            assert b"no process polls" in await tail.stderr.readline()
            assert b"entry 1-0 of default/contractTypes is unreadable" in await tail.stderr.readline()
            assert b"entry 2-0 of default/contractTypes is unreadable" in await tail.stderr.readline()


async def test_failures_are_reported(poller: Poller, site: Site) -> None:
    """A refused token fails each feed with exit code 1, and the result has the reason."""
    config = ("-c", str(site.file))
    ended = await poller("once", "--json", "contractTypes", *config, API_TOKEN="wrong")  # noqa: S106 -- it is wrong
    assert ended.code == 1
    (result,) = lines(ended.out)
    assert result["ok"] is False
    assert "401" in result["error"]
    checked = await poller("check", *config, API_TOKEN="wrong")  # noqa: S106 -- as above
    assert checked.code == 1
    assert "error    acme/contractTypes" in checked.out


async def test_the_table_of_once_fits_a_terminal(site: Site) -> None:
    """On a narrow terminal columns are left out, and named; what was published of a feed stays."""
    arguments = ["once", "contractTypes", "employmentUnavailabilities", "-c", str(site.file)]
    written = await asyncio.to_thread(on_terminal, arguments, {"TERM": "xterm", **TOKEN}, 80)
    assert max(map(len, written)) <= 80
    heading, *rows, left_out = written
    assert heading.split() == ["feed", "records", "created", "modified", "removed", "quarantined"]
    assert [row.split()[1] for row in rows] == ["ok", "ok"]
    assert left_out == "not shown, too narrow: mode, pages, unchanged, seconds"


async def test_rounds_that_have_not_begun_have_no_mode(poller: Poller, tmp_path: Path) -> None:
    """Without a store ``once`` says of each feed that it failed, in no mode; why, it says once, and names the store."""
    file = tmp_path / "poller.toml"
    feeds = "".join(f'[[sources.feeds]]\nresource = "{name}"\n' for name in ("contractTypes", "evidenceVariants"))
    source = f'[[sources]]\nname = "acme"\nbase_url = "http://127.0.0.1:9"\n{feeds}'
    file.write_text(f'[redis]\nurl = "redis://127.0.0.1:1"\n{source}', "utf-8")
    ended = await poller("once", "-c", str(file))
    _, *rows, reason = ended.out.splitlines()
    assert ended.code == 1
    assert [row.split()[:3] for row in rows] == [
        [f"acme/{name}", "-", "failed"] for name in ("contractTypes", "evidenceVariants")
    ]
    assert reason == "acme/contractTypes and 1 other feed: 127.0.0.1:1: cannot connect: Connection refused"


async def test_once_says_why_a_feed_has_nothing_to_list(poller: Poller, site: Site) -> None:
    """While no qualification is known, a feed that has a listing for each of them succeeds, and ``once`` says why."""
    config = ("-c", str(site.file))
    ended = await poller("once", "achievements", *config, **TOKEN)
    assert ended.code == 0
    _, row, reason = ended.out.splitlines()
    assert row.split()[:3] == ["acme/achievements", "baseline", "ok"]
    assert reason.startswith("acme/achievements: no qualification is known so far, so nothing is listed: ")
    ended = await poller("once", *config, **TOKEN)
    assert "no qualification" not in ended.out


async def test_once_that_is_interrupted_shows_the_rounds_that_have_ended(site: Site, tmp_path: Path) -> None:
    """An interrupted ``once`` exits with 130, after a table of the rounds that had ended and a word on the others."""
    others, asked = RESOURCES.keys() - {"achievements"}, asyncio.Event()

    def respond(history: History, ask: SandboxRequest) -> SandboxResponse:
        if ask.resource == "achievements":  # which come after all others
            wire.silence()
            asked.set()
        return answer(history, ask)

    async with serving(site.history, rng=Random(1), respond=respond) as url, wired(url) as wire:
        site.file.write_text(site.file.read_text("utf-8").replace(site.url, wire.url), "utf-8")
        async with started("once", "-c", str(site.file), cwd=tmp_path, **TOKEN) as once, limited(20):
            assert once.stdout is not None
            assert once.stderr is not None
            await asked.wait()
            once.send_signal(signal.SIGINT)
            code = await once.wait()
            out, err = (await once.stdout.read()).decode(), (await once.stderr.read()).decode()
    assert code == 130, out + err
    heading, *shown = out.splitlines()
    *_, said = err.splitlines()
    assert heading.split()[:2] == ["feed", "mode"]
    assert {line.split()[0] for line in shown} == {f"acme/{name}" for name in others}
    assert said.startswith("poller: interrupted before the round of acme/achievements had ended;")


async def test_sandbox_stops(tmp_path: Path) -> None:
    """The sandbox prints its address, and SIGTERM ends it with 0."""
    async with started("sandbox", "--port", "0", cwd=tmp_path) as sandbox, limited(20):
        assert sandbox.stdout is not None
        assert b"http://127.0.0.1:" in await sandbox.stdout.readline()
        sandbox.send_signal(signal.SIGTERM)
        assert await sandbox.wait() == 0
