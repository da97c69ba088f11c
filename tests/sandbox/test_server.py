"""Laws of :mod:`poller.sandbox.server`: the seven endpoints and their refusals, over a socket."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import httpx
import pytest

from poller.sandbox.answer import Answer, Ask, answer
from poller.sandbox.model import History
from poller.sandbox.seed import seed
from poller.sandbox.server import application
from tests.sandbox.conftest import NOON

if TYPE_CHECKING:
    from random import Random

LISTS = ("evidenceVariants", "employmentUnavailabilities", "contractTypes")


@pytest.fixture(autouse=True)
def seeded(history: History, rng: Random) -> None:
    seed(history, rng, records=300, at=NOON)


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_and_its_singles(api: httpx.AsyncClient, history: History, name: str) -> None:
    """A list is read page by page, each record once; each can be read by itself; then a delta is empty."""
    query: dict[str, str] = {"limit": "7"}
    seen = []
    while True:
        page = (await api.get(f"/{name}", params=query)).json()
        seen += page["results"]
        if "pageToken" not in page:
            break
        query["pageToken"] = page["pageToken"]
    assert len({record["id"] for record in seen}) == len(seen) == history.count(name)
    assert (await api.get(f"/{name}/{seen[-1]['id'].upper()}")).json() == seen[-1]
    delta = await api.get(f"/{name}", params={"sinceDeltaToken": page["deltaToken"]})
    assert delta.json()["results"] == []
    assert delta.headers["content-type"] == "application/json"


async def test_the_achievements_of_all_qualifications(api: httpx.AsyncClient, history: History) -> None:
    """The achievements are found under the qualifications that evidence variants name, and nowhere else."""
    variants = (await api.get("/evidenceVariants", params={"limit": 5000})).json()["results"]
    found = 0
    for qualification in {variant["qualificationID"] for variant in variants}:
        listed = (await api.get(f"/qualifications/{qualification}/achievements", params={"limit": 5000})).json()
        assert {record["qualificationID"] for record in listed["results"]} <= {qualification}
        found += len(listed["results"])
    assert found == history.count("achievements") > 0
    assert (await api.get("/achievements")).status_code == 404


async def test_fields_over_http(api: httpx.AsyncClient) -> None:
    """The three encodings of ``fields`` give the same page."""
    pages = [
        (await api.get(f"/contractTypes?{query}")).json()["results"]
        for query in ("fields=name&fields=code", "fields=name,code", "fields[]=name&fields%5B%5D=code")
    ]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0][0].keys() == {"id", "name", "code"}


async def test_every_refusal_is_json(api: httpx.AsyncClient, history: History, rng: Random) -> None:
    """400, 404 and 405 carry a code and a message; a refused method is told the ones that work."""
    achievement = history.pick("achievements", rng)
    assert achievement is not None
    refused = {
        400: [
            "/contractTypes?limit=0",
            "/contractTypes?fields=colour",
            "/contractTypes?pageToken=nonsense",
            f"/qualifications/{achievement.qualification}/achievements?sinceDeltaToken=x",
        ],
        404: ["/contractTypes/none", "/contractTypes/", "/positions", f"/qualifications/{achievement.id}/achievements"],
    }
    for status, paths in refused.items():
        for path in paths:
            said = await api.get(path)
            assert (said.status_code, said.json()["error"].keys()) == (status, {"code", "message"}), path
            assert said.headers["content-type"] == "application/json"
    not_allowed = await api.post("/contractTypes")
    assert (not_allowed.status_code, not_allowed.json()["error"]["code"]) == (405, "methodNotAllowed")
    assert "GET" in not_allowed.headers["allow"]


async def test_a_wrong_credential_is_refused(api: httpx.AsyncClient) -> None:
    """Every endpoint of the API answers 401 with a challenge and no record without the right bearer token."""
    del api.headers["authorization"]
    wrong = [{}, *({"authorization": value} for value in ("Bearer wrong", "Basic sandbox", "sandbox", "Bearer"))]
    paths = ("/evidenceVariants", "/contractTypes/x", "/qualifications/x/achievements")
    for path, headers in product(paths, wrong):
        said = await api.get(path, headers=headers)
        assert (said.status_code, said.json()["error"]["code"]) == (401, "unauthorized")
        assert said.headers["www-authenticate"].startswith("Bearer")


async def test_the_scheme_has_no_case(api: httpx.AsyncClient) -> None:
    """``bearer`` is ``Bearer``."""
    assert (await api.get("/contractTypes", headers={"authorization": "bearer sandbox"})).status_code == 200


async def test_head_has_no_body(api: httpx.AsyncClient) -> None:
    """HEAD answers as GET does, without the body."""
    said = await api.head("/contractTypes")
    assert (said.status_code, said.content) == (200, b"")
    assert int(said.headers["content-length"]) == len((await api.get("/contractTypes")).content)


async def test_answers_can_be_replaced(history: History, rng: Random) -> None:
    """Whatever ``respond`` says is what the endpoint answers: the seam for an API that misbehaves."""

    def teapot_after_the_first(history: History, ask: Ask) -> Answer:
        return Answer(418, b"short") if ask.query else answer(history, ask)

    app = application(history, token="t", rng=rng, now=lambda: NOON, respond=teapot_after_the_first)  # noqa: S106 - a test's
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://sandbox", headers={"authorization": "Bearer t"}
    ) as client:
        assert (await client.get("/contractTypes")).status_code == 200
        assert (await client.get("/contractTypes?limit=1")).status_code == 418
