"""A command reaches the store and its reply is lost, or the command is lost; the client cannot tell which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_NAMES_A_STREAM = b"}:events"  # commits, and commands that read and settle deliveries
_LATEST = 8


async def strike(stage: Stage, rng: Random) -> None:
    """The reply to a command is lost, cut short, or lost three times in a row; or the command does not arrive."""
    proxy, to, skip = stage.proxy, rng.choice((_NAMES_A_STREAM, stage.cast.commits)), rng.randrange(_LATEST)
    assert proxy is not None
    fault = rng.choice(
        (
            lambda: proxy.lose_reply(to=to, skip=skip),
            lambda: proxy.lose_reply(to=to, skip=skip, times=3),
            lambda: proxy.cut_reply(to=to, skip=skip, after=rng.randrange(4)),
            lambda: proxy.reset(to=to, skip=skip),
        )
    )()
    async with patience("the fault to strike"):
        await fault.struck.wait()


FAULT = Fault(
    "lost-reply",
    "reply to a commit lost",
    "one entry for each change",
    strike,
    Setting(between=frozenset({"commands"})),
    replaces=True,
)
