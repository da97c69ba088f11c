"""Laws of :mod:`poller.web.auth`: who may read and change, what others are answered, and that no token is shown."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.config.settings import HttpSettings, ListenAddress
from poller.daemon.health import Readiness, StoreMonitor
from poller.http.server import listening
from poller.web.app import application, declared, routes_of
from poller.web.auth import ADDRESSES, MOST, WINDOW, FailedAttempts, may_be_asked_for, names_of
from poller.web.context import AppContext
from tests.harness.clock import FakeClock, StubClock
from tests.web.served import FEEDS, NOW, TOKEN, Served, configured, served

OTHER = TOKEN[::-1]
ORDER = f"/feeds/{FEEDS[0]}/resync"
CHANGING = (
    (ORDER, "POST"),
    (f"/feeds/{FEEDS[0]}/release", "POST"),
    (f"/feeds/{FEEDS[0]}/pause", "POST"),
    (f"/feeds/{FEEDS[0]}/resume", "POST"),
    ("/subscriptions", "POST"),
    ("/subscriptions/filed", "PUT"),
    ("/subscriptions/filed", "DELETE"),
    ("/subscriptions/filed/pause", "POST"),
    ("/subscriptions/filed/resume", "POST"),
)


async def test_without_a_token_nobody_changes_anything(tmp_path: Path, store_url: str) -> None:
    """Without a configured admin token every change gets 403 with the remedy, whatever token is sent."""
    async with served(configured(tmp_path, store_url, "filed", admin=False)) as given:
        for path, method in CHANGING:
            status, _, told = await given.ask(path, method)
            assert status == 403
            assert "http.admin_token_file" in told["detail"]


async def test_another_token_is_refused_and_not_repeated(given: Served) -> None:
    """A missing or wrong token gets 401; the log names the client and no token; the right token is accepted."""
    wrong = f"{TOKEN[:-1]}x"
    with capture_logs() as logs:
        for path, method in CHANGING:
            for headers in (
                {},
                {"authorization": f"Bearer {wrong}"},
                {"authorization": f"Basic {TOKEN}"},
                {"authorization": "Bearer"},
                {"authorization": f"Bearer {TOKEN}x"},
            ):
                status, answered, told = await given.ask(path, method, token=None, headers=headers)
                assert status == 401
                assert answered["www-authenticate"].startswith('Bearer realm="poller"')
                assert wrong not in str(told)
    assert {line["event"] for line in logs} == {"wrong admin token"}
    assert {line["client"] for line in logs} == {"127.0.0.1"}
    assert TOKEN[:-1] not in str(logs)
    assert (await given.ask(ORDER, "POST", headers={"authorization": f"bearer {TOKEN}"}))[0] == 409


async def test_the_token_may_be_replaced(given: Served) -> None:
    """The token file is read on each request; a world-readable one gets 503, and only the log says why."""
    file = given.settings.http.admin_token_file
    assert file is not None
    file.write_text(OTHER, "utf-8")
    assert (await given.ask(ORDER, "POST"))[0] == 401
    assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 409
    file.chmod(0o644)
    with capture_logs() as logs:
        status, _, told = await given.ask(ORDER, "POST", token=OTHER)
    assert status == 503
    assert str(file) not in str(told)
    assert "chmod 600" in logs[0]["error"]


async def test_guessing_ends(given: Served) -> None:
    """After many wrong tokens from an address, further ones get 429 for a time; the right token is still accepted."""
    for _ in range(MOST):
        assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 401
    with capture_logs() as logs:
        status, headers, _ = await given.ask(ORDER, "POST", token=OTHER)
    assert (status, logs) == (429, [])
    assert 0 < int(headers["retry-after"]) <= 60
    assert (await given.ask(ORDER, "POST"))[0] == 409
    assert (await given.ask("/feeds"))[0] == 200


async def test_here_reading_needs_none(given: Served) -> None:
    """On loopback without a read token, reading needs no token."""
    for path in ("/", "/livez", "/feeds", f"/feeds/{FEEDS[0]}", "/subscriptions", "/subscriptions/filed", "/schemas/"):
        assert (await given.ask(path, token=None))[0] == 200


READ = "the-read-token-of-this-test"
ANYWHERE = 'bind = "0.0.0.0:8080"'
HIDDEN = (
    "/",
    "/feeds",
    f"/feeds/{FEEDS[0]}",
    "/subscriptions",
    "/subscriptions/filed",
    "/events",
    "/events?from=earliest",
)
FREE = ("/livez", "/asyncapi.json", "/openapi.json", "/schemas/", "/schemas/config.json")


def environ(**more: str) -> dict[str, str]:
    """The environment with the read token."""
    return {"POLLER_READ_TOKEN": READ, **more}


async def test_elsewhere_nobody_reads_without_a_token(tmp_path: Path, store_url: str) -> None:
    """Off loopback without a token, what shows records gets 403 with the remedy; probes and schemas are open."""
    with capture_logs() as logs:
        async with served(configured(tmp_path, store_url, "filed", http=ANYWHERE, admin=False)) as given:
            for path in HIDDEN:
                for method in ("GET", "HEAD"):
                    status, _, told = await given.ask(path, method)
                    assert status == 403, path
                    assert method == "HEAD" or "http.read_token_file" in told["detail"]
            for path in FREE:
                assert (await given.ask(path, token=None))[0] == 200
            assert (await given.ask("/readyz", token=None))[0] in {200, 503}
    assert [line["event"] for line in logs] == ["reading over HTTP is refused"]


async def test_the_probe_repeats_no_answer(tmp_path: Path, store_url: str) -> None:
    """/readyz shows error texts of APIs and sinks, which may hold records, only to clients that may read."""
    clock = asyncio.get_running_loop().time
    readiness = Readiness(StoreMonitor("warn", clock=StubClock(now=lambda: NOW, monotonic=clock)))
    readiness.delivering(lambda: {"filed": "500: a record, repeated"})
    for http, anybody in (("", True), (ANYWHERE, False)):
        backing = AppContext(
            configured(tmp_path, store_url, http=http),
            environ() if not anybody else {},
            clock=StubClock(now=lambda: NOW),
        )
        routes = routes_of(backing, readiness, lambda: None)
        async with (
            listening(application(*routes), "127.0.0.1", 0, clock=Clock()) as url,
            aiohttp.ClientSession() as client,
        ):
            for headers, told in (({}, anybody), ({"authorization": f"Bearer {READ}"}, True)):
                async with client.get(f"{url}/readyz", headers=headers) as answer:
                    said = await answer.json()
                assert set(said["subscriptions"]) == {"filed"}
                assert ("a record" in str(said)) is told


async def test_reads_may_be_opened(tmp_path: Path, store_url: str) -> None:
    """``open_reads`` opens reading where no read token is set, and has no effect where one is."""
    settings = configured(tmp_path, store_url, http=f"{ANYWHERE}\nopen_reads = true")
    async with served(settings) as given:
        assert (await given.ask("/feeds", token=None))[0] == 200
    async with served(settings, environ()) as given:
        assert (await given.ask("/feeds", token=None))[0] == 401


@pytest.mark.parametrize("http", ["", ANYWHERE], ids=["loopback", "anywhere"])
async def test_a_read_token_is_needed_where_one_is_set(http: str, tmp_path: Path, store_url: str) -> None:
    """A missing or wrong read token gets 401 with a challenge; read token and admin token both read."""
    async with served(configured(tmp_path, store_url, "filed", http=http), environ()) as given:
        for path in HIDDEN:
            for headers in ({}, {"authorization": f"Bearer {READ}x"}, {"authorization": READ}):
                status, answered, told = await given.ask(path, token=None, headers=headers)
                assert status == 401, path
                assert answered["www-authenticate"].startswith("Bearer")
                assert READ not in str(told)
            for token in (READ, TOKEN):
                assert (await given.ask(path, "HEAD", token=token))[0] == 200, path
        for path in FREE:
            assert (await given.ask(path, token=None))[0] == 200


async def test_every_route_is_closed_or_known_to_be_free(tmp_path: Path, store_url: str) -> None:
    """Every route needs a token unless it is in the list of open routes."""
    settings = configured(tmp_path, store_url, "filed")
    clock = asyncio.get_running_loop().time
    backing, readiness = (
        AppContext(settings, clock=StubClock(now=lambda: NOW)),
        Readiness(StoreMonitor("warn", clock=StubClock(now=lambda: NOW, monotonic=clock))),
    )
    routes = routes_of(backing, readiness, lambda: None)
    unrestricted = {
        "/livez",
        "/readyz",
        "/asyncapi.json",
        "/openapi.json",
        "/schemas",
        "/schemas/",
        "/schemas/{name}.json",
        "/webhooks/callback",
    }
    async with served(settings, environ()) as given:
        for route in routes:
            path = declared(route).format_map(
                {"source": "acme", "name": "contractTypes", "subscription": "filed", "record": "1"}
            )
            for method in sorted((route.methods or set()) - {"OPTIONS"}):
                status, _, _ = await given.ask(path, method, token=None)
                assert (status == 401) is (route.path not in unrestricted), (method, path)


async def test_the_read_token_changes_nothing(tmp_path: Path, store_url: str) -> None:
    """The read token gets 403 for a change and is not counted as a guess; Basic credentials cannot change anything."""
    async with served(configured(tmp_path, store_url, "filed"), environ()) as given:
        for path, method in CHANGING:
            with capture_logs() as logs:
                status, answered, _ = await given.ask(path, method, token=READ)
            assert (status, logs) == (403, [])
            assert "insufficient_scope" in answered["www-authenticate"]
            basic = b64encode(f":{TOKEN}".encode()).decode()
            assert (await given.ask(path, method, token=None, headers={"authorization": f"Basic {basic}"}))[0] == 401


async def test_the_admin_token_reads_alone(tmp_path: Path, store_url: str) -> None:
    """Off loopback without a read token the admin token reads, a wrong token gets 401 and none gets 403."""
    async with served(configured(tmp_path, store_url, http=ANYWHERE)) as given:
        assert (await given.ask("/feeds", token=None))[0] == 403
        assert (await given.ask("/feeds", token=OTHER))[0] == 401
        assert (await given.ask("/feeds"))[0] == 200


async def test_admin_token_of_the_environment(tmp_path: Path, store_url: str) -> None:
    """POLLER_ADMIN_TOKEN takes precedence over the file."""
    async with served(configured(tmp_path, store_url), {"POLLER_ADMIN_TOKEN": f"{OTHER}\n"}) as given:
        assert (await given.ask(ORDER, "POST"))[0] == 401
        assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 409
    async with served(configured(tmp_path, store_url, admin=False), {"POLLER_ADMIN_TOKEN": OTHER}) as given:
        assert (await given.ask(ORDER, "POST", token=OTHER))[0] == 409


async def test_a_browser_is_asked_for_the_token(tmp_path: Path, store_url: str) -> None:
    """A browser is challenged for a password, which may be either token; no log shows it."""
    page = {"accept": "text/html,*/*;q=0.8"}
    async with served(configured(tmp_path, store_url, http=ANYWHERE), environ()) as given:
        status, answered, _ = await given.ask("/", token=None, headers=page)
        assert status == 401
        assert answered["www-authenticate"] == 'Bearer realm="poller", Basic realm="poller", charset="UTF-8"'
        for token in (READ, TOKEN):
            basic = {"authorization": "Basic " + b64encode(f"anybody:{token}".encode()).decode()}
            for path in ("/", "/feeds", "/subscriptions"):
                assert (await given.ask(path, token=None, headers=page | basic))[0] == 200
        for wrong in ("Basic", "Basic !", "Basic " + b64encode(f"{READ}:".encode()).decode(), "Basic /w=="):
            with capture_logs() as logs:
                assert (await given.ask("/", token=None, headers=page | {"authorization": wrong}))[0] == 401
            assert READ not in str(logs)


async def test_who_is_passed_on_by_a_proxy_is_not_here(tmp_path: Path, store_url: str) -> None:
    """On loopback without a token, a request that a proxy forwards cannot read; the message names the proxy."""
    public = 'public_url = "https://poller.example.org"'
    settings = configured(tmp_path, store_url, http=public)
    passed = [
        {"x-forwarded-for": "192.0.2.7"},
        {"x-forwarded-proto": "https"},
        {"forwarded": "for=192.0.2.7"},
        {"x-real-ip": "192.0.2.7"},
        {"via": "1.1 proxy"},
        {"host": "poller.example.org"},
        {"host": "192.0.2.1:80"},
    ]
    async with served(settings) as given:
        for headers in passed:
            status, _, told = await given.ask("/feeds", token=None, headers=headers)
            assert (status, "proxy" in told["detail"]) == (403, True)
            assert (await given.ask("/feeds", headers=headers))[0] == 200  # by the admin token
            assert (await given.ask("/livez", token=None, headers=headers))[0] == 200
        for host in ("localhost", "[::1]:80", "127.0.0.1", "LOCALHOST.:8080"):
            assert (await given.ask("/feeds", token=None, headers={"host": host}))[0] == 200
    async with served(configured(tmp_path, store_url, http=f"{public}\nopen_reads = true")) as given:
        for headers in passed:
            assert (await given.ask("/feeds", token=None, headers=headers))[0] == 200


async def test_who_asks_as_a_proxy_does_that_leaves_no_header_is_not_here(tmp_path: Path, store_url: str) -> None:
    """A proxy that uses HTTP/1.0 and adds no header needs a token to read."""
    async with (
        served(configured(tmp_path, store_url)) as given,
        aiohttp.ClientSession(version=aiohttp.HttpVersion10) as nginx,
    ):
        as_nginx = replace(given, http=nginx)
        for path in ("/", "/feeds", "/subscriptions", "/events?from=earliest"):
            status, _, told = await as_nginx.ask(path, token=None)
            assert (status, "proxy" in told["detail"]) == (403, True)
        assert (await as_nginx.ask("/feeds"))[0] == 200  # by the admin token
        assert (await as_nginx.ask("/livez", token=None))[0] == 200


async def test_guessing_the_read_token_ends(tmp_path: Path, store_url: str) -> None:
    """Wrong tokens are counted together for reading and changing; the right token is still accepted."""
    async with served(configured(tmp_path, store_url), environ()) as given:
        with capture_logs() as logs:
            for turn in range(MOST):
                path, method = (ORDER, "POST") if turn % 2 else ("/events", "GET")
                assert (await given.ask(path, method, token=OTHER))[0] == 401
        assert {line["event"] for line in logs} == {"wrong admin token", "wrong read token"}
        status, headers, _ = await given.ask("/feeds", token=OTHER)
        assert (status, "retry-after" in headers) == (429, True)
        assert (await given.ask("/feeds", token=READ))[0] == 200


async def test_a_read_token_that_cannot_be_read_closes(tmp_path: Path, store_url: str) -> None:
    """With an unreadable read token file the read token gets 503, the admin token reads, and the log says why, once."""
    token = tmp_path / "read"
    settings = configured(tmp_path, store_url, http=f'read_token_file = "{token}"')
    for mode in (None, 0o644):
        if mode:
            token.write_text(READ)
            token.chmod(mode)
        with capture_logs() as logs:
            async with served(settings) as given:
                assert (await given.ask("/feeds", token=READ))[0] == 503
                assert (await given.ask("/feeds", token=None))[0] == 401
                assert (await given.ask("/feeds"))[0] == 200
        assert [line["event"] for line in logs].count("a token of the HTTP service cannot be read") == 1
    token.chmod(0o600)
    async with served(settings) as given:
        assert (await given.ask("/feeds", token=READ))[0] == 200


# Laws of :mod:`poller.web.auth`: failed attempts are limited for each address, and few are remembered.


def test_so_many_in_a_while() -> None:
    """An address that has used up its attempts waits until the window has passed; other addresses do not."""
    clock = FakeClock(monotonic=100)
    guesses = FailedAttempts(clock)
    for _ in range(MOST):
        assert guesses.wait("a") == 0
        guesses.wrong("a")
    assert guesses.wait("a") == WINDOW
    assert guesses.wait("b") == 0
    clock.move(WINDOW - 1)
    assert guesses.wait("a") == 1
    clock.move(1)
    assert guesses.wait("a") == 0
    guesses.wrong("a")
    assert guesses.wait("a") == 0


def test_what_is_remembered_is_bounded() -> None:
    """Beyond the limit of addresses the one with the oldest failure is forgotten."""
    guesses = FailedAttempts(FakeClock())
    for _ in range(MOST):
        guesses.wrong("first")
    for number in range(ADDRESSES - 1):
        guesses.wrong(str(number))
    assert guesses.wait("first") > 0
    guesses.wrong("one more")
    assert guesses.wait("first") == 0


# Laws of :mod:`poller.web.auth`: on loopback a request for a foreign host name is refused.

NAMES = frozenset({"localhost", "poller.example.org"})


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8080",
        "[::1]:8080",
        "[::1]",
        "localhost",
        "LOCALHOST:80",
        "localhost.:80",
        "192.0.2.1",
        "poller.example.org:443",
    ],
)
def test_own_names(host: str) -> None:
    """IP addresses, localhost and the public name are accepted as Host."""
    assert may_be_asked_for(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "",
        *[
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1",
            "evil.example:8080",
            "0x7f.1",
            "2130706433",
            "127.0.0.1#.evil.example",
            "127.0.0.1/.evil.example",
            "127.0.0.1?.evil.example",
            "127.0.0.1\\.evil.example",
            "evil.example@127.0.0.1",
            "127.0.0.1@evil.example",
            "[::1%25evil.example]",
            "[::1%lo]",
            "[::1].evil.example",
            "[127.0.0.1]",
            "localhost:80:80",
            "localhost:evil",
            "localhost, evil.example",
            " localhost",
        ],
    ],
)
def test_other_names(host: str) -> None:
    """Any other Host is refused, including texts that some parsers read as an address."""
    assert not may_be_asked_for(host, NAMES)


def test_only_where_nobody_else_reaches_it() -> None:
    """Host names are checked on loopback in any spelling, and not on other interfaces."""
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert names_of(HttpSettings(bind=ListenAddress(host, 1))) == frozenset({"localhost"})
    public = HttpSettings(bind=ListenAddress("::1", 1), public_url="https://poller.example.org/x")
    assert names_of(public) == NAMES
    for host in ("0.0.0.0", "::", "192.0.2.1", "box.example.org"):  # noqa: S104 -- nothing listens
        assert names_of(HttpSettings(bind=ListenAddress(host, 1))) is None


@pytest.mark.parametrize("host", ["127.0.0.1#.evil.example", "evil.example@127.0.0.1", "[::1%25evil.example]", "a b"])
async def test_a_host_that_is_none_is_not_this_machine(host: str, tmp_path: Path, store_url: str) -> None:
    """Off loopback a malformed Host does not count as a local request, so it needs a token."""
    async with served(configured(tmp_path, store_url, http=ANYWHERE), environ()) as given:
        assert (await given.ask("/feeds", token=None, headers={"host": host}))[0] in {401, 403}


async def test_rebinding_is_answered_421(tmp_path: Path, store_url: str) -> None:
    """On loopback a foreign Host gets 421 on every path; on all interfaces it is accepted."""
    foreign = {"host": "evil.example"}
    async with served(configured(tmp_path, store_url)) as given:
        for path in ("/feeds", "/livez", "/events", "/none"):
            status, headers, told = await given.ask(path, token=TOKEN, headers=foreign)
            assert (status, told["status"]) == (421, 421)
            assert headers["x-content-type-options"] == "nosniff"
    async with served(configured(tmp_path, store_url, http='bind = "0.0.0.0:8080"')) as given:
        assert (await given.ask("/feeds", headers=foreign))[0] == 200
