"""Which events a subscription gets: those that it has asked for, and baselines only where they tell it something.

A baseline lists what there is. Whoever starts with what is new has no use for it; nor has whoever was there before a
feed was lost and begun anew, for he was told all of it.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from poller.delivery.envelope import Envelope
from poller.delivery.subscription import Subscription
from poller.store.deliveries import Entry
from poller.store.entry_ids import place_of

_BASELINE: Final = b',"cause":"baseline"}}'


def meets_baseline(subscription: Subscription, entries: Sequence[Entry]) -> bool:
    """Whether some of these may have been told before, should the feed have been begun anew."""
    return subscription.start != "now" and any(event and event.endswith(_BASELINE) for _, event in entries)


def wants(subscription: Subscription, envelope: Envelope, entry: str, event: bytes, *, anew: str | None) -> bool:
    """Whether the subscription is to get an event.

    Args:
        subscription: whose.
        envelope: the event's.
        entry: its id in the stream.
        event: all of it.
        anew: baselines after this one tell again what was told before.
    """
    if event.endswith(_BASELINE):
        told = anew is not None and place_of(entry) > place_of(anew)
        return subscription.start != "now" and not told and subscription.wanted(envelope)
    return subscription.wanted(envelope)
