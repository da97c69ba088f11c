"""Profiles of what a listing holds: records left out, in part, in other versions, in other spellings."""

from __future__ import annotations

import json
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec
from msgspec import UNSET, Raw

from poller.sandbox.answer import Answer, Ask, Respond, refusal
from poller.sandbox.layers import (
    Envelope,
    Layer,
    changed,
    encoded,
    id_of,
    is_page,
    members,
    on_pages,
    opened,
    page_of,
    parameter,
)
from poller.sandbox.profiles.profile import Kind, Profile, Scene, layering, of_asks, of_pages

if TYPE_CHECKING:
    from poller.sandbox.model import History

_FORGOTTEN_SHARE: Final = 10
_ALWAYS: Final = frozenset({"id", "lastModifiedAt"})


def _earlier(history: History, resource: str, records: list[Raw]) -> dict[str, bytes]:
    """The version before the present one of these records, by id; of those that have one."""
    present: dict[str, bytes | None] = dict.fromkeys(map(id_of, records))
    before: dict[str, bytes] = {}
    for version in history.since(0):
        id_ = version.id.lower()
        if version.resource != resource or id_ not in present or version.record is None:
            continue
        older, present[id_] = present[id_], version.record
        if older is not None:
            before[id_] = older
    return before


def _newer_before_older(history: History, ask: Ask, page: Envelope) -> Envelope:
    before = _earlier(history, ask.resource, page.results)
    return changed(page, results=[*page.results, *map(Raw, before.values())])


def _partial(history: History, ask: Ask, page: Envelope) -> Envelope:
    if parameter(ask, "sinceDeltaToken") is None:
        return page
    return changed(page, results=[_part(history, ask.resource, record) for record in page.results])


def _part(history: History, resource: str, record: Raw) -> Raw:
    """Whichever version a reader knows, what differs from it is in this."""
    own, id_ = members(record), id_of(record)
    versions = (past for past in history.since(0) if past.resource == resource and past.id.lower() == id_)
    known = [members(past.record) for past in versions if past.record is not None and past.record != bytes(record)]
    if not known:
        return record
    return encoded({n: v for n, v in own.items() if n in _ALWAYS or any(past.get(n) != v for past in known)})


def _respelling(_scene: Scene) -> Layer:
    answers = count()

    def edit(_history: History, _ask: Ask, page: Envelope) -> Envelope:
        if next(answers) % 2 == 0:
            return page
        return changed(page, results=[_otherwise(record) for record in page.results])

    return on_pages(edit)


def _otherwise(record: bytes) -> Raw:
    value = msgspec.json.decode(record, type=dict[str, Any])
    fractions = {name: float(item) if type(item) is int else item for name, item in reversed(value.items())}
    return Raw(json.dumps(fractions, indent=1, ensure_ascii=True).encode())


def _forgetful(_ask: Ask, page: Envelope) -> Envelope:
    kept = [record for record in page.results if crc32(id_of(record).encode()) % _FORGOTTEN_SHARE]
    return changed(page, results=kept)


def _two_backends(_scene: Scene) -> Layer:
    def layer(respond: Respond) -> Respond:
        requests = count(1)

        def call(history: History, ask: Ask) -> Answer:
            said, behind = respond(history, ask), next(requests) % 2 == 0
            if not behind or said.status != HTTPStatus.OK:
                return said
            if ask.id is not None:
                before = _earlier(history, ask.resource, [Raw(said.body)])
                return msgspec.structs.replace(said, body=before.get(ask.id.lower(), said.body))
            page = opened(said)
            before = _earlier(history, ask.resource, page.results)
            return page_of(changed(page, results=[Raw(before.get(id_of(one), one)) for one in page.results]))

        return call

    return layer


def _same_delta(ask: Ask, page: Envelope) -> Envelope:
    since = parameter(ask, "sinceDeltaToken")
    return page if since is None else changed(page, delta_token=since)


def _parent_gone(ask: Ask) -> Ask | Answer:
    return ask if ask.qualification is None else refusal(404, "notFound", "no such qualification")


def _alternating_case(_scene: Scene) -> Layer:
    def layer(respond: Respond) -> Respond:
        answers = count()

        def call(history: History, ask: Ask) -> Answer:
            said, upper = respond(history, ask), next(answers) % 2 == 0
            if not is_page(ask, said):
                return said
            page = opened(said)
            return page_of(changed(page, results=[_spelled(record, upper=upper) for record in page.results]))

        return call

    return layer


def _spelled(record: bytes, *, upper: bool) -> Raw:
    id_ = id_of(record)
    return encoded({**members(record), "id": id_.upper() if upper else id_})


CONTENT_PROFILES: Final = (
    layering(
        "partial-deltas",
        "records of a delta hold id, lastModifiedAt and the members that differ from any version before",
        on_pages(_partial),
    ),
    of_pages(
        "same-delta", "a delta gives back the delta token that it was asked with: the same delta again", _same_delta
    ),
    layering(
        "newer-before-older",
        "after a page's records come the versions before theirs, of those that have one",
        on_pages(_newer_before_older),
    ),
    of_pages(
        "repeated-record",
        "a page's first record comes again at the page's end",
        lambda _ask, page: changed(page, results=[*page.results, *page.results[:1]]),
    ),
    of_pages(
        "forgets-records", "listings leave out about each tenth record; GET by id still knows it", _forgetful, Kind.LACK
    ),
    Profile(
        "two-backends",
        "every other answer has records that were changed as they were before their last change",
        _two_backends,
        Kind.STALE,
    ),
    of_pages(
        "empty-listings",
        "every listing is empty, with a delta token",
        lambda _ask, page: changed(page, results=[], page_token=UNSET),
        Kind.LACK,
    ),
    Profile(
        "respelled",
        r"records in every other page have other white space, order of keys and \u escapes, and 1.0 for 1",
        _respelling,
    ),
    Profile("alternating-case", "ids in upper case in every other page, in lower case in the rest", _alternating_case),
    of_asks("parent-gone", "404 for the achievements of every qualification", _parent_gone, Kind.LACK),
)
