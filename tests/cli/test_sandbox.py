"""``poller sandbox``: its profiles listed, and put on."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import httpx

from poller.sandbox.faults.registry import PROFILES
from tests.cli.conftest import Poller, started


async def test_the_list_is_the_table(poller: Poller) -> None:
    """``--list`` prints each profile, its kind and its line, in the table's order; ``--json`` the same as objects."""
    plain, lines = await poller("sandbox", "--list"), await poller("sandbox", "--list", "--json")
    assert (plain.code, plain.err, lines.code, lines.err) == (0, "", 0, "")
    table = [(profile.name, profile.kind.value, profile.does) for profile in PROFILES.values()]
    assert [tuple(re.split(r" {2,}", line, maxsplit=2)) for line in plain.out.splitlines()[1:]] == table
    assert [json.loads(line) for line in lines.out.splitlines()] == [
        {"name": name, "kind": kind, "does": does} for name, kind, does in table
    ]


async def test_a_port_that_is_taken_is_told_with_the_way_out(poller: Poller) -> None:
    """Law: the message names the address and the option that takes another."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        ended = await poller("sandbox", "--port", str(other.getsockname()[1]))
    assert (ended.code, "cannot listen on 127.0.0.1" in ended.err, "--port 0" in ended.err) == (2, True, True)


async def test_profiles_and_faults_are_put_on(tmp_path: Path) -> None:
    """What is named, repeated or with commas, is what the served API does; faults strike as often as said."""
    options = ("--profile", "end-null,delta-none", "--profile=bom@evidenceVariants", "--faults", "status-502=2")
    async with started("sandbox", "--port=0", "--changes-per-second=0", *options, cwd=tmp_path) as process:
        assert process.stdout is not None
        told = re.search(rb"http://\S+", await process.stdout.readline())
        assert told is not None
        headers = {"authorization": "Bearer sandbox"}
        async with httpx.AsyncClient(base_url=told[0].decode(), headers=headers, trust_env=False) as client:
            said = [await client.get("/contractTypes", params={"limit": 5000}) for _ in range(3)]
            marked = await client.get("/evidenceVariants")
    assert [answer.status_code for answer in said] == [502, 502, 200]
    page = said[2].json()
    assert (page["pageToken"], "deltaToken" in page) == (None, False)
    assert marked.content.startswith(b"\xef\xbb\xbf")
    assert b'"deltaToken"' not in marked.content
