"""``poller subscriptions test``: one sample event, and the exchange laid open.

Law: credential, signatures, configured headers and the URL's query are not shown whole; nothing that the sink answers
steers the terminal.
"""

from __future__ import annotations

import os
import secrets
from typing import Final

from poller.cli.escaping import escaped, legible
from poller.cli.loop import run
from poller.cli.options import Asked, utc_now
from poller.cli.output import say
from poller.config.settings import Settings
from poller.control.subscriptions import SampleResult, registry_of, sample, settings_of
from poller.delivery.outcome import Outcome
from poller.store.session import STORE_PATIENCE, opened_store, until_ready

_SIGNATURE: Final = "webhook-signature"
_SHOWN: Final = 10  # characters of a signature: enough to see of which kind it is
_EVENT_ID_BYTES: Final = 16


def send_sample(asked: Asked, subscription: str) -> bool:
    """Send it and show the exchange; whether the sink has taken it.

    Raises:
        ConfigurationError: something is set up wrongly, or there is no such subscription.
        PollerError: its sink has not granted events, a secret cannot be read, or the store is away.
    """
    asked.set_up_logs("error")
    sampled = run(_sent(asked.settings(), subscription))
    for line in sampled.sent.head:
        say(escaped(line))
    say("")
    say(legible(sampled.sent.body))
    say("")
    say(_ended(sampled.outcome))
    if sampled.outcome.excerpt:
        say("")
        say(legible(sampled.outcome.excerpt))
    return sampled.outcome.is_delivered


async def _sent(settings: Settings, subscription: str) -> SampleResult:
    async with opened_store(settings) as store:
        await until_ready(store, patience=STORE_PATIENCE)
        kept = await registry_of(settings, store.client).all()
    return await sample(
        settings_of(kept, settings, subscription),
        secrets=kept.secrets.get(subscription, ()),
        handshake=kept.handshakes.get(subscription),
        environ=os.environ,
        event_id=secrets.token_hex(_EVENT_ID_BYTES),
        now=utc_now(),
        brought=kept.credentials.get(subscription),
    )


def _ended(outcome: Outcome) -> str:
    took = f"after {outcome.seconds * 1000:.0f} ms"
    if outcome.status is not None:
        return f"status {outcome.status} {took}"
    if outcome.is_delivered:
        return f"delivered {took}"
    return f"no answer ({outcome.failure}) {took}: {escaped(outcome.error)}"
