"""Laws of :mod:`poller.sandbox.switching` and :mod:`poller.sandbox.switches`, over a socket."""

from __future__ import annotations

import pytest

from tests.sandbox.conftest import client_of
from tests.sandbox.profiles.stage import ACHIEVEMENTS, LIST, ids, stage


async def test_delta_tokens_expire_on_command() -> None:
    """All delta tokens given so far are refused with 410, a round that began with one goes on, new ones are good."""
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
    """With ``pages=1`` a round dies in the middle, and one begun again comes to its end; delta tokens stay good."""
    async with stage() as api:
        first = await api.page(limit=3)
        assert (await api.client.post("/_sandbox/expire?pages=1")).status_code == 204
        assert (await api.get(pageToken=first["pageToken"])).status_code == 410
        assert (await api.get(sinceDeltaToken=first["deltaToken"])).status_code == 200
        assert [len(ids(page)) for page in await api.pages()] == [3, 3, 1]


async def test_listings_go_blank_and_come_back() -> None:
    """Every listing is one empty page while the switch is on; single reads know the records all the time."""
    async with stage() as api:
        assert (await api.client.post("/_sandbox/blank?on=1")).status_code == 204
        for path in (LIST, ACHIEVEMENTS):
            blank = (await api.get(path, limit=1)).json()
            assert (blank["results"], "pageToken" in blank) == ([], False)
        assert (await api.get("/contractTypes/c1")).status_code == 200
        await api.client.post("/_sandbox/blank?on=0")
        assert len(ids(await api.page())) == 7


async def test_a_record_is_forgotten_by_listings_only() -> None:
    """It is in no list and no delta, GET by id still knows it; with ``on=0`` it is listed again."""
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
    """Off, the API behaves well, whatever was chosen; on again, it is as it was."""
    async with stage("end-null", faults=("status-502=1",)) as api:
        for on, status, ends in (("0", 200, False), ("1", 502, False), ("1", 200, True), ("0", 200, False)):
            assert (await api.client.post(f"/_sandbox/profiles?on={on}")).status_code == 204
            said = await api.get()
            assert (said.status_code, b'"pageToken":null' in said.content) == (status, ends)


async def test_the_bearer_token_changes() -> None:
    """From the call on the new token is asked for and the old one is refused."""
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
    """A call that makes no sense is refused and switches nothing."""
    async with stage() as api:
        assert (await api.client.post(f"/_sandbox/{path}")).status_code == status
        assert len(ids(await api.page())) == 7
