"""Laws of :mod:`poller.source.circuit`."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from poller.source.circuit import LONGEST, SHORTEST, THRESHOLD, Circuit

NONE = timedelta(0)
SECOND = timedelta(seconds=1)


def opened(jitter: float = 1.0) -> Circuit:
    """A circuit that opened at 0."""
    circuit = Circuit()
    for _ in range(THRESHOLD):
        circuit = circuit.failed(NONE, probe=False, jitter=jitter)
    return circuit


def test_so_many_failures_in_a_row_open_it() -> None:
    """One less do not, and an answer in between begins the count again."""
    circuit = Circuit()
    for turn in range(2):
        for at in range(THRESHOLD - 1):
            circuit = circuit.failed(at * SECOND, probe=False, jitter=1.0)
            assert circuit.admits(at * SECOND)
        if turn == 0:
            circuit = circuit.answered()
    circuit = circuit.failed(9 * SECOND, probe=False, jitter=1.0)
    assert (circuit.admits(9 * SECOND), circuit.since, circuit.due) == (False, NONE, 10 * SECOND)


def test_a_probe_goes_alone_as_soon_as_it_is_due() -> None:
    """Not a microsecond earlier or later; and no other while it is away, however long that takes."""
    circuit = opened()
    assert not circuit.admits(SECOND - timedelta(microseconds=1))
    assert circuit.admits(SECOND)
    circuit = circuit.started()
    assert not circuit.admits(100 * SECOND)
    assert circuit.abandoned().admits(100 * SECOND)
    assert circuit.answered() == Circuit()


@given(st.lists(st.floats(0.5, 1.5), min_size=1, max_size=20))
def test_pauses_double_up_to_the_longest(jitters: list[float]) -> None:
    """1, 2, 4 … 60 seconds from each failed probe, times the jitter, never beyond the longest."""
    circuit, at = opened(), SECOND
    for count, jitter in enumerate(jitters, start=1):
        circuit = circuit.started().failed(at, probe=True, jitter=jitter)
        assert circuit.due is not None
        assert circuit.due - at == min(min(SHORTEST * 2**count, LONGEST) * jitter, LONGEST)
        assert circuit.since == NONE
        at = circuit.due


@given(st.integers(1, 30))
def test_stragglers_change_nothing(count: int) -> None:
    """Requests sent before it opened fail after: the probe is due when it was, and stays the only one."""
    circuit = opened()
    for turn in range(count):
        circuit = circuit.failed(turn * SECOND, probe=False, jitter=1.0)
    assert (circuit.due, circuit.pause) == (SECOND, SHORTEST)
    assert not circuit.started().failed(NONE, probe=False, jitter=1.0).admits(100 * SECOND)


def test_an_answer_to_a_straggler_closes_it() -> None:
    """The API is there, whoever found out; what the probe says later is counted as usual."""
    circuit = opened().started().answered()
    assert circuit.admits(NONE)
    assert circuit.failed(SECOND, probe=True, jitter=1.0).admits(SECOND)
    assert circuit.abandoned() == Circuit()
