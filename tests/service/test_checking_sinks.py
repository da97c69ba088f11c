"""Laws of :mod:`poller.service.checking_sinks`: a sink is asked whether it is there, and sent nothing."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.handshake import Granted, encoded
from poller.service.checking_sinks import Permissions, check_sinks
from poller.service.handshaking import origin
from tests.receiver import Reply, receiving

NONE = Permissions()
SECRET = "whsec_" + "A" * 32


async def checked(permissions: Permissions = NONE, /, **settings: Any) -> tuple[str, str]:
    given = {"id": "rostering", "sink": "https://poller.invalid/hook", **settings}
    async with aclosing(check_sinks([SubscriptionSettings.model_validate(given)], {}, permissions)) as findings:
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
    assert (severity, "short" in text, f"{secret} holds no signing secret" in text) == ("error", False, True)
    secret.write_text(f"secret    {SECRET}\n")  # all that `poller keys new` shows, redirected
    assert "a signing secret alone" in (await checked(secret_files=[str(secret)]))[1]
    secret.chmod(0o644)
    assert "chmod 600" in (await checked(secret_files=[str(secret)]))[1]


async def test_a_sink_that_does_not_grant_events_is_an_error() -> None:
    """With the reason and the remedy, by a 405 too; granted it is well, and what was granted by a callback is."""
    more: dict[str, Any] = {"allow_private": True, "validate": True}
    async with receiving() as receiver:
        receiver.answer = Reply(405)
        severity, text = await checked(sink=receiver.url, **more)
        assert (severity, "does not grant events" in text, "answered 405" in text) == ("error", True, True)
        assert "unset validate" in text
        called = Permissions(None, {"rostering": encoded(Granted(origin(None)))})
        assert (await checked(called, sink=receiver.url, **more))[0] == "ok"
        receiver.answer = Reply(200)
        severity, text = await checked(Permissions("https://p.example"), sink=receiver.url, **more)
        assert (severity, "callback" in text) == ("warning", True)
        receiver.answer = Reply(200, headers=(("WebHook-Allowed-Origin", "*"),))
        severity, text = await checked(sink=receiver.url, **more)
        assert (severity, text.endswith("not signed, and grants events")) == ("ok", True)
        assert receiver.requests[-1].header("WebHook-Request-Origin") == origin(None)
        assert receiver.requests[-1].header("WebHook-Request-Callback") is None
