"""The judge of every scene: compares the streams with the source's own history.

Law: it trusts only the source's log. It imports nothing of the program, reads no state of it, and computes the
comparison itself. For each feed it looks for:

* *lost*: a record whose last published version is older than the source's version at the requested moment.
* *doubled*: a repeated event id, or an event with the same content as the record's previous event.
* *misclassified*: created for a known record, modified for an unknown one, a revision that is not the next, a wrong
  ``previous`` or ``changed``, content that the source never had, versions out of order.
* *gaps*: sequence numbers that do not rise by one from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.harness.history import Past, pasts
from tests.harness.json_values import differing, equal, read

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

_SHOWN = 5
_UNKNOWN = Past()
_LISTED = "achievements"
"""The resource that is listed by the qualifications that other resources name."""


@dataclass(slots=True)
class Verdict:
    """What was found, one line each; the last four lists are empty where nothing is wrong.

    Attributes:
        events: how many there are.
        hidden: the ids of records that were never published, for nothing leads to them.
    """

    events: int = 0
    hidden: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    misclassified: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.misclassified or self.gaps)

    @property
    def sound(self) -> bool:
        """Whether everything published so far is right, even if more is still to come."""
        return not (self.doubled or self.misclassified or self.gaps)

    def __str__(self) -> str:
        found = {name: getattr(self, name) for name in ("lost", "doubled", "misclassified", "gaps")}
        counts = ", ".join(f"{name} {len(lines)}" for name, lines in found.items())
        return "\n".join(
            (f"{self.events} events: {counts}", *(line for lines in found.values() for line in lines[:_SHOWN]))
        )


@dataclass(slots=True)
class _Published:
    """The last event of a record. ``place``: of the earliest version of its past that it can show."""

    record: Any
    revision: int
    place: int


def judge(
    log: Iterable[Mapping[str, Any]],
    streams: Mapping[str, Sequence[bytes]],
    *,
    upto: int,
    begun_anew: Container[str] = (),
) -> Verdict:
    """Compare the streams with the source's log.

    Args:
        log: the lines of the source's log, from its first version to one after the streams were read.
        streams: for each resource its events in order, as in the field ``data``.
        upto: the version number up to which everything must be published.
        begun_anew: the resources whose data the store has lost. Their streams' first numbers are not 1.

    Achievements of a qualification that nothing published names cannot be found: the record that named it was removed
    before it was read, or the store has lost it.
    """
    verdict = Verdict()
    known = pasts(log)
    for resource in sorted(streams.keys() | known.keys()):
        records = known.get(resource, {})
        published = _Stream(resource, records, verdict, from_one=resource not in begun_anew)
        for entry in streams.get(resource, ()):
            published.take(read(entry))
        published.settle(upto, _nameless(records, streams, upto) if resource == _LISTED else ())
    return verdict


def _nameless(records: Mapping[str, Past], streams: Mapping[str, Sequence[bytes]], upto: int) -> set[str]:
    """Those of these achievements whose qualification no event of another resource names."""
    others = (read(entry)["data"] for resource, found in streams.items() if resource != _LISTED for entry in found)
    named = {content["record"].get("qualificationID") for content in others if content.get("record")}
    due = {key: past.versions[at].record for key, past in records.items() if (at := past.until(upto)) is not None}
    return {key for key, record in due.items() if record is not None and record.get("qualificationID") not in named}


class _Stream:
    """One feed's stream while it is being replayed."""

    def __init__(self, resource: str, records: Mapping[str, Past], verdict: Verdict, *, from_one: bool) -> None:
        self._resource = resource
        self._records = records
        self._verdict = verdict
        self._said: dict[str, _Published] = {}
        self._ids: set[str] = set()
        self._sequence = 0 if from_one else None

    def take(self, event: Mapping[str, Any]) -> None:
        """Check the next event."""
        self._verdict.events += 1
        self._sequence = int(event["sequence"]) if self._sequence is None else self._sequence + 1
        where = f"{self._resource} {event['subject']} event {event['sequence']}"
        if event["sequence"] != f"{self._sequence:020d}":
            self._verdict.gaps.append(f"{where}: sequence is not {self._sequence}")
            self._sequence = int(event["sequence"])
        if event["id"] in self._ids:
            self._verdict.doubled.append(f"{where}: its id was published before")
        self._ids.add(event["id"])
        key, content, kind = event["subject"].lower(), event["data"], event["type"].split(".")[-2]
        before, record = self._said.get(key), content.get("record")
        if before is not None and equal(before.record, record):
            self._verdict.doubled.append(f"{where}: says the same as the event before")
        self._verdict.misclassified += (f"{where}: {fault}" for fault in _misclassified(kind, content, before))
        self._said[key] = _Published(record, int(content["revision"]), self._place(key, where, record, before))

    def _place(self, key: str, where: str, record: Any, before: _Published | None) -> int:
        past, place = self._records.get(key, _UNKNOWN), before.place if before else 0
        found = past.after(place, record)
        if found is None:
            ever = past.after(0, record) is not None
            fault = "older than what was published before" if ever else "the source never had this"
            self._verdict.misclassified.append(f"{where}: {fault}")
        return place if found is None else found

    def settle(self, upto: int, besides: Container[str]) -> None:
        """Check at the end of the stream which records are missing, except those in ``besides``."""
        for key, past in self._records.items():
            due = past.until(upto)
            if due is None:
                continue
            said = self._said.get(key)
            if said is None and past.versions[due].record is not None:
                if key in besides:
                    self._verdict.hidden.append(key)
                else:
                    self._verdict.lost.append(f"{self._resource} {key}: never published")
            elif said is not None and past.after(due, said.record) is None:
                self._verdict.lost.append(f"{self._resource} {key}: version {past.versions[due].number} not published")


def _misclassified(kind: str, content: Mapping[str, Any], before: _Published | None) -> list[str]:
    """The contradictions between an event and the record's previous event."""
    known = before is not None and before.record is not None
    previous, record, faults = content.get("previous"), content.get("record"), []
    if kind not in ("created", "modified", "removed"):
        faults.append(f"a kind of event that there is not: {kind}")
    if (kind == "created") is known:
        faults.append(f"{kind}, though the record was {'known' if known else 'unknown'}")
    if content["revision"] != (before.revision if before else 0) + 1:
        faults.append(f"revision {content['revision']} after {before.revision if before else 0}")
    if (kind == "removed") is (record is not None):
        faults.append(f"{kind} {'with' if record is not None else 'without'} a record")
    if kind == "created" and (previous is not None or "changed" in content):
        faults.append("created with previous or changed")
    if known and before is not None and "omitted" not in content and not equal(previous, before.record):
        faults.append("previous is not what was published before")
    if kind == "modified" and before is not None and content.get("changed") != differing(before.record, record):
        faults.append("changed is not what differs")
    return faults
