"""``poller release`` and ``poller resync``: orders that a feed's next round carries out, in any process."""

from __future__ import annotations

from typing import Final

from poller.cli.loop import run
from poller.cli.options import Asked
from poller.cli.output import say
from poller.config.settings import Settings
from poller.errors import PollerError
from poller.service.assembly import keys_of
from poller.service.opening import opened_store
from poller.store.orders import Order, give

_DONE: Final = {
    Order.RELEASE: "its next round lets the held removals through",
    Order.RESYNC: "its next round reads it in full; nothing is published unless something differs",
    Order.ANEW: "its next round forgets what is known of it and publishes all its records as a baseline",
}
_SENSELESS: Final = {
    Order.RELEASE: "nothing of it is held",
    Order.RESYNC: "it was never read, and its first round reads it in full anyway",
    Order.ANEW: "nothing is known of it",
}


def order(asked: Asked, name: str, wanted: Order) -> None:
    """Leave the order.

    Raises:
        ConfigurationError: there is no such feed.
        PollerError: the order makes no sense, or the store does not answer.
    """
    asked.set_up_logs("error")
    settings = asked.settings()
    source, feed = settings.find_feed(name)
    feed_id = source.feed_id(feed)
    if not run(_give(settings, feed_id, wanted)):
        raise PollerError(f"{feed_id}: {_SENSELESS[wanted]}")
    say(f"{feed_id}: {_DONE[wanted]}")


async def _give(settings: Settings, feed_id: str, wanted: Order) -> bool:
    async with opened_store(settings) as store:
        return await give(store.client, keys_of(settings, feed_id), wanted)
