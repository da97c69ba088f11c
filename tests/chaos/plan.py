"""The plan of faults, drawn from a seed: the same seed gives the same plan.

Law: a chapter is drawn from the seed, its fault and its number alone, so it can be repeated without the others. The
plan counts in events and fractions of a second; when a machine reaches them depends on the machine. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MOST_EVENTS = 40
_LONGEST_PAUSE = 0.15


@dataclass(frozen=True, slots=True)
class Strike:
    """One occurrence of a fault.

    Attributes:
        events: it strikes after this many more events are published …
        pause: … and this many seconds.
        dice: the seed of the fault's own random choices.
    """

    events: int
    pause: float
    dice: int


@dataclass(frozen=True, slots=True)
class Chapter:
    """A number of strikes of one fault in a scene of their own."""

    fault: str
    number: int
    seed: int
    strikes: tuple[Strike, ...]

    @property
    def name(self) -> str:
        """Its name, as for ``--only``."""
        return f"{self.fault}:{self.number}"

    def __str__(self) -> str:
        strikes = " ".join(f"{one.events}+{one.pause * 1000:.0f}ms/{one.dice:x}" for one in self.strikes)
        return f"{self.name} (records and changes of seed {self.seed}): {strikes}"


def planned(times: Mapping[str, int], seed: int, *, most: Mapping[str, int]) -> list[Chapter]:
    """All chapters, in an order that the seed determines.

    Args:
        times: how often each fault strikes.
        seed: any number.
        most: how many strikes of each fault a chapter has at most.
    """
    chapters = [chapter for fault in times for chapter in _of(fault, times[fault], seed, most[fault])]
    Random(seed).shuffle(chapters)
    return chapters


def only(chapters: Iterable[Chapter], names: Iterable[str]) -> list[Chapter]:
    """The chapters of these faults, or of these names.

    Raises:
        ValueError: no chapter has one of the names.
    """
    kept, asked = list(chapters), set(names)
    if unknown := asked - {name for chapter in kept for name in (chapter.fault, chapter.name)}:
        raise ValueError(f"nothing is planned of {', '.join(sorted(unknown))}")
    return [chapter for chapter in kept if asked & {chapter.fault, chapter.name}]


def _of(fault: str, times: int, seed: int, most: int) -> Iterator[Chapter]:
    for number, begin in enumerate(range(0, times, most), start=1):
        rng = Random(f"{seed}/{fault}/{number}")
        seed_of_scene = rng.randrange(1_000_000)
        strikes = [_strike(rng) for _ in range(most)]  # drawn in full even for a shorter last chapter
        yield Chapter(fault, number, seed_of_scene, tuple(strikes[: times - begin]))


def _strike(rng: Random) -> Strike:
    return Strike(rng.randrange(_MOST_EVENTS), rng.random() * _LONGEST_PAUSE, rng.randrange(2**32))
