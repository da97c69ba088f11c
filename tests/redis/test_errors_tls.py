"""Laws of :mod:`poller.redis.errors` over TLS: one line says what is wrong."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
import trustme

from poller.errors import ConfigurationError, StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import commands
from poller.redis.errors import tls_words, translated
from tests.servers import KINDS, Kind, NotStarted, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> trustme.CA:
    return trustme.CA()


@contextmanager
def secured(kind: Kind, directory: Path, authority: trustme.CA, certificate: trustme.LeafCert) -> Iterator[str]:
    """A server that speaks only TLS, with the password ``secret``; its address. Skips if it is built without TLS."""
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    port = free_port()
    options = {
        "port": "0",
        "tls-port": str(port),
        "tls-cert-file": str(directory / "server.pem"),
        "tls-key-file": str(directory / "server.pem"),
        "tls-ca-cert-file": str(directory / "ca.pem"),
        "tls-auth-clients": "optional",
        "requirepass": "secret",
    }
    try:
        with running(kind, directory / "s", tcp=True, options=options) as server:
            assert server.pid
            yield f"127.0.0.1:{port}"
    except NotStarted as failure:
        if "Failed finding TLS support" in str(failure):
            pytest.skip(f"this {kind} is built without TLS")
        raise


async def pinged(url: str) -> bool:
    async with commands(url) as client:
        with translated(client):
            return bool(await client.ping())


async def refused(url: str, kind: type[StoreError], words: str) -> None:
    """One command fails with these words, on one line and without the password."""
    with pytest.raises(kind, match=words) as failure:
        await pinged(url)
    assert "\n" not in str(failure.value)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_right_works_and_what_is_wrong_is_told(kind: Kind, authority: trustme.CA, tmp_path: Path) -> None:
    """TLS works with the right authority and a client certificate; a wrong authority or password is named."""
    other, ours = tmp_path / "other.pem", tmp_path / "ours.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(ours))
    with secured(kind, tmp_path, authority, authority.issue_cert("127.0.0.1")) as address:
        good = f"rediss://:secret@{address}/0?ssl_ca_certs={tmp_path}/ca.pem"
        assert await pinged(good)
        assert await pinged(f"{good}&ssl_certfile={ours}&ssl_keyfile={ours}")
        for url, kind_of_error, words in (
            (good.replace(":secret@", ":wrong@"), StoreRefused, "invalid username-password pair"),
            (good.replace(":secret@", ""), StoreRefused, "Authentication required"),
            (good.replace("ca.pem", "other.pem"), StoreUnavailable, "not accepted: self-signed.*ssl_ca_certs"),
            (good.partition("?")[0], StoreUnavailable, "not accepted: self-signed.*ssl_ca_certs"),
            (good.replace("rediss", "redis").partition("?")[0], StoreUnavailable, address),
        ):
            await refused(url, kind_of_error, words)
        missing = good.replace("ca.pem", "none.pem")
        with pytest.raises(ConfigurationError, match=r"ssl_ca_certs .*none\.pem: No such file"):
            await pinged(missing)


@pytest.mark.parametrize(
    ("host", "until", "words"),
    [
        ("db.example.org", None, "not valid for '127.0.0.1'.*name the host that it was issued for"),
        ("127.0.0.1", PAST, "has expired; renew the server's certificate"),
    ],
)
async def test_a_certificate_that_is_not_right(
    host: str, until: datetime | None, words: str, authority: trustme.CA, tmp_path: Path
) -> None:
    """A certificate of another host or an expired one makes the store unavailable, with the reason."""
    since = None if until is None else datetime(2019, 1, 1, tzinfo=UTC)
    certificate = authority.issue_cert(host, not_before=since, not_after=until)
    with secured("redis", tmp_path, authority, certificate) as address:
        await refused(f"rediss://:secret@{address}/0?ssl_ca_certs={tmp_path}/ca.pem", StoreUnavailable, words)


def test_something_else_than_tls_is_told_as_such() -> None:
    """An answer without TLS is reported with the advice to check the URL's scheme."""
    text = "Error 1 connecting to db:6379. [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)."
    assert tls_words(text) == (
        "TLS fails: wrong version number; does the server speak TLS on this port? Without, it is redis:// and not rediss://"
    )


def test_other_words_are_left_alone() -> None:
    """A text that is not of OpenSSL gets no TLS explanation."""
    assert tls_words("Connection refused") is None
    assert tls_words("certificate has expired") is None
