"""Laws of :mod:`poller.service.checking_service`: who has the address, and whether the token can be read."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from poller.config.load import load
from poller.http.listening import listening
from poller.service.checking_service import check_service
from poller.service.web.application import application

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from poller.config.settings import Settings
    from poller.service.findings import Checked

SOURCE = {"POLLER_BASE_URL": "https://api.example.org", "POLLER_TOKEN": "x"}


def settings(directory: Path, bind: str, *more: str) -> Settings:
    file = directory / "poller.toml"
    file.write_text("\n".join((f'[http]\nbind = "{bind}"', *more)))
    return load(file, SOURCE)


async def found(directory: Path, bind: str, *more: str, environ: Mapping[str, str] = {}) -> list[Checked]:
    return await check_service(settings(directory, bind, *more), environ)


async def test_who_may_read_is_said(tmp_path: Path) -> None:
    """Closed reads, open ones, one token for both and an option without effect are warnings; two tokens are none."""
    bind, here = "0.0.0.0:0", "127.0.0.1:0"
    both = {"POLLER_READ_TOKEN": "one", "POLLER_ADMIN_TOKEN": "two"}

    async def warnings(bind: str, *more: str, environ: Mapping[str, str] = {}) -> list[str]:
        return [one.text for one in await found(tmp_path, bind, *more, environ=environ) if one.severity == "warning"]

    [closed] = await warnings(bind)
    assert "http.read_token_file" in closed
    [opened] = await warnings(bind, "open_reads = true")
    assert "reads all records" in opened
    [idle] = await warnings(bind, "open_reads = true", environ=both)
    assert "no effect" in idle
    [same] = await warnings(bind, environ=dict.fromkeys(both, "s3cret"))
    assert ("are the same" in same, "s3cret" in same) == (True, False)
    assert await warnings(bind, environ=both) == await warnings(here) == []


async def test_an_address_that_is_off_is_not_looked_at(tmp_path: Path) -> None:
    """Nothing is said of what is not there."""
    assert await found(tmp_path, "off") == []


async def test_an_address_is_free_or_a_pollers_or_somebody_elses(tmp_path: Path) -> None:
    """Only the last is worth a warning, and that says what to set."""

    async def ready(_: Request) -> Response:
        return JSONResponse({"ready": False, "reasons": []}, 503)

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        bind = f"127.0.0.1:{other.getsockname()[1]}"
        other.listen()
        other.settimeout(0)
        [taken] = await found(tmp_path, bind)
    assert (taken.severity, "POLLER_HTTP_BIND" in taken.text) == ("warning", True)
    [free] = await found(tmp_path, bind)
    assert (free.severity, free.text.endswith("is free")) == ("ok", True)
    async with listening(application(Route("/readyz", ready)), "127.0.0.1", 0) as url:
        bind = url.removeprefix("http://")
        [ours] = await found(tmp_path, bind)
        [another] = await check_service(settings(tmp_path, bind), {}, running=False)
    assert (ours.severity, ours.text.startswith("a poller listens")) == ("ok", True)
    # No daemon runs on this store: what listens is another one, and `run` could not have its address.
    assert (another.severity, "POLLER_HTTP_BIND" in another.text) == ("warning", True)


async def test_an_address_of_another_machine_is_an_error(tmp_path: Path) -> None:
    """The daemon would not start with it."""
    [one, *_] = await found(tmp_path, "192.0.2.1:8080")
    assert one.severity == "error"


async def test_a_token_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Missing, open to all, or as it should be."""
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
