"""Laws of :mod:`poller.service.checking_sinks`: a sink is asked whether it is there, and sent nothing."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

from poller.config.subscriptions import SubscriptionSettings
from poller.service.checking_sinks import check_sinks
from tests.receiver import Reply, receiving

SECRET = "whsec_" + "A" * 32


async def checked(**settings: Any) -> tuple[str, str]:
    given = {"id": "rostering", "sink": "https://poller.invalid/hook", **settings}
    async with aclosing(check_sinks([SubscriptionSettings.model_validate(given)], {})) as findings:
        (found,) = [one async for one in findings]
    assert found.subject == "subscription rostering"
    return found.severity, found.text


async def test_a_sink_that_answers_is_there_whatever_it_says(tmp_path: Path) -> None:
    """OPTIONS is all that it gets; how its events will be signed is said."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    async with receiving() as receiver:
        receiver.answer = Reply(405)
        severity, text = await checked(sink=receiver.url, allow_private=True, secret_files=[str(secret)])
        assert [(request.method, request.body) for request in receiver.requests] == [("OPTIONS", b"")]
    assert (severity, text) == ("ok", "the sink is there (it answers 405 to OPTIONS), signed with 1 secret")


async def test_what_keeps_events_from_a_sink_is_an_error_with_advice(tmp_path: Path) -> None:
    """No connection, a private address behind a name, a secret that is none: each by its own words."""
    severity, text = await checked(sink="http://127.0.0.1:1/", allow_private=True)
    assert (severity, "refused" in text) == ("error", True)
    severity, text = await checked(sink="https://localhost.localdomain.invalid/")
    assert severity == "error"
    secret = tmp_path / "secret"
    secret.write_text("whsec_short")
    secret.chmod(0o600)
    severity, text = await checked(secret_files=[str(secret)])
    assert (severity, "short" in text) == ("error", False)
    secret.chmod(0o644)
    assert "chmod 600" in (await checked(secret_files=[str(secret)]))[1]
