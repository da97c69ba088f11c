"""Laws of :mod:`poller.sandbox.faults.paging`: each profile shows on a socket what its line says."""

from __future__ import annotations

from tests.sandbox.faults.stage import Stage, ids, shown, stage


async def shifting(api: Stage) -> None:
    first = await api.page(limit=3)
    assert ids(first) == ["c6", "c5", "c4"]
    api.change(0)
    rest = await api.pages(pageToken=first["pageToken"])
    assert list(map(ids, rest)) == [["c4", "c3", "c2"], ["c1"]]
    assert {page["deltaToken"] for page in rest} == {first["deltaToken"]}
    assert ids(await api.page(sinceDeltaToken=first["deltaToken"])) == ["c0"]


async def by_offset(api: Stage) -> None:
    first = await api.page(limit=3)
    assert ids(first) == ["c0", "c1", "c2"]
    api.change(0)
    rest = await api.pages(pageToken=first["pageToken"])
    assert list(map(ids, rest)) == [["c4", "c5", "c6"], ["c0"]]  # c3 is on no page
    assert {page["deltaToken"] for page in rest} == {first["deltaToken"]}
    assert ids(await api.page(sinceDeltaToken=first["deltaToken"])) == ["c0"]


async def empty_between(api: Stage) -> None:
    pages = await api.pages()
    assert list(map(len, map(ids, pages))) == [3, 0, 0, 3, 0, 0, 1]


async def circle(api: Stage) -> None:
    pages = await api.pages(most=6)
    assert pages[2]["pageToken"] == pages[0]["pageToken"]
    assert list(map(ids, pages))[1:] == [["c3", "c4", "c5"], ["c6"], ["c3", "c4", "c5"], ["c6"], ["c3", "c4", "c5"]]


async def same_token(api: Stage) -> None:
    pages = await api.pages(most=4)
    assert list(map(ids, pages)) == [["c0", "c1", "c2"], *[["c3", "c4", "c5"]] * 3]
    assert len({page["pageToken"] for page in pages}) == 1


async def endless(api: Stage) -> None:
    pages = await api.pages(most=8)
    assert list(map(ids, pages)) == [["c0", "c1", "c2"]] * 8
    assert len({page["pageToken"] for page in pages}) == 8


async def million(api: Stage) -> None:
    pages = await api.pages(most=8)
    assert list(map(len, map(ids, pages))) == [1] * 8
    assert len({id_ for page in pages for id_ in ids(page)}) == 8
    assert len({page["pageToken"] for page in pages}) == 8


LAWS = {
    "shifting-pages": shifting,
    "offset-pages": by_offset,
    "empty-pages": empty_between,
    "page-loop": circle,
    "page-same-token": same_token,
    "endless-pages": endless,
    "million-pages": million,
}


async def test_each_does_what_its_line_says() -> None:
    """Each profile shows what its line in the table says."""
    await shown(LAWS)


async def test_a_shifted_listing_is_whole_beyond_the_largest_page() -> None:
    """``shifting-pages`` reads the whole listing, however many pages of the API's own it takes."""
    async with stage("shifting-pages") as api:
        for number in range(5200):
            api.change(number)
        pages = [await api.page(limit=3000)]
        pages.append(await api.page(limit=3000, pageToken=pages[0]["pageToken"]))
        assert sorted(id_ for page in pages for id_ in ids(page)) == sorted(f"c{number}" for number in range(5200))


async def test_an_unknown_token_is_still_refused() -> None:
    """A made-up page token that looks like a layer's own is refused and breaks nothing."""
    async with stage("empty-pages") as api:
        assert (await api.get(pageToken="~empty.%%%")).status_code == 400
