"""Carrying out what operators ask of the feeds that are polled here, and answering them.

It looks four times a second at what waits for an answer, which is one small question to the store; so nothing has to
wake it, and whatever a process missed, or left behind when it died, the one that has the feed next finds.

Law: what is asked holds without this, for the round and the script that begins it go by the store. This makes it happen
now, and says so when it has. An order of a feed that is not polled here is another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final, Protocol

import structlog

from poller.clock import Clock
from poller.control.commands import Order
from poller.errors import StoreError
from poller.lifecycle import ended
from poller.source.feed import RoundResult
from poller.store.commands import KEPT, Command, CommandQueue, CommandReply

LOOK_SECONDS: Final = 0.25
_KNOWN: Final = frozenset(map(str, Order))  # others are a newer version's, and wait

_log = structlog.get_logger("poller.daemon")


class CommandInbox(Protocol):
    """A feed and its rounds; see :class:`poller.daemon.poll_role.FeedLease`."""

    name: str

    @property
    def has_lease(self) -> bool:
        """Whether it is polled here."""
        ...

    async def confirmed(self) -> bool:
        """Whether it is polled here beyond doubt: as :attr:`has_lease`, but asked of the store.

        Raises:
            StoreError: the store did not answer.
        """
        ...

    async def broken_off(self) -> bool:
        """End the round that is under way; whether there was one."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        ...

    def poll_soon(self) -> None:
        """Have a round begin after this moment, as soon as can be."""
        ...

    def round_ended(self) -> asyncio.Future[RoundResult]:
        """The next round that ends; cancelled where none does here."""
        ...


async def obey(
    queue: CommandQueue,
    lots: Iterable[CommandInbox],
    *,
    member: str,
    clock: Clock,
) -> None:
    """Carry out and answer until cancelled.

    Args:
        queue: what waits.
        lots: all feeds, whichever process polls them.
        member: this process's name.
        clock: the store's.
    """
    feeds = {lot.name: lot for lot in lots}
    under_way: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            with suppress(StoreError):  # those who need it more say so
                for order in await queue.pending():
                    lot = feeds.get(order.feed)
                    obeyed = lot is not None and lot.has_lease
                    if order.id in under_way:
                        await queue.keep_alive(order)  # a round may take hours
                    elif _forgotten(clock.now() - order.at, obeyed=obeyed) and await queue.withdraw(order):
                        pass
                    elif lot is not None and lot.has_lease and order.order in _KNOWN:
                        task = asyncio.create_task(_obeyed(queue, order, lot, member), name=f"order {order.id}")
                        under_way[order.id] = task
            await clock.sleep(LOOK_SECONDS)
            under_way = {name: task for name, task in under_way.items() if not task.done()}
    finally:
        await ended(*under_way.values())


def _forgotten(age: timedelta, *, obeyed: bool) -> bool:
    """Whether it waits no more. One from what is still to come was asked before the store's clock was set back."""
    return age > KEPT or (age < -KEPT and not obeyed)


async def _obeyed(queue: CommandQueue, order: Command, lot: CommandInbox, member: str) -> None:
    """Carry it out and say so. Where that cannot be done here, or not be said, it waits on."""
    with suppress(StoreError):
        if not await lot.confirmed():  # this process was asleep, and another one has the feed
            return
        if order.order == "pause" and not await queue.is_paused(order):
            await queue.reply(order, CommandReply(member, done=True, text="it was resumed meanwhile"))
        elif order.order == "pause":
            text = "the round under way was ended" if await lot.broken_off() else "no round was under way"
            await queue.reply(order, CommandReply(member, done=True, text=text))
        elif order.order == "resume":
            lot.poll_soon()
            await queue.reply(order, CommandReply(member, done=True, text="its next round begins now"))
        else:
            await _by_a_round(queue, order, lot, member)
    _log.info("order", feed=lot.name, order=order.order)


async def _by_a_round(queue: CommandQueue, order: Command, lot: CommandInbox, member: str) -> None:
    """Run rounds until one has carried it out, failed, or found nothing to do.

    The store says whether it was carried out.

    A round that begins now knows of the order. Where it stands all the same (nothing is there that could be read), the
    next one would find the same, and so on without end.
    """
    if not lot.busy and not await queue.is_outstanding(order):  # one that ended before the order was found here
        await queue.reply(order, CommandReply(member, done=True, text="its round has ended"))
        return
    if await queue.is_paused(order):
        await queue.reply(order, _put_off(member, "it is paused"))
        return
    await queue.reply(order, CommandReply(member, done=False, text="its next round begins now"))
    while True:
        ending, knows = lot.round_ended(), not lot.busy
        if knows:
            lot.poll_soon()
        await asyncio.wait([ending])
        if ending.cancelled():  # another process has the feed now, and the order
            return
        result = ending.result()
        if result.wait is not None:  # likewise, though that is not noticed here yet
            return
        if knows or not result.ok or result.paused is not None or not await queue.is_outstanding(order):
            await queue.reply(order, _ended(member, result))
            return


def _put_off(member: str, why: str) -> CommandReply:
    return CommandReply(member, done=True, text=f"{why}; it is carried out when the feed is resumed", put_off=True)


def _ended(member: str, result: RoundResult) -> CommandReply:
    if result.paused is not None:
        return _put_off(member, result.paused)
    told = {name: value for name, value in result.public.items() if isinstance(value, str | int | float | None)}
    return CommandReply(member, done=True, text="its round has ended", round=told)
