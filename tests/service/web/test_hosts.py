"""Laws of :mod:`poller.service.web.hosts`: on loopback no foreign name leads here."""

from __future__ import annotations

from pathlib import Path

import pytest

from poller.config.daemon import Address, HttpSettings
from poller.service.web.hosts import may_be_asked_for, names_of
from tests.service.web.served import TOKEN, configured, served

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
    """Addresses of whatever kind, this machine, and the public name."""
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
        ],
    ],
)
def test_other_names(host: str) -> None:
    """Whatever else, also what some read an address in."""
    assert not may_be_asked_for(host, NAMES)


def test_only_where_nobody_else_reaches_it() -> None:
    """On loopback, by whichever spelling; on all interfaces names are free."""
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert names_of(HttpSettings(bind=Address(host, 1))) == frozenset({"localhost"})
    public = HttpSettings(bind=Address("::1", 1), public_url="https://poller.example.org/x")
    assert names_of(public) == NAMES
    for host in ("0.0.0.0", "::", "192.0.2.1", "box.example.org"):  # noqa: S104 -- nothing listens
        assert names_of(HttpSettings(bind=Address(host, 1))) is None


async def test_rebinding_is_answered_421(tmp_path: Path, store_url: str) -> None:
    """Whatever is asked for, reading too; and anything goes where others may reach the service."""
    foreign = {"host": "evil.example"}
    async with served(configured(tmp_path, store_url)) as given:
        for path in ("/feeds", "/livez", "/events", "/none"):
            status, headers, told = await given.ask(path, token=TOKEN, headers=foreign)
            assert (status, told["status"]) == (421, 421)
            assert headers["x-content-type-options"] == "nosniff"
    async with served(configured(tmp_path, store_url, http='bind = "0.0.0.0:8080"')) as given:
        assert (await given.ask("/feeds", headers=foreign))[0] == 200
