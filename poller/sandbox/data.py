"""Made-up records: the first ones, and the changes that follow.

**Invariants**

- All chance comes from ``rng``, all time from ``at``: the same arguments give the same records, byte for byte, in the
  same order.
- One call of :func:`mutate` is one version. Most calls alter one or two fields of a record, to other values, and its
  ``lastModifiedAt``; every other member keeps its bytes. Some calls make a new record. None removes one.
- A posted record stays as posted, byte for byte; missing fields are written in front of it. So a test can post
  numbers, spellings and orders that no encoder would write.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from poller.sandbox.history import (
    ACHIEVEMENTS,
    CONTRACT_TYPES,
    EMPLOYMENT_UNAVAILABILITIES,
    EVIDENCE_VARIANTS,
    UnusableRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from poller.sandbox.history import History


Record = dict[str, Any]


def new_id(rng: Random) -> str:
    """A UUID of version 4."""
    return str(UUID(int=rng.getrandbits(128), version=4))


def instant(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as the API writes its instants."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def date_near(rng: Random, at: datetime, *, days: tuple[int, int]) -> str:
    """A random calendar date between two numbers of days from ``at``."""
    return (at + timedelta(days=rng.randint(*days))).date().isoformat()


def absence(rng: Random, at: datetime) -> Record:
    """An interval of one to forty days that starts within the months around ``at``."""
    start = at + timedelta(days=rng.randint(-90, 180))
    end = start + timedelta(days=rng.randint(1, 40))
    return {"start": start.date().isoformat(), "end": end.date().isoformat()}


def validity(rng: Random, at: datetime) -> Record:
    """An interval of years; a third of them have no end."""
    start = date_near(rng, at, days=(-2000, -30))
    return {"start": start, "end": None if rng.randrange(3) == 0 else date_near(rng, at, days=(30, 3000))}


def document(rng: Random) -> Record:
    """One entry of an achievement's documents."""
    filename, content_type = rng.choice(DOCUMENTS)
    return {"contentType": content_type, "filename": filename}


def contract_type(rng: Random, at: datetime) -> Record:
    """A contract type."""
    code, name = rng.choice(CONTRACTS)
    return {"id": new_id(rng), "code": code, "name": name, **_external(rng, "CT"), **_stamps(at)}


def evidence_variant(rng: Random, at: datetime, *, qualification: str) -> Record:
    """A way to prove a qualification."""
    code, name = rng.choice(QUALIFICATIONS)
    return {
        "id": new_id(rng),
        "qualificationID": qualification,
        "code": f"{code}-{rng.randint(1, 99):02}",
        "name": f"{name} ({rng.choice(EVIDENCE)})",
        **_external(rng, "EV"),
        "interval": validity(rng, at),
        **_stamps(at),
    }


def unavailability(rng: Random, at: datetime, *, employment: str) -> Record:
    """A time in which an employment is not available."""
    return {
        "id": new_id(rng),
        "employmentID": employment,
        "reason": rng.choice(REASONS),
        "interval": absence(rng, at),
        **_stamps(at),
    }


def achievement(rng: Random, at: datetime, *, qualification: str, variant: str, employment: str) -> Record:
    """A qualification that an employment has achieved, every field filled in."""
    return {
        "id": new_id(rng),
        "qualificationID": qualification,
        "evidenceVariantID": variant,
        "employmentID": employment,
        "submittedByID": employment if rng.randrange(2) else new_id(rng),
        "approvedByID": new_id(rng),
        "issueDate": date_near(rng, at, days=(-900, 0)),
        "expirationDate": date_near(rng, at, days=(30, 1500)),
        "overriddenExpirationDate": None if rng.randrange(4) else date_near(rng, at, days=(30, 900)),
        "remark": rng.choice(REMARKS),
        "scoreOrder": rng.randint(1, 10),
        "isAutoAchieved": rng.randrange(5) == 0,
        "documents": [document(rng) for _ in range(rng.randrange(3))],
        **_external(rng, "AC"),
        **_stamps(at),
    }


def _external(rng: Random, prefix: str) -> Record:
    number = rng.randrange(1_000_000)
    return {"externalCode": f"{prefix}{number:06}", "externalId": f"{number * 7919 % 1_000_003:07}"}


def _stamps(at: datetime) -> Record:
    return {"createdAt": instant(at), "lastModifiedAt": instant(at)}


# Words in several languages, because ASCII alone would hide faults.

REASONS = (
    "holiday",
    "sick leave",
    "training",
    "parental leave",
    "jury duty",
    "sabbatical",
    "unpaid leave",
    "Kur und Rehabilitation für Angehörige",
    "congé de formation à l'étranger",
    "omsorgspermisjon — små barn",
    "介護休暇",
)

CONTRACTS = (
    ("PERM", "Permanent"),
    ("FIX", "Fixed term"),
    ("TEMP", "Temporary replacement"),
    ("HOUR", "Paid by the hour"),
    ("APPR", "Lærling"),
    ("STUD", "Werkstudent:in"),
    ("VOL", "Bénévole"),
    ("ONCALL", "On call"),
)

QUALIFICATIONS = (
    ("AID", "First aid"),
    ("CPR", "Resuscitation"),
    ("FIRE", "Fire safety"),
    ("MED", "Administration of medicines"),
    ("LIFT", "Fork-lift truck"),
    ("DRV", "Führerschein Klasse C1E"),
    ("HYG", "Hygiène alimentaire"),
    ("INT", "Intensivpleie på nyfødte"),
    ("RAD", "放射線取扱主任者"),
)

EVIDENCE = ("certificate", "examination", "diploma", "supervised practice", "e-learning", "Prüfung", "attestation")

REMARKS = (
    "",
    "Seen in the original.",
    "Renewal is due before the summer.",
    "Approved with conditions: two shifts under supervision, then a talk with the ward's lead.",
    "Anerkennung aus Österreich, Übersetzung beglaubigt.",
    "Reçu par courriel ✓",
    'Name on the certificate: "Zoë Łukasiewicz-Núñez"',
)

DOCUMENTS = (
    ("certificate.pdf", "application/pdf"),
    ("scan 001.jpg", "image/jpeg"),
    ("Prüfungszeugnis.pdf", "application/pdf"),
    ("attestation_réussite.pdf", "application/pdf"),
    ("修了証.png", "image/png"),
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from random import Random

    from poller.sandbox.history import History, Version

    Alteration = Callable[[Random, datetime], Any]

_WEIGHTS = {
    EMPLOYMENT_UNAVAILABILITIES.name: 60,
    ACHIEVEMENTS.name: 20,
    EVIDENCE_VARIANTS.name: 12,
    CONTRACT_TYPES.name: 8,
}
_SHARE_OF_NEW = 0.2


def _expiry(rng: Random, at: datetime) -> str:
    return date_near(rng, at, days=(30, 1500))


def _variant_name(rng: Random, _at: datetime) -> str:
    return f"{rng.choice(QUALIFICATIONS)[1]} ({rng.choice(EVIDENCE)})"


_ALTERATIONS: dict[str, dict[str, Alteration]] = {
    EMPLOYMENT_UNAVAILABILITIES.name: {
        "reason": lambda rng, _at: rng.choice(REASONS),
        "interval": absence,
    },
    ACHIEVEMENTS.name: {
        "expirationDate": _expiry,
        "overriddenExpirationDate": _expiry,
        "remark": lambda rng, _at: rng.choice(REMARKS),
        "scoreOrder": lambda rng, _at: rng.randint(1, 10),
        "isAutoAchieved": lambda rng, _at: rng.randrange(2) == 0,
        "documents": lambda rng, _at: [document(rng) for _ in range(rng.randint(1, 3))],
    },
    EVIDENCE_VARIANTS.name: {"name": _variant_name, "interval": validity},
    CONTRACT_TYPES.name: {
        "name": lambda rng, _at: f"{rng.choice(CONTRACTS)[1]} {rng.randint(1, 99)}",
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
    members["lastModifiedAt"] = msgspec.Raw(msgspec.json.encode(instant(at)))
    return msgspec.json.encode(members)


def _other_than(present: msgspec.Raw | None, make: Callable[[], Any]) -> msgspec.Raw:
    """Make values until one differs; all of them have several to choose from."""
    while True:
        value = msgspec.json.encode(make())
        if present is None or value != bytes(present):
            return msgspec.Raw(value)


def _create(history: History, resource: str, rng: Random, at: datetime) -> Version:
    if resource == CONTRACT_TYPES.name:
        return history.put(resource, contract_type(rng, at), at)
    if resource == EMPLOYMENT_UNAVAILABILITIES.name:
        return history.put(resource, unavailability(rng, at, employment=_employment(history, rng)), at)
    variant = history.pick(EVIDENCE_VARIANTS.name, rng)
    qualification = _named(variant, "qualificationID") or new_id(rng)
    if resource == EVIDENCE_VARIANTS.name or variant is None:
        return history.put(EVIDENCE_VARIANTS.name, evidence_variant(rng, at, qualification=qualification), at)
    employment = _employment(history, rng)
    record = achievement(rng, at, qualification=qualification, variant=variant.id, employment=employment)
    return history.put(resource, record, at)


def _employment(history: History, rng: Random) -> str:
    """Usually a known employment, so that some have several records; sometimes a new one."""
    known = None if rng.random() < _SHARE_OF_NEW else history.pick(EMPLOYMENT_UNAVAILABILITIES.name, rng)
    return _named(known, "employmentID") or new_id(rng)


def _named(version: Version | None, name: str) -> str | None:
    """The text under a name in a record, if any.

    Posted records need not be plausible.
    """
    if version is None or version.record is None:
        return None
    value = msgspec.json.decode(_members.decode(version.record).get(name, b"null"))
    return value if isinstance(value, str) else None


_MOST_QUALIFICATIONS = 200
_MOST_CONTRACT_TYPES = 40
_ENOUGH_FOR_ALL = 20
_YEARS_OF_PAST = 3


class RecordMix(msgspec.Struct, frozen=True):
    """How many of each there are to be. Qualifications are ids only and not counted as records."""

    qualifications: int
    contract_types: int
    evidence_variants: int
    achievements: int
    unavailabilities: int


def shares(total: int, qualifications: int | None = None) -> RecordMix:
    """Divide ``total`` records among the resources; from 20 on each has some.

    Each of the ``qualifications`` that are asked for has an evidence variant, as far as there are records enough.
    """
    fewest = 3 if total >= _ENOUGH_FOR_ALL else total // 6
    contract_types = max(fewest, min(_MOST_CONTRACT_TYPES, total // 50))
    variants = max(fewest, total // 20, min(qualifications or 0, total // 2))
    achievements = max(fewest, total // 5) if variants else 0
    return RecordMix(
        # An achievements listing is one request each: few qualifications keep a reading of them affordable.
        qualifications=min(variants, qualifications or max(fewest, min(_MOST_QUALIFICATIONS, total // 40))),
        contract_types=contract_types,
        evidence_variants=variants,
        achievements=achievements,
        unavailabilities=max(0, total - contract_types - variants - achievements),
    )


def shared(count: RecordMix) -> str:
    """Which records there are, in words: those of one resource are not all of them."""
    each = {
        EMPLOYMENT_UNAVAILABILITIES: count.unavailabilities,
        EVIDENCE_VARIANTS: count.evidence_variants,
        CONTRACT_TYPES: count.contract_types,
        ACHIEVEMENTS: count.achievements,
    }
    return ", ".join(f"{number} {resource.name}" for resource, number in each.items())


def seed(history: History, rng: Random, *, records: int, at: datetime, qualifications: int | None = None) -> None:
    """Put ``records`` records of the years before ``at`` into the history."""
    count = shares(records, qualifications)
    for resource, record in _made(rng, count, at):
        history.put(resource, record, at)


def _made(rng: Random, count: RecordMix, at: datetime) -> Iterator[tuple[str, Record]]:
    for _ in range(count.contract_types):
        yield CONTRACT_TYPES.name, contract_type(rng, _past(rng, at))
    qualifications = [new_id(rng) for _ in range(count.qualifications)]
    variants: list[tuple[str, str]] = []
    for index in range(count.evidence_variants):
        qualification = qualifications[index % len(qualifications)]
        variant = evidence_variant(rng, _past(rng, at), qualification=qualification)
        variants.append((qualification, variant["id"]))
        yield EVIDENCE_VARIANTS.name, variant
    employments: list[str] = []
    for employment in _employments(rng, count.unavailabilities):
        employments.append(employment)
        yield EMPLOYMENT_UNAVAILABILITIES.name, unavailability(rng, _past(rng, at), employment=employment)
    for _ in range(count.achievements):
        qualification, variant_id = rng.choice(variants)
        yield (
            ACHIEVEMENTS.name,
            achievement(
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
        employment = new_id(rng)
        several = min(left, rng.randint(1, 6))
        left -= several
        for _ in range(several):
            yield employment


def _past(rng: Random, at: datetime) -> datetime:
    return at - timedelta(seconds=rng.randrange(_YEARS_OF_PAST * 365 * 86_400), milliseconds=rng.randrange(1000))


_WHITESPACE = b" \t\r\n"


def completed(body: bytes, *, present: Callable[[str], bytes | None], rng: Random, at: datetime) -> bytes:
    """The record that a posted body stands for.

    Args:
        body: what was posted.
        present: the record that an id names now, if any; a replaced record keeps its ``createdAt``.
        rng: where an id comes from if there is none.
        at: ``createdAt`` and ``lastModifiedAt`` if there are none, UTC.

    Raises:
        UnusableRecord: the body is not one JSON object in UTF-8, or its id is not a string.
    """
    members = _decoded(body)
    missing = _missing(members, present=present, rng=rng, at=at)
    if not missing:
        return body
    added = msgspec.json.encode(missing).removesuffix(b"}")
    rest = body.lstrip(_WHITESPACE).removeprefix(b"{")
    return added + (b"," if members else b"") + rest


def _decoded(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        body.decode()  # the decoder below does not look inside the strings that it passes on
        return _members.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableRecord(f"the body must be one JSON object in UTF-8: {error}") from error


def _missing(
    members: dict[str, msgspec.Raw], *, present: Callable[[str], bytes | None], rng: Random, at: datetime
) -> dict[str, msgspec.Raw]:
    missing = {}
    if "id" not in members:
        missing["id"] = _raw(new_id(rng))
    elif "createdAt" not in members:
        replaced = present(_text(members["id"]))
        if replaced is not None and "createdAt" in (kept := _members.decode(replaced)):
            missing["createdAt"] = kept["createdAt"]
    for name in {"createdAt", "lastModifiedAt"} - members.keys() - missing.keys():
        missing[name] = _raw(instant(at))
    return {name: missing[name] for name in ("id", "createdAt", "lastModifiedAt") if name in missing}


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(text))


def _text(value: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnusableRecord(f"id: {error}") from error
