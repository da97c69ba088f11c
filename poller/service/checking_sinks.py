"""What ``poller check`` finds out about the sinks: can they be reached, can what is sent to them be signed.

A sink is asked with OPTIONS, which carries no event. What it answers does not count, only that it does: many answer 404
or 405. Where ``validate`` wants its permission, that is asked for, without offering a callback; nothing is kept of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import msgspec

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.exchange import SinkResponse
from poller.delivery.handshake import Asked, Awaiting, Granted, state_after, stored_state, ungranted
from poller.delivery.outcome import Failure
from poller.errors import ConfigurationError, SourceError
from poller.service.findings import Checked
from poller.service.handshaking import asked_of, origin
from poller.service.sending import signing_secrets, sink_of

_ADVICE = {
    Failure.ADDRESS: "allow_private = true or allow_hosts lets it through, if it is meant",
    Failure.DNS: "is the name right, and known here?",
}


class Permissions(msgspec.Struct, frozen=True):
    """What is known of the permissions of sinks.

    Attributes:
        public_url: by which sinks may call back.
        kept: the state of the handshake of each subscription, as it is kept.
    """

    public_url: str | None = None
    kept: Mapping[str, bytes] = {}


_UNKNOWN: Final = Permissions()


async def check_sinks(
    subscriptions: Sequence[SubscriptionSettings], environ: Mapping[str, str], permissions: Permissions = _UNKNOWN
) -> AsyncGenerator[Checked]:
    """One line for each subscription, all asked side by side."""
    for asking in [asyncio.create_task(_checked(one, environ, permissions)) for one in subscriptions]:
        yield await asking


async def _checked(settings: SubscriptionSettings, environ: Mapping[str, str], permissions: Permissions) -> Checked:
    subject = f"subscription {settings.id}"
    try:
        secrets = signing_secrets(settings.secret_files)
        asked = asked_of(settings, origin(permissions.public_url))
        async with sink_of(settings, environ) as sink:
            answer = await sink.options(asked.headers if settings.handshake else ())
    except (ConfigurationError, SourceError) as error:
        return Checked("error", subject, str(error))
    outcome = answer.outcome
    if outcome.status is None:
        advice = _ADVICE.get(outcome.failure) if outcome.failure else None
        return Checked("error", subject, outcome.text + (f"; {advice}" if advice else ""))
    signed = f"signed with {len(secrets)} secret{'s' if len(secrets) > 1 else ''}" if secrets else "not signed"
    told = f"the sink is there (it answers {outcome.status} to OPTIONS), {signed}"
    refused = _refused(settings, answer, asked, permissions) if settings.handshake else None
    return refused or Checked("ok", subject, told + (", and grants events" if settings.handshake else ""))


def _refused(
    settings: SubscriptionSettings, answer: SinkResponse, asked: Asked, permissions: Permissions
) -> Checked | None:
    """What keeps events from a sink that is to grant them; None where it does, or has."""
    kept, status = stored_state(permissions.kept.get(settings.id)), answer.outcome.status
    if isinstance(kept, Granted) and kept.origin == asked.origin:
        return None
    state = state_after(answer.headers, asked, status=status or 0, before=kept)
    if isinstance(state, Granted):
        return None
    subject = f"subscription {settings.id}"
    if status is not None and 200 <= status < 300 and permissions.public_url:  # noqa: PLR2004 -- the class of statuses
        said = ungranted(kept) if isinstance(kept, Awaiting) else "it is offered a callback when the daemon starts"
        return Checked("warning", subject, f"the sink has not granted events yet: {said}")
    return Checked("error", subject, f"the sink does not grant events: {ungranted(state)}")
