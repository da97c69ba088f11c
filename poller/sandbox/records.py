"""Records made up: what a plausible one of each resource looks like.

Law: all chance comes from the ``rng`` passed in, all time from ``at``; the same two give the same record.

It does not know: the history. Which employment, qualification or variant a record belongs to is told to it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from poller.sandbox import words

if TYPE_CHECKING:
    from random import Random

Record = dict[str, Any]


def new_id(rng: Random) -> str:
    """A UUID of version 4."""
    return str(UUID(int=rng.getrandbits(128), version=4))


def instant(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, as the API writes its instants."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def date_near(rng: Random, at: datetime, *, days: tuple[int, int]) -> str:
    """A calendar date between so many days from ``at``."""
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
    filename, content_type = rng.choice(words.DOCUMENTS)
    return {"contentType": content_type, "filename": filename}


def contract_type(rng: Random, at: datetime) -> Record:
    """A contract type."""
    code, name = rng.choice(words.CONTRACTS)
    return {"id": new_id(rng), "code": code, "name": name, **_external(rng, "CT"), **_stamps(at)}


def evidence_variant(rng: Random, at: datetime, *, qualification: str) -> Record:
    """A way to prove a qualification."""
    code, name = rng.choice(words.QUALIFICATIONS)
    return {
        "id": new_id(rng),
        "qualificationID": qualification,
        "code": f"{code}-{rng.randint(1, 99):02}",
        "name": f"{name} ({rng.choice(words.EVIDENCE)})",
        **_external(rng, "EV"),
        "interval": validity(rng, at),
        **_stamps(at),
    }


def unavailability(rng: Random, at: datetime, *, employment: str) -> Record:
    """A time in which an employment is not available."""
    return {
        "id": new_id(rng),
        "employmentID": employment,
        "reason": rng.choice(words.REASONS),
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
        "remark": rng.choice(words.REMARKS),
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
