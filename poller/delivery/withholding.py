"""When nothing is sent, for what signs a request or proves who sends it cannot be had: since when, and who asks again.

That is our own fault and no event's: none of them is tried by itself until it is mended. All wait, and one attempt in
:data:`CREDENTIAL_WAIT` finds out; the first that gets as far as the sink lets the others go on.

The law: between two such attempts nothing is begun, whichever feed it is for. What was begun before, and is still to be
sent, is not. Of an attempt that was on its way before that time it is not believed that it is over.

Pure: moments are seconds of a clock that only goes forward.
"""

from __future__ import annotations

from typing import Final

from poller.delivery.attempts import CREDENTIAL_WAIT

TELL_AGAIN: Final = 60.0
"""Seconds between two words on one and the same."""

_WAIT: Final = CREDENTIAL_WAIT.total_seconds()


class Withholding:
    """Of one subscription in this process.

    Attributes:
        since: when it began; None where it does not go on.
        next_try: when one attempt may find out; None likewise.
    """

    __slots__ = ("_may_try", "_told", "next_try", "since")

    def __init__(self) -> None:
        """Everything can be had, as far as is known."""
        self.since: float | None = None
        self.next_try: float | None = None
        self._may_try = False
        self._told = 0.0

    def admits(self, now: float) -> bool:
        """Whether an attempt may begin."""
        return self.next_try is None or now >= self.next_try

    def begin(self, now: float) -> None:
        """An attempt begins; while nothing can be sent it is the one that finds out, and no other does for a while."""
        if self.since is not None:
            self._may_try, self.next_try = True, now + _WAIT

    def turn(self) -> bool:
        """Whether what was begun may be sent, now that its turn has come."""
        if self.since is None:
            return True
        may, self._may_try = self._may_try, False
        return may

    def failed(self, now: float) -> bool:
        """It cannot be had; whether that is to be told: when it begins, and now and then."""
        first = self.since is None
        if self.since is None:
            self.since = now
        self.next_try = now + _WAIT
        if not first and now - self._told < TELL_AGAIN:
            return False
        self._told = now
        return True

    def passed(self, now: float, *, asked: bool) -> float | None:
        """An attempt has got as far as the sink; for how many seconds none had, where that is over now.

        ``asked``: whether it was sent to find out.
        """
        if self.since is None or not asked:
            return None
        began, self.since, self.next_try = self.since, None, None
        return now - began
