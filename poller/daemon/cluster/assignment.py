"""Assignment: decides which leases a process should have, so that all processes have equally many.

Theory of operation
-------------------
The processes with the same role and the leases of that role are numbered, in an order that all of them know. Process i
of M may have ``N // M`` of N leases, and one more if i is smaller than the remainder; so the shares add up to N without
any agreement. A process prefers the leases whose number modulo M is i, which no other process prefers: it acquires
these first and hands back the others first. So processes that start together seldom try the same leases.

A process with more than its share hands back leases, but never in the middle of a round. A process with less acquires
free leases. A lease that stays free although the others had time to acquire it is acquired beyond the share by the
first process that sees it: the others may not have it in their configuration yet, or they were slow.

A lease beyond the share is an *extra*. After a term it is offered to the others: handed back, before any other surplus.
The term doubles with each offer, so a lease that no other process has room for moves less and less often. The term is
short again once the lease was no extra for longer than the term. An extra that no other process lists is not offered.
When the list of processes changes, no lease is an extra any more.

**Invariants**

- If all processes know the same leases: once nothing changes any more, every lease is held, the processes' numbers of
  leases differ by one at most, and no lease moves again, however slow a process was before.
- If processes know different leases: every known lease is held, and a lease that only one process lists does not move
  again.
- A process alone acquires every lease and hands back none.
- Pure: no clock, no store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

_FIRST_TERM: Final = 3  # times the patience; processes that were slow for a moment have recovered by then


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
        """Whether to offer the lease to the others now."""
        return self.listed and self.seconds >= _term(self.offers, patience)


class LeaseMoves(msgspec.Struct, frozen=True):
    """The leases to acquire and to hand back.

    Attributes:
        take: to acquire within the share, in this order; as many as there is room for.
        beyond: to acquire beyond the share, because no other process does; extras from now on.
        hand: to hand back, so that others can acquire them.
        over: whether the process still has more than its share then, because leases are busy.
    """

    take: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    hand: tuple[str, ...] = ()
    over: bool = False


def share(count: int, place: int, members: int) -> int:
    """The number of leases that the process at this place may have."""
    return count // members + (1 if place < count % members else 0)


def preferred(names: Collection[str], place: int, members: int) -> list[str]:
    """The leases in the order of preference of the process at this place."""
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
    """The next moves of the process at this place.

    Args:
        names: of all leases.
        own: the leases of this process.
        busy: those of them that cannot be handed back now.
        free: the leases that no process has, with the seconds since this is known.
        place: of this process in the order of processes, from 0.
        members: the number of processes.
        patience: seconds that the others have to acquire a free lease.
        extras: those of ``own`` that are extras.
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
        hand = tuple(sorted(idle, key=due.__contains__)[room:])  # due extras first, then the least preferred
        return LeaseMoves(hand=hand, over=len(hand) < -room)
    waiting = [name for name in order if name in free]
    left = waiting[room:]
    return LeaseMoves(tuple(waiting[:room]), tuple(name for name in left if free[name] >= patience))


def offers_counted(offers: int, seconds: float, patience: float) -> int:
    """The number of earlier offers that count when a lease becomes an extra again.

    Args:
        offers: that counted at the last offer.
        seconds: since then.
        patience: seconds that the others have to acquire a free lease.

    Returns:
        0 if the lease was no extra for twice its term: other processes had it, and were slow again.
    """
    return offers if seconds <= 2 * _term(offers, patience) else 0


def _term(offers: int, patience: float) -> float:
    """The seconds for which an extra is kept after this many offers."""
    return float(_FIRST_TERM * patience * 2**offers)
