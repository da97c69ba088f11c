"""Laws of :mod:`poller.sandbox.profiles.table`."""

from __future__ import annotations

import re

from poller.sandbox.profiles.table import ORDER, PROFILES
from tests.sandbox.profiles import (
    test_bodies,
    test_contents,
    test_endings,
    test_paging,
    test_records,
    test_refusals,
    test_tokens,
)
from tests.sandbox.profiles.stage import ids, stage

MODULES = (test_bodies, test_contents, test_endings, test_paging, test_records, test_refusals, test_tokens)


def test_every_profile_is_shown() -> None:
    """The tests of the profiles' modules show each profile of the table on a socket, and no other."""
    shown = [name for module in MODULES for name in module.LAWS]
    assert sorted(shown) == sorted(PROFILES)


def test_every_profile_has_a_name_and_a_line() -> None:
    """Names are lower-case words with hyphens; a line is one line, and no two are the same."""
    for name, profile in PROFILES.items():
        assert profile.name == name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert "\n" not in profile.does
        assert len(profile.does) < 110
    assert len({profile.does for profile in PROFILES.values()}) == len(PROFILES) == len(ORDER)


async def test_profiles_compose() -> None:
    """Two profiles show both, and in whichever order they are named, the one nearer to the wire applies last."""
    for chosen in (("nan", "end-null"), ("end-null,nan",), ("end-null", "nan")):
        async with stage(*chosen) as api:
            body = (await api.get()).content
        assert b'"name":NaN},{"id":"c0"' in body
        assert body.endswith(b'"pageToken":null}')


async def test_layers_of_tokens_compose() -> None:
    """Profiles that put their own mark on tokens read each other's."""
    names = ("empty-pages", "end-empty-page", "token-bound", "page-token-64k", "page-token-crlf", "expire-410")
    async with stage(*names) as api:
        await api.client.post("/_sandbox/expire")
        await api.client.post("/_sandbox/expire?pages=1")
        pages = await api.pages()
        assert [len(ids(page)) for page in pages] == [3, 0, 0, 3, 0, 0, 1, 0]
        api.change(5)
        assert ids(await api.page(limit=3, sinceDeltaToken=pages[0]["deltaToken"])) == ["c5"]
