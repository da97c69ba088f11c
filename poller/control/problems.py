"""Problems of feeds and subscriptions, each a sentence with its remedy.

**Invariants**

- A sentence may repeat what a source, a sink or an operator said. Escape it where it is shown.
- What needs no action is no problem, however unusual it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from poller.config.event_choice import (
    DROPPED_ID,
    NOT_BASELINE,
    NOTHING_BUT_BASELINES,
    dropped_ids,
    is_possible,
    outer_pointers,
    unknown_attribute,
    unknown_attributes,
    unknown_cause,
    within_record,
)
from poller.config.event_types import required_values, unknown_source, unknown_type, unmatched_types
from poller.config.settings import Settings, subscription_relations
from poller.config.subscriptions import SubscriptionSettings
from poller.config.types import did_you_mean
from poller.config.validation import decode_subscription
from poller.control.status import FeedStatus, SubscriptionStatus
from poller.errors import ConfigurationError
from poller.store.dead_letters import MOST_WAITING
from poller.store.keys import group_of
from poller.store.subscriptions import Subscriptions
from poller.text import ago

_GROUP: Final = group_of("")
_SHOWN_FOR: Final = 7 * 86400  # seconds that a loss is reported
_PAUSED_BY: Final = {"operator": "an operator", "sink": "its sink", "failures": "its failures", "removed": "the file"}
_RETURN: Final = "list it in the file again, or delete it with poller subscriptions remove {id}"


NO_QUALIFICATION: Final = (
    "no qualification is known so far, so nothing is listed: another feed of the source has to name one, and if that "
    "feed sets fields, qualificationID must be among them; or list them under qualifications"
)


def has_no_listing(mode: str | None, pages: int) -> bool:
    """Whether a round that was completed had nothing to list: any other first reading has a page."""
    return mode == "baseline" and not pages


def feed_problems(one: FeedStatus) -> Iterator[str]:
    """Each problem of a feed."""
    if one.state == "paused":
        yield paused_text(one)
    if one.held_reason is not None:
        yield held_text(one)
    if one.error is not None and one.error != one.held_reason:
        remedy = way_out(one.error)
        yield one.error + (f" ({remedy})" if remedy else "")
    if one.state == "ok" and one.round is not None and has_no_listing(one.mode, one.round.pages):
        yield NO_QUALIFICATION
    if one.unidentified:
        many = f"{one.unidentified} records" if one.unidentified > 1 else "a record"
        yield (
            f"the last full reading held {many} whose id cannot be read, so no record was removed: one of them may be "
            f"any record that was absent; see poller dead-letters list {one.feed}, and have the source corrected"
        )
    yield from filter(None, (progress_text(one), confirmation_text(one)))
    if one.held_versions:
        yield (
            f"{one.held_versions} versions older than the known ones are held back until two full readings "
            'a minute apart show them (versions = "newest")'
        )
    if one.held_by is not None:
        yield holding_text(one.held_by)
    if one.lost is not None and one.lost_age_seconds is not None and one.lost_age_seconds < _SHOWN_FOR:
        yield f"lost {ago(one.lost_age_seconds)} ago: {one.lost}; {loss_remedy(one)}"


def held_text(one: FeedStatus) -> str:
    """Why a feed is held, and since when."""
    since = "" if one.held_age_seconds is None else f" for {ago(one.held_age_seconds)}"
    return f"held{since}: {one.held_reason}"


def paused_text(one: FeedStatus) -> str:
    """Who has paused a feed, since when and why, with what to do."""
    reason = f": {one.paused_reason}" if one.paused_reason else ""
    return f"paused by {one.paused_by or '?'} for {ago(one.paused_age_seconds or 0)}{reason}; poller resume {one.feed}"


def holding_text(group: str) -> str:
    """Who needs events that are older than ``retention.age``, and what to do."""
    id_ = group.removeprefix(_GROUP)
    if id_ != group:
        remedy = f"see poller subscriptions show {id_}; resume, repair or remove it"
    else:
        remedy = "let it read and acknowledge them, or delete it with XGROUP DESTROY"
    return f"{group} needs events that are older than retention.age: {remedy}"


def loss_remedy(one: FeedStatus) -> str:
    """What to do after the store has lost a part of a feed."""
    replay = f"poller replay SUBSCRIPTION {one.feed} --from"
    remedy = next((text for words, text in _LOSSES.items() if words in (one.lost or "")), _RESET)
    return remedy.format(feed=one.feed, replay=replay, at=one.lost_at)


def progress_text(one: FeedStatus) -> str | None:
    """The progress of a round that takes long."""
    if one.progress is None:
        return None
    counts = f"{one.progress.pages} pages, {one.progress.records} records"
    return f"a round has run for {ago(one.progress.seconds)} ({one.progress.mode}): {counts} so far"


def confirmation_text(one: FeedStatus) -> str | None:
    """Whether records may have slipped over the edge of a page; of a held feed, the hold says what is wrong."""
    if one.held_reason is not None:
        return None
    brought = f"{one.confirmations} further readings brought {one.late} records late"
    if one.confirming:
        so_far = f"; {brought}" if one.confirmations else ""
        return (
            "being confirmed: it is read in full again, for pages may have moved while they were read, or held "
            f"records that could not be distinguished{so_far}"
        )
    if one.confirmations and not one.late:
        return (
            f"not confirmed: {one.confirmations} further readings could not tell whether records slipped between "
            "pages, or held records that could not be distinguished; if they took longer than max_round, make it "
            "longer"
        )
    if one.confirmations:
        return f"not confirmed: {brought}, for pages move while they are read; a larger limit makes fewer of them"
    return None


def subscription_problems(one: SubscriptionStatus, now: datetime) -> Iterator[str]:
    """Each reason why a subscription does not deliver."""
    if (text := not_delivering_text(one, now)) is not None:
        yield text
    elif one.state == "new":
        yield "no daemon has started with it yet"
    if one.lost and one.dead_letters:
        yield (
            f"{one.lost} events were deleted before they were delivered, because a stream grew beyond "
            f"retention.max_bytes; poller dead-letters list --subscription {one.subscription} names them. To send the "
            "present state of all records instead: poller resync FEED --anew --wait, then "
            f"poller replay {one.subscription} FEED --from 10m (or --from earliest, if the stream begins later). Then "
            "drop the dead letter"
        )
    elif one.dead_letters:
        many = f"{one.dead_letters} dead letters are kept" if one.dead_letters > 1 else "a dead letter is kept"
        yield f"{many}: see poller dead-letters list --subscription {one.subscription}, then redeliver or drop them"
    if (unlisted := unlisted_text(one)) is not None:
        yield unlisted
    full = [feed.feed for feed in one.feeds if feed.parked >= MOST_WAITING and feed.feed not in one.unlisted]
    if full and one.state != "paused":
        yield (
            f"{MOST_WAITING} events or more of {', '.join(full)} wait for their next attempt, and until some are "
            "delivered or given up, nothing more is read there; if one record fails, the log names it, and a shorter "
            "retry.schedule makes dead letters of its events sooner"
        )
    if one.until is not None:
        yield f"paused by sink until {one.until} (Retry-After)"


def not_delivering_text(one: SubscriptionStatus, now: datetime) -> str | None:
    """Why a subscription is paused or failing, with what to do; None: it is neither."""
    since = "" if one.since is None else f" for {ago((now - datetime.fromisoformat(one.since)).total_seconds())}"
    if one.state == "paused":
        by = one.paused_by or "operator"
        remedy = _RETURN if by == "removed" else "poller subscriptions resume {id}"
        why = one.reason or "no reason given"
        return f"paused by {_PAUSED_BY[by]}{since}: {why}; {remedy.format(id=one.subscription)}"
    if one.state != "failing":
        return None
    if one.handshake not in {None, "granted"}:
        return f"its sink has not granted events{since} ({one.handshake}): {one.error or ''}"
    error = f"; last error: {one.error}" if one.error else ""
    return f"failing{since}{error}; poller subscriptions test {one.subscription} sends one event and shows the answer"


def unlisted_text(one: SubscriptionStatus) -> str | None:
    """Whether events wait at feeds that a subscription lists no more."""
    if not one.unlisted:
        return None
    feeds = ", ".join(one.unlisted)
    return (
        f"events wait at {feeds}, which its feeds do not list any more: list the feed again to have them delivered; "
        "they are dropped when it was not listed for retention.age"
    )


def unmatched_choices(settings: Settings, subscription: SubscriptionSettings) -> Iterator[str]:
    """Each choice of a subscription that nothing meets in this configuration."""
    there = set(settings.feed_ids)
    for name in subscription.feeds or ():
        if name not in there:
            meant = did_you_mean(name, sorted(there))
            yield f'feeds has "{name}", which is no feed of this configuration{meant}'
    choices = subscription_relations(subscription)
    types, sources = settings.types_of(subscription.feeds), settings.event_sources_of(subscription.feeds)
    unmatched = [*_unmatched_types(subscription, types), *_unmatched_filters(choices.get("filters"), types, sources)]
    yield from unmatched
    if types and not unmatched:
        yield from _impossible(settings, subscription, choices)
    ids = settings.id_fields
    for _, pointer in dropped_ids(choices.get("fields"), {ids[one] for one in subscription.feeds or ids if one in ids}):
        yield f'fields drops "{pointer}": {DROPPED_ID}'
    for place, pointer in outer_pointers(choices, settings.named_fields(subscription.feeds)):
        yield f'{place[0]}.{place[1]} has "{pointer}": {within_record(pointer)}'


def _impossible(settings: Settings, subscription: SubscriptionSettings, choices: Mapping[str, Any]) -> Iterator[str]:
    published = list(settings.events_of(subscription.feeds))
    if not is_possible(choices, published):
        yield "types, filters and when cannot be met together by any event of its feeds"
    elif subscription.start == "now" and not is_possible(choices, published, among=NOT_BASELINE):
        yield f"types, filters and when choose first readings alone: {NOTHING_BUT_BASELINES}"


def _unmatched_types(subscription: SubscriptionSettings, types: Collection[str]) -> Iterator[str]:
    for _, name, expected in unmatched_types(subscription.types or (), types):
        yield f'types has "{name}", which no feed of it publishes: {expected}'


def _unmatched_filters(filters: Any, types: Collection[str], sources: Collection[str]) -> Iterator[str]:
    for _, name in required_values(filters, "type") if types else ():
        if known := unknown_type(name, types):
            yield f'filters have the type "{name}", which no feed of it publishes: {known}'
    for _, name in required_values(filters, "source") if sources else ():
        if known := unknown_source(name, sources):
            yield f'filters have the source "{name}", which no feed of it has: {known}'
    for _, name in required_values(filters, "cause"):
        if known := unknown_cause(name):
            yield f'filters have the cause "{name}", which no event has: {known}'
    for _, name in unknown_attributes(filters):
        yield f'filters have the attribute "{name}", which no event has: {unknown_attribute(name)}'


def unmatched_stored(settings: Settings, kept: Subscriptions) -> dict[str, list[str]]:
    """The :func:`unmatched_choices` of each registered subscription that has some; unreadable ones are left out."""
    found: dict[str, list[str]] = {}
    for name, one in kept.registered.items():
        with suppress(ConfigurationError):
            texts = list(unmatched_choices(settings, decode_subscription(bytes(one.settings))))
            if texts:
                found[name] = texts
    return found


# Remedies for losses, found by words in the texts of :func:`poller.store.recovery.loss_of`.

_STREAM_LOST: Final = (
    "what was not read yet is gone. For subscriptions that need it: poller resync {feed} --anew --wait publishes all "
    "records again, then {replay} 10m delivers them"
)
_ROLLED_BACK: Final = (
    "what is missing is read and published again, with the same ids, but for a change that the API has taken back "
    "since: if receivers may hold one, poller resync {feed} --anew publishes all records again"
)
_REPLACED: Final = (
    "check redis.url and redis.prefix. If they are right, nothing is to be done: what differs is published as a "
    "baseline, and {replay} {at} delivers it to a subscription"
)
_RESET: Final = (
    "the feed is read again from the beginning. Events that were not delivered yet may be gone: {replay} {at} (or "
    "--from earliest, if the stream begins later) delivers all its records to a subscription"
)
_LOSSES: Final = {
    "events that its stream held": _STREAM_LOST,
    "the store went back": _ROLLED_BACK,
    "another installation's data": _REPLACED,
}

# Remedies for errors of sources and the store, found by words in this program's messages.

_NO_SERVER: Final = r"(?i)connection refused|connect call failed"

_SOURCE: Final[tuple[tuple[str, str], ...]] = (
    (r"the API answered 401\b", "check that the credential in auth is right and has not expired"),
    (r"the API answered 403\b", "the credential may not read this: ask the API's owner for the permission"),
    (r"the API answered 404\b", "check base_url and path, and that the API has this resource"),
    (r"the API answered 30[12378]\b", "redirects are not followed: set base_url to the redirect's target"),
    (
        r"the API answered 407\b",
        "the proxy requires a credential, which proxy cannot hold: let it allow this machine by its address",
    ),
    (r"the API answered 4(?:00|13|14|22)\b", "the API rejects the request: check limit, fields and fields_style"),
    (r"the API answered 429\b", "too many requests: set rate, or a longer interval"),
    (r"the API answered 5\d\d\b", "the API itself fails: nothing to do here; the next round tries again"),
    (
        r"of markup|an HTML page|<html|<!doctype",
        "this is a page for people, not the API: check base_url, and whether a login page or a proxy is in between",
    ),
    (
        r"expected the key results",
        'no {"results": […], "pageToken": "…", "deltaToken": "…"}: check path; lists may be wrapped differently here',
    ),
    (r"\$\.(?:page|delta)Token", "a token has to be a text or null: the API's owner has to mend that"),
    (
        r"page \d+: the answer is not",
        "the pages before it were right: the API's owner has to mend this one, and a smaller limit shows where",
    ),
    (r"not JSON|not a list envelope", "this is no list of records: check base_url and path"),
    (r"(?i)certificate|self.signed", "set ca_file to the authority's certificate, or correct the name in base_url"),
    (r"(?i)wrong version number|record layer", "the server does not use TLS: try http://, or another port"),
    (
        r"(?i)name or service|getaddrinfo|resolve|nodename|DNS",
        "check the host in base_url, and that this machine can resolve it",
    ),
    (
        r"(?i)server disconnected",
        "the server closes the connection: try https:// or another port; it may require a client certificate",
    ),
    (r"the answer is not HTTP\b", "no web server answers there: check scheme, host and port in base_url"),
    (
        r"the proxy answered 407\b",
        "the proxy requires a credential, which proxy cannot hold: let it allow this machine by its address",
    ),
    (_NO_SERVER, "no server listens there: check host and port in base_url"),
    (r"(?i)no complete answer|timeout|timed out", "raise timeout, or check whether a firewall drops the packets"),
    (r"max_page_bytes", "set a smaller limit, or a larger max_page_bytes"),
)
_URL: Final = "redis.url, or REDIS_URL, which replaces it"
_STORE: Final[tuple[tuple[str, str], ...]] = (
    (_NO_SERVER, f"no server listens there: start Redis, or correct {_URL}"),
    (r"No such file or directory", f"no server has made this socket: start Redis, or correct {_URL}"),
    (r"not known|No address associated", f"check the name in {_URL}, and that this machine can resolve it"),
    (r"Authentication required|NOAUTH", "put the password into REDIS_URL: redis://USER:PASSWORD@HOST"),
    (r"invalid username-password|WRONGPASS", "correct user and password in REDIS_URL"),
)


def way_out(message: str, *, proxied: bool = False) -> str | None:
    """The remedy for the failure of a round or of a first page; None: unknown.

    Args:
        message: of the failure.
        proxied: whether the source is known to use a proxy.
    """
    if proxied and "cannot connect to" in message:
        return "check proxy, that it runs, and that it lets this machine through"
    return _remedy(message, _SOURCE)


def store_way_out(message: str) -> str | None:
    """The remedy for a store that cannot be used; ``message``: of the failure; None: unknown."""
    return _remedy(message, _STORE)


def _remedy(message: str, known: Sequence[tuple[str, str]]) -> str | None:
    return next((text for pattern, text in known if re.search(pattern, message)), None)
