"""Laws of :mod:`poller.sandbox.faults.paging`: each profile behaves on a socket as its description says."""

from __future__ import annotations

from poller.sandbox.faults.paging import PADDING, REQUESTS_TO_EXPIRY, RESERVED
from tests.sandbox.faults.stage import Law, Stage, ids, shown, stage


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
    """Each token profile behaves as its description in the table says."""
    await shown(LAWS)


# Laws of :mod:`poller.sandbox.faults.paging`: each profile shows on a socket what its line says.

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


ENDINGS = {
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


async def test_each_ending_is_what_its_line_says() -> None:
    """Each ending profile behaves as its description in the table says."""
    await shown(ENDINGS)


async def test_the_last_page_has_the_delta_token_however_it_is_told() -> None:
    """``delta-last-page`` recognizes the last page with every way to end a listing."""
    for end in ("end-null", "end-empty-string", "end-empty-page", "end-repeats-last-page"):
        async with stage("delta-last-page", end) as api:
            pages = await api.pages(most=4)
            assert not any("deltaToken" in page for page in pages[:2]), end
            assert pages[-1]["deltaToken"], end


# Laws of :mod:`poller.sandbox.faults.paging`: each profile shows on a socket what its line says.


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


MOVES = {
    "shifting-pages": shifting,
    "offset-pages": by_offset,
    "empty-pages": empty_between,
    "page-loop": circle,
    "page-same-token": same_token,
    "endless-pages": endless,
    "million-pages": million,
}


async def test_each_move_is_what_its_line_says() -> None:
    """Each profile of page order behaves as its description in the table says."""
    await shown(MOVES)


async def test_a_shifted_listing_is_whole_beyond_the_largest_page() -> None:
    """``shifting-pages`` lists all records, even beyond the API's largest page."""
    async with stage("shifting-pages") as api:
        for number in range(5200):
            api.change(number)
        pages = [await api.page(limit=3000)]
        pages.append(await api.page(limit=3000, pageToken=pages[0]["pageToken"]))
        assert sorted(id_ for page in pages for id_ in ids(page)) == sorted(f"c{number}" for number in range(5200))


async def test_an_unknown_token_is_still_refused() -> None:
    """A made-up page token in a layer's format is refused with 400."""
    async with stage("empty-pages") as api:
        assert (await api.get(pageToken="~empty.%%%")).status_code == 400
