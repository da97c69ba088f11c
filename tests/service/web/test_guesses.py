"""Laws of :mod:`poller.service.web.guesses`: so many in a while, for each address, and bounded."""

from __future__ import annotations

from poller.service.web.guesses import ADDRESSES, MOST, WINDOW, Guesses


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_in_a_while() -> None:
    """The last one that is allowed is not the first that is refused; others are not held liable; time heals."""
    clock = Clock()
    guesses = Guesses(clock)
    for _ in range(MOST):
        assert guesses.wait("a") == 0
        guesses.wrong("a")
    assert guesses.wait("a") == WINDOW
    assert guesses.wait("b") == 0
    clock.now += WINDOW - 1
    assert guesses.wait("a") == 1
    clock.now += 1
    assert guesses.wait("a") == 0
    guesses.wrong("a")
    assert guesses.wait("a") == 0


def test_what_is_remembered_is_bounded() -> None:
    """The address that was wrong the longest ago is forgotten first."""
    guesses = Guesses(Clock())
    for _ in range(MOST):
        guesses.wrong("first")
    for number in range(ADDRESSES - 1):
        guesses.wrong(str(number))
    assert guesses.wait("first") > 0
    guesses.wrong("one more")
    assert guesses.wait("first") == 0
