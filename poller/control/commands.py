"""Commands to a feed (pause, resume, resync, release), and the polling process's reply.

**Invariants**

- A command is in the store before any process is informed of it, and holds whether or not a process replies: without a
  daemon it takes effect with the next one. The reply says which of the two it is.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from typing import Final, Literal

import msgspec
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control.feeds import keys_of
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import StoreError
from poller.store import commands as orders
from poller.store import commands as pauses
from poller.store.commands import Command, CommandQueue, CommandReply, FeedPause
from poller.store.keys import MemberKeys
from poller.store.members import members_now

PATIENCE: Final = timedelta(seconds=5)
"""How long a daemon is given to say that it has begun; it looks four times a second."""

_LOOK_SECONDS: Final = 0.05
_FIELDS: Final = {
    "release": orders.RoundRequest.RELEASE,
    "resync": orders.RoundRequest.RESYNC,
    "anew": orders.RoundRequest.ANEW,
}
_SENSELESS: Final = {
    "pause": "it was paused already",
    "resume": "it was not paused",
    "release": "nothing of it is held",
    "resync": "it was never read, and its first round reads it in full anyway",
    "anew": "nothing is known of it",
}


_NOBODY: Final = ("no daemon polls; it takes effect with the next one", "no daemon polls, and it holds all the same")


class Order(StrEnum):
    """What may be asked of a feed.

    ``pause``: no round of it begins any more, and one under way ends. ``resume``: it is polled again, at once.
    ``resync``: its next round reads it in full; ``anew``: and forgets before what is known of it. ``release``: removals
    that are held are let through.
    """

    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    ANEW = "anew"
    RELEASE = "release"


Outcome = Literal["done", "begun", "put off", "unanswered", "no daemon", "senseless"]


class Answer(msgspec.Struct, frozen=True):
    """What came of an order.

    Attributes:
        feed: ``SOURCE/NAME``.
        order: which one.
        outcome: ``done``: carried out; ``begun``: a daemon is at it; ``put off``: the feed is paused, and it is carried
            out when that is over; ``unanswered``: none has said so in time;
            ``no daemon``: none is there; ``senseless``: it would change nothing, and nothing was asked.
        text: the same in words, as the daemon or the store has it.
        member: the process that answered; None where none did.
        round: the round that carried it out, as ``poller once --json`` prints it; None where it has not ended.
        before: the pause that a feed was in when it was to be paused or resumed; None: it was in none.
    """

    feed: str
    order: Order
    outcome: Outcome
    text: str
    member: str | None = None
    round: dict[str, str | int | float | bool | None] | None = None
    before: FeedPause | None = None


async def asked(
    client: Redis,
    settings: Settings,
    feed_id: str,
    order: Order,
    *,
    clock: Clock,
    by: str,
    reason: str = "",
    patience: timedelta = PATIENCE,
    wait: bool = False,
) -> Answer:
    """Ask something of a feed and wait for the answer.

    Args:
        client: of the store.
        settings: the configuration.
        feed_id: ``SOURCE/NAME``, one of the configuration's.
        order: what is asked.
        clock: the store's.
        by: who asks, in words; status and events show it.
        reason: of a pause, in words.
        patience: how long a daemon is given to answer at all; nothing: it is not waited for.
        wait: whether to wait until it is carried out, however long that takes, once a daemon has begun.

    Raises:
        StoreError: the store is away. The order may have been left.
    """
    made_sense, before = await _left(client, settings, feed_id, order, FeedPause(by, reason, clock.now()))
    if not made_sense:
        return Answer(feed_id, order, "senseless", _SENSELESS[order], before=before)
    if order in (Order.PAUSE, Order.RESUME):
        await _announced(client, settings, feed_id, order, FeedPause(by, reason, clock.now()))
    there = await members_now(client, MemberKeys.of(settings.redis.prefix))
    if not any("poll" in roles for roles in there.values()):
        return Answer(feed_id, order, "no daemon", _NOBODY[order in (Order.PAUSE, Order.RESUME)], before=before)
    queue, wanted = (
        CommandQueue(client, settings.redis.prefix),
        Command(clock.random.randbytes(8).hex(), feed_id, order, clock.now()),
    )
    await queue.submit(wanted)
    said = await _said(queue, wanted, patience=patience, wait=wait, clock=clock)
    return msgspec.structs.replace(_judged(feed_id, order, said), before=before)


async def _said(
    queue: CommandQueue, order: Command, *, patience: timedelta, wait: bool, clock: Clock
) -> CommandReply | None:
    """What was said within the patience; with ``wait``, what is said last."""
    until = clock.monotonic() + patience.total_seconds()
    while True:
        said = await queue.last_reply(order)
        if said is not None and (said.done or not wait):
            return said
        if clock.monotonic() >= until and not (wait and said is not None):
            return said
        await clock.sleep(_LOOK_SECONDS)


def _judged(feed_id: str, order: Order, said: CommandReply | None) -> Answer:
    if said is None:
        return Answer(feed_id, order, "unanswered", "no daemon has answered yet; it takes effect with the next round")
    outcome: Outcome = "put off" if said.put_off else "done" if said.done else "begun"
    return Answer(feed_id, order, outcome, said.text, said.member, said.round)


async def _left(
    client: Redis, settings: Settings, feed_id: str, order: Order, pause: FeedPause
) -> tuple[bool, FeedPause | None]:
    """Write it beside the feed; whether that made sense, and the pause that the feed was in."""
    keys = keys_of(settings, feed_id)
    if order is Order.PAUSE:
        before = await pauses.pause(client, keys, pause)
        return before is None, before
    if order is Order.RESUME:
        before = await pauses.resume(client, keys)
        return before is not None, before
    return await orders.give(client, keys, _FIELDS[order]), None


async def _announced(client: Redis, settings: Settings, feed_id: str, order: Order, pause: FeedPause) -> None:
    kind = OperationType.FEED_PAUSED if order is Order.PAUSE else OperationType.FEED_RESUMED
    with suppress(StoreError):  # it holds all the same, and the status says so
        await announce(
            client, settings.redis.prefix, OperationalEvent(kind, feed_id, pause.at, pause.reason, {"by": pause.by})
        )
