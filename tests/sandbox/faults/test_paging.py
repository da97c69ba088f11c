"""Laws of :mod:`poller.sandbox.faults.paging`: each profile shows on a socket what its line says."""

from __future__ import annotations

from poller.sandbox.faults.paging import PADDING, REQUESTS_TO_EXPIRY, RESERVED
from tests.sandbox.faults.stage import Law, Stage, ids, shown


def expiring(status: int) -> Law:
    async def law(api: Stage) -> None:
        token = newest = (await api.page())["deltaToken"]
        for _ in range(REQUESTS_TO_EXPIRY - 1):
            newest = (await api.page(sinceDeltaToken=token))["deltaToken"]
        for given in (token, newest):
            assert (await api.get(sinceDeltaToken=given)).status_code == status
        api.change(4)
        fresh = await api.page()
        assert ids(await api.page(sinceDeltaToken=fresh["deltaToken"])) == []
        assert (await api.client.post("/_sandbox/expire")).status_code == 204
        assert (await api.get(sinceDeltaToken=fresh["deltaToken"])).status_code == status

    return law


async def expiring_pages(api: Stage) -> None:
    first = await api.page(limit=3)
    for _ in range(REQUESTS_TO_EXPIRY - 1):
        await api.page(pageToken=first["pageToken"])
    assert (await api.get(pageToken=first["pageToken"])).status_code == 410
    assert ids(await api.page(sinceDeltaToken=first["deltaToken"])) == []
    assert len(await api.pages()) == 3


async def bound(api: Stage) -> None:
    pages = await api.pages(fields="name")
    api.change(1, 2, 3, 4, code="x")
    for page in pages:
        token = page["deltaToken"]
        assert ids(await api.page(limit=3, fields="name", sinceDeltaToken=token)) == ["c1", "c2", "c3"]
        assert (await api.get(limit=3, sinceDeltaToken=token)).status_code == 400
        assert (await api.get(limit=4, fields="name", sinceDeltaToken=token)).status_code == 400
        both = await api.pages(fields="name", sinceDeltaToken=token)
        assert list(map(ids, both)) == [["c1", "c2", "c3"], ["c4"]]
        alone = await api.page(pageToken=both[0]["pageToken"])
        assert ids(await api.page(limit=3, fields="name", sinceDeltaToken=alone["deltaToken"])) == []


async def huge(api: Stage) -> None:
    pages = await api.pages()
    assert [len(page.get("pageToken", "")) > PADDING >= 65536 for page in pages] == [True, True, False]
    assert list(map(len, map(ids, pages))) == [3, 3, 1]


def ending(suffix: str, *kinds: str) -> Law:
    async def law(api: Stage) -> None:
        pages = await api.pages()
        assert list(map(len, map(ids, pages))) == [3, 3, 1]
        for kind in ("pageToken", "deltaToken"):
            assert [page[kind].endswith(suffix) for page in pages if kind in page] == [kind in kinds] * (
                2 if kind == "pageToken" else 3
            )
        if "pageToken" in kinds:
            assert (await api.get(pageToken=pages[0]["pageToken"][:-1])).status_code == 400
        if "deltaToken" in kinds:
            api.change(3)
            assert ids(await api.page(sinceDeltaToken=pages[0]["deltaToken"])) == ["c3"]
            assert (await api.get(sinceDeltaToken="t")).status_code == 400

    return law


LAWS = {
    **{f"expire-{status}": expiring(status) for status in (400, 404, 409, 410, 412)},
    "expire-pages": expiring_pages,
    "token-bound": bound,
    "page-token-64k": huge,
    "page-token-crlf": ending("\r\nX-Injected: yes", "pageToken"),
    "delta-token-crlf": ending("\r\nX-Injected: yes", "deltaToken"),
    "delta-token-64k": ending("x" * PADDING, "deltaToken"),
    "token-characters": ending(RESERVED, "pageToken", "deltaToken"),
}


async def test_each_does_what_its_line_says() -> None:
    """Each profile shows what its line in the table says."""
    await shown(LAWS)
