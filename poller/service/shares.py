"""Who does how much: the leases that one process should have, take and hand back, so that all have about as many.

Theory of operation
-------------------
The processes that do the same work, and the leases of it, each stand in an order that all of them know. The process at
place i of M may have ``N // M`` of N leases, and one more if i is smaller than the rest; so their shares add up to N,
and nobody has to agree with anybody. It takes first those leases whose number leaves i when divided by M, which nobody
else takes first, and hands back first those which do not; so where all begin at once few reach for the same.

Who has more than its share hands back what can be: never what is in the middle of a round. Who has less takes what is
free. What is free for long although all others could have taken it is taken by whoever sees it, beyond the share: the
others may not know of it, as while a new configuration is rolled out. That is kept until the processes are others, so
nothing goes to and fro.

The laws, for processes that know the same leases: once nothing changes any more every lease is held, no two processes
differ by more than one, and nothing moves again. A process alone takes everything and hands back nothing.

Pure: knows no clock and no store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec


class Moves(msgspec.Struct, frozen=True):
    """What is to be done.

    Attributes:
        take: within the share, in the order in which they are to be tried; as many as there is room for.
        beyond: beyond the share, because nobody else takes them.
        hand: back, so that others can take them.
        over: whether there is more than the share once they are, for it is busy.
    """

    take: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    hand: tuple[str, ...] = ()
    over: bool = False


def share(count: int, place: int, members: int) -> int:
    """How many of so many leases the process at this place of so many may have."""
    return count // members + (1 if place < count % members else 0)


def preferred(names: Collection[str], place: int, members: int) -> list[str]:
    """The leases in the order in which the process at this place takes them."""
    numbered = sorted(enumerate(sorted(names)), key=lambda one: ((one[0] - place) % members, one[0]))
    return [name for _, name in numbered]


def moves(
    names: Collection[str],
    *,
    ours: Collection[str],
    busy: Collection[str],
    free: Mapping[str, float],
    place: int,
    members: int,
    patience: float,
    extra: int = 0,
) -> Moves:
    """What the process at this place should do now.

    Args:
        names: of all leases.
        ours: those that it has.
        busy: those of them that cannot be handed back now.
        free: those that nobody has, with for how long that is known, in seconds.
        place: among the names of the processes, in their order; from 0.
        members: how many processes there are.
        patience: for how long the others may take what is free, in seconds.
        extra: how many it has taken beyond its share since the processes were others.
    """
    room = share(len(names), place, members) + extra - len(ours)
    if room >= 0 and not free:
        return Moves()
    order = preferred(names, place, members)
    if room < 0:
        hand = _last(order, room, ours=ours, busy=busy)
        return Moves(hand=hand, over=len(hand) < -room)
    waiting = [name for name in order if name in free]
    left = waiting[room:]
    return Moves(tuple(waiting[:room]), tuple(name for name in left if free[name] >= patience))


def _last(order: Sequence[str], surplus: int, *, ours: Collection[str], busy: Collection[str]) -> tuple[str, ...]:
    """Those that are wanted least of what can be handed back."""
    idle = [name for name in order if name in ours and name not in busy]
    return tuple(idle[surplus:])
