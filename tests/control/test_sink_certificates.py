"""Laws of a subscription's ca_file, client_cert_file and client_key_file, with a real authority and real handshakes."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.config.subscriptions import SubscriptionSettings
from poller.control.factories import sink_of
from poller.delivery.sinks.base import Failure, Outcome, SinkEvent
from poller.errors import ConfigurationError
from tests.delivery.events import pair, spelled
from tests.receiver import receiving

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Certificates(NamedTuple):
    """A private authority in a file, and a client certificate and its key, in one file and in two."""

    authority: trustme.CA
    ca: Path
    both: Path
    cert: Path
    key: Path


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    one = authority.issue_cert("poller@example.org")
    files = Certificates(authority, *(tmp_path / f"{name}.pem" for name in ("ca", "both", "cert", "key")))
    files.both.write_bytes(one.private_key_pem.bytes() + one.cert_chain_pems[0].bytes())
    files.cert.write_bytes(one.cert_chain_pems[0].bytes())
    files.key.write_bytes(one.private_key_pem.bytes())
    return files


def server(authority: trustme.CA, *, clients: trustme.CA | None = None, version: ssl.TLSVersion | None = None) -> Any:
    """The TLS context of a sink; ``clients`` is the authority whose client certificates it demands, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        clients.configure_trust(context)
    if version:
        context.maximum_version = version
    return context


async def posted(url: str, **files: Path) -> Outcome:
    given: dict[str, Any] = {"id": "a", "sink": url, "allow_private": True, **files}
    async with sink_of(SubscriptionSettings.model_validate(given), {}, clock=Clock()) as sink:
        return await sink.send([SinkEvent(*pair(spelled()))])


async def test_files_that_are_renewed_are_used_for_the_next_request(made: Certificates) -> None:
    """Renewed files of authority, certificate and key are used by the next request of the same sink."""
    before, after = made.authority, trustme.CA()
    async with receiving(tls=server(before, clients=before)) as old, receiving(tls=server(after, clients=after)) as new:
        settings = SubscriptionSettings.model_validate(
            {"id": "a", "sink": old.url, "allow_private": True}
            | {"ca_file": made.ca, "client_cert_file": made.cert, "client_key_file": made.key}
        )
        event = [SinkEvent(*pair(spelled()))]
        async with (
            sink_of(settings, {}, clock=Clock()) as at_old,
            sink_of(settings.model_copy(update={"sink": new.url}), {}, clock=Clock()) as at_new,
        ):
            assert (await at_old.send(event)).is_delivered
            assert (await at_new.send(event)).failure is Failure.TLS
            after.cert_pem.write_to_path(made.ca)
            other = after.issue_cert("poller@example.org")
            made.cert.write_bytes(other.cert_chain_pems[0].bytes())
            refused = await at_new.send(event)  # the certificate is renewed, the key not yet
            assert refused.failure is Failure.TLS
            assert refused.error.startswith("the certificates of a sink cannot be used (")
            made.key.write_bytes(other.private_key_pem.bytes())
            assert (await at_new.send(event)).is_delivered
            assert (await at_old.send(event)).failure is Failure.TLS  # the former authority is no longer trusted


async def test_files_that_are_gone_leave_the_last_good_ones_in_use(made: Certificates) -> None:
    """An unfinished renewal of certificates stops no delivery, and is logged once for each change."""
    async with receiving(tls=server(made.authority, clients=made.authority)) as receiver:
        settings = SubscriptionSettings.model_validate(
            {"id": "a", "sink": receiver.url, "allow_private": True, "ca_file": made.ca, "client_cert_file": made.both}
        )
        event = [SinkEvent(*pair(spelled()))]
        with capture_logs() as said:
            async with sink_of(settings, {}, clock=Clock()) as sink:
                for change in (made.ca.unlink, lambda: made.both.write_bytes(b"nonsense"), made.both.unlink):
                    change()
                    for _ in range(2):
                        assert (await sink.send(event)).is_delivered
        assert [line["event"] for line in said] == ["certificates not renewed"] * 3
        assert str(made.ca) in said[0]["error"]


async def test_a_private_authority_is_trusted_where_it_is_named(made: Certificates) -> None:
    """A private authority is trusted only where it is named; otherwise the error names the key to set."""
    async with receiving(tls=server(made.authority)) as receiver:
        assert (await posted(receiver.url, ca_file=made.ca)).is_delivered
        refused = await posted(receiver.url)
        assert receiver.count == 1
    assert refused.failure is Failure.TLS
    assert refused.error.startswith("the sink's certificate is not accepted: unable to get local issuer certificate; ")
    assert refused.error.endswith("set ca_file of the subscription to the certificate of the authority that issued it")


async def test_with_a_ca_file_the_systems_authorities_vouch_for_nothing(made: Certificates) -> None:
    """The ca_file replaces the system's authorities."""
    async with receiving(tls=server(trustme.CA())) as receiver:
        assert (await posted(receiver.url, ca_file=made.ca)).failure is Failure.TLS
        assert receiver.count == 0


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_client_certificate_is_shown_where_it_is_demanded(version: ssl.TLSVersion, made: Certificates) -> None:
    """A client certificate works with its key in one file or two; a missing or wrong one is named in the error."""
    async with receiving(tls=server(made.authority, clients=made.authority, version=version)) as receiver:
        assert (await posted(receiver.url, ca_file=made.ca, client_cert_file=made.both)).is_delivered
        apart = {"client_cert_file": made.cert, "client_key_file": made.key}
        assert (await posted(receiver.url, ca_file=made.ca, **apart)).is_delivered
        without = await posted(receiver.url, ca_file=made.ca)
        assert receiver.count == 2
    assert without.failure is not None
    assert "client_cert_file" in without.error
    async with receiving(tls=server(made.authority, clients=trustme.CA(), version=version)) as receiver:
        other = await posted(receiver.url, ca_file=made.ca, client_cert_file=made.both)
        assert receiver.count == 0
    assert other.failure is not None
    assert "client_cert_file" in other.error


async def test_files_that_cannot_be_used_are_named(made: Certificates, tmp_path: Path) -> None:
    """Unusable files are named in plain words, and an encrypted key asks for no passphrase."""
    garbage, encrypted = tmp_path / "garbage.pem", tmp_path / "encrypted.pem"
    garbage.write_text("no")
    key = load_pem_private_key(made.key.read_bytes(), None)
    encrypted.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    other = tmp_path / "other.pem"
    other.write_bytes(made.authority.issue_cert("b").private_key_pem.bytes())
    for files, says in (
        ({"ca_file": tmp_path / "none.pem"}, "none.pem.: No such file"),
        ({"ca_file": garbage}, "garbage.pem.: expected PEM"),
        ({"client_cert_file": made.cert}, "cert.pem.: expected PEM: certificates, and for a client its key too"),
        ({"client_cert_file": made.cert, "client_key_file": encrypted}, "encrypted.pem.: the key is encrypted"),
        ({"client_cert_file": made.cert, "client_key_file": other}, "other.pem.: the key is not that of the cert"),
    ):
        with pytest.raises(ConfigurationError, match=f"the certificates of a sink cannot be used .*{says}") as refused:
            await posted("https://127.0.0.1:1/", **files)
        assert "_ssl" not in str(refused.value)
