"""Several versions of one record in one page: what paging shows while records change.

Law: of each record that can be used one version is left, so that reading the page again finds nothing new. That is the
version modified last where they say when, else the one that came last. Of records that come in part all versions count:
each is laid over those before it, in the same order.

A version that cannot be used is not chosen, and displaces none that can: it becomes :class:`Rejected`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from functools import reduce

from poller.changes.canonical import parse_received
from poller.changes.merging import merged
from poller.changes.records import Record, Rejected


def latest_versions(records: Sequence[Record | Rejected], *, partial: bool = False) -> Sequence[Record | Rejected]:
    """One version of each record of a page.

    Args:
        records: in the order received.
        partial: whether they may carry only some of their keys.
    """
    keys = [record.key for record in records if isinstance(record, Record)]
    if len(set(keys)) == len(keys):
        return records
    times = Counter(keys)
    versions: dict[str, list[Record]] = {}
    rejected: list[Record | Rejected] = []
    for record in records:
        checked = _checked(record) if isinstance(record, Record) and times[record.key] > 1 else record
        if isinstance(checked, Record):
            versions.setdefault(checked.key, []).append(checked)
        else:
            rejected.append(checked)
    return [*(_settled(several, partial=partial) for several in versions.values()), *rejected]


def _checked(record: Record) -> Record | Rejected:
    try:
        parse_received(record.raw)
    except ValueError as error:
        return Rejected(record.raw, str(error))
    return record


def _settled(versions: list[Record], *, partial: bool) -> Record:
    if len(versions) == 1:
        return versions[0]
    ordered = _in_order(versions)
    return reduce(lambda known, part: merged(part, known.raw), ordered) if partial else ordered[-1]


def _in_order(versions: list[Record]) -> list[Record]:
    """As they came, but those that say when they were modified in that order, in each other's places."""
    dated = iter(
        sorted((datetime.fromisoformat(one.modified), place) for place, one in enumerate(versions) if one.modified)
    )
    return [versions[next(dated)[1]] if one.modified else one for one in versions]
