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

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from poller.resources import ACHIEVEMENTS
from poller.sandbox.history import RESOURCES, UnusableRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from poller.sandbox.history import History, Version


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


Alteration = Callable[["Random", datetime], Any]

_SHARE_OF_NEW = 0.2


def _expiry(rng: Random, at: datetime) -> str:
    return date_near(rng, at, days=(30, 1500))


def _variant_name(rng: Random, _at: datetime) -> str:
    return f"{rng.choice(QUALIFICATIONS)[1]} ({rng.choice(EVIDENCE)})"


class Surroundings(Protocol):
    """The records that a new record refers to, and its moment.

    **Invariants**

    - Each call may draw from ``rng``, so what a seed gives depends on the order of the calls.
    """

    rng: Random

    def moment(self) -> datetime:
        """When the record is made."""
        ...

    def qualification(self) -> str:
        """A qualification, by its id."""
        ...

    def variant(self) -> tuple[str, str]:
        """The qualification of an evidence variant, and the variant's id."""
        ...

    def employment(self) -> str:
        """An employment, one that is known if possible."""
        ...

    def absentee(self) -> str:
        """The employment of the next unavailability."""
        ...


class SeedRequest(msgspec.Struct, frozen=True):
    """The arguments of :func:`shares`.

    Attributes:
        total: the number of records to make.
        fewest: the smallest number of records of a resource.
        qualifications: the number of qualifications; 0: any.
    """

    total: int
    fewest: int
    qualifications: int


class RecordKind(msgspec.Struct, frozen=True):
    """How the records of one resource are made up.

    Attributes:
        make: one record.
        alterations: for each field that a change alters, what makes its new value; at least two fields.
        weight: how often it changes, in relation to the others.
        share: the number of its first records; None: what the others leave. Exactly one resource has None.
        refers_to: another resource, earlier in the table; if that has no record yet, one of it is made instead.
    """

    make: Callable[[Surroundings], Record]
    alterations: dict[str, Alteration]
    weight: int
    share: Callable[[SeedRequest], int] | None
    refers_to: str | None = None


def _make_variant(of: Surroundings) -> Record:
    qualification = of.qualification()
    return evidence_variant(of.rng, of.moment(), qualification=qualification)


def _make_unavailability(of: Surroundings) -> Record:
    employment = of.absentee()
    return unavailability(of.rng, of.moment(), employment=employment)


def _make_achievement(of: Surroundings) -> Record:
    qualification, variant = of.variant()
    at = of.moment()
    return achievement(of.rng, at, qualification=qualification, variant=variant, employment=of.employment())


def _variants(asked: SeedRequest) -> int:
    return max(asked.fewest, asked.total // 20, min(asked.qualifications, asked.total // 2))


_VARIANTS = "evidenceVariants"
_UNAVAILABILITIES = "employmentUnavailabilities"
_MOST_CONTRACT_TYPES = 40
# The first records are made in this order. Every new row changes what a seed gives.
_KINDS = {
    "contractTypes": RecordKind(
        lambda of: contract_type(of.rng, of.moment()),
        {
            "name": lambda rng, _at: f"{rng.choice(CONTRACTS)[1]} {rng.randint(1, 99)}",
            "externalCode": lambda rng, _at: f"CT{rng.randrange(1_000_000):06}",
        },
        weight=8,
        share=lambda asked: max(asked.fewest, min(_MOST_CONTRACT_TYPES, asked.total // 50)),
    ),
    _VARIANTS: RecordKind(_make_variant, {"name": _variant_name, "interval": validity}, weight=12, share=_variants),
    _UNAVAILABILITIES: RecordKind(
        _make_unavailability,
        {"reason": lambda rng, _at: rng.choice(REASONS), "interval": absence},
        weight=60,
        share=None,
    ),
    ACHIEVEMENTS: RecordKind(
        _make_achievement,
        {
            "expirationDate": _expiry,
            "overriddenExpirationDate": _expiry,
            "remark": lambda rng, _at: rng.choice(REMARKS),
            "scoreOrder": lambda rng, _at: rng.randint(1, 10),
            "isAutoAchieved": lambda rng, _at: rng.randrange(2) == 0,
            "documents": lambda rng, _at: [document(rng) for _ in range(rng.randint(1, 3))],
        },
        weight=20,
        share=lambda asked: max(asked.fewest, asked.total // 5) if _variants(asked) else 0,
        refers_to=_VARIANTS,
    ),
}
if unlisted := RESOURCES.keys() ^ _KINDS.keys():
    raise LookupError(f"poller.resources and the table above differ: {', '.join(sorted(unlisted))}")
_BY_WEIGHT = sorted(_KINDS, key=lambda name: -_KINDS[name].weight)

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def mutate(history: History, rng: Random, at: datetime) -> Version:
    """Make one change at the time ``at`` and return the version it made."""
    resource = rng.choices(_BY_WEIGHT, [_KINDS[name].weight for name in _BY_WEIGHT])[0]
    present = None if rng.random() < _SHARE_OF_NEW else history.pick(resource, rng)
    if present is None or present.record is None:
        return _create(history, resource, rng, at)
    return history.put(resource, _altered(resource, present.record, rng, at), at)


def _altered(resource: str, record: bytes, rng: Random, at: datetime) -> bytes:
    members = _members.decode(record)
    alterations = _KINDS[resource].alterations
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
    other = _KINDS[resource].refers_to
    if other is not None and not history.count(other):
        return _create(history, other, rng, at)
    return history.put(resource, _KINDS[resource].make(_Present(history, rng, at)), at)


class _Present:
    """The records that exist now."""

    def __init__(self, history: History, rng: Random, at: datetime) -> None:
        self.rng = rng
        self._history = history
        self._at = at

    def moment(self) -> datetime:
        return self._at

    def qualification(self) -> str:
        return _named(self._history.pick(_VARIANTS, self.rng), "qualificationID") or new_id(self.rng)

    def variant(self) -> tuple[str, str]:
        found = self._history.pick(_VARIANTS, self.rng)
        if found is None:
            raise LookupError("there is no evidence variant")
        return _named(found, "qualificationID") or new_id(self.rng), found.id

    def employment(self) -> str:
        """Usually a known employment, so that some have several records; sometimes a new one."""
        known = None if self.rng.random() < _SHARE_OF_NEW else self._history.pick(_UNAVAILABILITIES, self.rng)
        return _named(known, "employmentID") or new_id(self.rng)

    absentee = employment


def _named(version: Version | None, name: str) -> str | None:
    """The text under a name in a record, if any.

    Posted records need not be plausible.
    """
    if version is None or version.record is None:
        return None
    value = msgspec.json.decode(_members.decode(version.record).get(name, b"null"))
    return value if isinstance(value, str) else None


_MOST_QUALIFICATIONS = 200
_YEARS_OF_PAST = 3


class RecordMix(msgspec.Struct, frozen=True):
    """The numbers of records to make.

    Attributes:
        qualifications: ids only, and not counted as records.
        records: of each resource, in the order in which they are made.
    """

    qualifications: int
    records: dict[str, int]


def shares(total: int, qualifications: int | None = None) -> RecordMix:
    """Divide ``total`` records among the resources; from 20 on each has some.

    Each of the requested ``qualifications`` has an evidence variant, if there are enough records.
    """
    fewest = min(3, total // (2 * (len(_KINDS) - 1)))  # half of all records are left for unavailabilities
    asked = SeedRequest(total, fewest, qualifications or 0)
    records = {name: kind.share(asked) if kind.share else 0 for name, kind in _KINDS.items()}
    left = max(0, total - sum(records.values()))
    records |= {name: left for name, kind in _KINDS.items() if kind.share is None}
    # An achievements listing is one request each: few qualifications keep a reading of them affordable.
    few = qualifications or max(fewest, min(_MOST_QUALIFICATIONS, total // 40))
    return RecordMix(min(records[_VARIANTS], few), records)


def shared(count: RecordMix) -> str:
    """The number of records of each resource, in words."""
    shown = sorted(_BY_WEIGHT, key=lambda name: RESOURCES[name].of_qualification)
    return ", ".join(f"{count.records[name]} {name}" for name in shown)


def seed(history: History, rng: Random, *, records: int, at: datetime, qualifications: int | None = None) -> None:
    """Put ``records`` records of the years before ``at`` into the history."""
    count = shares(records, qualifications)
    for resource, record in _made(rng, count, at):
        history.put(resource, record, at)


def _made(rng: Random, count: RecordMix, at: datetime) -> Iterator[tuple[str, Record]]:
    past = _Past(rng, count, at)
    for resource, number in count.records.items():
        for _ in range(number):
            record = _KINDS[resource].make(past)
            past.keep(resource, record)
            yield resource, record


class _Past:
    """The records that were made so far for a new history."""

    def __init__(self, rng: Random, count: RecordMix, at: datetime) -> None:
        self.rng = rng
        self._at = at
        self._qualifications = _in_turn(rng, count.qualifications)
        self._variants: list[tuple[str, str]] = []
        self._absentees = _employments(rng, count.records[_UNAVAILABILITIES])
        self._employments: list[str] = []

    def keep(self, resource: str, record: Record) -> None:
        """Remember what later records may refer to."""
        if resource == _VARIANTS:
            self._variants.append((record["qualificationID"], record["id"]))
        elif resource == _UNAVAILABILITIES:
            self._employments.append(record["employmentID"])

    def moment(self) -> datetime:
        seconds = self.rng.randrange(_YEARS_OF_PAST * 365 * 86_400)
        return self._at - timedelta(seconds=seconds, milliseconds=self.rng.randrange(1000))

    def qualification(self) -> str:
        return next(self._qualifications)

    def variant(self) -> tuple[str, str]:
        return self.rng.choice(self._variants)

    def employment(self) -> str:
        return self.rng.choice(self._employments)

    def absentee(self) -> str:
        return next(self._absentees)


def _in_turn(rng: Random, qualifications: int) -> Iterator[str]:
    """The qualifications, one after the other, again and again."""
    yield from cycle([new_id(rng) for _ in range(qualifications)])


def _employments(rng: Random, unavailabilities: int) -> Iterator[str]:
    """The employments of unavailabilities: each for several in a row."""
    left = unavailabilities
    while left > 0:
        employment = new_id(rng)
        several = min(left, rng.randint(1, 6))
        left -= several
        for _ in range(several):
            yield employment


_WHITESPACE = b" \t\r\n"


def completed(body: bytes, *, present: Callable[[str], bytes | None], rng: Random, at: datetime) -> bytes:
    """The record that a posted body describes.

    Args:
        body: what was posted.
        present: the record that an id names now, if any; a replaced record keeps its ``createdAt``.
        rng: makes the id if there is none.
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
