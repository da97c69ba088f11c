"""Changes that the sandbox makes by itself, as people at their desks would.

Law: one call is one version. Most calls alter one or two fields of a record, to values that differ from the present
ones, and its ``lastModifiedAt``; every other member keeps its bytes. Some calls make a new record. None removes one.

It does not know: when or how often it is called.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from poller.sandbox import records, words
from poller.sandbox.resources import ACHIEVEMENTS, CONTRACT_TYPES, EMPLOYMENT_UNAVAILABILITIES, EVIDENCE_VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from random import Random

    from poller.sandbox.model import History, Version

    Alteration = Callable[[Random, datetime], Any]

_WEIGHTS = {
    EMPLOYMENT_UNAVAILABILITIES.name: 60,
    ACHIEVEMENTS.name: 20,
    EVIDENCE_VARIANTS.name: 12,
    CONTRACT_TYPES.name: 8,
}
_SHARE_OF_NEW = 0.2


def _expiry(rng: Random, at: datetime) -> str:
    return records.date_near(rng, at, days=(30, 1500))


def _variant_name(rng: Random, _at: datetime) -> str:
    return f"{rng.choice(words.QUALIFICATIONS)[1]} ({rng.choice(words.EVIDENCE)})"


_ALTERATIONS: dict[str, dict[str, Alteration]] = {
    EMPLOYMENT_UNAVAILABILITIES.name: {
        "reason": lambda rng, _at: rng.choice(words.REASONS),
        "interval": records.absence,
    },
    ACHIEVEMENTS.name: {
        "expirationDate": _expiry,
        "overriddenExpirationDate": _expiry,
        "remark": lambda rng, _at: rng.choice(words.REMARKS),
        "scoreOrder": lambda rng, _at: rng.randint(1, 10),
        "isAutoAchieved": lambda rng, _at: rng.randrange(2) == 0,
        "documents": lambda rng, _at: [records.document(rng) for _ in range(rng.randint(1, 3))],
    },
    EVIDENCE_VARIANTS.name: {"name": _variant_name, "interval": records.validity},
    CONTRACT_TYPES.name: {
        "name": lambda rng, _at: f"{rng.choice(words.CONTRACTS)[1]} {rng.randint(1, 99)}",
        "externalCode": lambda rng, _at: f"CT{rng.randrange(1_000_000):06}",
    },
}

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def mutate(history: History, rng: Random, at: datetime) -> Version:
    """Make one change at the time ``at`` and return the version it made."""
    resource = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    present = None if rng.random() < _SHARE_OF_NEW else history.pick(resource, rng)
    if present is None or present.record is None:
        return _create(history, resource, rng, at)
    return history.put(resource, _altered(resource, present.record, rng, at), at)


def _altered(resource: str, record: bytes, rng: Random, at: datetime) -> bytes:
    members = _members.decode(record)
    alterations = _ALTERATIONS[resource]
    for name in rng.sample(list(alterations), k=rng.choice((1, 1, 2))):
        members[name] = _other_than(members.get(name), partial(alterations[name], rng, at))
    members["lastModifiedAt"] = msgspec.Raw(msgspec.json.encode(records.instant(at)))
    return msgspec.json.encode(members)


def _other_than(present: msgspec.Raw | None, make: Callable[[], Any]) -> msgspec.Raw:
    """Make values until one differs; all of them have several to choose from."""
    while True:
        value = msgspec.json.encode(make())
        if present is None or value != bytes(present):
            return msgspec.Raw(value)


def _create(history: History, resource: str, rng: Random, at: datetime) -> Version:
    if resource == CONTRACT_TYPES.name:
        return history.put(resource, records.contract_type(rng, at), at)
    if resource == EMPLOYMENT_UNAVAILABILITIES.name:
        return history.put(resource, records.unavailability(rng, at, employment=_employment(history, rng)), at)
    variant = history.pick(EVIDENCE_VARIANTS.name, rng)
    qualification = _named(variant, "qualificationID") or records.new_id(rng)
    if resource == EVIDENCE_VARIANTS.name or variant is None:
        return history.put(EVIDENCE_VARIANTS.name, records.evidence_variant(rng, at, qualification=qualification), at)
    employment = _employment(history, rng)
    record = records.achievement(rng, at, qualification=qualification, variant=variant.id, employment=employment)
    return history.put(resource, record, at)


def _employment(history: History, rng: Random) -> str:
    """One that is known already, so that employments have several records; now and then somebody new."""
    known = None if rng.random() < _SHARE_OF_NEW else history.pick(EMPLOYMENT_UNAVAILABILITIES.name, rng)
    return _named(known, "employmentID") or records.new_id(rng)


def _named(version: Version | None, name: str) -> str | None:
    """The text under a name in a record, if there is one: posted records need not be plausible."""
    if version is None or version.record is None:
        return None
    value = msgspec.json.decode(_members.decode(version.record).get(name, b"null"))
    return value if isinstance(value, str) else None
