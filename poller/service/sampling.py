"""One sample event to a sink, sent as the subscription's own events are: its mode, headers, secrets and credential.

Law: nothing is noted of it. Neither health nor pauses nor any place in a stream change, whatever the sink answers. A
sink that has to grant events first, and has not, is sent nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.announcements import operational_event
from poller.delivery.envelope import envelope_of
from poller.delivery.formats import Request
from poller.delivery.handshake import Granted, stored_state, ungranted
from poller.delivery.outcome import Outcome
from poller.errors import PollerError
from poller.service.sending import Form, sink_of

TYPE: Final = "poller.subscription.test.v1"


class NotGranted(PollerError):
    """The sink has to grant events before any is sent, and has not."""


class Sampled(msgspec.Struct, frozen=True):
    """What was sent, without the credential, and how it ended."""

    request: Request
    outcome: Outcome


async def sample(
    settings: SubscriptionSettings,
    *,
    secrets: Sequence[str],
    handshake: bytes | None,
    environ: Mapping[str, str],
    event_id: str,
    now: datetime,
    brought: bytes | None = None,
) -> Sampled:
    """Send one sample event.

    Args:
        settings: the subscription's.
        secrets: those that no file holds.
        handshake: whether the sink has granted events, as it is kept.
        environ: where a credential may be.
        event_id: of the event.
        now: UTC.
        brought: the credential that a request has brought, as it is kept.

    Raises:
        NotGranted: see above.
        ConfigurationError: credential or secrets cannot be set up.
        CredentialUnusable: a secret file cannot be read.
    """
    state = stored_state(handshake) if settings.handshake else None
    granted = state if isinstance(state, Granted) else None
    if settings.handshake and granted is None:
        why = ungranted(state) or "no daemon has asked it yet"
        raise NotGranted(
            f"{settings.id}: validate = true, and its sink has not granted events: {why}; nothing was sent"
        )
    event = sample_event(settings.id, event_id=event_id, now=now)
    request = Form(settings, secrets, granted)([(envelope_of(event), event)], int(now.timestamp()))
    async with sink_of(settings, environ, brought=brought, now=lambda: now) as sink:
        return Sampled(request, await sink.post(tuple(request.headers.items()), request.body))


def sample_event(subscription: str, *, event_id: str, now: datetime) -> bytes:
    """The event, as it would stand in a stream."""
    text = "A test: no record has changed."
    return operational_event(type_=TYPE, subject=subscription, event_id=event_id, at=now, data={"text": text})
