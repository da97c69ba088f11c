"""Laws of :mod:`poller.cli.optional_seconds`: the number after ``--watch`` may be missing."""

from __future__ import annotations

import pytest

from poller.cli.optional_seconds import with_seconds


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--watch"], ["--watch", "2"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["--watch", "0.5", "acme/x"], ["--watch", "0.5", "acme/x"]),
        (["--watch", "acme/x"], ["--watch", "2", "acme/x"]),
        (["acme/x", "--watch", "--json"], ["acme/x", "--watch", "2", "--json"]),
        (["--watch=7"], ["--watch=7"]),
        (["acme/x"], ["acme/x"]),
    ],
)
def test_what_is_no_number_stays_what_it_is(given: list[str], meant: list[str]) -> None:
    """A feed after the option is a feed, an option an option."""
    assert list(with_seconds(given)) == meant
