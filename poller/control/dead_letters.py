"""Dead letters of both kinds: records that could not be used, undeliverable events.

**Invariants**

- After a redelivery the daemons are always informed, so that repeating an interrupted command completes it. During a
  long one they are informed again and again, for one that is killed does not do so at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec
from redis.asyncio import Redis

from poller.clock import moment_of, rfc3339
from poller.delivery.delivery_codec import Overrun, StoredDeadLetter, delivery_again, encode, letter_of
from poller.errors import PollerError
from poller.store import dead_letters
from poller.store import dead_letters as given_up
from poller.store.dead_letters import DeadLetterEntry, DeadLetterId, DeadLetterSummary, Listed, Moved, Opened, Owner
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys
from poller.store.registry import Registry
from poller.store.subscriptions import require_registered

TOLD_EVERY: Final = 100  # dead letters that become scheduled retries


class DeadEvent(msgspec.Struct, frozen=True):
    """A dead letter of an event.

    Attributes:
        listed: its summary.
        letter: its whole content.
    """

    listed: DeadLetterSummary
    letter: StoredDeadLetter


class RedeliveryResult(msgspec.Struct, frozen=True):
    """The result of a redelivery.

    Attributes:
        moved: the number of dead letters that became scheduled retries.
        absent: entries without a dead letter.
        full: dead letters that stay, because too many deliveries are scheduled already.
        empty: dead letters without an event, because the stream had lost it.
        overruns: dead letters that stand for many trimmed events, and hold none.
        unlisted: dead letters that stay, because their subscription does not list their feed any more.
    """

    moved: int
    absent: tuple[DeadLetterId, ...] = ()
    full: tuple[DeadLetterId, ...] = ()
    empty: tuple[DeadLetterId, ...] = ()
    overruns: tuple[DeadLetterId, ...] = ()
    unlisted: tuple[DeadLetterId, ...] = ()


class DeadLetters:
    """The dead letters of one store. Each method may raise StoreError."""

    def __init__(self, client: Redis, prefix: str) -> None:
        """Read and change dead letters through this client."""
        self._client = client
        self._prefix = prefix
        self._registry = Registry(client, SubscriptionKeys.of(prefix))

    async def newest(self, feeds: Sequence[str], *, most: int, subscription: str | None = None) -> Listed:
        """The newest dead letters of these feeds, at most ``most``; for a subscription: only its events.

        Raises:
            SubscriptionUnknown: no subscription has this id.
        """
        kept = await self._registry.all()
        if subscription is not None:
            require_registered(kept, subscription)
        pairs = given_up.pairs_of(self._prefix, feeds, [subscription] if subscription else sorted(kept.registered))
        marks, total = await given_up.newest_events(self._client, pairs, most=most)
        events = await self._listed(marks)
        records = Listed((), 0)
        if subscription is None:
            keys = {feed: FeedKeys.of(self._prefix, feed) for feed in feeds}
            records = await dead_letters.newest(self._client, keys, most=most)
        together = sorted([*records.letters, *events], key=lambda letter: letter.at)
        shown = together[-most:]
        hidden = records.hidden + total - len(events) + len(together) - len(shown)
        return Listed(tuple(shown), max(hidden, 0))

    async def opened(self, wanted: DeadLetterId) -> Opened | DeadEvent | None:
        """A dead letter with its content; None: there is none."""
        if wanted.subscription is None:
            return await dead_letters.opened(self._client, wanted.feed, self._feed(wanted.feed), wanted.entry)
        raw = await self._read(wanted)
        if raw is None:
            return None
        letter = _letter(wanted, raw)
        return DeadEvent(_event(Owner(wanted.feed, wanted.subscription), wanted.entry, letter.at, letter), letter)

    async def drop(self, wanted: DeadLetterId) -> bool:
        """Delete a dead letter. False: there is none."""
        if wanted.subscription is None:
            return await dead_letters.drop(self._client, self._feed(wanted.feed), wanted.entry)
        return bool(await given_up.drop_events(self._client, self._pair(wanted), [wanted.entry]))

    async def drop_records(self, feed: str) -> int:
        """Delete all quarantined records of a feed. Returns their number."""
        return await dead_letters.drop_all(self._client, self._feed(feed))

    async def drop_events(self, wanted: Sequence[DeadLetterId]) -> int:
        """Delete these dead letters of events. Returns their number."""
        count = 0
        for owner in dict.fromkeys((one.feed, one.subscription or "") for one in wanted):
            entries = [one.entry for one in wanted if (one.feed, one.subscription) == owner]
            count += await given_up.drop_events(self._client, ConsumerKeys.of(self._prefix, *owner), entries)
        return count

    async def all_of(self, subscription: str, feeds: Iterable[str]) -> list[DeadLetterId]:
        """All dead letters of a subscription, by feed, in stream order.

        Raises:
            SubscriptionUnknown: no subscription has this id.
        """
        require_registered(await self._registry.all(), subscription)
        pairs = given_up.pairs_of(self._prefix, feeds, [subscription])
        return [
            DeadLetterId(owner.feed, entry, subscription)
            for owner, keys in pairs.items()
            for entry in await given_up.entries(self._client, keys)
        ]

    async def redeliver(self, wanted: Sequence[DeadLetterId], configured: Collection[str] = ()) -> RedeliveryResult:
        """Turn dead letters into scheduled retries, which begin with the first attempt.

        Args:
            wanted: the dead letters.
            configured: the feeds of the configuration: their events go only to the subscriptions that list them.
        """
        kept = (await self._registry.all()).registered
        left = {(feed, name) for name, one in kept.items() for feed in configured if not one.outline.wants(feed)}
        unlisted = [one for one in wanted if (one.feed, one.subscription) in left]
        listed = [one for one in wanted if (one.feed, one.subscription) not in left]
        became: dict[DeadLetterId, Moved | type[Overrun] | None] = {}
        try:
            for number, one in enumerate(listed):
                if number and number % TOLD_EVERY == 0:
                    await self._registry.tell_parked()
                became[one] = await self._redeliver(one)
        finally:
            await self._registry.tell_parked()
        outcomes = (Moved.ABSENT, Moved.FULL, None, Overrun)
        absent, full, empty, overruns = (
            tuple(one for one, moved in became.items() if moved is what) for what in outcomes
        )
        moved = sum(moved is Moved.MOVED for moved in became.values())
        return RedeliveryResult(moved, absent, full, empty, overruns, tuple(unlisted))

    async def _redeliver(self, wanted: DeadLetterId) -> Moved | type[Overrun] | None:
        raw = await self._read(wanted)
        if raw is None:
            return Moved.ABSENT
        letter = _letter(wanted, raw)
        if letter.overrun:
            return Overrun
        try:
            delivery = encode(delivery_again(letter))
        except ValueError:
            return None
        return await given_up.redeliver(self._client, self._pair(wanted), wanted.entry, letter=raw, delivery=delivery)

    async def _listed(self, marks: Sequence[DeadLetterEntry]) -> list[DeadLetterSummary]:
        found: list[DeadLetterSummary] = []
        for mark in marks:  # one by one, because a dead letter holds a whole event
            wanted = DeadLetterId(mark.owner.feed, mark.entry, mark.owner.subscription)
            raw = await self._read(wanted)
            if raw is not None:
                at = rfc3339(moment_of(mark.at))
                found.append(_event(mark.owner, mark.entry, at, _letter(wanted, raw)))
        return found

    async def _read(self, wanted: DeadLetterId) -> bytes | None:
        (raw,) = await given_up.letters(self._client, [(self._pair(wanted), wanted.entry)])
        return raw

    def _feed(self, feed: str) -> FeedKeys:
        return FeedKeys.of(self._prefix, feed)

    def _pair(self, wanted: DeadLetterId) -> ConsumerKeys:
        return ConsumerKeys.of(self._prefix, wanted.feed, wanted.subscription or "")


def _letter(wanted: DeadLetterId, raw: bytes) -> StoredDeadLetter:
    try:
        return letter_of(raw)
    except ValueError:  # also of bytes that are no UTF-8
        raise PollerError(f"{wanted.text} cannot be read: another version of the program wrote it") from None


def _event(owner: Owner, entry: str, at: str, letter: StoredDeadLetter) -> DeadLetterSummary:
    name = DeadLetterId(owner.feed, entry, owner.subscription).text
    if letter.overrun:
        reason = f"{_counted(letter.overrun)}: {letter.reason}"
        return DeadLetterSummary(name, "overrun", owner.feed, at, reason, 0, owner.subscription)
    of = _attributes(bytes(letter.event))
    return DeadLetterSummary(
        name, "event", owner.feed, at, letter.reason, len(letter.event), owner.subscription, of.type, of.subject
    )


class _Attributes(msgspec.Struct, frozen=True):
    type: str | None = None
    subject: str | None = None


def _attributes(event: bytes) -> _Attributes:
    try:
        return msgspec.json.decode(event, type=_Attributes)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Attributes()


def _counted(overrun: Overrun) -> str:
    """The number and the sequence numbers of trimmed events, in words."""
    count = f"{overrun.events} event{'' if overrun.events == 1 else 's'}"
    if overrun.sequence is None or overrun.last_sequence is None:
        return count
    return f"{count}, sequence {overrun.sequence} to {overrun.last_sequence}"
