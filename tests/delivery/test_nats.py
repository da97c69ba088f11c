"""Laws of :mod:`poller.delivery.sinks.nats`, on a real NATS server with JetStream."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
from nats.aio.client import Client
from nats.errors import StaleConnectionError
from nats.js.api import PubAck
from redis.asyncio import Redis

from poller.auth.base import Credential, EnvironmentToken, FileToken, NoCredential, SecretFile
from poller.clock import Clock
from poller.config.load import load
from poller.config.subscriptions import SubscriptionSettings
from poller.control.diagnostics import check_sinks
from poller.control.factories import sink_of
from poller.control.subscriptions import sample
from poller.delivery.cloudevent import envelope_of
from poller.delivery.delivery_codec import delivery_again, encode, letter_of
from poller.delivery.sinks.base import NOT_PERMITTED, Failure, OutcomeKind, SinkEvent, SinkParts, open_sink
from poller.delivery.sinks.nats import Login, NatsSink, _LastMessages, user_credentials
from poller.errors import ConfigurationError, CredentialUnusable
from poller.http.ssrf import AddressPolicy
from poller.redis.client import commands
from poller.store import dead_letters as given_up
from poller.store import replay as replays
from poller.store.replay import ReplaySpan
from tests.delivery.events import entry, spelled
from tests.delivery.nats_server import SUBJECT, NatsServer, administered, credentials, messages, nats_server
from tests.delivery.pairs import EVENTS, KEYS, delivering, publish
from tests.harness.clock import StubClock
from tests.harness.unread import MANY, unread
from tests.harness.waiting import until
from tests.source.clients import keep

TOKEN = "s3cret-T0ken-0123456789"  # noqa: S105 -- of no use anywhere
SOON = timedelta(milliseconds=20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path) as running:
        yield running


@pytest.fixture
async def client(store_url: str) -> AsyncIterator[Redis]:
    async with commands(store_url) as one:
        yield one


def event(number: int = 1, **members: Any) -> SinkEvent:
    data = spelled(id=f"e{number}", **members)
    return SinkEvent(envelope_of(data), data)


@asynccontextmanager
async def sink_at(url: str, *, seconds: float = 10, **options: Any) -> AsyncIterator[NatsSink]:
    given = {"allowed": AddressPolicy(private=True), "clock": Clock(), **options}
    async with NatsSink(url, timeout=timedelta(seconds=seconds), **given) as sink:
        yield sink


async def test_an_event_is_one_message_in_structured_mode(server: NatsServer) -> None:
    """A message has the entry's bytes, its id and the content type of CloudEvents; verifying names the stream."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"])
        assert (await sink.verify()).text == f"the stream S takes {SUBJECT}"
        whole = entry()
        sent = SinkEvent(envelope_of(whole), whole)
        shown, outcome = await sink.try_out([sent])
        assert (outcome.kind, outcome.error, outcome.failure) == (OutcomeKind.DELIVERED, "", None)
        got = await stream.get_msg("S", 1)
        assert (got.subject, got.data) == (SUBJECT, whole)
        expected = {"Nats-Msg-Id": sent.envelope.id, "Content-Type": "application/cloudevents+json"}
        assert (got.headers or {}) == expected
        assert shown.body == whole
        assert shown.head[2:] == [f"{name}: {value}" for name, value in expected.items()]


async def test_a_repeat_is_dropped_and_what_is_wanted_again_is_not(server: NatsServer) -> None:
    """The stream keeps an id once within its window; a redelivery or a replay has an id of its own."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"])
        for one in (event(), event(), event()._replace(repeat="1"), event()._replace(repeat="c0ffee")):
            assert (await sink.send([one])).is_delivered
        assert [name for name, _ in await messages(stream)] == ["e1", "e1/1", "e1/c0ffee"]


async def test_an_event_is_not_published_if_its_lease_runs_out_while_the_sink_connects(server: NatsServer) -> None:
    """Whether an event may be sent is asked when there is a connection; another process may have published it."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"])
        assert await sink.send([event()], allowed=lambda: sink._connection is None) is NOT_PERMITTED
        assert (await sink.send([event(2)])).is_delivered
        assert [name for name, _ in await messages(stream)] == ["e2"]


async def test_subscriptions_whose_subjects_are_in_one_stream_do_not_drop_each_others_events(
    server: NatsServer,
) -> None:
    """Two subjects of one stream each get every event and repeat once, though the stream compares all its ids."""
    async with (
        administered(server) as stream,
        sink_at(server.url()) as one,
        sink_at(server.url(subject="hr.b")) as other,
    ):
        await stream.add_stream(name="S", subjects=["hr.>"])
        for sent in (event(), event(), event()._replace(repeat="1"), event()._replace(repeat="1")):
            for sink in (one, other):
                assert (await sink.send([sent])).is_delivered
        state = (await stream.stream_info("S", subjects_filter=">")).state
        assert state.subjects == {SUBJECT: 2, "hr.b": 2}
        assert {name for name, _ in await messages(stream)} == {"e1", "e1/1", "e1@hr.b", "e1/1@hr.b"}


def revision(number: int, key: str = "r") -> SinkEvent:
    """One of the events of a record, in their order."""
    return event(number, partitionkey=key, sequence=f"{number:020d}")


async def test_a_dropped_repeat_is_not_left_before_an_earlier_event_of_its_record(server: NatsServer) -> None:
    """Law: an earlier event whose window was over comes again, and so do the later ones: the record's last stays last.

    The stream does not know the first event, as after its window. Later repeats are dropped, also in a new process.
    """
    async with administered(server) as stream:
        await stream.add_stream(name="S", subjects=["hr.>"])
        async with sink_at(server.url()) as before:
            for one in (revision(2), revision(3), revision(4, "other")):
                assert (await before.send([one])).is_delivered
        expected = ["e2", "e3", "e4", "e1", f"e2@{SUBJECT}@4", f"e3@{SUBJECT}@5"]
        for _ in range(2):
            async with sink_at(server.url()) as sink:
                for number in (1, 2, 3, 2, 3):
                    assert (await sink.send([revision(number)])).is_delivered
                assert (await sink.send([revision(4, "other")])).is_delivered
            assert [name for name, _ in await messages(stream)] == expected


async def test_a_dropped_repeat_before_a_later_event_of_its_record_is_in_order(server: NatsServer) -> None:
    """Law: what is sent again within its window is dropped while the record's last message is its latest event."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"])
        for number in (1, 2, 3, 1, 2, 3, 3):
            assert (await sink.send([revision(number)])).is_delivered
        assert [name for name, _ in await messages(stream)] == ["e1", "e2", "e3"]


def test_the_last_messages_of_so_many_records_are_known() -> None:
    """Law: the record whose last message was added longest ago is forgotten; numbers of another stream do not count."""
    last = _LastMessages(2)
    for number, key in enumerate(("a", "b", "a", "c"), 5):
        last.add(revision(1, key), PubAck("S", number))
    repeat = PubAck("S", 1, duplicate=True)
    assert [last.behind(revision(2, key), repeat) for key in ("a", "b", "c")] == [7, 0, 8]
    assert last.behind(revision(2, "a"), PubAck("T", 1, duplicate=True)) == 0
    last.add(revision(1, "a"), repeat)  # of a message before the last one
    assert last.behind(revision(2, "a"), repeat) == 7
    last.add(revision(2, "a"), PubAck("S", 1))  # the stream was deleted and made again
    assert last.behind(revision(3, "a"), PubAck("S", 2, duplicate=True)) == 0


async def test_an_event_that_was_dropped_is_sent_again_where_the_stream_cannot_be_read(tmp_path: Path) -> None:
    """Without the right to read the stream, an event dropped as a repeat is sent again under its subject's own id."""
    user = f'{{ user: poller, password: {TOKEN}, permissions: {{ publish: "hr.>" }} }}'
    with nats_server(
        tmp_path, f"authorization {{ users: [ {user}, {{ user: admin, password: {TOKEN} }} ] }}"
    ) as server:
        login = Login(user="poller", password=lambda: TOKEN)
        async with (
            administered(server, user="admin", password=TOKEN) as stream,
            sink_at(server.url(), login=login) as one,
            sink_at(server.url(subject="hr.b"), login=login) as other,
        ):
            await stream.add_stream(name="S", subjects=["hr.>"])
            assert (await one.send([event()])).is_delivered
            for _ in range(3):
                assert (await other.send([event()])).is_delivered
            state = (await stream.stream_info("S", subjects_filter=">")).state
            assert state.subjects == {SUBJECT: 1, "hr.b": 1}


async def test_a_missing_stream_is_a_clear_error(server: NatsServer) -> None:
    """Without a stream for the subject an event is not delivered; the error names the subject and the remedy."""
    async with sink_at(server.url()) as sink:
        outcome, permission = await sink.send([event()]), await sink.verify()
    assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.NO_STREAM)
    assert outcome.error == permission.text == f"no stream takes the subject {SUBJECT}: create one, or correct the sink"
    assert permission.state == "refused"


async def test_a_server_without_jetstream_is_a_clear_error(tmp_path: Path) -> None:
    """A server without JetStream keeps no message, so the event is not delivered."""
    with nats_server(tmp_path, jetstream=False) as server:
        async with sink_at(server.url()) as sink:
            assert (await sink.send([event()])).failure is Failure.NO_STREAM
            assert (await sink.verify()).state == "refused"


async def test_a_full_stream_is_a_clear_error(server: NatsServer) -> None:
    """A full stream is a retry; an event too large for the stream or the server is rejected."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"], max_msgs=1, discard="new", max_msg_size=1000)
        assert (await sink.send([event(1)])).is_delivered
        full = await sink.send([event(2)])
        assert (full.kind, full.failure) == (OutcomeKind.RETRY, Failure.STREAM_FULL)
        assert full.error == f"the stream of {SUBJECT} is full: maximum messages exceeded (10077); raise its limits"
        for size in (2000, 2_000_000):
            large = await sink.send([event(3, data="x" * size)])
            assert (large.kind, large.failure) == (OutcomeKind.REJECTED, Failure.REQUEST)
            assert large.error
        await stream.purge_stream("S")
        assert (await sink.send([event(2)])).is_delivered


async def test_headers_count_for_the_largest_message(tmp_path: Path) -> None:
    """An event that only its headers make too large is rejected, and messages in flight are not affected."""
    small, large = event(1), event(2, data="x" * 1000)
    with nats_server(tmp_path, f"max_payload: {len(large.data) + 20}") as server:
        async with administered(server) as stream, sink_at(server.url()) as sink:
            await stream.add_stream(name="S", subjects=["hr.>"])
            outcomes = await asyncio.gather(sink.send([small]), sink.send([large]))
    assert [one.kind for one in outcomes] == [OutcomeKind.DELIVERED, OutcomeKind.REJECTED]
    assert outcomes[1].error == "the event is larger than max_payload of the server"


@pytest.mark.parametrize(
    ("rights", "denied"),
    [
        (f'publish: {{ deny: "{SUBJECT}" }}', "Publish"),
        ('subscribe: { deny: "_INBOX.>" }', "Subscription"),
    ],
)
async def test_a_missing_right_is_a_clear_error(tmp_path: Path, rights: str, denied: str) -> None:
    """A missing right is reported as such with the rights to grant, not as a timeout."""
    user = f"{{ user: poller, password: {TOKEN}, permissions: {{ {rights} }} }}"
    users = f"{user}, {{ user: admin, password: {TOKEN} }}"
    with nats_server(tmp_path, f"authorization {{ users: [ {users} ] }}") as server:
        login = Login(user="poller", password=lambda: TOKEN)
        admin = {"user": "admin", "password": TOKEN}
        async with administered(server, **admin) as stream, sink_at(server.url(), login=login) as sink:
            await stream.add_stream(name="S", subjects=["hr.>"])
            for _ in range(2):
                outcome = await sink.send([event()])
                assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.PERMISSION)
                assert f"permissions violation for {denied}".lower() in outcome.error.lower()
                assert "grant publishing to the subject and subscribing to _INBOX.>" in outcome.error
                assert outcome.seconds < 5
            assert len(await messages(stream)) == (denied == "Subscription")  # the message is kept, once


async def test_logins_by_token_user_and_credentials_file(tmp_path: Path) -> None:
    """Each kind of login works; with none or a wrong one the server refuses, and no error shows the secret."""
    config, file = credentials(tmp_path)
    other = keep(tmp_path / "token", TOKEN)
    for name, text, good in (
        ("token", f'authorization {{ token: "{TOKEN}" }}', Login(FileToken(other))),
        ("user", f'authorization {{ user: u, password: "{TOKEN}" }}', Login(user="u", password=lambda: TOKEN)),
        ("credentials", config, Login(credentials=SecretFile(file, "NATS credentials"))),
    ):
        (tmp_path / f"of {name}").mkdir()
        with nats_server(tmp_path / f"of {name}", text) as server:
            async with sink_at(server.url(), login=good) as sink:
                assert (await sink.send([event()])).failure is Failure.NO_STREAM  # the login was accepted
            for bad in (Login(), Login(user="u", password=lambda: "wrong"), Login(EnvironmentToken("T", {"T": "bad"}))):
                async with sink_at(server.url(), login=bad) as sink:
                    outcome = await sink.send([event()])
                assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.PERMISSION), name
                assert "check auth of the subscription" in outcome.error
                assert TOKEN not in outcome.error


async def test_what_proves_who_connects_is_missing(server: NatsServer, tmp_path: Path) -> None:
    """With an unusable credential file nothing is sent; the error names the file but not its content."""
    text = keep(tmp_path / "creds", "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n")
    for login in (
        Login(FileToken(tmp_path / "none")),
        Login(user="u", password=SecretFile(tmp_path / "none", "password").text),
        Login(credentials=SecretFile(text, "NATS credentials")),
    ):
        async with sink_at(server.url(), login=login) as sink:
            outcome = await sink.send([event()])
        assert (outcome.kind, outcome.was_sent) == (OutcomeKind.NOT_SENT, False)
        assert str(tmp_path) in outcome.error
        assert "a.b.c" not in outcome.error


def test_a_credentials_file_is_whole_or_refused(tmp_path: Path) -> None:
    """A wrong letter in the seed of a credentials file is detected by its checksum."""
    _, file = credentials(tmp_path)
    jwt, _ = user_credentials(SecretFile(file, "NATS credentials"))
    assert jwt.count(".") == 2
    lines = file.read_text().splitlines()
    seed = next(number for number, line in enumerate(lines) if line.startswith("SU"))
    lines[seed] = lines[seed][:20] + ("A" if lines[seed][20] != "A" else "B") + lines[seed][21:]
    with pytest.raises(CredentialUnusable, match="holds no NATS credentials"):
        user_credentials(SecretFile(keep(tmp_path / "bad", "\n".join(lines)), "NATS credentials"))


async def test_a_token_that_was_replaced_is_tried_once_more(tmp_path: Path) -> None:
    """After a refused login the credential is renewed, and the connection is tried again with the new token."""

    class Rotating(Credential):
        origin = "the test"
        asked = 0

        async def token(self) -> str:
            self.asked += 1
            return TOKEN if self.asked > 1 else "the-one-before"

        async def renew(self, rejected: str) -> bool:
            return rejected == "the-one-before"

    with nats_server(tmp_path, f'authorization {{ token: "{TOKEN}" }}') as server:
        async with sink_at(server.url(), login=Login(Rotating())) as sink:
            assert (await sink.send([event()])).failure is Failure.NO_STREAM


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_config(directory: Path, authority: trustme.CA, *, verify: bool = False) -> str:
    """The server's side of TLS."""
    made = authority.issue_cert("127.0.0.1", "nats.example")
    made.private_key_pem.write_to_path(str(directory / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    files = ", ".join(f'{name}_file: "{directory / name}.pem"' for name in ("cert", "key", "ca"))
    return f"tls {{ {files}, verify: {str(verify).lower()} }}"


async def test_tls_is_agreed_on_before_anything_is_sent(tmp_path: Path, authority: trustme.CA) -> None:
    """With TLS, an unknown certificate is refused; with a ``nats://`` URL, so is a server that requires TLS."""
    config = tls_config(tmp_path, authority) + f'\nauthorization {{ token: "{TOKEN}" }}'
    login = Login(EnvironmentToken("T", {"T": TOKEN}))
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with nats_server(tmp_path, config) as server:
        async with sink_at(server.url("tls"), tls=trusting, login=login) as sink:
            assert (await sink.send([event()])).failure is Failure.NO_STREAM
        async with sink_at(server.url("tls"), login=login) as sink:
            stranger = await sink.send([event()])
        async with sink_at(server.url("nats"), login=login) as sink:
            plain = await sink.send([event()])
    assert stranger.failure is Failure.TLS
    assert "certificate is not accepted" in stranger.error
    assert (plain.failure, plain.error) == (
        Failure.TLS,
        "the server requires TLS; write tls:// in the subscription's sink",
    )


async def test_renewed_certificate_files_are_used_for_the_next_connection(
    tmp_path: Path, authority: trustme.CA
) -> None:
    """A changed certificate file is used for the next connection; while it is unusable, the error says so."""
    own = tmp_path / "trusted.pem"
    trustme.CA().cert_pem.write_to_path(str(own))
    with nats_server(tmp_path, tls_config(tmp_path, authority)) as server:
        table = {"id": "a", "sink": server.url("tls"), "allow_private": True, "ca_file": str(own)}
        async with sink_of(SubscriptionSettings.model_validate(table), {}, clock=Clock()) as sink:
            assert (await sink.send([event()])).failure is Failure.TLS
            own.write_bytes(b"nonsense")
            assert "expected PEM" in (await sink.send([event()])).error
            authority.cert_pem.write_to_path(str(own))
            assert (await sink.send([event()])).failure is Failure.NO_STREAM


async def test_a_client_certificate_is_shown(tmp_path: Path, authority: trustme.CA) -> None:
    """The subscription's client certificate is sent to a server that requires one; without it the attempt fails."""
    config = tls_config(tmp_path, authority, verify=True)
    own = authority.issue_cert("poller.example")
    own.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    with nats_server(tmp_path, config) as server:
        table = {"id": "a", "sink": server.url("tls"), "allow_private": True, "ca_file": str(tmp_path / "ca.pem")}
        refused = {Failure.TLS, Failure.CLOSED, Failure.RESET}
        for more, failures in (({"client_cert_file": str(tmp_path / "own.pem")}, {Failure.NO_STREAM}), ({}, refused)):
            async with sink_of(SubscriptionSettings.model_validate(table | more), {}, clock=Clock()) as sink:
                outcome = await sink.send([event()])
            assert outcome.kind is OutcomeKind.RETRY
            assert outcome.failure in failures


async def test_a_server_that_takes_tls_away_gets_no_token() -> None:
    """With ``tls://``, a server that offers no TLS gets no token."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","auth_required":true,"max_payload":1000}\r\n')
        try:
            got.append(await reader.read(1000))
        except ConnectionResetError:
            got.append(b"")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        login = Login(EnvironmentToken("T", {"T": TOKEN}))
        async with sink_at(f"tls://127.0.0.1:{port}/{SUBJECT}", login=login) as sink:
            outcome = await sink.send([event()])
        await until(lambda: got, "the end of the connection")
    assert (outcome.failure, got) == (Failure.TLS, [b""])
    assert "the server offers no TLS" in outcome.error


async def test_what_is_no_nats_server_is_told() -> None:
    """A server that does not speak NATS is reported as such."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}") as sink:
            outcome = await sink.send([event()])
    assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.PROTOCOL)
    assert outcome.error == "what answers is no NATS server"


async def test_only_addresses_that_were_checked_are_connected_to(tmp_path: Path) -> None:
    """A name with a private address is refused, and a server that another server announces is never connected to."""
    touched: list[int] = []

    async def trap(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.append(1)
        writer.close()

    async def inwards(_: str) -> list[str]:
        return ["127.0.0.1"]

    async with await asyncio.start_server(trap, "127.0.0.1", 0) as announced:
        where = announced.sockets[0].getsockname()[1]
        with nats_server(tmp_path, f'client_advertise: "127.0.0.1:{where}"') as server:
            async with sink_at(server.url().replace("127.0.0.1", "nats.example"), lookup=inwards) as sink:
                assert (await sink.send([event()])).failure is Failure.NO_STREAM
                server.kill()
                for _ in range(3):
                    assert (await sink.send([event()])).failure in (Failure.CLOSED, Failure.REFUSED, Failure.RESET)
            server.start()
            url = f"tls://nats.example:{server.port}/{SUBJECT}"
            async with sink_at(url, lookup=inwards, allowed=AddressPolicy()) as sink:
                refused = await sink.send([event()])
        assert not touched
    assert (refused.failure, refused.error) == (
        Failure.ADDRESS,
        "the address is refused: nats.example leads to 127.0.0.1, a loopback address",
    )


async def test_a_server_that_does_not_answer_is_a_timeout() -> None:
    """The attempt's time limit includes connecting and greeting."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}", seconds=0.3) as sink:
            outcome = await sink.send([event()])
            assert (await sink.verify()).failure is Failure.TIMEOUT
    assert (outcome.failure, outcome.error) == (Failure.TIMEOUT, "no acknowledgement within 0.3 s")


async def test_a_server_that_restarts_in_mid_delivery_loses_and_doubles_nothing(
    server: NatsServer, client: Redis
) -> None:
    """Through two kills of the server each event is in the stream once, and those of a record are in order."""
    keys = [f"K{number % 7}" for number in range(200)]
    async with administered(server) as stream:
        await stream.add_stream(name="S", subjects=["hr.>"])
    async with sink_at(server.url()) as sink, delivering(client, sink, schedule=SOON, retries=2000) as pair:
        for part in range(2):
            for number, key in list(enumerate(keys, 1))[part * 100 : part * 100 + 100]:
                data = spelled(id=f"e{number}", subject=key, partitionkey=key, sequence=str(number))
                await client.xadd(EVENTS, {"data": data}, id=f"{number}-0")
            pair.news()

            async def some(count: int = 20 + part * 100) -> bool:
                groups = await client.xinfo_groups(EVENTS) if await client.exists(EVENTS) else []
                return bool(groups) and groups[0]["entries-read"] >= count

            await until(some, "some events to be read")
            server.kill()
            server.start()

        async def settled() -> bool:
            groups = await client.xinfo_groups(EVENTS)
            waiting = groups[0]["pending"] or await client.hlen(KEYS.parked)
            return groups[0]["entries-read"] == len(keys) and not waiting

        await until(settled, "all events to be settled")
        async with administered(server) as stream:
            found = await messages(stream)
        assert not await client.hlen(KEYS.letters)
    assert sorted(int(one["sequence"]) for _, one in found) == list(range(1, len(keys) + 1))
    of_record: dict[str, list[int]] = defaultdict(list)
    for _, one in found:
        of_record[one["subject"]].append(int(one["sequence"]))
    assert all(numbers == sorted(numbers) for numbers in of_record.values())


async def test_a_connection_that_ended_unannounced_is_replaced(server: NatsServer) -> None:
    """A connection that was closed without a report is replaced before the next event."""
    async with administered(server) as stream, sink_at(server.url()) as sink:
        await stream.add_stream(name="S", subjects=["hr.>"])
        assert (await sink.send([event(1)])).is_delivered
        connection = sink._connection
        assert connection is not None
        await connection._client._close(Client.CLOSED, do_cbs=False)
        assert (await sink.send([event(2)])).is_delivered


async def test_a_redelivery_and_a_replay_arrive_again(server: NatsServer, client: Redis) -> None:
    """A redelivery, also a second one, and a replay have ids of their own, so the stream keeps them."""
    async with sink_at(server.url()) as sink, administered(server) as stream:
        async with delivering(client, sink, schedule=SOON) as pair:
            await publish(client, "K")  # without a stream: a dead letter after three attempts

            async def letter() -> bytes | None:
                (raw,) = await given_up.letters(client, [(KEYS, "1-0")])
                return raw

            raw = await until(letter, "a dead letter")
            assert "no stream takes" in letter_of(raw).reason
            await stream.add_stream(name="S", subjects=["hr.>"])
            again = delivery_again(letter_of(raw))
            assert again.repeat == "1"
            await given_up.redeliver(client, KEYS, "1-0", letter=raw, delivery=encode(again))
            pair.reload()

            async def arrived(count: int) -> bool:
                return len(await messages(stream)) == count

            await until(lambda: arrived(1), "the redelivery")
            assert await replays.start_replay(client, KEYS, ReplaySpan("c0ffee00", "0-0", "1-0"))
            pair.reload()
            await until(lambda: arrived(2), "the replay")
        names = [name.partition("/")[2] for name, _ in await messages(stream)]
    assert names == ["1", "c0ffee00"]
    twice = delivery_again(letter_of(raw).__class__(letter_of(raw).event, "", "", repeat="1"))
    of_replay = delivery_again(letter_of(raw).__class__(letter_of(raw).event, "", "", repeat="c0ffee00"))
    assert (twice.repeat, of_replay.repeat) == ("2", "c0ffee00/1")


BASE = {"id": "a", "sink": "tls://nats.example.org:4222/hr.events"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"mode": "batch"}, "expected only with a sink that is https://"),
        ({"mode": "binary"}, "expected only with a sink that is https://"),
        ({"batch": {"max_events": 7}}, "expected only with a sink that is https://"),
        ({"headers": {"X-A": "1"}}, "expected only with a sink that is https://"),
        ({"secret_files": ["a"]}, "expected only with a sink that is https://"),
        ({"validate": True}, "expected only with a sink that is https://"),
        ({"sink": "nats://nats.example.org/hr.events"}, "nats:// only with allow_private = true"),
        ({"sink": "tls://nats.example.org"}, "with a subject without wildcards"),
        ({"sink": "tls://nats.example.org/hr.>"}, "with a subject without wildcards"),
        ({"sink": "tls://nats.example.org/a..b"}, "with a subject without wildcards"),
        ({"sink": "tls://nats.example.org/$JS.API.STREAM.DELETE.S"}, "not one of the server's own"),
        ({"sink": "tls://u:p@nats.example.org/a"}, "a credential goes into auth"),
        ({"sink": "tls://127.0.0.1/a"}, "this is a loopback address"),
        ({"sink": "nats://127.0.0.1/a", "allow_private": True, "ca_file": "x"}, "a sink that is tls://"),
        ({"sink": "https://example.org/", "auth": {"credentials_file": "x"}}, "is for nats:// and tls:// alone"),
        ({"sink": "ftp://example.org/"}, "begins with https://, http://, tls:// or nats://"),
    ],
)
def test_what_a_nats_sink_does_not_take_is_refused(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    """An invalid setting of a NATS sink is refused with what is expected."""
    (tmp_path / "x").write_text("x")
    with pytest.raises(ValueError, match=r"(?s).*") as refused:
        SubscriptionSettings.model_validate(BASE | more)
    assert words in str(refused.value)


def test_what_a_nats_sink_takes(tmp_path: Path) -> None:
    """A NATS sink accepts each kind of login from the file, and refuses signing secrets."""
    file = tmp_path / "poller.toml"
    user = '{ user = { name = "u", password_file = "p" } }'
    for auth in (user, '{ credentials_file = "c" }', '{ token_file = "t" }'):
        file.write_text(
            '[[sources]]\nname = "a"\nbase_url = "https://api.example.org"\n'
            '[[sources.feeds]]\nresource = "contractTypes"\n'
            f'[[subscriptions]]\nid = "s"\nsink = "{BASE["sink"]}"\nauth = {auth}\n'
        )
        (one,) = load(file, {}).subscriptions
        assert not one.is_signed
        parts = SinkParts(NoCredential(), Clock())
        assert isinstance(open_sink(one, parts), NatsSink)
        with pytest.raises(ConfigurationError, match="no signing secrets"):
            open_sink(one, SinkParts(NoCredential(), Clock(), secrets=("whsec_x",)))


async def test_check_and_test_know_the_sink(server: NatsServer) -> None:
    """``poller check`` reports whether the stream exists; ``subscriptions test`` shows message and outcome."""
    settings = SubscriptionSettings.model_validate({"id": "a", "sink": server.url(), "allow_private": True})
    (before,) = [line async for line in check_sinks([settings], {}, clock=Clock())]
    assert (before.severity, before.text[:30]) == ("error", "no stream takes the subject hr")
    async with administered(server) as stream:
        await stream.add_stream(name="S", subjects=["hr.>"])
        (line,) = [line async for line in check_sinks([settings], {}, clock=Clock())]
        assert (line.severity, line.text) == ("ok", f"the sink is there (the stream S takes {SUBJECT})")
        found = await sample(settings, secrets=(), handshake=None, environ={}, clock=StubClock(draws=iter(["a1"])))
        assert found.outcome.is_delivered
        assert "Nats-Msg-Id: a1" in found.sent.head
        assert [name for name, _ in await messages(stream)] == ["a1"]


async def test_servers_that_a_server_announces_are_not_connected_to() -> None:
    """No connection is made to the other servers that a server announces."""
    touched: list[int] = []

    async def trap(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.append(1)
        writer.close()

    async with await asyncio.start_server(trap, "127.0.0.1", 0) as other:
        where = f"127.0.0.1:{other.sockets[0].getsockname()[1]}"
        greeting = {
            "server_id": "x",
            "version": "2.9.10",
            "headers": True,
            "max_payload": 1000,
            "connect_urls": [where],
        }

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"INFO " + json.dumps(greeting).encode() + b"\r\n")
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
            await reader.readuntil(b"HPUB")
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}") as sink:
                for _ in range(3):
                    assert (await sink.send([event()])).failure is Failure.CLOSED
    assert not touched


FLOODS = {
    "a message that never ends": (b"MSG _INBOX.x 1 99999999999\r\n", b"x"),
    "a line that never ends": (b"INFO ", b"x"),
    "messages without a request": (b"", b"MSG nobody 9 1\r\nx\r\n"),
}


@pytest.mark.parametrize(("begins", "goes_on"), FLOODS.values(), ids=FLOODS)
async def test_a_server_that_sends_more_than_an_answer_is_left(begins: bytes, goes_on: bytes) -> None:
    """A server that sends without end is disconnected, and the outcome says so."""
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","headers":true,"max_payload":100000}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n")
        await reader.readuntil(b"HPUB")
        writer.write(begins)
        with suppress(ConnectionError):
            for _ in range(2_000):  # 64 MB: far more than is sent before the sink disconnects
                writer.write(goes_on * (32_000 // len(goes_on)))
                await writer.drain()
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}", seconds=30) as sink:
            outcome = await sink.send([event()])
            await until(left.is_set, "the end of the connection")
    assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.CLOSED)
    assert outcome.error == "the connection was closed: the server sends far more than it was asked for"


Serving = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def acknowledging(answer: bytes, connections: list[int]) -> Serving:
    """A server that acknowledges each event with these bytes and counts its connections."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        writer.write(b'INFO {"server_id":"x","version":"2.9.10","headers":true,"max_payload":100000}\r\n')
        number = b""
        while line := await reader.readline():
            words = line.split()
            if words[0] == b"PING":
                writer.write(b"PONG\r\n")
            elif words[0] == b"SUB":
                number = words[-1]
            elif words[0] == b"HPUB":
                await reader.readexactly(int(words[-1]) + 2)
                writer.write(b"MSG %b %b %d\r\n%b\r\n" % (words[2], number, len(answer), answer))
        writer.close()

    return serve


async def test_what_a_server_may_send_counts_anew_for_each_event() -> None:
    """The limit of received bytes holds for each event, so a connection may last for many events."""
    connections: list[int] = []
    serve = acknowledging(b'{"stream":"S","seq":1}' + b" " * 100_000, connections)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}") as sink:
            for number in range(6):
                assert (await sink.send([event(number)])).is_delivered
    assert len(connections) == 1


@pytest.mark.parametrize("answer", [b"", b"\xff", b"[]", b"null", b'{"error":"x"}', b"[" * 100_000])
async def test_an_acknowledgement_that_is_none_is_a_clear_error(answer: bytes) -> None:
    """An acknowledgement that cannot be decoded is a failure that says so, even if it is nested too deep."""
    async with await asyncio.start_server(acknowledging(answer, []), "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}") as sink:
            outcome = await sink.send([event()])
    assert (outcome.kind, outcome.failure) == (OutcomeKind.RETRY, Failure.PROTOCOL)
    assert outcome.error == "the answer is not one of JetStream"


READY = b'INFO {"server_id":"x","version":"2.9.10","headers":true,"tls_available":true,"max_payload":90000000}\r\n'
LARGE = 8_000_000
"""Bytes of an event: more than the kernel keeps of a connection, so some stay in the process."""


async def test_what_a_server_has_not_received_of_an_event_does_not_arrive_after_it_was_given_up() -> None:
    """With the connection, the rest of an event is discarded; it would be in the stream after later events."""
    async with unread() as listener, sink_at(f"nats://127.0.0.1:{listener.port}/{SUBJECT}") as sink:
        sending = asyncio.ensure_future(sink.send([event(data="x" * MANY)]))
        server = await listener.accepted()
        await server.write(READY)
        got = b""
        while b"PING\r\n" not in got:
            got += await server.read()
        await server.write(b"PONG\r\n")
        while b"HPUB" not in got:
            got += await server.read()
        await server.write(f"-ERR 'Permissions Violation for Publish to \"{SUBJECT}\"'\r\n".encode())
        assert (await sending).failure is Failure.PERMISSION
        await sink.close()
        assert await server.rest() < MANY // 2


@asynccontextmanager
async def deaf(tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port of a server that lets clients log in, and reads no more after that."""
    accepted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.write(READY)
        if tls:
            await writer.start_tls(tls)
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
        cast("asyncio.Transport", writer.transport).pause_reading()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with await asyncio.start_server(serve, sock=listening):
            yield listening.getsockname()[1]
            for writer in accepted:
                writer.transport.abort()


def wire_of(sink: NatsSink) -> socket.socket:
    """The socket of the sink's connection."""
    assert sink._connection is not None
    writer = sink._connection._wire._io_writer
    assert writer is not None
    wire: socket.socket = writer.get_extra_info("socket")
    return wire


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_a_connection_to_a_server_that_reads_no_more_is_closed(scheme: str, authority: trustme.CA) -> None:
    """Each connection that is given up, and the last one, is closed with all it had to send, with and without TLS."""
    own, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(own)
    authority.configure_trust(trusting)
    wires = []
    async with (
        deaf(own if scheme == "tls" else None) as port,
        sink_at(f"{scheme}://127.0.0.1:{port}/{SUBJECT}", seconds=2, tls=trusting) as sink,
    ):
        for number in range(2):
            sent = await asyncio.gather(*(sink.send([event(number, data="x" * LARGE)]) for _ in range(2)))
            assert {one.failure for one in sent} == {Failure.TIMEOUT}
            assert sink._connection is not None
            wires.append(wire_of(sink))
            sink._connection._denied.set_result("no more")
            await until(lambda: all(wire.fileno() == -1 for wire in wires[:-1]), "the earlier connections to be closed")
        await sink.close()
        await until(lambda: wires[-1].fileno() == -1, "the last connection to be closed")


@pytest.mark.parametrize("events", [1, 2])
async def test_a_connection_that_the_client_gives_up_is_closed(events: int) -> None:
    """So is one whose pings have no answer; if the client waits before closing it, then with the next event."""
    async with deaf() as port, sink_at(f"nats://127.0.0.1:{port}/{SUBJECT}", seconds=2) as sink:
        await asyncio.gather(*(sink.send([event(number, data="x" * LARGE)]) for number in range(events)))
        connection, wire = sink._connection, wire_of(sink)
        assert connection is not None
        closing = asyncio.ensure_future(connection._client._process_op_err(StaleConnectionError()))
        await until(lambda: not connection.is_usable, "the connection to be given up")
        if events > 1:
            await sink.send([event(3)])
        await closing
        await until(lambda: wire.fileno() == -1, "the connection to be closed")
