"""``poller dead-letters`` on records, and where ``status`` points to it, on a real store."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest

from poller.sandbox.faults.registry import chosen
from poller.sandbox.history import History
from poller.sandbox.server import SANDBOX_TOKEN, serving
from poller.store.feed import QUARANTINE_BYTES, rejected_digest
from tests.cli.commands import on_terminal
from tests.cli.conftest import Called, Poller
from tests.stores import looking

FEED = "default/contractTypes"
LONGEST = "default/employmentUnavailabilities"
REASON = "no id: 'id' is absent, empty, or neither text nor an integer"


@pytest.fixture
def url(store_url: str) -> str:
    """An empty Valkey for each test."""
    return store_url


def configured(url: str, api: str = "http://127.0.0.1:1") -> dict[str, str]:
    return {"POLLER_BASE_URL": api, "POLLER_TOKEN": SANDBOX_TOKEN, "REDIS_URL": url}


def add(url: str, *records: bytes, feed: str = FEED, reason: str = REASON) -> None:
    with looking(url) as store:
        for number, raw in enumerate(records, start=1):
            fields = {"raw": raw[:QUARANTINE_BYTES], "reason": reason, "digest": rejected_digest(raw)}
            store.xadd(f"poller:{{{feed}}}:quarantine", fields, id=f"{number}-0")


def test_list(called: Called, url: str) -> None:
    """The newest come last; ``--json`` prints one object a line; standard error counts those not shown."""
    assert (called("dead-letters", "list", **configured(url))).out == "no dead letters\n"
    add(url, b"[1]", b"[22]", b"[333]")
    ended = called("dead-letters", "list", "contractTypes", "--json", "--limit", "2", **configured(url))
    assert ended.code == 0
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {
            "id": f"{FEED}:{number}-0",
            "kind": "record",
            "feed": FEED,
            "at": f"1970-01-01T00:00:00.00{number}Z",
            "reason": REASON,
            "bytes": number + 2,
            "subscription": None,
            "type": None,
            "subject": None,
        }
        for number in (2, 3)
    ]
    assert ended.err == "poller: 1 older not shown; --limit 3 shows all\n"
    plain = (called("dead-letters", "list", **configured(url))).out.splitlines()
    assert [line.split()[0] for line in plain] == ["id", *(f"{FEED}:{number}-0" for number in (1, 2, 3))]


def test_show(called: Called, url: str) -> None:
    """A record is laid out or escaped and cannot control the terminal; --raw writes it byte for byte."""
    records = (b'{"a":"\xc2\x9b31m"}', b"\x1b[31m\xff\x00", b"1" * (QUARANTINE_BYTES + 1))
    add(url, *records, reason="odd \x1b[31m")
    shown = [called("dead-letters", "show", f"{FEED}:{number}-0", **configured(url)).out for number in (1, 2, 3)]
    head = f"id      {FEED}:1-0\nat      1970-01-01T00:00:00.001Z\nreason  odd \\x1b[31m\nbytes   13\n\n"
    assert shown[0] == head + '{\n  "a": "\\u009b31m"\n}\n'
    assert shown[1].endswith("\n\n\\x1b[31m\\xff\\x00\n")
    assert "\nbytes   65536, the first of more\n" in shown[2]
    raw = called("dead-letters", "show", "--raw", f"{FEED}:2-0", **configured(url))
    assert raw.out.encode("utf-8", "surrogateescape") == records[1]


def test_drop(called: Called, url: str) -> None:
    """Dead letters are dropped by id, or all of a feed; an error names unknown ids, the others are dropped."""
    add(url, *(b"[%d]" % number for number in range(6)))
    one = called("dead-letters", "drop", f"{FEED}:1-0", "contractTypes:1-0", **configured(url))
    assert (one.code, one.out) == (0, "1 dead letter dropped\n")
    some = called("dead-letters", "drop", f"{FEED}:1-0", f"{FEED}:2-0", f"{FEED}:3-0", **configured(url))
    assert (some.code, some.out) == (1, "2 dead letters dropped\n")
    assert f"no dead letter {FEED}:1-0" in some.err
    assert "poller dead-letters list" in some.err
    every = called("dead-letters", "drop", "--feed", "contractTypes", "--all", **configured(url))
    assert (every.code, every.out) == (0, "3 dead letters dropped\n")


WRONG: tuple[tuple[list[str], int, str], ...] = (
    (["show", f"{FEED}:9-0"], 1, f"no dead letter {FEED}:9-0"),
    (["show", "nix:9-0"], 2, 'no feed "nix"'),
    (["drop", f"{FEED}:1-0", "nonsense"], 2, "expected SOURCE/NAME:ENTRY"),
    (["drop"], 2, "expected ID..., --feed FEED --all, or --subscription ID --all"),
    (
        ["drop", f"{FEED}:1-0", "--feed", FEED, "--all"],
        2,
        "expected ID..., --feed FEED --all, or --subscription ID --all",
    ),
    (["redeliver"], 2, "expected ID..., or --subscription ID --all"),
    (["redeliver", "--feed", FEED, "--all"], 2, "expected ID..., or --subscription ID --all"),
    (["redeliver", f"{FEED}:1-0"], 2, "a record that could not be used"),
    (["list", "--subscription", "nix"], 2, 'no subscription "nix"'),
    ([], 2, "See poller dead-letters --help"),
)


def test_wrong_use(called: Called, url: str) -> None:
    """Wrong usage is reported in one paragraph with the right exit code, and nothing is dropped."""
    add(url, b"[1]")
    for arguments, code, says in WRONG:
        ended = called("dead-letters", *arguments, **configured(url))
        assert (ended.code, ended.out) == (code, ""), arguments
        assert says in ended.err
        assert "Traceback" not in ended.err
    with looking(url) as store:
        assert store.xlen(f"poller:{{{FEED}}}:quarantine") == 1


def test_from_quarantine_to_quarantine(poller: Poller, called: Called, url: str) -> None:
    """A record that a round quarantines is reported and listed; after a drop, the next round quarantines it again."""
    asyncio.run(a_round(poller, url))
    status = called("status", **configured(url))
    assert f"quarantined records: poller dead-letters list {FEED}" in status.out.splitlines()
    first = called("dead-letters", "list", **configured(url)).out.splitlines()[1].split()[0]
    assert called("dead-letters", "drop", first, **configured(url)).code == 0
    asyncio.run(a_round(poller, url))
    assert called("dead-letters", "list", **configured(url)).out.splitlines()[1].split()[0] > first


async def a_round(poller: Poller, url: str) -> None:
    async with serving(History(), rng=Random(1), choices=chosen(["id-empty@contractTypes"], ())) as api:
        assert (await poller("once", "contractTypes", **configured(url, api))).code == 0


@pytest.mark.parametrize(("columns", "longest"), [(80, 80), (40, 100)])
def test_the_table_fits_a_terminal(url: str, columns: int, longest: int) -> None:
    """On a terminal of 80 columns no line is longer; an id is never broken, even on a narrow one."""
    with looking(url) as store:
        number = store.xadd(f"poller:{{{LONGEST}}}:quarantine", {"raw": b"[1]", "reason": REASON}).decode()
    lines = on_terminal(["dead-letters", "list"], configured(url) | {"TERM": "xterm"}, columns)
    assert any(f"{LONGEST}:{number}" in line for line in lines)
    assert max(map(len, lines)) <= longest
