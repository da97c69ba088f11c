"""What ``poller check`` finds out about the sinks: can they be reached, can what is sent to them be signed.

A sink is asked with OPTIONS, which carries no event. What it answers does not count, only that it does: many answer 404
or 405. Nothing is kept, so a sink that has to grant events is not asked for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from poller.config.subscriptions import SubscriptionSettings
from poller.credentials.secret_file import SecretFile
from poller.delivery.outcome import Failure
from poller.delivery.signing import Signer
from poller.errors import ConfigurationError, SourceError
from poller.service.findings import Checked
from poller.service.sending import sink_of

_ADVICE = {
    Failure.ADDRESS: "allow_private = true or allow_hosts lets it through, if it is meant",
    Failure.TLS: "the certificate must be one that this machine's authorities vouch for",
    Failure.DNS: "is the name right, and known here?",
}


async def check_sinks(
    subscriptions: Sequence[SubscriptionSettings], environ: Mapping[str, str]
) -> AsyncGenerator[Checked]:
    """One line for each subscription, all asked side by side."""
    for asking in [asyncio.create_task(_checked(one, environ)) for one in subscriptions]:
        yield await asking


async def _checked(settings: SubscriptionSettings, environ: Mapping[str, str]) -> Checked:
    subject = f"subscription {settings.id}"
    try:
        secrets = [SecretFile(path, "signing secret").text() for path in settings.secret_files]
        if secrets:
            Signer(secrets)
        async with sink_of(settings, environ) as sink:
            outcome = (await sink.options(())).outcome
    except (ConfigurationError, SourceError) as error:
        return Checked("error", subject, str(error))
    if outcome.status is None:
        advice = _ADVICE.get(outcome.failure) if outcome.failure else None
        return Checked("error", subject, outcome.text + (f"; {advice}" if advice else ""))
    signed = f"signed with {len(secrets)} secret{'s' if len(secrets) > 1 else ''}" if secrets else "not signed"
    return Checked("ok", subject, f"the sink is there (it answers {outcome.status} to OPTIONS), {signed}")
