"""Laws of :mod:`poller.control.diagnostics`: each finding comes with its remedy."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trustme
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from poller.clock import Clock
from poller.config.load import load
from poller.config.settings import RedisSettings, Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.control.diagnostics import (
    SinkPermissions,
    check,
    check_choices,
    check_rights,
    check_service,
    check_sinks,
    clock_apart,
    other_protocol,
)
from poller.control.subscriptions import registry_of
from poller.delivery.endpoint_health import Health
from poller.delivery.handshake import Granted, encoded, origin
from poller.http.server import listening
from poller.redis.client import commands
from poller.store.feed_state import HELD, HELD_AT
from poller.store.keys import FeedKeys, MemberKeys, group_of
from poller.store.members import MemberConfiguration, MemberList, Members
from poller.store.subscriptions import Paused
from poller.web.app import application
from tests.acl import running_with_acl, set_user
from tests.control.subscribed import FEEDS, NOW, added, configured
from tests.harness.clock import store_clock
from tests.harness.waiting import until
from tests.receiver import Reply, receiving
from tests.servers import free_port, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from poller.control.diagnostics import CheckLine


CONFIG = """
http = {{ bind = "off" }}
[embedded]
data_dir = "{directory}/data"
[[sources]]
name = "acme"
base_url = "{url}"
auth = {{ none = true }}
{more}
[[sources.feeds]]
resource = "contractTypes"
"""
EMPTY = b'{"results": []}'


@asynccontextmanager
async def answering(status: bytes, body: bytes, headers: bytes = b"") -> AsyncIterator[str]:
    """An API that always gives the same answer; yields its URL."""
    sent = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n%s\r\n%s" % (status, len(body), headers, body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def told(directory: Path, url: str, more: str = "") -> dict[str, str]:
    """The lines of ``check`` about the source and its feed."""
    file = directory / "poller.toml"
    file.write_text(CONFIG.format(directory=directory, url=url, more=more))
    found = [one async for one in check(load(file, {}), {}, clock=Clock())]
    return {one.subject: one.text for one in found if one.subject in {"acme/contractTypes", "source acme"}}


@pytest.mark.parametrize(
    ("status", "body", "way"),
    [
        (b"401 Unauthorized", b"{}", "auth"),
        (b"403 Forbidden", b"{}", "ask the API's owner"),
        (b"404 Not Found", b"{}", "check base_url"),
        (b"302 Found", b"", "redirects are not followed"),
        (b"200 OK", b"<!DOCTYPE html><html></html>", "a page for people"),
        (b"200 OK", b"[]", "no list of records"),
        (b"200 OK", b"hello", "no list of records"),
    ],
)
async def test_an_answer_that_is_none_has_a_way_out(tmp_path: Path, status: bytes, body: bytes, way: str) -> None:
    """Each unusable answer is reported in a round's words, with the remedy."""
    async with answering(status, body) as url:
        found = await told(tmp_path, url)
    assert way in found["acme/contractTypes"]
    assert found["source acme"] == f"configured, {url}; its answers are shown per feed"


async def test_a_source_whose_clock_is_off_is_told(tmp_path: Path) -> None:
    """A source whose clock is wrong is reported, by the Date of its answer."""
    async with answering(b"200 OK", EMPTY, b"Date: Mon, 02 Mar 2020 08:15:30 GMT\r\n") as url:
        found = await told(tmp_path, url)
    assert "set both by NTP" in found["source acme"]


async def test_a_proxy_that_is_away_is_not_taken_for_the_source(tmp_path: Path) -> None:
    """If the proxy is unreachable, the remedy names the proxy."""
    found = await told(tmp_path, "http://api.example.org", 'proxy = "http://127.0.0.1:1"')
    assert "check proxy" in found["acme/contractTypes"]


async def test_an_api_that_does_not_answer_is_told_once(tmp_path: Path) -> None:
    """An unavailable API is reported at the feeds that were requested; the other feeds point to them."""
    async with answering(b"503 Service Unavailable", b"") as url:
        file = tmp_path / "poller.toml"
        feeds = "".join(f'[[sources.feeds]]\nresource = "r{number}"\npath = "/r{number}"\n' for number in range(5))
        more = '[[sources.feeds]]\nresource = "achievements"\nqualifications = ["q"]\n'
        file.write_text(CONFIG.format(directory=tmp_path, url=url, more="concurrency = 1") + feeds + more)
        found = [one async for one in check(load(file, {}), {}, clock=Clock()) if one.subject.startswith("acme/")]
    assert len(found) == 7
    assert {one.severity for one in found} == {"error"}
    pointing = [one.text for one in found if "503" not in one.text]
    asked = [one.subject for one in found if "503" in one.text]
    assert pointing
    assert set(pointing) == {f"not asked: the API has not answered for {asked[0]}, see there"}


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [(b"401 Unauthorized", b"{}", "could not be read, see there"), (b"200 OK", EMPTY, "no qualification is known")],
)
async def test_a_feed_whose_listings_are_unknown_says_why(tmp_path: Path, status: bytes, body: bytes, why: str) -> None:
    """If the feeds that name qualifications fail, that is why no listing is read; else none is known."""
    async with answering(status, body) as url:
        file = tmp_path / "poller.toml"
        more = '[[sources.feeds]]\nresource = "achievements"\n'
        file.write_text(CONFIG.format(directory=tmp_path, url=url, more="") + more)
        found = {one.subject: one.text async for one in check(load(file, {}), {}, clock=Clock())}
    assert found["acme/achievements"].startswith("not asked: ")
    assert why in found["acme/achievements"]


# Rights in the store, and the protocol of its port.


async def test_the_rule_that_is_missing_is_told(tmp_path: Path) -> None:
    """Missing rights are reported with the ACL rule to add; a user with all rights gives no line."""
    settings = load(None, {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"})
    with running_with_acl("valkey", tmp_path) as server:
        async with commands(server.url) as client, commands(server.admin) as admin:
            assert await check_rights(client, settings, server.url) is None
            await set_user(admin, "-xtrim", "-hscan")
            found = await check_rights(client, settings, server.url)
            assert found is not None
            assert found.text.startswith("user poller may not hscan, xtrim: ACL SETUSER poller +hscan +xtrim;")
            await set_user(admin, "resetkeys", "~other:*")
            found = await check_rights(client, settings, server.url)
            assert found is not None
            assert found.text.startswith("user poller may touch no key of poller:*: ACL SETUSER poller ~poller:*;")


async def test_a_feed_that_a_subscription_lists_no_more_is_named_while_events_wait_there(tmp_path: Path) -> None:
    """Events that wait at a feed that is no longer listed are a warning with the remedy."""
    with running("valkey", tmp_path) as server:
        settings = configured(tmp_path).model_copy(update={"redis": RedisSettings(url=server.url)})
        async with commands(server.url) as client:
            await added(client, settings, "a")
            await registry_of(settings, client).note_health("a", FEEDS[1], b'{"delivered":1}')
            events = FeedKeys.of("poller", FEEDS[1]).events
            await client.xgroup_create(events, group_of("a"), mkstream=True)
            await client.xadd(events, {"data": "{}"})
        async with aclosing(check(settings, {}, clock=Clock())) as lines:  # the store's lines first
            found = await anext(one async for one in lines if one.subject in {"subscription a", "http"})
    assert (found.subject, found.severity) == ("subscription a", "warning")
    assert found.text == (
        f"events wait at {FEEDS[1]}, which its feeds do not list any more: list the feed again to have them delivered; "
        "they are dropped when it was not listed for retention.age"
    )


async def test_a_feed_that_is_held_is_no_ok(tmp_path: Path) -> None:
    """A feed whose source answers is a warning while it is held, with the reason and the remedy."""
    with running("valkey", tmp_path) as server:
        async with answering(b"200 OK", EMPTY) as url, commands(server.url) as client:
            file = tmp_path / "poller.toml"
            file.write_text(CONFIG.format(directory=tmp_path, url=url, more=""))
            settings = load(file, {}).model_copy(update={"redis": RedisSettings(url=server.url)})
            held = {"generation": "g", "sequence": "3", HELD: "7 of 9 are missing", HELD_AT: NOW.isoformat()}
            for name, value in held.items():
                await client.hset(FeedKeys.of("poller", "acme/contractTypes").state, name, value)
            found = {one.subject: one async for one in check(settings, {}, clock=Clock())}
    line = found["acme/contractTypes"]
    assert line.severity == "warning"
    assert ": 7 of 9 are missing; answers: 0 records on the first page" in line.text


async def test_a_feed_that_running_processes_have_and_the_file_has_not_is_named(tmp_path: Path) -> None:
    """A renamed feed is a warning before a process takes the file; one of a source that the file has not is none."""
    settings = configured(tmp_path)
    there = MemberConfiguration(feeds=(*FEEDS, "acme/formerly", "other/feed"))
    with running("valkey", tmp_path) as server:
        settings = settings.model_copy(update={"redis": RedisSettings(url=server.url)})
        async with commands(server.url) as client:
            keys, ttl = MemberKeys.of("poller"), timedelta(minutes=1)
            one = Members(client, keys, name="one", ttl=ttl, clock=store_clock(), configuration=there)
            await one.beat(("poll",), MemberList())
        found = []
        async with aclosing(check(settings, {}, clock=Clock())) as lines:  # the store's lines first
            async for line in lines:
                if line.subject == "http":
                    break
                found.append(line)
    named = [line for line in found if line.subject.startswith(("acme/", "other/"))]
    assert [(line.subject, line.severity) for line in named] == [("acme/formerly", "warning")]
    assert "keep its name" in named[0].text


async def test_a_subscription_that_does_not_deliver_is_no_ok(tmp_path: Path) -> None:
    """While deliveries fail or are paused, a sink that answers is a warning with the reason and the remedy."""
    with running("valkey", tmp_path) as server:
        async with receiving() as receiver, commands(server.url) as client:
            receiver.answer = Reply(405)
            settings = configured(tmp_path).model_copy(update={"redis": RedisSettings(url=server.url), "sources": ()})
            registry = registry_of(settings, client)
            for name in ("failing", "paused", "well"):
                one = {"id": name, "sink": receiver.url, "allow_private": True}
                await registry.add(name, json.dumps(one).encode(), (), NOW)
            health = Health(NOW, failed=3, error="the sink answered 500")
            await registry.note_health("failing", FEEDS[0], msgspec.json.encode(health))
            await registry.pause("paused", Paused("operator", "moving", NOW))
            found = {one.subject: one async for one in check(settings, {}, clock=Clock())}
    failing, paused, well = (found[f"subscription {name}"] for name in ("failing", "paused", "well"))
    assert (failing.severity, paused.severity, well.severity) == ("warning", "warning", "ok")
    assert "; last error: the sink answered 500; poller subscriptions test failing" in failing.text
    assert ": moving; poller subscriptions resume paused" in paused.text
    for line in (failing, paused, well):
        assert "the sink is there (it answers 405 to OPTIONS, which says nothing about events)" in line.text


async def test_a_port_that_speaks_tls_is_told_from_one_that_does_not() -> None:
    """A port with TLS and a URL without, or the reverse, is reported; if both agree, nothing is."""
    async with tls_port() as port:
        assert "rediss://" in await until(partial(other_protocol, f"redis://127.0.0.1:{port}/0"), "a finding")
        assert await other_protocol(f"rediss://127.0.0.1:{port}/0") is None
    async with plain_port() as port:
        assert "speaks no TLS" in await until(partial(other_protocol, f"rediss://127.0.0.1:{port}/0"), "a finding")
        assert await other_protocol(f"redis://127.0.0.1:{port}/0") is None


@asynccontextmanager
async def tls_port() -> AsyncIterator[int]:
    """A port that speaks TLS only; the Valkey of the wheel has no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with served(context) as port:
        yield port


@asynccontextmanager
async def plain_port() -> AsyncIterator[int]:
    """A port that answers as a server without TLS does."""
    async with served(None) as port:
        yield port


@asynccontextmanager
async def served(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if await reader.read(1) == b"*":
                writer.write(b"+PONG\r\n")
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nowhere", "redis+cluster://127.0.0.1:1"])
async def test_where_nobody_answers_nothing_is_said(url: str) -> None:
    """If nothing answers, no line about the protocol is added."""
    assert await other_protocol(url) is None


async def store_line(url: str) -> CheckLine:
    environ = SOURCE | {"REDIS_URL": url}
    async with aclosing(check(load(None, environ), environ, clock=Clock())) as findings:
        return await anext(findings)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("redis://127.0.0.1:1/0", "no server listens there: start Redis, or correct redis.url, or REDIS_URL"),
        ("unix:///nowhere", "no server has made this socket: start Redis, or correct redis.url, or REDIS_URL"),
        ("redis://store.invalid/0", "check the name in redis.url, or REDIS_URL"),
        ("redis+cluster://127.0.0.1:1", "no server listens there"),
    ],
)
async def test_a_store_that_is_not_there_is_named_with_a_remedy(url: str, remedy: str) -> None:
    """A store that cannot be reached is an error that says what to do."""
    line = await store_line(url)
    assert (line.severity, line.subject) == ("error", "store")
    assert remedy in line.text


async def test_a_password_that_is_missing_or_wrong_is_to_be_put_where_it_may_stand(tmp_path: Path) -> None:
    """A store that refuses the login is an error that names the place of the password."""
    with running("valkey", tmp_path, appendfsync="no", tcp=True, options={"requirepass": "open-sesame"}) as server:
        missing = await store_line(server.url)
        wrong = await store_line(server.url.replace("//", "//:hunter2@"))
    assert "put the password into REDIS_URL" in missing.text
    assert "correct user and password in REDIS_URL" in wrong.text
    assert "hunter2" not in wrong.text


# The HTTP service: its address and its tokens.

SOURCE = {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}


def settings(directory: Path, bind: str, *more: str) -> Settings:
    file = directory / "poller.toml"
    file.write_text("\n".join((f'[http]\nbind = "{bind}"', *more)))
    return load(file, SOURCE)


async def found(directory: Path, bind: str, *more: str, environ: Mapping[str, str] = {}) -> list[CheckLine]:
    return await check_service(settings(directory, bind, *more), environ)


async def test_who_may_read_is_said(tmp_path: Path) -> None:
    """Closed reads, open reads, one token for both and an option without effect are warnings; two tokens are fine."""
    bind, here = "0.0.0.0:0", "127.0.0.1:0"
    both = {"POLLER_READ_TOKEN": "one", "POLLER_ADMIN_TOKEN": "two"}

    async def warnings(bind: str, *more: str, environ: Mapping[str, str] = {}) -> list[str]:
        return [one.text for one in await found(tmp_path, bind, *more, environ=environ) if one.severity == "warning"]

    [closed] = await warnings(bind)
    assert "http.read_token_file" in closed
    [opened] = await warnings(bind, "open_reads = true")
    assert "can read all records" in opened
    [idle] = await warnings(bind, "open_reads = true", environ=both)
    assert "no effect" in idle
    [same] = await warnings(bind, environ=dict.fromkeys(both, "s3cret"))
    assert ("are the same" in same, "s3cret" in same) == (True, False)
    assert await warnings(bind, environ=both) == await warnings(here) == []


async def test_an_address_that_is_off_is_not_looked_at(tmp_path: Path) -> None:
    """A service that is off gives no line."""
    assert await found(tmp_path, "off") == []


async def test_an_address_is_free_or_a_pollers_or_somebody_elses(tmp_path: Path) -> None:
    """An address that another program uses is a warning with the remedy; a free one or poller's own is ok."""

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": False, "reasons": []}, 503)

    with socket.socket() as other:
        bind = f"127.0.0.1:{(port := free_port())}"  # nobody else takes it between the two checks
        other.bind(("127.0.0.1", port))
        other.listen()
        other.settimeout(0)
        [taken] = await found(tmp_path, bind)
    assert (taken.severity, "POLLER_HTTP_BIND" in taken.text) == ("warning", True)
    [free] = await found(tmp_path, bind)
    assert (free.severity, free.text.endswith("is free")) == ("ok", True)
    async with listening(application(Route("/readyz", ready)), "127.0.0.1", 0, clock=Clock()) as url:
        bind = url.removeprefix("http://")

        async def answered() -> CheckLine | None:
            [ours] = await found(tmp_path, bind)
            return ours if ours.severity == "ok" else None

        ours = await until(answered, "an answer of the service")  # which a busy machine may give too late
        [another] = await check_service(settings(tmp_path, bind), {}, running=False)
    assert ours.text.startswith("a poller listens")
    # No daemon runs on this store: another one listens, and `run` could not bind the address.
    assert (another.severity, "POLLER_HTTP_BIND" in another.text) == ("warning", True)


async def test_an_address_of_another_machine_is_an_error(tmp_path: Path) -> None:
    """An address that this machine does not have is an error."""
    [one, *_] = await found(tmp_path, "192.0.2.1:8080")
    assert one.severity == "error"


async def test_a_token_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A token file that is missing or readable by all is an error; a private one is ok."""
    token = tmp_path / "admin"
    line = f'admin_token_file = "{token}"'
    [missing] = await found(tmp_path, "off", line)
    assert (missing.severity, str(token) in missing.text) == ("error", True)
    token.write_text("s3cret-of-the-operator")
    token.chmod(0o644)
    [public] = await found(tmp_path, "off", line)
    assert (public.severity, "chmod 600" in public.text, "s3cret" in public.text) == ("error", True, False)
    token.chmod(0o600)
    [good] = await found(tmp_path, "off", line)
    assert good.severity == "ok"


# Sinks: a check asks whether the sink is there, and sends no event.

NONE = SinkPermissions()
SECRET = "whsec_" + "A" * 32


async def checked(permissions: SinkPermissions = NONE, /, **settings: Any) -> tuple[str, str]:
    given = {"id": "rostering", "sink": "https://poller.invalid/hook", **settings}
    async with aclosing(
        check_sinks([SubscriptionSettings.model_validate(given)], {}, permissions, clock=Clock())
    ) as findings:
        (found,) = [one async for one in findings]
    assert found.subject == "subscription rostering"
    return found.severity, found.text


async def test_a_sink_that_answers_is_there_whatever_it_says(tmp_path: Path) -> None:
    """A sink gets OPTIONS and nothing else; the line says what that proves, and how its events will be signed."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    async with receiving() as receiver:
        receiver.answer = Reply(405)
        severity, text = await checked(sink=receiver.url, allow_private=True, secret_files=[str(secret)])
        assert [(request.method, request.body) for request in receiver.requests] == [("OPTIONS", b"")]
        made = SinkPermissions(made_secrets={"rostering": 1})
        with_file = await checked(made, sink=receiver.url, allow_private=True, secret_files=[str(secret)])
        without = await checked(made, sink=receiver.url, allow_private=True)
        receiver.answer = Reply(204)
        welcome = await checked(sink=receiver.url, allow_private=True)
    assert severity == "ok"
    there = "the sink is there (it answers 405 to OPTIONS, which says nothing about events)"
    assert text == f"{there}, signed with 1 secret"
    assert welcome[1].startswith("the sink is there (it answers 204 to OPTIONS)")
    assert with_file[1].endswith("signed with 2 secrets")
    assert without[1].endswith("signed with 1 secret")


async def test_what_keeps_events_from_a_sink_is_an_error_with_advice(tmp_path: Path) -> None:
    """An unreachable sink, a private address and an invalid secret are errors with advice."""
    severity, text = await checked(sink="http://127.0.0.1:1/", allow_private=True)
    assert (severity, "refused" in text, "start the receiver" in text) == ("error", True, True)
    severity, text = await checked(sink="https://localhost.localdomain.invalid/")
    assert severity == "error"
    secret = tmp_path / "secret"
    secret.write_text("whsec_short")
    secret.chmod(0o600)
    severity, text = await checked(secret_files=[str(secret)])
    assert (severity, "short" in text, f"{secret} holds no signing secret" in text) == ("error", False, True)
    secret.write_text(f"secret    {SECRET}\n")  # the whole output of `poller keys new`
    assert "a signing secret alone" in (await checked(secret_files=[str(secret)]))[1]
    secret.chmod(0o644)
    assert "chmod 600" in (await checked(secret_files=[str(secret)]))[1]


async def test_a_sink_that_closes_the_connection_is_said_to_have_been_asked_with_options() -> None:
    """A sink that closes the connection does so at OPTIONS, which the line says: it may take events all the same."""
    closing = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with closing:
        url = f"http://127.0.0.1:{closing.sockets[0].getsockname()[1]}/"
        severity, text = await checked(sink=url, allow_private=True)
    assert severity == "error"
    assert text.startswith("the connection was closed before there was an answer (asked with OPTIONS); ")
    assert "poller subscriptions test rostering sends one event" in text


async def test_a_sink_that_does_not_grant_events_is_an_error() -> None:
    """A sink without a grant is an error with the remedy; a grant, also by callback, is ok."""
    more: dict[str, Any] = {"allow_private": True, "validate": True}
    async with receiving() as receiver:
        receiver.answer = Reply(405)
        severity, text = await checked(sink=receiver.url, **more)
        assert (severity, "does not grant events" in text, "answered 405" in text) == ("error", True, True)
        assert "unset validate" in text
        called = SinkPermissions(None, {"rostering": encoded(Granted(origin(None)))})
        assert (await checked(called, sink=receiver.url, **more))[0] == "ok"
        receiver.answer = Reply(200)
        severity, text = await checked(SinkPermissions("https://p.example"), sink=receiver.url, **more)
        assert (severity, "callback" in text) == ("warning", True)
        receiver.answer = Reply(200, headers=(("WebHook-Allowed-Origin", "*"),))
        severity, text = await checked(sink=receiver.url, **more)
        assert (severity, text.endswith("not signed, and grants events")) == ("ok", True)
        assert receiver.requests[-1].header("WebHook-Request-Origin") == origin(None)
        assert receiver.requests[-1].header("WebHook-Request-Callback") is None


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("Mon, 02 Mar 2026 08:15:30 GMT", None),
        ("Mon, 02 Mar 2026 09:15:00 GMT", "3600 s ahead of"),
        ("Mon, 02 Mar 2026 08:10:00 GMT", "300 s behind"),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_clock_that_is_far_apart_is_told(date: str | None, words: str | None) -> None:
    """A clock that is more than a minute off is reported; an unreadable Date is not."""
    found = clock_apart(date, now=datetime(2026, 3, 2, 8, 15, tzinfo=UTC))
    assert (found is None) if words is None else (words in (found or ""))


# Choices of a subscription that no feed can match.


def settings_of_choices() -> Settings:
    return load(None, {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"})


def told_of_choices(**choice: Any) -> list[str]:
    given = {"id": "rostering", "sink": "https://rostering.example.org/hooks", **choice}
    return [one.text for one in check_choices(settings_of_choices(), SubscriptionSettings.model_validate(given))]


def test_what_can_be_met_is_not_told() -> None:
    """Types and filters that some chosen feed can match give no line."""
    assert told_of_choices() == []
    assert told_of_choices(types=["org.example.api.contractType.removed.v1"]) == []
    assert told_of_choices(filters=[{"exact": {"source": "https://api.example.org/contractTypes"}}]) == []
    assert told_of_choices(types=["org.example.api.contractType.removed.v1"], feeds=["default/contractTypes"]) == []


def test_a_typing_error_is_told_with_what_was_meant() -> None:
    """A type, source or feed that nothing can match is reported with the likely intended one."""
    [wrong_type] = told_of_choices(types=["org.example.api.contractTypes.created.v1"])
    assert wrong_type.endswith('; did you mean "org.example.api.contractType.created.v1"?')
    assert len(told_of_choices(types=["org.example.api.contractType.created.v1"], feeds=["default/achievements"])) == 1
    source = {"filters": [{"exact": {"source": "https://api.example.org/contractType"}}]}
    [wrong_source] = told_of_choices(**source)
    assert wrong_source.endswith('; did you mean "https://api.example.org/contractTypes"?')
    [wrong_feed] = told_of_choices(feeds=["default/contractType"])
    assert wrong_feed.endswith('no feed of this configuration; did you mean "default/contractTypes"?')
