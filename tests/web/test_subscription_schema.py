"""Laws of ``sinkcredential``: it can be written but not read, and goes only to the sink it was given for."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from poller.app import run
from poller.auth.sink_credential import KIND, authorization_of
from poller.clock import Clock
from poller.config.subscriptions import SinkKind, SubscriptionProtocol, SubscriptionSettings
from poller.config.validation import subscription_of
from poller.control import subscriptions as subscribing
from poller.control.subscriptions import registry_of
from poller.redis.client import commands
from poller.store.keys import FeedKeys, SubscriptionKeys
from poller.store.subscriptions import Subscriptions
from poller.web.subscription_schema import SubscriptionRequest, following, settings_values
from tests.delivery.events import spelled
from tests.harness.leaks import leaks
from tests.harness.waiting import until
from tests.receiver import Received, Reply, receiving
from tests.servers import free_port
from tests.stores import all_keys
from tests.web.served import FEEDS, NOW, SINK, TOKEN, Served, configured

SECRETS: Final = {"token": "t0ken-that-only-the-sink-may-see", "password": "passw0rd-that-nobody-else-reads"}
BEARER: Final = {"credentialtype": "ACCESSTOKEN", "accesstoken": SECRETS["token"], "accesstokentype": "Bearer"}
PLAIN: Final = {"credentialtype": "PLAIN", "identifier": "poller", "secret": SECRETS["password"]}
BASIC: Final = "Basic " + b64encode(b"poller:" + SECRETS["password"].encode()).decode()
ONE: Final = "/subscriptions/a"
ELSEWHERE: Final = (
    "https://evil.example/hook",
    "https://sink.example.org:8443/hook",
    "http://sink.example.org/hook",
    "https://sink.example.org.evil.example/hook",
)
HTTP_TOO: Final[dict[str, Any]] = {"config": {"allow_hosts": ["sink.example.org"]}}


async def stored(client: Redis) -> str:
    """The whole content of the store, except the credentials."""
    reading: dict[Any, Any] = {
        b"hash": client.hgetall,
        b"stream": client.xrange,
        b"string": client.get,
        b"zset": lambda key: client.zrange(key, 0, -1),
    }
    keys = [key for key in await all_keys(client) if b"credentials" not in key]
    return str([await reading[await client.type(key)](key) for key in keys])


def echoing(request: Received) -> Reply:
    """Refuse, and repeat the credential as sent and decoded."""
    header = request.header("authorization") or ""
    meant = SECRETS["password"] if header == BASIC else header
    return Reply(403, (("WebHook-Allowed-Origin", "*"),), f"neither {header} nor {meant} will do".encode())


async def registered(given: Served) -> Subscriptions:
    return await registry_of(given.settings, given.store).all()


async def sent(given: Served) -> str | None:
    """The Authorization value that the sink would get."""
    kept = (await registered(given)).credentials.get("a")
    return authorization_of(kept).value if kept else None


async def ask(given: Served, status: int, method: str, path: str = ONE, /, **body: Any) -> Any:
    """The answer; neither it nor any other answer holds a secret."""
    answered, _, told = await given.ask(path, method, json=body)
    assert answered == status, told
    others = [(await given.ask(path))[2] for path in ("/subscriptions", ONE, "/", "/readyz", "/metrics")]
    assert not leaks(SECRETS, str((told, others)))
    return told


async def added(given: Served, credential: Any = BEARER, **more: Any) -> Any:
    return await ask(given, 201, "POST", "/subscriptions", id="a", sink=SINK, sinkcredential=credential, **more)


async def test_it_is_kept_and_only_its_kind_is_shown(given: Served) -> None:
    """A credential is stored with the subscription and removed with it; answers show only its kind."""
    assert (await added(given))["sinkcredential"] == {"credentialtype": "ACCESSTOKEN"}
    assert await sent(given) == f"Bearer {SECRETS['token']}"
    assert (await ask(given, 200, "PUT", sink=SINK, sinkcredential=PLAIN))["sinkcredential"] == {
        "credentialtype": "PLAIN"
    }
    assert await sent(given) == BASIC
    assert not leaks(SECRETS, await stored(given.store))
    assert (await given.ask(ONE, "DELETE"))[0] == 204
    assert not (await registered(given)).credentials
    await ask(given, 201, "POST", "/subscriptions", id="a", sink=SINK)
    assert await sent(given) is None


async def test_a_change_of_it_alone_is_a_change(given: Served) -> None:
    """A changed credential raises the registry's version; an unchanged one does not."""
    await added(given)
    before = await registered(given)
    await ask(given, 200, "PUT", sink=SINK, sinkcredential=BEARER)
    assert (await registered(given)).version == before.version
    await ask(given, 200, "PUT", sink=SINK, sinkcredential=PLAIN)
    assert (await registered(given)).version == before.version + 1
    assert (await registered(given)).registered == before.registered


async def test_it_stays_at_its_sinks_host(given: Served) -> None:
    """Omitted or sent back as shown, the credential is kept while the host stays; null removes it."""
    await added(given, protocolsettings={"headers": {"x-key": "s3cret"}})
    shown = (await given.ask(ONE))[2]
    assert (await given.ask(ONE, "PUT", json=shown))[2] == shown
    for more in ({}, {"config": {"rate": 2.0}}, {"sinkcredential": {"credentialtype": "ACCESSTOKEN"}}):
        await ask(given, 200, "PUT", sink=f"{SINK}/elsewhere?x=y", **more)
        assert await sent(given) == f"Bearer {SECRETS['token']}"
    assert "sinkcredential" not in await ask(given, 200, "PUT", sink=SINK, sinkcredential=None)
    assert await sent(given) is None


@pytest.mark.parametrize("sink", ELSEWHERE)
async def test_it_goes_to_no_other_host(given: Served, sink: str) -> None:
    """When the host changes, a credential is dropped if omitted, refused as shown, and accepted if sent again."""
    await added(given)
    told = await ask(given, 422, "PUT", sink=sink, sinkcredential={"credentialtype": "ACCESSTOKEN"}, **HTTP_TOO)
    assert [one["key"] for one in told["errors"]] == ["sink"]
    assert await sent(given) == f"Bearer {SECRETS['token']}"
    assert "sinkcredential" not in await ask(given, 200, "PUT", sink=sink, **HTTP_TOO)
    assert await sent(given) is None
    await ask(given, 200, "PUT", sink=SINK)
    assert await sent(given) is None
    await ask(given, 200, "PUT", sink=sink, sinkcredential=PLAIN, **HTTP_TOO)
    assert await sent(given) == BASIC


async def test_two_changes_at_once_take_it_nowhere() -> None:
    """The sink at the time of the write decides whether the credential stays, not the sink at the request."""
    stays = following(SubscriptionRequest(SINK), SINK)
    assert stays(b'{"sink":"https://sink.example.org/before"}', b"kept") == b"kept"
    for moved in (*(b'{"sink":"%s"}' % sink.encode() for sink in ELSEWHERE), b'{"sink":"http://["}', b"{}", b"["):
        assert stays(moved, b"kept") is None


async def test_beside_auth_there_is_none(given: Served) -> None:
    """With ``auth`` a subscription takes no sinkcredential, and with one no Authorization header; nothing changes."""
    values = {"id": "a", "sink": SINK, "auth": {"token_env": "T"}}
    one = subscription_of(values, given.settings, where="x")
    await subscribing.add(registry_of(given.settings, given.store), given.settings, one, secrets=[], now=NOW)
    for credential in (BEARER, PLAIN, None, {"credentialtype": "token_file"}):
        told = await ask(given, 422, "PUT", sink=SINK, sinkcredential=credential)
        assert [one["key"] for one in told["errors"]] == ["sinkcredential"]
    shown = await ask(given, 200, "PUT", sink=SINK, sinkcredential={"credentialtype": "token_env"})
    assert shown["sinkcredential"] == {"credentialtype": "token_env"}
    assert await sent(given) is None
    headers = {"headers": {"Authorization": f"Bearer {SECRETS['token']}"}}
    body = {"id": "b", "sink": SINK, "sinkcredential": BEARER, "protocolsettings": headers}
    told = await ask(given, 422, "POST", "/subscriptions", **body)
    assert told["errors"][0]["key"] == "protocolsettings.headers"


async def test_what_is_wrong_is_told_by_its_key(given: Served) -> None:
    """A wrong credential is reported by its key without the value sent; nothing is added or changed."""
    token = SECRETS["token"]
    wrong: list[tuple[Any, str]] = [
        ({"accesstoken": token}, "sinkcredential.credentialtype"),
        ({"credentialtype": token}, "sinkcredential.credentialtype"),
        ({"credentialtype": "ACCESSTOKEN"}, "sinkcredential.accesstoken"),
        (BEARER | {"accesstoken": f"{token}\r\nx: y"}, "sinkcredential.accesstoken"),
        (BEARER | {"accesstoken": token * 300}, "sinkcredential.accesstoken"),
        (BEARER | {"accesstokenexpiresutc": token}, "sinkcredential.accesstokenexpiresutc"),
        (BEARER | {"accesstokentype": token}, "sinkcredential.accesstokentype"),
        (BEARER | {token: ""}, "sinkcredential"),
        (PLAIN | {"identifier": f"{token}:"}, "sinkcredential.identifier"),
        (token, "sinkcredential"),
        ([token], "sinkcredential"),
    ]
    for credential, key in wrong:
        told = await ask(given, 422, "POST", "/subscriptions", id="a", sink=SINK, sinkcredential=credential)
        assert [one["key"] for one in told["errors"]] == [key]
    refreshed = {"credentialtype": "REFRESHTOKEN", "refreshtoken": token, "refreshtokenendpoint": SINK}
    told = await ask(given, 422, "POST", "/subscriptions", id="a", sink=SINK, sinkcredential=refreshed)
    assert told["detail"].startswith(f"sinkcredential.credentialtype: {KIND}: tokens are not refreshed")
    assert "a" not in (await registered(given)).registered
    await added(given)
    await ask(given, 422, "PUT", sink=SINK, sinkcredential=refreshed)
    await ask(given, 422, "PUT", sink=SINK, sinkcredential={"credentialtype": "PLAIN"})
    assert await sent(given) == f"Bearer {token}"


async def test_one_of_another_version_is_shown_and_replaced(given: Served) -> None:
    """A credential in an unknown format has the kind ``?``, which may be sent back; a new one replaces it."""
    await added(given)
    await given.store.hset(SubscriptionKeys.of("poller").credentials, "a", SECRETS["token"])
    shown = await ask(given, 200, "PUT", sink=SINK, sinkcredential={"credentialtype": "?"})
    assert shown["sinkcredential"] == {"credentialtype": "?"}
    await ask(given, 200, "PUT", sink=SINK, sinkcredential=PLAIN)
    assert await sent(given) == BASIC


def test_a_request_does_not_show_itself() -> None:
    """The repr of a request, which may end up in a traceback, holds neither credential nor headers."""
    assert not leaks(SECRETS, repr(SubscriptionRequest(SINK, id="a", sinkcredential=BEARER)))


async def test_the_sink_and_nobody_else_sees_it(tmp_path: Path, store_url: str) -> None:
    """The daemon sends the credential to its sink; answers, log and store hide it, even if the sink echoes it."""
    settings = configured(tmp_path, store_url, http=f'bind = "127.0.0.1:{(port := free_port())}"')
    base, stop, events = f"http://127.0.0.1:{port}", asyncio.Event(), FeedKeys.of("poller", FEEDS[0]).events

    async def told(path: str, method: str = "GET", **more: Any) -> str:
        async with http.request(method, base + path, headers={"authorization": f"Bearer {TOKEN}"}, **more) as answer:
            assert answer.status < 400, await answer.text()
            return await answer.text()

    async with receiving(echoing) as sink, aiohttp.ClientSession() as http, commands(store_url) as client:
        with capture_logs() as logged:
            roles = frozenset({"serve", "deliver"})
            daemon = asyncio.create_task(run(settings, {}, stop=stop, clock=Clock(), roles=roles))

            async def ready() -> bool:
                return bool(await told("/readyz"))

            def seen(method: str, authorization: str) -> bool:
                of = [one for one in sink.requests if one.method == method]
                return bool(of) and of[-1].header("authorization") == authorization

            try:
                await until(ready, "the daemon", despite=(aiohttp.ClientConnectionError, AssertionError))
                retry = {"schedule": ["50ms"] * 400}  # many retries, until the change takes effect
                config = {"allow_private": True, "start": "earliest", "validate": True, "retry": retry}
                body = {"id": "a", "sink": sink.url, "config": config}
                texts = [await told("/subscriptions", "POST", json=body | {"sinkcredential": BEARER})]
                await client.xadd(events, {"data": spelled(id="e1", partitionkey="e1")})
                await sink.until(lambda: seen("POST", f"Bearer {SECRETS['token']}"), "the token with an event")
                assert seen("OPTIONS", f"Bearer {SECRETS['token']}")
                texts += [await told(ONE, "PUT", json=body | {"sinkcredential": PLAIN})]
                await sink.until(lambda: seen("POST", BASIC), "the name and secret with an event")
                texts += [await told(path) for path in ("/", "/metrics", "/readyz", "/subscriptions", ONE)]
            finally:
                stop.set()
                await daemon
        texts += [await stored(client)]
    assert any(one["event"] == "attempt" for one in logged)
    assert not leaks(SECRETS, str((texts, logged)))


@pytest.mark.parametrize(("protocol", "refused"), [(None, False), ("NATS", False), ("HTTP", True)])
def test_the_protocol_is_that_of_the_sink(protocol: Any, refused: bool) -> None:
    """The protocol may be omitted; one that does not match the sink's scheme is refused."""
    wanted = SubscriptionRequest("tls://nats.example.org/hr.events", protocol=protocol)
    values = settings_values(wanted, "a", None)
    assert isinstance(values, list) is refused
    if isinstance(values, list):
        assert [(one.key, one.expected) for one in values] == [("protocol", "expected NATS, the protocol of this sink")]


def test_a_request_names_no_sink_on_this_machine() -> None:
    """A sink that is no host's is refused in a request; one of the file stays as it is shown, but for another path."""
    local = SinkKind("local", SubscriptionProtocol.HTTP, "https", "", str, reach=lambda _, __: None)

    def refused(sink: str, before: SubscriptionSettings | None) -> list[str]:
        values = settings_values(SubscriptionRequest(sink), "a", before, kind=local)
        return [one.key for one in values] if isinstance(values, list) else []

    filed = SubscriptionSettings(id="a", sink="https://h.example.org/etc")
    assert refused("https://h.example.org/etc", None) == ["sink"]
    assert refused("https://h.example.org/other", filed) == ["sink"]
    assert refused("https://h.example.org/etc", filed) == []
