"""Assignment: the leases one process should have, so that all have about as many.

Theory of operation
-------------------
The processes that do the same work, and the leases of it, each stand in an order that all of them know. The process at
place i of M may have ``N // M`` of N leases, and one more if i is smaller than the rest; so their shares add up to N,
without any agreement. It takes first those leases whose number leaves i when divided by M, which no other
process takes first, and hands back first those which do not; so when all start together few reach for the same.

Who has more than its share hands back what can be: never what is in the middle of a round. Who has less takes what is
free. What is free for long although all others could have taken it is taken by the first that sees it, beyond the
share: the others may not know of it, as while a new configuration is rolled out; or they were only slow.

A lease beyond the share is an *extra*. After a term it is offered: handed back like any surplus, and before any other.
The term doubles each time, so what is free because the others have no room moves less and less; it is short again once
the lease was not an extra for longer than that. An extra that no other process lists is never offered. When the list of
processes changes nothing is an extra any more, and all are asked again.

The laws, for processes that know the same leases: once nothing changes any more every lease is held, no two processes
differ by more than one, and nothing moves again, however slow some of them were before. For processes that know
different leases: every lease that a process knows is held, and what only one process lists does not move again. A
process alone takes everything and hands back nothing.

Pure: knows no clock and no store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

_FIRST_TERM: Final = 3  # times the patience with the others: those that were slow for a moment have long recovered


class SurplusLease(msgspec.Struct, frozen=True):
    """A lease that a process has beyond its share.

    Attributes:
        seconds: since it was taken.
        offers: how often it was offered before, see :func:`offers_counted`.
        listed: whether another process that does the same work lists it.
    """

    seconds: float
    offers: int = 0
    listed: bool = True

    def is_due(self, patience: float) -> bool:
        """Whether it is to be offered to the others now."""
        return self.listed and self.seconds >= _term(self.offers, patience)


class LeaseMoves(msgspec.Struct, frozen=True):
    """What is to be done.

    Attributes:
        take: within the share, in the order in which they are to be tried; as many as there is room for.
        beyond: beyond the share, because no other process takes them; extras from now on.
        hand: back, so that others can take them.
        over: whether there is more than the share once they are, for it is busy.
    """

    take: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    hand: tuple[str, ...] = ()
    over: bool = False


def share(count: int, place: int, members: int) -> int:
    """How many of all leases the process at this place among all processes may have."""
    return count // members + (1 if place < count % members else 0)


def preferred(names: Collection[str], place: int, members: int) -> list[str]:
    """The leases in the order in which the process at this place takes them."""
    numbered = sorted(enumerate(sorted(names)), key=lambda one: ((one[0] - place) % members, one[0]))
    return [name for _, name in numbered]


def moves(
    names: Collection[str],
    *,
    own: Collection[str],
    busy: Collection[str],
    free: Mapping[str, float],
    place: int,
    members: int,
    patience: float,
    extras: Mapping[str, SurplusLease] | None = None,
) -> LeaseMoves:
    """What the process at this place should do now.

    Args:
        names: of all leases.
        own: those that it has.
        busy: those of them that cannot be handed back now.
        free: those that no process has, with for how long that is known, in seconds.
        place: among the names of the processes, in their order; from 0.
        members: how many processes there are.
        patience: for how long the others may take what is free, in seconds.
        extras: those of ``own`` that it has taken beyond its share since the processes were others.
    """
    extras = extras or {}
    due = {name for name, one in extras.items() if one.is_due(patience)}
    kept = extras.keys() - due
    room = share(len(names), place, members) + len(kept) - len(own)
    if room >= 0 and not free:
        return LeaseMoves()
    order = preferred(names, place, members)
    if room < 0:
        idle = [name for name in order if name in own and name not in busy and name not in kept]
        hand = tuple(sorted(idle, key=due.__contains__)[room:])  # wanted least, and what is due before the rest
        return LeaseMoves(hand=hand, over=len(hand) < -room)
    waiting = [name for name in order if name in free]
    left = waiting[room:]
    return LeaseMoves(tuple(waiting[:room]), tuple(name for name in left if free[name] >= patience))


def offers_counted(offers: int, seconds: float, patience: float) -> int:
    """How many of a lease's offers count when it becomes an extra.

    Args:
        offers: that counted at the last one.
        seconds: since then.
        patience: for how long the others may take what is free, in seconds.

    Returns:
        0 where it was not an extra for twice as long as it would have been kept: others had it, and were slow again.
    """
    return offers if seconds <= 2 * _term(offers, patience) else 0


def _term(offers: int, patience: float) -> float:
    """For how many seconds an extra is kept that was offered so often."""
    return float(_FIRST_TERM * patience * 2**offers)
