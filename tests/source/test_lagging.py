"""What rounds make of an API that lags, caches, repeats and fails."""

from __future__ import annotations

import pytest

from tests.source.lagging import play

_QUICK = 16
_MORE = 400


@pytest.mark.parametrize("seed", range(_QUICK))
def test_all_that_is_true_is_known_in_the_end(seed: int) -> None:
    """Law: nothing is lost, nothing that exists is removed, and readings come to an end."""
    assert play(seed)[1] == []


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_all_that_is_true_is_known_in_the_end_of_many_histories(part: int) -> None:
    """Law: the same, of some hundred histories."""
    wrong = {seed: problems for seed in range(_QUICK + part, _QUICK + _MORE, 4) if (problems := play(seed)[1])}
    assert wrong == {}
