"""Laws of :mod:`poller.sandbox.control`, over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from poller.sandbox.data import mutate, seed
from poller.sandbox.history import RESOURCES
from tests.sandbox.conftest import client_of
from tests.sandbox.faults.stage import ACHIEVEMENTS, LIST, ids, stage

if TYPE_CHECKING:
    from datetime import datetime
    from random import Random

    import httpx

    from poller.sandbox.history import History


ODD = b'{"id":"X","createdAt":null,"lastModifiedAt":"","a":1.0,"b":12345678901234567890123,\r\n"c":"\xc3\xa9"}'


async def log_of(api: httpx.AsyncClient, since: int | None = None) -> list[dict[str, Any]]:
    answer = await api.get("/_sandbox/log", params={} if since is None else {"since": since})
    assert answer.status_code == 200
    log: list[dict[str, Any]] = msgspec.json.decode(answer.content)
    assert len(answer.text.splitlines()) == len(log) + (2 if log else 3)
    return log


async def test_a_posted_record_is_served_literally(api: httpx.AsyncClient) -> None:
    """A posted record is created (201) or replaced (200), and served byte for byte."""
    created = await api.post("/_sandbox/records/contractTypes", content=ODD)
    assert (created.status_code, created.content) == (201, b'{"version":1,"record":' + ODD + b"}")
    assert (await api.get("/contractTypes/x")).content == ODD
    replaced = await api.post("/_sandbox/records/contractTypes", content=b'{"id":"x"}')
    assert replaced.status_code == 200
    assert replaced.json() == {
        "version": 2,
        "record": {"id": "x", "createdAt": None, "lastModifiedAt": "2025-03-01T12:00:00.000Z"},
    }


async def test_no_credential_is_needed(api: httpx.AsyncClient) -> None:
    """The sandbox's control calls need no bearer token."""
    del api.headers["authorization"]
    assert (await api.get("/_sandbox/version")).json() == {"version": 0}


async def test_an_id_is_made_where_there_is_none(api: httpx.AsyncClient) -> None:
    """A record posted without an id gets one, under which it is served."""
    record = (await api.post("/_sandbox/records/employmentUnavailabilities", json={"reason": "é"})).json()["record"]
    assert (await api.get(f"/employmentUnavailabilities/{record['id']}")).json() == record


async def test_bad_records_are_refused(api: httpx.AsyncClient) -> None:
    """An invalid record gets 400 and an unknown resource 404; neither adds a version."""
    refused = [
        await api.post("/_sandbox/records/contractTypes", content=b"[]"),
        await api.post("/_sandbox/records/achievements", content=b'{"id":"x"}'),
        await api.post("/_sandbox/records/positions", content=b'{"id":"x"}'),
    ]
    assert [answer.status_code for answer in refused] == [400, 400, 404]
    assert [answer.json()["error"]["code"] for answer in refused] == ["badRequest", "badRequest", "notFound"]
    assert (await api.get("/_sandbox/version")).json() == {"version": 0}


async def test_a_removed_record_is_gone(api: httpx.AsyncClient, history: History, at: datetime) -> None:
    """DELETE answers 204 in any case of the id, and 404 the second time."""
    history.put("contractTypes", {"id": "aB"}, at)
    assert (await api.delete("/_sandbox/records/contractTypes/Ab")).status_code == 204
    assert (await api.delete("/_sandbox/records/contractTypes/ab")).status_code == 404
    assert (await api.delete("/_sandbox/records/positions/ab")).status_code == 404
    assert (await api.get("/contractTypes")).json()["results"] == []


async def test_the_log_is_complete(api: httpx.AsyncClient, history: History, rng: Random, at: datetime) -> None:
    """The log has every version in order, and its replay gives the present records."""
    seed(history, rng, records=700, at=at)
    for _ in range(300):
        mutate(history, rng, at)
    for version in list(history.since(0))[:50]:
        history.remove(version.resource, version.id, at)
    log = await log_of(api)
    assert [line["version"] for line in log] == list(range(1, history.version + 1))
    current = {(line["resource"], line["id"]): line for line in log}
    standing = [line for line in current.values() if line["op"] == "put"]
    assert len(standing) == sum(history.count(resource) for resource in RESOURCES)
    for line in standing:
        standing_version = history.find(line["resource"], line["id"])
        assert standing_version is not None
        assert msgspec.json.decode(standing_version.record or b"") == line["record"]
        assert line["qualification"] == (line["record"]["qualificationID"] if "scoreOrder" in line["record"] else None)


async def test_a_line_of_the_log(api: httpx.AsyncClient) -> None:
    """A line holds one version with the record's own literals; a removal has no record; ``since`` skips lines."""
    await api.post("/_sandbox/records/achievements", content=ODD.replace(b'{"id"', b'{"qualificationID":"Q","id"'))
    await api.delete("/_sandbox/records/achievements/x")
    text = (await api.get("/_sandbox/log")).content
    assert b'"a":1.0,"b":12345678901234567890123,  "c"' in text
    removal = {
        "version": 2,
        "at": "2025-03-01T12:00:00.000Z",
        "resource": "achievements",
        "id": "X",
        "qualification": "Q",
        "op": "delete",
        "record": None,
    }
    assert await log_of(api, since=1) == [removal]
    assert await log_of(api, since=2) == []


@pytest.mark.parametrize("count", [499, 500, 501])
async def test_chunks_join(api: httpx.AsyncClient, history: History, at: datetime, count: int) -> None:
    """The log is one JSON array, whether or not its last chunk is full."""
    for _ in range(count):
        history.put("contractTypes", {"id": "x"}, at)
    assert len(await log_of(api)) == count


async def test_changes_can_be_asked_for(api: httpx.AsyncClient) -> None:
    """POST changes makes the requested number of changes, one by default; an invalid number gets 400."""
    assert (await api.post("/_sandbox/changes", params={"count": 25})).json() == {"version": 25}
    assert (await api.post("/_sandbox/changes")).json() == {"version": 26}
    assert len(await log_of(api)) == 26
    for nonsense in ("many", "-1", "1000000", ""):
        assert (await api.post("/_sandbox/changes", params={"count": nonsense})).status_code == 400
    assert (await api.get("/_sandbox/log", params={"since": "yesterday"})).status_code == 400


# Laws of :mod:`poller.sandbox.control` and :mod:`poller.sandbox.faults.base`, over a socket.


async def test_delta_tokens_expire_on_command() -> None:
    """Expiring refuses earlier delta tokens with 410; a round already begun continues, and new tokens are valid."""
    async with stage() as api:
        old = (await api.page())["deltaToken"]
        api.change(1, 2, 3, 4)
        begun = await api.page(limit=3, sinceDeltaToken=old)
        assert (await api.client.post("/_sandbox/expire")).status_code == 204
        assert (await api.get(sinceDeltaToken=old)).status_code == 410
        rest = await api.page(limit=3, sinceDeltaToken=old, pageToken=begun["pageToken"])
        assert ids(rest) == ["c4"]
        fresh = (await api.page())["deltaToken"]
        api.change(5)
        assert ids(await api.page(sinceDeltaToken=fresh)) == ["c5"]
        await api.client.post("/_sandbox/expire")
        assert (await api.get(sinceDeltaToken=fresh)).status_code == 410


async def test_page_tokens_expire_on_command() -> None:
    """With ``pages=1`` a running round fails with 410 and a new one succeeds; delta tokens stay valid."""
    async with stage() as api:
        first = await api.page(limit=3)
        assert (await api.client.post("/_sandbox/expire?pages=1")).status_code == 204
        assert (await api.get(pageToken=first["pageToken"])).status_code == 410
        assert (await api.get(sinceDeltaToken=first["deltaToken"])).status_code == 200
        assert [len(ids(page)) for page in await api.pages()] == [3, 3, 1]


async def test_listings_go_blank_and_come_back() -> None:
    """While blank is on every listing is one empty page, and single reads still find the records."""
    async with stage() as api:
        assert (await api.client.post("/_sandbox/blank?on=1")).status_code == 204
        for path in (LIST, ACHIEVEMENTS):
            blank = (await api.get(path, limit=1)).json()
            assert (blank["results"], "pageToken" in blank) == ([], False)
        assert (await api.get("/contractTypes/c1")).status_code == 200
        await api.client.post("/_sandbox/blank?on=0")
        assert len(ids(await api.page())) == 7


async def test_a_record_is_forgotten_by_listings_only() -> None:
    """A forgotten record is in no list or delta but found by id; with ``on=0`` it is listed again."""
    async with stage() as api:
        token = (await api.page())["deltaToken"]
        assert (await api.client.post("/_sandbox/forget/contractTypes/C1")).status_code == 204
        api.change(1)
        assert "c1" not in ids(await api.page())
        assert ids(await api.page(sinceDeltaToken=token)) == []
        assert (await api.get("/contractTypes/c1")).json()["code"] == "new"
        assert len((await api.get(ACHIEVEMENTS)).json()["results"]) == 1
        await api.client.post("/_sandbox/forget/contractTypes/c1?on=0")
        assert ids(await api.page(sinceDeltaToken=token)) == ["c1"]


async def test_profiles_are_switched_off_and_on() -> None:
    """Switched off, the API behaves well in spite of its profiles; switched on, they apply again."""
    async with stage("end-null", faults=("status-502=1",)) as api:
        for on, status, ends in (("0", 200, False), ("1", 502, False), ("1", 200, True), ("0", 200, False)):
            assert (await api.client.post(f"/_sandbox/profiles?on={on}")).status_code == 204
            said = await api.get()
            assert (said.status_code, b'"pageToken":null' in said.content) == (status, ends)


async def test_the_bearer_token_changes() -> None:
    """After the call the API requires the new token and refuses the old one."""
    async with stage() as api:
        assert (await api.client.post("/_sandbox/token?value=other")).status_code == 204
        assert (await api.get()).status_code == 401
        async with client_of(api.url, "other") as client:
            assert (await client.get(LIST)).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("blank?on=yes", 400),
        ("profiles?on=", 400),
        ("expire?pages=", 400),
        ("token", 400),
        ("token?value=%20", 400),
        ("forget/none/x", 404),
    ],
)
async def test_bad_calls_are_refused(path: str, status: int) -> None:
    """An invalid control call is refused and changes nothing."""
    async with stage() as api:
        assert (await api.client.post(f"/_sandbox/{path}")).status_code == status
        assert len(ids(await api.page())) == 7
