"""Tests of the network: what protocols see of each other, and of each fault."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from poller.delivery.sinks.connection import GuardedResolver, SinkConnector
from poller.http.ssrf import AddressPolicy
from poller.http.transport import Transport, http_client, shared_tls
from poller.lifecycle import abandon
from tests.receiver import RESET, Flood, Receiver, Reply, receiving
from tests.simulation.asgi import serve
from tests.simulation.loop import Host, SimulatedLoop
from tests.simulation.system import system_of_hosts
from tests.simulation.test_loop import simulated
from tests.simulation.transport import KERNEL

PORT = 7000
ANY = "0.0.0.0"  # noqa: S104 -- in memory


class Echo(asyncio.Protocol):
    """Sends back what arrives, and keeps what happened."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.happened.append("made")

    def data_received(self, data: bytes) -> None:
        self.happened.append(data.decode())
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.happened.append(f"lost {type(exc).__name__ if exc else 'in order'}")


class Pair:
    """A server that echoes, its host, and that of clients."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.server = loop.host("server", address="10.0.0.2")
        self.client = loop.host("client", address="10.0.0.3")
        self.happened: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> asyncio.AbstractServer:
        listening = self.loop.create_server(lambda: Echo(self.happened), ANY, PORT)
        return await self.server.start(listening)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.client.start(asyncio.open_connection("server", PORT))
        self.writers.append(writer)
        return reader, writer


@asynccontextmanager
async def paired(loop: SimulatedLoop, *, listening: bool = True) -> AsyncIterator[Pair]:
    """Two hosts, of which one listens; afterwards all connections are closed."""
    pair = Pair(loop)
    if listening:
        await pair.listen()
    try:
        yield pair
    finally:
        for writer in pair.writers:
            writer.close()


async def within(seconds: float, reader: asyncio.StreamReader) -> bytes | None:
    """What arrives in this time; None: nothing, and no end."""
    try:
        return await asyncio.wait_for(reader.read(1000), seconds)
    except TimeoutError:
        return None


def test_bytes_arrive_in_order_and_take_time() -> None:
    """All bytes arrive in the order in which they were written; those of one moment arrive together."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            began = loop.time()
            for number in range(50):
                writer.write(b"%d," % number)
                if number % 10 == 0:
                    await asyncio.sleep(0.0001)
            expected = b"".join(b"%d," % number for number in range(50))
            assert await reader.readexactly(len(expected)) == expected
            assert loop.time() > began
            assert pair.happened[0] == "made"
            assert pair.happened[1] == "0,"
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(1)
            assert pair.happened[-1] == "lost in order"

    simulated(main)


def test_ends_know_their_addresses() -> None:
    """Both ends name the same addresses, and a free port is found for a listener without one."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            _, writer = await pair.connect()
            assert writer.get_extra_info("peername") == ("10.0.0.2", PORT)
            own = writer.get_extra_info("sockname")
            assert own[0] == "10.0.0.3"
            server = await pair.server.start(loop.create_server(asyncio.Protocol, "127.0.0.1", 0))
            assert server.sockets[0].getsockname()[0] == "10.0.0.2"
            assert server.sockets[0].getsockname()[1] > 0
            assert await loop.getaddrinfo("client", 80) == [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.3", 80))
            ]
            with pytest.raises(socket.gaierror):
                await loop.getaddrinfo("nobody.test", 80)

    simulated(main)


def test_nobody_listens() -> None:
    """Connecting to a port without listener, to a closed one, and to one taken twice fails as on a real network."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop, listening=False) as pair:
            with pytest.raises(ConnectionRefusedError):
                await pair.connect()
            server = await pair.listen()
            with pytest.raises(OSError, match="address already in use") as taken:
                await pair.listen()
            assert taken.value.errno == errno.EADDRINUSE
            await pair.connect()
            server.close()
            await server.wait_closed()
            with pytest.raises(ConnectionRefusedError):
                await pair.connect()
            await pair.listen()
            pair.network.refuse("server", 5)
            with pytest.raises(ConnectionRefusedError):
                await pair.connect()
            await asyncio.sleep(5)
            await pair.connect()

    simulated(main)


def test_a_client_that_gave_up_leaves_nothing() -> None:
    """A connection whose maker was cancelled meanwhile is closed at the server."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            pair.network.delay("server", "client", 1, 1)
            connecting = pair.client.start(asyncio.open_connection("server", PORT))
            await asyncio.sleep(1.5)
            connecting.cancel()
            await asyncio.sleep(5)
            assert pair.happened == ["made", "lost in order"]

    simulated(main)


def test_a_slow_link() -> None:
    """A delayed link takes as long as it was told, in both directions."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            pair.network.delay("client", "server", 2, 3)
            began = loop.time()
            writer.write(b"x")
            assert await reader.read(10) == b"x"
            assert 4 <= loop.time() - began <= 6

    simulated(main)


def test_a_partition_only_delays() -> None:
    """What is written during a partition, or was on its way, arrives after it, in order; connecting waits as long."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            pair.network.delay("client", "server", 0.5, 0.6)
            writer.write(b"a")
            pair.network.partition("client", "server", 20)
            await asyncio.sleep(1)
            writer.write(b"b")
            connecting = asyncio.ensure_future(pair.connect())
            assert await within(18, reader) is None
            assert not connecting.done()
            assert await reader.readexactly(2) == b"ab"
            assert loop.time() > 20
            await connecting

    simulated(main)


@pytest.mark.parametrize("lingers", [True, False])
def test_what_was_written_before_a_close_arrives_after_a_partition(lingers: bool) -> None:
    """What a partition has held up is sent again, though the connection is closed, unless it was to be discarded."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            _, writer = await pair.connect()
            pair.network.partition("client", "server", 20)
            writer.write(b"a")
            await asyncio.sleep(1)
            if not lingers:
                abandon(writer.transport)
            writer.close()
            await asyncio.sleep(10)
            assert pair.happened == ["made"]
            await asyncio.sleep(20)
            assert pair.happened[1:] == (["a", "lost in order"] if lingers else ["lost ConnectionResetError"])

    simulated(main)


def test_a_long_partition_ends_connecting() -> None:
    """Connecting fails after two minutes, as Linux gives up."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            pair.network.partition("client", "server", 1000)
            with pytest.raises(TimeoutError) as given_up:
                await pair.connect()
            assert given_up.value.errno == errno.ETIMEDOUT
            assert loop.time() == pytest.approx(127)

    simulated(main)


def test_a_cut_resets_both_ends() -> None:
    """After a cut both ends see a reset, and what was on its way has arrived before."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            writer.write(b"a")
            pair.network.cut("client", "server")
            with pytest.raises(ConnectionResetError):
                await reader.read(10)
                await reader.read(10)
            await asyncio.sleep(1)
            assert pair.happened == ["made", "a", "lost ConnectionResetError"]
            assert pair.network.connections("client", "server") == []
            writer.close()

    simulated(main)


def test_a_half_open_connection_is_silent() -> None:
    """On a half-open connection nothing arrives and no error comes, however long one waits; a new one works."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            pair.network.half_open(pair.network.connections("client", "server")[0])
            writer.write(b"a")
            assert await within(10_000, reader) is None
            assert pair.happened == ["made"]
            reader, writer = await pair.connect()
            writer.write(b"b")
            assert await within(1, reader) == b"b"

    simulated(main)


@pytest.mark.parametrize(("what", "seen"), [("request", ["made"]), ("reply", ["made", "a"])])
def test_a_lost_request_and_a_lost_reply(what: str, seen: list[str]) -> None:
    """The client sees the same of both, a reset; the server has acted if the reply was lost, and has not otherwise."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            pair.network.lose_next("client", "server", "request" if what == "request" else "reply")
            writer.write(b"a")
            with pytest.raises(ConnectionResetError):
                await reader.read(10)
            await asyncio.sleep(1)
            assert pair.happened == [*seen, "lost ConnectionResetError"]
            writer.close()
            reader, writer = await pair.connect()
            writer.write(b"b")
            assert await within(1, reader) == b"b"

    simulated(main)


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_request_is_known_by_what_it_holds(what: str) -> None:
    """Only a request that holds the bytes is lost, or its reply; others pass."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            pair.network.lose_next("client", "server", "request" if what == "request" else "reply", holding=b"b")
            writer.write(b"a")
            assert await within(1, reader) == b"a"
            writer.write(b"abc")
            with pytest.raises(ConnectionResetError):
                await reader.read(10)
            await asyncio.sleep(1)
            assert ("abc" in pair.happened) is (what == "reply")

    simulated(main)


def test_who_does_not_read_stops_the_writer() -> None:
    """A writer is told to pause when the kernels and its buffer are full, and goes on when the other side reads."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            pair.server.freeze()
            reader, writer = await pair.connect()
            writer.write(b"x" * KERNEL)
            await asyncio.wait_for(writer.drain(), 1)
            writer.write(b"y" * KERNEL)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.drain(), 10)
            pair.server.thaw()
            await asyncio.wait_for(writer.drain(), 1)
            assert len(await reader.readexactly(2 * KERNEL)) == 2 * KERNEL

    simulated(main)


def test_a_frozen_server_takes_connections_and_bytes() -> None:
    """The kernel of a frozen host completes connections and keeps bytes; the process sees them when it goes on."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            old_reader, old_writer = await pair.connect()
            pair.server.freeze()
            reader, writer = await pair.connect()
            for letter in b"abc":
                writer.write(bytes([letter]))
                old_writer.write(bytes([letter]))
                await asyncio.sleep(1)
            assert pair.happened == ["made"]
            pair.server.thaw()
            assert await within(1, reader) == b"abc"
            assert await within(1, old_reader) == b"abc"
            assert pair.happened == ["made", "made", "abc", "abc"]

    simulated(main)


def test_what_a_frozen_client_missed_shows_on_its_socket() -> None:
    """While something has arrived that the process has not read, the descriptor of the socket is readable."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            _, writer = await pair.connect()
            poll = select.poll()
            poll.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
            writer.write(b"a")
            pair.client.freeze()
            assert poll.poll(0) == []
            await asyncio.sleep(1)
            assert len(poll.poll(0)) == 1
            pair.client.thaw()
            await asyncio.sleep(1)
            assert poll.poll(0) == []

    simulated(main)


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_client_is_noticed(seed: int) -> None:
    """The server sees the end or a reset of a killed client's connections, and not a byte that was written later."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            pair.network.delay("client", "server", 0.01, 0.02)
            _, writer = await pair.connect()

            async def writing() -> None:
                try:
                    while True:
                        writer.write(b"a")
                        await asyncio.sleep(0.01)
                finally:
                    writer.write(b"b")
                    writer.close()

            pair.client.start(writing())
            await asyncio.sleep(0.105)
            before = list(pair.happened)
            await pair.client.kill()
            await asyncio.sleep(1)
            assert pair.happened[: len(before)] == before
            assert pair.happened[-1] in {"lost in order", "lost ConnectionResetError"}
            assert "b" not in "".join(pair.happened[1:-1])
            assert len(pair.happened) <= len(before) + 4

    simulated(main, seed)


def test_a_machine_without_power_says_nothing() -> None:
    """Who is connected to it notices nothing, and cannot connect, until it is on again and knows no connection."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:
            reader, writer = await pair.connect()
            await pair.server.kill(power=True)
            writer.write(b"a")
            assert await within(1000, reader) is None
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pair.connect(), 100)
            pair.server = loop.host("server", address="10.0.0.2")
            with pytest.raises(ConnectionRefusedError):
                await pair.connect()
            await pair.listen()
            writer.write(b"b")
            with pytest.raises(ConnectionResetError):
                await reader.read(10)
            writer.close()

    simulated(main)


def test_a_dead_host_connects_to_nobody() -> None:
    """What the tasks of a dead host still do reaches nobody: no connection of theirs is seen."""

    async def main(loop: SimulatedLoop) -> None:
        async with paired(loop) as pair:

            async def clinging() -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    await pair.connect()

            task = pair.client.start(clinging())
            await asyncio.sleep(1)
            await pair.client.kill()
            assert task.cancelled()
            await asyncio.sleep(10)
            assert pair.happened == []

    simulated(main)


def test_redis_py_talks_to_a_protocol() -> None:
    """redis-py connects, pipelines, and connects again after a reset."""

    class Pong(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"+OK\r\n" * data.count(b"*"))

    async def main(loop: SimulatedLoop) -> None:
        store, client = loop.host("store", address="10.0.0.2"), loop.host("client", address="10.0.0.3")
        await store.start(loop.create_server(Pong, ANY, 6379))

        async def work() -> None:
            redis = Redis(host="store", port=6379, socket_timeout=5)
            assert await redis.set("a", "b") is True
            commands = redis.pipeline(transaction=False)
            commands.set("a", 1)
            commands.set("a", 2)
            assert await commands.execute() == [True, True]
            loop.network.cut("client", "store")
            await asyncio.sleep(1)
            assert await redis.set("a", "b") is True
            await redis.aclose()

        await client.start(work())

    simulated(main)


async def _hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello " * 10_000 if request.url.path == "/long" else "hello")


def test_httpx_asks_an_application() -> None:
    """The client of sources, as the program makes it, fetches from an ASGI application; responses have dates."""

    async def main(loop: SimulatedLoop) -> None:
        api, client = loop.host("api", address="10.0.0.2"), loop.host("client", address="10.0.0.3")
        app = Starlette(routes=[Route("/{path:path}", _hello)])
        await api.start(serve(app, ANY, 80))

        async def work() -> None:
            async with http_client(Transport(), ssl.create_default_context(), connections=4) as asking:
                answer = await asking.get("http://10.0.0.2/")
                assert (answer.status_code, answer.text) == (200, "hello")
                assert answer.headers["date"] == "Thu, 01 Jan 2026 00:00:00 GMT"
                long = await asking.get("http://10.0.0.2/long")
                assert long.text == "hello " * 10_000

        await client.start(work())

    simulated(main)


def test_a_connection_is_kept_from_one_minute_to_the_next() -> None:
    """Law: requests a minute apart share a connection; the next one that comes much later makes another."""
    clients: list[object] = []

    async def note(request: Request) -> PlainTextResponse:
        clients.append(request.scope["client"])
        return PlainTextResponse("hello")

    async def main(loop: SimulatedLoop) -> None:
        api, client = loop.host("api", address="10.0.0.2"), loop.host("client", address="10.0.0.3")
        await api.start(serve(Starlette(routes=[Route("/", note)]), ANY, 80, keep_alive=120))

        async def work() -> None:
            async with http_client(Transport(), ssl.create_default_context(), connections=4) as asking:
                for pause in (60, 60, 600, 0):
                    assert (await asking.get("http://10.0.0.2/")).status_code == 200
                    await asyncio.sleep(pause)

        with system_of_hosts(loop):  # aiohttp reads the clock by itself
            await client.start(work())

    simulated(main)
    assert len(set(clients[:3])) == 1
    assert clients[3] != clients[2]


@asynccontextmanager
async def _sink(loop: SimulatedLoop) -> AsyncIterator[tuple[Receiver, aiohttp.ClientSession, Host]]:
    host, client = loop.host("sink", address="10.0.0.2"), loop.host("client", address="10.0.0.3")
    over, made = asyncio.Event(), loop.create_future()

    async def receive() -> None:
        async with receiving(host="10.0.0.2", port=80) as receiver:
            made.set_result(receiver)
            await over.wait()

    task = host.start(receive())
    receiver = await made

    async def session() -> aiohttp.ClientSession:
        resolver = GuardedResolver(AddressPolicy(private=True))
        return aiohttp.ClientSession(
            connector=SinkConnector(limit=4, tls=shared_tls(uses_tls=False), resolver=resolver)
        )

    posting = await client.start(session())
    try:
        yield receiver, posting, client
    finally:
        await posting.close()
        over.set()
        await task


def test_a_receiver_is_a_sink() -> None:
    """The receiver of the tests gets requests by the sinks' connections, which are kept, and its resets are resets."""

    async def main(loop: SimulatedLoop) -> None:
        async with _sink(loop) as (receiver, posting, client):

            async def post() -> int:
                async with posting.post(f"{receiver.url}/x", data=b"event") as answer:
                    await answer.read()
                    return answer.status

            assert [await client.start(post()) for _ in range(5)] == [204] * 5
            assert receiver.connections == 1
            assert receiver.requests[-1].body == b"event"
            receiver.answer = RESET
            with pytest.raises(aiohttp.ClientOSError) as reset:
                await client.start(post())
            assert reset.value.errno == errno.ECONNRESET
            receiver.answer = Reply(200, body=b"ok")
            assert await client.start(post()) == 200

    simulated(main)


def test_a_flood_is_held_back() -> None:
    """A sink that writes for ever is cut off when its client reads no more, so memory stays bounded."""

    async def main(loop: SimulatedLoop) -> None:
        async with _sink(loop) as (receiver, posting, client):
            receiver.answer = Flood(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n", b"x" * 10_000)

            async def post() -> None:
                async with posting.post(receiver.url, data=b"event") as answer:
                    assert len(await answer.content.readexactly(1000)) == 1000
                    end = loop.network.connections("client", "sink")[0].peer
                    await asyncio.sleep(100)
                    assert not loop.network.connections("client", "sink")
                    assert end._under_way < 3 * KERNEL

            await client.start(post())

    simulated(main)
