"""Laws of :mod:`poller.service.web.places`: a text leads back to where it was made, and any other one is refused."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.service.web.places import BEGINNING, Place, Places, place_of, read_places

BEYOND = urlsafe_b64encode(b"\x01" + b"name5" + b"\xff" * 9 + b"\x7f" + b"\0\0").rstrip(b"=").decode()
NUMBERS = st.integers(0, 2**64 - 1)
PLACES = st.dictionaries(st.text("abc/", min_size=1), st.builds(Place, NUMBERS, NUMBERS, NUMBERS), max_size=20)


@given(PLACES, PLACES)
def test_read_as_it_was_written(places: dict[str, Place], moved: dict[str, Place]) -> None:
    """Each feed has its place again, after any moves; one that is not in the text begins at its beginning."""
    written = Places(places)
    for feed, place in moved.items():
        if feed in places:
            written.move(feed, place)
    expected = places | {feed: place for feed, place in moved.items() if feed in places}
    assert read_places(written.text, [*places, "new"]) == expected | {"new": BEGINNING}
    assert all(written[feed] == place for feed, place in expected.items())


@given(PLACES)
def test_the_same_places_are_the_same_text(places: dict[str, Place]) -> None:
    """Whatever order they were given in; in ASCII without what a header or a query would mind."""
    text = Places(places).text
    assert Places(dict(reversed(places.items()))).text == text
    assert text.replace("-", "").replace("_", "").isalnum()


def test_it_is_short() -> None:
    """Some twenty characters a feed, so that 256 feeds fit a header of any server."""
    usual = {f"acme/{number}": Place(1_772_439_303_123, 3, 10**9) for number in range(256)}
    assert len(Places(usual).text) < 24 * 256


@given(st.one_of(st.text(), st.binary().map(lambda some: some.decode("latin-1"))))
def test_what_was_not_made_here_is_refused(text: str) -> None:
    """Or it is read as one that could have been; never anything else is raised."""
    try:
        read_places(text, ["a"])
    except ValueError:
        return
    assert text.startswith(("AQ", "AR"))


@pytest.mark.parametrize("text", ["", "AQ" + "A" * 20_000, "AA", "AQ" + "_" * 40, "é", BEYOND])
def test_some_that_are_refused(text: str) -> None:
    """Nothing, too much, another version, numbers without an end, characters that are none."""
    with pytest.raises(ValueError, match=r"too long|not as it was given out"):
        read_places(text, ["a"])


def test_entry_ids() -> None:
    """With and without the second number; nothing beyond what the store takes."""
    assert place_of("17-3") == Place(17, 3)
    assert place_of("17") == Place(17, 0)
    assert Place(17, 3, 9).entry == "17-3"
    for wrong in ("", "x", "17-", "-3", "17-3-4", str(2**64), f"1-{2**64}", "1" * 50, "٣", " 1"):
        with pytest.raises(ValueError, match="not an entry's id"):
            place_of(wrong)
