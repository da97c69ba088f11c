"""The records that a sandbox begins with.

Law: the same number of records, ``rng`` and ``at`` give the same records, byte for byte, in the same order.

It does not know: what a record looks like (``records``), or what happens to it later (``mutate``).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from poller.sandbox import records
from poller.sandbox.resources import ACHIEVEMENTS, CONTRACT_TYPES, EMPLOYMENT_UNAVAILABILITIES, EVIDENCE_VARIANTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from random import Random

    from poller.sandbox.model import History

_MOST_QUALIFICATIONS = 200
_MOST_CONTRACT_TYPES = 40
_ENOUGH_FOR_ALL = 20
_YEARS_OF_PAST = 3


class Shares(msgspec.Struct, frozen=True):
    """How many of each there are to be. Qualifications are ids only and not counted as records."""

    qualifications: int
    contract_types: int
    evidence_variants: int
    achievements: int
    unavailabilities: int


def shares(total: int, qualifications: int | None = None) -> Shares:
    """Divide ``total`` records among the resources: most are unavailabilities, no resource is left out from 20 on.

    Each of the ``qualifications`` that are asked for has an evidence variant, as far as there are records enough.
    """
    fewest = 3 if total >= _ENOUGH_FOR_ALL else total // 6
    contract_types = max(fewest, min(_MOST_CONTRACT_TYPES, total // 50))
    variants = max(fewest, total // 20, min(qualifications or 0, total // 2))
    achievements = max(fewest, total // 5) if variants else 0
    return Shares(
        # An achievements listing is one request each: few qualifications keep a reading of them affordable.
        qualifications=min(variants, qualifications or max(fewest, min(_MOST_QUALIFICATIONS, total // 40))),
        contract_types=contract_types,
        evidence_variants=variants,
        achievements=achievements,
        unavailabilities=max(0, total - contract_types - variants - achievements),
    )


def shared(count: Shares) -> str:
    """Which records there are, in words: those of one resource are not all of them."""
    each = {
        EMPLOYMENT_UNAVAILABILITIES: count.unavailabilities,
        EVIDENCE_VARIANTS: count.evidence_variants,
        CONTRACT_TYPES: count.contract_types,
        ACHIEVEMENTS: count.achievements,
    }
    return ", ".join(f"{number} {resource.name}" for resource, number in each.items())


def seed(history: History, rng: Random, *, records: int, at: datetime, qualifications: int | None = None) -> None:
    """Put ``records`` records, made in the years before ``at``, into the history as versions of ``at``."""
    count = shares(records, qualifications)
    for resource, record in _made(rng, count, at):
        history.put(resource, record, at)


def _made(rng: Random, count: Shares, at: datetime) -> Iterator[tuple[str, records.Record]]:
    for _ in range(count.contract_types):
        yield CONTRACT_TYPES.name, records.contract_type(rng, _past(rng, at))
    qualifications = [records.new_id(rng) for _ in range(count.qualifications)]
    variants: list[tuple[str, str]] = []
    for index in range(count.evidence_variants):
        qualification = qualifications[index % len(qualifications)]
        variant = records.evidence_variant(rng, _past(rng, at), qualification=qualification)
        variants.append((qualification, variant["id"]))
        yield EVIDENCE_VARIANTS.name, variant
    employments: list[str] = []
    for employment in _employments(rng, count.unavailabilities):
        employments.append(employment)
        yield EMPLOYMENT_UNAVAILABILITIES.name, records.unavailability(rng, _past(rng, at), employment=employment)
    for _ in range(count.achievements):
        qualification, variant_id = rng.choice(variants)
        yield (
            ACHIEVEMENTS.name,
            records.achievement(
                rng,
                _past(rng, at),
                qualification=qualification,
                variant=variant_id,
                employment=rng.choice(employments),
            ),
        )


def _employments(rng: Random, unavailabilities: int) -> Iterator[str]:
    """An employment for each unavailability, the same one for several in a row."""
    left = unavailabilities
    while left > 0:
        employment = records.new_id(rng)
        several = min(left, rng.randint(1, 6))
        left -= several
        for _ in range(several):
            yield employment


def _past(rng: Random, at: datetime) -> datetime:
    return at - timedelta(seconds=rng.randrange(_YEARS_OF_PAST * 365 * 86_400), milliseconds=rng.randrange(1000))
