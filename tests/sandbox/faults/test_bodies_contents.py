"""Laws of :mod:`poller.sandbox.faults.bodies`: each profile shows on a socket what its line says."""

from __future__ import annotations

import json

from tests.sandbox.conftest import NOON
from tests.sandbox.faults.stage import ACHIEVEMENTS, Stage, ids, shown


async def partial(api: Stage) -> None:
    first = await api.page()
    assert first["results"][1] == {"id": "c1", "code": "old", "name": "n1"}
    api.change(1)
    api.history.put("contractTypes", {"id": "fresh", "code": "old"}, NOON)
    delta = await api.page(sinceDeltaToken=first["deltaToken"])
    assert delta["results"] == [{"id": "c1", "code": "new"}, {"id": "fresh", "code": "old"}]
    api.history.put("contractTypes", {"id": "c1", "code": "new", "name": "other"}, NOON)
    assert (await api.page(sinceDeltaToken=first["deltaToken"]))["results"][-1]["code"] == "new"


async def same_delta(api: Stage) -> None:
    token = (await api.page())["deltaToken"]
    api.change(1)
    delta = await api.page(sinceDeltaToken=token)
    assert (ids(delta), delta["deltaToken"]) == (["c1"], token)


async def newer_before_older(api: Stage) -> None:
    api.change(1)
    api.change(1, code="newest")
    codes = [(record["id"], record["code"]) for record in (await api.page())["results"]]
    assert codes[-2:] == [("c1", "newest"), ("c1", "new")]
    assert len(codes) == 8


async def twice(api: Stage) -> None:
    assert ids((await api.pages())[0]) == ["c0", "c1", "c2", "c0"]


async def forgetting(api: Stage) -> None:
    for number in range(400):
        api.change(number)
    listed = set(ids(await api.page(limit=5000)))
    missing = {f"c{number}" for number in range(400)} - listed
    assert 20 < len(missing) < 60
    for id_ in sorted(missing)[:3]:
        assert (await api.get(f"/contractTypes/{id_}")).json()["id"] == id_


async def empty(api: Stage) -> None:
    pages = [await api.page(limit=3), (await api.get(ACHIEVEMENTS)).json()]
    assert [(page["results"], page.keys()) for page in pages] == [([], {"results", "deltaToken"})] * 2


async def alternating(api: Stage) -> None:
    pages = [(await api.page(limit=2, fields="code"))["results"] for _ in range(3)]
    assert [[record["id"] for record in page] for page in pages] == [["C0", "C1"], ["c0", "c1"], ["C0", "C1"]]
    assert {record["code"] for page in pages for record in page} == {"old"}


async def respelled(api: Stage) -> None:
    api.history.put("contractTypes", {"id": "e", "name": "\u00e9", "order": 1, "is": True}, NOON)
    bodies = [(await api.get()).content for _ in range(3)]
    assert bodies[0] == bodies[2] != bodies[1]
    assert [json.loads(body) for body in bodies[:2]] == [json.loads(bodies[0])] * 2
    assert b'"is": true,\n "order": 1.0,\n "name": "\\u00e9",\n "id": "e"' in bodies[1]


async def orphaned(api: Stage) -> None:
    assert (await api.get(ACHIEVEMENTS)).status_code == 404
    assert (await api.get()).status_code == 200


async def unequal(api: Stage) -> None:
    api.change(1)
    codes = [(await api.page())["results"][-1]["code"] for _ in range(4)]
    assert codes == ["new", "old", "new", "old"]
    assert [(await api.get("/contractTypes/c1")).json()["code"] for _ in range(2)] == ["new", "old"]
    api.change(1, code="newest")
    codes = [(await api.page())["results"][-1]["code"] for _ in range(2)]
    assert codes == ["newest", "new"]


LAWS = {
    "partial-deltas": partial,
    "same-delta": same_delta,
    "newer-before-older": newer_before_older,
    "repeated-record": twice,
    "forgets-records": forgetting,
    "two-backends": unequal,
    "empty-listings": empty,
    "respelled": respelled,
    "alternating-case": alternating,
    "parent-gone": orphaned,
}


async def test_each_does_what_its_line_says() -> None:
    """Each profile shows what its line in the table says."""
    await shown(LAWS)
