"""Laws of :mod:`poller.sandbox.faults.registry`."""

from __future__ import annotations

import re

import pytest

from poller.errors import ConfigurationError
from poller.sandbox.faults.registry import DEFAULT_RATE, ORDER, PROFILES, ChosenProfile, chosen
from tests.sandbox.faults import test_answers, test_paging, test_refusals
from tests.sandbox.faults.stage import ACHIEVEMENTS, LIST, ids, stage


def test_what_is_written_is_what_is_chosen() -> None:
    """Profiles always apply; a fault has a rate or a count; both can be limited to a resource."""
    assert chosen(["bom, drip", "nan@achievements"]) == (
        ChosenProfile(PROFILES["bom"]),
        ChosenProfile(PROFILES["drip"]),
        ChosenProfile(PROFILES["nan"], "achievements"),
    )
    assert chosen((), ["bom,reset=3", "nan@achievements=0.5", "deep=1.0"]) == (
        ChosenProfile(PROFILES["bom"], rate=DEFAULT_RATE),
        ChosenProfile(PROFILES["reset"], count=3),
        ChosenProfile(PROFILES["nan"], "achievements", rate=0.5),
        ChosenProfile(PROFILES["deep"], rate=1.0),
    )


@pytest.mark.parametrize(
    ("profiles", "faults", "says"),
    [
        (["end-nul"], [], 'did you mean "end-null"'),
        (["bom,"], ["rest=0.1"], '--faults: no profile "rest"; did you mean "reset"'),
        (["bom@contractType"], [], 'did you mean "contractTypes"'),
        (["bom@"], [], 'no resource ""'),
        (["bom=0.5"], [], 'no profile "bom=0.5"'),
        *(([], [f"bom={amount}"], f'--faults bom is "{amount}"') for amount in ("0", "1.5", "-1", "often", "", "nan")),
    ],
)
def test_what_cannot_be_chosen_is_said(profiles: list[str], faults: list[str], says: str) -> None:
    """An unknown name, resource or amount is a configuration error that suggests a similar name."""
    with pytest.raises(ConfigurationError) as refused:
        chosen(profiles, faults)
    assert says in str(refused.value)


async def test_a_profile_is_kept_to_its_resource() -> None:
    """``@RESOURCE`` limits a profile to that resource."""
    async with stage("status-500@achievements") as api:
        assert [(await api.get(path)).status_code for path in (LIST, ACHIEVEMENTS, LIST)] == [200, 500, 200]


async def test_a_fault_with_a_count_strikes_so_often() -> None:
    """A fault with a count affects that many requests of its resource, and then no more."""
    async with stage(faults=("status-500@contractTypes=2",)) as api:
        paths = (ACHIEVEMENTS, LIST, ACHIEVEMENTS, LIST, LIST, LIST)
        assert [(await api.get(path)).status_code for path in paths] == [200, 500, 200, 500, 200, 200]


async def test_a_fault_with_a_rate_strikes_now_and_then() -> None:
    """A fault with a rate affects about that share of requests, reproducibly, and does not alter the changes."""
    struck, logs = [], []
    for faults in (("status-500=0.3",), ("status-500=0.3",), ()):
        async with stage(faults=faults) as api:
            struck.append([(await api.get()).status_code for _ in range(100)])
            await api.client.post("/_sandbox/changes?count=20")
            logs.append((await api.client.get("/_sandbox/log")).content)
    assert struck[0] == struck[1]
    assert 15 < struck[0].count(500) < 45
    assert logs[0] == logs[1] == logs[2]


# Laws of :mod:`poller.sandbox.faults.registry`.

OF_BODIES = (test_answers.LAWS, test_answers.CONTENTS, test_answers.IN_FRONT)
OF_PAGING = (test_paging.LAWS, test_paging.ENDINGS, test_paging.MOVES)
SHOWN = (*OF_BODIES, *OF_PAGING, test_refusals.LAWS)


def test_every_profile_is_shown() -> None:
    """The tests of the fault modules cover exactly the profiles of the table."""
    shown = [name for laws in SHOWN for name in laws]
    assert sorted(shown) == sorted(PROFILES)


def test_every_profile_has_a_name_and_a_line() -> None:
    """Names are lower-case words with hyphens, and each description is one unique line."""
    for name, profile in PROFILES.items():
        assert profile.name == name
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
        assert "\n" not in profile.does
        assert len(profile.does) < 110
    assert len({profile.does for profile in PROFILES.values()}) == len(PROFILES) == len(ORDER)


async def test_profiles_compose() -> None:
    """Two profiles apply together in any order of naming; the one nearer to the wire applies last."""
    for names in (("nan", "end-null"), ("end-null,nan",), ("end-null", "nan")):
        async with stage(*names) as api:
            body = (await api.get()).content
        assert b'"name":NaN},{"id":"c0"' in body
        assert body.endswith(b'"pageToken":null}')


async def test_layers_of_tokens_compose() -> None:
    """Profiles that mark tokens work together."""
    names = ("empty-pages", "end-empty-page", "token-bound", "page-token-64k", "page-token-crlf", "expire-410")
    async with stage(*names) as api:
        await api.client.post("/_sandbox/expire")
        await api.client.post("/_sandbox/expire?pages=1")
        pages = await api.pages()
        assert [len(ids(page)) for page in pages] == [3, 0, 0, 3, 0, 0, 1, 0]
        api.change(5)
        assert ids(await api.page(limit=3, sinceDeltaToken=pages[0]["deltaToken"])) == ["c5"]
