"""Records whose fields were asked for, or not: what of them can be compared with what is known.

Theory of operation
-------------------
A record holds the fields that were asked for, and what is kept of it may hold others: from before the configuration
named fewer, or not yet those that it names since. Two rules, so that a change of the fields is no storm of events, and
no change of a record is lost by it:

* a known key that is not asked for any more is not missing: it is kept as it was, beneath what was received, and is
  compared again once it is asked for again;
* a key that was not asked for before and is not known is not new: it is taken over without an event.

Everything else counts. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """What is asked for.

    Attributes:
        asked: the keys that are asked for; None: all.
        before: the keys that were asked for before, where others are asked for now; None: all, or the same.
    """

    asked: frozenset[str] | None
    before: frozenset[str] | None

    def counted(self, known: Any, received: Any) -> tuple[Any, Any]:
        """What of a known record and of a received one is compared; parsed values both."""
        if not (isinstance(known, dict) and isinstance(received, dict)):
            return known, received
        asked, before = self.asked, self.before
        if asked is not None:
            known = {key: value for key, value in known.items() if key in received or key in asked}
        if before is not None:
            received = {key: value for key, value in received.items() if key in known or key in before}
        return known, received


def shape_of(before: tuple[str, ...] | None, now: tuple[str, ...]) -> Shape | None:
    """The shape where these fields are asked for now and those were before; None where all count anyway.

    Args:
        before: empty for all, None where it is not known.
        now: empty for all.
    """
    differs = bool(before) and before is not None and set(before) != set(now)
    if not now and not differs:
        return None
    return Shape(frozenset(now) if now else None, frozenset(before) if differs and before else None)
