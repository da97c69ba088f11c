"""Laws of :mod:`poller.sandbox.faults.paging`: each profile shows on a socket what its line says."""

from __future__ import annotations

from tests.sandbox.faults.stage import Law, Stage, ids, shown, stage

ALL = [["c0", "c1", "c2"], ["c3", "c4", "c5"], ["c6"]]


async def last_without_token(api: Stage) -> None:
    pages = await api.pages()
    assert list(map(ids, pages)) == ALL
    assert ["pageToken" in page for page in pages] == [True, True, False]


async def last_null(api: Stage) -> None:
    pages = await api.pages()
    assert list(map(ids, pages)) == ALL
    assert pages[-1]["pageToken"] is None


async def last_empty_string(api: Stage) -> None:
    pages = await api.pages()
    assert list(map(ids, pages)) == ALL
    assert pages[-1]["pageToken"] == ""


async def empty_page_at_the_end(api: Stage) -> None:
    pages = await api.pages()
    assert list(map(ids, pages)) == [*ALL, []]
    assert "pageToken" not in pages[-1]
    assert pages[-1]["deltaToken"] == pages[0]["deltaToken"]


async def last_names_itself(api: Stage) -> None:
    pages = await api.pages(most=6)
    assert list(map(ids, pages)) == [*ALL, ["c6"], ["c6"], ["c6"]]
    assert pages[2]["pageToken"] == pages[1]["pageToken"]
    only = await api.page(limit=50)
    again = await api.page(pageToken=only["pageToken"])
    assert again == only
    assert len(ids(only)) == 7


def deltas(*expected: bool) -> Law:
    async def law(api: Stage) -> None:
        pages = await api.pages()
        assert ["deltaToken" in page for page in pages] == list(expected)
        assert all(page.get("deltaToken", "token") for page in pages)

    return law


async def moving(api: Stage) -> None:
    first = await api.page(limit=3)
    api.change(6)
    second = await api.page(limit=3, pageToken=first["pageToken"])
    assert ids(await api.page(sinceDeltaToken=first["deltaToken"])) == ["c6"]
    assert ids(await api.page(sinceDeltaToken=second["deltaToken"])) == []


async def delta_empty(api: Stage) -> None:
    assert [page["deltaToken"] for page in await api.pages()] == ["", "", ""]


LAWS = {
    "end-absent": last_without_token,
    "end-null": last_null,
    "end-empty-string": last_empty_string,
    "end-empty-page": empty_page_at_the_end,
    "end-repeats-last-page": last_names_itself,
    "delta-every-page": deltas(True, True, True),
    "delta-moves": moving,
    "delta-first-page": deltas(True, False, False),
    "delta-last-page": deltas(False, False, True),
    "delta-empty-string": delta_empty,
    "delta-none": deltas(False, False, False),
}


async def test_each_does_what_its_line_says() -> None:
    """Each profile shows what its line in the table says."""
    await shown(LAWS)


async def test_the_last_page_has_the_delta_token_however_it_is_told() -> None:
    """``delta-last-page`` knows the last page with each way to end."""
    for end in ("end-null", "end-empty-string", "end-empty-page", "end-repeats-last-page"):
        async with stage("delta-last-page", end) as api:
            pages = await api.pages(most=4)
            assert not any("deltaToken" in page for page in pages[:2]), end
            assert pages[-1]["deltaToken"], end
