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
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import StoreError
from poller.store import commands as store
from poller.store.commands import Command, CommandQueue, CommandReply, FeedPause, RoundRequest
from poller.store.keys import FeedKeys, MemberKeys
from poller.store.members import members_now

PATIENCE: Final = timedelta(seconds=5)
"""How long to wait for the first reply of a daemon; daemons read commands once a second at least."""

_READ_SECONDS: Final = 0.05
_REQUESTS: Final = {
    "release": RoundRequest.RELEASE,
    "resync": RoundRequest.RESYNC,
    "anew": RoundRequest.ANEW,
}
_NO_EFFECT: Final = {
    "pause": "it was paused already",
    "resume": "it was not paused",
    "release": "no removals or changes are held",
    "resync": "it was never read; its first round reads it in full anyway",
    "anew": "nothing is stored of it",
}
_NO_DAEMON: Final = (
    "no daemon polls; it takes effect with the next one",
    "no daemon polls; it holds anyway",
)


class CommandKind(StrEnum):
    """The kinds of commands to a feed.

    ``pause``: end the round under way and start no other. ``resume``: poll the feed again, immediately.
    ``resync``: read it in full in the next round. ``anew``: the same, after discarding its stored state.
    ``release``: publish the held removals.
    """

    PAUSE = "pause"
    RESUME = "resume"
    RESYNC = "resync"
    ANEW = "anew"
    RELEASE = "release"


CommandOutcome = Literal["done", "begun", "put off", "unanswered", "no daemon", "senseless"]


class CommandResult(msgspec.Struct, frozen=True):
    """The result of a command, as far as it is known.

    Attributes:
        feed: ``SOURCE/NAME``.
        order: the command.
        outcome: ``done``: carried out; ``begun``: a daemon is carrying it out; ``put off``: the feed is paused, and the
            command is carried out after the pause; ``unanswered``: no daemon has replied in time; ``no daemon``: none
            polls; ``senseless``: the command would change nothing, and was not submitted.
        text: the outcome for people, as the daemon or the store describes it.
        member: the process that replied; None: none did.
        round: the round that carried the command out, as ``poller once --json`` prints it; None: it has not ended.
        before: the pause of the feed before a ``pause`` or ``resume``; None: it was not paused.
    """

    feed: str
    order: CommandKind
    outcome: CommandOutcome
    text: str
    member: str | None = None
    round: dict[str, str | int | float | bool | None] | None = None
    before: FeedPause | None = None


async def run_command(
    client: Redis,
    settings: Settings,
    feed_id: str,
    order: CommandKind,
    *,
    clock: Clock,
    by: str,
    reason: str = "",
    patience: timedelta = PATIENCE,
    wait: bool = False,
) -> CommandResult:
    """Submit a command to a feed and wait for the reply.

    Args:
        client: of the store.
        settings: the configuration.
        feed_id: ``SOURCE/NAME``, one of the configuration's.
        order: the command.
        clock: the store's.
        by: the sender, for status and events.
        reason: of a pause, for people.
        patience: how long to wait for the first reply; zero: do not wait.
        wait: whether to wait for the final reply, without a limit, after a daemon has begun.

    Raises:
        StoreError: the store is unavailable. The command may have been submitted.
    """
    has_effect, before = await _apply(client, settings, feed_id, order, FeedPause(by, reason, clock.now()))
    if not has_effect:
        return CommandResult(feed_id, order, "senseless", _NO_EFFECT[order], before=before)
    if order in (CommandKind.PAUSE, CommandKind.RESUME):
        await _announce(client, settings, feed_id, order, FeedPause(by, reason, clock.now()))
    members = await members_now(client, MemberKeys.of(settings.redis.prefix))
    if not any("poll" in roles for roles in members.values()):
        return CommandResult(
            feed_id, order, "no daemon", _NO_DAEMON[order in (CommandKind.PAUSE, CommandKind.RESUME)], before=before
        )
    queue = CommandQueue(client, settings.redis.prefix)
    command = Command(clock.random.randbytes(8).hex(), feed_id, order, clock.now())
    await queue.submit(command)
    reply = await _reply(queue, command, patience=patience, wait=wait, clock=clock)
    return msgspec.structs.replace(_result(feed_id, order, reply), before=before)


async def _reply(
    queue: CommandQueue, command: Command, *, patience: timedelta, wait: bool, clock: Clock
) -> CommandReply | None:
    """The last reply within ``patience``; with ``wait``, the final one. None: no daemon has replied."""
    until = clock.monotonic() + patience.total_seconds()
    while True:
        reply = await queue.last_reply(command)
        if reply is not None and (reply.done or not wait):
            return reply
        if clock.monotonic() >= until and not (wait and reply is not None):
            return reply
        await clock.sleep(_READ_SECONDS)


def _result(feed_id: str, order: CommandKind, reply: CommandReply | None) -> CommandResult:
    if reply is None:
        text = "no daemon has replied yet; it takes effect with the next round"
        return CommandResult(feed_id, order, "unanswered", text)
    outcome: CommandOutcome = "put off" if reply.put_off else "done" if reply.done else "begun"
    return CommandResult(feed_id, order, outcome, reply.text, reply.member, reply.round)


async def _apply(
    client: Redis, settings: Settings, feed_id: str, order: CommandKind, pause: FeedPause
) -> tuple[bool, FeedPause | None]:
    """Store the command's effect. Returns whether there is one, and the pause of the feed before."""
    keys = FeedKeys.of(settings.redis.prefix, feed_id)
    if order is CommandKind.PAUSE:
        before = await store.pause(client, keys, pause)
        return before is None, before
    if order is CommandKind.RESUME:
        before = await store.resume(client, keys)
        return before is not None, before
    return await store.request_round(client, keys, _REQUESTS[order]), None


async def _announce(client: Redis, settings: Settings, feed_id: str, order: CommandKind, pause: FeedPause) -> None:
    kind = OperationType.FEED_PAUSED if order is CommandKind.PAUSE else OperationType.FEED_RESUMED
    with suppress(StoreError):  # the command has taken effect without the event
        await announce(
            client, settings.redis.prefix, OperationalEvent(kind, feed_id, pause.at, pause.reason, {"by": pause.by})
        )
